"""Stage 5: bags on disk, one HDF5 file per bag, in TRIDENT's layout with attributes on the root.

These root attributes (`probsa_*`, called stamps) are optional: TRIDENT's and CLAM's files are read
as well. Files are written atomically.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import h5py
import numpy as np
from jaxtyping import Shaped

from ..errors import BagError, EmptyBag
from .hdf5 import attributes_of, dataset_of, open_hdf5, replacing_hdf5

BagKind = Literal["slide", "ct"]

FORMAT = 1
"""`probsa_version` of written files; files of a later version are rejected."""
LARGEST_COORDINATE = 2.0**53
"""Coordinates above it, or below its negative, are damaged: float64 has no such fractions."""
ROWS = ("features", "coords", "instance_labels", "intensity")
"""Datasets with a row for each instance, which are fields of `StoredBag`."""
BLOCK = 8192
"""Rows checked at once for finite values, so that no second copy of the bag is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBag:
    """The content of one file; `validate_bag` verifies that the numbers of rows agree."""

    name: str
    features: Shaped[np.ndarray, "n features"]
    """float16 or float32, as stored."""
    coords: Shaped[np.ndarray, "rows axes"] | None = None
    """Level-0 (x, y) of each patch's top-left corner, or slice positions of shape (n, 1)."""
    instance_labels: Shaped[np.ndarray, " labels"] | None = None
    """int64; never used in training."""
    intensity: Shaped[np.ndarray, " values"] | None = None
    """Mean grey level of each patch (0 to 255), or mean Hounsfield units of each slice."""
    kind: BagKind | None = None
    stride: float | None = None
    """Level-0 pixels between neighbouring patches; None if the file does not state them."""

    @property
    def inferred_kind(self) -> BagKind:
        """`kind` if stated; otherwise `ct` for a single column of coordinates, else `slide`."""
        one_column = self.coords is not None and self.coords.shape[1] == 1
        return self.kind or ("ct" if one_column else "slide")


def validate_bag(bag: StoredBag, *, source: Path | None = None) -> StoredBag:
    """Check that the parts of a bag agree, and return the bag; `source` is its file.

    Raises:
        BagError: the bag is empty, its numbers of rows differ, or a value is not finite.
    """
    label = f"bag {bag.name!r}" if source is None else f"bag {bag.name!r} ({source})"
    instances = len(bag.features)
    if instances == 0:
        raise EmptyBag(f"{label} is empty: a bag needs at least one instance. Leave it out")
    if 0 in bag.features.shape:
        raise BagError(f"{label}: its instances have no features: extract that bag again")
    for what in ROWS[1:]:
        rows = getattr(bag, what)
        if rows is not None and len(rows) != instances:
            raise BagError(
                f"{label}: features have {instances} rows, {what} {len(rows)}. "
                "Both must describe the same instances: extract the features again"
            )
    if bag.coords is not None and bag.coords.shape[1] not in (1, 2):
        raise BagError(
            f"{label}: coords have {bag.coords.shape[1]} columns, expected 2 "
            "(level-0 x and y of a patch) or 1 (position of a slice)"
        )
    if bag.coords is not None and bag.kind == "slide" and bag.coords.shape[1] == 1:
        raise BagError(
            f"{label}: it is of a slide, but its coords have one column: expected level-0 x and y "
            "of each patch. Extract the features again"
        )
    for what, values in (("features", bag.features), ("coords", bag.coords)):
        if values is None:
            continue
        for start in range(0, instances, BLOCK):
            good = np.isfinite(values[start : start + BLOCK]).all(axis=1)
            if not good.all():
                row = start + int(np.argmin(good))
                raise BagError(
                    f"{label}: {what} of row {row} (counted from 0) hold NaN or infinity. "
                    "Extract that bag again, or leave the file out"
                )
    return bag


def make_bag(
    name: str,
    features: np.ndarray,
    *,
    coords: np.ndarray | None = None,
    instance_labels: np.ndarray | None = None,
    intensity: np.ndarray | None = None,
    kind: BagKind | None = None,
    stride: float | None = None,
    source: Path | None = None,
) -> StoredBag:
    """Return arrays as a bag, in the types of `StoredBag` and checked; `source` is their file.

    Raises:
        BagError: the bag is empty, its numbers of rows differ, or a value cannot be used.
    """
    where = source or f"bag {name!r}"
    features = as_features(features, source=where)
    if coords is not None:
        coords = as_coordinates(coords, source=where)
    if instance_labels is not None:
        instance_labels = as_instance_labels(instance_labels, source=where)
    if intensity is not None:
        intensity = intensity.reshape(-1).astype(np.float32)
    bag = StoredBag(
        name=name,
        features=features,
        coords=coords,
        instance_labels=instance_labels,
        intensity=intensity,
        kind=kind,
        stride=stride,
    )
    return validate_bag(bag, source=source)


