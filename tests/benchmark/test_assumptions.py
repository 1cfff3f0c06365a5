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
from probsa.datasets.assumptions import AXIS, SHIFT, assumption_bags
from probsa.errors import InputError, ProbSAError, TableError, UnknownName
from probsa.training import TrainingConfig

SMALL = {"train": 8, "val": 4, "tested": 6, "features": 4}
FAST = TrainingConfig(epochs=1, device="cpu", threads=1, tensorboard=False)


def cohort(test, **sizes):
    bags = list(assumption_bags(test, seed=1, **sizes))
    return {part: [b for b in bags if b.part == part] for part in ("train", "val", "like",
                                                                  "reversed")}  # fmt: skip


def count(bag, concept):
    return int((bag.concept == 1 + AXIS[concept]).sum())


@pytest.mark.parametrize("part", ["train", "val", "like", "reversed"])
def test_labels_follow_the_assumption_and_shortcuts_do_not(part):
    turned = part == "reversed"
    for bag in cohort("single-concept")[part]:
        assert (count(bag, "A") > 0) == bag.label
        assert (count(bag, "poison") > 0) == (bag.label == turned)
        assert count(bag, "A") <= 4 and count(bag, "poison") <= 4 and not count(bag, "B")
    for bag in cohort("multi-concept")[part]:
        assert (count(bag, "A") > 0 and count(bag, "B") > 0) == bag.label
        assert count(bag, "A") or count(bag, "B")
        assert (count(bag, "poison") > 0) == (bag.label == turned)
    for bag in cohort("false-frequency")[part]:
        a, b = count(bag, "A"), count(bag, "B")
        assert (a > 0 and b > 0) == bag.label and not count(bag, "poison")
        if bag.label:
            assert (a == b == 1) if turned else (6 <= a <= 10 and 1 <= b <= 2)
        else:
            assert 6 <= a + b <= 10 if turned else 1 <= a + b <= 2


@pytest.mark.parametrize("test", ASSUMPTION_TESTS)
def test_a_respectful_rule_passes_and_the_shortcut_fails(test):
    """Counts of instances beyond 3/4 of a concept's shift stand for what a model can see."""
    bags = cohort(test)

    def counts(bag):
        return {k: int((bag.features[:, axis] > 0.75 * SHIFT[k]).sum()) for k, axis in AXIS.items()}

    def respectful(bag):
        seen = counts(bag)
        return min(seen["A"], 1) + min(seen["B"], 1)

    def shortcut(bag):
        seen = counts(bag)
        return seen["A"] + seen["B"] if test == "false-frequency" else -seen["poison"]

    for part, wrong in (("like", 1.0), ("reversed", 0.0)):
        label = [b.label for b in bags[part]]
        assert np.mean(label) == 0.5
        assert roc_auc_score(label, [respectful(b) for b in bags[part]]) > 0.75
        assert roc_auc_score(label, [shortcut(b) for b in bags[part]]) == pytest.approx(
            wrong, abs=0.15
        )


def test_equal_arguments_give_equal_bags_and_parts_differ():
    a, b = (list(assumption_bags("single-concept", seed=3, **SMALL)) for _ in range(2))
    np.testing.assert_array_equal(a[2].features, b[2].features)
    assert len({bag.features.tobytes() for bag in a}) == len(a) == 8 + 4 + 6 + 6
    (other, *_) = assumption_bags("single-concept", seed=4, **SMALL)
    assert not np.array_equal(other.features, a[0].features)


def test_impossible_bags_are_refused():
    for wrong in ({"train": 0}, {"tested": 3}, {"val": -1}, {"features": 2}):
        with pytest.raises(InputError, match="expected at least 4 of each and 3 features"):
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
