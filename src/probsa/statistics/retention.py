"""Retention curves: the error rate among the calls that are kept if the most doubtful are withheld.

Malinin et al., Ensemble distribution distillation, ICLR 2020, appendix. Calls with equal doubt are
kept in random order, and the curve is the mean over those orders. Its area relates to AUGRC, see
risk.py.
"""

from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float

from .bootstrap import Draws
from .metric import interval

SHARES: tuple[float, ...] = tuple(k / 20 for k in range(1, 21))
"""The shares of the items that are kept: 5, 10, …, 100 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionCurve:
    """Error rates of the kept items at `SHARES`, with 95 % intervals (None where there is none)."""

    error_rate: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return lists for JSON."""
        return {name: list(values) for name, values in asdict(self).items()}


def retained_error_rates(
    wrong: Bool[np.ndarray, " n"], doubt: Float[np.ndarray, " n"], *, draws: Draws
) -> Float[np.ndarray, "rows shares"]:
    """Return the error rate among the least doubtful items, by row of `draws` and share kept.

    A share may cut through items with equal doubt; the same fraction of each of them is kept, which
    is the mean over their orders. nan in a row without items.
    """
    order = np.argsort(doubt, kind="stable")
    ascending, member = doubt[order], draws.member[order]
    last = np.append(np.flatnonzero(ascending[1:] != ascending[:-1]), len(order) - 1)
    mistakes = wrong[order].astype(np.float64)
    shares = np.array(SHARES)
    rows = np.full((len(draws.counts), len(shares)), np.nan)
    for r, counts in enumerate(draws.counts):
        weight = counts[member].astype(np.float64)
        kept = np.append(0.0, np.cumsum(weight)[last])
        errors = np.append(0.0, np.cumsum(weight * mistakes)[last])
        if kept[-1] > 0:
            wanted = shares * kept[-1]
            rows[r] = np.interp(wanted, kept, errors) / wanted
    return rows


def retention_curve(
    wrong: Bool[np.ndarray, " n"], doubt: Float[np.ndarray, " n"], *, draws: Draws
) -> RetentionCurve:
    """Return the curve of the data, with intervals over the resamples.

    Args:
        wrong: whether each call is wrong; at least one item.
        doubt: high for the calls to withhold first.
        draws: draws of these items with the data as row 0.
    """
    rows = retained_error_rates(wrong, doubt, draws=draws)
    limits = [interval(column)[:2] for column in rows[1:].T]
    return RetentionCurve(
        error_rate=tuple(rows[0].tolist()),
        low=tuple(low for low, _ in limits),
        high=tuple(high for _, high in limits),
    )
