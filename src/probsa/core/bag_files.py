"""Find the files of bags; a bag is named after its file."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import BagError

HDF5 = (".h5", ".hdf5")


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
    """List the HDF5 files in a folder and its subfolders, except those named `patches`."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in HDF5
        and path.is_file()
        and not path.name.startswith(".")
        and "patches" not in path.relative_to(folder).parts[:-1]
    )


def pt_files(folder: Path) -> list[Path]:
    """List the .pt files in a folder, without its subfolders."""
    return sorted(p for p in folder.glob("*.pt") if not p.name.startswith("."))


def npy_files(folder: Path) -> list[Path]:
    """List the .npy files in a folder, without its subfolders."""
    return sorted(p for p in folder.glob("*.npy") if not p.name.startswith("."))
