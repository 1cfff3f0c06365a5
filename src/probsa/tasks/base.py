"""What a task says of predictions, and the types that its methods take and return."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from ..core import Outputs, TaskName
from ..statistics import Draws, TargetMetrics
from .labels import LABELS, Labels, Names, Row, Y
from .words import PageWords, Words, quoted

P: TypeAlias = Float[np.ndarray, "bags outputs"]
"""What is predicted of bags: the columns of `Predicted.probability`."""
HALF = 0.5
"""From which probability a class or finding is called, unless a threshold is known."""
MEAN_RIVAL = "mean of the features"
"""The rival that is linear in the mean of the features of a bag."""


def as_written(p: np.ndarray) -> Float[np.ndarray, "*shape"]:
    """Return probabilities as a table of predictions states them, on which calls are made.

    These are the shortest decimals of float32 numbers, which differ from them by rounding: a
    threshold that is one of the probabilities then makes the same call of all that have a copy.
    """
    if p.dtype == np.float64:
        return p
    return np.array([float(str(value)) for value in p.ravel()]).reshape(p.shape)


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric of `Task.metrics` by which methods are compared, and how tables show it."""

    name: str
    title: str
    higher_is_better: bool = True
    unit: Literal["percent", "number"] = "percent"
    """How tables show it; a `number` is shown as it is."""
    by_fold: bool = False
    """Whether it is averaged over folds if possible, since it ranks bags or has a run's times."""
    of_target: bool = False
    """Whether its unit is that of the target."""
    low: float = 0.0
    high: float = 1.0
    exchanged: Literal["auroc", "f1"] | None = None
    """The metric by which methods are exchanged where no resample changes their difference."""
    of_rarest_class: bool = False
    """Whether its variance is that of the rarest class or finding."""
    short: str = ""
    """Its title where there is little room; empty for `title`."""

    @property
    def short_title(self) -> str:
        """The title where there is little room."""
        return self.short or self.title


LOSS = partial(Measure, higher_is_better=False, unit="number", high=np.inf)
"""Makes a metric that is better if lower, without an upper limit."""


@runtime_checkable
class Predicted(Protocol):
    """What is read of the prediction of a bag."""

    @property
    def probability(self) -> np.ndarray:
        """Probabilities of classes or findings; of other tasks the predicted `outputs`."""
        ...

    @property
    def std(self) -> np.ndarray:
        """Their standard deviations over posterior samples."""
        ...

    @property
    def std_between(self) -> np.ndarray | None:
        """Those between the members of an ensemble; None for one model."""
        ...

    @property
    def outputs(self) -> Outputs:
        """What is predicted; names of two or more unordered classes may be missing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetData:
    """The evaluated bags of a target: what is true and what is predicted."""

    task: TaskName
    y: Y
    predicted: P
    outputs: Outputs
    names: tuple[str, ...]
    """Names of the classes, grades or findings."""
    scores: Mapping[str, Float[np.ndarray, " bags"]] = field(default_factory=dict)
    training: Float[np.ndarray, "training targets"] | None = None
    """The targets of the training bags; None if the predictions do not state them."""
    thresholds: tuple[float, ...] | None = None
    """From which probability each finding is called."""
    threshold: float | Float[np.ndarray, " bags"] | None = None
    """p(Y = 1) from which a bag of two classes is called positive: one, or that of each bag."""
    of_means: Float[np.ndarray, "bags columns"] | None = None
    """What the linear model of the mean features predicts; None if it is not stored."""

    def column(self, name: str) -> Float[np.ndarray, " bags"]:
        """Return a predicted column by its name."""
        return self.predicted[:, self.outputs.index(name)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What is predicted of a bag."""

    call: str
    """The called class, grade or findings; of numbers the 90 % interval, of times survival at one
    time."""
    value: float
    """The probability of what is called; of other tasks, the predicted mean or the risk."""
    spread: float
    """Its standard deviation: over posterior samples, of a number the whole one."""
    span: str = ""
    """What `spread` spans: `models`, `one model`, or `noise and model`."""
    unsure: bool = False
    """Whether the call changes within one standard deviation."""
    text: str = ""
    """The prediction with its standard deviation, as `grade 2: p 0.61 ± 0.08`."""


