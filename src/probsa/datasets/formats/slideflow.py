"""Bags as slideflow (and PathBench) leaves them: `<slide>.pt` beside `<slide>.index.npz`.

The index holds the centres of the tiles in level-0 pixels, `bags_config.json` their size in µm.
Corners are centre − size / 2; the size is what the centres say unless the resolution is given.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import StoredBag, as_columns, as_features, by_name, checked, graphs, pt_files
from ...errors import BagError, InputError
from ..bag_set import BagSet, GraphOptions
from ..metadata import Metadata, positive
from .arrays import load_array
from .tensors import load_tensor, tensor_shape

INDEXES = (".index.npz", ".index.npy")
CONFIG = "bags_config.json"
STRIDES = 8
"""Tiles may overlap: slideflow's `stride_div` up to which a distance is taken for one."""


class SlideflowBags(BagSet):
    """Every `.pt` file of a folder, with its index."""

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        super().__init__(folder, by_name(pt_files(folder)), graph=graph, cache_gb=cache_gb)
        self._config = _config(folder)
        self._indexed = any(_index(path) is not None for path in self._files.values())

    def metadata(self, name: str) -> Metadata:
        self._known(name)
        pixels = positive(_plain(self._config.get("tile_px")))
        um = self._config.get("tile_um")
        magnified = re.fullmatch(r"(\d+(?:\.\d+)?)x", um) if isinstance(um, str) else None
        side = positive(_plain(um))
        extractor = self._config.get("extractor")
        named = extractor.get("class") if isinstance(extractor, dict) else extractor
        return Metadata(
            kind="slide",
            patch_size=pixels,
            mpp=side / pixels if side and pixels else None,
            magnification=None if magnified is None else float(magnified[1]),
            encoder=None if named is None else str(named),
        )

    def formats(self) -> frozenset[str]:
        return frozenset({"slideflow"})

    def centres(self, name: str) -> np.ndarray | None:
        """(n, 2) level-0 pixels; None where the folder has no index at all."""
        path = self._files[self._known(name)]
        index = _index(path)
        if index is None:
            if self._indexed:
                raise BagError(
                    f"bag {name!r}: there is no {path.stem}.index.npz beside {path}, where the "
                    "places of its tiles should be. Copy it, or make the bag again"
                )
            return None
        found = load_array(index)
        if found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iuf":
            raise BagError(f"{index}: the shape is {found.shape}, expected (tiles, 2) in pixels")
        return found

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        centres = self.centres(name)
        side = None if centres is None else stride_of_centres(centres)
        bag = StoredBag(
            name=name,
            features=as_features(load_tensor(path), source=path),
            # of a single tile the size cannot be told: its centre stands for its corner
            coords=None if centres is None else corners(centres, side or 0.0),
            kind="slide",
        )
        return checked(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        return tensor_shape(self._files[name])


def corners(centres: np.ndarray, side: float) -> np.ndarray:
    """Top-left corners of tiles; of an odd side, slideflow's centre is the pixel before the half.

    Whole pixels, (n, 2) int64.
    """
    return as_columns(np.ceil(centres.astype(np.float64) - side / 2 - 1e-6))


def stride_of_centres(centres: np.ndarray) -> float | None:
    """Level-0 pixels between neighbours; None of fewer than two tiles."""
    if len(centres) < 2:
        return None
    return graphs.check_stride(torch.from_numpy(centres.astype(np.float64)), stride=None)


def side_level0(centres: np.ndarray, *, metadata: Metadata, mpp: float, name: str) -> float:
    """Side of a tile in level-0 pixels, at a known resolution.

    Raises:
        BagError: the tiles lie at distances that this resolution does not explain.
    """
    found = stride_of_centres(centres)
    if metadata.patch_size is None or metadata.mpp is None:
        if found is not None:
            return found
        raise BagError(
            f"bag {name!r} has a single tile, and {CONFIG} does not state its size (tile_px and "
            "tile_um in µm): leave the bag out"
        )
    side = metadata.patch_size * metadata.mpp / mpp
    if found is None:
        return side
    strides = side / found
    nearest = max(1, round(strides))
    if abs(strides / nearest - 1) <= graphs.AGREES and nearest <= STRIDES:
        return found * nearest  # whole pixels, as slideflow cut them
    if strides < 1:  # no two of them are neighbours, or the resolution is wrong
        return graphs.check_stride(torch.from_numpy(centres * 1.0), stride=side, name=name)
    raise BagError(
        f"bag {name!r}: a tile of {metadata.patch_size * metadata.mpp:g} µm is {side:g} "
        f"level-0 pixels wide at {mpp:g} µm per pixel, but tiles "
        f"lie {found:g} apart: is the resolution right?"
    )


def is_slideflow(folder: Path, files: list[Path]) -> bool:
    """Whether these `.pt` files are slideflow's and not CLAM's."""
    return (folder / CONFIG).is_file() or any(_index(path) is not None for path in files)


def _index(path: Path) -> Path | None:
    found = (path.with_name(path.stem + ending) for ending in INDEXES)
    return next((p for p in found if p.is_file()), None)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}): copy or make it again") from error
    if not isinstance(held, dict):
        raise InputError(f"{path}: expected a JSON object with tile_px and tile_um")
    return held


def _plain(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
