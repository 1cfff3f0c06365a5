"""Bags written by STAMP: one HDF5 file per slide, with `feats` and corners in micrometres.

The files do not state the resolution of the slide, so level-0 pixels are unknown. Graphs do not
need them, but `convert` does. Rows are in the order in which STAMP's threads finished.
"""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import torch

from ...core import (
    StoredBag,
    as_coordinates,
    as_features,
    attributes_of,
    dataset_of,
    files_by_name,
    graphs,
    hdf5_files,
    numeric_attribute,
    open_hdf5,
    validate_bag,
)
from ...errors import BagError, EmptyBag
from ..bag_set import BagSet, GraphOptions
from ..metadata import Metadata

ROWS = ("feats", "patch_embeddings")
"""Names of the features: of tiles, and of tiles in multiplex images."""
NEWEST = 2
"""Newest major version of STAMP that is supported; later ones are rejected."""
FIRST_PX, FIRST_UM = 224, 256.0
"""STAMP 1 stored corners in tile pixels: 224 of them are 256 µm."""
WIDER = 1.1
"""Largest ratio of stride to tile size: STAMP rounds a tile up to whole pixels of the slide."""


class StampBags(BagSet):
    """The HDF5 files in a folder and its subfolders."""

    unit = "um"

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        super().__init__(folder, files_by_name(hdf5_files(folder)), graph=graph, cache_gb=cache_gb)

    def metadata(self, name: str) -> Metadata:
        path = self._files[self._known(name)]
        with open_hdf5(path) as f:
            attributes = attributes_of(f)
            tile_um, tile_px = _tile_um(f, path), numeric_attribute(attributes, "tile_size_px")
            extractor = attributes.get("extractor")
        tile_px = tile_px or (float(FIRST_PX) if tile_um == FIRST_UM else None)
        return Metadata(
            kind="slide",
            patch_size=tile_px,
            mpp=None if not tile_px else tile_um / tile_px,
            encoder=None if extractor is None else str(extractor),
        )

    def formats(self) -> frozenset[str]:
        return frozenset({"stamp"})

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        with open_hdf5(path) as f:
            rows = _feature_dataset(f, path)
            features = rows[...]
            tile_um = _tile_um(f, path)
            coords = _corners(f, path) * _scale(f)
        bag = StoredBag(
            name=name,
            features=as_features(features, source=path),
            coords=as_coordinates(coords),
            kind="slide",
            stride=_stride(coords, tile_um),
        )
        return validate_bag(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        path = self._files[name]
        with open_hdf5(path) as f:
            n, width = _feature_dataset(f, path).shape
        return int(n), int(width)


def is_stamp(path: Path) -> bool:
    """Return whether a file holds STAMP's features, not probsa's, TRIDENT's or CLAM's."""
    with open_hdf5(path) as f:
        return "features" not in f and any(name in f for name in ROWS)


def _feature_dataset(f: h5py.File, path: Path) -> h5py.Dataset:
    attributes = attributes_of(f)
    version = str(attributes.get("stamp_version", "0"))
    major = version.partition(".")[0]
    if major.isdecimal() and int(major[:9]) > NEWEST:
        raise BagError(
            f"{path} was written by STAMP {version}, this probsa reads its files up to version "
            f"{NEWEST}: update probsa"
        )
    dataset = next((dataset_of(f, k) for k in ROWS if k in f), None)
    if dataset is None:
        contents = ", ".join(repr(k) for k in f) or "nothing"
        raise BagError(
            f"{path} is not STAMP's, unlike other files of the folder: it holds {contents}, but no "
            "'feats'. Put each tool's files in a folder of their own"
        )
    kind = attributes.get("feat_type", "tile")
    if kind != "tile" or len(dataset.shape) == 1:
        unit = kind if kind != "tile" else "slide"
        raise BagError(
            f"{path} holds a {unit}-level embedding, but tile embeddings are required: give the "
            "folder of the tiles' features"
        )
    if dataset.shape[0] == 0:
        raise EmptyBag(f"bag {path.stem!r} ({path}) is empty: no tile of the slide was kept")
    if len(dataset.shape) != 2:
        raise BagError(
            f"{path}: {dataset.name} has the shape {dataset.shape}, expected (tiles, width)"
        )
    return dataset


def _corners(f: h5py.File, path: Path) -> np.ndarray:
    dataset = dataset_of(f, "coords")
    if dataset is None or len(dataset.shape) != 2 or dataset.shape[1] != 2:
        shape = "missing" if dataset is None else dataset.shape
        raise BagError(f"{path}: expected coords (tiles, 2) in micrometres, they are {shape}")
    corners = as_coordinates(dataset[...]).astype(np.float64)
    if not np.isfinite(corners).all():
        raise BagError(f"{path}: coords hold NaN or infinity: extract that bag again")
    return corners


def _tile_um(f: h5py.File, path: Path) -> float:
    """Return the side of a tile in µm: as stated, or that of STAMP 1 if the corners fit it."""
    attributes = attributes_of(f)
    tile = _stated_um(attributes)
    if tile is not None:
        return tile
    unit = attributes.get("unit")
    if unit in (None, "px") and _first_version(_corners(f, path)):
        return FIRST_UM
    raise BagError(
        f"{path} does not state the unit of its corners (attributes: "
        f"{', '.join(sorted(f.attrs)) or 'none'}), and they do not lie {FIRST_PX} apart as those "
        "of STAMP 1: extract the features again with a newer STAMP"
    )


def _stated_um(attributes: Mapping[str, object]) -> float | None:
    """Return the stated tile size: `tile_size` in version 2.0, `tile_size_um` in later ones."""
    if attributes.get("unit") == "um" and numeric_attribute(attributes, "tile_size"):
        return numeric_attribute(attributes, "tile_size")
    return numeric_attribute(attributes, "tile_size_um") or None


def _scale(f: h5py.File) -> float:
    return 1.0 if _stated_um(attributes_of(f)) is not None else FIRST_UM / FIRST_PX


def _first_version(corners: np.ndarray) -> bool:
    return len(corners) > 0 and not np.remainder(corners - corners.min(0), FIRST_PX).any()


def _stride(coords: np.ndarray, tile: float) -> float:
    """Return the stride in µm: the estimate if it may be a tile rounded up, else the tile size.

    The estimate is the most common gap; the smallest would be sensitive to one misplaced tile.
    """
    if len(coords) < 2:
        return tile
    stride = graphs.check_stride(torch.from_numpy(coords), stride=None)
    return stride if tile * (1 - graphs.DISTANCE_TOLERANCE) <= stride <= tile * WIDER else tile
