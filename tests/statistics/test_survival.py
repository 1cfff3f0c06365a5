"""Metrics of survival against scikit-survival, lifelines and the worked example."""

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index
from support.repeated_draws import repeated_draws
from support.target_metrics import assert_resamples_are_repeated_rows, values

from probsa.errors import InputError
from probsa.statistics import (
    CensoringCurve,
    Draws,
    concordance,
    kaplan_meier,
    survival_between,
    survival_metrics,
)

reference = pytest.importorskip(
    "sksurv.metrics", reason="scikit-survival, a reference that no extra names, is not installed"
)
util = pytest.importorskip("sksurv.util")
TRAIN = (
    np.array([2, 4, 4, 6, 7, 9, 9, 11, 13, 15.0]),
    np.array([1, 1, 0, 1, 0, 1, 1, 0, 1, 0], dtype=bool),
)
TIME = np.array([3, 5, 6, 8, 10, 12.0])
EVENT = np.array([1, 1, 0, 1, 1, 0], dtype=bool)
RISK = np.array([1.1, -0.2, 0.4, 0.6, -0.7, -1])
TIMES = np.array([4, 6, 8, 9.0])
EARLIER = 1e-3
"""How much earlier than a censoring of the same day an event is for scikit-survival."""


def _curves(risk, times, *, rate=0.08):
    return np.exp(-rate * times) ** np.exp(risk)[:, None]


def _cohort(n, *, seed):
    """Times and risks with ties; the largest training time is a censoring, so Ĝ reaches 0."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=n).round(1)
    time = np.ceil(rng.exponential(8 * np.exp(-risk))) + 1
    limit = rng.integers(2, 20, n).astype(float)
    return np.minimum(time, limit), time <= limit, risk


def judged(time=TIME, event=EVENT, *, risk=RISK, times=TIMES, censoring=None, **options):
    """The metrics of the worked example with some of its input changed, without resamples."""
    options = {"survival": _curves(risk, times), "draws": Draws.of_data(len(time)), **options}
    censoring = censoring or CensoringCurve.fit(*TRAIN)
    return survival_metrics(time, event, risk=risk, times=times, censoring=censoring, **options)


@pytest.mark.parametrize("seed", range(12))
def test_metrics_are_those_of_scikit_survival_and_lifelines(seed):
    train_time, train_event, _ = _cohort(40, seed=100 + seed)
    time, event, risk = _cohort(30, seed=seed)
    inside = time < train_time.max()
    time = time[inside]
    event = event[inside]
    risk = risk[inside]
    # scikit-survival takes Ĝ(t) where an event at t needs Ĝ(t-). Both are the same once events come
    # a little before the censorings of the same day, which is how such ties are meant.
    train = util.Surv.from_arrays(train_event, train_time - EARLIER * train_event)
    test = util.Surv.from_arrays(event, time - EARLIER * event)
    inner = np.unique(time[event])
    times = inner[(inner > time.min()) & (inner < time.max())]
    censoring = CensoringCurve.fit(train_time, train_event)
    survival = _curves(risk, times)
    metrics = judged(time, event, risk=risk, times=times, censoring=censoring)
    got = values(metrics)
    assert metrics.notes == ()
    assert got["harrell_c"] == pytest.approx(concordance_index(time, -risk, event), abs=1e-12)
    brier = reference.brier_score(train, test, survival, times)[1]
    aurocs, mean = reference.cumulative_dynamic_auc(train, test, risk, times)
    earlier = time - EARLIER * event
    expected = {
        "harrell_c": reference.concordance_index_censored(event, earlier, risk)[0],
        "uno_c": reference.concordance_index_ipcw(train, test, risk)[0],
        "integrated_brier": reference.integrated_brier_score(train, test, survival, times),
        "mean_auroc": mean,
        **{f"{t:g}: brier": score for t, score in zip(times, brier, strict=True)},
        **{f"{t:g}: auroc": auroc for t, auroc in zip(times, aurocs, strict=True)},
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_times_beyond_the_training_follow_up_are_left_out_and_counted():
    censoring = CensoringCurve.fit(*TRAIN)
    time = np.append(TIME, [15, 20.0])
    event = np.append(EVENT, [True, True])
    risk = np.append(RISK, [2.0, -2])
    times = np.append(TIMES, [15, 18.0])
    metrics = judged(time, event, risk=risk, times=times)
    beyond_follow_up, not_judged = metrics.notes
    assert "1 of 8 bags" in beyond_follow_up and " 15," in beyond_follow_up
    assert "15, 18" in not_judged
    assert list(metrics.by_part) == ["4", "6", "8", "9"]
    # As if the last bag had been censored there; the event at 15 is known, as Ĝ(15-) > 0.
    as_censored = np.append(EVENT, [True, False])
    expected = concordance(time, as_censored, risk=risk, censoring=censoring)
    assert metrics.overall["uno_c"].value == expected.value
    # A curve that ends in an event stays positive, but is unknown after it.
    ends = CensoringCurve.fit(np.array([1, 2, 3.0]), np.array([True, False, True]))
    at = np.array([0.5, 2, 3, 3.1])
    np.testing.assert_array_equal(ends.at(at), [1, 0.5, 0.5, 0])
    np.testing.assert_array_equal(ends.before(at), [1, 1, 0.5, 0])
    assert ends.limit == 3


def _rounded(n, *, step, seed):
    """Times of events and of censorings in steps (None: continuous), and a risk."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=n)
    death = rng.exponential(4 * np.exp(-risk))
    censoring = rng.exponential(3, size=n)
    if step is not None:
        death, censoring = (np.ceil(times / step) * step for times in (death, censoring))
    return death, censoring, risk