def read_bag(path: Path | str, *, keep_unreadable: bool = False) -> StoredBag:
    """Read a bag written by probsa, TRIDENT or CLAM.

    Instances whose pixels could not be read during extraction are dropped, unless
    `keep_unreadable` is set; their features are zeros.

    Raises:
        BagError: the file is missing, damaged, of another format, or inconsistent.
    """
    path = Path(path)
    with open_hdf5(path) as f:
        dataset = _features(f, path)
        features = np.empty(dataset.shape, dataset.dtype)
        dataset.read_direct(features)
        datasets = {name: dataset_of(f, name) for name in (*ROWS[1:], "unreadable")}
        kind = read_kind(f, path)
        stride = None
        if datasets["coords"] is not None:
            stride = stride_of(attributes_of(datasets["coords"]))
        arrays: dict[str, np.ndarray | None] = {}
        for name, optional_dataset in datasets.items():
            arrays[name] = None if optional_dataset is None else optional_dataset[...]
    flags = arrays.pop("unreadable")
    bag = make_bag(path.stem, features, **arrays, kind=kind, stride=stride, source=path)
    if flags is None or keep_unreadable:
        return bag
    readable = flags.reshape(-1) == 0
    if len(readable) != len(bag.features):
        raise BagError(
            f"bag {bag.name!r} ({path}): features have {len(bag.features)} rows, unreadable "
            f"{len(readable)}. Extract the features again"
        )
    if not readable.any():
        raise EmptyBag(
            f"bag {bag.name!r} ({path}): none of its {len(readable)} instances could be read "
            "when its features were made. Leave the file out"
        )
    if readable.all():
        return bag
    readable_rows: dict[str, np.ndarray] = {}
    for name in ROWS:
        rows = getattr(bag, name)
        if rows is not None:
            readable_rows[name] = rows[readable]
    return replace(bag, **readable_rows)


def peek_bag(path: Path) -> tuple[int, int]:
    """Return the number of instances and features of a bag, without reading the features.

    Raises:
        BagError: the file is missing, damaged or of another format.
    """
    size = bag_size(path)
    return size.rows - size.unreadable, size.width


class BagSize(NamedTuple):
    """The size of a stored bag."""

    rows: int
    """Number of instances, with those that could not be read."""
    unreadable: int
    width: int
    """Number of features."""


def bag_size(path: Path) -> BagSize:
    """Return the size of a bag from the file's header, without reading the features.

    Raises:
        BagError: the file is missing, damaged or of another format.
    """
    with open_hdf5(path) as f:
        rows, width = _features(f, path).shape[-2:]
        flags = dataset_of(f, "unreadable")
        unreadable = 0 if flags is None else int(np.count_nonzero(flags[...]))
    return BagSize(rows=int(rows), unreadable=unreadable, width=int(width))


def read_stamp(path: Path, key: str) -> str | None:
    """Read one of the stamps that `write_bag` wrote on a file; None if it has none.

    Raises:
        BagError: the file is missing or damaged.
    """
    with open_hdf5(path) as f:
        value = attributes_of(f).get(f"probsa_{key}")
    return None if value is None else str(value)


