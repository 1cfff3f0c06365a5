"""Removal of temporary files and folders whose writers, on this machine, were killed."""

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .files import shortened
from .writers import TEMPORARY_NAME, is_abandoned


def temporary_files(path: Path) -> list[Path]:
    """List temporary files of `path`: those that killed processes left, and any in use now."""
    if not path.parent.is_dir():
        return []
    name = re.compile(re.escape(f".{shortened(path.name)}.") + r"[a-z0-9_]+\.tmp")
    return sorted(p for p in path.parent.iterdir() if name.fullmatch(p.name))


def temporary_files_below(folder: Path) -> list[Path]:
    """List the temporary files of every file in a folder and its subfolders."""
    return sorted(p for p in folder.rglob(".*.tmp") if TEMPORARY_NAME.fullmatch(p.name))


def remove_leftovers_of(path: Path) -> None:
    """Remove what killed processes of this machine left half written of a file or folder."""
    for temporary in temporary_files(path):
        if is_abandoned(temporary):
            _remove(temporary)


def remove_leftovers(folder: Path, *, own: Callable[[Path], bool] = lambda path: True) -> None:
    """Remove what killed processes of this machine left half written below a folder.

    Args:
        folder: The folder; it need not exist.
        own: Returns whether a file belongs to the command that removes its temporary files. The
            names of files are shortened as those of temporary files are; see `shortened`.
    """
    for temporary in temporary_files_below(folder):
        name = temporary.name[1:].removesuffix(".tmp").rpartition(".")[0]
        if own(temporary.with_name(name)) and is_abandoned(temporary):
            _remove(temporary)


def _remove(temporary: Path) -> None:
    """Remove a temporary file or folder, unless another process is faster."""
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
        return
    with suppress(FileNotFoundError):
        temporary.unlink()
