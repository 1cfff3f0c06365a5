"""Bags in HDF5 files, one a bag: ours, TRIDENT's, and CLAM's beside its `patches` folder."""

from dataclasses import replace
from pathlib import Path

from ..errors import BagError
from ..store import StoredBag, peek_bag, read_bag, stated_pitch
from ._base import BagSet, GraphOptions

SUFFIXES = (".h5", ".hdf5")


class Hdf5Bags(BagSet):
    """Every HDF5 file in a folder and below it, except in folders named `patches`.

    CLAM's feature files do not state the size of a patch; it is taken from `patches/<bag>.h5`
    in the folder, beside it, or one level up.
    """

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        super().__init__(folder, by_name(hdf5_files(folder)), graph=graph, cache_gb=cache_gb)
        beside = (folder, folder.parent, folder.parent.parent)
        self._patches = next((f / "patches" for f in beside if (f / "patches").is_dir()), None)

    def _read(self, name: str) -> StoredBag:
        stored = read_bag(self._files[name])
        if stored.pitch is None and stored.nature == "slide" and self._patches is not None:
            for path in (self._patches / f"{name}.h5", self._patches / f"{name}_patches.h5"):
                if path.is_file():
                    return replace(stored, pitch=stated_pitch(path))
        return stored

    def _peek(self, name: str) -> tuple[int, int]:
        return peek_bag(self._files[name])


def hdf5_files(folder: Path) -> list[Path]:
    """The HDF5 files of a folder and those below it that can be bags."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not path.name.startswith(".")
        and "patches" not in path.relative_to(folder).parts[:-1]
    )


def by_name(files: list[Path]) -> dict[str, Path]:
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
