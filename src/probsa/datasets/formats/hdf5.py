"""Bags in HDF5 files, one per bag, written by probsa, TRIDENT or CLAM (with its `patches`)."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from ...core import (
    BagKind,
    StoredBag,
    attributes_of,
    dataset_of,
    open_hdf5,
    peek_bag,
    read_bag,
    read_kind,
    stride_of,
)
from ...errors import BagError
from ..bag_set import BagSet
from ..metadata import Metadata, from_attributes
from ..names import encoder_of_folder
from .clam import PatchFile, at_level_0, patch_files, patches_folder, read_patches


class Hdf5Bags(BagSet):
    """The HDF5 files in a folder and its subfolders, except those named `patches`.

    CLAM's feature files do not state the patch size, which is taken from `patches/<bag>.h5` in the
    folder, beside it, or one level up.
    """

    @cached_property
    def _patches(self) -> Path | None:
        return patches_folder(self.folder)

    def metadata(self, name: str) -> Metadata:
        path = self._files[self._known(name)]
        with open_hdf5(path) as f:
            attributes = _attributes(f, "coords")
            kind = read_kind(f, path) or _kind_of_corners(f)
            stored_encoder = _stored_encoder(f)
            flags = dataset_of(f, "unreadable")
            unreadable = 0 if flags is None else int(np.count_nonzero(flags[...]))
        remarks: tuple[str, ...] = ()
        # slices of a scan have no patches
        if kind != "ct" and not from_attributes(attributes).size_level0:
            patches = self._beside(name)
            if patches is not None:
                attributes = {**patches.attributes, **attributes}
                if patches.scale != 1:
                    remarks = ("corners were converted from the level of the patches to level 0",)
        encoder = stored_encoder
        if stored_encoder is None:
            encoder = encoder_of_folder(path.parent.name)
        return replace(
            from_attributes(attributes),
            kind=kind,
            encoder_guessed=stored_encoder is None and encoder is not None,
            encoder=None if encoder == "None" else encoder,
            unreadable=unreadable,
            remarks=remarks,
        )

    def formats(self) -> frozenset[str]:
        for path in self._files.values():
            try:
                return self._formats(path)
            except BagError:  # raised again where the bag is read
                continue
        return frozenset({"clam", "trident", "probsa"})

    def _formats(self, path: Path) -> frozenset[str]:
        """Return the tools that may have written a file."""
        with open_hdf5(path) as f:
            if "probsa_version" in f.attrs:
                return frozenset({"probsa"})
            attributes = set(_attributes(f, "coords")) | set(_attributes(f, "features"))
        if attributes & {"custom_downsample", "savetodir", "encoder"}:
            return frozenset({"trident"})
        if "patch_size_level0" in attributes:  # e.g. written by a user's own script, without stamps
            return frozenset({"trident", "probsa"})
        if path.parent.name == "h5_files":
            return frozenset({"clam"})
        # CLAM calls its file of patches <bag>.h5, TRIDENT <bag>_patches.h5
        names_of_patches = {file.name for file in patch_files(self._patches, path.stem)}
        if f"{path.stem}.h5" in names_of_patches:
            return frozenset({"clam"})
        if names_of_patches:
            return frozenset({"trident"})
        return frozenset({"clam", "trident", "probsa"})

    def _beside(self, name: str) -> PatchFile | None:
        """Return CLAM's or TRIDENT's patches of a bag; None if no bag has any.

        Raises:
            BagError: other bags have patches and this one has none.
        """
        patches = read_patches(self._patches, name)
        if patches is None and self._has_patches:
            self._peek(name)  # raises EmptyBag, since an empty bag has no patches
            raise BagError(
                f"bag {name!r}: {self._patches} has no file of its patches, but of other bags: "
                f"create {name}.h5 again, or leave the bag out"
            )
        return patches

    @cached_property
    def _has_patches(self) -> bool:
        """Whether the folder of patches, which may be another tool's, belongs to these bags."""
        return any(patch_files(self._patches, name) for name in self._files)

    def _read(self, name: str) -> StoredBag:
        stored = read_bag(self._files[name])
        if stored.stride is not None or stored.inferred_kind != "slide":
            return stored
        patches = self._beside(name)
        if patches is None or stored.coords is None:
            return stored
        coords = at_level_0(stored.coords, patches.scale, source=self._files[name])
        return replace(stored, coords=coords, stride=stride_of(patches.attributes))

    def _peek(self, name: str) -> tuple[int, int]:
        return peek_bag(self._files[name])


def _kind_of_corners(f: h5py.File) -> BagKind | None:
    """Return what instances are by their coordinates: with one axis, slices of a scan."""
    corners = f.get("coords")
    if not isinstance(corners, h5py.Dataset):
        return None
    shape: tuple[int, ...] = corners.shape or (1,)
    return "ct" if len(shape) == 1 or shape[-1] == 1 else "slide"


def _stored_encoder(f: h5py.File) -> str | None:
    """Return the encoder that a file states, which TRIDENT may give as the text `None`."""
    features_encoder = _attributes(f, "features").get("encoder")
    encoder = attributes_of(f).get("probsa_encoder", features_encoder)
    return None if encoder is None else str(encoder)


def _attributes(f: h5py.File, dataset: str) -> dict[str, object]:
    """Return the attributes of a dataset; none if it does not exist."""
    item = f.get(dataset)
    return attributes_of(item) if isinstance(item, h5py.Dataset) else {}
