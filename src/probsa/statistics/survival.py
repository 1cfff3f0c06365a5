"""Metrics of a time to an event, with the censoring curve Ĝ fixed from the training bags.

Times are positive, in any one unit; `event` is False if a bag was censored at its time. An event
comes before a censoring at the same time. It is seen at t if the bag is not censored before t, with
the probability Ĝ(t-); a bag is seen to have no event until t with Ĝ(t). `risk` is higher for worse
prognosis; nothing chooses its direction. Times at which Ĝ is 0 or unknown are left out, and a note
says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from .intervals import MEAN_SHARE, SHARE
from .metric import Metric, TargetMetrics, require
from .resample import CELLS, Draws, Flags, Rows, Support, Values

EVENTS = "with the event"
NO_EVENTS = "without the event"
"""The parts of bags in survival metrics, see `NoInterval.part`."""

Times = Float[np.ndarray, " times"]
Curves = Float[np.ndarray, "items times"]

SMALLEST = 1e-12
"""Survival below this is moved here, so that its logarithm is finite."""


def kaplan_meier(
    time: Values, event: Flags, times: Times, *, draws: Draws
) -> Float[np.ndarray, "rows times"]:
    """Return the survival of bags at each of `times` (Kaplan and Meier, JASA 1958).

    After the last time of a bag it stays constant.

    Raises:
        InputError: a time is not positive and finite, or there are no bags.
    """
    _check_times(time)
    order = np.argsort(time, kind="stable")
    weight = draws.weights()[:, order]
    event = event[order]
    distinct, starts = np.unique(time[order], return_index=True)
    events = np.add.reduceat(weight * event, starts, axis=1)
    at_risk = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1][:, starts]
    hazard = np.divide(events, at_risk, out=np.zeros_like(events), where=at_risk > 0)
    curve = np.concatenate([np.ones((len(weight), 1)), np.cumprod(1 - hazard, axis=1)], axis=1)
    return curve[:, np.searchsorted(distinct, times, side="right")]


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
        _check_times(time)
        return cls(np.where(event, time, np.nextafter(time, np.inf)), event)

    def at(self, times: Times) -> Times:
        """Return Ĝ(t), the probability that no censoring has come until any of the times t.

        It is 0 after the last training time, where it is unknown.
        """
        # censorings were moved to the next number, so that of t must be read there
        return self._until(times, read_at=np.nextafter(times, np.inf))

    def before(self, times: Times) -> Times:
        """Return Ĝ(t-), the probability that no censoring has come before any of the times t.

        It is 0 after the last training time, where it is unknown.
        """
        return self._until(times, read_at=times)

    def _until(self, times: Times, *, read_at: Times) -> Times:
        draws = Draws.of_data(len(self.time))
        values = kaplan_meier(self.time, ~self.event, read_at, draws=draws)[0]
        return np.where(times > self.limit, 0.0, values)

    @property
    def limit(self) -> float:
        """The end of the times with Ĝ > 0, which is the last training time.

        Ĝ is positive at the limit itself only if the last training bags all have the event.
        """
        return float(np.where(self.event, self.time, np.nextafter(self.time, 0)).max())


def concordance(
    time: Values,
    event: Flags,
    *,
    risk: Values,
    censoring: CensoringCurve | None = None,
    draws: Draws | None = None,
) -> Metric:
    """Return the share of comparable pairs in which the bag with the earlier event has more risk.

    A pair is comparable if t_i < t_j and bag i has the event, or if t_i = t_j and only bag i has
    it. Equal risks count half. Without `censoring` it is Harrell's c, which depends on the
    censoring of these bags (JAMA 1982). With Ĝ it is Uno's c, in which each pair has the weight
    Ĝ(t_i-)⁻², as neither bag was censored before t_i, or none if t_i is beyond the training times
    (Statistics in Medicine 2011). Without draws, there is no interval.

    Raises:
        InputError: a time is not positive and finite, or there are no bags.
    """
    _check_times(time)
    draws = Draws.of_data(len(time)) if draws is None else draws
    g = np.ones(len(time)) if censoring is None else censoring.before(time)
    pair_weight = np.divide(1.0, g**2, out=np.zeros(len(time)), where=event & (g > 0))
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
    reason = f"no {what} among {len(time)} bags{events}: c is undefined"
    return Metric.of(rows, support=_pair_support(event, draws=draws), reason=reason)


def _pair_support(event: Flags, *, draws: Draws) -> Support:
    """Return the support of a share of pairs: only patients with the event begin one."""
    every = draws.support()
    of_events = draws.support({EVENTS: event})
    both = Support.of({EVENTS: of_events.patients, None: every.patients})
    return replace(of_events, trials=both.trials)


def survival_metrics(
    time: Values,
    event: Flags,
    *,
    risk: Values,
    censoring: CensoringCurve,
    survival: Curves,
    times: Times,
    draws: Draws,
) -> TargetMetrics:
    """Return the metrics over all bags, and Brier score and AUROC at each time.

    At time t, the AUROC is that of bags with the event until then against bags without it so far,
    with weights 1 / Ĝ(t_i-) of the cases (Uno et al., JASA 2007; Hung and Chiang, Canadian Journal
    of Statistics 2010). The Brier score is the mean of S(t)² 1[t_i ≤ t, event] / Ĝ(t_i-) +
    (1 - S(t))² 1[t_i > t] / Ĝ(t); lower is better (Graf et al., Statistics in Medicine 1999). It is
    integrated over the times by trapezoids, and divided by their length.

    Args:
        time, event, risk: as for `concordance`.
        censoring: Ĝ, fitted on the training bags.
        survival: the predicted survival at `times`.
        times: rising times at which to judge.
        draws: resamples of the bags.

    Raises:
        InputError: a time or a probability cannot be used.
    """
    n = len(time)
    g = censoring.before(time)
    overall = {
        "uno_c": concordance(time, event, risk=risk, censoring=censoring, draws=draws),
        "harrell_c": concordance(time, event, risk=risk, draws=draws),
    }
    require((np.diff(times) > 0).all(), "the times of predicted survival must rise")
    require(
        ((survival >= 0) & (survival <= 1)).all(),
        "predicted survival must lie in [0, 1]; some is outside, or nan",
    )
    usable = censoring.at(times) > 0
    notes = []
    if not g.all():
        notes.append(
            f"{(g == 0).sum()} of {n} bags have times beyond {censoring.limit:g}, the end of the "
            "training follow-up: they count as later than others, never as events"
        )
    if not usable.all():
        dropped = ", ".join(f"{t:g}" for t in times[~usable])
        notes.append(f"not judged at times {dropped}: no training bag tells their censoring")
    times = times[usable]
    survival = survival[:, usable]
    by_part = dict[str, dict[str, Metric]]()
    briers = list[Rows]()
    for t, g_t, s in zip(times, censoring.at(times), survival.T, strict=True):
        # Ĝ(t_i-) is at least Ĝ(t) for an event until t, so it is positive there.
        case, control = event & (time <= t), time > t
        weight = np.divide(1.0, g, out=np.zeros(n), where=case)
        missing = "bag without an event until" if case.any() else "event until"
        reason = f"no {missing} time {t:g} among {n} bags: AUROC is undefined"
        loss = weight * s**2 + control * (1 - s) ** 2 / g_t
        briers.append(draws.ratio(loss, np.ones(n)))
        area = draws.auroc(weight, risk, control=control)
        sides = draws.support({EVENTS: case, NO_EVENTS: control})
        by_part[f"{t:g}"] = {
            "auroc": Metric.of(area, support=sides, reason=reason),
            "brier": Metric.of(briers[-1], support=draws.support(), scale=MEAN_SHARE),
        }
    overall["mean_auroc"] = Metric.undefined("no times: the mean AUROC is undefined")
    if by_part:
        aurocs = [metrics["auroc"] for metrics in by_part.values()]
        until = f"no event until time {times[-1]:g} among {n} bags: the mean is undefined"
        curve = kaplan_meier(time, event, times, draws=draws)
        overall["mean_auroc"] = _mean_auroc(
            aurocs, curve, support=_pair_support(event, draws=draws), reason=until
        )
    few = f"{len(times)} times: an integral needs at least two"
    overall["integrated_brier"] = Metric.undefined(few)
    if len(times) > 1:
        integral = np.trapezoid(np.stack(briers), times, axis=0) / (times[-1] - times[0])
        overall["integrated_brier"] = Metric.of(integral, support=draws.support(), scale=MEAN_SHARE)
    return TargetMetrics(overall=overall, by_part=by_part, notes=tuple(notes))


def _mean_auroc(
    aurocs: Sequence[Metric],
    curve: Float[np.ndarray, "rows times"],
    *,
    support: Support,
    reason: str,
) -> Metric:
    """Return the mean over the times, weighted by the share of events between neighbouring times.

    The shares are falls of the Kaplan-Meier curve of these bags, taken anew in each row.
    """
    mass = -np.diff(curve, axis=1, prepend=1.0)
    undefined = np.full(len(curve), np.nan)
    for metric, of_time in zip(aurocs, mass[0], strict=True):
        if metric.rows is None and of_time > 0:
            return metric
    # A time before the first event has no AUROC and no mass.
    rows = np.stack([undefined if m.rows is None else m.rows for m in aurocs], axis=1)
    above, total = np.where(mass > 0, rows * mass, 0.0).sum(1), mass.sum(1)
    mean = np.divide(above, total, out=undefined, where=total > 0)
    return Metric.of(mean, support=support, scale=SHARE, reason=reason)


def survival_between(
    survival: Curves, *, times: Times, wanted: Float[np.ndarray, " w"]
) -> Float[np.ndarray, "items w"]:
    """Return survival at other times: 1 at 0, and log S linear between the predicted times.

    That is a constant hazard in each interval. The result never rises.

    Args:
        survival: predicted survival of each item at `times`.
        times: rising times, above 0.
        wanted: times from 0 to the last of `times`.

    Raises:
        InputError: a time lies outside the range, in which nothing is known.
    """
    require(
        wanted.min() >= 0 and wanted.max() <= times[-1],
        f"the times are {wanted.min():g} to {wanted.max():g}, but survival is known from 0 to "
        f"{times[-1]:g}, the last training event",
    )
    grid = np.append(0.0, times)
    whole = np.hstack([np.ones((len(survival), 1)), survival])
    whole = np.minimum.accumulate(np.clip(whole, 0.0, 1.0), axis=1)
    logs = np.log(np.maximum(whole, SMALLEST))
    rows = [np.interp(wanted, grid, row) for row in logs]
    return np.exp(np.array(rows, dtype=np.float64).reshape(len(survival), len(wanted)))


def _check_times(time: Values) -> None:
    """Refuse times that are not above 0, and no times at all."""
    require(len(time) > 0, "there are no bags")
    unusable = time[~(np.isfinite(time) & (time > 0))]
    if len(unusable):
        raise InputError(f"a time is {unusable[0]:g}, but expected more than 0, in one unit")
