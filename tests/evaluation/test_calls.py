"""One rule makes the calls of a folder, whatever command reads it."""

import json

import numpy as np
import pandas as pd
import pytest
from support.made_guarantees import write_cohort
from support.made_predictions import made

from probsa.errors import InputError
from probsa.evaluation import (
    METADATA,
    PREDICTIONS_TABLE,
    GuaranteeOptions,
    evaluate,
    read_predictions,
    verdict_of,
    write_predictions,
    write_sets,
)
from probsa.evaluation.storage import call_threshold
from probsa.maps import against
from probsa.maps.draw import heading
from probsa.statistics import Threshold, choose_threshold
from probsa.tasks import TASKS, Stated
from probsa.view.rows import list_rows

SHARES = np.linspace(0.05, 0.95, 19)
"""Probabilities whose float32 numbers lie on both sides of their shortest decimals."""
CLASSES = ("healthy", "tumour")


def write(folder, *, threshold, validation=True, seed=0):
    """Write validation and test bags of every share, with random labels."""
    rng = np.random.default_rng(seed)
    predictions = []
    labels = {}
    parts = {}
    for part in ("val", "test"):
        for k, share in enumerate(rng.permutation(SHARES)):
            name = f"{part}{k:02}"
            evidence = rng.normal(size=6)
            predictions.append(
                made(name, evidence, probability=(np.float32(share),), score_kind="evidence")
            )
            parts[name] = part
            if validation or part == "test":
                labels[name] = int(rng.random() < share)
    write_predictions(
        folder,
        predictions,
        labels=labels,
        parts=parts,
        classes=CLASSES,
        threshold=threshold,
        metadata={"model": "abmil"},
    )
    return read_predictions(folder)


def calls_everywhere(table):
    """Return by whom and which class each bag is called, in the order of the table."""
    stored = pd.read_csv(table.folder / PREDICTIONS_TABLE, dtype={"bag": str})
    frame = table.to_frame()
    rows = {row.name: row for row in list_rows(table)}
    instances = [table.instances(bag) for bag in table.bags]
    report = evaluate(table.folder, part="all", bootstrap=0)
    return {
        "predictions.csv": stored["prediction"].tolist(),
        "data frame": frame["prediction"].tolist(),
        "words of the data frame": [CLASSES.index(call) for call in frame["call"]],
        "page": [CLASSES.index(rows[bag].call) for bag in table.bags],
        "threshold of the page": [
            int(p[-1] >= rows[bag].threshold)
            for bag, p in zip(table.bags, table.probability, strict=True)
        ],
        "title of a map": [CLASSES.index(verdict_of(table, p).call) for p in instances],
        "prediction in Python": [CLASSES.index(p.call) for p in instances],
        "title of a picture": [int(heading(p).facts[0].startswith(CLASSES[1])) for p in instances],
        "report": (table.probability[:, -1] >= report.threshold).astype(int).tolist(),
    }


@pytest.mark.parametrize(
    ("threshold", "validation", "origin"),
    [
        *((float(share), True, "stored") for share in SHARES.round(2)),
        (None, True, "chosen"),
        (None, False, "default"),
    ],
)
def test_every_reader_of_a_folder_makes_the_same_calls(tmp_path, threshold, validation, origin):
    table = write(tmp_path / "p", threshold=threshold, validation=validation)
    assert table.call_threshold.origin == origin
    calls = calls_everywhere(table)
    expected = (table.probability[:, -1].round(6) >= table.threshold).astype(int).tolist()
    assert sum(expected) > 0
    for reader, found in calls.items():
        assert found == expected, reader


def test_the_report_counts_the_wrong_calls_of_the_same_threshold(tmp_path):
    table = write(tmp_path / "p", threshold=None)
    report = evaluate(tmp_path / "p", bootstrap=0)
    frame = table.to_frame()
    test = frame[frame["part"] == "test"]
    right = (test["prediction"] == test["label"]).mean()
    assert report.threshold == table.threshold != 0.5
    assert report.metrics["accuracy"].value == pytest.approx(right)


def test_accepted_calls_are_those_of_the_report(tmp_path):
    """The fault: `sets` took 0.5 where nothing is stored, and `evaluate` the best F1."""
    folder, labels = write_cohort(
        tmp_path / "p", threshold=None, parts=(("val", 120), ("test", 40))
    )
    options = GuaranteeOptions(max_error=0.15)
    report = evaluate(folder, labels=labels, guarantees=options, bootstrap=0)
    (guarantees,) = [s for s in report.sections if s.key == "guarantees"]
    sets = write_sets(folder, options, labels=labels, out=tmp_path / "sets.csv")
    undecided = guarantees.values["accepted"]["undecided"]
    assert undecided is not None and undecided == sets.values["undecided"]
    assert report.threshold != 0.5
    low, high = undecided
    assert low < report.threshold < high


