"""Compare the resamples of a target's metrics with metrics of the repeated rows."""

from collections.abc import Callable

import numpy as np

from probsa.statistics import Draws, Metric, TargetMetrics


def flat(metrics: TargetMetrics) -> dict[str, Metric]:
    """Every metric by its name, those of parts as `part: name`."""
    parts = {f"{p}: {k}": m for p, of_part in metrics.by_part.items() for k, m in of_part.items()}
    return {**metrics.overall, **parts}


def values(metrics: TargetMetrics) -> dict[str, float | None]:
    """Every value by its name; None where it is undefined."""
    return {name: metric.value for name, metric in flat(metrics).items()}


def assert_resamples_are_repeated_rows(
    metrics_of: Callable[[np.ndarray, Draws], TargetMetrics], draws: Draws
) -> int:
    """Check each row of the draws; `metrics_of` takes row numbers and draws.

    Returns the number of values that are undefined in a resample.
    """
    items = np.arange(len(draws.member))
    whole = flat(metrics_of(items, draws))
    undefined = 0
    for r, counts in enumerate(draws.counts):
        rows = np.repeat(items, counts[draws.member].astype(int))
        alone = values(metrics_of(rows, Draws.of_data(len(rows))))
        for name, metric in whole.items():
            assert metric.rows is not None, f"{name}: {metric.reason}"
            value = alone.get(name)
            undefined += value is None
            expected = np.nan if value is None else value
            np.testing.assert_allclose(metric.rows[r], expected, atol=1e-12, err_msg=name)
    return undefined
