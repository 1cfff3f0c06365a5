"""Predictions on disk: one table of bags, and one HDF5 file of per-instance outputs per bag.

predictions.csv     bag,part[,group],label,prediction,p_<class>…,sd_<class>… (a single logit: one
                    class); other tasks: see `columns_of`; slides (used/expected) of patients
predictions.json    threshold, classes, and the origin of the predictions
instances/<bag>.h5  the arrays `PER_INSTANCE` of `Prediction`, as far as the model has them
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import h5py
import numpy as np
import pandas as pd
from jaxtyping import Float

from ..core import (
    LEDGER,
    NO_OUTPUTS,
    BagKind,
    Outputs,
    TaskName,
    TextTable,
    UnitInterval,
    as_coordinates,
    as_record,
    attributes_of,
    check_file_name,
    check_folder_place,
    counted,
    dataset_of,
    files_matching,
    group_keys,
    named_file,
    numeric_attribute,
    open_hdf5,
    read_json,
    read_number,
    replacing_folder,
    replacing_hdf5,
    write_csv,
    write_json,
)
from ..errors import BagError, InputError, OutputExists, TableError, UnknownName
from ..models import ScoreKind
from ..statistics import Threshold, choose_threshold
from ..tasks import (
    HALF,
    TASKS,
    Stated,
    Target,
    Task,
    Verdict,
    as_written,
    class_name,
    task_of_classes,
)
from .metadata import PredictionsMetadata
from .prediction import LIKE_ATTENTION, OF_EVERY_INSTANCE, PER_INSTANCE, Prediction

PREDICTIONS = "predictions"
"""The folder of a run's predictions inside the run."""
PREDICTIONS_TABLE = "predictions.csv"
METADATA = "predictions.json"
INSTANCES = "instances"
NULL_SCORES = "null_maps"
"""Folder of the scores of null maps, see `baselines.null_maps`."""
FAILED = "failed.csv"
"""Table of the bags that could not be predicted, which `probsa predict` writes."""
NOTES = "notes.json"
"""Remarks on the bags, such as an estimated stride, which `probsa predict` writes."""
MEAN_FEATURES = "mean_features.csv"
"""What the linear model of the mean features predicts."""
SLIDES = "slides.csv"
"""A table of the slides of patients, which 0.2 wrote: it is replaced with the predictions."""
FAITHFULNESS = "faithfulness.json"
"""Curves of deletion of each bag, which `probsa predict --faithfulness` writes."""
FEW_TRAINING_BAGS = 20
"""With fewer training bags, predictions state that they depend on these bags."""
OWN = {
    PREDICTIONS_TABLE,
    METADATA,
    INSTANCES,
    NULL_SCORES,
    FAILED,
    NOTES,
    MEAN_FEATURES,
    SLIDES,
    FAITHFULNESS,
}
"""The files and folders of a predictions folder."""
PROBABILITY = "p_"
"""The beginning of the columns of probabilities; the name of the class follows."""
AGAIN = "predict this bag again"
SHOWN = 5
"""Number of names listed in texts; JSON reports have all of them."""
PARTS = ("train", "val", "test", "new", "unused")
"""The parts of a run's split that a predicted bag may belong to."""
SCORES = ("nll", "crps")
"""Columns with the scores of labelled bags, for tasks without classes."""
ONE_COLUMN = (*SCORES, "ood", "ood_distance")
"""The fields with a number for each bag instead of a row."""
STATED: dict[str, tuple[str, ...]] = {
    "name": (),
    "score_kind": get_args(ScoreKind),
    "kind": get_args(BagKind),
}
"""The attributes of a file of instances that are texts, with their choices."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of numbers in predictions.csv, which hold one field of `Predictions`."""

    field: str
    """The field of `Predictions`, or the name of a score."""
    names: tuple[str, ...]
    low: float = -math.inf
    high: float = math.inf
    optional: bool = False
    """Whether a table may lack these columns."""
    blank: bool = False
    """Whether cells may be empty."""

    def read(self, rows: Sequence[Mapping[str, str]], path: Path) -> Float[np.ndarray, "bags _"]:
        """Return the numbers of all rows; an empty cell is nan.

        Raises:
            TableError: a cell is no finite number within the limits.
        """

        values = np.zeros((len(rows), len(self.names)))
        for k, row in enumerate(rows):
            where = f"{path}, bag {row['bag']!r}"
            for column, name in enumerate(self.names):
                if self.blank and not row[name]:
                    values[k, column] = math.nan
                else:
                    values[k, column] = self._number(row[name], name, where)
        return values

    def cells(self, p: Prediction) -> dict[str, str]:
        """Return the cells of one bag: the shortest text of each float32; none without a value.

        Raises:
            BagError: a value is no finite number within the limits.
        """
        value = self._value(p)
        if value is None:
            return {}
        numbers = zip(self.names, np.atleast_1d(value), strict=True)
        cells = {name: str(number) for name, number in numbers}
        advice = ": its features are far from those of training, or the training diverged"
        try:
            for name, text in cells.items():
                self._number(text, name, f"bag {p.name!r}", advice)
        except TableError as error:
            raise BagError(str(error)) from None
        return cells

    def _value(self, p: Prediction) -> Any:
        """Return the number, or the numbers, that a prediction has for these columns."""
        if self.field == "ood":  # `Prediction.ood` is that of instances
            return p.bag_ood
        if self.field == "ood_distance":
            return p.bag_ood_distance
        if self.field in p.scores:
            return np.float32(p.scores[self.field])
        return getattr(p, self.field, None)

    def _number(self, text: str, name: str, where: str, advice: str = "") -> float:
        return read_number(text, name, where=where, low=self.low, high=self.high, advice=advice)