def test_a_map_speaks_against_the_call_of_its_threshold(tmp_path):
    """All instances speak for the class, so only a call of the other one is contradicted."""
    for threshold in (0.2, 0.3, 0.4):
        folder = tmp_path / f"{threshold}"
        p = made("a", np.ones(5), probability=(np.float32(0.3),), score_kind="evidence")
        write_predictions(
            folder, [p], labels={}, parts={}, classes=CLASSES, threshold=threshold, metadata={}
        )
        table = read_predictions(folder)
        called = table.to_frame()["prediction"][0] == 1
        assert called == (threshold <= 0.3)
        assert bool(against(table, table.instances("a"))) != called


def test_the_rule_takes_what_is_stored_then_validation_bags_then_a_half():
    binary = TASKS["binary"]
    bags = {
        "parts": ["val", "val", "val", "test"],
        "positive": [True, False, None, True],
        "p": np.array([[0.3], [0.1], [0.9], [0.2]]),
    }
    assert call_threshold(binary, stored=0.7, **bags) == Threshold(value=0.7, origin="stored")
    chosen = choose_threshold(np.array([True, False]), np.array([0.3, 0.1]))
    assert call_threshold(binary, stored=None, **bags) == chosen
    assert (chosen.origin, chosen.bags) == ("chosen", 2)
    unlabelled = {**bags, "positive": [None] * 4}
    assert call_threshold(binary, stored=None, **unlabelled) == Threshold(
        value=0.5, origin="default"
    )
    negative = call_threshold(binary, stored=None, **{**bags, "positive": [False] * 4})
    assert (negative.value, negative.origin, negative.bags) == (0.5, "default", 3)
    assert negative.reason
    for name, task in TASKS.items():
        if name != "binary":
            assert call_threshold(task, stored=0.7, **bags) is None


def test_a_finding_is_positive_from_its_own_threshold():
    task = TASKS["multilabel"]
    p = np.array([[0.3, 0.1], [0.1, 0.6], [0.1, 0.1]])
    assert task.called_positive(p).tolist() == [False, True, False]
    stated = Stated(thresholds=(0.2, 0.9))
    assert task.called_positive(p, stated).tolist() == [True, False, False]
    written = Stated(thresholds=(0.3, 0.9))
    assert task.called_positive(p.astype(np.float32), written).tolist() == [True, False, False]


@pytest.mark.parametrize("rule", ["sensitivity=0.95", "specificity=0.8"])
def test_a_threshold_that_is_asked_for_is_chosen_on_validation_and_judged_on_test(tmp_path, rule):
    table = write(tmp_path / "p", threshold=0.5)
    name, share = rule.split("=")
    report = evaluate(tmp_path / "p", threshold=rule, bootstrap=100)
    p = table.probability[:, -1].astype(np.float64)
    y = np.array(table.labels) == (1 if name == "sensitivity" else 0)
    right = (p >= report.threshold) == (name == "sensitivity")
    validation = np.array(table.parts) == "val"
    on_validation = right[y & validation].mean()
    assert on_validation >= float(share)
    judged = report.metrics[name]
    assert judged.value == pytest.approx(right[y & ~validation].mean())
    assert judged.low <= judged.value <= judged.high
    line = next(line for line in report.summary if line.startswith("threshold"))
    for fact in (f"{name} of at least {share}", f"{on_validation:.3f} (", str(judged)):
        assert fact in line
    of_class = int((y & validation).sum())
    assert f"({int((right & y & validation).sum())} of {of_class} " in line
    # a stored one says what was asked and reached, too
    how = {"rule": rule, "reached": float(on_validation), "bags": int(validation.sum())}
    how["of_class"] = of_class
    metadata = json.loads((tmp_path / "p" / METADATA).read_text())
    metadata |= {"threshold": report.threshold, "threshold_rule": how}
    (tmp_path / "p" / METADATA).write_text(json.dumps(metadata))
    stored = evaluate(tmp_path / "p", bootstrap=100)
    assert stored.threshold == report.threshold and line in stored.summary
    # files of earlier versions state no number of bags of the class
    metadata["threshold_rule"].pop("of_class")
    (tmp_path / "p" / METADATA).write_text(json.dumps(metadata))
    assert any(f"{on_validation:.3f} there" in each for each in evaluate(tmp_path / "p").summary)


def test_a_threshold_cannot_be_chosen_without_validation_bags(tmp_path):
    write(tmp_path / "p", threshold=0.5, validation=False)
    with pytest.raises(InputError, match="RUN/predictions"):
        evaluate(tmp_path / "p", threshold="sensitivity=0.9")
    write(tmp_path / "q", threshold=0.5)
    with pytest.raises(InputError, match="'speed=1'"):
        evaluate(tmp_path / "q", threshold="speed=1")
