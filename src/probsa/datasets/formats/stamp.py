"""Bags as STAMP leaves them: one HDF5 file a slide, `feats` and corners in micrometres.

The resolution of the slide is not in the files, so neither are level-0 pixels: a graph needs none,
but `convert` asks for it. Rows stand in the order in which STAMP's threads ended.
"""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import torch

from ...core import (
    StoredBag,
    as_columns,
    as_features,
    by_name,
    checked,
    graphs,
    hdf5_files,
    number,
    opened,
)
from ...errors import BagError, EmptyBag
from ..bag_set import BagSet, GraphOptions
from ..metadata import Metadata

ROWS = ("feats", "patch_embeddings")
"""Names of the features: of tiles, and of tiles in multiplex images."""
NEWEST = 2
"""Major version of STAMP whose files are known; later ones are refused."""
FIRST_PX, FIRST_UM = 224, 256.0
"""STAMP 1 gave corners in pixels of its tiles: 224 of them were 256 µm."""
WIDER = 1.1
"""STAMP rounds a tile up to whole pixels of the slide: tiles lie a little further apart."""


class StampBags(BagSet):
    """Every HDF5 file in a folder and below it."""

    unit = "um"

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        super().__init__(folder, by_name(hdf5_files(folder)), graph=graph, cache_gb=cache_gb)

    def metadata(self, name: str) -> Metadata:
        path = self._files[self._known(name)]
        with opened(path) as f:
            tile, pixels = _tile_um(f, path), number(f.attrs, "tile_size_px")
            extractor = f.attrs.get("extractor")
        pixels = pixels or (float(FIRST_PX) if tile == FIRST_UM else None)
        return Metadata(
            kind="slide",
            patch_size=pixels,
            mpp=None if not pixels else tile / pixels,
            encoder=None if extractor is None else str(extractor),
        )

    def formats(self) -> frozenset[str]:
        return frozenset({"stamp"})

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        with opened(path) as f:
            rows = _rows(f, path)
            values = rows[...]
            tile = _tile_um(f, path)
            coords = _corners(f, path) * _scale(f)
        bag = StoredBag(
            name=name,
            features=as_features(values, source=path),
            coords=as_columns(coords),
            kind="slide",
            stride=_apart(coords, tile),
        )
        return checked(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        path = self._files[name]
        with opened(path) as f:
            n, width = _rows(f, path).shape
        return int(n), int(width)


def is_stamp(path: Path) -> bool:
    """Whether a file holds STAMP's features and not our, TRIDENT's or CLAM's."""
    with opened(path) as f:
        return "features" not in f and any(name in f for name in ROWS)


def _rows(f: h5py.File, path: Path) -> h5py.Dataset:
    version = str(f.attrs.get("stamp_version", "0"))
    major = version.partition(".")[0]
    if major.isdigit() and int(major) > NEWEST:
        raise BagError(
            f"{path} was written by STAMP {version}, this probsa reads its files up to version "
            f"{NEWEST}: update probsa"
        )
    found = next((f[k] for k in ROWS if k in f), None)
    if not isinstance(found, h5py.Dataset):
        held = ", ".join(repr(k) for k in f) or "nothing"
        raise BagError(
            f"{path} is not STAMP's: it holds {held}, no 'feats', but other files of the folder "
            "are. Give each tool's files a folder of their own"
        )
    kind = f.attrs.get("feat_type", "tile")
    if kind != "tile" or len(found.shape) == 1:
        whole = kind if kind != "tile" else "slide"
        raise BagError(
            f"{path} holds one embedding of a whole {whole}, which is no bag: give the folder of "
            "the tiles' features"
        )
    if found.shape[0] == 0:
        raise EmptyBag(f"bag {path.stem!r} ({path}) is empty: no tile of the slide was kept")
    if len(found.shape) != 2:
        raise BagError(f"{path}: {found.name} has the shape {found.shape}, expected (tiles, width)")
    return found


def _corners(f: h5py.File, path: Path) -> np.ndarray:
    found = f.get("coords")
    if not isinstance(found, h5py.Dataset) or len(found.shape) != 2 or found.shape[1] != 2:
        shape = found.shape if isinstance(found, h5py.Dataset) else "missing"
        raise BagError(f"{path}: expected coords (tiles, 2) in micrometres, they are {shape}")
    return found[...].astype(np.float64)


def _tile_um(f: h5py.File, path: Path) -> float:
    """Side of a tile in µm: as stated, or that of STAMP 1, whose pixels the corners show."""
    stated = _stated_um(f.attrs)
    if stated is not None:
        return stated
    unit = f.attrs.get("unit")
    if unit in (None, "px") and _first_version(_corners(f, path)):
        return FIRST_UM
    raise BagError(
        f"{path} does not say in what unit its corners are (attributes: "
        f"{', '.join(sorted(f.attrs)) or 'none'}), and they do not lie {FIRST_PX} apart as those "
        "of STAMP 1: extract the features again with a newer STAMP"
    )


def _stated_um(attributes: Mapping[str, object]) -> float | None:
    """Version 2.0 said `tile_size` and `unit`, later ones `tile_size_um`."""
    if attributes.get("unit") == "um" and number(attributes, "tile_size"):
        return number(attributes, "tile_size")
    return number(attributes, "tile_size_um") or None


def _scale(f: h5py.File) -> float:
    return 1.0 if _stated_um(f.attrs) is not None else FIRST_UM / FIRST_PX


def _first_version(corners: np.ndarray) -> bool:
    return not np.remainder(corners - corners.min(0), FIRST_PX).any()


def _apart(coords: np.ndarray, tile: float) -> float:
    """µm between neighbours: what the corners say where it can be a tile rounded up, else a tile.

    The commonest gap, never the smallest: one pair of tiles out of place would set that.
    """
    if len(coords) < 2:
        return tile
    found = graphs.check_stride(torch.from_numpy(coords), stride=None)
    return found if tile * (1 - graphs.AGREES) <= found <= tile * WIDER else tile
