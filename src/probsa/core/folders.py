"""Write folders as a whole: under a temporary name, then renamed."""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import OutputExists
from .files import temporary_path
from .leftovers import remove_leftovers_of
from .ownership import (
    LEDGER,
    Earlier,
    foreign,
    foreign_files,
    has_written_files_of,
    make_folder,
    open_output,
    seal_output,
)
from .stopping import keep, remove_at_stop, unstoppable
from .writers import is_abandoned

PAUSES = (0.0, 0.05, 0.2, 0.5)
"""Seconds between the attempts to read a folder that another process replaces."""


@contextmanager
def replacing_folder(folder: Path, *, earlier: Earlier | None = None) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success and is removed on failure.

    An earlier folder is put aside until the new one has its place; if a killed process had put one
    aside, it is first put back. If another process has written the same files in the meantime, its
    folder stays, and the new one is removed. A link is followed.

    Args:
        folder: The folder.
        earlier: Returns the files of a folder without a ledger that may be replaced.

    Raises:
        OutputExists: The folder holds files that probsa did not write, or another process has
            written other files in the meantime.
    """
    if folder.is_symlink():
        folder = folder.resolve()
    make_folder(folder.parent)
    remove_leftovers_of(folder)
    _put_back(folder)
    _check_folder(folder, earlier)
    before = _identity(folder)
    new = temporary_path(folder)
    aside = new.with_suffix(".old")
    try:
        new.mkdir(0o755)
        open_output(new)
        yield new
        seal_output(new)
        checked = _states(folder)
        _check_folder(folder, earlier)  # files may have been added in the meantime
        is_replaced = _identity(folder) != before
        if not is_replaced:
            with unstoppable():
                is_replaced = not _swap(new, folder, aside)
                _return_late_files(aside, folder, checked=checked)
                remove_at_stop(aside)
            shutil.rmtree(aside, ignore_errors=True)
        if is_replaced:
            _check_same(folder, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        keep(new)
        keep(aside)


def _swap(new: Path, folder: Path, aside: Path) -> bool:
    """Put `folder` aside and `new` in its place; return False if another process was faster."""
    with suppress(FileNotFoundError):
        folder.replace(aside)
    try:
        new.replace(folder)
    except OSError:
        if folder.exists():
            return False
        if aside.exists():
            aside.replace(folder)
        raise
    return True


def _states(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return what tells whether a file has changed, by the path of each file within a folder."""
    states: dict[Path, tuple[int, int, int]] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # another process is removing it
                status = path.lstat()
                states[path.relative_to(folder)] = (
                    status.st_ino,
                    status.st_size,
                    status.st_mtime_ns,
                )
    return states


def _return_late_files(
    aside: Path, folder: Path, *, checked: Mapping[Path, tuple[int, int, int]]
) -> None:
    """Move files that came into an earlier folder after it was checked to the new folder.

    Raises:
        OutputExists: The new folder has another file of this name; the late one stays where it is.
    """
    for relative, state in _states(aside).items():
        if checked.get(relative) == state or LEDGER in relative.parts:
            continue
        late = aside / relative
        place = folder / relative
        if not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            late.rename(place)
        elif not place.is_file() or place.read_bytes() != late.read_bytes():
            raise OutputExists(
                f"{place} was written by probsa and by somebody else at the same time: the other "
                f"file is {late}. Move it elsewhere"
            )


def _check_same(folder: Path, new: Path) -> None:
    """Check that another process has written the files of a new folder.

    Raises:
        OutputExists: It has written others.
    """
    for pause in PAUSES:
        if has_written_files_of(folder, new):
            return
        time.sleep(pause)  # the folder may be replaced once more just now
    raise OutputExists(
        f"another process has written other files to {folder} in the meantime: give another output"
    )


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one that has replaced it; None if there is none."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _put_back(folder: Path) -> None:
    """Put back what a process put aside that was killed before the new folder had its place."""
    name = re.compile(re.escape(f".{folder.name}.") + r"[a-z0-9_]+\.old")
    for aside in [p for p in folder.parent.iterdir() if name.fullmatch(p.name)]:
        if not is_abandoned(aside):
            continue
        with suppress(FileNotFoundError):  # another process is faster
            if not folder.exists():
                aside.replace(folder)
            elif not any(foreign_files(aside)):
                shutil.rmtree(aside, ignore_errors=True)


def _check_folder(folder: Path, earlier: Earlier | None) -> None:
    """Refuse a folder with files that probsa did not write."""
    while True:
        before = _identity(folder)
        path = next(foreign_files(folder, earlier=earlier), None)
        if path is None:
            return
        if _identity(folder) == before:  # else another process has replaced the folder meanwhile
            raise foreign(path)