def write_bag(  # noqa: PLR0913 - the datasets of a file
    path: Path | str,
    *,
    features: Shaped[np.ndarray, "n features"],
    kind: BagKind,
    coords: Shaped[np.ndarray, "rows axes"] | None = None,
    instance_labels: Shaped[np.ndarray, " labels"] | None = None,
    unreadable: Shaped[np.ndarray, " flags"] | None = None,
    intensity: Shaped[np.ndarray, " values"] | None = None,
    attributes: Mapping[str, object] | None = None,
    stamps: Mapping[str, str] | None = None,
) -> None:
    """Write one bag atomically, after the same checks as `read_bag`.

    Args:
        path: The file; its stem is the bag's name.
        features: float16 and float32 are kept; any other type becomes float32.
        kind: What the instances are: patches of a slide, or slices of a CT scan.
        coords: Level-0 (x, y) of each patch's top-left corner, or slice positions (n, 1).
        instance_labels: Labels of the instances, used for evaluation only.
        unreadable: 1 for each instance whose pixels could not be read; omitted if there are none.
        intensity: Mean grey level (0 to 255) of each patch, or Hounsfield units of each slice.
        attributes: TRIDENT's attributes (`patch_size`, `patch_size_level0`, `overlap`, …), stored
            on `coords`, or on `features` if there are no coordinates.
        stamps: How the features were made (`made_with`, `encoder`, …), stored on the root.

    Raises:
        BagError: the kind is unknown, or the arrays fail the checks.
    """
    path = Path(path)
    if kind not in get_args(BagKind):
        raise BagError(f"bag {path.stem!r}: kind is {kind!r}, expected 'slide' or 'ct'")
    bag = make_bag(
        path.stem,
        features,
        coords=coords,
        instance_labels=instance_labels,
        intensity=intensity,
        source=path,
    )
    labels = bag.instance_labels
    with replacing_hdf5(path) as f:
        f.attrs["probsa_kind"] = kind
        f.attrs["probsa_version"] = FORMAT
        for key, value in (stamps or {}).items():
            f.attrs[f"probsa_{key}"] = value
        coords_or_features = f.create_dataset("features", data=bag.features)
        if bag.coords is not None:
            coords_or_features = f.create_dataset("coords", data=bag.coords)
        if labels is not None:
            small = labels.min() >= -128 and labels.max() <= 127
            f.create_dataset("instance_labels", data=labels.astype(np.int8) if small else labels)
        if bag.intensity is not None:
            f.create_dataset("intensity", data=bag.intensity)
        if unreadable is not None and unreadable.any():
            f.create_dataset("unreadable", data=unreadable.astype(np.int8))
        for key, value in (attributes or {}).items():
            coords_or_features.attrs[key] = "None" if value is None else value


def _features(f: h5py.File, path: Path) -> h5py.Dataset:
    dataset = dataset_of(f, "features")
    if dataset is None:
        contents = ", ".join(repr(k) for k in f) or "nothing"
        hint = ". Put STAMP's files in a folder of their own" if "feats" in f else ""
        raise BagError(f"{path} has no dataset 'features': it holds {contents}{hint}")
    stated = attributes_of(f).get("probsa_version", FORMAT)
    version = numeric_attribute({"version": stated}, "version")
    if version is None:
        raise BagError(
            f"{path}: the attribute 'probsa_version' is {str(stated)[:80]!r}, expected the number "
            f"of a format, up to {FORMAT}: make the file again"
        )
    if int(version) > FORMAT:
        raise BagError(
            f"{path} has format {int(version)}, but this probsa reads up to {FORMAT}: update probsa"
        )
    shape = dataset.shape
    if shape[:1] == (0,):
        raise EmptyBag(
            f"bag {path.stem!r} ({path}) is empty: a bag needs at least one instance. Leave it out"
        )
    if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
        return dataset
    hint = ". This is a slide-level embedding; patch embeddings are required"
    raise BagError(
        f"{path}: features have the shape {shape}, expected (instances, width)"
        f"{hint if len(shape) == 1 else ''}"
    )


def read_kind(f: h5py.File, path: Path) -> BagKind | None:
    """Return the kind of bag that an open file states; None if it states none.

    Raises:
        BagError: the stated kind is neither 'slide' nor 'ct'.
    """
    kind = attributes_of(f).get("probsa_kind")
    coords = f.get("coords")
    if kind is None and isinstance(coords, h5py.Dataset):
        kind = attributes_of(coords).get("kind")
    if kind is None or kind in get_args(BagKind):
        return kind
    raise BagError(f"{path}: probsa_kind is {kind!r}, expected 'slide' or 'ct'")


def stride_of(attributes: Mapping[str, object]) -> float | None:
    """Return the stride in level-0 pixels, from probsa's, TRIDENT's or CLAM's attributes."""
    pitch = numeric_attribute(attributes, "pitch")
    if pitch:  # exact, and written by probsa, as TRIDENT's sizes are rounded
        return pitch
    size = size_level0(attributes)
    patch_size = numeric_attribute(attributes, "patch_size")
    if not patch_size or size is None:
        return size
    overlap = numeric_attribute(attributes, "overlap") or 0.0
    return (patch_size - overlap) * size / patch_size


