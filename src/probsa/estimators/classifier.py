"""`MILClassifier`: train and apply the package's models in the manner of scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin

from ..core import GraphChoice, TaskName
from ..tasks import TASKS
from .base import MILEstimator
from .targets import EncodedTargets, encoded_classes

SMALLEST = 1e-12
"""Probabilities closer to 0 or 1 are moved here, so that log-odds are finite."""


class MILClassifier(ClassifierMixin, MILEstimator):
    """A classifier of bags: slides or scans with one label each, or with several findings.

    X is a list of bags: `probsa.Bag`, arrays or tensors (instances, features), or tuples
    (features, coords); or one array (bags, instances, features). Only `Bag`s and tuples keep their
    coordinates when scikit-learn divides X. A model with a graph, as the default one, needs
    coordinates; `model="abmil"` does without.

    Options that are None have the values that `probsa train` gives them.

    Args:
        model: registered name of the model; None for the default recipe of `probsa train`.
        model_arguments: arguments of the model by name, as in run files.
        epochs: number of passes over the training bags.
        batch_size: number of bags per step.
        learning_rate: learning rate after the warm-up.
        kl_weight: weight λ of the KL term, a number or a schedule.
        select: rule by which validation bags choose the weights that are kept.
        balanced: whether every class contributes equally to the loss.
        ordinal: whether the labels are grades. True for whole numbers without gaps; otherwise all
            grades in rising order, as in `["benign", "low", "high"]`.
        standardize: whether features are scaled to mean 0 and standard deviation 1.
        validation: share of the bags in `fit` that validates, between 0.01 and 0.5, or 0 for none.
        graph: how the graphs of arrays with coordinates are built; see `probsa.Bag.from_arrays`.
        training: further options of training by name, as in run files.
        likelihood: options of the likelihood by name, as in run files, such as `ordinal`.
        random_state: seed of the weights, noise, order and validation bags. With the same integer
            a fit on the same machine is equal bit for bit; None draws a seed.
        device: auto, cpu, cuda or mps.
        threads: number of CPU threads; None for PyTorch's choice.

    Attributes:
        classes_: labels in sorted order; grades in rising order; findings by number, or by column
            if y is a data frame.
        task_: `binary`, `multiclass`, `ordinal` or `multilabel`.
        n_features_in_: number of features per instance.
        n_iter_: number of epochs trained.
        history_: one record per epoch, as in metrics.csv.
        split_: the names of the bags of each part; not after `from_pretrained`.
        n_bags_: number of bags of each part.
        predictor_: the trained `Predictor`.
    """

    def __init__(  # noqa: PLR0913 - scikit-learn searches over arguments of the constructor
        self,
        model: str | None = "abmil-probsa-diag",
        *,
        model_arguments: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | int | None = None,
        kl_weight: float | int | str | None = None,
        select: str | None = None,
        balanced: bool | None = None,
        ordinal: bool | Sequence[Any] = False,
        standardize: bool | None = None,
        validation: float | int = 0.2,
        graph: GraphChoice = None,
        training: Mapping[str, Any] | None = None,
        likelihood: Mapping[str, Any] | None = None,
        random_state: int | np.integer | np.random.RandomState | None = None,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        super().__init__(
            model, model_arguments=model_arguments, epochs=epochs, batch_size=batch_size,
            learning_rate=learning_rate, kl_weight=kl_weight, select=select,
            standardize=standardize, validation=validation, graph=graph, training=training,
            likelihood=likelihood, random_state=random_state, device=device, threads=threads,
        )  # fmt: skip
        self.balanced = balanced
        self.ordinal = ordinal

    def fit(self, X: Any, y: Any, *, coords: Any = None, groups: Any = None) -> "MILClassifier":
        """Train on labelled bags, some of which validate.

        Args:
            X: the bags.
            y: one label per bag, of two or more classes; or findings (bags, findings), each 0, 1 or
                nan where it is not known. Labels that `Bag`s hold are not used.
            coords: coordinates of each bag, for arrays without. scikit-learn passes them on only
                as metadata: `set_fit_request(coords=True)`.
            groups: the patient of each bag. Training and validation never share one.

        Raises:
            InputError: there are no bags, the numbers of bags and labels differ, y has one
                class, or the order of grades is not known. This and the following are ValueErrors.
            BagError: a bag is empty, not finite, or of another width.
            GraphError: the model needs a graph, and a bag has no coordinates.
            UnknownName: a model or an option does not exist; suggests the nearest.
        """
        self.classes_ = self._fit(X, y, coords=coords, groups=groups).classes
        return self

    def predict_proba(self, X: Any, *, coords: Any = None) -> Float[np.ndarray, "bags classes"]:
        """Return the probability of each class, in the order of `classes_`; rows sum to 1.

        Of findings, each has a probability of its own.

        Raises:
            NotFittedError: the classifier is not fitted.
            BagError, InputError, GraphError: as in `fit`.
        """
        p = self._values(X, coords)
        if TASKS[self.task_].has_findings:
            return p
        p = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
        return p / p.sum(1, keepdims=True)

    def predict(self, X: Any, *, coords: Any = None) -> Shaped[np.ndarray, "bags *findings"]:
        """Return the label of the most probable class of each bag.

        Of grades, it is the median: the first grade with P(Y ≤ grade) ≥ ½. Of findings, 1 for each
        with a probability of at least ½ (bags, findings).
        """
        p = self.predict_proba(X, coords=coords)
        task = TASKS[self.task_]
        if task.has_findings:
            return (p >= 0.5).astype(np.int64)
        return self.classes_[p.argmax(1) if task.unordered_classes else task.call(p)[0]]

    def decision_function(
        self, X: Any, *, coords: Any = None
    ) -> Float[np.ndarray, "bags *classes"]:
        """Return the log-odds of the second of two classes (bags,), else log p (bags, classes).

        Of findings, the log-odds of each (bags, findings).
        """
        p = np.clip(self.predict_proba(X, coords=coords), SMALLEST, 1 - SMALLEST)
        if TASKS[self.task_].has_findings:
            return np.log(p / (1 - p))
        return np.log(p[:, 1] / p[:, 0]) if p.shape[1] == 2 else np.log(p)

    @property
    def task_(self) -> TaskName:
        """`binary`, `multiclass`, `ordinal` or `multilabel`."""
        return self.predictor_.task

    def _encoded(self, y: Any, *, bags: int) -> EncodedTargets:
        return encoded_classes(y, bags=bags, ordinal=self.ordinal)

    def _more_keys(self) -> dict[str, Any]:
        return {"training.balanced": self.balanced}
