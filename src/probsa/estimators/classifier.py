"""`MILClassifier`: train and apply the package's models in the manner of scikit-learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from ..core import TaskName
from ..errors import InputError
from ..tasks import TASKS, task_of_classes
from .base import MILEstimator

SMALLEST = 1e-12
"""Probabilities closer to 0 or 1 are moved here, so that log-odds are finite."""


@dataclass(kw_only=True, eq=False, repr=False)
class MILClassifier(ClassifierMixin, MILEstimator):
    """A classifier of bags: slides or scans with one label each, or with several findings.

    A bag is an array of features, one row per instance (patch or slice), with the instances'
    coordinates: `(features, coords)`. `PerInstance` applies a scaler to all instances:

    >>> import numpy as np
    >>> from sklearn.preprocessing import StandardScaler
    >>> from probsa import MILClassifier, PerInstance
    >>> rng = np.random.default_rng(0)
    >>> coords = np.stack(np.divmod(np.arange(12), 4), 1)  # twelve patches, four in a row
    >>> labels = ["benign", "tumour"] * 8
    >>> shifts = [3 * (label == "tumour") * (coords[:, :1] == 0) for label in labels]
    >>> bags = [(rng.normal(size=(12, 8)) + shift, coords) for shift in shifts]
    >>> bags = PerInstance(StandardScaler()).fit_transform(bags)
    >>> classifier = MILClassifier(epochs=20, random_state=0).fit(bags, labels)
    >>> classifier.predict(bags[:2]).tolist()
    ['benign', 'tumour']
    >>> classifier.explain(bags[1:2])[0].mean.shape
    (12,)

    X is a list of bags: `probsa.Bag`, arrays or tensors (instances, features), or tuples
    (features, coords); or one array (bags, instances, features). Only `Bag`s and tuples keep their
    coordinates when scikit-learn divides X. A model with a graph, as the default one, needs
    coordinates; `model="abmil"` does without.

    y has one label per bag, of two or more classes, or findings (bags, findings), each 0, 1 or nan
    where it is not known.

    Options that are None have the values that `probsa train` gives them, so that
    `MILClassifier()` trains what `probsa train` does. Searches set options of the model and of
    training by name, as in `{"model__attention_dim": [32, 64], "training__members": [1, 3]}`.

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
        likelihood: options of the likelihood by name, as in run files, such as `noise`.
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

    balanced: bool | None = None
    ordinal: bool | Sequence[Any] = False

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

        Of two classes, it is the second one from the threshold of the model on, and from ½ on if it
        has none. Of grades, it is the median: the first grade with P(Y ≤ grade) ≥ ½. Of findings, 1
        for each whose probability reaches its threshold or ½ (bags, findings).
        """
        p = self.predict_proba(X, coords=coords)
        task = TASKS[self.task_]
        stated = self.predictor_.names_and_thresholds
        if task.has_findings:
            return (p >= stated.of_findings(p.shape[1])).astype(np.int64)
        return self.classes_[task.call(p, stated.threshold)[0]]

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

    def _targets(self, y: Any, *, bags: int) -> dict[str, Any]:
        labels = np.asarray(y)
        graded = self.ordinal is not False
        if labels.ndim == 2 and labels.shape[1] > 1 and not graded:
            return _findings(labels, bags=bags, names=getattr(y, "columns", None))
        if labels.shape == (bags, 1):
            labels = column_or_1d(labels, warn=True)
        if labels.ndim != 1 or len(labels) != bags:
            raise InputError(
                f"y has the shape {labels.shape}; expected one label for each of {bags} bags"
            )
        try:
            check_classification_targets(labels)
        except ValueError as error:
            raise InputError(f"{error} For numbers, use MILRegressor.") from error
        try:
            classes, indices = np.unique(labels, return_inverse=True)
        except TypeError as error:
            raise InputError(f"the labels cannot be sorted ({error}): give one type") from error
        if len(classes) < 2:
            raise InputError(
                f"y has one class, {labels.tolist()[0]!r}: a classifier needs two or more"
            )
        if graded:
            grades = _grades(classes, order=self.ordinal)
            place = {grade: k for k, grade in enumerate(grades.tolist())}
            indices = np.array([place[label] for label in classes.tolist()])[indices]
            classes = grades
        task = "ordinal" if graded else task_of_classes(len(classes))
        return {"task": task, "labels": tuple(map(int, indices)), "classes": classes}


def _grades(found: np.ndarray, *, order: bool | Sequence[Any]) -> np.ndarray:
    """Return all grades in rising order."""
    if isinstance(order, bool):
        whole = found.dtype.kind in "iuf" and bool((found == np.round(found)).all())
        if not whole or bool((np.diff(found.astype(float)) != 1).any()):
            shown = ", ".join(map(repr, found.tolist()[:8]))
            raise InputError(
                f"the grades are {shown}, whose order or number is not certain: name all grades in "
                "rising order, as in ordinal=['benign', 'low', 'high']"
            )
        return found
    grades = np.asarray(list(order))
    unknown = [label for label in found.tolist() if label not in grades.tolist()]
    if unknown or len(set(grades.tolist())) < len(grades):
        problem = f"y has the grade {unknown[0]!r}" if unknown else "a grade is named twice"
        raise InputError(f"ordinal names the grades {grades.tolist()}, but {problem}")
    return grades


def _findings(labels: np.ndarray, *, bags: int, names: Any) -> dict[str, Any]:
    """Return a column per finding; cells are 0, 1 or nan where it is not known."""
    if len(labels) != bags:
        raise InputError(f"y has {len(labels)} rows; expected one for each of {bags} bags")
    try:
        values = labels.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"y has a column per finding, but a cell is no number: {error}") from error
    if not bool((np.isnan(values) | (values == 0) | (values == 1)).all()):
        raise InputError(
            f"y has {labels.shape[1]} columns of findings, but a cell is neither 0, 1 nor nan (not "
            "known): for one class per bag give an array (bags,)"
        )
    classes = np.arange(labels.shape[1]) if names is None else np.asarray(list(names))
    return {
        "task": "multilabel",
        "labels": (0,) * bags,
        "values": tuple(map(tuple, values.tolist())),
        "classes": classes,
        "target": tuple(map(str, classes)),
    }
