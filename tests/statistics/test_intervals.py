"""Intervals: their formulas, the limits that they keep, and why there is none."""

import math

import numpy as np
import pytest
from scipy import stats

from probsa.statistics import (
    ANY_VALUE,
    LOSS,
    MEAN_CORRELATION,
    MEAN_SHARE,
    SHARE,
    CensoringCurve,
    Draws,
    Metric,
    NoInterval,
    Scale,
    Support,
    binary_metrics,
    mean_of_items,
    multiclass_metrics,
    multilabel_metrics,
    ordinal_metrics,
    regression_metrics,
    survival_metrics,
)
from probsa.statistics.intervals import CORRELATION, UP_TO_ONE, interval

MANY = Support(patients=10**6, part=None, trials=1e6)


def support(patients):
    return Support(patients=patients, part=None, trials=float(patients - 1))


@pytest.mark.parametrize(("successes", "trials"), [(7, 10), (1, 40), (250, 400)])
def test_of_a_share_it_is_wilsons(successes, trials):
    share = successes / trials
    inner = (MANY.trials * share + 0.5) / (MANY.trials + 1)
    error = math.sqrt(inner * (1 - inner) / trials)
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert SHARE.interval(share, error, support=MANY) == pytest.approx(expected, abs=1e-6)


def test_a_share_that_does_not_vary_has_wilsons_interval_of_its_patients():
    for successes in (0, 7):
        expected = stats.binomtest(successes, 7).proportion_ci(method="wilson")
        got = SHARE.interval(successes / 7, 0.0, support=support(8))
        assert got == pytest.approx(expected, abs=1e-12)


def test_of_a_mean_over_patients_it_is_the_interval_of_the_t_test():
    values = np.random.default_rng(0).normal(size=7)
    draws = Draws.patients(np.ones(7), groups=None, resamples=200_000, seed=1)
    got = mean_of_items(values, draws=draws, scale=ANY_VALUE)
    want = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert got.value == pytest.approx(values.mean(), abs=1e-12)
    # the standard deviation of 200,000 resamples is known to 0.2 %
    half = (want.high - want.low) / 2
    assert (got.low, got.high) == pytest.approx(want, abs=0.01 * half)


def test_of_a_loss_it_is_students_of_the_logarithm():
    t = stats.t.ppf(0.975, 8)
    low, high = LOSS.interval(2.0, 0.3, support=support(9))
    assert (low, high) == pytest.approx((2 * math.exp(-0.15 * t), 2 * math.exp(0.15 * t)))
    low, high = UP_TO_ONE.interval(-1.0, 0.3, support=support(9))
    assert (low, high) == pytest.approx((1 - 2 * math.exp(0.15 * t), 1 - 2 * math.exp(-0.15 * t)))


@pytest.mark.parametrize("scale", [SHARE, MEAN_SHARE, CORRELATION, MEAN_CORRELATION, LOSS])
@pytest.mark.parametrize("patients", [3, 4, 40])
def test_it_stays_on_its_scale_and_holds_the_value(scale, patients):
    high = min(scale.high, 9.0)
    for value in np.linspace(scale.low, high, 9):
        for error in (1e-4, 0.01, 0.3, 1.0, 50.0):
            found = scale.interval(float(value), error, support=support(patients))
            if found is None:  # a loss of 0
                assert value == 0 and scale is LOSS
                continue
            assert scale.low <= found[0] <= value <= found[1] <= scale.high
            assert found[0] < found[1]


def test_a_wider_error_gives_a_wider_interval_and_fewer_patients_too():
    widths = [
        np.subtract(*SHARE.interval(0.8, error, support=support(n))[::-1])
        for error, n in ((0.07, 40), (0.1, 40), (0.1, 6), (0.1, 3))
    ]
    assert np.isfinite(widths).all() and (np.diff(widths) > 0).all()


@pytest.mark.parametrize(
    ("rows", "patients", "cause"),
    [
        ([0.5, 0.4, 0.6], 2, "few patients"),
        ([0.5], 9, "no resamples"),
        ([0.5, 0.4, *[np.nan] * 5, 0.3], 9, "undefined resamples"),
        ([0.5, 0.5, 0.5, 0.5], 9, "no variation"),
    ],
)
def test_why_there_is_none(rows, patients, cause):
    metric = Metric.of(np.array(rows), support=support(patients), scale=MEAN_SHARE)
    assert metric.value == 0.5 and metric.low is None and metric.high is None
    assert metric.no_interval.cause == cause
    assert metric.left_out == np.isnan(rows).sum()
    assert Metric.from_dict(metric.to_dict()) == metric
    assert Metric.undefined("why").no_interval is None


@pytest.mark.parametrize(
    ("rows", "scale"), [([0.0, 0.0, 0.4, 0.1], LOSS), ([1.0, 1.0, 0.7, 0.9], UP_TO_ONE)]
)
def test_a_value_at_the_only_limit_varies_but_has_no_interval(rows, scale):
    got = interval(np.array(rows), support=support(9), scale=scale)
    assert got.missing == NoInterval("at the limit")
    same = interval(np.full(4, rows[0]), support=support(9), scale=scale)
    assert same.missing == NoInterval("no variation")


def test_the_rarer_class_and_its_patients_are_stated():
    """Two patients of class 1, one of whom has bags of both classes."""
    y = np.array([0] * 8 + [1, 1, 0])
    groups = [*range(8), 8, 9, 9]
    draws = Draws.patients(y, groups=groups, resamples=50, seed=0)
    p = np.linspace(0.1, 0.9, 11)
    metrics = binary_metrics(y, p, threshold=0.5, draws=draws).overall
    for name in ("auroc", "average_precision", "f1", "balanced_accuracy"):
        assert metrics[name].no_interval == NoInterval("few patients", 2, "of class 1"), name
    # means over all bags rest on all patients
    for name in ("accuracy", "brier", "nll"):
        assert metrics[name].support.patients == 10, name
        assert metrics[name].low < metrics[name].value < metrics[name].high, name


