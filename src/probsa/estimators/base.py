"""What the estimators share: options, training in memory, explanations, and saved folders."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core import (
    Bag,
    DataFrame,
    GraphChoice,
    GraphOptions,
    PositiveInt,
    TaskName,
    TextTable,
    as_record,
    read_json,
)
from ..datasets import IN_MEMORY, MOST_VALIDATION, BagList, LabelTable, Split, make_split
from ..errors import BagError, GraphError, InputError, TableError, UnknownName
from ..evaluation import (
    CONFIG,
    CardFacts,
    Prediction,
    from_pretrained,
    instance_probability,
    load,
    local_folder,
    scale_run,
)
from ..models import look_up
from ..training import RunConfig, default_recipe, prepare_bags, read_run, thread_count, train
from .inputs import as_bags, with_own_names

E = TypeVar("E", bound="MILEstimator")
AGAIN = "copy the folder again, or save the model again"
TRAINING_ARGUMENTS = (
    "epochs",
    "batch_size",
    "learning_rate",
    "kl_weight",
    "select",
    "balanced",
    "threads",
)
"""Arguments that are keys of the section `training`, as far as an estimator has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceScores:
    """The scores of a bag's n instances; (n, classes) where a method has one map per class."""

    name: str
    """Name of the bag; of an array, a digest of its values."""
    coords: Shaped[np.ndarray, "n axes"] | None
    """The coordinates that were given."""
    mean: Float[np.ndarray, "n *classes"]
    """E[f_n], the mean of the attention or of the evidence; `score_kind` says which."""
    variance: Float[np.ndarray, "n *classes"]
    """Var[f_n]; 0 for a deterministic model."""
    probability: Float[np.ndarray, " n"]
    """The probability that the instance is positive; see `probsa.evaluation.instance_probability`.

    nan for models that state none, such as those whose scores are attention. With several classes,
    it is that of the bag's class.
    """
    weight: Float[np.ndarray, "n *classes"]
    """The mean weight in the bag's vector, which sums to 1."""
    score_kind: str
    """`logit`, `weight`, `probability`, `relevance` or `evidence`."""
    prediction: Prediction
    """The whole prediction, with everything that the package knows of the bag."""

    def to_frame(self) -> DataFrame:
        """Return a data frame with one row per instance; see `Prediction.to_frame`."""
        return self.prediction.to_frame()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEstimator:
    """What config.json states of an estimator."""

    parameters: dict[str, Any]
    n_features_in: PositiveInt
    kind: str = "MILClassifier"
    """Name of its class."""
    labels: tuple[str | bool | int | float, ...] = ()
    """The labels of a classifier."""
    history: tuple[dict[str, float | None], ...] = ()
    bags: dict[str, int] = field(default_factory=dict)
    """Number of bags of each part; their names stay where they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    estimator: StoredEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class MILEstimator(BaseEstimator):
    """A model of bags in the manner of scikit-learn; subclasses state what y is and what to return.

    The arguments and attributes are those of `MILClassifier`.
    """

    model: str | None = field(default=None, kw_only=False)
    model_arguments: Mapping[str, Any] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | int | None = None
    kl_weight: float | int | str | None = None
    select: str | None = None
    standardize: bool | None = None
    validation: float | int = 0.2
    graph: GraphChoice = None
    training: Mapping[str, Any] | None = None
    likelihood: Mapping[str, Any] | None = None
    random_state: int | np.integer | np.random.RandomState | None = None
    device: str = "cpu"
    threads: int | None = None

    _task: ClassVar[TaskName | None] = None
    """The task, if it does not depend on the labels."""

    def __new__(cls: type[E], *args: Any, **given: Any) -> E:
        """Suggest the nearest argument for an unknown one.

        Raises:
            TypeError: an argument does not exist.
        """
        known = cls._get_param_names()
        for name in given:
            if name not in known:
                raise TypeError(str(UnknownName(f"argument of {cls.__name__}", name, known)))
        return object.__new__(cls)

    def set_params(self: E, **params: Any) -> E:
        """Set arguments; `model__…`, `training__…`, `likelihood__…`, `graph__…` set options.

        So a search may try `{"model__attention_dim": [32, 64], "learning_rate": [1e-4, 1e-3]}`.

        Raises:
            UnknownName: an argument does not exist; suggests the nearest. Names of options are
                checked in `fit`.
        """
        argument_of = {
            "model": "model_arguments",
            "training": "training",
            "likelihood": "likelihood",
            "graph": "graph",
        }
        argument_names = self._get_param_names()
        for name, value in params.items():
            prefix, _, option = name.partition("__")
            if option and prefix in argument_of:
                argument = argument_of[prefix]
                options = _options(getattr(self, argument))
                setattr(self, argument, {**options, option: value})
            elif name in argument_names:
                setattr(self, name, value)
            else:
                raise UnknownName(f"argument of {type(self).__name__}", name, argument_names)
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the arguments that were given, and which model that of the default recipe is."""
        text = super().__repr__(N_CHAR_MAX)
        if self.model is not None:
            return text
        start, _, rest = text.partition("(")
        model = default_recipe()["model.name"]
        return f"{start}(model=None [{model}]{'' if rest == ')' else ', '}{rest}"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def fit(self: E, X: Any, y: Any, *, coords: Any = None, groups: Any = None) -> E:
        """Train on labelled bags, some of which validate.

        Args:
            X: the bags.
            y: the target of each bag, as the class describes it. Labels that `Bag`s hold are not
                used.
            coords: coordinates of each bag, for arrays without. scikit-learn passes them on only
                as metadata: `set_fit_request(coords=True)`.
            groups: the patient of each bag. Training and validation never share one.

        Raises:
            InputError: there are no bags, the numbers of bags and targets differ, or the targets
                cannot be used. This and the following are ValueErrors.
            BagError: a bag is empty, not finite, or of another width.
            GraphError: the model needs a graph, and a bag has no coordinates.
            UnknownName: a model or an option does not exist; suggests the nearest.
        """
        config = self._config()
        bags = with_own_names(as_bags(X, coords, graph=config.data.graph))
        if y is None:
            raise InputError("requires y to be passed, but the target y is None")
        targets = self._targets(y, bags=len(bags))
        if groups is not None and len(groups) != len(bags):
            raise InputError(f"there are {len(bags)} bags but {len(groups)} groups")
        width = int(bags[0].x.shape[1])
        model = look_up(config.model)
        check = partial(model.model.check_bag, name=config.model)
        graph = config.model if "edges" in model.model.needs else ""
        _check(bags, width=width, expecting="the first bag has", check=check, graph=graph)
        classes = targets.pop("classes", np.array([]))
        table = LabelTable(
            bags=tuple(bag.name for bag in bags),
            groups=None if groups is None else tuple(map(str, groups)),
            classes=tuple(map(str, classes)),
            **targets,
        )
        if not table.of_task.unordered_classes:
            options = replace(config.data.targets, task=table.task)
            config = replace(config, data=replace(config.data, targets=options))
        split = _split(table, validation=self.validation, seed=config.order_seed)
        self._train(config, BagList(bags), table, split)
        if len(classes):
            self.classes_ = classes
        self.n_features_in_ = width
        return self

    def explain(self, X: Any, *, coords: Any = None) -> list[InstanceScores]:
        """Return the scores of the instances of each bag: mean, variance, probability, weight."""
        explained = []
        for p in self._predictions(X, coords):
            probability = instance_probability(p)
            if probability is None:
                probability = np.full(len(p.attention_mean), np.nan)
            scores = InstanceScores(
                name=p.name,
                coords=p.coords,
                mean=p.attention_mean,
                variance=p.attention_variance,
                probability=probability,
                weight=p.weight_mean,
                score_kind=p.score_kind,
                prediction=p,
            )
            explained.append(scores)
        return explained

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
        labels = getattr(self, "classes_", np.array([])).tolist()
        if not all(isinstance(label, str | bool | int | float) for label in labels):
            raise InputError(
                f"the labels are of type {type(labels[0]).__name__}; expected texts, numbers or "
                "booleans: fit with such labels to save the classifier"
            )
        stored = {
            "kind": type(self).__name__,
            "parameters": {k: _as_json(k, v) for k, v in self.get_params(deep=False).items()},
            "labels": labels,
            "n_features_in": self.n_features_in_,
            "history": self.history_,
            "bags": self.n_bags_,
        }
        remark = "No figures on held-out bags are stored with this model."
        facts = CardFacts(data=data, parts=self.n_bags_, remark=remark)
        more = {"estimator": stored}
        return self.predictor_.save_pretrained(Path(folder), facts=facts, more=more)

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
        folder = local_folder(source, revision=revision)
        where = folder / CONFIG
        values = read_json(where, advice=AGAIN)
        if isinstance(values, dict) and "estimator" not in values:
            raise InputError(
                f"{where} holds a model without an estimator: load it with probsa.from_pretrained"
            )
        stored = as_record(_Stored, values, where=str(where), advice=AGAIN).estimator
        if stored.kind not in {c.__name__ for c in cls.__mro__}:
            raise InputError(
                f"{where} holds a {stored.kind}, not a {cls.__name__}: load it with "
                f"{stored.kind}.from_pretrained"
            )
        unknown = sorted(set(stored.parameters) - set(cls().get_params(deep=False)))
        if unknown:
            raise InputError(f"{where} is damaged: {cls.__name__} has no {unknown[0]!r}. {AGAIN}")
        estimator = cls(**{**stored.parameters, "device": device})
        estimator.predictor_ = from_pretrained(folder, device=device)
        if len(stored.labels) != len(estimator.predictor_.classes):
            raise InputError(
                f"{where} is damaged: its numbers of labels and classes differ. {AGAIN}"
            )
        if stored.labels:
            estimator.classes_ = np.asarray(stored.labels)
        estimator.n_features_in_ = stored.n_features_in
        estimator.history_ = list(stored.history)
        estimator.n_iter_ = len(stored.history)
        estimator.n_bags_ = stored.bags
        return estimator

    def _targets(self, y: Any, *, bags: int) -> dict[str, Any]:
        """Return the fields of the `LabelTable` of y; `classes` is an array of labels.

        Raises:
            InputError: they cannot be used.
        """
        raise NotImplementedError

    def _train(self, config: RunConfig, bags: BagList, table: LabelTable, split: Split) -> None:
        """Train as `probsa train` does, in a temporary folder."""
        prepared = prepare_bags(config, bags, table=table, split=split)
        temporary = tempfile.TemporaryDirectory(prefix="probsa-")
        with temporary as folder, thread_count(config.training.threads):
            run = train(config, Path(folder) / config.model, prepared=prepared)
            self.predictor_ = load(run.path, device=config.training.device)
            if config.training.temperature_scaling:
                predicted = self.predictor_.predict(bags.bag(name) for name in split.val)
                y = np.array([prepared.targets[p.name] for p in predicted], dtype=np.int64)
                scale_run(run, self.predictor_, predicted, y=y)
            rows = TextTable.read(run.metrics_file).rows
        self.split_ = split
        self.n_bags_ = {"train": len(split.train), "val": len(split.val)}
        self.history_ = []
        for row in rows:
            self.history_.append({k: float(cell) if cell else None for k, cell in row.items()})
        self.n_iter_ = len(rows)

    def _predictions(self, X: Any, coords: Any) -> Iterator[Prediction]:
        check_is_fitted(self)
        assert self.predictor_.config is not None
        bags = as_bags(X, coords, graph=self.predictor_.config.data.graph)
        expecting = f"{type(self).__name__} is expecting"
        check = self.predictor_.check
        _check(bags, width=self.n_features_in_, expecting=expecting, check=check)
        return self.predictor_.stream(bags)

    def _values(self, X: Any, coords: Any) -> np.ndarray:
        """Return the predicted columns of the bags, (bags, outputs) in float64."""
        return np.stack([p.probability.astype(np.float64) for p in self._predictions(X, coords)])

    def _config(self) -> RunConfig:
        """Return the run that the arguments describe, with every value checked."""
        arguments: dict[str, Any] = {
            "model.name": self.model,
            "data.standardize": self.standardize,
            "data.task": self._task,
        }
        for name in TRAINING_ARGUMENTS:
            arguments[f"training.{name}"] = getattr(self, name, None)
        for name, value in _options(self.graph).items():
            key = "data.graph" if name == "kind" else f"data.{name}"
            arguments[key] = value
        values = {key: value for key, value in arguments.items() if value is not None}
        options = {
            "training": self.training,
            "model": self.model_arguments,
            "data": self.likelihood,
        }
        for section, of_section in options.items():
            for name, value in (of_section or {}).items():
                values[f"{section}.{name}"] = value
        values["data.features"] = str(IN_MEMORY)
        values["data.labels"] = str(IN_MEMORY)
        values["training.device"] = self.device
        values["training.tensorboard"] = False
        if not isinstance(self.validation, Real) or not 0 <= self.validation <= MOST_VALIDATION:
            raise InputError(
                f"validation is {self.validation!r}; expected a share from 0 to {MOST_VALIDATION:g}"
            )
        values["seed"] = self.random_state
        if not isinstance(self.random_state, int | np.integer):
            values["seed"] = check_random_state(self.random_state).randint(2**31)
        for key, value in values.items():
            if isinstance(value, np.generic):  # a search may draw numbers of NumPy
                values[key] = value.item()
        return read_run(None, values)