def columns_of(
    task: TaskName, *, names: Sequence[str], classes: Sequence[str]
) -> tuple[Columns, ...]:
    """Return the columns of numbers of a task: of each of `names`, its classes or outputs."""

    def each(start: str) -> tuple[str, ...]:
        return tuple(f"{start}_{name}" for name in names)

    kind = TASKS[task]
    values = tuple(kind.value_prefix + name for name in names)
    if kind.has_classes:
        columns = (
            Columns("probability", values, 0.0, 1.0),
            Columns("std", each("sd"), 0.0, 1.0),
            Columns("std_within", each("sd_within"), 0.0, 1.0, optional=True),
            Columns("std_between", each("sd_between"), 0.0, 1.0, optional=True),
        )
    else:
        low, high = (0.0, 1.0) if kind.by_probability else (-math.inf, math.inf)
        columns = (
            Columns("targets", kind.labels.label_columns(classes), blank=True),
            Columns("probability", values, low, high),
            Columns("std", each("spread")),
            *(Columns(score, (score,), optional=True, blank=True) for score in SCORES),
        )
    return (
        *columns,
        Columns("ood", ("ood",), 0.0, 1.0, optional=True),
        Columns("ood_distance", ("ood_distance",), 0.0, optional=True),
    )


class PredictedRow(NamedTuple):
    """What a task reads of a bag's prediction; see `Predicted` in `tasks`."""

    probability: np.ndarray
    std: np.ndarray
    outputs: Outputs
    std_between: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """The table of bags; every tuple and array has the order of its rows."""

    path: Path | None = None
    """The folder of the predictions; None for predictions in memory, which have neither outputs of
    instances nor other files."""
    bags: tuple[str, ...]
    parts: tuple[str, ...]
    labels: tuple[int | None, ...]
    """Class indices stored with the predictions; None for a bag without a label."""
    probability: Float[np.ndarray, "bags columns"]
    """float64; one column, p(Y = 1), for a single logit, otherwise one per class. For tasks without
    classes, one column for each of `outputs`."""
    std: Float[np.ndarray, "bags columns"]
    classes: tuple[str, ...]
    call_threshold: Threshold | None
    """The threshold of p(Y = 1) for positive calls by the stored labels, see `call_threshold`."""
    metadata: PredictionsMetadata
    std_within: Float[np.ndarray, "bags columns"] | None = None
    """None for predictions of one model, as `std_between`."""
    std_between: Float[np.ndarray, "bags columns"] | None = None
    ood: Float[np.ndarray, " bags"] | None = None
    """How far each bag is from training, as in `Prediction.bag_ood`; None if it is not known."""
    ood_distance: Float[np.ndarray, " bags"] | None = None
    group_of: Mapping[str, str] = field(default_factory=dict)
    """The group (patient) of each bag by its name; empty if none are stored."""
    task: TaskName = "binary"
    outputs: Outputs = NO_OUTPUTS
    """The columns of `probability`, for tasks without classes."""
    targets: Float[np.ndarray, "bags targets"] | None = None
    """What each bag is labelled with, for tasks without classes; nan where it is not known."""
    scores: Mapping[str, Float[np.ndarray, " bags"]] = field(default_factory=dict)
    """Scores of the labelled bags that need the whole predictive distribution, such as `nll`."""

    @property
    def of_task(self) -> Task:
        """What depends on the task."""
        return TASKS[self.task]

    @property
    def title(self) -> str:
        """What messages call them."""
        return "these predictions" if self.path is None else str(self.path)

    @property
    def folder(self) -> Path:
        """The folder of the predictions.

        Raises:
            InputError: they are in memory.
        """
        if self.path is None:
            raise InputError("these predictions are in memory: write them to a folder first")
        return self.path

    @property
    def threshold(self) -> float | None:
        """From which p(Y = 1) a bag is called positive; None where another rule decides calls."""
        return None if self.call_threshold is None else self.call_threshold.value

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class; a single logit has two classes."""
        if self.probability.shape[1] > 1 or len(self.classes) == 2:
            return self.classes
        positive = self.classes[-1]
        return ("0", "1") if positive == "1" else (f"not {positive}", positive)

    def instance_path(self, bag: str) -> Path:
        """Return the path of a bag's per-instance outputs, which need not exist."""
        return named_file(self.folder / INSTANCES, bag, ".h5")

    def has_instances(self, bag: str) -> bool:
        """Return whether the per-instance outputs of a bag are stored."""
        return self.path is not None and self.instance_path(bag).is_file()

    def instances(self, bag: str) -> Prediction:
        """Read the per-instance outputs of a bag and join them with its row of the table.

        Raises:
            UnknownName: the bag is not in the table.
            BagError: the file of its outputs is missing or damaged.
        """
        if bag not in self.bags:
            raise UnknownName("predicted bag", bag, self.bags)
        row = self.bags.index(bag)

        def of_bag(table: np.ndarray | None) -> Any:
            return None if table is None else table[row].astype(np.float32)

        graded = self.of_task.has_classes and not self.of_task.unordered_classes
        return replace(
            read_instances(self.instance_path(bag)),
            probability=of_bag(self.probability),
            std=of_bag(self.std),
            std_within=of_bag(self.std_within),
            std_between=of_bag(self.std_between),
            task=self.task,
            outputs=Outputs(self.classes) if graded else self.outputs,
            stated=stated_of(self),
        )

    def row(self, k: int) -> "PredictedRow":
        """Return what tasks read of the prediction of the k-th bag."""
        between = None if self.std_between is None else self.std_between[k]
        return PredictedRow(self.probability[k], self.std[k], self.outputs, between)

    def to_frame(self) -> pd.DataFrame:
        """Return the columns of predictions.csv as a data frame; see also `instances`.

        `call` names the predicted class, or what else is predicted, as in `Verdict.call`.
        """
        columns: dict[str, Any] = {"bag": self.bags, "part": self.parts}
        if self.group_of:
            columns["group"] = list(self.group_of.values())
        names = self.outputs.names
        if self.of_task.has_classes:
            columns["label"] = pd.array(list(self.labels), dtype="Int64")
            columns["prediction"] = self.of_task.call(self.probability, self.threshold)[0]
            names = self.classes[-self.probability.shape[1] :]
        stated = stated_of(self)
        verdicts = [self.of_task.verdict(self.row(k), stated) for k in range(len(self.bags))]
        columns["call"] = [verdict.call for verdict in verdicts]
        for group in columns_of(self.task, names=names, classes=self.classes):
            values = self.scores.get(group.field, getattr(self, group.field, None))
            if values is not None:
                rows = values.reshape(len(self.bags), len(group.names))
                columns |= dict(zip(group.names, rows.T, strict=True))
        return pd.DataFrame(columns)


