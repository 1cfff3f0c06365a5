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
PREDICTIONS_TABLE, METADATA, INSTANCES = "predictions.csv", "predictions.json", "instances"
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
    PREDICTIONS_TABLE, METADATA, INSTANCES, NULL_SCORES, FAILED, NOTES, MEAN_FEATURES, SLIDES,
    FAITHFULNESS,
}  # fmt: skip
AGAIN = "predict this bag again"
SHOWN = 5
"""Number of names listed in texts; JSON reports have all of them."""
PARTS = ("train", "val", "test", "new", "unused")
"""The parts of a run's split that a predicted bag may belong to."""
SCORES = ("nll", "crps")
"""Columns with the scores of labelled bags, for tasks without classes."""
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

        def number(row: Mapping[str, str], name: str) -> float:
            if self.blank and not row[name]:
                return math.nan
            return self._number(row[name], name, f"{path}, bag {row['bag']!r}")

        return np.array([[number(row, name) for name in self.names] for row in rows])

    def cells(self, p: Prediction) -> dict[str, str]:
        """Return the cells of one bag: the shortest text of each float32; none without a value.

        Raises:
            BagError: a value is no finite number within the limits.
        """
        of_bag = {"ood": p.bag_ood, "ood_distance": p.bag_ood_distance}
        of_bag |= {name: np.float32(score) for name, score in p.scores.items()}
        value = of_bag.get(self.field, getattr(p, self.field, None))
        if value is None:
            return {}
        cells = {n: str(v) for n, v in zip(self.names, np.atleast_1d(value), strict=True)}
        advice = ": its features are far from those of training, or the training diverged"
        try:
            for name, text in cells.items():
                self._number(text, name, f"bag {p.name!r}", advice)
        except TableError as error:
            raise BagError(str(error)) from None
        return cells

    def _number(self, text: str, name: str, where: str, advice: str = "") -> float:
        return read_number(text, name, where=where, low=self.low, high=self.high, advice=advice)


