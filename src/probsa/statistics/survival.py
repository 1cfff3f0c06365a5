"""All metrics of a time to an event, with Ĝ fixed from the training bags.

`risk` is always higher for worse prognosis; nothing chooses its direction. Times at which Ĝ is 0
or unknown cannot be judged: they are left out, and a note says so.
"""

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from .bootstrap import Draws
from .censoring import CensoringCurve
from .concordance import harrell_c, uno_c
from .kaplan_meier import check_times
from .metric import Metric
from .survival_areas import mean_survival_auroc, survival_aurocs
from .survival_errors import check_survival, integrated_brier, survival_brier
from .target_metrics import TargetMetrics


def survival_metrics(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    risk: Float[np.ndarray, " bags"],
    censoring: CensoringCurve,
    survival: Float[np.ndarray, "bags t"] | None = None,
    times: Float[np.ndarray, " t"] | None = None,
    horizon: float | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all bags, and Brier score and AUROC at each time.

    Args:
        time: time of the event or of the censoring, positive.
        event: whether the event was seen.
        risk: a score that is higher for worse prognosis.
        censoring: Ĝ, fitted on the training bags.
        survival: the predicted survival at `times`; None for no Brier scores.
        times: rising times at which to judge; None for no metrics of single times.
        horizon: τ of Uno's c; None for the limit of Ĝ.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: a time, a risk or a probability cannot be used, or shapes do not fit.
    """
    check_times(time, event)
    if survival is not None and times is None:
        raise InputError("predicted survival without the times that it belongs to: give `times`")
    draws = Draws.of_data(len(time)) if draws is None else draws
    overall = {
        "uno_c": uno_c(time, event, risk=risk, censoring=censoring, horizon=horizon, draws=draws),
        "harrell_c": harrell_c(time, event, risk=risk, draws=draws),
    }
    notes = _truncation(time, censoring, horizon=horizon)
    if times is None:
        return TargetMetrics(overall=overall, by_part={}, notes=tuple(notes))
    if survival is not None:
        check_survival(time, event, survival=survival, times=times)
    usable = censoring.at(times) > 0
    if not usable.all():
        dropped = ", ".join(f"{t:g}" for t in times[~usable])
        notes.append(f"not judged at times {dropped}: no training bag tells their censoring")
    means, by_part = _over_time(
        time,
        event,
        risk=risk,
        survival=None if survival is None else survival[:, usable],
        times=times[usable],
        censoring=censoring,
        draws=draws,
    )
    return TargetMetrics(overall=overall | means, by_part=by_part, notes=tuple(notes))


def _over_time(
    time: Float[np.ndarray, " bags"],
    event: Bool[np.ndarray, " bags"],
    *,
    risk: Float[np.ndarray, " bags"],
    survival: Float[np.ndarray, "bags t"] | None,
    times: Float[np.ndarray, " t"],
    censoring: CensoringCurve,
    draws: Draws,
) -> tuple[dict[str, Metric], dict[str, dict[str, Metric]]]:
    """Return means over time, and the metrics of each time."""
    aurocs = survival_aurocs(time, event, risk=risk, times=times, censoring=censoring, draws=draws)
    by_part = {f"{t:g}": {"auroc": metric} for t, metric in zip(times, aurocs, strict=True)}
    mean = mean_survival_auroc(aurocs, time=time, event=event, times=times, draws=draws)
    means = {"mean_auroc": mean}
    if survival is not None:
        brier = survival_brier(
            time, event, survival=survival, times=times, censoring=censoring, draws=draws
        )
        for t, metric in zip(times, brier, strict=True):
            by_part[f"{t:g}"]["brier"] = metric
        means["integrated_brier"] = integrated_brier(brier, times=times)
    return means, by_part


def _truncation(
    time: Float[np.ndarray, " bags"], censoring: CensoringCurve, *, horizon: float | None
) -> list[str]:
    """Return a note on the bags whose time is at or beyond the end of Ĝ."""
    beyond = censoring.truncated(time if horizon is None else time[time < horizon])
    if beyond == 0:
        return []
    return [
        f"{beyond} of {len(time)} bags have times at or beyond {censoring.limit:g}, the end of the "
        "training follow-up: they count as later than others, never as events"
    ]
