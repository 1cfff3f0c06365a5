"""An interval of a resampled metric that keeps its coverage with few groups."""

import numpy as np
from scipy.special import stdtrit

from .bootstrap import COVERAGE
from .metric import Metric
from .sampled import SampledMetric


def student_interval(sample: SampledMetric, *, groups: int) -> Metric:
    """Return the value ± t · s · √(G / (G − 1)), with t of G − 1 degrees of freedom.

    s is the standard deviation of the resamples. The percentiles of a bootstrap over G groups are
    too narrow if G is small, because they estimate the variance with G instead of G − 1 and know no
    t distribution. If the metric is a mean over groups of one item each, this is the interval of
    the t-test, up to the Monte Carlo error of s. There is no interval with fewer than two groups.

    Args:
        sample: the metric with its resamples.
        groups: number of groups that contribute to the metric.
    """
    if sample.rows is None:
        return Metric.undefined(sample.reason or "")
    rows = sample.rows[1:]
    defined = rows[np.isfinite(rows)]
    left_out = len(rows) - len(defined)
    value = float(sample.rows[0])
    if groups < 2 or len(defined) < 2 or left_out > len(defined):
        return Metric(value, left_out=left_out)
    error = float(defined.std(ddof=1)) * (groups / (groups - 1)) ** 0.5
    half = error * float(stdtrit(groups - 1, (1 + COVERAGE) / 2))
    return Metric(value, low=value - half, high=value + half, left_out=left_out)
