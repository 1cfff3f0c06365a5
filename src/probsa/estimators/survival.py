"""`MILSurvival`: predict the time to an event for each bag, from censored times."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from ..statistics import concordance, survival_between
from .base import MILEstimator
from .targets import EncodedTargets, encoded_times, times_and_events


class MILSurvival(MILEstimator):
    """A model of survival: slides or scans, each with a time and whether the event was seen.

    X and the arguments are those of `MILClassifier`, without `balanced` and `ordinal`. `score` is
    Harrell's c. Options of the likelihood are `survival` (`hazards` or `cox`), `bins`, `ties`,
    `alpha` and `horizon`, as in `likelihood={"bins": 6}`.

    Attributes:
        times_: the times at which survival is predicted by the model itself.
        n_features_in_: number of features per instance.
        n_iter_: number of epochs trained.
        history_: one record per epoch, as in metrics.csv.
        split_: the names of the bags of each part; not after `from_pretrained`.
        n_bags_: number of bags of each part.
        predictor_: the trained `Predictor`.
    """

    def fit(self, X: Any, y: Any, *, coords: Any = None, groups: Any = None) -> "MILSurvival":
        """Train on bags with times and events, some of which validate.

        Args:
            X: the bags.
            y: an array (bags, 2) of times above 0 and events (1 seen, 0 censored); a data frame
                with the columns `time` and `event`; or a structured array with a field of numbers
                and one of booleans, as scikit-survival has it.
            coords: coordinates of each bag, for arrays without.
            groups: the patient of each bag. Training and validation never share one.

        Raises:
            InputError: there are no bags, y has another form, or there are too few events. This
                and the following are ValueErrors.
            BagError: a bag is empty, not finite, or of another width.
            GraphError: the model needs a graph, and a bag has no coordinates.
            UnknownName: a model or an option does not exist; suggests the nearest.
        """
        self._fit(X, y, coords=coords, groups=groups)
        return self

    @property
    def times_(self) -> Float[np.ndarray, " times"]:
        """The times at which survival is predicted by the model itself, rising."""
        names = self.predictor_.model.likelihood.outputs(())
        return np.array([float(name.removeprefix("s_")) for name in names[1:]])

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

        Between the times of the model, hazards are constant, so that log S is linear; the survival
        of a Cox model is a step function.

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
        cox = self.predictor_.model.likelihood.couples_bags
        return survival_between(survival, times=known, wanted=wanted, steps=cox)

    def score(self, X: Any, y: Any, *, coords: Any = None) -> float:
        """Return Harrell's c: the share of comparable pairs in which the earlier event has more
        risk.

        Raises:
            InputError: y has another form, or no pair of bags can be compared.
        """
        risk = self.predict(X, coords=coords)
        time, event = times_and_events(y, bags=len(risk))
        found = concordance(time, event, risk=risk)
        if found.value is None:
            raise InputError(found.reason)
        return float(found.value)

    def _encoded(self, y: Any, *, bags: int) -> EncodedTargets:
        return encoded_times(y, bags=bags)
