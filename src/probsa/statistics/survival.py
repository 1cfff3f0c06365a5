"""Metrics of a time to an event, with the censoring curve Ĝ fixed from the training bags.

Times are positive, in any one unit; `event` is False if a bag was censored at its time. An event
comes before a censoring at the same time. `risk` is higher for worse prognosis; nothing chooses its
direction. Times at which Ĝ is 0 or unknown are left out, and a note says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import CensoredData, ecdf

from ..errors import InputError
from .metric import Metric, TargetMetrics
from .resample import CELLS, Draws, Flags, Values

Times = Float[np.ndarray, " times"]
Curves = Float[np.ndarray, "items times"]

SMALLEST = 1e-12
"""Survival below this is moved here, so that its logarithm is finite."""


def kaplan_meier(time: Values, event: Flags, times: Times) -> Times:
    """Return the survival of bags at each of `times` (Kaplan and Meier, JASA 1958).

    After the last time of a bag it stays constant.

    Raises:
        InputError: a time is not positive and finite, or there are no bags.
    """
    _check(time, event)
    return ecdf(CensoredData(uncensored=time[event], right=time[~event])).sf.evaluate(times)


@dataclass(frozen=True, slots=True)
class CensoringCurve:
    """Ĝ(t), the estimated probability of not being censored until t."""

    time: Values
    """Times of the training bags; those of censorings are moved behind events at the same time."""
    event: Flags

    @classmethod
    def fit(cls, time: Values, event: Flags) -> "CensoringCurve":
        """Estimate Ĝ from training bags, Π (1 - c / (n - d)).

        At each time, c bags are censored and d have the event, of n at risk.

        Raises:
            InputError: a time is not positive and finite, or there are no bags.
        """
        _check(time, event)
        return cls(np.where(event, time, np.nextafter(time, np.inf)), event)

    def at(self, times: Times) -> Times:
        """Return Ĝ at any times; 0 after the last training time, where it is unknown."""
        values = kaplan_meier(self.time, ~self.event, np.nextafter(times, np.inf))
        return np.where(times > self.limit, 0.0, values)

    @property
    def limit(self) -> float:
        """The end of the times with Ĝ > 0, which is the last training time.

        Ĝ is positive at the limit itself only if the last training bags all have the event.
        """
        return float(np.where(self.event, self.time, np.nextafter(self.time, 0)).max())


def harrell_c(time: Values, event: Flags, *, risk: Values, draws: Draws | None = None) -> Metric:
    """Return the share of comparable pairs in which the bag with the earlier event has more risk.

    A pair is comparable if t_i < t_j and bag i has the event, or if t_i = t_j and only bag i has
    it. Equal risks count half. It depends on the censoring of these bags (Harrell et al., JAMA
    1982).

    Raises:
        InputError: a time is not positive and finite, or a risk is not finite.
    """
    return _concordance(time, event, risk=risk, pair_weight=event.astype(np.float64), draws=draws)


def uno_c(
    time: Values,
    event: Flags,
    *,
    risk: Values,
    censoring: CensoringCurve,
    draws: Draws | None = None,
) -> Metric:
    """Return c with each pair weighted by Ĝ(t_i)⁻², so that it does not depend on the censoring.

    Pairs with Ĝ(t_i) = 0 or with t_i beyond the training times have no weight (Uno et al.,
    Statistics in Medicine 2011).

    Raises:
        InputError: a time is not positive and finite, or a risk is not finite.
    """
    _check(time, event, risk=risk)
    g = censoring.at(time)
    weight = np.divide(1.0, g**2, out=np.zeros(len(time)), where=event & (g > 0))
    return _concordance(time, event, risk=risk, pair_weight=weight, draws=draws)


def _concordance(
    time: Values, event: Flags, *, risk: Values, pair_weight: Values, draws: Draws | None
) -> Metric:
    """Return Σ_ij v_i comparable_ij concordant_ij / Σ_ij v_i comparable_ij, with v 0 if unused."""
    _check(time, event, risk=risk)
    draws = Draws.of_data(len(time)) if draws is None else draws
    first = np.flatnonzero(pair_weight > 0)
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
    events = f" with {event.sum()} events" if event.any() else ""
    what = "comparable pair" if event.any() else "event"
    return Metric.of(rows, reason=f"no {what} among {len(time)} bags{events}: c is undefined")


def survival_metrics(
    time: Values,
    event: Flags,
    *,
    risk: Values,
    censoring: CensoringCurve,
    survival: Curves | None = None,
    times: Times | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all bags, and Brier score and AUROC at each time.

    Args:
        time, event, risk: as for `harrell_c`.
        censoring: Ĝ, fitted on the training bags.
        survival: the predicted survival at `times`; None for no Brier scores.
        times: rising times at which to judge; None for no metrics of single times.

    Raises:
        InputError: a time, a risk or a probability cannot be used, or shapes do not fit.
    """
    _check(time, event, risk=risk)
    draws = Draws.of_data(len(time)) if draws is None else draws
    overall = {
        "uno_c": uno_c(time, event, risk=risk, censoring=censoring, draws=draws),
        "harrell_c": harrell_c(time, event, risk=risk, draws=draws),
    }
    notes = []
    beyond = int((censoring.at(time) == 0).sum())
    if beyond:
        notes.append(
            f"{beyond} of {len(time)} bags have times at or beyond {censoring.limit:g}, the end of "
            "the training follow-up: they count as later than others, never as events"
        )
    if survival is not None:
        _check_curves(survival, times, items=len(time))
    if times is None:
        return TargetMetrics(overall=overall, by_part={}, notes=tuple(notes))
    usable = censoring.at(times) > 0
    if not usable.all():
        dropped = ", ".join(f"{t:g}" for t in times[~usable])
        notes.append(f"not judged at times {dropped}: no training bag tells their censoring")
    times = times[usable]
    data = _Judged(time, event, censoring.at(time), times, censoring.at(times), draws)
    aurocs = _aurocs(data, risk)
    by_part = {f"{t:g}": {"auroc": metric} for t, metric in zip(times, aurocs, strict=True)}
    overall["mean_auroc"] = _mean_auroc(data, aurocs)
    if survival is not None:
        briers = _briers(data, survival[:, usable])
        for metrics, brier in zip(by_part.values(), briers, strict=True):
            metrics["brier"] = brier
        overall["integrated_brier"] = _integral(briers, times)
    return TargetMetrics(overall=overall, by_part=by_part, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _Judged:
    """Bags, the times at which predictions are judged, Ĝ at both, and the draws."""

    time: Values
    event: Flags
    g: Values
    times: Times
    g_at: Times
    draws: Draws


def _aurocs(data: _Judged, risk: Values) -> list[Metric]:
    """Return the AUROC at each time: bags with the event until then against bags without it so far.

    Cases are weighted by 1 / Ĝ(t_i). Uno et al., JASA 2007; Hung and Chiang, Canadian Journal of
    Statistics 2010.
    """
    metrics = []
    for t in data.times:
        case, control = data.event & (data.time <= t), data.time > t
        weight = np.divide(1.0, data.g, out=np.zeros(len(case)), where=case)
        missing = "bag without an event until" if case.any() else "event until"
        reason = f"no {missing} time {t:g} among {len(case)} bags: AUROC is undefined"
        metrics.append(Metric.of(data.draws.auroc(weight, risk, control=control), reason=reason))
    return metrics


def _mean_auroc(data: _Judged, aurocs: Sequence[Metric]) -> Metric:
    """Return the mean over the times, weighted by the share of events between neighbouring times.

    The shares are falls of the Kaplan-Meier curve of these bags, taken anew in each row.
    """
    if not aurocs:
        return Metric.undefined("no times: the mean AUROC is undefined")
    curve = resampled_survival(data.time, data.event, data.times, draws=data.draws)
    mass = -np.diff(curve, axis=1, prepend=1.0)
    for k, metric in enumerate(aurocs):
        if metric.rows is None and mass[0, k] > 0:
            return metric
    # A time before the first event has no AUROC and no mass.
    undefined = np.full(len(mass), np.nan)
    rows = np.stack([undefined if m.rows is None else m.rows for m in aurocs], axis=1)
    total = mass.sum(1)
    mean = np.divide(
        np.where(mass > 0, rows * mass, 0.0).sum(1), total, out=undefined, where=total > 0
    )
    until = f"no event until time {data.times[-1]:g} among {len(data.time)} bags"
    return Metric.of(mean, reason=f"{until}: the mean is undefined")


def resampled_survival(
    time: Values, event: Flags, times: Times, *, draws: Draws
) -> Float[np.ndarray, "rows times"]:
    """Return the Kaplan-Meier estimate at each of `times` in each row of the draws."""
    order = np.argsort(time, kind="stable")
    weight, event = draws.weights()[:, order], event[order]
    distinct, starts = np.unique(time[order], return_index=True)
    events = np.add.reduceat(weight * event, starts, axis=1)
    at_risk = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1][:, starts]
    hazard = np.divide(events, at_risk, out=np.zeros_like(events), where=at_risk > 0)
    curve = np.concatenate([np.ones((len(weight), 1)), np.cumprod(1 - hazard, axis=1)], axis=1)
    return curve[:, np.searchsorted(distinct, times, side="right")]