LIMITS = {
    "kappa": (-1, 1),
    "linear_kappa": (-1, 1),
    "quadratic_kappa": (-1, 1),
    "spearman": (-1, 1),
    "r_squared": (-np.inf, 1),
    "mae": (0, np.inf),
    "rmse": (0, np.inf),
    "nll": (0, np.inf),
    "width": (0, np.inf),
    "rps": (0, 3),
    "brier": (0, 2),
}
"""The limits of metrics that are not between 0 and 1."""


def _regression(rng, n, draws):
    y = rng.normal(size=n)
    predicted = y + rng.normal(size=n)
    quantiles = {0.05: predicted - 1, 0.95: predicted + rng.random(n)}
    scores = {"crps": rng.random(n)}
    return regression_metrics(y, predicted, scores=scores, quantiles=quantiles, draws=draws(y > 0))


def _survival(rng, n, draws):
    time = rng.exponential(size=n) + 0.1
    event = rng.random(n) < 0.7
    risk = rng.normal(size=n)
    times = np.array([0.5, 1.0])
    return survival_metrics(
        time,
        event,
        risk=risk,
        censoring=CensoringCurve.fit(time + 0.01, event),
        times=times,
        survival=np.sort(rng.random((n, 2)))[:, ::-1],
        draws=draws(event),
    )


def _classes(metrics, classes, **options):
    def of(rng, n, draws):
        y = np.arange(n) % classes
        p = rng.dirichlet(np.ones(classes), size=n) + 0.3 * np.eye(classes)[y]
        p /= p.sum(1, keepdims=True)
        if classes == 2:
            return metrics(y, p[:, 1], draws=draws(y), **options)
        return metrics(y, p, draws=draws(y), **options)

    return of


def _findings(rng, n, draws):
    y = (rng.random((n, 2)) < 0.5).astype(float)
    p = rng.random((n, 2))
    names = ("a", "b")
    return multilabel_metrics(y, p, names=names, thresholds=(0.5, 0.5), draws=draws(y[:, 0]))


@pytest.mark.parametrize(
    "task",
    [
        _classes(binary_metrics, 2, threshold=0.5),
        _classes(multiclass_metrics, 3, names="abc"),
        _classes(ordinal_metrics, 4, names="abcd"),
        _findings,
        _regression,
        _survival,
    ],
    ids=["binary", "multiclass", "ordinal", "findings", "regression", "survival"],
)
def test_metrics_of_every_task_stay_within_their_limits(task):
    """Few patients, of one to three bags each, so that standard errors are large."""
    given = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        patients = int(rng.integers(4, 14))
        groups = np.repeat(np.arange(patients), rng.integers(1, 4, size=patients)).tolist()

        def draws(strata, groups=groups, seed=seed):
            return Draws.patients(strata, groups=groups, resamples=60, seed=seed)

        found = task(rng, len(groups), draws)
        parts = [found.overall, *found.by_part.values()]
        for name, metric in [pair for part in parts for pair in part.items()]:
            if metric.value is None:
                continue
            low, high = LIMITS.get(name, (0, np.inf if name == "crps" else 1))
            if metric.no_interval is None:
                given.add(name)
                assert np.isfinite([metric.low, metric.high]).all(), name
                assert low <= metric.low <= metric.value <= metric.high <= high, name
                assert metric.low < metric.high, name
            else:
                assert metric.low is None and metric.high is None, name
            difference = metric - metric.map(lambda rows: rows[::-1])
            if difference.low is not None and np.isfinite(high - low):
                assert low - high <= difference.low <= difference.high <= high - low, name
    assert len(given) >= 5


def test_a_rank_correlation_of_few_bags_stays_between_minus_1_and_1():
    """It was .50 [-3.32, 4.32] for three bags in version 0.2."""
    draws = Draws.patients(np.zeros(3), groups=None, resamples=500, seed=0)
    y = np.array([1.0, 2.0, 3.0])
    predicted = np.array([1.0, 3.0, 2.0])
    found = regression_metrics(y, predicted, scores={}, quantiles={}, draws=draws).overall
    assert found["spearman"].value == pytest.approx(0.5)
    assert found["spearman"].support.patients == 3
    no_interval = found["spearman"].no_interval
    if no_interval is None:
        assert -1 <= found["spearman"].low < found["spearman"].high <= 1
    else:  # two patients drawn from three are mostly one, or in one order
        assert no_interval.cause == "undefined resamples"


def test_fishers_z_of_many_pairs():
    rng = np.random.default_rng(1)
    a = rng.normal(size=300)
    b = 0.8 * a + 0.6 * rng.normal(size=300)
    draws = Draws.patients(np.zeros(300), groups=None, resamples=2000, seed=0)
    got = regression_metrics(a, b, scores={}, quantiles={}, draws=draws).overall["spearman"]
    z = np.arctanh(got.value) + np.array([-1, 1]) * 1.96 / np.sqrt(297)
    assert (got.low, got.high) == pytest.approx(np.tanh(z), abs=0.02)


def test_an_interval_knows_rounding_errors_from_variation():
    rows = np.array([0.3, 0.3 + 1e-16, 0.3 - 1e-16, 0.3])
    found = interval(rows, support=support(9), scale=Scale(0.0, 1.0, is_share=False))
    assert found.missing == NoInterval("no variation")
