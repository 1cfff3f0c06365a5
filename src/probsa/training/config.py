"""The configuration of a training run: its sections as dataclasses, and the table of its keys.

The fields state everything about a key: type, limits, default and help text. Flags, run files,
`run.yaml` and the JSON schema are read and written from them (`section_keys`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from docstring_parser import parse_from_object

from ..core import (
    MAX_BAG_GB,
    GraphOptions,
    Limits,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
    as_paths,
    check_options,
    convert_value,
    is_fault,
    read_text,
    unusual,
)
from ..datasets import MOST_CACHE_GB, MOST_VALIDATION, CovariateOptions
from ..errors import InputError, UnknownName
from ..tasks import TargetOptions
from ..variational import KLWeight, LikelihoodOptions, RateSchedule

MOST = 100_000
"""Largest number of values in a run file, where an alias counts each time it is used."""
LARGEST = 2**20
"""Largest size of a run file in bytes."""


class _StrictLoader(yaml.SafeLoader):
    """Load YAML, but reject keys that are not text or are repeated (YAML would drop a value)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the signature of PyYAML
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            problem = None
            if not isinstance(key, str):
                problem = f"the key {key!r} is not text: write it in quotes if it is intended"
            elif key in keys:
                problem = f"the key {key!r} is given twice"
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML follows, takes 1e-4 for text
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Return the value that a text denotes in a run file; the text itself if it is not YAML."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError):
        return text


def load_yaml(
    path: Path, *, what: str = "run file", least: str = "data and model"
) -> dict[str, Any]:
    """Read a YAML file of keys and values, such as a run file.

    Args:
        path: the file.
        what: what messages call the file.
        least: the keys that such a file needs at least, for the message about an empty one.

    Raises:
        InputError: the file is missing, is not YAML, or is not a mapping; names the file.
    """
    if not path.is_file():
        raise InputError(f"cannot read the {what} {path}: there is no such file")
    text = read_text(path, advice=f"give a {what} in UTF-8", largest=LARGEST)
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except (
        yaml.YAMLError,
        # what PyYAML's own constructors raise for values that do not fit their tag
        ValueError,  # 2024-13-45, which has the form of a date
        TypeError,
        LookupError,  # !!int ""
        AttributeError,  # !!timestamp x
        RecursionError,
    ) as e:
        if is_fault(e):  # raised by our code, not by PyYAML's
            raise
        # errors of PyYAML's parser state the problem and its place
        mark = getattr(e, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(e, "problem", None)
        if not problem:
            problem = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)
        raise InputError(f"the {what} {path}{line} cannot be read as YAML: {problem}") from e
    if values is None:
        raise InputError(f"the {what} {path} is empty: it needs at least {least}")
    if not isinstance(values, dict):
        raise InputError(f"the {what} {path} contains {type(values).__name__}, not keys and values")
    problem = unusual(values, most=MOST)
    if problem is not None:
        raise InputError(f"the {what} {path} cannot be used: {problem}")
    return values


T = TypeVar("T")

Select = Literal["auroc", "nll", "ema-nll", "last"]
"""Rules that choose the weights of a run; see `validation`."""
CHOSEN: Mapping[Select, str] = {
    "auroc": "those of {}, the best on the validation bags",
    "nll": "those of {}, with the lowest validation NLL",
    "ema-nll": "the running average at {}, with the lowest validation NLL",
    "last": "those of {}, the last",
}
"""Which weights each rule keeps, in words with the epochs."""
Assumption = Literal["none", "one_region", "negatives"]
ASSUMED: Mapping[Assumption, Mapping[str, Any]] = {
    "none": {},
    "one_region": {"guidance": "normal"},
    "negatives": {"negatives": 1.0},
}
"""The arguments of a model that make a member's assumption."""
DEFAULT_RULE = "f1"
"""The rule that chooses the threshold of two classes, unless a run names another one."""
Tracker = Literal["mlflow", "wandb"]
"""Programs that follow runs; see `trackers`."""


