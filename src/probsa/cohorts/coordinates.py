"""Files with the coordinates of a slide's patches, or the positions of a scan's slices.

The format is TRIDENT's: a dataset `coords` with attributes. Our own attributes are on the root.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Shaped

from ..core import attributes_of, check_stride, dataset_of, open_hdf5, replacing_hdf5
from ..errors import BagError, GraphError
from ..patches import Patches
from .work import digest

TOLERANCE = 0.02
"""Relative difference of two sizes that count as equal; TRIDENT rounds them to pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinates:
    """The content of one file."""

    coords: Shaped[np.ndarray, "n axes"]
    """Level-0 corners of shape (n, 2), or positions in millimetres of shape (n, 1)."""
    attributes: Mapping[str, object]
    made_with: str
    """Digest of the source and the settings."""

    @property
    def fingerprint(self) -> str:
        """Digest that features store to identify the patches they were made from."""
        return digest(self.made_with, self.coords.tolist())

    def patches(self) -> Patches:
        """Return the patches of a slide as they were cut.

        Raises:
            BagError: An attribute is missing, or what the attributes state of the size and the
                distance of patches contradicts each other or the coordinates.
        """
        a = self.attributes
        patches = Patches(
            coords=self.coords.astype(np.int64),
            size=int(_number(a, "patch_size")),
            size_level0=_number(a, "size_level0"),
            overlap=int(_number(a, "overlap")),
            mpp=_number_or_none(a, "mpp"),
            mpp_level0=_number_or_none(a, "mpp_level0"),
            slide_size=(int(_number(a, "level0_width")), int(_number(a, "level0_height"))),
        )
        name = f"the patches of {a.get('name', 'a slide')}"
        if patches.mpp is not None and patches.mpp_level0:
            expected = patches.size * patches.mpp / patches.mpp_level0
            if abs(patches.size_level0 - expected) > TOLERANCE * expected:
                raise BagError(
                    f"{name} are stated to be {patches.size_level0:g} pixels of level 0 wide, but "
                    f"{patches.size} pixels of {patches.mpp:g} µm are {expected:g} pixels of "
                    f"{patches.mpp_level0:g} µm: run probsa patch again with --overwrite"
                )
        outside = self.coords.max(axis=0, initial=0) >= patches.slide_size
        if outside.any() or self.coords.min(initial=0) < 0:
            raise BagError(
                f"{name} reach from {self.coords.min(axis=0).tolist()} to "
                f"{self.coords.max(axis=0).tolist()}, but the slide is stated to have "
                f"{patches.slide_size[0]} × {patches.slide_size[1]} pixels: run probsa patch again "
                "with --overwrite"
            )
        corners = torch.from_numpy(self.coords)
        try:
            check_stride(corners, stride=patches.stride)
        except GraphError:
            raise BagError(
                f"{name} are stated to be {patches.size_level0:g} pixels of level 0 wide, thus "
                f"{patches.stride:g} apart, but their coordinates are "
                f"{check_stride(corners, stride=None):g} apart: run probsa patch again with "
                "--overwrite"
            ) from None
        return patches


def write_coordinates(path: Path, coordinates: Coordinates) -> None:
    """Write a file of coordinates atomically."""
    with replacing_hdf5(path) as f:
        f.attrs["probsa_made_with"] = coordinates.made_with
        dataset = f.create_dataset("coords", data=coordinates.coords)
        for key, value in coordinates.attributes.items():
            dataset.attrs[key] = "None" if value is None else value


def read_coordinates(path: Path | str) -> Coordinates:
    """Read a file written by `write_coordinates`.

    Raises:
        BagError: The file is missing, damaged or in another format; the message advises to patch
            again.
    """
    path = Path(path)
    again = "Run `probsa patch` again: it creates missing files"
    if not path.is_file():
        raise BagError(f"there is no file {path}. {again}")
    try:
        with open_hdf5(path) as f:
            dataset = dataset_of(f, "coords")
            if dataset is None:
                raise BagError("coords is not a dataset")
            coords = np.asarray(dataset[...])
            attributes = attributes_of(dataset)
            made_with = str(attributes_of(f)["probsa_made_with"])
    except BagError as e:
        raise BagError(f"{path} is damaged, or was not written by probsa ({e}). {again}") from e
    if coords.dtype.kind not in "fiu" or coords.ndim != 2 or coords.shape[1] not in (1, 2):
        raise BagError(
            f"{path}: coords are {coords.dtype} of shape {coords.shape}, expected numbers in one "
            f"or two columns. {again}"
        )
    if not np.isfinite(coords).all():
        raise BagError(f"{path}: coords are not finite. {again}")
    return Coordinates(coords=coords, attributes=attributes, made_with=made_with)


def _number(attributes: Mapping[str, object], key: str) -> float:
    value = _number_or_none(attributes, key)
    if value is None:
        raise BagError(f"coords have no attribute {key!r}: they were not written by probsa patch")
    return value


def _number_or_none(attributes: Mapping[str, object], key: str) -> float | None:
    value = attributes.get(key)
    return float(value) if isinstance(value, int | float | np.number) else None