def _briers(data: _Judged, survival: Curves) -> list[Metric]:
    """Return the Brier score at each time; lower is better (Graf et al., Stat. in Medicine 1999).

    It is the mean of S(t)² 1[t_i ≤ t, event] / Ĝ(t_i) + (1 - S(t))² 1[t_i > t] / Ĝ(t).
    """
    died = (data.time[:, None] <= data.times) & data.event[:, None]
    # Ĝ(t_i) is at least Ĝ(t) for an event until t, so it is positive there.
    cases = np.divide(survival**2, data.g[:, None], out=np.zeros_like(survival), where=died)
    loss = cases + (data.time[:, None] > data.times) * (1 - survival) ** 2 / data.g_at
    totals, n = data.draws.totals(loss), data.draws.totals(np.ones((len(loss), 1)))
    with np.errstate(invalid="ignore"):
        return [Metric.of(column) for column in (totals / n).T]


def _integral(briers: Sequence[Metric], times: Times) -> Metric:
    """Return the Brier score integrated over `times` by trapezoids, divided by their length."""
    if len(briers) < 2:
        return Metric.undefined(f"{len(briers)} times: an integral needs at least two")
    rows = np.stack([metric.rows for metric in briers if metric.rows is not None], axis=1)
    area = ((rows[:, 1:] + rows[:, :-1]) / 2 * np.diff(times)).sum(1)
    return Metric.of(area / (times[-1] - times[0]))


