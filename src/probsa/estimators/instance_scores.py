"""The scores of the instances of one bag, as an estimator explains them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from ..core import DataFrame
from ..evaluation import Prediction, doubt, instance_evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceScores:
    """The scores of a bag's n instances; (n, classes) where a method has one map per class."""

    name: str
    """Name of the bag; of an array, a digest of its values."""
    prediction: Prediction
    """The whole prediction, with everything that the package knows of the bag."""

    @property
    def coords(self) -> Shaped[np.ndarray, "n axes"] | None:
        """The coordinates that were given."""
        return self.prediction.coords

    @property
    def mean(self) -> Float[np.ndarray, "n *classes"]:
        """E[f_n], the mean of the attention or of the evidence; `score_kind` says which."""
        return self.prediction.attention_mean

    @property
    def variance(self) -> Float[np.ndarray, "n *classes"]:
        """Var[f_n]; 0 for a deterministic model."""
        return self.prediction.attention_variance

    @property
    def probability(self) -> Float[np.ndarray, " n"]:
        """The posterior probability that the evidence of the instance is above its threshold.

        Of attention, evidence is the log ratio to uniform attention; nan where there is none. With
        several classes, it is that of the bag's class (see `probsa.evaluation.instance_evidence`).
        """
        p = self.prediction
        wrong = doubt(p)
        return np.where(instance_evidence(p) > 0, 1 - wrong, wrong)

    @property
    def weight(self) -> Float[np.ndarray, "n *classes"]:
        """The mean weight in the bag's vector, which sums to 1."""
        return self.prediction.weight_mean

    @property
    def score_kind(self) -> str:
        """`logit`, `weight`, `probability`, `relevance` or `evidence`."""
        return self.prediction.score_kind

    def to_frame(self) -> DataFrame:
        """Return a data frame with one row per instance; see `Prediction.to_frame`."""
        return self.prediction.to_frame()