def listed(names: Sequence[str], *, what: str = "bag") -> str:
    """Return how many bags (or groups) there are, and the names of the first ones."""
    first_names = ", ".join(repr(name) for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{counted(len(names), what)} ({first_names}{more})"


def find_predictions(folder: Path | str) -> Path:
    """Return the folder of predictions: this one, or `predictions/` inside it, as in a run.

    Raises:
        InputError: the folder does not exist.
        TableError: neither of the two has predictions.csv.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: create it with `probsa predict RUN --out`")
    inside = folder / PREDICTIONS
    for place in (folder, inside):
        if (place / PREDICTIONS_TABLE).is_file():
            return place
    raise TableError(
        f"{folder} has no {PREDICTIONS_TABLE}, nor has {inside}: give a folder that "
        "`probsa predict` wrote, or a run whose training has finished"
    )


def read_predictions(folder: Path | str) -> Predictions:
    """Read the table of a predictions folder or of a run; per-instance files are read on demand.

    Raises:
        InputError: the folder does not exist, or its predictions.json is damaged.
        TableError: predictions.csv is missing, or a column or cell cannot be used.
    """
    folder = find_predictions(folder)
    path = folder / PREDICTIONS_TABLE
    file = folder / METADATA
    entries: dict[str, Any] = {}
    stated = _StoredTable(threshold=None, classes=None)
    if file.is_file():
        entries = read_json(file, advice="predict again")
        stated = as_record(_StoredTable, entries, where=str(file), advice="predict again")
    table = TextTable.read(path)
    names = tuple(
        column.removeprefix(PROBABILITY)
        for column in table.columns
        if column.startswith(PROBABILITY)
    )
    task = TASKS[stated.task or task_of_classes(len(names))]
    classes = names if stated.classes is None else stated.classes
    outputs = NO_OUTPUTS
    if not task.has_classes:
        outputs = _stored_outputs(task, stated.outputs or (), file)
    schema = columns_of(task.name, names=outputs.names or names or ["<class>"], classes=classes)
    # a table that the package did not write may lack the columns of parts and labels
    table.select("bag", *_required_columns(schema, task=task, is_written=bool(entries)))
    rows = [cells for _, cells in table.by_name("bag").values()]
    for row in rows:
        check_file_name(row["bag"])  # its maps and instances are files of this name
    # a single logit of two classes has the column of the second one
    of_single_logit = len(classes) == 2 and names == classes[-1:]
    if task.has_classes and names != classes and not of_single_logit:
        raise TableError(
            f"{path} has probabilities of {', '.join(names)}, but {METADATA} states the classes "
            f"{', '.join(classes) or '(none)'}: predict again"
        )
    values: dict[str, Any] = {}  # by field of `Predictions`, whose types differ
    for group in schema:
        if not group.optional or all(name in table.columns for name in group.names):
            numbers = group.read(rows, path)
            values[group.field] = numbers[:, 0] if group.field in ONE_COLUMN else numbers
    scores = {name: values.pop(name) for name in SCORES if name in values}
    bags = tuple(row["bag"] for row in rows)
    parts = tuple(_part(row, path) for row in rows)
    labels: tuple[int | None, ...] = (None,) * len(rows)
    if task.has_classes:
        labels = tuple(_label(row, path, max(len(classes), 2)) for row in rows)
    group_of: dict[str, str] = {}
    if "group" in table.columns:
        stated_groups = {row["bag"]: row["group"] for row in rows}
        group_of = dict(zip(bags, group_keys(bags, stated_groups), strict=True))
    keys_of_table = {"task", "classes", "threshold"}
    if not task.has_classes:
        keys_of_table.add("outputs")
    origin = {key: value for key, value in entries.items() if key not in keys_of_table}
    return Predictions(
        path=folder,
        bags=bags,
        parts=parts,
        labels=labels,
        group_of=group_of,
        classes=classes,
        call_threshold=call_threshold(
            task,
            stored=stated.threshold,
            parts=parts,
            positive=[None if label is None else label > 0 for label in labels],
            p=values["probability"],
        ),
        metadata=PredictionsMetadata.of(origin, where=str(file)),
        task=task.name,
        outputs=outputs,
        scores=scores,
        **values,
    )


def _stored_outputs(task: Task, names: tuple[str, ...], path: Path) -> Outputs:
    """Return what the columns of these names mean."""
    try:
        return task.outputs_named(names)
    except ValueError:
        raise InputError(
            f"{path} states the outputs {', '.join(names)}, which are not those of the task "
            f"{task.name}: predict again"
        ) from None


def _required_columns(schema: Sequence[Columns], *, task: Task, is_written: bool) -> list[str]:
    """Return the columns that a table of predictions must have, besides the names of the bags.

    is_written: whether the package wrote the table.
    """
    required: list[str] = []
    for group in schema:
        if not group.optional:
            required += group.names
    if is_written:
        required.append("part")
        if task.has_classes:
            required += ["label", "prediction"]
    return required


def _part(row: Mapping[str, str], path: Path) -> str:
    """Return the part of a run's split that a bag belongs to.

    Raises:
        TableError: there is no such part.
    """
    part = row.get("part") or "new"
    if part not in PARTS:
        raise TableError(
            f"{path}, bag {row['bag']!r}: part is {part[:80]!r}, expected {', '.join(PARTS)}"
        )
    return part


def _label(row: Mapping[str, str], path: Path, classes: int) -> int | None:
    """Return the class index of a bag; None for a bag without a label.

    Raises:
        TableError: it is no class index.
    """
    text = row.get("label")
    if not text:
        return None
    where = f"{path}, bag {row['bag']!r}"
    return int(read_number(text, "label", where=where, low=0.0, high=classes - 1.0, whole=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredTable:
    """The keys of predictions.json that the table of bags needs; see `PredictionsMetadata`."""

    threshold: UnitInterval | None
    classes: tuple[str, ...] | None
    task: TaskName | None = None
    outputs: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.outputs is None:
            raise InputError("outputs is missing")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise InputError(f"classes are {', '.join(self.classes)}, expected each once")


def call_threshold(
    task: Task,
    *,
    stored: float | None,
    parts: Sequence[str],
    positive: Sequence[bool | None],
    p: Float[np.ndarray, "bags columns"],
) -> Threshold | None:
    """Return from which p(Y = 1) bags are called positive: the rule of everything that calls bags.

    It is the stored threshold. Where none is stored, it has the best F1 on the labelled validation
    bags, and without any it is 0.5.

    Args:
        task: What is predicted.
        stored: The threshold that is stored with the predictions.
        parts: The part of each bag in the run.
        positive: Whether each bag is labelled with the second class; None if it is not known.
        p: The predicted probabilities, of which the last column counts.

    Returns:
        The threshold; None where another rule decides calls.
    """
    if not task.two_classes:
        return None
    if stored is not None:
        return Threshold(value=stored, origin="stored")
    rows = [k for k, part in enumerate(parts) if part == "val" and positive[k] is not None]
    if not rows:
        return Threshold(value=HALF, origin="default")
    y = np.array([positive[k] for k in rows], dtype=bool)
    return choose_threshold(y, p[rows, -1].astype(np.float64))


def choose_on_validation(
    table: Predictions, positive: Mapping[str, bool], *, rule: str
) -> Threshold:
    """Return the threshold that a rule chooses on the labelled validation bags of a table.

    Args:
        table: Predictions of two classes.
        positive: Whether a bag is labelled with the second class, by its name.
        rule: A rule of `choose_threshold`.

    Raises:
        InputError: there is no such rule, the task has other classes, or the validation bags are
            missing or lack the class that the rule needs.
    """
    if not table.of_task.two_classes:
        raise InputError(
            f"the threshold {rule!r} is for two classes, and the task is {table.task}: leave it out"
        )
    bags = zip(table.bags, table.parts, strict=True)
    rows = [k for k, (bag, part) in enumerate(bags) if part == "val" and bag in positive]
    y = np.array([positive[table.bags[k]] for k in rows], dtype=bool)
    p = as_written(table.probability[rows, -1]).astype(np.float64)
    chosen = choose_threshold(y, p, rule=rule)
    if not rows or chosen.origin == "default":
        reason = chosen.reason if rows else "it has no labelled validation bag"
        raise InputError(
            f"{table.title}: the threshold {rule!r} cannot be chosen on its validation bags: "
            f"{reason}. Give the predictions of the run itself (RUN/predictions), or choose it "
            f"with `probsa predict RUN --threshold {rule}`"
        )
    return replace(chosen, rule=rule)


def stated_of(table: Predictions) -> Stated:
    """Return the names and thresholds that a table of predictions states."""
    metadata = table.metadata
    return Stated(table.classes, table.threshold, metadata.thresholds, metadata.target)


def verdict_of(table: Predictions, p: Prediction) -> Verdict:
    """Return what is predicted of a bag of a table, with its names and thresholds."""
    return p.of_task.verdict(p, stated_of(table))


def truth_of(table: Predictions, row: int) -> str:
    """Return what a bag of a table is labelled with, in words; empty if it is not known."""
    if table.targets is not None:
        return table.of_task.labels.truth_text(table.targets[row].tolist(), table.classes)
    label = table.labels[row]
    return "" if label is None else class_name(table.classes, label)


def write_predictions(  # noqa: PLR0913 - the options are independent
    folder: Path | str,
    predictions: Iterable[Prediction],
    *,
    labels: Mapping[str, Target | None],
    parts: Mapping[str, str],
    classes: Sequence[str],
    threshold: float | None,
    metadata: Mapping[str, object],
    overwrite: bool = False,
    more: Callable[[Path], object] | None = None,
) -> None:
    """Write predictions one by one; `folder` appears once all are written, or not at all.

    Args:
        folder: new or empty folder, or with `overwrite` one that this function wrote.
        predictions: the predictions; only one at a time is kept in memory.
        labels: class index of each bag, or its targets; a bag that is missing here has none.
        parts: part of each bag in the run (train, val, test or new); new if it is missing here.
        classes: class names in the order of their index; a single logit is that of the last one.
        threshold: p(Y = 1) from which a bag is called positive; None for that of `call_threshold`.
        metadata: further entries for predictions.json, see `PredictionsMetadata.to_dict`.
        overwrite: whether to replace existing predictions.
        more: called with the folder before it appears, to write further files into it.

    Raises:
        OutputExists: the folder exists and is not empty.
        BagError: two bags have the same name, a name cannot be a file name, or a predicted number
            is not finite, or no probability.
        InputError: there are no predictions, or they do not fit the classes.
    """
    folder = Path(folder)
    check_output(folder, OWN, overwrite=overwrite)
    with replacing_folder(folder, earlier=_earlier_files) as new:
        check_output(folder, OWN, overwrite=overwrite)  # predictions may have been put back
        (new / INSTANCES).mkdir()
        task: Task | None = None
        rows: dict[str, dict[str, Any]] = {}
        entries: dict[str, object] = {"threshold": threshold, "classes": list(classes)}
        probabilities: list[np.ndarray] = []
        for p in predictions:
            if p.name in rows:
                raise BagError(f"two bags are named {p.name!r}: their predictions need two names")
            path = named_file(new / INSTANCES, p.name, ".h5")
            if path.exists():
                raise BagError(
                    f"bag {p.name!r} has the file name of another bag, because this disk ignores "
                    "case: rename one of them"
                )
            write_instances(path, p)
            row = {"bag": p.name, "part": parts.get(p.name, "new")}
            if p.group:
                row["group"] = p.group
            rows[p.name] = row | _cells(p, labels.get(p.name), classes)
            probabilities.append(as_written(p.probability))
            task = p.of_task
            if not p.of_task.unordered_classes:
                entries |= {"task": p.task, "outputs": list(p.outputs.names)}
        if not rows or task is None:
            raise InputError(f"there are no predictions to write to {folder}")
        if task.has_classes:
            _add_calls(rows.values(), task, np.array(probabilities), stored=threshold)
        header = list(dict.fromkeys(column for row in rows.values() for column in row))
        write_csv(new / PREDICTIONS_TABLE, header, list(rows.values()))
        write_json(new / METADATA, {**entries, **metadata})
        if more is not None:
            more(new)


def _add_calls(
    rows: Collection[dict[str, Any]],
    task: Task,
    p: Float[np.ndarray, "bags columns"],
    *,
    stored: float | None,
) -> None:
    """Fill in the called class of each row."""
    chosen = call_threshold(
        task,
        stored=stored,
        parts=[row["part"] for row in rows],
        positive=[None if row["label"] is None else row["label"] > 0 for row in rows],
        p=p,
    )
    calls, _ = task.call(p, None if chosen is None else chosen.value)
    for row, call in zip(rows, calls.tolist(), strict=True):
        row["prediction"] = call


def _cells(p: Prediction, target: Target | None, classes: Sequence[str]) -> dict[str, object]:
    """Return the cells of a bag's row after its name and part, in the order of the columns."""
    width = len(p.probability)
    names = p.outputs.names
    cells: dict[str, Any] = dict.fromkeys(p.of_task.labels.label_columns(classes))
    if p.of_task.has_classes:
        if width != len(classes) and not (width == 1 and len(classes) == 2):
            raise InputError(
                f"bag {p.name!r} has {width} probabilities, but there are {len(classes)} classes "
                f"({', '.join(classes)})"
            )
        names = classes[-width:]
        cells |= {"label": target, "prediction": None}
    elif target is not None:
        for column, value in zip(tuple(cells), np.atleast_1d(target), strict=True):
            cells[column] = None if np.isnan(value) else f"{value:.9g}"
    for columns in columns_of(p.task, names=names, classes=classes):
        cells |= columns.cells(p)
    if p.slides:
        cells["slides"] = f"{len(p.slides)}/{p.slides_expected or len(p.slides)}"
    return cells


def _earlier_files(folder: Path) -> list[Path]:
    """List the files that a version of probsa without ledgers wrote, if it did."""
    try:
        metadata = read_json(folder / METADATA)
    except InputError:  # there is none, or it is another file
        return []
    if not isinstance(metadata, dict) or "classes" not in metadata:
        return []
    return files_matching(folder, (*OWN, f"{INSTANCES}/*.h5", f"{NULL_SCORES}/*"))


def check_output(
    folder: Path,
    expected: Collection[str],
    *,
    owner: str = "predictions and would be deleted",
    overwrite: bool = True,
) -> None:
    """Refuse a folder that is a file, holds foreign files, or, without `overwrite`, any.

    Args:
        folder: the folder.
        expected: the names of files and folders that may be in it.
        owner: what a foreign file does not belong to, in words.
        overwrite: whether expected files may be there.

    Raises:
        OutputExists: names the folder and the file.
    """
    check_folder_place(folder)
    existing = {p.name for p in folder.glob("*")} - {LEDGER}
    if existing and not overwrite:
        raise OutputExists(f"{folder} exists and is not empty: give a new folder or --overwrite")
    foreign = existing - set(expected)
    if foreign:
        raise OutputExists(
            f"{folder} contains {min(foreign)!r}, which does not belong to {owner}: give another "
            "folder"
        )


def check_predictions_output(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder to which predictions cannot be written; see `check_output`."""
    check_output(folder, OWN, overwrite=overwrite)


def write_instances(path: Path, p: Prediction) -> None:
    """Write the per-instance outputs of one bag atomically."""
    from .. import __version__

    with replacing_hdf5(path) as f:
        for name, value in p.per_instance().items():
            f.create_dataset(name, data=value)
        f.attrs.update({"name": p.name, "score_kind": p.score_kind, "kind": p.kind})
        f.attrs["probsa_version"] = __version__
        if p.stride is not None:
            f.attrs["pitch"] = p.stride
        if p.slides:
            f.attrs["slides"] = list(p.slides)


def read_instances(path: Path) -> Prediction:
    """Read the per-instance outputs of one bag; `probability` and `std` are empty arrays.

    Raises:
        BagError: the file is missing, damaged, or does not contain predictions.
    """
    if not path.is_file():
        raise BagError(f"there are no per-instance outputs at {path}: run `probsa predict` again")
    with open_hdf5(path, again=AGAIN) as f:
        attributes = attributes_of(f)
        datasets: dict[str, h5py.Dataset] = {}
        for key in PER_INSTANCE:
            dataset = dataset_of(f, key, again=AGAIN)
            if dataset is not None:
                datasets[key] = dataset
        missing = [key for key in OF_EVERY_INSTANCE if key not in datasets]
        missing += [key for key in STATED if key not in attributes]
        if missing:
            raise BagError(
                f"{path} is not a file of predictions: it lacks {', '.join(missing)}; it has "
                f"{', '.join(f) or 'nothing'}"
            )
        # pictures are named after the bag
        for key, choices in (STATED | {"name": (path.stem,)}).items():
            if not isinstance(attributes[key], str) or attributes[key] not in choices:
                raise BagError(
                    f"{path}: {key} is {attributes[key]!r:.60}, expected {' or '.join(choices)}: "
                    f"{AGAIN}"
                )
        _check_shapes(datasets, path=path)  # before anything is read
        arrays = {key: np.asarray(dataset[()]) for key, dataset in datasets.items()}
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise BagError(f"{path}: {key} has values that are not finite: {AGAIN}")
    if "coords" in arrays:
        as_coordinates(arrays["coords"], source=path)  # refuses numbers that are no pixels
    stride = numeric_attribute(attributes, "pitch")
    slides = tuple(str(slide) for slide in np.atleast_1d(attributes.get("slides", [])))
    slide_indices = set(np.unique(arrays["slide"])) if "slide" in arrays else set()
    if bool(slide_indices) != bool(slides) or not slide_indices <= set(range(len(slides))):
        raise BagError(f"{path}: its instances and the slides {slides} do not fit: {AGAIN}")
    empty = np.empty(0, dtype=np.float32)
    return Prediction(
        probability=empty,
        std=empty,
        stride=None if stride is None else float(stride),
        slides=slides,
        **{key: str(attributes[key]) for key in STATED},
        **{"coords": None, **arrays},
    )


def _check_shapes(datasets: Mapping[str, h5py.Dataset], *, path: Path) -> None:
    """Refuse arrays of instances whose stated sizes do not fit each other.

    Raises:
        BagError: names the array.
    """
    attention = datasets["attention_mean"].shape
    instances = attention[0] if attention else 0
    for key, dataset in datasets.items():
        PER_INSTANCE[key].check(dataset, what=key, where=path, rows=instances, again=AGAIN)
        if key in LIKE_ATTENTION and dataset.ndim == 2 and dataset.shape != attention:
            raise BagError(
                f"{path}: {key} has the shape {dataset.shape}, expected that of attention_mean, "
                f"{attention}: {AGAIN}"
            )
