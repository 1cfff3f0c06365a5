"""Published data sets, and the authors' processed folders of them, one .npy file per bag and kind.

ROOT/splits.csv                                   bag_name,split
ROOT/patches_512/features/features_<encoder>/     slides; also labels/ patch_labels/ coords/
ROOT/features/features_<encoder>/                 RSNA; also labels/ slice_labels/
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ...core import npy_files
from ...errors import InputError, TableError
from ..formats.torchmil import TorchmilBags
from .study import UNKNOWN, InstanceLabels, OnBag, StudyDraft, StudySource

ABOVE = ("", "dataset", "root")
"""Subfolders in which the release may be; on the Hugging Face Hub, it is in `dataset`."""
PREFERRED = "patches_512"


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A published data set."""

    title: str
    kind: Literal["patch_labels", "slice_labels"]
    """Folder of the instance labels in the processed folder."""
    command: str
    """How features are extracted from the download, for messages."""
    is_bag: Callable[[str], bool]
    """Whether a name is that of a slide or scan of the release."""
    is_download: Callable[[Path], bool]
    """Whether a folder contains the raw download."""
    draft: Callable[[StudySource, OnBag | None], StudyDraft]
    """Collects labels, parts and instance labels of the bags that have features.

    Raises InputError if a file of the release is missing, TableError if a table is invalid, and
    BagError if a bag does not fit the release.
    """

    def recognises(self, root: Path) -> bool:
        """Return whether a folder contains the data set, raw or processed."""
        base = find_processed(root)
        if base is None:
            return self.is_download(root)
        if self.kind == "slice_labels":
            return (base / self.kind).is_dir()
        return any(self.is_bag(p.stem) for p in base.glob("labels/*.npy"))

    def processed_folder(self, root: Path) -> Path:
        """Return the folder of features/ and labels/ in the authors' processed folder."""
        base = find_processed(root)
        layout = "features/features_<encoder>/*.npy"
        folders = ["labels", self.kind]
        if self.kind == "patch_labels":
            layout = f"{PREFERRED}/{layout}"
            folders.append("coords")  # without them, slides would be taken for scans
        if base is None:
            raise InputError(
                f"{root} is not a processed folder of {self.title}: there is no {layout} in it. "
                f"For the raw download, extract features first: {self.command}"
            )
        for folder in folders:
            if not (base / folder).is_dir():
                raise InputError(
                    f"the folder {base / folder} of {self.title}'s processed release is missing: "
                    "download and unpack it too"
                )
        return base


def find_processed(root: Path) -> Path | None:
    """Find the processed folder at a path, or just below it; None if there is none."""
    packed: Path | None = None
    for parent in (root / part for part in ABOVE):
        bases = sorted(parent.glob("patches_*"), key=lambda p: (p.name != PREFERRED, p.name))
        for base in (*bases, parent):
            features = base / "features"
            folders = [path for path in features.glob("features_*") if path.is_dir()]
            if any(npy_files(folder) for folder in folders):
                return base
            packed = packed or next(features.glob("features_*.tar.gz"), None)
    if packed is not None:
        name = packed.name.removesuffix(".tar.gz")
        raise InputError(
            f"{packed} is an archive: unpack it to {packed.parent / name}/, and the others beside "
            "it likewise (or use probsa dataset --fetch)"
        )
    return None


def stored_label(release: TorchmilBags, bag: str) -> int:
    """Return the label that the release stores: positive if any instance is."""
    label = release.label(bag)
    if label is None:
        raise InputError(
            f"{release.root / 'labels' / f'{bag}.npy'} is missing or empty; it is part of the "
            "authors' processed folder: download it too"
        )
    return label


def stored_instance_labels(release: TorchmilBags, bag: str) -> InstanceLabels:
    """Return the instance labels that the release stores; unknown if there is no file."""
    labels = release.instance_labels(bag)
    if labels is None:
        labels = np.full(release.size(bag), UNKNOWN)
    return labels, True


def stored_parts(release: TorchmilBags) -> dict[str, str]:
    """Return the part of each bag, `train` or `test`."""
    parts = release.parts()
    root = release.root
    if release.splits_file is None:
        raise InputError(
            f"there is no {root.parent / 'splits.csv'}, nor one in {root}: in the authors' "
            f"processed folder it is (columns bag_name and split) beside {root.name}. Download it "
            "too"
        )
    for bag, split in parts.items():
        if split not in ("train", "test"):
            raise TableError(
                f"{release.splits_file}: bag {bag!r} has the split {split!r}, expected train or "
                "test"
            )
    return parts
