"""Stage 5: bags on disk, one HDF5 file a bag, in TRIDENT's layout with our stamps on the root.

Files without the stamps (TRIDENT's, CLAM's) are read as they are. A file that exists is complete.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import h5py
import numpy as np
from jaxtyping import Bool, Shaped

from ..errors import BagError, EmptyBag
from .files import replacing_hdf5

BagKind = Literal["slide", "ct"]

FORMAT = 1
"""`probsa_version` of the files written; a file of a later version is refused."""
UNREADABLE = (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""What h5py raises on damaged files: a flipped bit may make a type that does not exist."""
BLOCK = 8192
"""Rows looked at together when values are checked: the check needs no second copy of the bag."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBag:
    """What one file holds; `checked` sees that the rows agree, which the types leave open."""

    name: str
    features: Shaped[np.ndarray, "n features"]
    """float16 or float32, as stored."""
    coords: Shaped[np.ndarray, "rows axes"] | None = None
    """Level-0 (x, y) of each patch's top-left corner, or (n, 1) slice positions."""
    instance_labels: Shaped[np.ndarray, " labels"] | None = None
    """int64; never used in training."""
    kind: BagKind | None = None
    stride: float | None = None
    """Level-0 pixels between neighbouring patches; None where the file does not state them."""

    @property
    def nature(self) -> BagKind:
        """`kind`; where none is stated, one column of coordinates means a scan."""
        one_column = self.coords is not None and self.coords.shape[1] == 1
        return self.kind or ("ct" if one_column else "slide")


def checked(bag: StoredBag, *, source: Path) -> StoredBag:
    """The bag itself, once its parts agree.

    Raises:
        BagError: no instances, rows that disagree, or a value that is not finite.
    """
    where, n = f"bag {bag.name!r} ({source})", len(bag.features)
    if n == 0:
        raise EmptyBag(f"{where} is empty: a bag needs at least one instance. Leave the file out")
    for what, rows in (("coords", bag.coords), ("instance_labels", bag.instance_labels)):
        if rows is not None and len(rows) != n:
            raise BagError(
                f"{where}: features have {n} rows, {what} {len(rows)}. "
                "Both must describe the same instances: extract the features again"
            )
    if bag.coords is not None and bag.coords.shape[1] not in (1, 2):
        raise BagError(
            f"{where}: coords have {bag.coords.shape[1]} columns, expected 2 "
            "(level-0 x and y of a patch) or 1 (position of a slice)"
        )
    for what, values in (("features", bag.features), ("coords", bag.coords)):
        row = None if values is None else _first_bad_row(values)
        if row is not None:
            raise BagError(
                f"{where}: {what} of row {row} (counted from 0) hold NaN or infinity. "
                "Extract that bag again, or leave the file out"
            )
    return bag


def read_bag(path: Path, *, keep_unreadable: bool = False) -> StoredBag:
    """Reads a bag: ours, TRIDENT's, or CLAM's (which states nothing but features and coordinates).

    Instances whose pixels could not be read when the features were made are left out, unless they
    are asked for: their features are zeros.

    Raises:
        BagError: the file is missing, damaged, foreign, or its content does not hold together.
    """
    with opened(path) as f:
        features = _features(f, path)
        values = np.empty(features.shape, features.dtype)
        features.read_direct(values)
        corners, marks = _dataset(f, "coords"), _dataset(f, "instance_labels")
        coords = None if corners is None else as_columns(corners[...])
        stride = None if corners is None else stride_of(corners.attrs)
        labels = None if marks is None else marks[...].reshape(-1).astype(np.int64)
        kind = stated_kind(f, path)
        lost = _dataset(f, "unreadable")
        unreadable = None if lost is None or keep_unreadable else lost[...].reshape(-1) != 0
    bag = StoredBag(
        name=path.stem,
        features=as_features(values, source=path),
        coords=coords,
        instance_labels=labels,
        kind=kind,
        stride=stride,
    )
    return checked(bag if unreadable is None else _without(bag, unreadable, path), source=path)


def _without(bag: StoredBag, lost: Bool[np.ndarray, " n"], path: Path) -> StoredBag:
    """The bag without the instances that could not be read."""
    checked(bag, source=path)
    if len(lost) != len(bag.features):
        raise BagError(
            f"bag {bag.name!r} ({path}): features have {len(bag.features)} rows, unreadable "
            f"{len(lost)}. Extract the features again"
        )
    if not lost.any():
        return bag
    if lost.all():
        raise EmptyBag(
            f"bag {bag.name!r} ({path}): none of its {len(lost)} instances could be read when its "
            "features were made. Leave the file out"
        )
    there = ~lost
    return replace(
        bag,
        features=bag.features[there],
        coords=None if bag.coords is None else bag.coords[there],
        instance_labels=None if bag.instance_labels is None else bag.instance_labels[there],
    )


