"""AUROC at a time: bags with the event until then against bags without it so far.

Cases (event until t) are weighted by 1 / Ĝ(t_i); controls are all bags with t_i > t. Equal risks
count half. Uno et al., JASA 2007; Hung and Chiang, Canadian Journal of Statistics 2010.
"""

import numpy as np
from jaxtyping import Bool, Float

from .bootstrap import Draws
from .censoring import CensoringCurve
from .concordance import check_risk
from .kaplan_meier import resampled_survival
from .metric import Metric
from .survival_errors import check_grid


def survival_aurocs(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    risk: Float[np.ndarray, " bags"] | Float[np.ndarray, "bags t"],
    times: Float[np.ndarray, " t"],
    censoring: CensoringCurve,
    draws: Draws | None = None,
) -> list[Metric]:
    """Return the cumulative/dynamic AUROC at each time; undefined without a case or a control.

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        risk: a score that is higher for worse prognosis, for all times or one for each time.
        times: rising times, at which Ĝ must be positive.
        censoring: Ĝ, fitted on the training bags.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: Ĝ is 0 or unknown at one of `times`, or a time or a risk cannot be used.
    """
    by_time = np.broadcast_to(risk[:, None], (len(risk), len(times))) if risk.ndim == 1 else risk
    check_risk(time, event, by_time[:, 0] if by_time.shape[1] else np.zeros(len(time)))
    check_grid(times, censoring)
    draws = Draws.of_data(len(time)) if draws is None else draws
    weights = draws.weights()
    g = censoring.at(time)
    metrics = []
    for k, t in enumerate(times):
        case = event & (time <= t)
        ipcw = np.divide(1.0, g, out=np.zeros(len(time)), where=case)
        rows = _weighted_auroc(by_time[:, k], weights * ipcw, weights * (time > t))
        missing = "event until" if not case.any() else "bag without an event until"
        reason = f"no {missing} time {t:g} among {len(time)} bags: AUROC is undefined"
        metrics.append(Metric.of(rows, reason=reason))
    return metrics


def _weighted_auroc(
    score: Float[np.ndarray, " bags"],
    cases: Float[np.ndarray, "rows bags"],
    controls: Float[np.ndarray, "rows bags"],
) -> Float[np.ndarray, " rows"]:
    """Return the weighted share of pairs in which the case has the higher score."""
    order = np.argsort(score, kind="stable")
    ascending = score[order]
    below = np.zeros((len(cases), len(score) + 1))
    np.cumsum(controls[:, order], axis=1, out=below[:, 1:])
    first = np.searchsorted(ascending, ascending, side="left")
    last = np.searchsorted(ascending, ascending, side="right")
    above = (cases[:, order] * (below[:, first] + below[:, last])).sum(1) / 2
    pairs = cases.sum(1) * below[:, -1]
    return np.divide(above, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def mean_survival_auroc(
    aurocs: list[Metric],
    *,
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    times: Float[np.ndarray, " t"],
    draws: Draws | None = None,
) -> Metric:
    """Return the mean over `times`, weighted by the share of events between neighbouring times.

    The shares are falls of the Kaplan-Meier curve of these bags, taken anew in each row.
    """
    if not aurocs:
        return Metric.undefined("no times: the mean AUROC is undefined")
    draws = Draws.of_data(len(time)) if draws is None else draws
    curve = resampled_survival(time, event, times, weights=draws.weights())
    mass = -np.diff(curve, axis=1, prepend=1.0)
    undefined = np.full(len(mass), np.nan)
    rows = np.stack([undefined if m.rows is None else m.rows for m in aurocs], axis=1)
    for k, metric in enumerate(aurocs):
        if metric.rows is None and mass[0, k] > 0:
            return Metric.undefined(metric.reason or "")
    # A time before the first event has no AUROC and no mass.
    weighted = np.where(mass > 0, rows * mass, 0.0).sum(1)
    total = mass.sum(1)
    mean = np.divide(weighted, total, out=undefined.copy(), where=total > 0)
    reason = f"no event until time {times[-1]:g} among {len(time)} bags: the mean is undefined"
    return Metric.of(mean, reason=reason)
