"""`MILSurvival`: predict the time to an event for each bag, from censored times."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from ..statistics import concordance, survival_between
from ..tasks import Direction, direction_of
from .base import MILEstimator
from .inputs import as_numbers

TIMES = (
    "expected for each bag a time and whether the event was seen: an array (bags, 2), or a "
    "structured array with a field of booleans for the event and one of numbers for the time"
)


@dataclass(kw_only=True, eq=False, repr=False)
class MILSurvival(MILEstimator):
    """A model of survival: slides or scans, each with a time and whether the event was seen.

    y is an array (bags, 2) of times above 0 and events (1 seen, 0 censored); a data frame with the
    columns `time` and `event`; or a structured array with a field of numbers and one of booleans,
    as scikit-survival has it. A column that is named after censoring is refused. X, the arguments
    and the attributes are those of `MILClassifier`,
    without `balanced` and `ordinal`. `score` is Harrell's c. Options of the likelihood are
    `bins` and `horizon`, as in `likelihood={"bins": 6}`.
    """

    _task = "survival"

    @property
    def times_(self) -> Float[np.ndarray, " times"]:
        """The times at which survival is predicted by the model itself, rising."""
        return np.array(self.predictor_.model.likelihood.outputs(()).times)

    def predict(self, X: Any, *, coords: Any = None) -> Float[np.ndarray, " bags"]:
        """Return the risk of each bag, higher is worse: the expected time that is lost before τ.

        τ is the last of `times_`, or the option `horizon`; the risk is τ − ∫_0^τ S(t) dt.

        Raises:
            NotFittedError: the model is not fitted.
            BagError, InputError, GraphError: as in `fit`.
        """
        return self._values(X, coords)[:, 0]

    def predict_survival_function(
        self, X: Any, times: Any = None, *, coords: Any = None
    ) -> Float[np.ndarray, "bags times"]:
        """Return the probability of each bag to be without the event at some times.

        Between the times of the model, hazards are constant, so that log S is linear.

        Args:
            X: the bags.
            times: times from 0 to the last of `times_`; None for `times_`.
            coords: coordinates of each bag, for arrays without.

        Raises:
            NotFittedError: the model is not fitted.
            InputError: a time is outside the range, in which nothing is known.
        """
        survival = self._values(X, coords)[:, 1:]
        known = self.times_
        if times is None:
            return survival
        wanted = np.atleast_1d(np.asarray(times, dtype=np.float64))
        return survival_between(survival, times=known, wanted=wanted)

    def score(self, X: Any, y: Any, *, coords: Any = None) -> float:
        """Return Harrell's c: the share of comparable pairs in which the earlier event has more
        risk.

        Raises:
            InputError: y has another form, or no pair of bags can be compared.
        """
        risk = self.predict(X, coords=coords)
        time, event = _times_and_events(y, bags=len(risk))
        found = concordance(time, event, risk=risk)
        if found.value is None:
            raise InputError(found.reason)
        return float(found.value)

    def _targets(self, y: Any, *, bags: int) -> dict[str, Any]:
        time, event = _times_and_events(y, bags=bags)
        return {
            "task": "survival",
            "labels": tuple(map(int, event)),
            "values": tuple(zip(time.tolist(), map(float, event), strict=True)),
            "target": ("time", "event"),
        }


def _times_and_events(
    y: Any, *, bags: int
) -> tuple[Float[np.ndarray, " bags"], Bool[np.ndarray, " bags"]]:
    """Return times and events from an array of pairs, a data frame or a structured array."""
    array = np.asarray(y)
    names = [str(name) for name in (array.dtype.names or getattr(y, "columns", ()))]
    time = event = None
    name = ""
    if {"time", "event"} <= set(names):
        time = np.asarray(y["time"])
        event = np.asarray(y["event"])
    elif array.dtype.names is not None:  # as of scikit-survival, in any order
        flags = [field for field in names if array.dtype[field].kind == "b"]
        if len(names) == 2 and len(flags) == 1:
            name = flags[0]
            time = array[next(field for field in names if field != name)]
            event = array[name]
    elif array.ndim == 2 and array.shape[1] == 2:
        name = names[1] if names else ""
        time = array[:, 0]
        event = array[:, 1]
    if time is None:
        stated = f"fields {', '.join(names)}" if array.dtype.names else f"shape {array.shape}"
        raise InputError(f"y has the {stated}; {TIMES}")
    if name and direction_of(name) is not Direction.EVENT:
        raise InputError(
            f"by its name, {name!r} of y does not say whether the event was seen: name it 'event', "
            "with 1 for a bag whose event was seen and 0 for a censored one"
        )
    time = as_numbers(time, what="a time")
    event = as_numbers(event, what="0 or 1 for the event")
    if len(time) != bags:
        raise InputError(f"y has {len(time)} rows; expected one for each of {bags} bags")
    if not bool((time > 0).all()):
        raise InputError(f"the time {time.min():g} is not above 0: give times in one unit")
    if not bool(((event == 0) | (event == 1)).all()):
        wrong = event[(event != 0) & (event != 1)][0]
        raise InputError(f"the event {wrong:g} is neither 0 (censored) nor 1 (seen); {TIMES}")
    return time, event > 0