def peek_bag(path: Path) -> tuple[int, int]:
    """Instances and width of a bag, without reading its features.

    Raises:
        BagError: the file is missing, damaged or foreign.
    """
    with opened(path) as f:
        n, width = _features(f, path).shape[-2:]
        lost = _dataset(f, "unreadable")
        unreadable = 0 if lost is None else int(np.count_nonzero(lost[...]))
    return int(n) - unreadable, int(width)


def stamp(path: Path, key: str) -> str | None:
    """One of the stamps that `write_bag` left on a file; None where there is none.

    Raises:
        BagError: the file is missing or damaged.
    """
    with opened(path) as f:
        found = f.attrs.get(f"probsa_{key}")
    return None if found is None else str(found)


def stated_stride(path: Path) -> float | None:
    """The stride that a file of coordinates alone states (CLAM's and TRIDENT's `patches`).

    Raises:
        BagError: the file is damaged or holds no `coords`.
    """
    with opened(path) as f:
        corners = _dataset(f, "coords")
        if corners is None:
            raise BagError(f"{path} has no dataset 'coords': it is no file of patch coordinates")
        return stride_of(corners.attrs)


def write_bag(
    path: Path,
    *,
    features: Shaped[np.ndarray, "n features"],
    kind: BagKind,
    coords: Shaped[np.ndarray, "rows axes"] | None = None,
    instance_labels: Shaped[np.ndarray, " labels"] | None = None,
    unreadable: Shaped[np.ndarray, " flags"] | None = None,
    attributes: Mapping[str, object] | None = None,
    stamps: Mapping[str, str] | None = None,
) -> None:
    """Writes one bag atomically, after the same checks as reading makes.

    Args:
        path: the file; its stem is the bag's name.
        features: float16 or float32, kept; anything else becomes float32.
        kind: what the instances are: patches of a slide or slices of a CT scan.
        coords: level-0 (x, y) of each patch's top-left corner, or (n, 1) slice positions.
        instance_labels: for evaluation only.
        attributes: TRIDENT's (`patch_size`, `patch_size_level0`, `overlap`, …), kept on `coords`,
            or on `features` where there are no coordinates.
        unreadable: 1 for each instance whose pixels could not be read; left out when none is.
        stamps: what the features were made with (`made_with`, `encoder`, …), on the file's root.
    """
    if kind not in get_args(BagKind):
        raise BagError(f"bag {path.stem!r}: kind is {kind!r}, expected 'slide' or 'ct'")
    labels = None if instance_labels is None else instance_labels.astype(np.int64)
    bag = StoredBag(
        name=path.stem,
        features=as_features(features, source=path),
        coords=None if coords is None else as_columns(coords),
        instance_labels=labels,
        kind=kind,
    )
    checked(bag, source=path)
    with replacing_hdf5(path) as f:
        f.attrs["probsa_kind"] = kind
        f.attrs["probsa_version"] = FORMAT
        for key, value in (stamps or {}).items():
            f.attrs[f"probsa_{key}"] = value
        described = f.create_dataset("features", data=bag.features)
        if bag.coords is not None:
            described = f.create_dataset("coords", data=bag.coords)
        if labels is not None:
            small = labels.min() >= -128 and labels.max() <= 127
            f.create_dataset("instance_labels", data=labels.astype(np.int8) if small else labels)
        if unreadable is not None and unreadable.any():
            f.create_dataset("unreadable", data=unreadable.astype(np.int8))
        for key, value in (attributes or {}).items():
            described.attrs[key] = "None" if value is None else value


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The open file; whatever HDF5 cannot read becomes one sentence that names the file."""
    if not path.is_file():
        raise BagError(f"there is no file {path}")
    if not h5py.is_hdf5(path):
        raise BagError(
            f"{path} is no HDF5 file: expected one with a dataset 'features' (rows are "
            "instances). Was it only partly copied, or is it of another format?"
        )
    try:
        with h5py.File(path, "r") as f:
            yield f
    except BagError:
        raise
    except UNREADABLE as error:
        raise BagError(
            f"{path} cannot be read as HDF5: it is truncated or damaged ({error}). "
            "Copy or extract it again"
        ) from error


def _dataset(f: h5py.File, name: str) -> h5py.Dataset | None:
    found = f.get(name)
    return found if isinstance(found, h5py.Dataset) else None


def _features(f: h5py.File, path: Path) -> h5py.Dataset:
    found = _dataset(f, "features")
    if found is None:
        held = ", ".join(repr(k) for k in f) or "nothing"
        hint = ". STAMP's files need a folder of their own" if "feats" in f else ""
        raise BagError(f"{path} has no dataset 'features': it holds {held}{hint}")
    version = f.attrs.get("probsa_version", FORMAT)
    if int(version) > FORMAT:
        raise BagError(
            f"{path} is of format {int(version)}, this probsa reads up to {FORMAT}: update probsa"
        )
    shape = found.shape
    if shape[:1] == (0,):
        raise EmptyBag(
            f"bag {path.stem!r} ({path}) is empty: a bag needs at least one instance. "
            "Leave the file out"
        )
    if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
        return found
    hint = (
        ". One embedding of a whole slide is no bag: give the patches'" if len(shape) == 1 else ""
    )
    raise BagError(f"{path}: features have the shape {shape}, expected (instances, width){hint}")


def stated_kind(f: h5py.File, path: Path) -> BagKind | None:
    """What an open file says that its instances are.

    Raises:
        BagError: it says something else.
    """
    stated = f.attrs.get("probsa_kind")
    if stated is None and "coords" in f:
        stated = f["coords"].attrs.get("kind")
    if stated is None or stated in get_args(BagKind):
        return stated
    raise BagError(f"{path}: probsa_kind is {stated!r}, expected 'slide' or 'ct'")


def stride_of(attributes: Mapping[str, object]) -> float | None:
    """Level-0 pixels between neighbours, from our, TRIDENT's or CLAM's attributes of `coords`."""
    exact = number(attributes, "pitch")  # ours: TRIDENT's sizes are rounded
    if exact:
        return exact
    size, overlap = number(attributes, "patch_size"), number(attributes, "overlap") or 0.0
    whole = size_level0(attributes)
    return whole if not size or whole is None else (size - overlap) * whole / size


def size_level0(attributes: Mapping[str, object]) -> float | None:
    """Side of a patch in level-0 pixels, from our, TRIDENT's or CLAM's attributes of `coords`."""
    for key in ("size_level0", "patch_size_level0"):
        stated = number(attributes, key)
        if stated is not None:
            return stated
    size, downsample = number(attributes, "patch_size"), number(attributes, "downsample")
    if downsample is None and not number(attributes, "patch_level"):
        # TRIDENT's name for what CLAM's coordinates were made with, relative to their level
        downsample = number(attributes, "custom_downsample")
    return None if size is None or downsample is None else size * downsample


def number(attributes: Mapping[str, object], key: str) -> float | None:
    """An attribute as a number; TRIDENT writes what it does not know as the string 'None'."""
    value = np.asarray(attributes.get(key, np.nan)).reshape(-1)[:1]
    try:
        found = float(value[0])
    except (ValueError, IndexError):
        return None
    return found if np.isfinite(found) and found >= 0 else None


def as_features(values: np.ndarray, *, source: Path) -> Shaped[np.ndarray, "n features"]:
    """(n, width) in float16 or float32 of this machine's byte order; (1, n, width) is squeezed.

    Raises:
        BagError: the values are no numbers, or of another shape.
    """
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise BagError(
            f"{source}: features have the shape {values.shape}, expected (instances, width)"
        )
    if values.dtype.kind not in "fiu":
        raise BagError(f"{source}: features are of type {values.dtype}, expected numbers")
    kept = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    wanted = values.dtype.newbyteorder("=") if kept else np.dtype(np.float32)
    return np.ascontiguousarray(values, wanted)


def as_columns(coords: np.ndarray) -> np.ndarray:
    """(n, axes); whole numbers as int64, so that corners compare exactly."""
    if coords.ndim == 3 and coords.shape[0] == 1:
        coords = coords[0]
    c = coords.reshape(len(coords), -1)
    if c.dtype.kind in "iu":
        return c.astype(np.int64)
    c = c.astype(np.float64)
    whole = np.isfinite(c).all() and bool((c == np.rint(c)).all())
    return c.astype(np.int64) if whole else c


def _first_bad_row(values: np.ndarray) -> int | None:
    for start in range(0, len(values), BLOCK):
        good = np.isfinite(values[start : start + BLOCK]).all(axis=1)
        if not good.all():
            return start + int(np.flatnonzero(~good)[0])
    return None
