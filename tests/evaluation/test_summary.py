"""The dozen lines of a report: which stand when, and that their numbers are right."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score
from support.made_curves import made_curves
from support.made_predictions import lattice, made

from probsa.core import NO_OUTPUTS, Outputs
from probsa.evaluation import Claim, at_chance, evaluate, write_curves, write_predictions
from probsa.evaluation.instances.measures import detector_claim
from probsa.evaluation.words import NULL_TITLES, no_interval_text, shortened
from probsa.statistics import Metric, NoInterval
from probsa.tasks import TASKS, TargetData

P = (0.1, 0.2, 0.7, 0.3, 0.35, 0.6, 0.8, 0.9)
"""Probabilities of eight test bags, of which the last four are positive."""


def _folder(path, p=P, *, labels=None, threshold=0.5, masks=False, parts=None):
    y = {f"b{k}": int(k >= len(p) / 2) for k in range(len(p))} if labels is None else labels
    rng = np.random.default_rng(0)
    bags = []
    for k, (name, label) in enumerate(y.items()):
        truth = np.arange(9) < 2 * label
        score = rng.normal(size=9) + 3 * truth
        bags.append(
            made(
                name,
                score,
                truth if masks else None,
                probability=[p[k]],
                coords=lattice(3, 3),
                weight_mean=np.full(9, 1 / 9),
                score_kind="evidence",
                attention_variance=np.ones(9),
                instance_probability=1 / (1 + np.exp(-score)),
            )
        )
    write_predictions(
        path,
        bags,
        labels=y,
        parts=dict.fromkeys(y, "test") | (parts or {}),
        classes=("0", "1"),
        threshold=threshold,
        metadata={"model": "abmil"},
    )
    return path


def _lines(report):
    return dict(line.split(": ", 1) for line in report.summary if ": " in line)


def test_counts_headline_and_calls(tmp_path):
    report = evaluate(_folder(tmp_path / "p"), bootstrap=0)
    lines = _lines(report)
    assert "8 test bags" in lines["bags"] and report.per_class == {"0": 4, "1": 4}
    assert "1 of 4 bags of class 1" in lines["threshold"]
    assert not report.to_dict()["calibration"]["bags"]["verdict"]["judged"]  # of eight bags
    auroc = roc_auc_score([0] * 4 + [1] * 4, P)
    assert report.summary[1] == f"AUROC {auroc:.3f}, balanced accuracy 0.750".replace("0.", ".")
    # of the half furthest from .5, which are .1, .9, .2 (or .8) and .8, none is wrong
    assert "25%" in lines["wrong calls"] and " 0% " in lines["wrong calls"]


@pytest.mark.parametrize(
    ("text", "short"),
    [("0.812 [0.7, 1.0]", ".812 [.7, 1.0]"), ("-0.05", "−.05"), ("10.5 [9.9, 120.0]", None)],
)
def test_only_numbers_below_1_lose_their_zero(text, short):
    assert shortened(text) == (short or text)


def test_a_model_at_chance_is_called_one(tmp_path):
    good = evaluate(_folder(tmp_path / "good", np.linspace(0, 1, 40)), bootstrap=200)
    assert Claim.BETTER_THAN_CHANCE in good.claims and not at_chance(good.reservations)
    p = np.random.default_rng(0).random(40)
    bad = evaluate(_folder(tmp_path / "bad", p), bootstrap=200)
    assert Claim.BETTER_THAN_CHANCE not in bad.claims
    assert bad.chance in at_chance(bad.reservations)
    (line,) = [line for line in bad.summary if bad.chance in line]
    for fact in ("40 test bags", shortened(str(bad.metrics["auroc"])), " .5"):
        assert fact in line
    assert bad.to_dict()["calibration"]["bags"]["verdict"]["judged"]


def test_validation_bags_say_that_a_model_is_at_chance_only_where_test_bags_cannot(tmp_path):
    good = np.linspace(0, 1, 40)
    bad = np.random.default_rng(0).random(40)
    y = {f"b{k}": int(k % 40 >= 20) for k in range(80)}
    parts = {f"b{k}": "val" for k in range(40, 80)}
    folder = _folder(tmp_path / "p", [*good, *bad], labels=y, parts=parts)
    assert not evaluate(folder, bootstrap=200).chance
    one_class = {name: y[name] if name in parts else 0 for name in y}
    folder = _folder(tmp_path / "q", [*good, *bad], labels=one_class, parts=parts)
    assert "40 validation bags" in evaluate(folder, bootstrap=200).chance


def test_few_groups_and_patients_without_two_kinds(tmp_path):
    folder = _folder(tmp_path / "p")
    table = tmp_path / "labels.csv"
    rows = [f"b{k},{int(k >= 4)},g{k % 4}" for k in range(8)]
    table.write_text("\n".join(["bag,label,group", *rows]) + "\n")
    report = evaluate(folder, labels=table, bootstrap=50)
    assert report.metrics["auroc"].support.patients == 4
    assert any("4 patients of class 0" in line for line in report.summary)
    patients = next(section for section in report.sections if section.key == "patients").values
    assert (patients["patients"], patients["slides"]) == (4, 8)
    assert patients["metrics"]["auroc"].value is None  # every patient has a positive bag
    assert "4 with 8 bags" in _lines(report)["patients"]
    assert not [line for line in evaluate(folder, bootstrap=0).summary if "warning" in line]


def test_one_diseased_patient_gives_no_interval_and_is_not_better_than_chance(tmp_path):
    """In version 0.2 this read “AUROC .688 [.642, .733]”, and nothing was said of chance."""
    y = {f"b{k}": int(k == 11) for k in range(12)}
    folder = _folder(tmp_path / "p", np.linspace(0.1, 0.9, 12), labels=y)
    report = evaluate(folder, bootstrap=200)
    assert report.metrics["auroc"].value == 1 and report.metrics["auroc"].low is None
    assert report.metrics["auroc"].no_interval == NoInterval("few patients", 1, "of class 1")
    assert no_interval_text(report.metrics["auroc"].no_interval, unit="bag") in report.summary[1]
    assert report.chance and Claim.BETTER_THAN_CHANCE not in report.claims
    warnings = [line for line in report.summary if line.startswith("warning: ")]
    assert any("1 bag of class 1" in warning for warning in warnings)


def test_the_map_is_told_beside_the_best_null_map(tmp_path):
    report = evaluate(_folder(tmp_path / "p", masks=True), bootstrap=50)
    lines = _lines(report)
    within = next(s for s in report.sections if s.key == "within_bags")
    assert lines["map"] == within.values["comparisons"][-1].sentence
    better = within.values["comparisons"][-1]
    assert (better.verdict, better.reservation) == ("better", "")
    worse = replace(better, verdict="not better", null="centre").reservation
    assert "evidence map" in worse and NULL_TITLES["centre"] in worse
    assert report.claims == (Claim.INTERVAL, Claim.BETTER_MAP)
    # eight bags with an AUROC of .94 could be luck
    assert [reservation.kind for reservation in report.reservations] == ["chance", "doubt"]
    top = within.values["maps"]["evidence"]["pointing_game"].value
    assert f" {top:.0%} [" in lines["instances"]


GRADES_OF_THREE = np.eye(3)
INTERVAL = Outputs(("q05", "q95"), quantiles=(0.05, 0.95))
FINDINGS = [[0.7, 0.6], [0.9, 0.1], [0.6, 0.9]]


@pytest.mark.parametrize(
    ("task", "y", "predicted", "outputs", "numbers", "said"),
    [
        ("multiclass", [0, 2, 1], GRADES_OF_THREE[[0, 1, 1]], NO_OUTPUTS, [1, 3], "wrong"),
        (
            "ordinal",
            [0, 2, 1],
            GRADES_OF_THREE[[2, 2, 0]],
            NO_OUTPUTS,
            [2, 3, 1, 2],
            "grades",
        ),
        (
            "multilabel",
            [[0, 1], [np.nan, 1], [1, 1]],
            FINDINGS,
            NO_OUTPUTS,
            [2, 5],
            "known findings",
        ),
        (
            "regression",
            [1, 2, 3],
            [[0, 2], [0, 1], [3, 5]],
            INTERVAL,
            [2, 3, 90],
            "% intervals",
        ),
        ("survival", [[1, 1]], [[0.4]], Outputs(("risk",)), [], ""),
    ],
)
def test_calls_in_words(task, y, predicted, outputs, numbers, said):
    y = np.array(y, dtype=np.float64).reshape(len(y), -1)
    data = TargetData(task=task, y=y, predicted=np.array(predicted), outputs=outputs, names=())
    text = TASKS[task].calls(data)
    assert [int(number) for number in re.findall(r"\d+", text)] == numbers
    assert said in text and bool(said) == bool(text)


@pytest.mark.parametrize("name", ["default", "classes", "grades", "findings", "share", "times"])
def test_every_task_fits_on_a_screen(name, shared_golden):
    """A dozen lines for every kind of target; the rest is asked for."""
    report = evaluate(shared_golden / "behaviour" / "predictions" / name, bootstrap=50)
    assert 4 <= len(report.summary) <= 13
    assert report.to_dict()["summary"] == list(report.summary)
    texts = []
    for full in (False, True):
        console = Console(width=200, file=io.StringIO())
        report.render(console, full=full)
        texts.append(console.file.getvalue())
    assert texts[0].splitlines()[: len(report.summary)] == list(report.summary)
    assert len(texts[1].splitlines()) > 3 * len(texts[0].splitlines())


TWO_MAPS = ("attention", "contribution", "evidence", "probability")


def _report_of_two_maps(path, *, kind, shown):
    """Evaluate a model whose maps show another score than its own, each of another quality."""
    g = np.random.default_rng(2)
    names = [f"b{k}" for k in range(60)]
    bags = []
    for k, name in enumerate(names):
        truth = np.arange(9) < 2 * (k % 2)
        score = {s: 2 * g.normal(size=9) + 2 * at * truth for at, s in enumerate(TWO_MAPS)}
        bags.append(
            made(
                name,
                score["attention"],
                truth,
                probability=[0.2 + 0.6 * (k % 2)],
                coords=lattice(3, 3),
                weight_mean=np.full(9, 1 / 9),
                score_kind=kind,
                attention_variance=np.ones(9),
                contribution=score["contribution"],
                class_score=None if kind == "evidence" else score["evidence"],
                instance_probability=1 / (1 + np.exp(-score["probability"])),
            )
        )
    write_predictions(
        path,
        bags,
        classes=("0", "1"),
        threshold=0.5,
        labels={name: k % 2 for k, name in enumerate(names)},
        parts={name: "val" if k < 20 else "test" for k, name in enumerate(names)},
        metadata={
            "model": "abmil",
            "map_score": {"chosen": shown, "drops": {}, "bags": 5, "reason": "", "rule": ""},
        },
    )
    curves = [made_curves(name, {"shown": 0.4, "random": 0.1}, shown=shown) for name in names]
    write_curves(path, curves)
    return evaluate(path, bootstrap=50)


@pytest.mark.parametrize("kind", ["logit", "evidence"])
@pytest.mark.parametrize("shown", TWO_MAPS)
def test_a_line_of_the_summary_speaks_of_one_map_and_names_it(tmp_path, kind, shown):
    own = "evidence" if kind == "evidence" else "attention"
    if kind == "evidence" and shown == "attention":
        pytest.skip("its own score is evidence")
    report = _report_of_two_maps(tmp_path / "p", kind=kind, shown=shown)
    within = next(s for s in report.sections if s.key == "within_bags").values
    lines = _lines(report)
    said = {"map": shown, "instances": shown, "faithfulness": shown}
    said |= {"model's own score": own} if own != shown else {}
    for line, name in said.items():
        assert [m for m in TWO_MAPS if f"{m} map" in lines[line]] == [name]
    assert ("model's own score" in lines) is (own != shown)
    verdicts = {c.map: c.sentence for c in within["comparisons"]}
    assert lines["map"] == verdicts[shown]
    of_own = lines["instances"] if own == shown else lines["model's own score"]
    statements = {c.map: c.statement for c in within["comparisons"]}
    assert own == shown or of_own.startswith(statements[own])
    top = {name: f"{m['pointing_game'].value:.0%}" for name, m in within["maps"].items()}
    assert top[shown] in lines["instances"] and top[own] in of_own
    dice = shortened(f"Dice {within['maps'][own]['dice'].value:.3f}")
    assert [key for key, line in lines.items() if "Dice" in line] == [
        "instances" if own == shown else "model's own score"
    ]
    assert dice in of_own


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("sign", [1, -1, 0])
@pytest.mark.parametrize("of", ["bags", "instances"])
def test_what_is_said_of_doubt_names_its_score_and_the_interval(tmp_path, few, sign, of):
    """A difference that is not shown is no equality, and each score has its own name."""
    report = evaluate(_folder(tmp_path / "p", masks=True), bootstrap=50)
    section = next(s for s in report.sections if s.key == "doubt")
    part = section.parts[of]
    gain = {1: (0.1, 0.05, 0.2), -1: (-0.1, -0.2, -0.05), 0: (-0.024, -0.404, 0.363)}[sign]
    metric = Metric(gain[0]) if few else Metric(gain[0], low=gain[1], high=gain[2])
    values = {**part.values, "doubt_gain": metric, "claim": detector_claim(metric)}
    section = replace(section, parts={of: replace(part, values=values)})
    reservations = replace(report, sections=(section,), chance="", rival=()).reservations
    if sign == 1 and not few:
        assert reservations == ()
        return
    (reservation,) = reservations
    judged = {"bags": "P(the call flips)", "instances": "P(wrong)"}[of]
    assert reservation.kind == "doubt"
    for fact in (judged, part.values["of"], shortened(metric.text(sign=True))):
        assert fact in reservation.text
    assert ("not shown" in reservation.text) is not (sign == -1 and not few)