def size_level0(attributes: Mapping[str, object]) -> float | None:
    """Return the patch side in level-0 pixels, from probsa's, TRIDENT's or CLAM's attributes."""
    for key in ("size_level0", "patch_size_level0"):
        size = numeric_attribute(attributes, key)
        if size is not None:
            return size
    patch_size = numeric_attribute(attributes, "patch_size")
    downsample = numeric_attribute(attributes, "downsample")
    if downsample is None and not numeric_attribute(attributes, "patch_level"):
        # TRIDENT's name for the downsample of CLAM's coordinates, relative to their level.
        downsample = numeric_attribute(attributes, "custom_downsample")
    if patch_size is None or downsample is None:
        return None
    return patch_size * downsample


def numeric_attribute(attributes: Mapping[str, object], key: str) -> float | None:
    """Return an attribute as a number; None if missing, negative, or TRIDENT's string 'None'."""
    value = np.asarray(attributes.get(key, np.nan)).reshape(-1)[:1]
    try:
        result = float(value[0]) if value.dtype.kind != "c" else np.nan
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return result if np.isfinite(result) and result >= 0 else None


def as_features(values: np.ndarray, *, source: Path | str) -> Shaped[np.ndarray, "n features"]:
    """Return (n, width) in float16 or float32, native byte order; (1, n, width) is squeezed.

    Raises:
        BagError: the values are not numbers, have another shape, or there are none.
    """
    if values.shape[:1] == (0,):
        raise EmptyBag(f"{source} is empty: a bag needs at least one instance. Leave it out")
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise BagError(
            f"{source}: features have the shape {values.shape}, expected (instances, width)"
        )
    if values.dtype.kind not in "fiu":
        raise BagError(f"{source}: features are of type {values.dtype}, expected numbers")
    is_small_float = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    dtype = values.dtype.newbyteorder("=") if is_small_float else np.dtype(np.float32)
    return np.ascontiguousarray(values, dtype)


def as_instance_labels(values: np.ndarray, *, source: Path | str) -> Shaped[np.ndarray, " labels"]:
    """Return instance labels as int64, one per instance.

    Raises:
        BagError: they are not whole numbers.
    """
    labels = values.reshape(-1)
    is_whole = labels.dtype.kind in "biu"
    if labels.dtype.kind == "f":
        is_whole = bool(np.isfinite(labels).all() and (labels % 1 == 0).all())
    is_large = is_whole and len(labels) > 0 and not _fits_32_bits(labels)
    if not is_whole or is_large:
        raise BagError(
            f"{source}: the instance labels are of type {labels.dtype} and not all whole numbers "
            "from 0, or -1 if unknown: write them again, or remove them"
        )
    return labels.astype(np.int64)


def _fits_32_bits(numbers: np.ndarray) -> bool:
    return bool(numbers.min() > -(2.0**31) and numbers.max() < 2.0**31)


def as_coordinates(coords: np.ndarray, *, source: Path | str = "a bag") -> np.ndarray:
    """Return coordinates as (n, axes), integers as int64 so that corners compare exactly.

    Raises:
        BagError: they are not numbers of which each instance has as many, or too large.
    """
    if coords.ndim == 3 and coords.shape[0] == 1:
        coords = coords[0]
    if coords.ndim == 0 or coords.dtype.kind not in "iuf":
        raise BagError(
            f"{source}: coords are of type {coords.dtype} and shape {coords.shape}, expected "
            "numbers of shape (instances, 2), or (instances, 1) for slices: extract the features "
            "again"
        )
    columns = coords.reshape(len(coords), math.prod(coords.shape[1:]))
    # as a Python number, since half precision cannot hold the limit
    largest = float(np.abs(columns[np.isfinite(columns)]).max(initial=0))
    if largest > LARGEST_COORDINATE:
        raise BagError(
            f"{source}: coords hold numbers above 2⁵³, which are no pixels: extract them again"
        )
    if columns.dtype.kind in "iu":
        return columns.astype(np.int64)
    columns = columns.astype(np.float64)
    all_integers = np.isfinite(columns).all() and bool((columns == np.rint(columns)).all())
    return columns.astype(np.int64) if all_integers else columns
