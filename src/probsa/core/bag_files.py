"""Find the files of bags; a bag is named after its file.

What has the name of a bag but is no file, such as a broken link or a pipe, is listed as well: its
reader says what it is, and never opens it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import BagError

HDF5 = (".h5", ".hdf5")
RUN_FILES = ("run.yaml", "predictions.csv")
"""Files that mark a folder as a run or as predictions, whose HDF5 files are no bags."""


def files_by_name(files: Iterable[Path]) -> dict[str, Path]:
    """Map bag names to their files; the name is the file name without its suffix.

    Raises:
        BagError: two files would give bags of the same name.
    """
    path_of: dict[str, Path] = {}
    for path in files:
        if path.stem in path_of:
            raise BagError(
                f"two bags are named {path.stem!r}: {path_of[path.stem]} and {path}. "
                "Names must be unique: rename one, or give the folder that holds only one of them"
            )
        path_of[path.stem] = path
    return path_of


def hdf5_files(folder: Path) -> list[Path]:
    """List the HDF5 files in a folder and its subfolders, except those named `patches`.

    Runs and predictions within the folder hold HDF5 files of instances, which are no bags.
    """
    files = [Path(entry.path) for entry in _entries(folder) if not entry.is_dir()]
    return sorted(file for file in files if file.suffix.lower() in HDF5)


def pt_files(folder: Path) -> list[Path]:
    """List the .pt files in a folder, without its subfolders."""
    return sorted(p for p in folder.glob("*.pt") if not p.name.startswith("."))


def npy_files(folder: Path) -> list[Path]:
    """List the .npy files in a folder, without its subfolders."""
    return sorted(p for p in folder.glob("*.npy") if not p.name.startswith("."))


def passed_over(folder: Path, bags: Iterable[Path]) -> list[Path]:
    """List what is in a folder of bags and no file, such as a link to a folder, without `bags`."""
    return sorted({Path(e.path) for e in _entries(folder) if not e.is_file()} - set(bags))


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and its subfolders but hidden files, without following links."""
    for entry in os.scandir(folder) if Path(folder).is_dir() else ():
        if not entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith("."):
                yield entry
        elif entry.name != "patches" and not _is_output(Path(entry.path)):
            yield from _entries(entry.path)


def _is_output(folder: Path) -> bool:
    """Return whether a folder is a run, predictions, or their folder of instances."""
    if folder.name == "instances" and (folder.parent / "predictions.csv").is_file():
        return True
    return any((folder / name).is_file() for name in RUN_FILES)