def survival_between(
    survival: Curves, *, times: Times, wanted: Float[np.ndarray, " w"], steps: bool = False
) -> Float[np.ndarray, "items w"]:
    """Return survival at other times: 1 at 0, and log S linear between the predicted times.

    That is a constant hazard in each interval. The result never rises.

    Args:
        survival: predicted survival of each item at `times`.
        times: rising times, above 0.
        wanted: times from 0 to the last of `times`.
        steps: whether survival is constant until the next time instead.

    Raises:
        InputError: a time lies outside the range, in which nothing is known.
    """
    if not bool(((wanted >= 0) & (wanted <= times[-1])).all()):
        raise InputError(
            f"the times are {wanted.min():g} to {wanted.max():g}, but survival is known from 0 to "
            f"{times[-1]:g}, the last training event"
        )
    grid = np.append(0.0, times)
    whole = np.hstack([np.ones((len(survival), 1)), survival])
    whole = np.minimum.accumulate(np.clip(whole, 0.0, 1.0), axis=1)
    if steps:
        return whole[:, np.searchsorted(grid, wanted, side="right") - 1]
    logs = np.log(np.maximum(whole, SMALLEST))
    rows = [np.interp(wanted, grid, row) for row in logs]
    return np.exp(np.array(rows, dtype=np.float64).reshape(len(survival), len(wanted)))


def _check(time: Values, event: Flags, *, risk: Values | None = None) -> None:
    if len(time) == 0 or len(time) != len(event):
        raise InputError(f"{len(time)} times and {len(event)} events: expected as many, and some")
    wrong = ~(np.isfinite(time) & (time > 0))
    if wrong.any():
        raise InputError(f"a time is {time[wrong][0]:g}, but expected more than 0, in one unit")
    if risk is not None and len(risk) != len(time):
        raise InputError(f"{len(risk)} risks for {len(time)} times: expected as many")
    if risk is not None and not np.isfinite(risk).all():
        raise InputError("risks must be finite; some are infinite or nan")


def _check_curves(survival: Curves, times: Times | None, *, items: int) -> None:
    if times is None:
        raise InputError("predicted survival without the times that it belongs to: give `times`")
    if survival.shape != (items, len(times)):
        raise InputError(
            f"survival of shape {survival.shape} for {items} bags and {len(times)} times: expected "
            "one row per bag and one column per time"
        )
    if not bool((np.diff(times) > 0).all()):
        raise InputError("the times of predicted survival must rise")
    if not bool(((survival >= 0) & (survival <= 1)).all()):
        raise InputError("predicted survival must lie in [0, 1]; some is outside, or nan")