class _Checked:
    """Options that are checked when they are made.

    Raises:
        InputError: a value is not a choice, or is outside its limits; names the option.
    """

    def __post_init__(self) -> None:
        as_paths(self)
        check_options(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig(_Checked):
    """The bags of a run, their labels, their parts, and how their graphs are built."""

    features: Path
    """Folder with one feature file per slide or scan (TRIDENT, CLAM, torchmil or probsa layout)."""
    labels: Path
    """CSV table with the columns `bag,label[,group][,fold|split]`."""
    test_fold: NonNegativeInt | None = None
    """Test on this fold, validate on the next one and train on the others. Needs a table with a
    column `fold`."""
    split: Path | None = None
    """A splits_k.csv file of CLAM, used instead of the columns `fold` or `split` of the table."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of their indices: `normal,tumour`. Needed if the labels
    are more than two names; two names are taken in alphabetical order. The first of several is the
    background, which is no finding: `normal,benign,tumour`."""
    validation: Annotated[float, Limits(at_least=0.01, at_most=MOST_VALIDATION)] = 0.2
    """Fraction of the training bags used for validation if the table does not assign any."""
    instance_labels: Path | None = None
    """Folder with one <bag>.npy per bag, one whole number per instance (-1 means unknown). These
    labels replace the instance labels in the feature files."""
    unlabelled: Literal["refuse", "leave_out"] = "leave_out"
    """What to do with bags without a label: bags in the folder of features that the table of labels
    does not contain, and lines whose label is missing. Those that are left out are named."""
    feature_set: str | None = None
    """Which folder of features to use if a data set has several."""
    standardize: bool = False
    """Scale every feature to mean 0 and standard deviation 1 over the training bags. The run folder
    stores the scaling."""
    graph: GraphOptions = field(default_factory=GraphOptions)
    """How the graph of each bag is built."""
    targets: TargetOptions = field(default_factory=TargetOptions)
    """What is learned: the task, and the columns of the table of labels that hold it."""
    likelihood: LikelihoodOptions = field(default_factory=LikelihoodOptions)
    """The likelihood of targets that are not classes."""
    covariates: CovariateOptions = field(default_factory=CovariateOptions)
    """Clinical covariates that are added to what the image says."""
    cache_gb: Annotated[float, Limits(at_least=0, at_most=MOST_CACHE_GB)] = 4.0
    """Gigabytes of memory in which bags are cached between epochs."""
    max_bag_gb: PositiveFloat = MAX_BAG_GB
    """Gigabytes that the features of one bag may take in memory. Files that state more are
    refused before they are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig(_Checked):
    """How a model is trained; the defaults are those of the ProbSA paper."""

    epochs: PositiveInt = 100
    """Number of passes over the training bags."""
    batch_size: PositiveInt = 32
    """Number of bags per step."""
    max_instances: PositiveInt | None = None
    """Maximum number of instances per step. A batch that would exceed it is closed early."""
    window: PositiveInt | None = None
    """Train on windows: each epoch uses at most this many instances of a bag, a connected block of
    patches or a run of slices around a random place. Validation and prediction use whole bags."""
    optimizer: Literal["adam", "adamw", "radam", "sgd"] = "adam"
    """Optimizer, with PyTorch's defaults. 'sgd' has momentum 0.9; 'adamw' and 'radam' decouple the
    weight decay."""
    learning_rate: NonNegativeFloat = 1e-4
    """Learning rate after the warm-up."""
    scalar_rate: PositiveFloat | None = None
    """Factor by which the learning rate of single parameters is multiplied: a target's thresholds,
    biases and noise, and a soft maximum's scale and sharpness. Default: 1 for classes, else 10."""
    warmup_epochs: NonNegativeInt = 10
    """Number of epochs over which the learning rate rises linearly from a tenth of its value."""
    schedule: RateSchedule = "constant"
    """Schedule of the learning rate. 'plateau' follows the validation NLL."""
    schedule_factor: UnitInterval = 0.2
    """Factor by which 'step' and 'plateau' multiply the learning rate. 'cosine' ends at this
    fraction of the learning rate."""
    schedule_epochs: PositiveInt = 10
    """Number of epochs between reductions by 'step'. 'plateau' reduces the learning rate after this
    many epochs in which the validation NLL did not fall by at least 1e-4."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of the optimizer."""
    decay_vectors: bool = True
    """Apply weight decay to biases and norm scales too, not only to matrices."""
    covariate_weight_decay: NonNegativeFloat = 0.01
    """Weight decay of the coefficients of clinical covariates."""
    kl_weight: Annotated[KLWeight, Limits(at_least=0)] = "cyclical"
    """Weight λ of the KL term: a constant, or a schedule. Models without a KL term ignore it."""
    balanced: bool = False
    """Weight the loss so that every class contributes equally."""
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    """'balanced' draws every class equally often, with replacement; an epoch keeps its length.
    'shuffled' takes every bag once."""
    prior_correction: bool = True
    """Adjust the probabilities of a model trained with `balanced` or balanced sampling to the class
    shares of the training bags."""
    prevalence: tuple[UnitInterval, ...] | None = None
    """Expected shares of the classes where the model will be used. Probabilities are adjusted to
    them."""
    threshold: str = DEFAULT_RULE
    """How the validation bags choose the threshold of two classes: `f1`, `youden`,
    `sensitivity=0.95`, or `cost=10:1` (a missed positive costs ten false ones)."""
    clip_norm: PositiveFloat | None = None
    """Maximum norm of the gradient. Larger gradients are scaled down to it."""
    patience: PositiveInt | None = None
    """Stop after this many epochs without a better one by `select`."""
    select: Select = "auroc"
    """Which weights are kept as the best. 'auroc' (the paper's rule): those of the epoch with the
    highest validation AUROC, or other main metric of the task. 'nll': of the epoch with the lowest
    validation NLL. 'ema-nll': a running average of the weights, where its NLL is lowest. 'last':
    of the last epoch."""
    ema_decay: Annotated[float, Limits(at_least=0, below=1)] = 0.99
    """Decay per step of the exponential average of 'ema-nll'. Other rules ignore it."""
    members: PositiveInt = 1
    """Train an ensemble of this many models, with the seeds seed, seed + 1, … and the same bags.
    Its prediction is the mean of their probabilities."""
    assume: tuple[Assumption, ...] = ()
    """What each member assumes about the place of evidence, in the order of the members: `none`;
    `one_region`, that the evidence of a scan lies in neighbouring slices (ignored for bags with
    several axes); `negatives`, that no instance of a negative bag is positive (of several classes:
    that a finding is in its own bags alone)."""
    temperature_scaling: bool = False
    """After training, fit one temperature on the validation bags that makes predicted probabilities
    more or less extreme, so that they are better calibrated. It changes neither the order of bags
    of two classes nor the maps."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of matrix products. With 'bf16', attention, loss and weights stay in float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on. 'auto' is cuda if there is one, else mps, else cpu."""
    workers: NonNegativeInt = 0
    """Number of processes that read and pack bags ahead. With 0, a thread of the training process
    reads the next batch during a step."""
    threads: PositiveInt | None = None
    """Number of CPU threads of the training process. By default, PyTorch chooses."""
    tensorboard: bool = True
    """Write TensorBoard events as well, if TensorBoard is installed."""
    tracker: Tracker | None = None
    """Send the values of each epoch to MLflow ('mlflow') or Weights & Biases ('wandb') as well.
    Their own environment variables say where, such as MLFLOW_TRACKING_URI or WANDB_MODE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(_Checked):
    """The complete configuration of a training run, stored as `run.yaml` in the run folder."""

    data: DataConfig
    model: str
    """Registered name of the model."""
    model_arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's constructor, except `in_dim`, `n_classes` and `class_weights`."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: NonNegativeInt = 0
    """Seed of the initial weights, the noise, and (unless data_seed is given) the order and split
    of the bags."""
    data_seed: NonNegativeInt | None = None
    """Seed of the order of the bags and of a random split, so that runs with different seeds get
    the same batches. By default, the same as seed."""

    @property
    def order_seed(self) -> int:
        """The seed that determines which bags are in the batch of each step."""
        return self.seed if self.data_seed is None else self.data_seed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the layout of a run file."""
        model = {"name": self.model, **self.model_arguments}
        values: dict[str, Any] = {"data": {}, "model": model, "training": {}}
        for key in section_keys().values():
            part = values[key.section] if key.section else values
            part[key.short] = attrgetter(".".join(key.path))(self)
        return plain(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Return the configuration from the output of `to_dict`, which earlier versions may state.

        The model need not be installed, so that its arguments are not checked.

        Raises:
            InputError: a key is missing, or its value has another type.
            UnknownName: a key is unknown.
        """
        current = without_removed("", values)
        flat = tuples(flatten(current))
        share = flat.get("data.validation")
        if isinstance(share, float) and MOST_VALIDATION < share <= FORMER_VALIDATION:
            flat["data.validation"] = MOST_VALIDATION
        return cls.of_keys(flat)

    @classmethod
    def of_keys(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Return the run with these values by the full names of their keys, as `from_dict` does."""
        keys = section_keys()
        nested: dict[str, Any] = {"model_arguments": {}}
        for name, value in values.items():
            if name == "model.name":
                nested["model"] = value
            elif name.startswith("model."):
                nested["model_arguments"][name.removeprefix("model.")] = value
            elif name in keys:
                *groups, last = keys[name].path
                part = nested
                for group in groups:
                    part = part.setdefault(group, {})
                part[last] = value
            else:
                raise UnknownName("key of a run", name, keys)
        return convert_value(nested, cls, key="")


FORMER_VALIDATION = 0.9
"""Largest `data.validation` that version 0.2 stored. Shares above `MOST_VALIDATION` could not be
used, so that such a run took the validation bags from its table."""
FORMER_VALUES: Mapping[str, Any] = {
    "data.survival": "hazards",
    "model.consistency": "none",
    "model.consistency_weight": 0.1,
    "model.pooling": "sampled",
}
"""Removed keys of runs and checkpoints, each with the one value that means what is done today.

Stored settings may state this value. Any other value is refused by name."""
FORMER_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"evidence-dirac": {"negatives": 0.0}}
"""As `FORMER_VALUES`, for arguments that were removed from one model and that others still have."""


def without_removed(section: str, values: Mapping[str, Any], *, model: str = "") -> dict[str, Any]:
    """Return stored values without removed keys that have the value of today's behaviour."""
    removed_keys = dict(FORMER_VALUES)
    if section == "model":
        model_name = model or values.get("name", "")
        for argument, value in FORMER_ARGUMENTS.get(model_name, {}).items():
            removed_keys[f"model.{argument}"] = value
    current = {}
    for key, value in values.items():
        name = f"{section}.{key}"
        if name in removed_keys and plain(value) == removed_keys[name]:
            continue
        current[key] = without_removed(key, value) if isinstance(value, dict) else value
    return current


SECTIONS = ("data", "training")
"""The sections of a run file that do not depend on the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKey:
    """One key of a run file, which is a flag as well."""

    name: str
    """With its section: `training.epochs`."""
    annotation: Any
    default: Any = None
    required: bool = False
    help: str
    path: tuple[str, ...] = ()
    """Where `RunConfig` has its value, if it is not of the model: `data`, `graph`, `neighbours`."""

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def short(self) -> str:
        """The name without its section."""
        return self.name.rpartition(".")[2]

    def read(self, value: Any, *, where: str = "") -> Any:
        """Return a value of a run file or a flag, which may be text, in the type of this key.

        Args:
            value: the value as it was given.
            where: the source of the value, after the name of the key in messages: ` in run.yaml`,
                or nothing for a flag.

        Raises:
            InputError: the value does not fit; states why its most likely reading does not.
        """
        problems: list[str] = []
        for reading in self._readings(value):
            try:
                return convert_value(reading, self.annotation, key=f"{self.short}{where}")
            except InputError as e:
                problems.append(str(e))
        raise InputError(problems[0])

    def _readings(self, value: Any) -> list[Any]:
        """Return what a value may stand for, the most likely first."""
        if isinstance(value, str) and self.annotation is not str:
            parsed = parse_yaml(value)
            readings: list[Any] = [value]
            if not isinstance(parsed, str):  # "3" is more likely a number than a text
                readings.insert(0, parsed)
            if isinstance(parsed, list) or "," in value:  # a,b is a list, too
                texts = [text.strip() for text in value.strip("[] ").split(",")]
                readings.append([parse_yaml(text) for text in texts])
                readings.append(texts)
            return readings
        # the name of a class or a bag may consist of digits
        if isinstance(value, int | float) and not isinstance(value, bool):
            return [value, str(value)]
        if isinstance(value, list):
            return [value, [str(item) if type(item) is int else item for item in value]]
        return [value]


@cache
def section_keys() -> dict[str, RunKey]:
    """Return every key of a run that does not depend on the model, by its name."""
    return {key.name: key for key in _keys_of(RunConfig)}


def _keys_of(options: type[Any], *above: str) -> Iterator[RunKey]:
    """Yield the keys of a dataclass; groups of a section are flat: `data.graph`, `data.stride`."""
    help_texts = attribute_help(options)
    for f in fields(options):
        path = (*above, f.name)
        if isinstance(f.type, type) and is_dataclass(f.type):
            yield from _keys_of(f.type, *path)
        elif f.name not in ("model", "model_arguments"):
            default = f.default
            if f.default_factory is not MISSING:
                default = f.default_factory()
            required = default is MISSING
            # the kind of a group has the name of the group: `data.graph`
            short = path[-2] if f.name == "kind" else f.name
            yield RunKey(
                name=f"{path[0]}.{short}" if above else short,
                annotation=f.type,
                default=None if required else default,
                required=required,
                help=help_texts.get(f.name, ""),
                path=path,
            )


def attribute_help(options: type[Any]) -> dict[str, str]:
    """Return the attribute docstrings of a dataclass, each as one line."""
    documented = parse_from_object(options).params
    return {p.arg_name: " ".join((p.description or "").split()) for p in documented}


@cache
def full_name(key: str) -> str:
    """Return a key with its section; unknown keys are returned as they are.

    >>> full_name("epochs"), full_name("data.graph"), full_name("model")
    ('training.epochs', 'data.graph', 'model.name')
    """
    names = {"model": "model.name", **{k.short: k.name for k in section_keys().values()}}
    return names.get(key, key)


def flatten(values: Mapping[str, T], model_arguments: Collection[str] = ()) -> dict[str, T]:
    """Return values by the full names of their keys, of which some are arguments of the model.

    >>> flatten({"epochs": 5, "model": "abmil", "data": {"neighbours": 4}})
    {'training.epochs': 5, 'model.name': 'abmil', 'data.neighbours': 4}

    Raises:
        InputError: a key is given twice, with and without its section, or a section is a value.
    """
    flat: dict[str, T] = {}
    for key, value in leaves(values):
        name = full_name(key)
        if name in SECTIONS:
            raise InputError(f"{name} is {value!r:.60}; expected keys and values")
        argument = key.removeprefix("model.")
        if argument in model_arguments:
            name = f"model.{argument}"
        if name in flat:
            raise InputError(f"the key {name} is given twice: remove one of the two")
        flat[name] = value
    return flat


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, with their keys joined by dots."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plain(value: Any) -> Any:
    """Convert a value to plain YAML types: tuples become lists, and paths become text."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def tuples(value: Any) -> Any:
    """Convert the lists of plain YAML or JSON values to tuples, the reverse of `plain`."""
    if isinstance(value, dict):
        return {key: tuples(part) for key, part in value.items()}
    if isinstance(value, list):
        return tuple(tuples(part) for part in value)
    return value
