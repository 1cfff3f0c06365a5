"""A grid with a data set of every task is run; its tables hold the metrics of its predictions."""

import csv
import json

import numpy as np
import pytest
import yaml
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    cohen_kappa_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from support.made_cohorts import TASKS, write_cohort

from probsa.benchmark import check_grid, read_grid, run_grid, write_report
from probsa.core import TextTable
from probsa.errors import InputError, TableError

SMALL = {"embed": 4, "attention_dim": 4}
MODELS = [
    {"name": "abmil", **SMALL},
    {"name": "abmil-probsa-diag", **SMALL, "samples": 2, "predict_samples": 3},
]
METHODS = {"abmil": "abmil", "abmil-probsa-diag_kl-0.1": "abmil-probsa-diag λ=0.1"}
"""Folders of the methods, and their names in tables."""


def grid_of(folder, tasks, *, bags=36, column="split", **keys):
    """Write cohorts of the tasks, and a grid of two short runs on each."""
    given = {
        "data": {
            task: write_cohort(folder / task, task, bags=bags, column=column) for task in tasks
        },
        "models": MODELS,
        "kl_weight": 0.1,
        "splits": [0],
        "epochs": 1,
        "batch_size": 8,
        "learning_rate": 0.02,
        "warmup_epochs": 0,
        "device": "cpu",
        "threads": 1,
    }
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump({**given, **keys}, sort_keys=False))
    return path


