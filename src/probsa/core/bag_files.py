"""Files of bags: a bag is named after its file."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import BagError

HDF5 = (".h5", ".hdf5")


def by_name(files: Iterable[Path]) -> dict[str, Path]:
    """Files by the name of their bag, which is the file's name without its ending.

    Raises:
        BagError: two files would be bags of one name.
    """
    found: dict[str, Path] = {}
    for path in files:
        if path.stem in found:
            raise BagError(
                f"two bags are named {path.stem!r}: {found[path.stem]} and {path}. "
                "Names must be unique: rename one, or give the folder that holds only one of them"
            )
        found[path.stem] = path
    return found


def hdf5_files(folder: Path) -> list[Path]:
    """The HDF5 files of a folder and those below it that can be bags."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in HDF5
        and path.is_file()
        and not path.name.startswith(".")
        and "patches" not in path.relative_to(folder).parts[:-1]
    )


def pt_files(folder: Path) -> list[Path]:
    """The .pt files of a folder, not of those below."""
    return sorted(p for p in folder.glob("*.pt") if not p.name.startswith("."))


def npy_files(folder: Path) -> list[Path]:
    """The .npy files of a folder, not of those below."""
    return sorted(p for p in folder.glob("*.npy") if not p.name.startswith("."))
