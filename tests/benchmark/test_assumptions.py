"""The bags of the tests are as defined, models are trained on them, and rows are kept."""

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probsa.benchmark import assumptions as module
from probsa.benchmark.assumptions import (
    AssumptionResult,
    assumptions_page,
    read_results,
    run_assumptions,
    write_results,
)
from probsa.cli.entry import main
from probsa.datasets import ASSUMPTION_TESTS
from probsa.datasets.assumptions import CONCEPTS, assumption_bags
from probsa.errors import InputError, ProbSAError, TableError, UnknownName
from probsa.training import TrainingConfig

SMALL = {"train": 8, "val": 4, "tested": 6, "features": 4}
FAST = TrainingConfig(epochs=1, device="cpu", threads=1, tensorboard=False)


def cohort(test, **sizes):
    bags = list(assumption_bags(test, seed=1, **sizes))
    return {part: [b for b in bags if b.part == part] for part in ("train", "val", "like",
                                                                  "reversed")}  # fmt: skip


def count(bag, concept):
    return int((bag.concept == 1 + CONCEPTS.index(concept)).sum())


@pytest.mark.parametrize("part", ["train", "val", "like", "reversed"])
def test_labels_follow_the_assumption_and_shortcuts_do_not(part):
    turned = part == "reversed"
    for test in ASSUMPTION_TESTS:
        for bag in cohort(test)[part]:
            a, b, poison = (count(bag, concept) for concept in CONCEPTS)
            assert 1 <= len(bag.features) - a - b - poison <= 10
            assert (a > 0 and (b > 0 or test == "single-concept")) == bag.label
            if test == "false-frequency":
                assert poison == 0
                if not bag.label and turned:
                    assert 35 <= a + b <= 45
                else:
                    assert a <= 2 and b <= 2
            else:
                assert poison == (bag.label == turned)
                assert a <= 4 and b in ((0,) if test == "single-concept" else (a, 1 - a))
    counts = [count(bag, "A") for bag in cohort("single-concept")[part] if bag.label]
    assert {min(counts), max(counts)} == {1, 4}


def test_concepts_have_the_published_distributions():
    bags = {test: list(assumption_bags(test, seed=0, train=400)) for test in ASSUMPTION_TESTS}

    def drawn(test, concept):
        code = concept and 1 + CONCEPTS.index(concept)
        return np.concatenate([b.features[b.concept == (code or 0)] for b in bags[test]])

    for test, concept, mean, std in (
        ("single-concept", None, 0, 1),
        ("single-concept", "poison", -10, 0.1),
        ("multi-concept", "A", 2, 0.1),
        ("false-frequency", "B", 3, 0.1),
    ):
        x = drawn(test, concept)
        assert x.shape[1] == 16 and len(x) > 400
        assert x.mean() == pytest.approx(mean, abs=0.02)
        assert x.std() == pytest.approx(std, rel=0.02)
    x = drawn("single-concept", "A")  # a mixture, so the squared length has two modes
    wide = (x**2).sum(1) > 80
    assert wide.mean() == pytest.approx(0.5, abs=0.05)
    assert (x[wide].mean(), x[wide].std()) == (
        pytest.approx(0, abs=0.1),
        pytest.approx(3, rel=0.05),
    )
    assert x[~wide].mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("test", ASSUMPTION_TESTS)
def test_a_respectful_rule_passes_and_the_shortcut_fails(test):
    """A rule that sees each instance by itself, and one that uses the shortcut."""
    bags = cohort(test)

    def respectful(x):
        if test == "single-concept":
            usual = x[x.mean(1) > -5]
            return max(np.maximum((usual**2).sum(1) / 16, usual.sum(1) / 4))
        return int((np.abs(x - 2) < 0.6).all(1).any()) + int((np.abs(x - 3) < 0.6).all(1).any())

    def shortcut(x):
        if test == "false-frequency":
            return (np.abs(x - 2.5) < 1.1).all(1).sum()
        return -(x.mean(1) < -5).sum()

    for part, wrong in (("like", 1.0), ("reversed", 0.0)):
        label = [b.label for b in bags[part]]
        assert np.mean(label) == 0.5
        assert roc_auc_score(label, [respectful(b.features) for b in bags[part]]) > 0.95
        assert roc_auc_score(label, [shortcut(b.features) for b in bags[part]]) == pytest.approx(
            wrong, abs=0.15
        )


def test_equal_arguments_give_equal_bags_and_parts_differ():
    a, b = (list(assumption_bags("single-concept", seed=3, **SMALL)) for _ in range(2))
    np.testing.assert_array_equal(a[2].features, b[2].features)
    assert len({bag.features.tobytes() for bag in a}) == len(a) == 8 + 4 + 6 + 6
    (other, *_) = assumption_bags("single-concept", seed=4, **SMALL)
    assert not np.array_equal(other.features, a[0].features)


