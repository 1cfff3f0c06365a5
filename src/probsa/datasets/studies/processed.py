"""The authors' processed folders: features, labels and labels of instances, one .npy a bag each.

ROOT/splits.csv                                   bag_name,split
ROOT/patches_512/features/features_<encoder>/     slides; also labels/ patch_labels/ coords/
ROOT/features/features_<encoder>/                 RSNA; also labels/ slice_labels/
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import npy_files
from ...errors import InputError, TableError
from ..formats.arrays import load_array
from ..labels import read_rows

ABOVE = ("", "dataset", "root")
"""Where in a folder the release may begin: the hub has it below `dataset`."""
PREFERRED = "patches_512"
UNKNOWN = -1
"""Label of an instance of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Processed:
    """A processed folder."""

    base: Path
    """Holds features/, labels/ and patch_labels/ or slice_labels/."""
    kind: str
    """patch_labels or slice_labels."""

    def label(self, bag: str) -> int:
        """The label that the release stores: positive where any instance is.

        Raises:
            InputError: the file is not there.
        """
        path = self.base / "labels" / f"{bag}.npy"
        if not path.is_file():
            raise InputError(
                f"{path} is missing, which the authors' processed folder has: download it too"
            )
        found = load_array(path).reshape(-1)
        if not len(found):
            raise InputError(f"{path} is empty: expected one label")
        return int(found[0])

    def marks(self, bag: str, *, size: int) -> np.ndarray:
        """Labels of the instances, one dimension; -1 for all `size` where there is no file."""
        path = self.base / self.kind / f"{bag}.npy"
        return load_array(path).reshape(-1) if path.is_file() else np.full(size, UNKNOWN)

    def parts(self) -> dict[str, str]:
        """`train` or `test` of each bag.

        Raises:
            InputError: there is no splits.csv.
            TableError: it is another table.
        """
        path = self.splits_file()
        if path is None:
            raise InputError(
                f"there is no {self.base.parent / 'splits.csv'}, nor one in {self.base}: the "
                "authors' processed folder has it (columns bag_name and split) beside "
                f"{self.base.name}. Download it too"
            )
        header, rows = read_rows(path)
        if not {"bag_name", "split"} <= set(header):
            raise TableError(f"{path}: expected the columns bag_name and split")
        name, part = header.index("bag_name"), header.index("split")
        found = {r[name]: r[part] for _, r in rows if len(r) > max(name, part)}
        wrong = next((b for b, p in found.items() if p not in ("train", "test")), None)
        if wrong is not None:
            raise TableError(
                f"{path}: bag {wrong!r} is of the split {found[wrong]!r}, expected train or test"
            )
        return found

    def splits_file(self) -> Path | None:
        """splits.csv, where there is one."""
        beside = (self.base / "splits.csv", self.base.parent / "splits.csv")
        return next((p for p in beside if p.is_file()), None)


def find_processed(root: Path, *, kind: str) -> Processed | None:
    """The processed folder at a path, or just below it; None where there is none.

    Raises:
        InputError: its archives are not unpacked.
    """
    packed: Path | None = None
    for top in (root / part for part in ABOVE):
        bases = sorted(top.glob("patches_*"), key=lambda p: (p.name != PREFERRED, p.name))
        for base in (*bases, top):
            features = base / "features"
            if features.is_dir() and any(npy_files(f) for f in features.glob("features_*")):
                return Processed(base, kind)
            packed = packed or next(features.glob("features_*.tar.gz"), None)
    if packed is not None:
        name = packed.name.removesuffix(".tar.gz")
        raise InputError(
            f"{packed} is packed: unpack it to {packed.parent / name}/, and the other archives "
            "beside it likewise (or let probsa dataset --fetch do both)"
        )
    return None


def need_processed(root: Path, *, kind: str, release: str, raw: str) -> Processed:
    """The processed folder at a path.

    Args:
        root: the path.
        kind: what it calls its labels of instances.
        release: what it is of, for messages.
        raw: how to come from the raw download to features, for messages.

    Raises:
        InputError: there is none, or a part of it is missing.
    """
    found = find_processed(root, kind=kind)
    layout = "features/features_<encoder>/*.npy"
    layout = layout if kind == "slice_labels" else f"{PREFERRED}/{layout}"
    if found is None:
        raise InputError(
            f"{root} is no processed folder of {release}: there is no {layout} in it. With the "
            f"raw download, features are made first: {raw}"
        )
    # without coords slides would pass for scans
    for folder in ("labels", kind, *(() if kind == "slice_labels" else ("coords",))):
        if not (found.base / folder).is_dir():
            raise InputError(
                f"the folder {found.base / folder} of {release}'s processed release is missing: "
                "download and unpack it too"
            )
    return found
