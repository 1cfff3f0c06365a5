"""The authors' processed folders: features, labels and instance labels, one .npy per bag each.

ROOT/splits.csv                                   bag_name,split
ROOT/patches_512/features/features_<encoder>/     slides; also labels/ patch_labels/ coords/
ROOT/features/features_<encoder>/                 RSNA; also labels/ slice_labels/
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import load_array, npy_files
from ...errors import InputError, TableError
from ..formats.torchmil import read_parts

ABOVE = ("", "dataset", "root")
"""Subfolders in which the release may be; on the Hugging Face Hub, it is in `dataset`."""
PREFERRED = "patches_512"
UNKNOWN = -1
"""Label of instances whose label is unknown."""


@dataclass(frozen=True, slots=True)
class ProcessedFolder:
    """A processed folder, as published by the authors."""

    base: Path
    """The folder of features/, labels/ and patch_labels/ or slice_labels/."""
    kind: str
    """`patch_labels` or `slice_labels`."""

    def label(self, bag: str) -> int:
        """Return the label that the release stores: positive if any instance is.

        Raises:
            InputError: the file is missing or empty.
        """
        path = self.base / "labels" / f"{bag}.npy"
        if not path.is_file():
            raise InputError(
                f"{path} is missing; it is part of the authors' processed folder: download it too"
            )
        label = load_array(path).reshape(-1)
        if not len(label):
            raise InputError(f"{path} is empty: expected one label")
        return int(label[0])

    def instance_labels_of(self, bag: str, *, size: int) -> np.ndarray:
        """Return the instance labels of a bag, one-dimensional; -1 for each if there is no file."""
        path = self.base / self.kind / f"{bag}.npy"
        return load_array(path).reshape(-1) if path.is_file() else np.full(size, UNKNOWN)

    def parts(self) -> dict[str, str]:
        """Return the part of each bag, `train` or `test`.

        Raises:
            InputError: splits.csv is missing.
            TableError: its columns or values are invalid.
        """
        path = self.splits_file()
        if path is None:
            raise InputError(
                f"there is no {self.base.parent / 'splits.csv'}, nor one in {self.base}: in the "
                "authors' processed folder it is (columns bag_name and split) beside "
                f"{self.base.name}. Download it too"
            )
        parts = read_parts(path)
        invalid = next(
            (bag for bag, split in parts.items() if split not in ("train", "test")), None
        )
        if invalid is not None:
            raise TableError(
                f"{path}: bag {invalid!r} has the split {parts[invalid]!r}, expected train or test"
            )
        return parts

    def splits_file(self) -> Path | None:
        """Return the path of splits.csv, if there is one."""
        beside = (self.base / "splits.csv", self.base.parent / "splits.csv")
        return next((p for p in beside if p.is_file()), None)


def find_processed(root: Path, *, kind: str) -> ProcessedFolder | None:
    """Find the processed folder at a path, or just below it; None if there is none.

    Raises:
        InputError: its archives have not been unpacked.
    """
    packed: Path | None = None
    for parent in (root / part for part in ABOVE):
        bases = sorted(parent.glob("patches_*"), key=lambda p: (p.name != PREFERRED, p.name))
        for base in (*bases, parent):
            features = base / "features"
            if features.is_dir() and any(
                npy_files(folder) for folder in features.glob("features_*")
            ):
                return ProcessedFolder(base, kind)
            packed = packed or next(features.glob("features_*.tar.gz"), None)
    if packed is not None:
        name = packed.name.removesuffix(".tar.gz")
        raise InputError(
            f"{packed} is an archive: unpack it to {packed.parent / name}/, and the others beside "
            "it likewise (or use probsa dataset --fetch)"
        )
    return None


def need_processed(root: Path, *, kind: str, release: str, raw: str) -> ProcessedFolder:
    """Return the processed folder at a path.

    Args:
        root: The path.
        kind: Name of its folder of instance labels.
        release: Name of the data set, for messages.
        raw: The commands that extract features from the raw download, for messages.

    Raises:
        InputError: there is no such folder, or a part of it is missing.
    """
    processed = find_processed(root, kind=kind)
    layout = "features/features_<encoder>/*.npy"
    layout = layout if kind == "slice_labels" else f"{PREFERRED}/{layout}"
    if processed is None:
        raise InputError(
            f"{root} is not a processed folder of {release}: there is no {layout} in it. For the "
            f"raw download, extract features first: {raw}"
        )
    # Without coords, slides would be taken for scans.
    for folder in ("labels", kind, *(() if kind == "slice_labels" else ("coords",))):
        if not (processed.base / folder).is_dir():
            raise InputError(
                f"the folder {processed.base / folder} of {release}'s processed release is "
                "missing: download and unpack it too"
            )
    return processed
