"""The run file: what a training run is, as data. Flags and YAML keys are these names.

A run is three sections and a seed; the model's section is its constructor's signature (see
`probsa models NAME`). A key may stand at the top when its name is unique: `epochs: 50` is
`training: {epochs: 50}`, and `--epochs 50` is `--training.epochs 50`.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from ..core import GraphKind, WeightKind
from ..errors import InputError
from ..variational import KLWeight, RateSchedule

LIMITS: dict[str, tuple[float, float]] = {
    "validation": (0.01, 0.9),
    "weight_scale": (1e-12, math.inf),
    "neighbours": (1, math.inf),
    "stride": (1e-12, math.inf),
    "cache_gb": (0, math.inf),
    "test_fold": (0, math.inf),
    "epochs": (1, math.inf),
    "batch_size": (1, math.inf),
    "max_instances": (1, math.inf),
    "learning_rate": (0, math.inf),
    "warmup_epochs": (0, math.inf),
    "weight_decay": (0, math.inf),
    "lookahead": (1, math.inf),
    "lookahead_alpha": (1e-12, 1),
    "schedule_factor": (0, 1),
    "schedule_epochs": (1, math.inf),
    "kl_weight": (0, math.inf),
    "clip_norm": (1e-12, math.inf),
    "patience": (1, math.inf),
    "workers": (0, math.inf),
    "threads": (1, math.inf),
    "seed": (0, math.inf),
    "data_seed": (0, math.inf),
}
"""The least and the largest value of each number in a run file; infinity itself is none."""


def check_limits(section: object) -> None:
    """Refuses a number that means nothing.

    Raises:
        InputError: names the key, its value and what is expected.
    """
    for f in fields(section):  # pyright: ignore[reportArgumentType]
        value = getattr(section, f.name)
        if f.name not in LIMITS or not isinstance(value, int | float):
            continue
        low, high = LIMITS[f.name]
        if not low <= value <= high or value == math.inf:
            least = "more than 0" if 0 < low < 1e-9 else f"at least {low:g}"
            most = "" if high == math.inf else f" and at most {high:g}"
            raise InputError(f"{f.name} is {value}; expected {least}{most}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which bags, which labels, which graph."""

    features: Path
    """Folder with one feature file per slide or scan (TRIDENT, CLAM, torchmil or probsa layout)."""
    labels: Path
    """CSV with the columns bag,label[,group][,fold|split]."""
    test_fold: int | None = None
    """Test on this fold, validate on the next, train on the rest (where the table has folds)."""
    split: Path | None = None
    """CLAM's splits_k.csv, instead of folds or a split column in the table."""
    classes: tuple[str, ...] | None = None
    """Class names in the order of their indices, where labels are names."""
    validation: float = 0.2
    """Share of the training bags to validate on, where the table says nothing."""
    instance_labels: Path | None = None
    """Folder of <bag>.npy, one whole number an instance (-1 unknown), before what files hold."""
    unlabelled: Literal["refuse", "leave_out"] = "refuse"
    """What to do about bags of the folder that the table of labels does not name."""
    feature_set: str | None = None
    """Which folder of features to take, where a data set holds several."""
    standardize: bool = False
    """Bring every feature to mean 0 and deviation 1 over the training part (kept in the run)."""
    graph: GraphKind = "auto"
    """Neighbours: chain (CT), grid (8 adjacent patches), knn or none; auto tells from the file."""
    edge_weights: WeightKind = "inverse"
    """From the distance of neighbours' features: inverse, exp, rbf; binary does not look."""
    weight_scale: float | None = None
    """Scale s of inverse weights; none: the bag's median distance, so weights lie near 1."""
    neighbours: int = 8
    """k of the knn graph."""
    stride: float | None = None
    """Distance of neighbouring patches in level-0 pixels, where files say none or a wrong one."""
    cache_gb: float = 4.0
    """Memory for bags kept between epochs."""

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How the model is trained; the defaults are the paper's."""

    epochs: int = 100
    """Passes over the training bags."""
    batch_size: int = 32
    """Bags in a step."""
    max_instances: int | None = None
    """Most instances in a step: a batch is closed early rather than exceed it."""
    optimizer: Literal["adam", "adamw", "radam", "sgd"] = "adam"
    """PyTorch's defaults; sgd has momentum 0.9, adamw and radam decoupled weight decay."""
    lookahead: int | None = None
    """k of Lookahead, around any optimiser: every k steps slow weights follow (TransMIL: 6)."""
    lookahead_alpha: float = 0.5
    """How far the slow weights go towards the fast ones then; these go back to them."""
    learning_rate: float = 1e-4
    """Of the optimiser, after the warm-up."""
    warmup_epochs: int = 10
    """Epochs over which the learning rate rises linearly from a tenth."""
    schedule: RateSchedule = "constant"
    """Of the learning rate: constant, cosine, step, or plateau (of the validation NLL)."""
    schedule_factor: float = 0.2
    """What step and plateau multiply the rate by; the share of it at which cosine ends."""
    schedule_epochs: int = 10
    """step: every so many epochs; plateau: after so many whose NLL was not lower by 1e-4."""
    weight_decay: float = 0.0
    """Of the optimiser."""
    decay_vectors: bool = True
    """Weight decay of biases and of the scales of norms too, not of matrices alone."""
    kl_weight: KLWeight = "cyclical"
    """λ of the KL: a number, linear or cyclical. Nothing for a model without a KL."""
    balanced: bool = False
    """Weigh the loss so that every class counts the same."""
    clip_norm: float | None = None
    """Largest norm of the gradient; larger ones are scaled down to it."""
    patience: int | None = None
    """Stop after this many epochs without a better validation AUROC."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: matrix products in bfloat16; attention, loss and weights stay in float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    workers: int = 0
    """Processes that read and pack bags ahead; 0: the training process does."""
    threads: int | None = None
    """CPU threads of the training process; none: PyTorch's choice."""
    tensorboard: bool = True
    """Write TensorBoard events too, where it is installed."""

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A training run, resolved: what `run.yaml` in a run folder holds."""

    data: DataConfig
    model: str
    """Registered name."""
    model_arguments: dict[str, Any] = field(default_factory=dict)
    """What the model's constructor is given beside `in_dim`, `n_classes` and `class_weights`."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0
    """Of the initial weights, the order of bags, the noise, and a split that has to be made."""
    data_seed: int | None = None
    """Of the order of bags and of a split that has to be made; none: as seed."""

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def order_seed(self) -> int:
        """The seed of everything that says which bags a step sees."""
        return self.seed if self.data_seed is None else self.data_seed

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the layout of a run file."""
        return plain(
            {
                "data": asdict(self.data),
                "model": {"name": self.model, **self.model_arguments},
                "training": asdict(self.training),
                "seed": self.seed,
                "data_seed": self.data_seed,
            }
        )

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "RunConfig":
        """From a run file's layout, already checked (`read_run`), or from `to_dict`."""
        model = dict(given["model"])
        data = dict(given["data"])
        for key in ("features", "labels", "split", "instance_labels"):
            if data.get(key) is not None:
                data[key] = Path(data[key])
        if data.get("classes") is not None:
            data["classes"] = tuple(str(c) for c in data["classes"])
        return cls(
            data=DataConfig(**data),
            model=model.pop("name"),
            model_arguments={k: _tuples(v) for k, v in model.items()},
            training=TrainingConfig(**given.get("training", {})),
            seed=int(given.get("seed", 0)),
            data_seed=given.get("data_seed"),
        )


