"""Predictions on disk: one table of bags, and one HDF5 file of per-instance outputs per bag.

predictions.csv     bag,part,label,prediction,p_<class>…,sd_<class>… (a single logit: one class),
                    ood,ood_distance where the run has distances; slides (used/expected) of patients
predictions.json    threshold, classes, and the origin of the predictions
instances/<bag>.h5  coords, attention_*, variance_*, weight_*, degree, instance_labels, and, where
                    the model has them, the arrays that explain the prediction
"""

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..core import (
    CLASS_TASKS,
    DataFrame,
    PositiveFloat,
    Task,
    TextTable,
    UnitInterval,
    as_record,
    read_json,
    write_csv,
    write_json,
)
from ..errors import BagError, InputError, OutputExists, TableError, UnknownName
from ..jobs import sole_writer
from .instance_files import read_instances as read_instances
from .instance_files import write_instances as write_instances
from .prediction import Prediction
from .table_cells import read_columns, read_distances, read_label, read_numbers, read_shares
from .table_rows import (
    SCORES,
    SPREAD,
    Target,
    cells_of,
    has_classes,
    label_columns,
    value_columns,
)

PREDICTIONS_TABLE, METADATA, INSTANCES = "predictions.csv", "predictions.json", "instances"
NULL_SCORES = "null_maps"
"""Folder of the scores of null maps, see `null_files`."""
WINDOWS = os.name == "nt"
NOT_ON_WINDOWS = re.compile(r'[<>:"|?*\\]')
FAILED = "failed.csv"
"""Table of the bags that could not be predicted, which `probsa predict` writes."""
NOTES = "notes.json"
"""Remarks on the bags, such as an estimated stride, which `probsa predict` writes."""
FAITHFULNESS = "faithfulness.json"
"""Curves of deletion of each bag, which `probsa predict --faithfulness` writes."""


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
    threshold: float | None
    metadata: dict[str, Any]
    std_within: Float[np.ndarray, "bags columns"] | None = None
    """None for predictions of one model, as `std_between`."""
    std_between: Float[np.ndarray, "bags columns"] | None = None
    ood: Float[np.ndarray, " bags"] | None = None
    """How far each bag is from training, as in `Prediction.bag_ood`; None if it is not known."""
    ood_distance: Float[np.ndarray, " bags"] | None = None
    task: Task = "binary"
    outputs: tuple[str, ...] = ()
    """Names of the columns of `probability`, for tasks without classes."""
    targets: Float[np.ndarray, "bags targets"] | None = None
    """What each bag is labelled with, for tasks without classes; nan where it is not known."""
    scores: Mapping[str, Float[np.ndarray, " bags"]] = field(default_factory=dict)
    """Scores of the labelled bags that need the whole predictive distribution, such as `nll`."""

    def instance_path(self, bag: str) -> Path:
        """Return the path of a bag's per-instance outputs, which need not exist."""
        return self.folder / INSTANCES / f"{bag}.h5"

    def to_frame(self) -> DataFrame:
        """Return a data frame with one row per bag; of one bag's instances: `instances(bag)`."""
        from .frames import bags_frame

        return bags_frame(self)

    def instances(self, bag: str) -> Prediction:
        """Read the per-instance outputs of a bag and join them with its row of the table.

        Raises:
            UnknownName: the bag is not in the table.
            BagError: the file of its outputs is missing or damaged.
        """
        if bag not in self.bags:
            raise UnknownName("predicted bag", bag, self.bags)
        row = self.bags.index(bag)

        def of_bag(table: np.ndarray | None) -> np.ndarray | None:
            return None if table is None else table[row].astype(np.float32)

        return replace(
            read_instances(self.instance_path(bag)),
            probability=self.probability[row].astype(np.float32),
            std=self.std[row].astype(np.float32),
            std_within=of_bag(self.std_within),
            std_between=of_bag(self.std_between),
            task=self.task,
            outputs=self.classes if self.task == "ordinal" else self.outputs,
        )