def columns_of(
    task: TaskName, *, names: Sequence[str], classes: Sequence[str]
) -> tuple[Columns, ...]:
    """Return the columns of numbers of a task: of each of `names`, its classes or outputs."""

    def each(start: str) -> tuple[str, ...]:
        return tuple(f"{start}_{name}" for name in names)

    of_task, share = TASKS[task], TASKS[task].by_probability
    values = tuple(of_task.value_prefix + name for name in names)
    if of_task.has_classes:
        columns = (
            Columns("probability", values, 0.0, 1.0),
            Columns("std", each("sd"), 0.0, 1.0),
            Columns("std_within", each("sd_within"), 0.0, 1.0, optional=True),
            Columns("std_between", each("sd_between"), 0.0, 1.0, optional=True),
        )
    else:
        columns = (
            Columns("targets", of_task.labels.label_columns(classes), blank=True),
            Columns("probability", values, 0.0 if share else -math.inf, 1.0 if share else math.inf),
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

    folder: Path
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

    def instances(self, bag: str) -> Prediction:
        """Read the per-instance outputs of a bag and join them with its row of the table.

        Raises:
            UnknownName: the bag is not in the table.
            BagError: the file of its outputs is missing or damaged.
        """
        if bag not in self.bags:
            raise UnknownName("predicted bag", bag, self.bags)
        row, task = self.bags.index(bag), self.of_task
        tables = {k: getattr(self, k) for k in ("probability", "std", "std_within", "std_between")}
        graded = task.has_classes and not task.unordered_classes
        return replace(
            read_instances(self.instance_path(bag)),
            **{k: None if v is None else v[row].astype(np.float32) for k, v in tables.items()},
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
        columns["call"] = [
            self.of_task.verdict(self.row(k), stated_of(self)).call for k in range(len(self.bags))
        ]
        for c in columns_of(self.task, names=names, classes=self.classes):
            values = self.scores.get(c.field, getattr(self, c.field, None))
            if values is not None:
                rows = values.reshape(len(self.bags), len(c.names))
                columns |= dict(zip(c.names, rows.T, strict=True))
        return pd.DataFrame(columns)


def listed(names: Sequence[str], *, what: str = "bag") -> str:
    """Return how many bags (or groups) there are, and the names of the first ones."""
    shown = ", ".join(repr(n) for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{counted(len(names), what)} ({shown}{more})"


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
    names = tuple(c.removeprefix("p_") for c in table.columns if c.startswith("p_"))
    task = TASKS[stated.task or task_of_classes(len(names))]
    classes = names if stated.classes is None else stated.classes
    outputs = NO_OUTPUTS
    if not task.has_classes:
        outputs = _stored_outputs(task, stated.outputs or (), folder / METADATA)
    schema = columns_of(task.name, names=outputs.names or names or ["<class>"], classes=classes)
    wanted = [c for columns in schema if not columns.optional for c in columns.names]
    if entries:  # written by the package; a bare table is enough otherwise
        wanted += ["part", *(("label", "prediction") if task.has_classes else ())]
    table.select("bag", *wanted)
    rows = [cells for _, cells in table.by_name("bag").values()]
    for row in rows:
        check_file_name(row["bag"])  # its maps and instances are files of this name
    if task.has_classes and names not in (classes, classes[-1:] if len(classes) == 2 else classes):
        raise TableError(
            f"{path} has probabilities of {', '.join(names)}, but {METADATA} states the classes "
            f"{', '.join(classes) or '(none)'}: predict again"
        )
    values: dict[str, Any] = {
        c.field: c.read(rows, path)
        for c in schema
        if not c.optional or all(n in table.columns for n in c.names)
    }
    values |= {k: v[:, 0] for k, v in values.items() if k in (*SCORES, "ood", "ood_distance")}
    bags = tuple(row["bag"] for row in rows)
    parts = tuple(_part(row, path) for row in rows)
    labels: tuple[int | None, ...] = (None,) * len(rows)
    if task.has_classes:
        labels = tuple(_label(row, path, max(len(classes), 2)) for row in rows)
    group_of: dict[str, str] = {}
    if "group" in table.columns:
        stated_groups = {row["bag"]: row["group"] for row in rows}
        group_of = dict(zip(bags, group_keys(bags, stated_groups), strict=True))
    used = {"task", "classes", "threshold"}
    if not task.has_classes:
        used.add("outputs")
    others = {key: value for key, value in entries.items() if key not in used}
    return Predictions(
        folder=folder,
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
        metadata=PredictionsMetadata.of(others, where=str(file)),
        task=task.name,
        outputs=outputs,
        scores={k: values.pop(k) for k in SCORES if k in values},
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


def _part(row: Mapping[str, str], path: Path) -> str:
    part = row.get("part") or "new"
    if part not in PARTS:
        raise TableError(
            f"{path}, bag {row['bag']!r}: part is {part[:80]!r}, expected {', '.join(PARTS)}"
        )
    return part


def _label(row: Mapping[str, str], path: Path, classes: int) -> int | None:
    where, text = f"{path}, bag {row['bag']!r}", row.get("label")
    if not text:
        return None
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
    known = [k for k, part in enumerate(parts) if part == "val" and positive[k] is not None]
    if not known:
        return Threshold(value=HALF, origin="default")
    y = np.array([positive[k] for k in known], dtype=bool)
    return choose_threshold(y, p[known, -1].astype(np.float64))


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
            f"{table.folder}: the threshold {rule!r} cannot be chosen on its validation bags: "
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
        of_task: dict[str, object] = {}
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
                of_task = {"task": p.task, "outputs": list(p.outputs.names)}
        if not rows or task is None:
            raise InputError(f"there are no predictions to write to {folder}")
        if task.has_classes:
            _add_calls(rows.values(), task, np.array(probabilities), stored=threshold)
        header = list(dict.fromkeys(column for row in rows.values() for column in row))
        write_csv(new / PREDICTIONS_TABLE, header, list(rows.values()))
        known = {"threshold": threshold, "classes": list(classes), **of_task}
        write_json(new / METADATA, {**known, **metadata})
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
    width, names = len(p.probability), p.outputs.names
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
        texts = [None if np.isnan(v) else f"{v:.9g}" for v in np.atleast_1d(target)]
        cells |= zip(tuple(cells), texts, strict=True)
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
    own: Collection[str],
    *,
    of: str = "predictions and would be deleted",
    overwrite: bool = True,
) -> None:
    """Refuse a folder that is a file, holds foreign files, or, without `overwrite`, any.

    Raises:
        OutputExists: names the folder and the file.
    """
    check_folder_place(folder)
    existing = {p.name for p in folder.glob("*")} - {LEDGER}
    if existing and not overwrite:
        raise OutputExists(f"{folder} exists and is not empty: give a new folder or --overwrite")
    if foreign := existing - set(own):
        raise OutputExists(
            f"{folder} contains {min(foreign)!r}, which does not belong to {of}: give another "
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
        stored = {k: dataset_of(f, k, again=AGAIN) for k in PER_INSTANCE}
        stored, attributes = {k: v for k, v in stored.items() if v is not None}, attributes_of(f)
        missing = [k for k in OF_EVERY_INSTANCE if k not in stored]
        missing += [k for k in STATED if k not in attributes]
        if missing:
            raise BagError(
                f"{path} is not a file of predictions: it lacks {', '.join(missing)}; it has "
                f"{', '.join(f) or 'nothing'}"
            )
        # Pictures are named after the bag.
        for key, known in (STATED | {"name": (path.stem,)}).items():
            if not isinstance(attributes[key], str) or attributes[key] not in known:
                raise BagError(
                    f"{path}: {key} is {attributes[key]!r:.60}, expected {' or '.join(known)}: "
                    f"{AGAIN}"
                )
        attention = stored["attention_mean"].shape
        for k, v in stored.items():  # the stated sizes are checked before anything is read
            PER_INSTANCE[k].check(v, what=k, where=path, rows=(*attention, 0)[0], again=AGAIN)
            if k in LIKE_ATTENTION and v.ndim == 2 and v.shape != attention:
                raise BagError(
                    f"{path}: {k} has the shape {v.shape}, expected that of attention_mean, "
                    f"{attention}: {AGAIN}"
                )
        arrays = {k: np.asarray(v[()]) for k, v in stored.items()}
    for k, v in arrays.items():
        if not np.isfinite(v).all():
            raise BagError(f"{path}: {k} has values that are not finite: {AGAIN}")
    if "coords" in arrays:
        as_coordinates(arrays["coords"], source=path)  # refuses numbers that are no pixels
    stride = numeric_attribute(attributes, "pitch")
    slides = tuple(str(s) for s in np.atleast_1d(attributes.get("slides", [])))
    used = set(np.unique(arrays["slide"])) if "slide" in arrays else set()
    if bool(used) != bool(slides) or not used <= set(range(len(slides))):
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
