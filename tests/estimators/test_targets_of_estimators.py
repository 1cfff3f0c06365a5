"""Grades, findings, numbers and survival times by estimators, and in scikit-learn's own tools."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from support.made_bags import made_bags

from probsa import MILClassifier, MILRegressor, MILSurvival
from probsa.errors import InputError
from probsa.statistics import concordance, median_call

X, _ = made_bags(18, seed=3)
AMOUNT = np.arange(18) % 3
NUMBERS = 5.0 + 2 * AMOUNT
TIMES = np.stack([9.0 - 2 * AMOUNT + np.arange(18) / 50, np.arange(18) % 4 > 0], 1)
"""(time, 1 for an event and 0 for censored); three bags of four have the event."""
FINDINGS = np.stack([AMOUNT > 0, AMOUNT > 1], 1).astype(float)
# all targets follow from AMOUNT, which the first feature of every instance shows
for (x, _coords), amount in zip(X, AMOUNT, strict=True):
    x[:, 0] += 2 * amount
FAST = {
    "model": "abmil",
    "model_arguments": {"embed": 8, "attention_dim": 4},
    "epochs": 12,
    "batch_size": 6,
    "learning_rate": 0.03,
    "training": {"warmup_epochs": 0},
    "threads": 1,
    "random_state": 0,
    "select": "last",
}
SAMPLED = {
    **FAST,
    "model": "abmil-probsa-diag",
    "epochs": 3,
    "model_arguments": {"embed": 8, "attention_dim": 4, "predict_samples": 20},
}


@pytest.fixture(scope="module")
def fitted():
    """One estimator of each task, with posterior samples."""
    bins = {"bins": 2}
    return {
        "ordinal": MILClassifier(**SAMPLED, ordinal=True).fit(X, AMOUNT),
        "multilabel": MILClassifier(**SAMPLED).fit(X, FINDINGS),
        "regression": MILRegressor(**SAMPLED).fit(X, NUMBERS),
        "survival": MILSurvival(**SAMPLED, likelihood=bins).fit(X, TIMES),
    }


def test_grades_are_called_by_the_median(fitted):
    classifier = fitted["ordinal"]
    p = classifier.predict_proba(X)
    assert classifier.task_ == "ordinal" and p.shape == (18, 3)
    assert classifier.predict(X).tolist() == median_call(p).tolist()
    assert classifier.decision_function(X).shape == (18, 3)


def test_grades_may_be_named_in_their_order():
    names = np.array(["none", "low", "high"])[AMOUNT]
    classifier = MILClassifier(**FAST, ordinal=["none", "low", "high"]).fit(X, names)
    assert classifier.classes_.tolist() == ["none", "low", "high"]
    assert classifier.score(X, names) > 0.6
    expected_grade = classifier.predict_proba(X) @ np.arange(3)
    none, low, high = (expected_grade[amount == AMOUNT].mean() for amount in range(3))
    assert none < low < high


def test_findings_have_a_probability_each(fitted):
    classifier = fitted["multilabel"]
    p = classifier.predict_proba(X)
    assert classifier.task_ == "multilabel" and p.shape == (18, 2)
    assert classifier.classes_.tolist() == [0, 1]
    assert (classifier.predict(X) == (p >= 0.5)).all()
    np.testing.assert_allclose(classifier.decision_function(X), np.log(p / (1 - p)))
    assert 0 <= classifier.score(X, FINDINGS.astype(int)) <= 1


def test_a_finding_may_be_unknown_of_a_bag():
    partly_known = FINDINGS.copy()
    partly_known[0, 1] = np.nan
    classifier = MILClassifier(**{**FAST, "epochs": 1}).fit(X, partly_known)
    assert np.isfinite(classifier.predict_proba(X)).all()


def test_a_number_has_a_distribution(fitted):
    regressor = fitted["regression"]
    predicted = regressor.predict_distribution(X)
    assert (predicted.mean == regressor.predict(X)).all()
    assert predicted.levels == (0.05, 0.25, 0.5, 0.75, 0.95)
    assert predicted.quantiles.shape == (18, 5) and (np.diff(predicted.quantiles) > 0).all()
    # the spread of the samples is a part of the standard deviation
    assert (predicted.spread > 0).all() and (predicted.sd > predicted.spread).all()
    assert regressor.score(X, NUMBERS) == pytest.approx(r2_score(NUMBERS, predicted.mean))


def test_regression_learns_in_the_tools_of_scikit_learn():
    base = MILRegressor(**FAST)
    grid = {"learning_rate": [1e-5, 0.03]}
    search = GridSearchCV(clone(base), grid, cv=2, refit=False).fit(X, NUMBERS)
    assert search.best_params_ == {"learning_rate": 0.03} and search.best_score_ > 0.5


def test_survival_is_a_risk_and_a_curve(fitted):
    survival = fitted["survival"]
    risk = survival.predict(X)
    curve = survival.predict_survival_function(X)
    assert curve.shape == (18, len(survival.times_)) and (np.diff(curve) <= 0).all()
    time = TIMES[:, 0]
    event = TIMES[:, 1] > 0
    assert survival.score(X, TIMES) == concordance(time, event, risk=risk).value
    # of two intervals: S is 1 at 0, the curve at their ends, and log-linear between these
    first, last = survival.times_
    middle = (first + last) / 2
    at_zero, at_first, at_middle, at_last = survival.predict_survival_function(
        X, [0, first, middle, last]
    ).T
    assert (at_zero == 1).all()
    np.testing.assert_allclose(at_first, curve[:, 0], rtol=1e-12)
    np.testing.assert_allclose(at_last, curve[:, 1], rtol=1e-12)
    np.testing.assert_allclose(at_middle, np.sqrt(curve[:, 0] * curve[:, 1]))
    # τ − ∫ S dt, where the curves of the samples are averaged; here their mean is integrated
    grid = np.linspace(0, last, 2001)
    area = np.trapezoid(survival.predict_survival_function(X, grid), dx=last / 2000)
    np.testing.assert_allclose(risk, last - area, rtol=0.02)
    with pytest.raises(InputError, match=f"from 0 to {last:g}"):
        survival.predict_survival_function(X, [last + 1])


def test_every_form_of_censored_times_is_the_same():
    fields = np.array([(bool(e), t) for t, e in TIMES], dtype=[("status", bool), ("months", float)])
    named = np.array([(t, e) for t, e in TIMES], dtype=[("time", float), ("event", int)])
    one = {**FAST, "epochs": 1, "likelihood": {"bins": 2}, "batch_size": 9}
    risks = [MILSurvival(**one).fit(X, y).predict(X) for y in (TIMES, fields, named)]
    assert (risks[0] == risks[1]).all() and (risks[0] == risks[2]).all()


def test_each_comes_back_equal_and_states_its_task(fitted, tmp_path):
    for task, estimator in fitted.items():
        folder = estimator.save_pretrained(tmp_path / task)
        loaded = type(estimator).from_pretrained(folder)
        assert (loaded.predict(X) == estimator.predict(X)).all()
        assert loaded.get_params() == estimator.get_params()
        # the targets of training stay out of the folder, which may be published
        assert "training_targets" not in (folder / "config.json").read_text()
    cards = {task: (tmp_path / task / "README.md").read_text() for task in fitted}
    assert "`0`, `1` or `2`" in cards["ordinal"]
    assert "`0` and `1`" in cards["multilabel"]
    assert "`mean`" in cards["regression"] and "`risk`" in cards["survival"]
    with pytest.raises(InputError, match=r"MILRegressor.* MILSurvival"):
        MILSurvival.from_pretrained(tmp_path / "regression")


@pytest.mark.parametrize(
    ("estimator", "y", "message"),
    [
        (MILClassifier(ordinal=True), AMOUNT * 2, "ordinal="),
        (MILClassifier(ordinal=True), ["a", "b", "c"] * 6, "ordinal="),
        (MILClassifier(ordinal=["a", "b"]), ["a", "b", "c"] * 6, "y has the grade 'c'"),
        (MILClassifier(), FINDINGS * 2, "neither 0, 1 nor nan"),
        (MILRegressor(), [1.0, np.nan] * 9, "NaN"),
        (MILRegressor(), ["a"] * 18, "than a number"),
        (MILRegressor(), TIMES, r"\(18, 2\).* 18 bags"),
        (MILRegressor(), [3.0] * 18, "training targets"),
        (MILSurvival(), NUMBERS, "a time"),
        (MILSurvival(), -TIMES, "is not above 0"),
        (MILSurvival(), TIMES + 1, "neither 0 .censored. nor 1"),
        (MILSurvival(), TIMES * [1, 0], "(training bags? (are|is) censored|have the event)"),
    ],
)
def test_errors_say_what_was_expected(estimator, y, message):
    with pytest.raises(InputError, match=message):
        estimator.set_params(**FAST).fit(X, y)


@pytest.mark.parametrize("name", ["censored", "cens", "is_alive", "os_censorship"])
def test_a_field_named_after_censoring_is_not_taken_for_the_event(name):
    flags = np.array([(t, e > 0) for t, e in TIMES], dtype=[("time", float), (name, bool)])
    frame = pd.DataFrame({"months": TIMES[:, 0], name: TIMES[:, 1]})
    for y in (flags, frame):
        with pytest.raises(InputError, match=f"'{name}' of y"):
            MILSurvival(**FAST).fit(X, y)
