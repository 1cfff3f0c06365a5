"""One rule says when maps may be shown as explanations; summary, page and pictures apply it."""

import itertools
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from evaluation.test_summary import _folder
from support.made_curves import made_curves
from support.refusals import refused

from probsa.core import read_json, write_csv, write_json
from probsa.errors import InputError
from probsa.evaluation import (
    MEAN_FEATURES,
    METADATA,
    MapTest,
    evaluate,
    map_trust,
    read_predictions,
    stored_trust,
    write_curves,
)
from probsa.evaluation.report.trust import is_gain
from probsa.statistics import Metric
from probsa.tasks import TASKS, Stated

BAGS = 60
GOOD = np.concatenate([np.linspace(0.02, 0.45, BAGS // 2), np.linspace(0.55, 0.98, BAGS // 2)])
POOR = np.random.default_rng(3).random(BAGS)


@pytest.mark.parametrize("results", list(itertools.product((True, False, None), repeat=4)))
def test_every_test_must_be_passed(results):
    trust = map_trust(dict(zip(MapTest, results, strict=True)))
    assert trust.failed == tuple(t for t, r in zip(MapTest, results, strict=True) if r is False)
    assert trust.untested == tuple(t for t, r in zip(MapTest, results, strict=True) if r is None)
    expected = "no" if False in results else "untested" if None in results else "yes"
    assert trust.verdict == expected


def test_a_gain_counts_if_its_interval_lies_above_0():
    assert is_gain(None) is None and is_gain(Metric.undefined("no bag")) is None
    assert is_gain(Metric(0.2, low=0.1, high=0.3)) is True
    assert is_gain(Metric(0.2, low=-0.1, high=0.5)) is False
    assert is_gain(Metric(0.2)) is False


def with_rival(folder: Path, p) -> Path:
    names = read_predictions(folder).bags
    rows = [{"bag": name, "1": float(v)} for name, v in zip(names, p, strict=True)]
    write_csv(folder / MEAN_FEATURES, ["bag", "1"], rows)
    return folder


def with_curves(folder: Path, gain: float) -> None:
    """Write curves of deletion with this area more than those of a random order."""
    g = np.random.default_rng(0)
    curves = []
    for name in read_predictions(folder).bags:
        areas = {"shown": 0.4 + gain / 2, "random": 0.4 - gain / 2}
        noisy = {order: area + 0.01 * float(g.normal()) for order, area in areas.items()}
        curves.append(made_curves(name, noisy))
    write_curves(folder, curves)


@pytest.mark.parametrize(("own", "rival"), [(GOOD, GOOD), (GOOD, POOR), (POOR, GOOD)])
def test_the_rival_stands_beside_the_model_and_decides(tmp_path, own, rival):
    folder = with_rival(_folder(tmp_path / "p", own, masks=True), rival)
    report = evaluate(folder, bootstrap=200)
    section = next(s for s in report.sections if s.key == "target")
    of_means = next(iter(section.values["rivals"].values()))
    (line,) = [line for line in report.summary if line.startswith("rival: ")]
    for name in ("auroc", "nll"):
        for metric in (of_means[name], report.metrics[name]):
            assert f"{metric.value:.3f}".removeprefix("0") in line
    better = own is GOOD and rival is POOR
    assert (MapTest.MEAN_FEATURES in report.map_trust.failed) is not better
    assert (MapTest.CHANCE in report.map_trust.failed) is (own is POOR)
    assert bool(report.rival) is not better
    reservations = {reservation.text for reservation in report.reservations}
    assert set(report.rival) <= reservations  # which page and pictures show
    (said,) = [line for line in report.summary if line.startswith("trust in the maps: ")]
    assert said == f"trust in the maps: {report.map_trust.sentence}"
    assert report.to_dict()["map_trust"]["verdict"] == report.map_trust.verdict


def test_what_was_not_tested_is_named(tmp_path):
    report = evaluate(_folder(tmp_path / "p", GOOD), bootstrap=200)
    assert report.map_trust.verdict == "untested"
    expected = (MapTest.MEAN_FEATURES, MapTest.NULL_MAPS, MapTest.FAITHFULNESS)
    assert report.map_trust.untested == expected
    assert not [line for line in report.summary if line.startswith("rival: ")]


@pytest.mark.parametrize("gain", [0.3, -0.3])
def test_faithfulness_has_its_line_and_its_vote(tmp_path, gain):
    folder = _folder(tmp_path / "p", GOOD)
    assert not [s for s in evaluate(folder, bootstrap=0).sections if s.key == "faithfulness"]
    with_curves(folder, gain)
    report = evaluate(folder, bootstrap=200)
    (line,) = [line for line in report.summary if line.startswith("faithfulness: ")]
    section = next(s for s in report.sections if s.key == "faithfulness")
    value = section.values["metrics"]["area_shown"].value
    assert f"{value:.3f}".removeprefix("0") in line
    assert (MapTest.FAITHFULNESS in report.map_trust.failed) is (gain < 0)
    assert MapTest.FAITHFULNESS not in report.map_trust.untested


def test_the_documentation_states_the_rule():
    text = (Path(__file__).parents[2] / "docs" / "which-model.md").read_text(encoding="utf-8")
    rule = text.partition("## When a map may be shown")[2].partition("\n## ")[0]
    for test in MapTest:
        assert f"**{test.value}**" in rule


@pytest.mark.parametrize("task", ["binary", "multiclass", "ordinal", "multilabel", "regression"])
@pytest.mark.parametrize("members", [1, 3])
def test_plus_minus_says_what_it_spans(task, members, tmp_path):
    from exports.test_values import CLASSES, predicted
    from support.made_maps import lattice

    if task == "regression":
        pytest.skip("its outputs come from a fitted likelihood")
    p = predicted("evidence-field", task, lattice())
    between = None if members == 1 else p.std / 2
    verdict = TASKS[p.task].verdict(replace(p, std_between=between), Stated(CLASSES[task]))
    assert "±" in verdict.text
    assert verdict.span == ("one model" if members == 1 else "models")
    assert verdict.text.count("±") == verdict.text.count(f"({verdict.span})")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A folder of predictions, and the verdict on its maps; tests work on copies."""
    folder = _folder(tmp_path_factory.mktemp("evaluated") / "p", GOOD)
    return folder, evaluate(folder, bootstrap=200).map_trust


@pytest.mark.parametrize(
    ("gain", "drop", "passed"),
    [
        # where the bags were measured, they judge
        *((gain, drop, gain > 0) for gain in (0.3, -0.3) for drop in (None, 0.0477, 0.2)),
        # a small drop of validation bags says no, and a larger one nothing
        (None, None, None),
        (None, 0.0477, False),
        (None, 0.2, None),
    ],
)
@pytest.mark.parametrize("labelled", [True, False])
def test_one_rule_judges_faithfulness_for_summary_page_and_pictures(
    evaluated, tmp_path, gain, drop, passed, labelled
):
    drops = {} if drop is None else {"evidence": drop}
    choice = {"chosen": "evidence", "drops": drops, "bags": 9, "reason": "", "rule": ""}
    folder = Path(shutil.copytree(evaluated[0], tmp_path / "p"))
    metadata = read_json(folder / METADATA, advice="")
    stated = {"map_score": choice, "map_trust": asdict(evaluated[1].stored)}
    write_json(folder / METADATA, {**metadata, **stated})
    if gain is not None:
        with_curves(folder, gain)
    predictions = read_predictions(folder)
    if not labelled:
        predictions = replace(predictions, labels=(None,) * BAGS)
    trust = stored_trust(predictions)
    if labelled:
        report = evaluate(folder, bootstrap=2000)
        assert trust == report.map_trust
        assert f"trust in the maps: {trust.sentence}" in report.summary
    assert (MapTest.FAITHFULNESS in trust.failed) is (passed is False)
    assert (MapTest.FAITHFULNESS in trust.untested) is (passed is None)
    # the drop is said as what it is, and only where it stands for a measurement
    assert trust.validation_drop == (drop if gain is None else None)
    assert "\n" not in trust.line and len(trust.line) < 130


def test_of_another_score_only_the_tests_of_the_model_hold(tmp_path):
    folder = _folder(tmp_path / "p", GOOD, masks=True)
    known = evaluate(folder, bootstrap=200).map_trust
    assert MapTest.NULL_MAPS not in known.untested
    metadata = read_json(folder / METADATA, advice="")
    write_json(folder / METADATA, {**metadata, "map_trust": asdict(known.stored)})
    table = read_predictions(folder)
    assert stored_trust(table) == known
    other = stored_trust(table, score="probability")
    assert {MapTest.NULL_MAPS, MapTest.FAITHFULNESS} <= set(other.untested)
    assert (MapTest.CHANCE in other.failed) is (MapTest.CHANCE in known.failed)
    write_json(folder / METADATA, {**metadata, "map_trust": "torn"})
    refused(InputError, "map_trust", read_predictions, folder)