def write_predictions(
    folder: Path,
    predictions: Iterable[Prediction],
    *,
    labels: Mapping[str, Target | None],
    parts: Mapping[str, str],
    classes: Sequence[str],
    threshold: float | None,
    metadata: Mapping[str, object],
    overwrite: bool = False,
) -> None:
    """Write predictions one by one; `folder` appears once all are written, or not at all.

    Args:
        folder: new or empty folder, or with `overwrite` one that this function wrote.
        predictions: the predictions; only one at a time is kept in memory.
        labels: class index of each bag, or its targets; a bag that is missing here has none.
        parts: part of each bag in the run (train, val, test or new); new if it is missing here.
        classes: class names in the order of their index; a single logit is that of the last one.
        threshold: p(Y = 1) from which a bag is called positive; None for 0.5.
        metadata: further entries for predictions.json.
        overwrite: whether to replace existing predictions.

    Raises:
        OutputExists: the folder exists and is not empty.
        BagError: two bags have the same name, a name cannot be a file name, or a probability lies
            outside [0, 1].
        InputError: there are no predictions, or they do not fit the classes.
    """
    folder = Path(folder)
    _check_output(folder, overwrite=overwrite)
    with _new_folder(folder, overwrite=overwrite) as new:
        rows: list[dict[str, object]] = []
        header: list[str] = []
        seen: set[str] = set()
        of_task: dict[str, object] = {}
        for p in predictions:
            if p.name in seen:
                raise BagError(f"two bags are named {p.name!r}: their predictions need two names")
            seen.add(p.name)
            write_instances(_new_path(new, p.name), p)
            row = {"bag": p.name, "part": parts.get(p.name, "new")}
            row |= cells_of(p, target=labels.get(p.name), classes=classes, threshold=threshold)
            header += [column for column in row if column not in header]
            rows.append(row)
            if p.task not in CLASS_TASKS:
                of_task = {"task": p.task, "outputs": list(p.outputs)}
        if not rows:
            raise InputError(f"there are no predictions to write to {folder}")
        write_csv(new / PREDICTIONS_TABLE, header, rows)
        known = {"threshold": threshold, "classes": list(classes), **of_task}
        write_json(new / METADATA, {**known, **metadata})


def _new_path(folder: Path, name: str) -> Path:
    """Return the path of a bag's outputs, which no other bag has taken."""
    path = folder / INSTANCES / f"{_file_name(name)}.h5"
    if path.exists():
        raise BagError(
            f"bag {name!r} has the file name of another bag, because this disk ignores case: "
            "rename one of them"
        )
    return path


def read_predictions(folder: Path) -> Predictions:
    """Read the table of a predictions folder; per-instance files are read on demand.

    Raises:
        InputError: the folder does not exist, or its predictions.json is damaged.
        TableError: predictions.csv is missing, or a column or cell cannot be used.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: create it with `probsa predict RUN --out`")
    path = folder / PREDICTIONS_TABLE
    if not path.is_file():
        raise TableError(
            f"{folder} has no {PREDICTIONS_TABLE}: give a folder that `probsa predict` wrote"
        )
    metadata = _read_metadata(folder / METADATA)
    rows = TextTable.read(path).rows
    if not rows:
        raise TableError(f"{path} has no rows")
    _check_names(rows, path)
    task: Task = metadata.pop("task", None) or "binary"
    if not has_classes(task):
        return _of_targets(folder, rows, metadata, task=task)
    columns = [c.removeprefix("p_") for c in rows[0] if c.startswith("p_")]
    wanted = ["bag", *(["p_<class>"] if not columns else [f"sd_{c}" for c in columns])]
    if metadata:  # the command wrote both files
        wanted += ["part", "label", "prediction"]
    missing = [c for c in wanted if c not in rows[0]]
    if missing:
        raise TableError(f"{path} has no column {missing[0]!r}: it has {', '.join(rows[0])}")
    of_members = all(f"sd_{k}_{c}" in rows[0] for k in ("within", "between") for c in columns)
    threshold = metadata.pop("threshold", None)
    return Predictions(
        folder=folder,
        bags=tuple(row["bag"] for row in rows),
        parts=tuple(row.get("part") or "new" for row in rows),
        task="multiclass" if task == "binary" and len(columns) > 2 else task,
        labels=tuple(read_label(row.get("label", ""), path, bag=row["bag"]) for row in rows),
        probability=read_columns(rows, "p", columns, path),
        std=read_columns(rows, "sd", columns, path),
        std_within=read_columns(rows, "sd_within", columns, path) if of_members else None,
        std_between=read_columns(rows, "sd_between", columns, path) if of_members else None,
        ood=read_shares(rows, "ood", path),
        ood_distance=read_distances(rows, "ood_distance", path),
        classes=_stored_classes(metadata.pop("classes", columns), columns, path),
        threshold=None if threshold is None else float(threshold),
        metadata=metadata,
    )


def _check_names(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    if "bag" not in rows[0]:
        raise TableError(f"{path} has no column 'bag': it has {', '.join(rows[0])}")
    for row in rows:
        if row["bag"]:
            _file_name(row["bag"])  # its maps and instances are files of this name
    bags = Counter(row["bag"] for row in rows)
    twice = [bag for bag, times in bags.items() if times > 1 or not bag]
    if twice:
        raise TableError(f"{path}: bag {twice[0]!r} has an empty name, or more than one row")


def _of_targets(
    folder: Path, rows: list[dict[str, str]], metadata: dict[str, Any], *, task: Task
) -> Predictions:
    """Return the predictions of a task without classes."""
    path = folder / PREDICTIONS_TABLE
    classes, outputs = (tuple(map(str, metadata.pop(k, ()))) for k in ("classes", "outputs"))
    columns, labels = value_columns(task, outputs), label_columns(task, classes)
    known = {"bag", "part", *labels, *columns, *(f"{SPREAD}{n}" for n in outputs)}
    missing = sorted(known - {*rows[0]})
    if missing or not outputs:
        raise TableError(
            f"{path} has no column {(missing or ['of the prediction'])[0]!r}: predict again"
        )
    metadata.pop("threshold", None)
    scores = [c for c in SCORES if c in rows[0]]
    limits: dict[str, Any] = {"within": (0, 1)} if task == "multilabel" else {}
    return Predictions(
        folder=folder,
        bags=tuple(row["bag"] for row in rows),
        parts=tuple(row["part"] or "new" for row in rows),
        labels=(None,) * len(rows),
        probability=read_numbers(rows, columns, path, **limits),
        std=read_numbers(rows, [f"{SPREAD}{n}" for n in outputs], path),
        classes=classes,
        threshold=None,
        metadata=metadata,
        ood=read_shares(rows, "ood", path),
        ood_distance=read_distances(rows, "ood_distance", path),
        task=task,
        outputs=outputs,
        targets=read_numbers(rows, labels, path, optional=True),
        scores={c: read_numbers(rows, [c], path, optional=True)[:, 0] for c in scores},
    )


def _stored_classes(classes: Sequence[Any], columns: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the classes, after comparing them with the columns of the table."""
    names = tuple(str(c) for c in classes)
    single = names[-1:] if len(names) == 2 else names
    if tuple(columns) not in (names, single):
        raise TableError(
            f"{path} has probabilities of {', '.join(columns)}, but {METADATA} states the classes "
            f"{', '.join(names) or '(none)'}: predict again"
        )
    return names