def _options(options: Any) -> dict[str, Any]:
    """Return options by name; a text is the kind of a graph."""
    if isinstance(options, str):
        return {"kind": options}
    if isinstance(options, GraphOptions):
        return asdict(options)
    return dict(options or {})


def _check(
    bags: Sequence[Bag],
    *,
    width: int,
    expecting: str,
    check: Callable[[Bag], None],
    graph: str = "",
) -> None:
    """Check bags; errors name them by their place. `graph` names a model that needs a graph."""
    for k, bag in enumerate(bags):
        if bag.x.shape[1] != width:
            raise BagError(
                f"X has {bag.x.shape[1]} features, but {expecting} {width} features as input "
                f"(bag {k} of X): all bags must come from one encoder"
            )
        if graph and bag.coords is None and len(bag) > 1 and not bag.edges.numel():
            raise GraphError(
                f"{graph} needs neighbours, but bag {k} of X has no coordinates: give pairs "
                "(features, coords), or a model without a graph, such as model='abmil'"
            )
        check(replace(bag, name=f"{k} of X"))  # arrays are named by a digest


def _split(table: LabelTable, *, validation: float | int, seed: int) -> Split:
    if validation == 0:
        return Split(train=table.bags, val=(), test=(), origin="validation is 0: all bags train")
    try:
        return make_split(table, validation=validation, seed=seed)
    except TableError as error:
        raise InputError(
            f"{len(table.bags)} bags in {len(set(table.groups or table.bags))} groups cannot be "
            f"divided so that {validation:g} of them validate and every "
            f"{'class trains' if table.classes else 'part is complete'}: give more bags, or "
            "validation=0"
        ) from error


def _as_json(name: str, value: Any) -> Any:
    """Return an argument as JSON holds it; a generator of numbers has no part in prediction."""

    def as_plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else dict(value)

    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, GraphOptions):
        value = asdict(value)
    try:
        return json.loads(json.dumps(value, default=as_plain))
    except (TypeError, ValueError) as error:
        raise InputError(f"the argument {name} is {value!r:.80}, which JSON cannot hold") from error
