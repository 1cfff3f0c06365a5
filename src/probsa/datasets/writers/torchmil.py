"""Write torchmil's layout: one .npy file per bag and kind of data.

torchmil divides all coordinates by one patch size and truncates the result. It would find wrong
neighbours, or none, for a bag with another stride. The coordinates of such a bag are therefore
scaled to multiples of the common stride, and this is reported.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core import DISTANCE_TOLERANCE, replacing, write_csv
from ..labels import LabelTable
from .base import Outgoing, Writer, lost_resolution, needs_corners, single

PARTS = {"train": "train", "val": "train", "test": "test"}
"""torchmil's splits have no validation part."""


class TorchmilWriter(Writer):
    """Writes slides to `OUT/patches_<stride>/`, and scans to `OUT/`."""

    def present(self) -> set[str]:
        return {p.stem for p in self._written()}

    def _written(self) -> list[Path]:
        below = (f"features/{self.features}", f"patches_*/features/{self.features}")
        return [path for pattern in below for path in self.out.glob(f"{pattern}/*.npy")]

    def write(self, bag: Outgoing) -> tuple[Path, list[str]]:
        lost = lost_resolution(bag.metadata)
        features = single(bag.stored.features, lost)
        root, stored = self._root(bag), bag.stored
        path = root / "features" / self.features / f"{bag.name}.npy"
        if bag.slide:
            corners = self._corners(bag, needs_corners(bag, "torchmil"), lost)
            _write(root / "coords" / path.name, corners)
        elif stored.coords is not None:
            lost.append("slice positions (rows stay in their order)")
        if stored.instance_labels is not None:
            kind = "patch_labels" if bag.slide else "slice_labels"
            _write(root / kind / path.name, stored.instance_labels.astype(np.int64))
        if bag.metadata.overlap:
            lost.append(f"overlap ({bag.metadata.overlap:g} pixels)")
        _write(path, features)
        return path, lost

    def _root(self, bag: Outgoing) -> Path:
        if not bag.slide:
            return self.out
        if self.stride is None:
            self.stride = bag.stored.stride
        return self.out if self.stride is None else self.out / f"patches_{round(self.stride)}"

    def _corners(self, bag: Outgoing, corners: np.ndarray, lost: list[str]) -> np.ndarray:
        stride = bag.stored.stride
        if stride is None or self.stride is None or stride == round(self.stride):
            return corners.astype(np.int64)
        common = round(self.stride)
        lost.append(
            f"coordinates in level-0 pixels (scaled from a stride of {stride:.6g} to {common}: "
            "torchmil has one patch size for all bags)"
        )
        from_first = corners - corners.min(0)
        cells = np.rint(from_first / stride)
        if np.abs(from_first - cells * stride).max() <= DISTANCE_TOLERANCE * stride:
            return (cells * common).astype(np.int64)
        return np.rint(from_first * common / stride).astype(np.int64)

    def write_labels(self, table: LabelTable, bags: Sequence[str]) -> list[str]:
        """Write `labels/<bag>.npy` and `splits.csv`."""
        wanted, lost = set(bags), []
        roots = {p.stem: p.parent.parent.parent for p in self._written()}
        for bag, label in zip(table.bags, table.labels, strict=True):
            if bag in wanted and label is not None:
                _write(roots[bag] / "labels" / f"{bag}.npy", np.array([label], np.int64))
        if table.splits is not None:
            pairs = zip(table.bags, table.splits, strict=True)
            rows = [
                {"bag_name": bag, "split": PARTS[part]}
                for bag, part in pairs
                if bag in wanted and part is not None
            ]
            write_csv(self.out / "splits.csv", ["bag_name", "split"], rows)
            if "val" in table.splits:
                lost.append(
                    "validation part (torchmil's splits have only train and test; written as train)"
                )
        if table.folds is not None:
            lost.append("folds")
        if table.groups is not None:
            lost.append("groups")
        return lost


def _write(path: Path, values: np.ndarray) -> None:
    with replacing(path) as temporary, temporary.open("wb") as f:
        np.save(f, values, allow_pickle=False)
