"""What a task is: everything that depends on the kind of a bag's label is a member of its class."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ..core import TaskName
from ..errors import TableError
from ..statistics import Draws, TargetMetrics
from .columns import Cells, Targets, Value
from .words import PageWords, Words

Y: TypeAlias = Float[np.ndarray, "bags targets"]
"""The targets of bags."""
P: TypeAlias = Float[np.ndarray, "bags outputs"]
"""What is predicted of bags."""
Names: TypeAlias = Sequence[str]
HALF = 0.5
"""From which probability a class or finding is called, unless a threshold is stored."""
MEAN_RIVAL = "mean of the features"
"""The rival that is linear in the mean of the features of a bag."""
Target = int | float | tuple[float, ...]
"""The class or the grade of a bag; for regression a number, for other tasks one per column."""


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

    @classmethod
    def loss(cls, name: str, title: str, *, of_target: bool = False) -> "Measure":
        """Return a metric that is better if lower, without an upper limit."""
        return cls(
            name, title, higher_is_better=False, unit="number", of_target=of_target, high=np.inf
        )


KAPPA = Measure("quadratic_kappa", "quadratic κ", unit="number", low=-1.0)


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
    def outputs(self) -> tuple[str, ...]:
        """Names of what is predicted; those of two or more unordered classes may be missing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetData:
    """The evaluated bags of a target: what is true and what is predicted."""

    task: TaskName
    y: Y
    predicted: P
    outputs: tuple[str, ...]
    names: tuple[str, ...]
    """Names of the classes, grades or findings."""
    scores: Mapping[str, Float[np.ndarray, " bags"]] = field(default_factory=dict)
    training: Float[np.ndarray, "training targets"] | None = None
    """The targets of the training bags; None if the predictions do not state them."""
    thresholds: tuple[float, ...] | None = None
    """From which probability each finding is called."""
    threshold: float | None = None
    """p(Y = 1) from which a bag of two classes is called positive."""
    of_means: P | None = None
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
    unsure: bool = False
    """Whether the call changes within one standard deviation."""
    text: str = ""
    """The prediction with its standard deviation, as `grade 2, p = 0.61 ± 0.08`."""


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


UNSTATED = Stated()


