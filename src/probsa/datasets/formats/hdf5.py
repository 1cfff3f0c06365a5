"""Bags in HDF5 files, one a bag: ours, TRIDENT's, and CLAM's beside its `patches` folder."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from ...core import BagKind, StoredBag, by_name, hdf5_files, opened, peek_bag, read_bag, stated_kind
from ...errors import BagError
from ..bag_set import BagSet, GraphOptions
from ..metadata import Metadata, from_attributes
from .clam import PatchFile, at_level_0, patch_file, patches_folder


class Hdf5Bags(BagSet):
    """Every HDF5 file in a folder and below it, except in folders named `patches`.

    CLAM's feature files do not state the size of a patch; it is taken from `patches/<bag>.h5`
    in the folder, beside it, or one level up.
    """

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        super().__init__(folder, by_name(hdf5_files(folder)), graph=graph, cache_gb=cache_gb)
        self._patches = patches_folder(folder)

    def metadata(self, name: str) -> Metadata:
        path = self._files[self._known(name)]
        with opened(path) as f:
            attributes, kind = _attributes(f, "coords"), _kind(f, path)
            encoder = f.attrs.get("probsa_encoder", _attributes(f, "features").get("encoder"))
            flags = f.get("unreadable")
            unreadable = int(np.count_nonzero(flags[...])) if isinstance(flags, h5py.Dataset) else 0
        beside = None if from_attributes(attributes).size_level0 else self._beside(name)
        found = from_attributes({**(beside.attributes if beside else {}), **attributes})
        guessed = encoder is None and path.parent.name.startswith("features_")
        if guessed:
            encoder = path.parent.name.removeprefix("features_")
        scaled = beside is not None and beside.scale != 1
        return replace(
            found,
            kind=kind,
            encoder_guessed=guessed,
            encoder=None if encoder in (None, "None") else str(encoder),
            unreadable=unreadable,
            remarks=("corners were at the level of the patches, now at level 0",) if scaled else (),
        )

    def formats(self) -> frozenset[str]:
        for path in self._files.values():
            try:
                return self._formats(path)
            except BagError:  # said where the bag is read
                continue
        return frozenset({"clam", "trident", "probsa"})

    def _formats(self, path: Path) -> frozenset[str]:
        with opened(path) as f:
            if "probsa_version" in f.attrs:
                return frozenset({"probsa"})
            stated = set(_attributes(f, "coords")) | set(_attributes(f, "features"))
        if stated & {"custom_downsample", "savetodir", "encoder"}:
            return frozenset({"trident"})
        if "patch_size_level0" in stated:  # a file made by hand, or ours without stamps
            return frozenset({"trident", "probsa"})
        beside = self._patches
        if path.parent.name == "h5_files" or (beside and (beside / f"{path.stem}.h5").is_file()):
            return frozenset({"clam"})
        if beside and (beside / f"{path.stem}_patches.h5").is_file():
            return frozenset({"trident"})
        return frozenset({"clam", "trident", "probsa"})

    def _beside(self, name: str) -> PatchFile | None:
        return patch_file(self._patches, name)

    def _read(self, name: str) -> StoredBag:
        stored = read_bag(self._files[name])
        if stored.stride is not None or stored.inferred_kind != "slide":
            return stored
        patches = self._beside(name)
        if patches is None or stored.coords is None:
            return stored
        coords = at_level_0(stored.coords, patches.scale)
        return replace(stored, coords=coords, stride=patches.stride)

    def _peek(self, name: str) -> tuple[int, int]:
        return peek_bag(self._files[name])


def _attributes(f: h5py.File, dataset: str) -> dict[str, object]:
    found = f.get(dataset)
    return dict(found.attrs) if isinstance(found, h5py.Dataset) else {}


def _kind(f: h5py.File, path: Path) -> BagKind | None:
    """As stated, or as the columns of the coordinates say, without reading a row."""
    stated, coords = stated_kind(f, path), f.get("coords")
    if stated is not None or not isinstance(coords, h5py.Dataset):
        return stated
    shape = coords.shape
    return "ct" if len(shape) == 1 or shape[-1] == 1 else "slide"
