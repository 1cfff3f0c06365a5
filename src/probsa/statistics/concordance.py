"""How often the bag with the earlier event has the higher risk: Harrell's and Uno's c.

A pair is comparable if t_i < t_j and bag i has the event, or if t_i = t_j and only bag i has it.
Equal risks count half. Higher risk is always worse. Harrell et al., JAMA 1982; Uno et al.,
Statistics in Medicine 2011.
"""

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from .bootstrap import CELLS, Draws
from .censoring import CensoringCurve
from .kaplan_meier import check_times
from .metric import Metric


def harrell_c(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    risk: Float[np.ndarray, " bags"],
    draws: Draws | None = None,
) -> Metric:
    """Return the share of comparable pairs in which the bag with the earlier event has more risk.

    Undefined without a comparable pair. It depends on the censoring of these bags.

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        risk: any score that is higher for worse prognosis.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: a time is not positive and finite, or a risk is not finite.
    """
    return _concordance(time, event, risk=risk, pair_weight=event.astype(np.float64), draws=draws)


def uno_c(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    risk: Float[np.ndarray, " bags"],
    censoring: CensoringCurve,
    horizon: float | None = None,
    draws: Draws | None = None,
) -> Metric:
    """Return c with each pair weighted by Ĝ(t_i)⁻², so that it does not depend on the censoring.

    Pairs with Ĝ(t_i) = 0 or with t_i beyond the training times have no weight and are left out:
    `censoring.truncated(time)` counts such bags.

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        risk: any score that is higher for worse prognosis.
        censoring: Ĝ, fitted on the training bags.
        horizon: τ: pairs with t_i ≥ τ are left out; None for all that have a weight.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: a time is not positive and finite, or a risk is not finite.
    """
    g = censoring.at(time)
    used = event & (g > 0)
    if horizon is not None:
        used &= time < horizon
    weight = np.divide(1.0, g**2, out=np.zeros(len(time)), where=used)
    return _concordance(time, event, risk=risk, pair_weight=weight, draws=draws)


def _concordance(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    risk: Float[np.ndarray, " bags"],
    pair_weight: Float[np.ndarray, " bags"],
    draws: Draws | None,
) -> Metric:
    """Return Σ_ij v_i comparable_ij concordant_ij / Σ_ij v_i comparable_ij, with v 0 if unused."""
    check_risk(time, event, risk)
    draws = Draws.of_data(len(time)) if draws is None else draws
    first = np.flatnonzero(pair_weight > 0)
    if len(first) == 0:
        return Metric.undefined(_no_pair(time, event))
    above, below = np.zeros(len(draws.counts)), np.zeros(len(draws.counts))
    # Blocks of pairs, so that memory does not grow with the square of the bags.
    block = max(1, CELLS // len(time))
    for start in range(0, len(first), block):
        i = first[start : start + block, None]
        comparable = (time[i] < time) | ((time[i] == time) & ~event)
        concordant = comparable * ((risk[i] > risk) + 0.5 * (risk[i] == risk))
        weight = draws.counts[:, draws.member[i[:, 0]]] * pair_weight[i[:, 0]]
        above += (draws.totals(concordant.T) * weight).sum(1)
        below += (draws.totals(comparable.T) * weight).sum(1)
    rows = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)
    return Metric.of(rows, reason=_no_pair(time, event))


def _no_pair(time: Float[np.ndarray, " bags"], event: Bool[np.ndarray, " bags"]) -> str:
    if not event.any():
        return f"no event among {len(time)} bags: c is undefined"
    return f"no comparable pair among {len(time)} bags with {event.sum()} events: c is undefined"


def check_risk(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    risk: Float[np.ndarray, " bags"],
) -> None:
    """Check times and risks.

    Raises:
        InputError: their numbers differ, a time is not positive, or a risk is not finite.
    """
    check_times(time, event)
    if len(risk) != len(time):
        raise InputError(f"{len(risk)} risks for {len(time)} times: expected as many")
    if not np.isfinite(risk).all():
        raise InputError("risks must be finite; some are infinite or nan")
