"""Predictions on disk: one table of bags, one HDF5 file of per-instance outputs a bag.

predictions.csv     bag,part,label,prediction,p_<class>…,sd_<class>… (one logit: the positive one)
predictions.json    threshold, classes, and where they come from
instances/<bag>.h5  coords, attention_*, weight_*, degree, instance_labels
"""

import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float

from ..core import read_csv, replacing_hdf5, write_csv, write_json
from ..errors import BagError, InputError, OutputExists, TableError, UnknownName
from .prediction import Prediction

TABLE, ABOUT, INSTANCES = "predictions.csv", "predictions.json", "instances"
FAILED = "failed.csv"
"""Written by the command beside the table: the bags that could not be predicted."""
PARTS = ("train", "val", "test", "new")
"""Of the run that predicts: what it was trained, chosen and tested on; `new` is none of them."""

_PER_INSTANCE = (
    "attention_mean",
    "attention_variance",
    "weight_mean",
    "weight_variance",
    "degree",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """The table of bags; every tuple and array is in its order."""

    folder: Path
    bags: tuple[str, ...]
    parts: tuple[str, ...]
    labels: tuple[int | None, ...]
    """Class indices as stored at prediction time; None where there was no label."""
    probability: Float[np.ndarray, "bags columns"]
    """float64; one column, p(Y = 1), for one logit, else one a class."""
    std: Float[np.ndarray, "bags columns"]
    classes: tuple[str, ...]
    threshold: float | None
    metadata: dict[str, Any]

    def instance_path(self, bag: str) -> Path:
        """Where the per-instance outputs of a bag are, if they are there."""
        return self.folder / INSTANCES / f"{bag}.h5"

    def instances(self, bag: str) -> Prediction:
        """All that is known of one bag: its row of the table and its per-instance outputs.

        Raises:
            UnknownName: no such bag in the table.
            BagError: its file is missing or damaged.
        """
        if bag not in self.bags:
            raise UnknownName("predicted bag", bag, self.bags)
        row = self.bags.index(bag)
        return replace(
            read_instances(self.instance_path(bag)),
            probability=self.probability[row].astype(np.float32),
            std=self.std[row].astype(np.float32),
        )


def write_predictions(
    folder: Path,
    predictions: Iterable[Prediction],
    *,
    labels: Mapping[str, int | None],
    parts: Mapping[str, str],
    classes: Sequence[str],
    threshold: float | None,
    metadata: Mapping[str, object],
    overwrite: bool = False,
) -> None:
    """Writes predictions as they come; `folder` appears when all are written, or not at all.

    Args:
        folder: new or empty (with `overwrite`: or one that this function wrote).
        predictions: taken one at a time, so that memory does not grow with the number of bags.
        labels: class index by bag; a bag that is missing here has none.
        parts: train, val, test or new by bag; new where missing.
        classes: names in the order of their index; one logit has the last one's probability.
        threshold: p(Y = 1) from which a bag is called positive; None: 0.5.
        about: further entries for predictions.json.
        overwrite: replace predictions that are there.

    Raises:
        OutputExists: the folder is there and not empty.
        BagError: two bags of one name, a name that is no file name, a probability that is none.
    """
    folder = Path(folder)
    _refuse(folder, overwrite=overwrite)
    with _new_folder(folder) as new:
        rows: list[dict[str, object]] = []
        header: list[str] = []
        seen: set[str] = set()
        for p in predictions:
            if p.name in seen:
                raise BagError(f"two bags are named {p.name!r}: their predictions need two names")
            seen.add(p.name)
            columns = _columns(classes, len(p.probability), bag=p.name)
            header = ["bag", "part", "label", "prediction"]
            header += [f"p_{c}" for c in columns] + [f"sd_{c}" for c in columns]
            write_instances(new / INSTANCES / f"{_file_name(p.name)}.h5", p)
            rows.append(
                {
                    "bag": p.name,
                    "part": parts.get(p.name, "new"),
                    "label": labels.get(p.name),
                    **_cells(p, columns, threshold=threshold),
                }
            )
        if not rows:
            raise InputError(f"there is no prediction to write to {folder}")
        write_csv(new / TABLE, header, rows)
        write_json(new / ABOUT, {"threshold": threshold, "classes": list(classes), **metadata})


def write_instances(path: Path, p: Prediction) -> None:
    """Writes what the attention says of each instance of one bag, atomically."""
    from .. import __version__

    with replacing_hdf5(path) as f:
        for name in (*_PER_INSTANCE, "coords", "instance_labels"):
            value = getattr(p, name)
            if value is not None:
                f.create_dataset(name, data=value)
        f.attrs.update(
            {"name": p.name, "score_kind": p.score_kind, "kind": p.kind}
            | {"probsa_version": __version__}
        )
        if p.stride is not None:
            f.attrs["pitch"] = p.stride


def read_instances(path: Path) -> Prediction:
    """Reads the per-instance outputs of one bag; its probability and spread are empty arrays.

    Raises:
        BagError: the file is missing, damaged or not of this kind.
    """
    if not path.is_file():
        raise BagError(f"there are no per-instance outputs at {path}: run `probsa predict` again")
    try:
        with h5py.File(path, "r") as f:
            held = {k: np.asarray(v[()]) for k, v in f.items() if isinstance(v, h5py.Dataset)}
            attributes: dict[str, Any] = dict(f.attrs)
    except (OSError, RuntimeError) as error:
        raise BagError(
            f"{path} cannot be read as HDF5 ({error}): predict this bag again"
        ) from error
    missing = [k for k in _PER_INSTANCE if k not in held]
    missing += [k for k in ("name", "score_kind", "kind") if k not in attributes]
    if missing:
        raise BagError(
            f"{path} holds no predictions: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; it has {', '.join(held) or 'nothing'}"
        )
    n = len(held["attention_mean"])
    for k, v in held.items():
        if v.ndim == 0 or len(v) != n:
            raise BagError(f"{path}: {k} has shape {v.shape}, but attention_mean has {n} rows")
    known = {f.name for f in fields(Prediction)}
    empty = np.empty(0, dtype=np.float32)
    stride = attributes.get("pitch")
    return Prediction(
        name=str(attributes["name"]),
        probability=empty,
        std=empty,
        score_kind=str(attributes["score_kind"]),
        kind=str(attributes["kind"]),
        stride=None if stride is None else float(stride),
        **{"coords": None, **{k: v for k, v in held.items() if k in known}},
    )


def read_predictions(folder: Path) -> Predictions:
    """Reads the table of a folder of predictions; per-instance files are read when asked for.

    Raises:
        InputError: no such folder, or its predictions.json is damaged.
        TableError: predictions.csv is missing, or a column or cell cannot be used.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: `probsa predict RUN --out` makes one")
    path = folder / TABLE
    if not path.is_file():
        raise TableError(f"{folder} has no {TABLE}: it is no folder of `probsa predict`")
    metadata = _about(folder / ABOUT)
    rows = read_csv(path)
    if not rows:
        raise TableError(f"{path} has no rows")
    columns = [c.removeprefix("p_") for c in rows[0] if c.startswith("p_")]
    wanted = ["bag", *(["p_<class>"] if not columns else [f"sd_{c}" for c in columns])]
    missing = [c for c in wanted if c not in rows[0]]
    if missing:
        raise TableError(f"{path} has no column {missing[0]!r}: it has {', '.join(rows[0])}")
    bags = tuple(row["bag"] for row in rows)
    twice = [bag for bag, times in Counter(bags).items() if times > 1 or not bag]
    if twice:
        raise TableError(f"{path}: bag {twice[0]!r} has no name, or more than one row")
    threshold = metadata.pop("threshold", None)
    return Predictions(
        folder=folder,
        bags=bags,
        parts=tuple(row.get("part") or "new" for row in rows),
        labels=tuple(_label(row.get("label", ""), path, bag=row["bag"]) for row in rows),
        probability=np.array([[_share(r, f"p_{c}", path) for c in columns] for r in rows]),
        std=np.array([[_share(r, f"sd_{c}", path) for c in columns] for r in rows]),
        classes=tuple(str(c) for c in metadata.pop("classes", columns)),
        threshold=None if threshold is None else float(threshold),
        metadata=metadata,
    )


def _columns(classes: Sequence[str], width: int, *, bag: str) -> list[str]:
    """The classes that have a column: the last of two for one logit, else all of them."""
    if width == 1 and len(classes) in (1, 2):
        return [classes[-1]]
    if width != len(classes):
        raise InputError(
            f"bag {bag!r} has {width} probabilities, but there are {len(classes)} classes "
            f"({', '.join(classes)})"
        )
    return list(classes)


def _cells(p: Prediction, columns: list[str], *, threshold: float | None) -> dict[str, object]:
    # The shortest text that names the float; decisions are made on the number that it says.
    text = [str(v) for v in p.probability]
    value = np.array([float(t) for t in text])
    if not bool(((value >= 0) & (value <= 1)).all()):
        raise BagError(
            f"bag {p.name!r} was given the probability {', '.join(text)}, expected 0 to 1: "
            "its features are far from those of training, or the training diverged"
        )
    if len(value) == 1 or (len(value) == 2 and threshold is not None):
        prediction = int(value[-1] >= (0.5 if threshold is None else threshold))
    else:
        prediction = int(value.argmax())
    return {
        "prediction": prediction,
        **{f"p_{c}": t for c, t in zip(columns, text, strict=True)},
        **{f"sd_{c}": str(v) for c, v in zip(columns, p.std, strict=True)},
    }


def _file_name(bag: str) -> str:
    if not bag or bag in (".", "..") or "/" in bag or os.sep in bag or "\0" in bag:
        raise BagError(f"bag {bag!r} cannot be a file name: rename it without '/'")
    return bag


def _refuse(folder: Path, *, overwrite: bool) -> None:
    there = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and not folder.is_dir():
        raise OutputExists(f"{folder} is a file: give a new folder")
    if there and not overwrite:
        raise OutputExists(f"{folder} exists and is not empty: give a new folder or --overwrite")
    foreign = there - {TABLE, ABOUT, INSTANCES, FAILED}
    if foreign:
        raise OutputExists(
            f"{folder} holds {sorted(foreign)[0]!r}, which is no prediction and would be lost: "
            "give another folder"
        )


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`; takes its place at the end, removed if anything fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
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


def _about(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is no JSON ({error}): predict again") from error
    if not isinstance(metadata, dict):
        raise InputError(
            f"{path} holds a {type(metadata).__name__}, expected threshold and classes"
        )
    return metadata


def _label(text: str, path: Path, *, bag: str) -> int | None:
    if not text:
        return None
    if not text.isdigit():
        raise TableError(f"{path}, bag {bag!r}: label {text!r} is no class number (0, 1, …)")
    return int(text)


def _share(row: Mapping[str, str], column: str, path: Path) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise TableError(
            f"{path}, bag {row['bag']!r}: {column} is {row[column]!r}, expected 0 to 1"
        )
    return value