@pytest.mark.parametrize("step", [1.0, 0.5, 1 / 12, None])
def test_rounded_and_continuous_times_have_unbiased_weights(step):
    """Criterion, stated first: with times in years, half years, months and continuous, the mean
    weight of the cases is within .02 of P(T ≤ t), and Brier score, AUROC and c are within .02 of
    those of the same bags without censoring, on average over six cohorts of 800 bags."""
    at = np.array([1.0, 3.0])
    biases = []
    for seed in range(6):
        death, censoring, risk = _rounded(800, step=step, seed=seed)
        train_death, train_censoring, _ = _rounded(800, step=step, seed=100 + seed)
        time = np.minimum(death, censoring)
        event = death <= censoring
        train = np.minimum(train_death, train_censoring), train_death <= train_censoring
        curve = CensoringCurve.fit(*train)
        survival = _curves(risk, at, rate=0.25)
        options = {"risk": risk, "times": at, "survival": survival}
        censored = values(judged(time, event, censoring=curve, **options))
        everyone = np.ones(800, dtype=bool)
        alive_at = CensoringCurve.fit(np.maximum(death, 100.0), everyone)  # nobody is censored
        known = values(judged(death, everyone, censoring=alive_at, **options))
        case = event & (time <= 3)
        weight = np.divide(1.0, curve.before(time), out=np.zeros(800), where=case)
        names = ("3: brier", "3: auroc", "1: brier", "mean_auroc")
        biases.append(
            [
                weight.mean() - (death <= 3).mean(),
                *(censored[name] - known[name] for name in names),
                # c of pairs with an event by time 4, until when training follow-up is long
                concordance(
                    np.minimum(time, 4.0), event & (time <= 4), risk=risk, censoring=curve
                ).value
                - concordance(np.minimum(death, 4.0), death <= 4, risk=risk).value,
            ]
        )
    assert np.isfinite(biases).all()
    assert np.abs(np.mean(biases, axis=0)).max() <= 0.02


def test_undefined_metrics_have_reasons():
    censoring = CensoringCurve.fit(*TRAIN)
    none = concordance(TIME, np.zeros(6, dtype=bool), risk=RISK)
    assert none.value is None and "no event among 6" in none.reason
    same = np.full(6, 3.0)
    all_at_once = concordance(same, np.ones(6, dtype=bool), risk=RISK, censoring=censoring)
    assert all_at_once.value is None and "no comparable pair" in all_at_once.reason
    last = np.array([0, 0, 0, 0, 0, 1], dtype=bool)
    assert concordance(TIME, last, risk=RISK).value is None
    times = np.array([2.0, 12.5])
    ends = judged(times=times).by_part
    early = ends["2"]["auroc"]
    late = ends["12.5"]["auroc"]
    assert early.value is None and "no event until" in early.reason and " 2 " in early.reason
    assert late.value is None and "without an event" in late.reason and " 12.5 " in late.reason
    # A time before the first event has no weight in the mean.
    times = np.array([2, 4, 6, 8, 9.0])
    mean = judged(times=times)
    assert mean.overall["mean_auroc"].value == pytest.approx(0.9466667, abs=6e-8)
    beyond = judged(times=np.array([4, 12.5]))
    assert "12.5" in (beyond.overall["mean_auroc"].reason or "")