def change(folder, edit):
    """Change the rows of a table of labels, as lists of cells without the header."""
    path = folder / "labels.csv"
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    rows = [edit(k, row) for k, row in enumerate(rows)]
    path.write_text("\n".join(map(",".join, [header, *rows])) + "\n")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Run a grid of all tasks once."""
    folder = tmp_path_factory.mktemp("tasks")
    grid = read_grid(grid_of(folder, TASKS, bags=27), out=folder / "out")
    states = run_grid(grid, folder / "out")
    assert [s.reason for s in states if s.status != "done"] == []
    return folder / "out", grid, write_report(folder / "out")


def predicted(out, task, method):
    """Return the columns of the test bags in the predictions of a run."""
    table = TextTable.read(
        out / "cells" / task / method / "split0-seed0/predictions/predictions.csv"
    ).rows
    rows = [row for row in table if row["part"] == "test"]
    assert len(rows) == 9

    def numbers(name):
        return np.array([float(row[name]) if row[name] else np.nan for row in rows])

    return numbers


def trained(out, task, method):
    """Return the times and events of the training bags, as the run states them."""
    path = out / "cells" / task / method / "split0-seed0/predictions/predictions.json"
    return np.array(json.loads(path.read_text())["training_targets"])


def of_classes(out, task, method):
    column = predicted(out, task, method)
    y = column("label").astype(int)
    p = np.stack([column(f"p_{c}") for c in range(3)], axis=1)
    return y, p / p.sum(1, keepdims=True)


def expected_multiclass(out, method):
    y, p = of_classes(out, "multiclass", method)
    call = p.argmax(1)
    return {
        "auroc": 100 * roc_auc_score(y, p, multi_class="ovr"),
        "accuracy": 100 * accuracy_score(y, call),
        "f1": 100 * f1_score(y, call, average="macro"),
        "quadratic_kappa": cohen_kappa_score(y, call, weights="quadratic", labels=range(3)),
    }


def expected_ordinal(out, method):
    y, p = of_classes(out, "ordinal", method)
    below = np.cumsum(p, axis=1)
    call = (below < 0.5).sum(1)
    rps = ((below[:, :2] - (y[:, None] <= np.arange(2))) ** 2).sum(1)
    return {
        "quadratic_kappa": cohen_kappa_score(y, call, weights="quadratic", labels=range(3)),
        "mae": mean_absolute_error(y, call),
        "rps": rps.mean(),
        "nll": -np.log(p[np.arange(len(y)), y]).mean(),
    }


def expected_multilabel(out, method):
    column = predicted(out, "multilabel", method)
    known = {n: np.isfinite(column(f"label_{n}")) for n in ("tumour", "necrosis")}
    pairs = [(column(f"label_{n}")[k], column(f"p_{n}")[k]) for n, k in known.items()]
    return {
        "macro_auroc": 100 * np.mean([roc_auc_score(*pair) for pair in pairs]),
        "macro_average_precision": 100 * np.mean([average_precision_score(*p) for p in pairs]),
        "nll": column("nll").mean(),
    }


def expected_regression(out, method):
    column = predicted(out, "regression", method)
    y = column("label")
    mean = column("mean")
    return {
        "mae": mean_absolute_error(y, mean),
        "rmse": root_mean_squared_error(y, mean),
        "r_squared": r2_score(y, mean),
        "crps": column("crps").mean(),
    }


def expected_survival(out, method):
    column = predicted(out, "survival", method)
    time = column("label_time")
    event = column("label_event") == 1
    risk = column("risk")
    train = trained(out, "survival", method)

    def uncensored(t):
        """Return Ĝ(t) of the training bags, 0 beyond them."""
        g = 1.0
        for u in np.unique(train[train[:, 1] == 0, 0]):
            if u <= t:
                at_risk = (train[:, 0] > u) | ((train[:, 0] == u) & (train[:, 1] == 0))
                g *= 1 - ((train[:, 0] == u) & (train[:, 1] == 0)).sum() / at_risk.sum()
        return g if t <= train[:, 0].max() else 0.0

    above = below = 0.0
    for i in range(len(time)):
        if event[i] and (g := uncensored(time[i])) > 0:
            later = (time > time[i]) | ((time == time[i]) & ~event)
            above += ((risk[i] > risk) + 0.5 * (risk[i] == risk))[later].sum() / g**2
            below += later.sum() / g**2
    return {"uno_c": 100 * above / below}


EXPECTED = {
    "multiclass": expected_multiclass,
    "ordinal": expected_ordinal,
    "multilabel": expected_multilabel,
    "regression": expected_regression,
    "survival": expected_survival,
}


def test_every_task_has_its_expected_metrics():
    assert EXPECTED.keys() == TASKS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_tables_hold_the_metrics_of_the_predictions(experiment, task):
    out, _, _ = experiment
    means = {r["method"]: r for r in TextTable.read(out / "tables/comparison_local.csv").rows}
    pooled = {r["method"]: r for r in TextTable.read(out / f"tables/pooled_local_{task}.csv").rows}
    wanted = {method: EXPECTED[task](out, method) for method in METHODS}
    for method, name in METHODS.items():
        primary = next(iter(wanted[method]))
        value = float(means[name][f"{task}_{primary}"])
        assert value == pytest.approx(wanted[method][primary], abs=2e-5)
        for metric, value in wanted[method].items():
            assert float(pooled[name][metric]) == pytest.approx(value, abs=2e-5), metric
            difference = value - wanted["abmil"][metric]
            if name != "abmil":
                shown = float(pooled[name][f"{metric}_difference"])
                assert shown == pytest.approx(difference, abs=4e-5)


def test_ranks_are_over_data_sets_by_their_primary_metric(experiment):
    out, _, _ = experiment
    rows = {r["method"]: r for r in TextTable.read(out / "tables/comparison_local.csv").rows}
    ranks = {name: [] for name in rows}
    for task in TASKS:
        (key,) = (k for k in rows["abmil"] if k.startswith(f"{task}_") and not k.endswith("_sd"))
        sign = -1 if task == "regression" else 1
        values = {name: sign * float(row[key]) for name, row in rows.items()}
        for name in rows:
            higher = sum(v > values[name] for v in values.values())
            equal = sum(v == values[name] for v in values.values())
            ranks[name].append(1 + higher + (equal - 1) / 2)
    for name, row in rows.items():
        assert float(row["rank"]) == pytest.approx(np.mean(ranks[name]), abs=1e-6)


def test_null_rivals_stand_below_the_methods(experiment):
    out, _, _ = experiment
    rows = {r["method"]: r for r in TextTable.read(out / "tables/pooled_local_regression.csv").rows}
    y = predicted(out, "regression", "abmil")("label")
    train = trained(out, "regression", "abmil")
    for rival, value in (("mean", train.mean()), ("median", np.median(train))):
        row = rows[f"{rival} of the training bags"]
        assert float(row["mae"]) == pytest.approx(np.abs(y - value).mean(), abs=1e-5)
        assert row["mae_difference"] == ""
    with (out / "tables/pooled_local_survival.csv").open() as file:
        assert [r["method"] for r in csv.DictReader(file)][-1].startswith("Kaplan")


def test_figures_of_two_classes_are_left_out(experiment):
    out, _, report = experiment
    assert {name for name, _ in report.missing} == {f"figures of {task}" for task in TASKS}
    assert (out / "tables/comparison_local.tex").is_file()
    assert (out / "tables/folds_survival.md").is_file()


@pytest.mark.parametrize(
    ("task", "keys", "fact"),
    [
        ("regression", {"models": ["abmil", "clam-sb", "vmil"]}, "clam-sb.*abmil.*vmil"),
        (
            "multiclass",
            {"exceptions": [{"models": "abmil", "task": "ordinal"}]},
            "multiclass.*abmil.*abmil-probsa-diag",
        ),
    ],
)
def test_a_model_that_cannot_learn_the_task_and_a_second_task_are_refused(
    tmp_path, task, keys, fact
):
    out = tmp_path / "out"
    grid = read_grid(grid_of(tmp_path, [task], **keys), out=out)
    with pytest.raises(InputError, match=fact):
        check_grid(grid, out)
    assert not (out / "cells").exists()


@pytest.mark.parametrize(
    ("task", "edit", "keys", "error", "fact"),
    [
        # test parts that cannot be judged
        ("multiclass", lambda k, r: ["0"] if k == 1 and r == ["2"] else r, {}, TableError, "'2'"),
        ("ordinal", lambda k, r: ["1"] if k == 1 else r, {}, TableError, "'1'"),
        ("multilabel", lambda k, r: ["1", r[1]] if k == 1 else r, {}, TableError, "'tumour'"),
        ("survival", lambda k, r: [r[0], "0"] if k == 1 else r, {}, TableError, "event"),
        # training parts that determine no likelihood
        ("regression", lambda k, r: r if k in (1, 2) else ["3"], {}, TableError, "18"),
        (
            "survival",
            lambda _, r: r,
            {"exceptions": [{"data": "survival", "bins": 20}]},
            InputError,
            "fold 0.*bins",
        ),
    ],
)
def test_parts_that_cannot_be_judged_or_learnt_from_are_refused(
    tmp_path, task, edit, keys, error, fact
):
    """The rows of the table, in four folds, are changed by a function of the fold."""
    path = grid_of(tmp_path, [task], column="fold", splits=4, **keys)
    change(tmp_path / task, lambda k, row: [row[0], *edit(k % 4, row[1:-1]), str(k % 4)])
    with pytest.raises(error, match=f"{task}.*{fact}"):
        check_grid(read_grid(path, out=tmp_path / "out"), tmp_path / "out")