SECTIONS = {"data": DataConfig, "training": TrainingConfig}


def section_of(key: str) -> str | None:
    """The section that a short key belongs to, or None."""
    for name, cls in SECTIONS.items():
        if key in {f.name for f in fields(cls)}:
            return name
    return None


RENAMED = {"pitch": "stride"}
"""Keys that files and flags of earlier versions use, with their names today."""


def with_current_names(given: Any) -> Any:
    """Return nested values with every key of `RENAMED` replaced by its current name."""
    if isinstance(given, dict):
        return {RENAMED.get(k, k): with_current_names(v) for k, v in given.items()}
    return [with_current_names(v) for v in given] if isinstance(given, list) else given


class _OnceLoader(yaml.SafeLoader):
    """YAML whose keys stand once: of two values of a key, one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's own
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            problem = None
            if not isinstance(key, str):
                problem = f"the key {key!r} is no text: write it in quotes, if it is meant"
            elif key in seen:
                problem = f"the key {key!r} is there twice"
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(
    path: Path, *, what: str = "run file", least: str = "data and model"
) -> dict[str, Any]:
    """A run file as nested plain values; or another file, as errors are to call it.

    Raises:
        InputError: missing, not YAML, or not a mapping; names the file.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)  # a SafeLoader
    except OSError as e:
        raise InputError(f"cannot read the {what} {path}: {e.strerror}") from e
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(e, "problem", None) or "it cannot be parsed"
        raise InputError(f"the {what} {path}{where} cannot be read as YAML: {problem}") from e
    if value is None:
        raise InputError(f"the {what} {path} is empty: it needs at least {least}")
    if not isinstance(value, dict):
        raise InputError(f"the {what} {path} holds {type(value).__name__}, not keys and values")
    return with_current_names(value)


def flatten(given: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys of a run file; short keys are given their section, `model: x` its name.

    >>> flatten({"epochs": 5, "model": "abmil", "data": {"features": "f"}})
    {'training.epochs': 5, 'model.name': 'abmil', 'data.features': 'f'}
    """
    flat: dict[str, Any] = {}
    for key, value in given.items():
        if key == "model" and isinstance(value, str):
            flat["model.name"] = value
        elif key in (*SECTIONS, "model") and isinstance(value, dict):
            flat.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            section = section_of(key)
            flat[f"{section}.{key}" if section else key] = value
    return flat


def plain(value: Any) -> Any:
    """A value as YAML holds it: tuples are lists, paths text."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