def _file_name(bag: str) -> str:
    if not bag or bag in (".", "..") or "/" in bag or os.sep in bag or "\0" in bag:
        raise BagError(f"bag {bag!r} cannot be a file name: rename it without '/'")
    if WINDOWS and (NOT_ON_WINDOWS.search(bag) or bag[-1] in ". "):
        # 'a:b' would silently become a hidden stream of the file 'a'
        raise BagError(
            f'bag {bag!r} cannot be a file name on Windows: rename it without <>:"|?*\\ and '
            "without a dot or space at the end"
        )
    return bag


def _check_output(folder: Path, *, overwrite: bool) -> None:
    existing = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and not folder.is_dir():
        raise OutputExists(f"{folder} is a file: give a new folder")
    if existing and not overwrite:
        raise OutputExists(f"{folder} exists and is not empty: give a new folder or --overwrite")
    own = {PREDICTIONS_TABLE, METADATA, INSTANCES, FAILED, NOTES, FAITHFULNESS, NULL_SCORES}
    foreign = existing - own
    if foreign:
        raise OutputExists(
            f"{folder} contains {sorted(foreign)[0]!r}, which does not belong to predictions and "
            "would be deleted: give another folder"
        )


@contextmanager
def _new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Create a temporary folder that replaces `folder` on success and is removed on failure."""
    with sole_writer(folder):
        _recover(folder)
        _check_output(folder, overwrite=overwrite)
        with _replacement(folder) as new:
            yield new


def _recover(folder: Path) -> None:
    """Put back, or remove, earlier predictions that a killed process had put aside."""
    name = re.compile(re.escape(f".{folder.name}.") + r"[a-z0-9_]{8}\.old")
    for old in [p for p in folder.parent.iterdir() if name.fullmatch(p.name)]:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.replace(folder)


@contextmanager
def _replacement(folder: Path) -> Iterator[Path]:
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    try:
        new.chmod(0o755)
        (new / INSTANCES).mkdir()
        yield new
        old = new.with_suffix(".old")
        if folder.exists():
            folder.replace(old)
        try:
            new.replace(folder)
        except OSError:
            if old.exists():
                old.replace(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _read_metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    metadata = read_json(path, advice="predict again")
    as_record(_StoredMetadata, metadata, where=str(path), advice="predict again")
    missing = [key for key in ("threshold", "classes") if key not in metadata]
    if missing:
        raise InputError(f"{path} has no key {missing[0]!r}: predict again")
    return metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredMetadata:
    """The keys of predictions.json that are used again; a model may add others."""

    threshold: UnitInterval | None = None
    classes: tuple[str, ...] | None = None
    model: str = ""
    temperature: PositiveFloat | None = None
    kappa: float | tuple[float, ...] | None = None
    neighbour_share: float | None = None
    task: Task | None = None
    outputs: tuple[str, ...] = ()
