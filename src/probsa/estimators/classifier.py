"""`MILClassifier`: train and apply the package's models in the manner of scikit-learn."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ..core import Bag, GraphChoice, GraphOptions, as_graph_options
from ..datasets import IN_MEMORY, LabelTable
from ..errors import BagError, InputError
from ..evaluation import Prediction, Predictor
from ..training import RunConfig, read_run
from .fitting import fit_bags
from .inputs import as_bags, with_own_names
from .instance_scores import InstanceScores

SMALLEST = 1e-12
"""Probabilities closer to 0 or 1 are moved here, so that log-odds are finite."""


class MILClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of bags: slides or scans with one label each.

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
        standardize: whether features are scaled to mean 0 and standard deviation 1.
        validation: share of the bags in `fit` that validates, between 0.01 and 0.5, or 0 for none.
        graph: how the graphs of arrays with coordinates are built; see `probsa.Bag.from_arrays`.
        training: further options of training by name, as in run files.
        random_state: seed of the weights, noise, order and validation bags. With the same integer
            a fit on the same machine is equal bit for bit; None draws a seed.
        device: auto, cpu, cuda or mps.
        threads: number of CPU threads; None for PyTorch's choice.

    Attributes:
        classes_: labels in sorted order.
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
        standardize: bool | None = None,
        validation: float | int = 0.2,
        graph: GraphChoice = None,
        training: Mapping[str, Any] | None = None,
        random_state: int | np.integer | np.random.RandomState | None = None,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self.model = model
        self.model_arguments = model_arguments
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.kl_weight = kl_weight
        self.select = select
        self.balanced = balanced
        self.standardize = standardize
        self.validation = validation
        self.graph = graph
        self.training = training
        self.random_state = random_state
        self.device = device
        self.threads = threads

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        coords: Any = None,
        groups: Any = None,
    ) -> "MILClassifier":
        """Train on labelled bags, some of which validate.

        Args:
            X: the bags.
            y: one label per bag, of two or more classes; labels that `Bag`s hold are not used.
            coords: coordinates of each bag, for arrays without. scikit-learn passes them on only
                as metadata: `set_fit_request(coords=True)`.
            groups: the patient of each bag. Training and validation never share one.

        Raises:
            InputError: there are no bags, the numbers of bags and labels differ, or y has one
                class. This and the following are ValueErrors.
            BagError: a bag is empty, not finite, or of another width.
            GraphError: the model needs a graph, and a bag has no coordinates.
            UnknownName: a model or an option does not exist; suggests the nearest.
        """
        config = self._config()
        bags = with_own_names(self._bags(X, coords, graph=config.data.graph))
        classes, labels = _encoded(y, bags=len(bags))
        if groups is not None and len(groups) != len(bags):
            raise InputError(f"there are {len(bags)} bags but {len(groups)} groups")
        _check_widths(bags, width=bags[0].x.shape[1], expecting="the first bag has")
        table = LabelTable(
            bags=tuple(bag.name for bag in bags),
            labels=tuple(int(k) for k in labels),
            groups=None if groups is None else tuple(map(str, groups)),
            classes=tuple(map(str, classes)),
        )
        fitted = fit_bags(config, bags, table, validation=self.validation)
        self.classes_ = classes
        self.n_features_in_ = int(bags[0].x.shape[1])
        self.predictor_ = fitted.predictor
        self.split_ = fitted.split
        self.n_bags_ = {part: len(getattr(fitted.split, part)) for part in ("train", "val")}
        self.history_ = fitted.history
        self.n_iter_ = len(fitted.history)
        return self

    def predict_proba(self, X: Any, *, coords: Any = None) -> Float[np.ndarray, "bags classes"]:
        """Return the probability of each class, in the order of `classes_`; rows sum to 1.

        Raises:
            NotFittedError: the classifier is not fitted.
            BagError, InputError, GraphError: as in `fit`.
        """
        rows = [p.probability.astype(np.float64) for p in self._predictions(X, coords)]
        p = np.stack(rows)
        p = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
        return p / p.sum(1, keepdims=True)

    def predict(self, X: Any, *, coords: Any = None) -> Shaped[np.ndarray, " bags"]:
        """Return the label of the most probable class of each bag."""
        p = self.predict_proba(X, coords=coords)
        return self.classes_[p.argmax(1)]

    def decision_function(
        self, X: Any, *, coords: Any = None
    ) -> Float[np.ndarray, "bags *classes"]:
        """Return the log-odds of the second of two classes (bags,), else log p (bags, classes)."""
        p = np.clip(self.predict_proba(X, coords=coords), SMALLEST, 1 - SMALLEST)
        return np.log(p[:, 1] / p[:, 0]) if p.shape[1] == 2 else np.log(p)

    def explain(self, X: Any, *, coords: Any = None) -> list[InstanceScores]:
        """Return the scores of the instances of each bag: mean, variance, probability, weight."""
        predictions = self._predictions(X, coords)
        return [InstanceScores(name=p.name, prediction=p) for p in predictions]

    def save_pretrained(self, folder: Path | str, *, data: str = "") -> Path:
        """Write a fitted classifier into a folder, as `Predictor.save_pretrained` does.

        Args:
            folder: new folder, or one that holds a model that was written before.
            data: a sentence on the bags for the model card.

        Raises:
            NotFittedError: the classifier is not fitted.
            InputError: the labels are neither texts, numbers nor booleans.
        """
        from .pretrained import save_classifier

        check_is_fitted(self)
        return save_classifier(self, Path(folder), data=data)

    @classmethod
    def from_pretrained(
        cls, source: Path | str, *, revision: str | None = None, device: str = "cpu"
    ) -> "MILClassifier":
        """Load a fitted classifier from a folder, or from a repository `owner/name` of the hub.

        Args:
            source: a folder that `save_pretrained` wrote, or the name of a repository.
            revision: commit of the repository.
            device: auto, cpu, cuda or mps.

        Raises:
            InputError: the folder holds no model, or its config.json is damaged.
            CheckpointError: the weights are damaged or do not fit.
            MissingExtra: a repository is named and huggingface_hub is not installed.
        """
        from .pretrained import load_classifier

        return load_classifier(cls, source, revision=revision, device=device)

    def _bags(self, X: Any, coords: Any, *, graph: GraphOptions) -> list[Bag]:
        return as_bags(X, coords, graph=graph)

    def _predictions(self, X: Any, coords: Any) -> Iterator[Prediction]:
        check_is_fitted(self)
        predictor: Predictor = self.predictor_
        assert predictor.config is not None
        bags = self._bags(X, coords, graph=predictor.config.data.graph)
        _check_widths(
            bags,
            width=self.n_features_in_,
            expecting=f"{type(self).__name__} is expecting",
        )
        return predictor.predict(bags)

    def _config(self) -> RunConfig:
        """Return the run that the arguments describe, with every value checked."""
        graph = {k: getattr(as_graph_options(self.graph), k) for k in _graph_names(self.graph)}
        given = {
            "model.name": self.model,
            "training.epochs": self.epochs,
            "training.batch_size": self.batch_size,
            "training.learning_rate": self.learning_rate,
            "training.kl_weight": self.kl_weight,
            "training.select": self.select,
            "training.balanced": self.balanced,
            "data.standardize": self.standardize,
            "training.threads": self.threads,
            **{"data.graph" if k == "kind" else f"data.{k}": v for k, v in graph.items()},
        }
        values = {k: v for k, v in given.items() if v is not None}
        values |= {f"training.{k}": v for k, v in (self.training or {}).items()}
        values |= {f"model.{k}": v for k, v in (self.model_arguments or {}).items()}
        values |= {"data.features": str(IN_MEMORY), "data.labels": str(IN_MEMORY)}
        values |= {"training.device": self.device, "training.tensorboard": False}
        if not isinstance(self.validation, int | float) or not 0 <= self.validation <= 0.5:
            raise InputError(f"validation is {self.validation!r}; expected a share from 0 to 0.5")
        values["seed"] = self.random_state
        if not isinstance(self.random_state, int | np.integer):
            values["seed"] = check_random_state(self.random_state).randint(2**31)
        return read_run(None, {k: _plain(v) for k, v in values.items()})


def _graph_names(choice: GraphChoice) -> list[str]:
    """Return the options that are set, so that the others have the recipe's values."""
    if choice is None:
        return []
    if isinstance(choice, str):
        return ["kind"]
    return list(choice if isinstance(choice, Mapping) else GraphOptions.__dataclass_fields__)


def _plain(value: Any) -> Any:
    """Return Python numbers in place of NumPy's, which a search may draw."""
    return value.item() if isinstance(value, np.generic) else value


def _encoded(y: Any, *, bags: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes, and the index of each label."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != bags:
        raise InputError(
            f"y has the shape {labels.shape}; expected one label for each of {bags} bags"
        )
    check_classification_targets(labels)
    try:
        classes, indices = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(f"the labels cannot be sorted ({error}): give one type") from error
    if len(classes) < 2:
        raise InputError(f"y has one class, {classes[0]!r}: a classifier needs two or more")
    return classes, indices


def _check_widths(bags: Sequence[Bag], *, width: int, expecting: str) -> None:
    for bag in bags:
        if bag.x.shape[1] != width:
            raise BagError(
                f"X has {bag.x.shape[1]} features, but {expecting} {width} features as input "
                f"(bag {bag.name!r}): all bags must come from one encoder"
            )
