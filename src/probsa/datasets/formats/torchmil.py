"""Bags in torchmil's layout: one .npy file per bag and kind of data, in sibling folders."""

import re
from pathlib import Path

import numpy as np

from ...core import (
    StoredBag,
    TextTable,
    as_coordinates,
    as_features,
    as_instance_labels,
    files_by_name,
    load_array,
    npy_files,
    validate_bag,
)
from ...errors import BagError
from ..bag_set import BagSet, GraphOptions
from ..metadata import Metadata

INSTANCE_LABELS = ("patch_labels", "slice_labels")


def read_parts(path: Path) -> dict[str, str]:
    """Return the part of each bag in a file splits.csv.

    Raises:
        TableError: a column is missing, or a bag has no name or two lines.
    """
    table = TextTable.read(path, expected="bag_name,split").select("bag_name", "split")
    return {bag: cells["split"] for bag, (_, cells) in table.by_name("bag_name").items()}


class TorchmilBags(BagSet):
    """torchmil's `root/features/<encoder>/<bag>.npy`, beside `root/coords` and `root/patch_labels`
    for slides, or `root/slice_labels` for scans (no coordinates; rows are in order).

    A root named `patches_512` implies a stride of 512 level-0 pixels.
    """

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        super().__init__(folder, files_by_name(npy_files(folder)), graph=graph, cache_gb=cache_gb)
        self._root = folder.parent.parent if folder.parent.name == "features" else folder.parent
        size = re.match(r"patches_(\d+)", self._root.name)
        self._stride = float(size[1]) if size else None

    def metadata(self, name: str) -> Metadata:
        slide = (self._root / "coords").is_dir()
        folder = self._files[self._known(name)].parent.name
        encoder = folder.removeprefix("features_")
        return Metadata(
            kind="slide" if slide else "ct",
            size_level0=self._stride if slide else None,
            encoder=None if encoder == folder else encoder,
            encoder_guessed=encoder != folder,
        )

    def formats(self) -> frozenset[str]:
        return frozenset({"torchmil"})

    def label(self, name: str) -> int | None:
        """Return the bag's label, if there is a file for it."""
        label = self._beside("labels", self._known(name))
        if label is None or not label.size:
            return None
        return int(as_instance_labels(label, source=self._root / "labels" / f"{name}.npy")[0])

    def parts(self) -> dict[str, str]:
        """Return the part of each bag in `splits.csv`; empty if there is no such file."""
        for folder in (self._root, self._root.parent):
            path = folder / "splits.csv"
            if path.is_file():
                return read_parts(path)
        return {}

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        coords = self._beside("coords", name)
        is_slide = (self._root / "coords").is_dir()
        if is_slide and coords is None:
            raise BagError(f"bag {name!r}: there is no {self._root / 'coords' / path.name}")
        arrays = (self._beside(folder, name) for folder in INSTANCE_LABELS)
        labels = next((array for array in arrays if array is not None), None)
        bag = StoredBag(
            name=name,
            features=as_features(load_array(path), source=path),
            coords=None if coords is None else as_coordinates(coords),
            instance_labels=None if labels is None else as_instance_labels(labels, source=path),
            kind="slide" if is_slide else "ct",
            stride=self._stride if is_slide else None,
        )
        return validate_bag(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        shape = load_array(self._files[name], mapped=True).shape
        if len(shape) not in (2, 3):
            raise BagError(
                f"{self._files[name]}: features have the shape {shape}, expected (instances, width)"
            )
        return shape[-2], shape[-1]

    def _beside(self, kind: str, name: str) -> np.ndarray | None:
        path = self._root / kind / f"{name}.npy"
        return load_array(path) if path.is_file() else None