class Stated(NamedTuple):
    """What is stated of a model beside its predictions."""

    classes: Names = ()
    """Names of the classes, grades or findings."""
    threshold: float | None = None
    """p(Y = 1) from which a bag of two classes is called positive; None for 0.5."""
    thresholds: Sequence[float] | None = None
    """From which probability each finding is called; None for 0.5."""
    target: Names = ()
    """Names of the columns that the model was trained on."""

    def of_findings(self, count: int) -> Float[np.ndarray, " findings"]:
        """Return from which probability each of so many findings is called."""
        return np.asarray(self.thresholds or [HALF] * count, dtype=np.float64)


UNSTATED = Stated()


class Task(ABC):
    """What is predicted, and what follows from it; there is one object of each class, see `TASKS`.

    Facts are class variables, and `labels` is what is read of a label table. Methods are for
    predictions of bags (`p`, one row for each; a single column of classes is p(Y = 1)) or of one.
    """

    name: ClassVar[TaskName]
    words: ClassVar[Words]
    measures: ClassVar[tuple[Measure, ...]]
    """The metrics by which methods are compared. The first is the primary one, by which a model is
    judged against rivals."""
    overview: ClassVar[int] = 1
    """How many measures, from the first on, a table of several data sets shows."""
    headline: ClassVar[tuple[str, str]]
    """The two metrics that a summary states first."""
    chance: ClassVar[float] = 0.5
    """The value of the first one for predictions that look at no bag."""
    validation_metric: ClassVar[str | None] = None
    """The metric of `validation_score`; None if the epoch is chosen by the loss alone."""

    has_classes: ClassVar[bool] = False
    """Whether each bag has exactly one of several classes or grades."""
    unordered_classes: ClassVar[bool] = False
    """Whether its classes have no order, so that their number alone determines the likelihood."""
    two_classes: ClassVar[bool] = False
    """Whether a threshold of one probability makes the call."""
    has_findings: ClassVar[bool] = False
    """Whether a bag may have several classes at once, each with its own threshold and weight."""
    by_probability: ClassVar[bool] = False
    """Whether each output is the probability of a class or finding, which maps explain."""
    averages: ClassVar[Literal["runs", "members"] | None] = "runs"
    """Whether predictions have a common mean: of any runs, of models of the same bags, or none."""
    coverage_by: ClassVar[Literal["sets", "intervals"] | None] = None
    """What is calibrated to a coverage; None if nothing is."""
    patient_has_highest: ClassVar[bool] = False
    """Whether a patient whose bags differ has the highest of their labels."""
    compares_across_folds: ClassVar[bool] = True
    """Whether bags of different folds may be ranked together."""
    value_prefix: ClassVar[str] = ""
    """What precedes the name of an output in the header of predictions.csv."""

    @property
    def labels(self) -> Labels:
        """What is read of a label table."""
        return LABELS[self.name]

    @property
    def primary(self) -> Measure:
        """The primary metric: it judges the model against rivals."""
        return self.measures[0]

    # Metrics

    @abstractmethod
    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        """Return the metrics of the bags in the data and in each resample.

        Args:
            data: the evaluated bags, each with a target.
            draws: resamples of the bags, with the data as row 0.

        Raises:
            InputError: the targets cannot be compared with the predictions.
        """

    def rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        """Return the metrics of predictions that a model should beat, by name.

        Some need the targets of the training bags, and the mean of the features what is stored of
        it; those that miss it are left out.
        """
        predictions: dict[str, P] = {}
        if data.training is not None:
            predictions |= self.constants(data, data.training)
        if data.of_means is not None:
            predictions[MEAN_RIVAL] = data.of_means
        bare = replace(data, scores={}, thresholds=None, threshold=None, of_means=None)
        rivals: dict[str, TargetMetrics] = {}
        for name, p in predictions.items():
            of_rival = replace(bare, predicted=p, outputs=data.outputs.first(p.shape[1]))
            rivals[name] = self.metrics(of_rival, draws)
        return rivals

    def constants(self, data: TargetData, training: np.ndarray) -> dict[str, P]:
        """Return predictions of the first outputs that look at no bag, by name."""
        return {}

    def validation_score(self, y: Y, p: P) -> float | None:
        """Return the metric by which the epoch is chosen; None where it is undefined."""
        return None

    # Predictions

    @abstractmethod
    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        """Return what is predicted of a bag."""

    def contradicts(self, p: Predicted, y: Row, stated: Stated = UNSTATED) -> bool | None:
        """Return whether the targets of a bag contradict its prediction; None if not known.

        A finding does if it is called although absent or the reverse, and a number outside the
        predicted 90 % interval. A time does not. Classes and grades are compared by the caller.
        """
        return None

    def call(
        self, p: P, threshold: float | None = None
    ) -> tuple[Int[np.ndarray, " bags"], Float[np.ndarray, " bags"]]:
        """Return the called class or grade of each bag, and the margin of its probability, which is
        the distance to another call; only for tasks that have classes or grades."""
        raise NotImplementedError(f"the task {self.name} calls no class")

    def calls(self, data: TargetData) -> str:
        """Return in words how many calls of the evaluated bags are wrong; empty without calls."""
        return ""

    def called_positive(self, p: P, stated: Stated = UNSTATED) -> Bool[np.ndarray, " bags"]:
        """Return whether each bag is called any class or grade but the first, or any finding.

        Numbers and risks have no such call: maps of all bags explain them.
        """
        return np.ones(len(p), dtype=bool)

    # Maps

    def response(self, p: Predicted, column: int) -> float:
        """Return the number that maps explain: the probability of the class or finding `column`,
        the mean grade, the mean, or the risk."""
        return float(p.probability[column if self.by_probability else 0])

    def column(self, p: Predicted, columns: int | None = None, *, called: bool = False) -> int:
        """Return which of several columns of values of instances is shown first.

        Of classes, it is that of the most probable class except class 0; of findings, that of the
        most probable one; of a number, that of its mean; of the steps between grades, that below
        the called grade; of intervals of time, the one whose hazard changes the risk most.

        Args:
            p: the prediction of the bag.
            columns: how many there are; None for as many as outputs.
            called: whether class 0 of three or more counts as well, if it is the called one.
        """
        outputs = len(p.probability)
        if not self.by_probability or columns not in (None, outputs) or outputs == 1:
            return (columns or outputs) - 1
        first = 0
        if self.unordered_classes and (outputs == 2 or not called):
            first = 1
        return first + int(np.argmax(p.probability[first:]))

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        """Return what the columns of values of instances are of; None for one, or for classes."""
        return p.outputs.names if 1 < columns == len(p.outputs) else None

    # Tables

    def outputs_named(self, names: Names) -> Outputs:
        """Return what is predicted by the names that the header of predictions.csv states.

        Raises:
            ValueError: the columns of this task have other names.
        """
        return Outputs(tuple(names))

    # Words

    def predicts(self, names: Names, outputs: Outputs, target: Names) -> str:
        """Return what a model predicts of a bag, for its card; names are quoted."""
        last_time = f"{outputs.times[-1]:g}" if outputs.times else ""
        return self.words.predicts.format(
            either=quoted(names, "or"),
            names=quoted(names, "and"),
            outputs=quoted(outputs.names, "and"),
            of="".join(f", `{name}`" for name in target[:1]),
            last=last_time,
        )

    def page_words(self, outputs: Outputs, target: Names) -> PageWords:
        """Return the words of a page of predictions with these outputs."""
        if self.unordered_classes:
            return self.words.page
        up, down = self.words.towards
        return replace(self.words.page, up=up, down=down)
