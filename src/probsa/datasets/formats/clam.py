"""CLAM's `patches/<bag>.h5`, `h5_files/<bag>.h5` and `pt_files/<bag>.pt`.

CLAM's feature files hold nothing but the instances; the patch size is in the files of `patches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Shaped

from ...core import (
    StoredBag,
    as_coordinates,
    as_features,
    attributes_of,
    dataset_of,
    is_there,
    numeric_attribute,
    open_hdf5,
    stride_of,
    validate_bag,
)
from ...errors import BagError
from ..bag_set import BagSet
from ..metadata import Metadata, from_attributes
from .tensors import load_tensor, tensor_shape


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchFile:
    """A file of CLAM's or TRIDENT's folder `patches`."""

    coords: Shaped[np.ndarray, "n axes"]
    """Level-0 coordinates of the patches."""
    attributes: Mapping[str, object]
    scale: float
    """Factor that converts the coordinates in the feature file to level 0. It differs from 1 for
    CLAM's first script, which stored pixels (`imgs`), and coordinates at the level of patches."""


def patches_folder(folder: Path) -> Path | None:
    """Find CLAM's or TRIDENT's `patches` in the feature folder, beside it, or one level up."""
    parents = (folder, folder.parent, folder.parent.parent)
    return next((p / "patches" for p in parents if is_there(p / "patches", folder=True)), None)


def patch_files(folder: Path | None, name: str) -> list[Path]:
    """Return CLAM's or TRIDENT's file of a bag in `patches`, if there is one."""
    files = [] if folder is None else [folder / f"{name}.h5", folder / f"{name}_patches.h5"]
    return [path for path in files if is_there(path)]


def read_patches(folder: Path | None, name: str) -> PatchFile | None:
    """Read CLAM's or TRIDENT's file of a bag in `patches`; None if there is none."""
    for path in patch_files(folder, name):
        with open_hdf5(path) as f:
            corners = dataset_of(f, "coords")
            pixels = f.get("imgs")
            if corners is None:
                raise BagError(f"{path} has no dataset 'coords', so it is not a file of patches")
            attributes = attributes_of(corners)
            scale = 1.0
            if isinstance(pixels, h5py.Dataset):
                attributes = {"patch_size": pixels.shape[1]} | attributes | attributes_of(pixels)
                scale = numeric_attribute(attributes, "downsample") or 1.0
            coords = at_level_0(as_coordinates(corners[...], source=path), scale, source=path)
            return PatchFile(coords=coords, attributes=attributes, scale=scale)
    return None


def at_level_0(coords: np.ndarray, scale: float, *, source: Path) -> np.ndarray:
    """Convert corners from another level to level 0."""
    return coords if scale == 1 else as_coordinates(np.rint(coords * scale), source=source)


class ClamTensorBags(BagSet):
    """CLAM's `pt_files/<bag>.pt`, one tensor per bag, with coordinates from `patches` if present.

    The rows of both are in the same order, since CLAM encodes the patches in their stored order.
    """

    tools = frozenset({"clam"})

    @cached_property
    def _patches(self) -> Path | None:
        return patches_folder(self.folder)

    def metadata(self, name: str) -> Metadata:
        patches = self._corners(self._known(name))
        metadata = Metadata() if patches is None else from_attributes(patches.attributes)
        return replace(metadata, kind="slide")

    def _corners(self, name: str) -> PatchFile | None:
        patches = read_patches(self._patches, name)
        if patches is None and self._patches is not None:
            raise BagError(
                f"bag {name!r}: there is no {self._patches / f'{name}.h5'}, which should hold the "
                "coordinates of its patches. Create it again, or leave the bag out"
            )
        return patches

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        patches = self._corners(name)
        features = as_features(load_tensor(path), source=path)
        bag = StoredBag(name=name, features=features, kind="slide")
        if patches is not None:
            bag = replace(bag, coords=patches.coords, stride=stride_of(patches.attributes))
        return validate_bag(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        return tensor_shape(self._files[name])
