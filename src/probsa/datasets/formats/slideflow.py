"""Bags written by slideflow (and PathBench): `<slide>.pt` beside `<slide>.index.npz`.

The index holds the centres of the tiles in level-0 pixels; `bags_config.json` holds their size in
µm. Corners are centre − size / 2. Without a resolution, the size is inferred from the centres.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import (
    CORNERS,
    StoredBag,
    as_coordinates,
    as_features,
    graphs,
    load_array,
    read_record,
    validate_bag,
)
from ...errors import BagError
from ..bag_set import BagSet
from ..metadata import Metadata
from .recognition import SLIDEFLOW_CONFIG as CONFIG
from .recognition import find_index
from .tensors import AGAIN, load_tensor, tensor_shape

STRIDES = 8
"""Largest `stride_div` of slideflow that is recognised; tiles overlap if it exceeds 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BagsConfig:
    """What is used of `bags_config.json`."""

    tile_px: float | None = None
    """Side of a tile, as passed to the encoder."""
    tile_um: float | str | None = None
    """Side of a tile in µm, or a magnification such as `20x`."""
    extractor: dict[str, Any] | str | None = None


class SlideflowBags(BagSet):
    """The `.pt` files of a folder, with their indexes."""

    tools = frozenset({"slideflow"})

    def __init__(self, folder: Path, paths: dict[str, Path], **options: Any) -> None:
        super().__init__(folder, paths, **options)
        self._config = BagsConfig()
        config_file = folder / CONFIG
        if config_file.is_file():
            advice = "correct it, or make it again"
            self._config = read_record(BagsConfig, config_file, advice=advice)
        self._indexed = any(find_index(path) is not None for path in paths.values())

    def metadata(self, name: str) -> Metadata:
        self._known(name)
        config = self._config
        pixels = _positive(config.tile_px)
        side_um = _positive(config.tile_um)
        extractor = config.extractor
        encoder = extractor.get("class") if isinstance(extractor, dict) else extractor
        return Metadata(
            kind="slide",
            patch_size=pixels,
            mpp=side_um / pixels if side_um and pixels else None,
            magnification=_magnification(config.tile_um),
            # HDF5 cannot store texts with NUL
            encoder=None if encoder is None else str(encoder).replace("\0", ""),
        )

    def _centres(self, name: str) -> np.ndarray | None:
        """Return the tile centres, (n, 2) in level-0 pixels; None if the folder has no index."""
        path = self._files[name]
        index = find_index(path)
        if index is None:
            if self._indexed:
                raise BagError(
                    f"bag {name!r}: there is no {path.stem}.index.npz beside {path}, which should "
                    "hold the positions of its tiles. Copy it, or make the bag again"
                )
            return None
        centres = load_array(index)
        CORNERS.check(centres, what="the index of tiles", where=index, again=AGAIN)
        if not np.isfinite(centres).all():
            raise BagError(f"{index}: the position of a tile is not finite. {AGAIN}")
        return centres

    def at_level_0(
        self, bag: StoredBag, metadata: Metadata, remarks: list[str]
    ) -> tuple[StoredBag, Metadata]:
        """Return the corners of the tiles, whose side follows from the resolution if known."""
        centres = self._centres(bag.name)
        mpp = metadata.mpp_level0
        assert centres is not None
        if mpp is None:
            if len(centres) < 2:
                raise BagError(
                    f"bag {bag.name!r} has a single tile, so its size cannot be inferred from the "
                    "coordinates: give --slide-mpp, from which the size follows"
                )
            return bag, metadata
        side = _side_level0(centres, metadata, mpp, name=bag.name)
        spacing = _stride(centres)
        overlap = None
        if spacing and metadata.patch_size and side / spacing > 1 + graphs.DISTANCE_TOLERANCE:
            overlap = metadata.patch_size * (1 - spacing / side)
        bag = replace(bag, coords=corners(centres, side), stride=spacing if overlap else side)
        return bag, replace(metadata, size_level0=side, overlap=overlap)

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        centres = self._centres(name)
        coords = None
        if centres is not None:
            # The size of a single tile is unknown, so its centre is used instead of its corner.
            side = _stride(centres) or 0.0
            coords = corners(centres, side, source=path)
        features = as_features(load_tensor(path), source=path)
        bag = StoredBag(name=name, features=features, coords=coords, kind="slide")
        return validate_bag(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        return tensor_shape(self._files[name])


def _positive(value: float | str | None) -> float | None:
    """Return a side that is stated in pixels or µm; None for a magnification."""
    return value if isinstance(value, float) and 0 < value < math.inf else None


def _magnification(tile_um: float | str | None) -> float | None:
    """Return the magnification that is stated instead of a side, `20x`."""
    if not isinstance(tile_um, str):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x", tile_um)
    return None if match is None else float(match[1])


def corners(centres: np.ndarray, side: float, *, source: Path | str = "a bag") -> np.ndarray:
    """Return the top-left corners of tiles, (n, 2) int64.

    If the side is odd, slideflow rounds the centre down.
    """
    return as_coordinates(np.ceil(centres.astype(np.float64) - side / 2 - 1e-6), source=source)


def _stride(centres: np.ndarray) -> float | None:
    """Return the level-0 pixels between neighbours; None for fewer than two tiles."""
    if len(centres) < 2:
        return None
    return graphs.check_stride(torch.from_numpy(centres.astype(np.float64)), stride=None)


def _side_level0(centres: np.ndarray, metadata: Metadata, mpp: float, *, name: str) -> float:
    """Return the side of a tile in level-0 pixels, given the resolution."""
    stride = _stride(centres)
    if metadata.patch_size is None or metadata.mpp is None:
        if stride is not None:
            return stride
        raise BagError(
            f"bag {name!r} has a single tile, and {CONFIG} does not state its size (tile_px and "
            "tile_um in µm): leave the bag out"
        )
    side = metadata.patch_size * metadata.mpp / mpp
    if stride is None:
        return side
    ratio = side / stride
    multiple = max(1, round(ratio))
    if abs(ratio / multiple - 1) <= graphs.DISTANCE_TOLERANCE and multiple <= STRIDES:
        return stride * multiple  # whole pixels, as slideflow cut them
    if ratio < 1:  # no two of them are neighbours, or the resolution is wrong
        return graphs.check_stride(torch.from_numpy(centres * 1.0), stride=side, name=name)
    raise BagError(
        f"bag {name!r}: a tile of {metadata.patch_size * metadata.mpp:g} µm is {side:g} "
        f"level-0 pixels wide at {mpp:g} µm per pixel, but tiles "
        f"lie {stride:g} apart: is the resolution right?"
    )