def test_impossible_bags_are_refused():
    for wrong in ({"train": 0}, {"tested": 3}, {"val": -1}, {"features": 0}):
        with pytest.raises(InputError, match="expected at least 4 of each and 1 feature"):
            list(assumption_bags("single-concept", seed=0, **{**SMALL, **wrong}))


def test_models_are_trained_and_only_what_is_missing(tmp_path, monkeypatch):
    said = []
    arguments = {"training": FAST, "told": said.append, **SMALL}
    results = run_assumptions(tmp_path, models=["abmil", "evidence-dirac"], **arguments)
    assert [(r.test, r.model) for r in results] == [
        (test, model) for test in ASSUMPTION_TESTS for model in ("abmil", "evidence-dirac")
    ]
    assert all(0 <= r.reversed_low <= 1 or r.reversed_low < r.reversed for r in results)
    assert len(said) == 3 and said[0] == "single-concept, seed 0: abmil, evidence-dirac"
    assert [p.name for p in tmp_path.iterdir()] == ["assumptions.csv"]
    more = run_assumptions(tmp_path, models=["abmil", "dsmil"], **arguments)
    assert said[3:] == [f"{test}, seed 0: dsmil" for test in ASSUMPTION_TESTS]
    kept = [r for r in more if r.model != "dsmil"]
    assert len(more) == 9
    for old, new in zip(results, kept, strict=True):
        assert new.like == pytest.approx(old.like, abs=1e-4)
    monkeypatch.setattr(module, "train", None)  # nothing is left to train
    assert len(run_assumptions(tmp_path, models=["dsmil"], **arguments)) == 9


def test_a_model_that_fails_has_a_reason_and_is_tried_again(tmp_path, monkeypatch):
    def fails(config, out, **_):
        raise ProbSAError(f"{config.model} diverged\nsecond line")

    arguments = {"models": ["dsmil"], "training": FAST, **SMALL}
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", fails)
        results = run_assumptions(tmp_path, **arguments)
    assert {r.reason for r in results} == {"dsmil diverged"} and not any(r.passed for r in results)
    assert read_results(tmp_path / "assumptions.csv") == results
    assert "| `dsmil` | - | - | dsmil diverged |" in assumptions_page(results)
    assert all(r.like is not None for r in run_assumptions(tmp_path, **arguments))


def made(**fields):
    values = {"like": 0.9, "reversed": 0.8, "reversed_low": 0.6, **fields}
    return AssumptionResult(**{"test": "single-concept", "model": "abmil", "seed": 0, **values})


def test_the_criterion_needs_the_lower_limit_and_the_usual_bags():
    assert made().passed
    assert not made(reversed_low=0.5).passed and not made(like=0.5).passed
    assert not made(reversed_low=None, reversed=None, like=None).passed


def test_the_page_counts_seeds():
    page = assumptions_page([made(), made(seed=1, reversed_low=0.4, reversed=0.6)])
    row = page.splitlines()[2]
    assert row == "| `abmil` | 0.900 | 0.700 | 1 of 2 | - | - | not run | - | - | not run |"
    assert "| 0.900 | 0.800 | yes |" in assumptions_page([made()])
    assert page.endswith(module.CRITERION)


def test_damaged_tables_are_named(tmp_path):
    path = tmp_path / "assumptions.csv"
    write_results(path, [made(), made(model="zz")])
    assert read_results(path) == [made(), made(model="zz")]
    good = path.read_text()
    for old, new, message in (
        ("like", "liked", "no column 'like'"),
        ("0.9000", "x", "model 'abmil'"),
        ("single-concept,", "double,", "unknown test 'double'"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises(TableError, match=message):
            read_results(path)


def test_wrong_requests_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="abmil"):
        run_assumptions(tmp_path, models=["abmill"])
    with pytest.raises(InputError, match="0 seeds"):
        run_assumptions(tmp_path, models=["abmil"], seeds=0)


def test_the_command(tmp_path, monkeypatch, capsys):
    asked = []

    def fake(out, *, models, seeds, told):
        asked.append((out, models, seeds))
        told("step")
        return [made()]

    monkeypatch.setattr("probsa.benchmark.run_assumptions", fake)
    out = ["--out", str(tmp_path)]
    command = ["benchmark", "--assumptions", *out]
    assert main([*command, "--models", "abmil,dsmil", "--seeds", "2"]) == 0
    assert asked == [(tmp_path, ["abmil", "dsmil"], 2)]
    assert "| `abmil` | 0.900 |" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert asked[1][1:] == (None, 1)
    assert json.loads(capsys.readouterr().out)[0]["passed"] is True
    for wrong in (["grid.yaml"], ["--epochs", "3"], ["--seeds", "x"]):
        assert main([*command, *wrong]) != 0
        assert "--assumptions takes" in (e := capsys.readouterr().err) or "--seeds is" in e
