"""torchmil's layout: one .npy file per bag and kind of data, in sibling folders."""

import re
from functools import cached_property
from pathlib import Path

import numpy as np

from ...core import (
    StoredBag,
    TextTable,
    as_coordinates,
    as_features,
    as_instance_labels,
    is_there,
    load_array,
    validate_bag,
)
from ...errors import BagError
from ..bag_set import BagSet
from ..labels import LabelTable
from ..metadata import Metadata
from ..names import SPLIT_PARTS, encoder_of_folder

INSTANCE_LABELS = ("patch_labels", "slice_labels")


class TorchmilBags(BagSet):
    """torchmil's `root/features/<encoder>/<bag>.npy`, beside `root/coords` and `root/patch_labels`
    for slides, or `root/slice_labels` for scans (no coordinates; rows are in order).

    A root named `patches_512` implies a stride of 512 level-0 pixels.
    """

    tools = frozenset({"torchmil"})

    @cached_property
    def root(self) -> Path:
        """The folder of `features/`, `labels/` and the other kinds of data."""
        parent = self.folder.parent
        return parent.parent if parent.name == "features" else parent

    @cached_property
    def _is_slide(self) -> bool:
        return is_there(self.root / "coords", folder=True)

    @property
    def _stride(self) -> float | None:
        size = re.match(r"patches_(\d+)", self.root.name)
        return float(size[1]) if size and self._is_slide else None

    def metadata(self, name: str) -> Metadata:
        encoder = encoder_of_folder(self._files[self._known(name)].parent.name)
        return Metadata(
            kind="slide" if self._is_slide else "ct",
            size_level0=self._stride,
            encoder=encoder,
            encoder_guessed=encoder is not None,
        )

    def label(self, name: str) -> int | None:
        """Return the bag's label; None if its file is missing or empty."""
        label = self._beside("labels", name)
        if label is None or not label.size:
            return None
        return int(as_instance_labels(label, source=self.root / "labels" / f"{name}.npy")[0])

    def instance_labels(self, name: str) -> np.ndarray | None:
        """Return the labels of a bag's instances as they are stored, if there are any."""
        for folder in INSTANCE_LABELS:
            labels = self._beside(folder, name)
            if labels is not None:
                return as_instance_labels(labels, source=self._files[name])
        return None

    @property
    def splits_file(self) -> Path | None:
        """The path of splits.csv, if there is one."""
        beside = (self.root / "splits.csv", self.root.parent / "splits.csv")
        return next((p for p in beside if is_there(p)), None)

    def parts(self) -> dict[str, str]:
        """Return the part of each bag in `splits.csv`; empty if there is no such file."""
        if self.splits_file is None:
            return {}
        table = TextTable.read(self.splits_file, expected="bag_name,split")
        rows = table.select("bag_name", "split").by_name("bag_name")
        return {bag: cells["split"] for bag, (_, cells) in rows.items()}

    def label_table(self) -> LabelTable | None:
        labels = tuple(self.label(name) for name in self.names)
        known_labels = [y for y in labels if y is not None]
        if not known_labels:
            return None
        classes = max(2, max(known_labels) + 1)
        parts = self.parts()
        splits = None
        if parts:
            bag_parts = (parts.get(name) for name in self.names)
            splits = tuple(part if part in SPLIT_PARTS else None for part in bag_parts)
        return LabelTable(
            bags=self.names,
            labels=labels,
            splits=splits,
            classes=tuple(map(str, range(classes))),
        )

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        coords = self._beside("coords", name)
        if self._is_slide and coords is None:
            raise BagError(f"bag {name!r}: there is no {self.root / 'coords' / path.name}")
        bag = StoredBag(
            name=name,
            features=as_features(load_array(path), source=path),
            coords=None if coords is None else as_coordinates(coords, source=path),
            instance_labels=self.instance_labels(name),
            kind="slide" if self._is_slide else "ct",
            stride=self._stride,
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
        """Return the array of a bag in the folder of this kind, if there is one."""
        path = self.root / kind / f"{name}.npy"
        if is_there(path.parent, folder=True) and is_there(path):
            return load_array(path)
        return None
