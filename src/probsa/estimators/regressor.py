"""`MILRegressor`: predict a number for each bag, with its distribution."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.utils import column_or_1d

from ..core import DataFrame
from ..errors import InputError
from ..tasks import TASKS
from .base import MILEstimator
from .inputs import as_numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedNumbers:
    """The predicted distribution of each bag's number, in the unit of y."""

    mean: Float[np.ndarray, " bags"]
    sd: Float[np.ndarray, " bags"]
    """The whole standard deviation: that of the noise, and that of the attention."""
    spread: Float[np.ndarray, " bags"]
    """The standard deviation of the mean over posterior samples: that of the attention alone."""
    levels: tuple[float, ...]
    """The levels of `quantiles`, as 0.05."""
    quantiles: Float[np.ndarray, "bags levels"]

    def to_frame(self) -> DataFrame:
        """Return a data frame with one row per bag, with the columns of predictions.csv."""
        import pandas as pd

        columns: dict[str, Any] = {"mean": self.mean, "sd": self.sd, "spread_mean": self.spread}
        for level, values in zip(self.levels, self.quantiles.T, strict=True):
            columns[f"q{round(100 * level):02d}"] = values
        return pd.DataFrame(columns)


@dataclass(kw_only=True, eq=False, repr=False)
class MILRegressor(RegressorMixin, MILEstimator):
    """A regression of bags: slides or scans with a number each.

    y has one finite number per bag. X, the arguments and the attributes are those of
    `MILClassifier`, without `balanced` and `ordinal`. `score` is R². Options of the likelihood are
    `noise` and `target_transform`, as in `likelihood={"noise": "heteroscedastic"}`.
    """

    _task = "regression"

    def predict(self, X: Any, *, coords: Any = None) -> Float[np.ndarray, " bags"]:
        """Return the mean of each bag's predicted distribution.

        Raises:
            NotFittedError: the regressor is not fitted.
            BagError, InputError, GraphError: as in `fit`.
        """
        return self.predict_distribution(X, coords=coords).mean

    def predict_distribution(self, X: Any, *, coords: Any = None) -> PredictedNumbers:
        """Return mean, standard deviation and quantiles of each bag's number."""
        rows = [(p.probability, p.std) for p in self._predictions(X, coords)]
        values, spread = np.array(rows, dtype=np.float64).swapaxes(0, 1)
        outputs = self.predictor_.model.likelihood.outputs(())
        return PredictedNumbers(
            mean=values[:, outputs.index("mean")],
            sd=values[:, outputs.index("sd")],
            spread=spread[:, outputs.index("mean")],
            levels=outputs.quantiles,
            quantiles=values[:, outputs.of_quantiles],
        )

    def _targets(self, y: Any, *, bags: int) -> dict[str, Any]:
        values = as_numbers(y, what="a number")
        if values.shape not in ((bags,), (bags, 1)):
            raise InputError(
                f"y has the shape {values.shape}; expected one number for each of {bags} bags"
            )
        rows = tuple((value,) for value in column_or_1d(values, warn=True).tolist())
        strata = TASKS["regression"].labels.bag_strata(rows)
        return {"task": "regression", "labels": strata, "values": rows}
