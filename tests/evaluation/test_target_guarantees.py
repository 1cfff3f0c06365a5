"""Intervals of numbers and bounds of survival times: against the tables, and what is refused."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support.made_predictions import made

from probsa.core import TextTable
from probsa.errors import InputError
from probsa.evaluation import GuaranteeOptions, evaluate, write_predictions, write_sets

OUTPUTS = {
    "regression": ("mean", "sd", "q05", "q25", "q50", "q75", "q95"),
    "survival": ("risk", "s_4", "s_10"),
    "multilabel": ("a", "b"),
}


def write_targets(folder, task, *, count=60, seed=0, parts=("val", "test")):
    """Write predictions of patients with two bags each, and their table."""
    g = np.random.default_rng(seed)
    predictions, targets, part_of, rows = [], {}, {}, []
    for k in range(count):
        name, amount = f"{folder.name}{k:03d}", g.normal()
        if task == "regression":
            sd = float(g.uniform(0.5, 2))
            values, target = (
                (amount, sd, *(amount + sd * np.arange(-2, 3))),
                (amount + sd * g.normal(),),
            )
        elif task == "survival":
            rate = 0.1 * np.exp(amount)
            died, censored = g.exponential(1 / rate), g.exponential(20)
            values = (10 - (1 - np.exp(-10 * rate)) / rate, *np.exp(-rate * np.array([4, 10])))
            target = (min(died, censored), float(died <= censored))
        else:
            values, target = (0.2, 0.7), (0.0, 1.0)
        p = made(name, g.normal(size=4), np.zeros(4, int), probability=(0.5,))
        values = np.array(values, np.float32)
        predictions.append(
            replace(
                p, probability=values, std=0.1 * np.abs(values), task=task, outputs=OUTPUTS[task]
            )
        )
        targets[name], part_of[name] = target, parts[k // 2 % len(parts)]
        rows.append(",".join([name, f"p{k // 2}", *map(str, target)]))
    training = [list(targets[p.name]) for p in predictions]
    write_predictions(
        folder, predictions, labels=targets, parts=part_of,
        classes=("a", "b") if task == "multilabel" else (), threshold=None,
        metadata={"model": "abmil", "training_targets": training},
    )  # fmt: skip
    columns = {"regression": "label", "survival": "time,event", "multilabel": "a,b"}[task]
    table = folder.with_suffix(".csv")
    table.write_text("\n".join([f"bag,group,{columns}", *rows]) + "\n")
    return folder, table


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where = tmp_path_factory.mktemp("targets")
    return {task: write_targets(where / task, task) for task in OUTPUTS}


def section(folder, table, **options):
    report = evaluate(folder, labels=table, bootstrap=0, guarantees=GuaranteeOptions(**options))
    (found,) = [s for s in report.sections if s.key == "guarantees"]
    return found


def parts_of(folder):
    rows = TextTable.read(folder / "predictions.csv").rows
    return [[r for r in rows if r["part"] == part] for part in ("val", "test")]


def means_of_pairs(values):
    """Two bags of a patient follow one another."""
    return np.asarray(values, float).reshape(-1, 2).mean(1)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_intervals_are_those_of_the_calibration_bags(score, folders):
    folder, table = folders["regression"]
    found = section(folder, table, coverage=0.8, score=score).to_dict()["intervals"]
    val, test = parts_of(folder)

    def scores(rows):
        y, mean, sd = (np.array([float(r[c]) for r in rows]) for c in ("label", "mean", "sd"))
        return np.abs(y - mean) / (sd if score == "aps" else 1)

    def risk(q):  # the share of a patient's bags outside; a new patient adds 1 at most
        return (means_of_pairs(scores(val) > q).sum() + 1) / (len(val) // 2 + 1)

    q = found["half_width"]
    assert risk(q * (1 + 1e-6)) <= 0.2 < risk(q * (1 - 1e-6)) and found["calibration_groups"] == 15
    covered = means_of_pairs(scores(test) <= q * (1 + 1e-6)).mean()
    assert found["metrics"]["coverage"]["value"] == pytest.approx(covered)
    sd = np.array([float(r["sd"]) for r in test]) if score == "aps" else np.ones(len(test))
    width = means_of_pairs(2 * q * sd).mean()
    assert found["metrics"]["width"]["value"] == pytest.approx(width)
    sides = [found["metrics"][k]["value"] for k in ("coverage", "below", "above")]
    assert sum(sides) == pytest.approx(1)


def test_bounds_of_survival_times_hold_for_the_observed_times(folders):
    folder, table = folders["survival"]
    found = section(folder, table, coverage=0.8).to_dict()["bounds"]
    val, test = parts_of(folder)

    def bounds(rows, level):
        grid = np.linspace(0, 10, 129)[1:]
        s = np.array([[1, float(r["s_4"]), float(r["s_10"])] for r in rows])
        curves = np.exp([np.interp(grid, [0, 4, 10], np.log(row)) for row in s])
        reached = curves <= level
        return np.where(reached.any(1), grid[reached.argmax(1)], 10)

    def late(rows, level):
        times = np.array([float(r["label_time"]) for r in rows])
        return means_of_pairs(times < bounds(rows, level))

    level = found["survival_level"]
    assert (late(val, level).sum() + 1) / 16 <= 0.2 < (late(val, level - 0.02).sum() + 1) / 16
    value = found["metrics"]["observed_after_bound"]["value"]
    assert value == pytest.approx(1 - late(test, level).mean())
    mean = means_of_pairs(bounds(test, level)).mean()
    assert found["metrics"]["mean_bound"]["value"] == pytest.approx(mean)


def test_the_text_says_what_is_promised(folders):
    for task, words in (
        ("regression", "the predicted mean ±"),
        ("survival", "first time at which"),
    ):
        file = io.StringIO()
        section(*folders[task], coverage=0.8).render(Console(width=200, file=file))
        text = file.getvalue()
        assert words in text and "15 calibration groups" in text and "shift" in text


def test_calibration_may_come_from_another_folder_of_the_same_task(folders, tmp_path):
    folder, table = folders["regression"]
    other, _ = write_targets(tmp_path / "other", "regression", seed=5, parts=("test",))
    options = GuaranteeOptions(coverage=0.8, calibration=other)
    report = evaluate(folder, bootstrap=0, guarantees=options)
    found = report.sections[-1].to_dict()
    assert found["calibration_bags"] == 60 and "intervals" in found
    with pytest.raises(InputError, match=r"the task regression, but .* has survival"):
        section(folder, table, coverage=0.8, calibration=folders["survival"][0])
    with pytest.raises(InputError, match="lacks"):
        section(folder, table, coverage=0.8, calibration=other)


def test_too_few_patients_say_how_many_are_needed(folders):
    for task in ("regression", "survival"):
        with pytest.raises(InputError, match=r"at least 19 groups .* but there are 15"):
            section(*folders[task], coverage=0.95)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("multilabel", {"coverage": 0.8}, "the task is multilabel"),
        ("regression", {"max_error": 0.1}, "--max-error accepts calls of classes"),
        ("regression", {"coverage": 0.8, "per_class": True}, "--per-class is for classes"),
        ("survival", {"coverage": 0.8, "score": "aps"}, "--set-score"),
    ],
)
def test_what_a_task_cannot_have_is_refused(task, options, message, folders):
    with pytest.raises(InputError, match=message):
        section(*folders[task], **options)


def test_limits_of_new_bags_are_written(folders, tmp_path):
    options = GuaranteeOptions(coverage=0.8)
    for task, columns in (("regression", ["low", "high"]), ("survival", ["lower_bound"])):
        folder, table = folders[task]
        written = write_sets(folder, options, out=tmp_path / f"{task}.csv", labels=table)
        rows = TextTable.read(written.table).rows
        assert list(rows[0]) == ["bag", *columns] and len(rows) == written.bags == 30
        assert written.limits and "limits" in written.to_dict()