def test_a_constant_risk_has_one_half_of_the_pairs():
    flat = judged(risk=np.zeros(6)).overall
    assert {flat[k].value for k in ("uno_c", "harrell_c", "mean_auroc")} == {0.5}


def test_resamples_are_those_of_repeated_rows():
    time, event, risk = _cohort(14, seed=8)
    time = np.minimum(time, 14)
    times = np.array([3, 6.0])
    groups = [i // 2 for i in range(14)]
    draws = repeated_draws(groups, resamples=15, seed=0)

    def metrics(rows, d):
        return judged(time[rows], event[rows], risk=risk[rows], times=times, draws=d)

    assert_resamples_are_repeated_rows(metrics, draws)


def test_resamples_without_a_comparable_pair_are_counted():
    draws = Draws(counts=np.array([[1.0, 1, 1], [0, 0, 3], [0, 3, 0]]), member=np.arange(3))
    metric = concordance(
        np.array([1, 2, 3.0]), np.array([True, False, False]), risk=np.arange(3.0), draws=draws
    )
    assert np.isnan(metric.rows[1:]).all() and metric.left_out == 2


def test_little_memory_gives_the_same_pairs(monkeypatch):
    time, event, risk = _cohort(30, seed=3)
    draws = Draws.patients(event, groups=None, resamples=20, seed=0)
    whole = concordance(time, event, risk=risk, draws=draws).rows
    monkeypatch.setattr("probsa.statistics.survival.CELLS", 70)
    in_blocks = concordance(time, event, risk=risk, draws=draws).rows
    np.testing.assert_allclose(in_blocks, whole, rtol=1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": np.array([3, 5, 6, -8, 10, 12.0])}, "a time is -8"),
        ({"survival": np.full((6, 4), 1.5)}, "survival must lie"),
        ({"times": TIMES[::-1]}, "must rise"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        judged(**change)


@pytest.mark.parametrize("seed", range(2))
def test_curves_are_those_of_lifelines(seed):
    time, event, _ = _cohort(40, seed=seed)
    at = np.linspace(0.5, 20, 40)
    last = KaplanMeierFitter().fit(time, event)
    got = kaplan_meier(time, event, at, draws=Draws.of_data(40))[0]
    np.testing.assert_allclose(got, last.predict(at), atol=1e-12)
    # Without ties between events and censorings, both orders of them are the same.
    time = time + np.where(event, 0.0, 0.25)
    known = at[at <= time.max()]
    reverse = KaplanMeierFitter().fit(time, ~event).predict(known)
    np.testing.assert_allclose(CensoringCurve.fit(time, event).at(known), reverse, atol=1e-12)


def test_an_event_comes_before_a_censoring_at_the_same_time():
    assert CensoringCurve.fit(*TRAIN).at(np.array([4.0]))[0] == 0.875  # not .8888889
    nobody = np.zeros(2, dtype=bool)
    draws = Draws.of_data(2)
    got = kaplan_meier(np.array([1, 2.0]), nobody, TIMES, draws=draws)
    np.testing.assert_array_equal(got, [[1] * 4])
    with pytest.raises(InputError, match="a time is 0"):
        kaplan_meier(np.array([0, 2.0]), ~nobody, TIMES, draws=draws)


def test_many_curves_at_once_are_single_curves():
    time, event, _ = _cohort(25, seed=9)
    draws = repeated_draws(range(25), resamples=6, seed=0)
    times = np.array([0.5, 2, 5, 7.5])
    got = kaplan_meier(time, event, times, draws=draws)
    for row, counts in zip(got, draws.counts, strict=True):
        rows = np.repeat(np.arange(25), counts.astype(int))
        alone = kaplan_meier(time[rows], event[rows], times, draws=Draws.of_data(25))[0]
        np.testing.assert_allclose(row, alone, atol=1e-14)


GRID = np.array([2.0, 6.0])
CURVES = np.array([[0.9, 0.4], [0.5, 0.0]])


def test_curves_between_their_times():
    """Hazards are constant between times; nothing is known beyond."""
    found = survival_between(CURVES, times=GRID, wanted=np.array([0, 1, 2, 4, 6.0]))
    np.testing.assert_allclose(found[0], [1, 0.9**0.5, 0.9, (0.9 * 0.4) ** 0.5, 0.4])
    assert found[1, -1] < 1e-9 and (np.diff(found) <= 0).all()
    with pytest.raises(InputError, match="known from 0 to 6"):
        survival_between(CURVES, times=GRID, wanted=np.array([6.5]))
