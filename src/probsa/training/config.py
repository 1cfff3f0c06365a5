"""The configuration of a training run, as dataclasses: every key of a run file, with its limits.

A run has the sections `data` and `training`, a model with its arguments, and two seeds.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ..core import (
    MAX_BAG_GB,
    GraphOptions,
    Limits,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
    check_options,
    check_value,
)
from ..datasets import CovariateOptions
from ..errors import InputError, UnknownName
from ..tasks import TargetOptions
from ..variational import KLWeight, LikelihoodOptions, RateSchedule

Select = Literal["auroc", "nll", "ema-nll", "last"]
"""Rules that choose the weights of a run; see `selection`."""
Tracker = Literal["mlflow", "wandb"]
"""Programs that follow runs; see `trackers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The bags of a run, their labels, their parts, and how their graphs are built.

    Raises:
        InputError: a value is not one of the choices, or lies outside its limits.
    """

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
    """Names of the classes in the order of their indices. Needed if the labels are names."""
    validation: Annotated[float, Limits(at_least=0.01, at_most=0.9)] = 0.2
    """Fraction of the training bags used for validation if the table does not assign any."""
    instance_labels: Path | None = None
    """Folder with one <bag>.npy per bag, one whole number per instance (-1 means unknown). These
    labels replace the instance labels in the feature files."""
    unlabelled: Literal["refuse", "leave_out"] = "refuse"
    """What to do with bags in the folder of features that the table of labels does not contain."""
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
    cache_gb: NonNegativeFloat = 4.0
    """Gigabytes of memory in which bags are cached between epochs."""
    max_bag_gb: PositiveFloat = MAX_BAG_GB
    """Gigabytes that the features of one bag may take in memory. Files that state more are
    refused before they are read."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How a model is trained; the defaults are those of the ProbSA paper.

    Raises:
        InputError: a value is not one of the choices, or lies outside its limits.
    """

    epochs: PositiveInt = 100
    """Number of passes over the training bags."""
    batch_size: PositiveInt = 32
    """Number of bags per step."""
    max_instances: PositiveInt | None = None
    """Maximum number of instances per step. A batch that would exceed it is closed early."""
    optimizer: Literal["adam", "adamw", "radam", "sgd"] = "adam"
    """Optimizer, with PyTorch's defaults. 'sgd' has momentum 0.9; 'adamw' and 'radam' decouple the
    weight decay."""
    learning_rate: NonNegativeFloat = 1e-4
    """Learning rate after the warm-up."""
    scalar_rate: PositiveFloat | None = None
    """Factor on the learning rate of single numbers: thresholds, biases and noise of a target, and
    the scale and sharpness of a soft maximum. By default 1 for classes and 10 for other targets."""
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
    """After `balanced` or balanced sampling, move predicted probabilities back to the shares of the
    classes in training."""
    prevalence: tuple[UnitInterval, ...] | None = None
    """Shares of the classes where the model will be used, which predictions are moved to."""
    threshold: str = "f1"
    """How the validation bags choose the threshold of two classes: `f1`, `youden`,
    `sensitivity=0.95`, or `cost=10:1` (a missed positive costs ten false ones)."""
    clip_norm: PositiveFloat | None = None
    """Maximum norm of the gradient. Larger gradients are scaled down to it."""
    patience: PositiveInt | None = None
    """Stop after this many epochs without a better one by `select`."""
    select: Select = "auroc"
    """Which weights are kept as the best: those of the epoch with the highest validation AUROC (the
    paper's rule; other tasks than classes have their own main metric), the lowest validation NLL
    ('nll') or of the 'last' epoch; or an exponential average over steps, at the lowest NLL
    ('ema-nll')."""
    ema_decay: Annotated[float, Limits(at_least=0, below=1)] = 0.99
    """Decay per step of the exponential average of 'ema-nll'. Other rules ignore it."""
    members: PositiveInt = 1
    """Train an ensemble of this many models, with the seeds seed, seed + 1, … and the same bags.
    Its prediction is the mean of their probabilities."""
    temperature_scaling: bool = False
    """After training, fit one temperature on the validation bags that makes predicted probabilities
    more or less extreme, so that they are better calibrated. It changes neither the order of bags
    of two classes nor the maps."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of matrix products. With 'bf16', attention, loss and weights stay in float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on. 'auto' is cuda if there is one, else mps, else cpu."""
    workers: NonNegativeInt = 0
    """Number of processes that read and pack bags ahead. With 0, the training process reads."""
    threads: PositiveInt | None = None
    """Number of CPU threads of the training process. By default, PyTorch chooses."""
    tensorboard: bool = True
    """Write TensorBoard events as well, if TensorBoard is installed."""
    tracker: Tracker | None = None
    """Send the values of each epoch to MLflow ('mlflow') or Weights & Biases ('wandb') as well.
    Their own environment variables say where, such as MLFLOW_TRACKING_URI or WANDB_MODE."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
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

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def order_seed(self) -> int:
        """The seed that determines which bags are in the batch of each step."""
        return self.seed if self.data_seed is None else self.data_seed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the layout of a run file, with nested options written flat."""
        return plain(
            {
                "data": flat_values(self.data),
                "model": {"name": self.model, **self.model_arguments},
                "training": flat_values(self.training),
                "seed": self.seed,
                "data_seed": self.data_seed,
            }
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        """Return the configuration from the output of `to_dict`.

        Raises:
            InputError: a key is missing or unknown, or its value has another type.
        """
        for section, content in values.items():
            if section in ("data", "model", "training") and not isinstance(content, dict):
                raise InputError(f"{section} is {content!r:.60}; expected keys and values")
        missing = [k for k in ("data", "model") if k not in values]
        missing += [] if missing or "name" in values["model"] else ["model.name"]
        if missing:
            raise InputError(f"{missing[0]} is missing")
        for key, annotation in (("seed", int), ("data_seed", int | None)):
            check_value(key, values.get(key, 0), annotation)
        model = without_retired("model", values["model"])
        check_value("model.name", model["name"], str)
        data = without_retired("data", values["data"])
        for key in ("features", "labels", "split", "instance_labels", "covariates"):
            if data.get(key) is not None:
                check_value(f"data.{key}", data[key], Path)
                data[key] = Path(data[key])
        if data.get("classes") is not None:
            check_value("data.classes", data["classes"], tuple[str | int, ...])
            data["classes"] = tuple(str(c) for c in data["classes"])
        for key in ("numeric", "categorical"):
            if key in data:
                check_value(f"data.{key}", data[key], tuple[str, ...])
                data[key] = tuple(data[key])
        return cls(
            data=from_flat_values(DataConfig, data),
            model=model.pop("name"),
            model_arguments={k: _tuples(v) for k, v in model.items()},
            training=from_flat_values(
                TrainingConfig, without_retired("training", values.get("training", {}))
            ),
            seed=values.get("seed", 0),
            data_seed=values.get("data_seed"),
        )


RETIRED: dict[str, Any] = {
    "data.ordinal": "cumulative",
    "data.ties": "efron",
    "data.alpha": 0.0,
    "likelihood.ties": "efron",
    "likelihood.alpha": 0.0,
    "training.lookahead": None,
    "training.lookahead_alpha": 0.5,
    "model.variant": "paper",
    "model.legacy_crop": False,
    "model.canvas": None,
    "model.augment": False,
    "model.loss": "ce",
    "model.focal": [0.25, 2.0],
    "model.branch": "mlp",
    "model.bag_loss": "ce",
    "model.bag_layer": False,
    "model.layout": "map",
    "model.score_heads": "mean",
    "model.score_duplicates": "drop",
    "model.class_mixing": True,
    "model.aggregation": "max",
    "model.top_k": 10,
    "model.init": "default",
    "model.attention_dropout": None,
}
"""Keys of options that no longer exist, with the only value that can still be read."""


def without_retired(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored values without retired keys that have the value of today's behaviour."""
    return {
        k: without_retired(k, v) if isinstance(v, dict) else v
        for k, v in values.items()
        if f"{section}.{k}" not in RETIRED or plain(v) != RETIRED[f"{section}.{k}"]
    }


SECTIONS: dict[str, type[Any]] = {"data": DataConfig, "training": TrainingConfig}
"""The sections of a run file that do not depend on the model."""


def flat_name(nested: str, name: str) -> str:
    """Return the name under which a section lists an option of a nested dataclass.

    >>> flat_name("graph", "kind"), flat_name("graph", "neighbours")
    ('graph', 'neighbours')
    """
    return nested if name == "kind" else name


def flat_values(options: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, with nested dataclasses flattened (`flat_name`)."""
    values: dict[str, Any] = {}
    for f in fields(options):
        value = getattr(options, f.name)
        if is_dataclass(value) and not isinstance(value, type):
            values |= {flat_name(f.name, k): v for k, v in asdict(value).items()}
        else:
            values[f.name] = value
    return values


def from_flat_values(options: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass from the output of `flat_values`.

    Raises:
        InputError: a key is missing, or its value has another type.
        UnknownName: a key is unknown.
    """
    values = dict(values)
    for f in fields(options):
        if isinstance(f.type, type) and is_dataclass(f.type):
            names = {g.name: flat_name(f.name, g.name) for g in fields(f.type)}
            given = {k: values.pop(flat) for k, flat in names.items() if flat in values}
            values[f.name] = from_flat_values(f.type, given)
    known = {f.name: f for f in fields(options)}
    for key, value in values.items():
        if key not in known:
            raise UnknownName("key of a run", str(key), known)
        check_value(key, value, known[key].type)
        if isinstance(value, list):  # YAML has no tuples
            values[key] = tuple(value)
    for f in known.values():
        if f.default is MISSING and f.default_factory is MISSING and f.name not in values:
            raise InputError(f"{f.name} is missing")
    return options(**values)


def plain(value: Any) -> Any:
    """Convert a value to plain YAML types: tuples become lists, and paths become text."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