class Task(ABC):
    """One kind of target. There is one object of each class; see `TASKS`.

    Arrays of predictions have one row for each bag and the columns of `Predicted.probability`; a
    single column of classes is p(Y = 1). Targets are (bags, targets): the index of a class or
    grade, 0, 1 or nan for each finding, a number, or a time and whether its event was seen.
    """

    name: ClassVar[TaskName]
    words: ClassVar[Words]
    measures: ClassVar[tuple[Measure, ...]]
    """The metrics by which methods are compared. The first is the primary one, by which a model is
    judged against rivals."""
    validation_metric: ClassVar[str | None] = None
    """The metric of `validation_score`; None if the epoch is chosen by the loss alone."""

    has_classes: ClassVar[bool] = False
    """Whether each bag has exactly one of several classes or grades."""
    unordered_classes: ClassVar[bool] = False
    """Whether its classes have no order, so that their number alone determines the likelihood."""
    two_classes: ClassVar[bool] = False
    """Whether a threshold of one probability makes the call."""
    by_probability: ClassVar[bool] = False
    """Whether each output is the probability of a class or finding, which maps explain."""
    has_findings: ClassVar[bool] = False
    """Whether a bag may have several classes at once, each with its own threshold and weight."""
    members_average: ClassVar[bool] = True
    """Whether predictions of models that were trained on the same bags have a common mean."""
    runs_average: ClassVar[bool] = True
    """Whether predictions of any runs have a common mean."""
    coverage_by: ClassVar[Literal["sets", "intervals"] | None] = None
    """What is calibrated to a coverage; None if nothing is."""
    patient_has_highest: ClassVar[bool] = False
    """Whether a patient whose bags differ has the highest of their labels."""
    counted_stratum: ClassVar[int | None] = None
    """The stratum of `strata` without which a metric has no information; None for all of them."""
    compares_across_folds: ClassVar[bool] = True
    """Whether bags of different folds may be ranked together."""
    undefined_metric: ClassVar[str] = "AUROC"
    """The metric that a part without one of the needed strata leaves undefined."""

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
        found = self.null_rivals(data, draws)
        if data.of_means is not None:
            other = replace(
                data, predicted=data.of_means, scores={}, thresholds=None, threshold=None,
                of_means=None,
            )  # fmt: skip
            found[MEAN_RIVAL] = self.metrics(other, draws)
        return found

    def null_rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        """Return the metrics of predictions that look at no bag, by name."""
        del data, draws
        return {}

    def strata(self, y: Y) -> Shaped[np.ndarray, " bags"]:
        """Return by what resamples of the bags are stratified."""
        return np.zeros(len(y))

    @abstractmethod
    def counts(self, y: Y, names: Names) -> dict[str, int]:
        """Return how many bags have what, for the first line of a report."""

    def validation_score(self, y: Y, predicted: P) -> float | None:
        """Return the metric by which the epoch is chosen; None where it is undefined."""
        del y, predicted
        return None

    @abstractmethod
    def unjudgeable(self, y: np.ndarray, training: np.ndarray, names: Names) -> str | None:
        """Return why the primary metric is undefined on targets of test bags; None if it is not."""

    # Predictions

    @abstractmethod
    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        """Return what is predicted of a bag."""

    @abstractmethod
    def truth_text(self, y: Sequence[float], *, classes: Names = ()) -> str:
        """Return what a bag is labelled with, in words; empty if nothing is known."""

    def contradicts(
        self, p: Predicted, y: Sequence[float], stated: Stated = UNSTATED
    ) -> bool | None:
        """Return whether the targets of a bag contradict its prediction; None if not known.

        A finding does if it is called although absent or the reverse, and a number outside the
        predicted 90 % interval. A time does not. Classes and grades are compared by the caller.
        """
        del p, y, stated
        return None

    def calls(self, p: P, threshold: float | None = None) -> Int[np.ndarray, " bags"]:
        """Return the called class or grade of each bag; only for tasks that have one."""
        raise NotImplementedError(f"the task {self.name} calls no class")

    def margins(self, p: P, threshold: float | None = None) -> Float[np.ndarray, " bags"]:
        """Return how far the probability of each bag is from another call."""
        raise NotImplementedError(f"the task {self.name} calls no class")

    def called_positive(self, p: P, threshold: float | None = None) -> Bool[np.ndarray, " bags"]:
        """Return whether each bag is called any class or grade but the first, or any finding.

        Numbers and risks have no such call: maps of all bags explain them.
        """
        del threshold
        return np.ones(len(p), dtype=bool)

    def response(self, p: Predicted, column: int) -> float:
        """Return the number that maps explain: the probability of the class or finding `column`,
        the mean grade, the mean, or the risk."""
        del column
        return float(p.probability[0])

    def top_column(self, p: Predicted) -> int:
        """Return which output is that of the called class or the most probable finding; else 0."""
        del p
        return 0

    def explained_column(self, p: Predicted) -> int:
        """Return the column of `response` that maps explain; never that of class 0 of several."""
        return self.top_column(p)

    def shown_column(self, p: Predicted, columns: int) -> int:
        """Return which of several columns of values of instances is shown first.

        Of classes, it is that of the most probable class except class 0; of findings, that of the
        most probable one; of a number, that of its mean; of the steps between grades, that below
        the called grade; of intervals of time, the one whose hazard changes the risk most.
        """
        del p
        return columns - 1

    def opened_column(self, p: Predicted, columns: int) -> int:
        """Return which column a page opens with: that of the called class, even if it is class 0 of
        several; else `shown_column`."""
        return self.shown_column(p, columns)

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        """Return what the columns of values of instances are of; None for one, or for classes."""
        return p.outputs if columns > 1 and len(p.outputs) == columns else None

    def watched(self, outputs: Names) -> tuple[str, ...]:
        """Return the outputs by which a shift of the bags shows: the others follow from them."""
        return tuple(outputs)

    def label_columns(self, classes: Names) -> tuple[str, ...]:
        """Return the columns of predictions.csv that hold what a bag is labelled with."""
        del classes
        return ("label",)

    def value_columns(self, outputs: Names) -> tuple[str, ...]:
        """Return the columns of predictions.csv that hold what is predicted."""
        return tuple(outputs)

    @abstractmethod
    def predicts(self, names: Names, outputs: Names, target: Names) -> str:
        """Return what a model predicts of a bag, for its card; names are quoted."""

    def page_words(self, outputs: Names, target: Names) -> PageWords:
        """Return the words of a page of predictions with these outputs."""
        del outputs, target
        up, down = self.words.towards
        return replace(self.words.page, up=up, down=down)

    # Tables of labels

    def default_columns(
        self, header: Names, classes: Names | None, *, where: object
    ) -> tuple[str, ...]:
        """Return the columns of the target if none are named."""
        del header, classes, where
        return ("label",)

    def check_columns(self, columns: Names) -> None:
        """Refuse a wrong number of columns of the target.

        Raises:
            TableError: says how many the task has.
        """
        if len(columns) != 1:
            raise TableError(
                f"the target names {len(columns)} columns ({', '.join(columns)}), but one class, "
                "grade or number has one: give --task multilabel (a finding in each column) or "
                "--task survival"
            )

    def check_names(self, classes: Names, columns: Names | None) -> None:
        """Refuse names of classes that the task does not have.

        Raises:
            TableError: the task has no classes, or others.
        """
        del columns
        raise TableError(
            f"the classes are {', '.join(classes)}, but the task {self.name} has no classes: leave "
            "--classes out, or give another --task"
        )

    @abstractmethod
    def parse(self, cells: Cells) -> Targets:
        """Read the columns of the target.

        Raises:
            TableError: a cell does not fit the task; names the line and the bag.
        """

    @abstractmethod
    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        """Return the stratum by which splits balance each bag: its class or grade, 1 for an event,
        the quintile 0–4 of a number, and 0 for findings, which are not stratified."""

    def balanced_strata(self, strata: Int[np.ndarray, " bags"], parts: int) -> np.ndarray:
        """Return the strata of bags that are divided into `parts`."""
        del parts
        return strata

    def needed_strata(self, present: Iterable[int]) -> frozenset[int]:
        """Return which of these strata have to occur in training: all classes, or the events."""
        del present
        return frozenset()

    @abstractmethod
    def stratum_names(self, strata: Iterable[int], *, classes: Names, target: Names) -> str:
        """Return strata in words that follow "bag", such as `of class tumour`."""

    def stratified_by(self, target: Names) -> str:
        """Return by what splits are balanced, for the origin of a split."""
        del target
        return "stratified by class"

    @abstractmethod
    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        """Return why a model cannot learn its outputs from the training part, or None.

        Args:
            y: the targets of the labelled bags of `train`, `val` and `test`: (bags, targets).
            names: names of the classes, grades or findings.
        """

    def untestable(self, strata: Sequence[int], classes: Names) -> str | None:
        """Return why methods cannot be compared on labelled bags of these strata, or None."""
        del strata, classes
        return None

    @abstractmethod
    def content(self, y: Y, names: Names) -> str:
        """Return what labelled bags are labelled with: classes and their bags, or a range."""

    def model_target(self, value: tuple[float, ...]) -> Target:
        """Return the targets of a bag as a likelihood takes them."""
        return value

    def as_two_classes(self, y: np.ndarray, training: np.ndarray) -> Int[np.ndarray, " bags"]:
        """Return a class in place of the targets, to fit null maps on: of classes and grades
        themselves, else 1 for any finding, the event, or a number above the training median."""
        del training
        return (y == 1).any(1).astype(np.int64)
