"""`MILRegressor`: predict a number for each bag, with its distribution."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin

from ..core import DataFrame
from .base import MILEstimator
from .targets import EncodedTargets, encoded_numbers


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


class MILRegressor(RegressorMixin, MILEstimator):
    """A regression of bags: slides or scans with a number each.

    X and the arguments are those of `MILClassifier`, without `balanced` and `ordinal`. `score` is
    R². Options of the likelihood are `noise` and `target_transform`, as in `likelihood={"noise":
    "heteroscedastic"}`.

    Attributes:
        n_features_in_: number of features per instance.
        n_iter_: number of epochs trained.
        history_: one record per epoch, as in metrics.csv.
        split_: the names of the bags of each part; not after `from_pretrained`.
        n_bags_: number of bags of each part.
        predictor_: the trained `Predictor`.
    """

    def fit(self, X: Any, y: Any, *, coords: Any = None, groups: Any = None) -> "MILRegressor":
        """Train on bags with numbers, some of which validate.

        Args:
            X: the bags.
            y: one finite number per bag.
            coords: coordinates of each bag, for arrays without.
            groups: the patient of each bag. Training and validation never share one.

        Raises:
            InputError: there are no bags, the numbers of bags and targets differ, a target is not
                finite, or all are equal. This and the following are ValueErrors.
            BagError: a bag is empty, not finite, or of another width.
            GraphError: the model needs a graph, and a bag has no coordinates.
            UnknownName: a model or an option does not exist; suggests the nearest.
        """
        self._fit(X, y, coords=coords, groups=groups)
        return self

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
        of_level = {int(n[1:]) / 100: k for k, n in enumerate(outputs) if n.startswith("q")}
        return PredictedNumbers(
            mean=values[:, outputs.index("mean")],
            sd=values[:, outputs.index("sd")],
            spread=spread[:, outputs.index("mean")],
            levels=tuple(of_level),
            quantiles=values[:, list(of_level.values())],
        )

    def _encoded(self, y: Any, *, bags: int) -> EncodedTargets:
        return encoded_numbers(y, bags=bags)
