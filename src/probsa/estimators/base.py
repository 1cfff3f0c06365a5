"""What the estimators share: options, bags, fitting in memory, explanations, and saved folders."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core import Bag, GraphChoice, GraphOptions, as_graph_options
from ..datasets import IN_MEMORY, LabelTable
from ..errors import BagError, InputError
from ..evaluation import Prediction, Predictor
from ..training import RunConfig, read_run
from .fitting import fit_bags
from .inputs import as_bags, with_own_names
from .instance_scores import InstanceScores
from .pretrained import load_estimator, save_estimator
from .targets import EncodedTargets

E = TypeVar("E", bound="MILEstimator")


class MILEstimator(BaseEstimator):
    """A model of bags in the manner of scikit-learn; subclasses state what y is and what to return.

    The arguments are those of `MILClassifier`.
    """

    predictor_: Predictor

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
        standardize: bool | None = None,
        validation: float | int = 0.2,
        graph: GraphChoice = None,
        training: Mapping[str, Any] | None = None,
        likelihood: Mapping[str, Any] | None = None,
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
        self.standardize = standardize
        self.validation = validation
        self.graph = graph
        self.training = training
        self.likelihood = likelihood
        self.random_state = random_state
        self.device = device
        self.threads = threads

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def explain(self, X: Any, *, coords: Any = None) -> list[InstanceScores]:
        """Return the scores of the instances of each bag: mean, variance, probability, weight."""
        predictions = self._predictions(X, coords)
        return [InstanceScores(name=p.name, prediction=p) for p in predictions]

    def save_pretrained(self, folder: Path | str, *, data: str = "") -> Path:
        """Write a fitted estimator into a folder, as `Predictor.save_pretrained` does.

        Args:
            folder: new folder, or one that holds a model that was written before.
            data: a sentence on the bags for the model card.

        Raises:
            NotFittedError: the estimator is not fitted.
            InputError: the labels are neither texts, numbers nor booleans.
        """
        check_is_fitted(self)
        return save_estimator(self, Path(folder), data=data)

    @classmethod
    def from_pretrained(
        cls: type[E], source: Path | str, *, revision: str | None = None, device: str = "cpu"
    ) -> E:
        """Load a fitted estimator from a folder, or from a repository `owner/name` of the hub.

        Args:
            source: a folder that `save_pretrained` wrote, or the name of a repository.
            revision: commit of the repository.
            device: auto, cpu, cuda or mps.

        Raises:
            InputError: the folder holds no model, one of another estimator, or its config.json is
                damaged.
            CheckpointError: the weights are damaged or do not fit.
            MissingExtra: a repository is named and huggingface_hub is not installed.
        """
        return load_estimator(cls, source, revision=revision, device=device)

    def _encoded(self, y: Any, *, bags: int) -> EncodedTargets:
        """Return the targets as training reads them.

        Raises:
            InputError: they cannot be used.
        """
        raise NotImplementedError

    def _fit(self, X: Any, y: Any, *, coords: Any, groups: Any) -> EncodedTargets:
        """Train on labelled bags, and return their targets."""
        config = self._config()
        bags = with_own_names(self._bags(X, coords, graph=config.data.graph))
        encoded = self._encoded(y, bags=len(bags))
        if groups is not None and len(groups) != len(bags):
            raise InputError(f"there are {len(bags)} bags but {len(groups)} groups")
        _check_widths(bags, width=bags[0].x.shape[1], expecting="the first bag has")
        table = LabelTable(
            bags=tuple(bag.name for bag in bags),
            groups=None if groups is None else tuple(map(str, groups)),
            **encoded.of_table(),
        )
        if not table.of_task.unordered_classes:
            targets = replace(config.data.targets, task=encoded.task)
            config = replace(config, data=replace(config.data, targets=targets))
        fitted = fit_bags(config, bags, table, validation=self.validation)
        self.n_features_in_ = int(bags[0].x.shape[1])
        self.predictor_ = fitted.predictor
        self.split_ = fitted.split
        self.n_bags_ = {part: len(getattr(fitted.split, part)) for part in ("train", "val")}
        self.history_ = fitted.history
        self.n_iter_ = len(fitted.history)
        return encoded

    def _bags(self, X: Any, coords: Any, *, graph: GraphOptions) -> list[Bag]:
        return as_bags(X, coords, graph=graph)

    def _predictions(self, X: Any, coords: Any) -> Iterator[Prediction]:
        check_is_fitted(self)
        predictor = self.predictor_
        assert predictor.config is not None
        bags = self._bags(X, coords, graph=predictor.config.data.graph)
        _check_widths(
            bags,
            width=self.n_features_in_,
            expecting=f"{type(self).__name__} is expecting",
        )
        return predictor.predict(bags)

    def _values(self, X: Any, coords: Any) -> np.ndarray:
        """Return the predicted columns of the bags, (bags, outputs) in float64."""
        return np.stack([p.probability.astype(np.float64) for p in self._predictions(X, coords)])

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
            "data.standardize": self.standardize,
            "training.threads": self.threads,
            **{"data.graph" if k == "kind" else f"data.{k}": v for k, v in graph.items()},
            **self._more_keys(),
        }
        values = {k: v for k, v in given.items() if v is not None}
        values |= {f"training.{k}": v for k, v in (self.training or {}).items()}
        values |= {f"model.{k}": v for k, v in (self.model_arguments or {}).items()}
        values |= {f"data.{k}": v for k, v in (self.likelihood or {}).items()}
        values |= {"data.features": str(IN_MEMORY), "data.labels": str(IN_MEMORY)}
        values |= {"training.device": self.device, "training.tensorboard": False}
        if not isinstance(self.validation, int | float) or not 0 <= self.validation <= 0.5:
            raise InputError(f"validation is {self.validation!r}; expected a share from 0 to 0.5")
        values["seed"] = self.random_state
        if not isinstance(self.random_state, int | np.integer):
            values["seed"] = check_random_state(self.random_state).randint(2**31)
        return read_run(None, {k: _plain(v) for k, v in values.items()})

    def _more_keys(self) -> dict[str, Any]:
        """Return further keys of the run file; None for those that are not given."""
        return {}


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


def _check_widths(bags: Sequence[Bag], *, width: int, expecting: str) -> None:
    for bag in bags:
        if bag.x.shape[1] != width:
            raise BagError(
                f"X has {bag.x.shape[1]} features, but {expecting} {width} features as input "
                f"(bag {bag.name!r}): all bags must come from one encoder"
            )
