"""Bags written by STAMP: one HDF5 file per slide, with `feats` and corners in micrometres.

The files do not state the resolution of the slide, so level-0 pixels are unknown. Graphs do not
need them, but `convert` does. Rows are in the order in which STAMP's threads finished.
"""

from dataclasses import replace
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
    graphs,
    numeric_attribute,
    open_hdf5,
    validate_bag,
)
from ...errors import BagError, EmptyBag
from ..bag_set import BagSet
from ..metadata import Metadata
from .recognition import STAMP_FEATURES as ROWS

NEWEST = 2
"""Newest major version of STAMP that is supported; later ones are rejected."""
FIRST_PX = 224
FIRST_UM = 256.0
"""STAMP 1 stored corners in tile pixels: 224 of them are 256 µm."""
WIDER = 1.1
"""Largest ratio of stride to tile size: STAMP rounds a tile up to whole pixels of the slide."""
WHOLE = 0.1
"""Level-0 pixels by which corners in µm may deviate from whole pixels without a remark."""


class StampBags(BagSet):
    """The HDF5 files in a folder and its subfolders."""

    unit = "um"
    tools = frozenset({"stamp"})

    def metadata(self, name: str) -> Metadata:
        path = self._files[self._known(name)]
        with open_hdf5(path) as f:
            attributes = attributes_of(f)
            tile_um, _ = _tile_um(f, path)
        tile_px = numeric_attribute(attributes, "tile_size_px")
        if not tile_px:
            tile_px = float(FIRST_PX) if tile_um == FIRST_UM else None
        extractor = attributes.get("extractor")
        return Metadata(
            kind="slide",
            patch_size=tile_px,
            mpp=tile_um / tile_px if tile_px else None,
            encoder=None if extractor is None else str(extractor),
        )

    def at_level_0(
        self, bag: StoredBag, metadata: Metadata, remarks: list[str]
    ) -> tuple[StoredBag, Metadata]:
        """Convert from micrometres. The side of a tile is the stride, as STAMP's do not overlap."""
        mpp = metadata.mpp_level0
        assert bag.coords is not None and bag.stride is not None and mpp is not None
        exact_pixels = bag.coords / mpp
        pixels = np.rint(exact_pixels)
        offset = float(np.abs(exact_pixels - pixels).max())
        if offset > WHOLE:
            remarks.append(
                f"places between pixels (corners moved by up to {offset:.2g} pixels to be whole: "
                f"is {mpp:g} µm per pixel the resolution at which the tiles were cut?)"
            )
        corners = torch.from_numpy(pixels)
        stride = graphs.check_stride(corners, stride=bag.stride / mpp, name=bag.name)
        estimate = graphs.check_stride(corners, stride=None)
        if abs(estimate / stride - 1) <= graphs.DISTANCE_TOLERANCE:
            stride = estimate  # in whole pixels, whereas µm are rounded
        side = metadata.patch_size
        target = metadata.mpp if side is None else stride * mpp / side
        bag = replace(bag, coords=pixels.astype(np.int64), stride=stride)
        return bag, replace(metadata, size_level0=stride, mpp=target)

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        with open_hdf5(path) as f:
            features = _feature_dataset(f, path)[...]
            tile_um, scale = _tile_um(f, path)
            coords = _corners(f, path) * scale
        stride = tile_um
        if len(coords) > 1:
            # The most common gap; the smallest would be sensitive to one misplaced tile.
            estimate = graphs.check_stride(torch.from_numpy(coords), stride=None)
            if tile_um * (1 - graphs.DISTANCE_TOLERANCE) <= estimate <= tile_um * WIDER:
                stride = estimate  # a tile that was rounded up to whole pixels
        bag = StoredBag(
            name=name,
            features=as_features(features, source=path),
            coords=as_coordinates(coords, source=path),
            kind="slide",
            stride=stride,
        )
        return validate_bag(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        path = self._files[name]
        with open_hdf5(path) as f:
            n, width = _feature_dataset(f, path).shape
        return int(n), int(width)


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
    corners = as_coordinates(dataset[...], source=path).astype(np.float64)
    if not np.isfinite(corners).all():
        raise BagError(f"{path}: coords hold NaN or infinity: extract that bag again")
    return corners


def _tile_um(f: h5py.File, path: Path) -> tuple[float, float]:
    """Return the side of a tile in µm, and the µm of the unit of the corners.

    The side is stated as `tile_size` in version 2.0 and as `tile_size_um` in later ones; in files
    without it, it is that of STAMP 1 if the corners fit it.
    """
    attributes = attributes_of(f)
    unit = attributes.get("unit")
    side = numeric_attribute(attributes, "tile_size") if unit == "um" else None
    side = side or numeric_attribute(attributes, "tile_size_um")
    if side:
        return side, 1.0
    corners = _corners(f, path) if unit in (None, "px") else np.zeros((0, 2))
    if len(corners) and not np.remainder(corners - corners.min(0), FIRST_PX).any():
        return FIRST_UM, FIRST_UM / FIRST_PX
    raise BagError(
        f"{path} does not state the unit of its corners (attributes: "
        f"{', '.join(sorted(f.attrs)) or 'none'}), and they do not lie {FIRST_PX} apart as those "
        "of STAMP 1: extract the features again with a newer STAMP"
    )
