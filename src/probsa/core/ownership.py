"""What may be replaced: only files that probsa wrote before, and can prove it.

An output folder has a hidden folder `.probsa`, with a ledger for each machine: the digest and the
path of every file that was written below the output folder. A file that no ledger knows, or that
was changed since, is the user's: it is neither replaced nor removed.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ..errors import OutputExists

LEDGER = ".probsa"
SAMPLE_BYTES = 1 << 20
"""Bytes read at the start, the middle and the end of a file to identify its content."""
ANY_CONTENT = "*"
"""Stands for the digest of files that other libraries write, under names of their own."""
OURS = re.compile(r"\..+\.lock(\.[0-9a-f]{12})?|\..+\.[a-z0-9_]+\.(tmp|old)")
"""Names of temporary files and folders, and of the locks that earlier versions left."""

Earlier = Callable[[Path], Iterable[Path]]
"""Returns the files of a folder that a version without ledgers wrote."""


class Ledger:
    """The files that probsa wrote below an output folder.

    Args:
        root: The output folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._state: list[tuple[str, int, int]] = []
        self._digests: dict[str, set[str]] = {}
        self._patterns: set[str] = set()

    def owns(self, path: Path) -> bool:
        """Return whether the file at a path below the root is one that probsa wrote."""
        self._read()
        name = self.name_of(path)
        if any(fnmatchcase(name, pattern) for pattern in self._patterns):
            return True
        if name not in self._digests:
            return False
        # another process may replace the file meanwhile, which it notes before
        return self.knows(name, digest_of(path))

    def knows(self, name: str, digest: str) -> bool:
        """Return whether a file of this name was written with content of this digest."""
        self._read()
        return digest in self._digests.get(name, ())

    def name_of(self, path: Path) -> str:
        """Return a path as the ledger has it, relative to the root."""
        return path.absolute().relative_to(self.root).as_posix()

    def add(self, entries: Iterable[tuple[str, str]]) -> None:
        """Note the digests of files and their paths below the root."""
        self._read()
        lines: list[str] = []
        for digest, name in entries:
            if digest not in self._digests.get(name, ()):
                lines.append(json.dumps((digest, name)) + "\n")
        if lines:
            file = self.root / LEDGER / _ledger_name()
            with file.open("a", encoding="utf-8", newline="\n") as f:  # appends are atomic
                f.write("".join(lines))

    def _read(self) -> None:
        """Read the ledgers of all machines, if they have changed."""
        try:
            files = sorted((self.root / LEDGER).glob("*.jsonl"))
            state = [(f.name, f.stat().st_size, f.stat().st_ino) for f in files]
            if state == self._state:
                return
            texts = [file.read_text(encoding="utf-8") for file in files]
        except FileNotFoundError:  # another process replaces the folder just now
            state = []
            texts = []
        self._digests = {}
        self._patterns = set()
        for line in "\n".join(texts).splitlines():
            with suppress(ValueError, TypeError):  # a process was killed while it wrote
                digest, name = json.loads(line)
                if digest == ANY_CONTENT:
                    self._patterns.add(name)
                else:
                    self._digests.setdefault(name, set()).add(digest)
        self._state = state


@cache
def _ledger_name() -> str:
    """Return the name of this machine's ledger: file servers do not join appends of several."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f"written-{host}.jsonl"


_ledger_at = cache(Ledger)


def ledger_of(path: Path) -> Ledger | None:
    """Return the ledger of the nearest output folder that contains a path, if there is one."""
    for parent in path.absolute().parents:  # not resolved: links stay as they are
        if (parent / LEDGER).is_dir():
            return _ledger_at(parent)
    return None


def open_output(
    folder: Path, *, earlier: Earlier | None = None, own: bool = True, others: Iterable[str] = ()
) -> None:
    """Begin to note what is written below an output folder, which is created if needed.

    Files that are there and in no ledger are the user's from now on.

    Args:
        folder: The output folder.
        earlier: Returns the files that a version of probsa without ledgers wrote into the folder.
        own: Whether the folder has a ledger of its own even if a folder around it has one.
        others: Patterns of files that other libraries write into the folder.

    Raises:
        OutputExists: There is a file in place of the folder.
    """
    check_folder_place(folder)
    make_folder(folder)
    if (folder / LEDGER).is_dir():
        return
    around = ledger_of(folder / LEDGER)
    if around is not None and not own:
        return
    entries = [(ANY_CONTENT, pattern) for pattern in others]
    earlier_files = set() if earlier is None else set(earlier(folder))
    for path in _files_below(folder):
        if path in earlier_files or (around is not None and around.owns(path)):
            entries.append((digest_of(path), path.relative_to(folder).as_posix()))
    _write_ledger(folder, entries)


def _write_ledger(folder: Path, entries: Iterable[tuple[str, str]]) -> None:
    """Write a first ledger, complete or not at all."""
    new = folder / f"{LEDGER}.{secrets.token_hex(4)}.tmp"
    new.mkdir()
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (new / _ledger_name()).write_text(text, encoding="utf-8", newline="\n")
    try:
        new.rename(folder / LEDGER)
    except OSError:
        shutil.rmtree(new)
        if not (folder / LEDGER).is_dir():  # else another process was faster
            raise


def seal_output(folder: Path) -> None:
    """Note every file of a folder that was made as a whole."""
    entries: list[tuple[str, str]] = []
    for path in _files_below(folder):
        entries.append((digest_of(path), path.relative_to(folder).as_posix()))
    if (folder / LEDGER).is_dir():
        _ledger_at(folder.absolute()).add(entries)
    else:
        _write_ledger(folder, entries)


def has_written_files_of(folder: Path, other: Path) -> bool:
    """Return whether every file of another folder was once written to this one, byte for byte.

    Args:
        folder: A folder with a ledger of its own.
        other: Another folder.
    """
    ledger = Ledger(folder.absolute())
    for path in _files_below(other):
        if not ledger.knows(path.relative_to(other).as_posix(), digest_of(path)):
            return False
    return True


def is_empty(folder: Path) -> bool:
    """Return whether nothing but a ledger and temporary files are in a folder."""
    return all(p.name == LEDGER or OURS.fullmatch(p.name) for p in folder.iterdir())


def place_in_words(path: Path) -> str:
    """Say what is at a path: a file, a folder, or a link, and where that leads."""
    kind = "a folder" if path.is_dir() else "a file"
    if not path.is_symlink():
        return f"{path} is {kind}"
    target = path.readlink()
    if not path.exists():
        return f"{path} is a link to {target}, where there is nothing"
    return f"{path} is a link to {target}, {kind}"


def check_folder_place(folder: Path) -> None:
    """Check that there is a folder at a path, or a link to one, or nothing.

    Raises:
        OutputExists: There is a file, or a link that leads to a file or to nothing.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise OutputExists(f"{place_in_words(folder)}: give a new folder")


def make_folder(folder: Path) -> None:
    """Create a folder and those around it.

    Raises:
        OutputExists: there is a file in place of one of them.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        around = (folder, *folder.parents)
        in_the_way = next((p for p in around if os.path.lexists(p) and not p.is_dir()), folder)
        raise OutputExists(
            f"{place_in_words(in_the_way)}, in place of a folder: move it away, or give another "
            "output"
        ) from error


def check_no_link(path: Path) -> None:
    """Check that an output that is removed or replaced is no link, which may be of use elsewhere.

    Raises:
        OutputExists: It is one.
    """
    if path.is_symlink():
        raise OutputExists(
            f"{place_in_words(path)}; a link is not replaced: give the path that it leads to, or "
            "remove the link"
        )


def check_replaceable(path: Path) -> None:
    """Check that a file may be written to a path in an output folder.

    Raises:
        OutputExists: There is a folder, or a file that probsa did not write, or that was changed
            since; or a link that stands in no ledger.
    """
    if not os.path.lexists(path):
        return
    if path.is_dir() and not path.is_symlink():
        raise OutputExists(f"{path} is a folder: move it away, or give another output")
    ledger = ledger_of(path)
    if ledger is None:
        check_no_link(path)
    elif not ledger.owns(path) and os.path.lexists(path):  # else another process removed it
        raise foreign(path)


def check_apart(out: Path, *inputs: Path) -> None:
    """Check that a folder that is replaced as a whole neither is nor contains an input.

    Raises:
        OutputExists: It does.
    """
    for path in inputs:
        if path.resolve().is_relative_to(out.resolve()):
            raise OutputExists(f"{out} holds an input, {path}: give another output")


def foreign(path: Path) -> OutputExists:
    """Return the error of a file that probsa must not replace or remove."""
    return OutputExists(
        f"{path} was not written by probsa, or was changed or damaged since: move it away, or give "
        "another output"
    )


def note_written(path: Path, content: Path | None = None) -> None:
    """Note a file that is about to be written, whose content another file has already."""
    ledger = ledger_of(path)
    if ledger is not None:
        ledger.add([(digest_of(path if content is None else content), ledger.name_of(path))])


def foreign_files(folder: Path, *, earlier: Earlier | None = None) -> Iterator[Path]:
    """Yield the files below a folder that probsa did not write, or that were changed since.

    Args:
        folder: The folder.
        earlier: See `open_output`; it counts if the folder has no ledger of its own.
    """
    earlier_files: set[Path] = set()
    if earlier is not None and not (folder / LEDGER).is_dir():
        earlier_files = set(earlier(folder))
    for path in _files_below(folder):
        ledger = ledger_of(path)
        is_own = ledger is not None and ledger.owns(path)
        if not is_own and path not in earlier_files and os.path.lexists(path):
            yield path


def remove_written(path: Path) -> None:
    """Remove a file of an output folder, if it is there.

    Raises:
        OutputExists: probsa did not write it, or it was changed since.
    """
    check_replaceable(path)
    path.unlink(missing_ok=True)


def remove_written_folder(folder: Path, *, earlier: Earlier | None = None) -> None:
    """Remove a folder with all that is in it, if it is there.

    Raises:
        OutputExists: It holds a file that probsa did not write, or that was changed since.
    """
    if not folder.is_dir():
        return
    check_no_link(folder)
    for path in foreign_files(folder, earlier=earlier):
        raise foreign(path)
    shutil.rmtree(folder)


def files_matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """List the files of a folder whose paths match one of some patterns of `Path.glob`."""
    files: set[Path] = set()
    for pattern in patterns:
        files |= {path for path in folder.glob(pattern) if not path.is_dir()}
    return sorted(files)


def digest_of(path: Path) -> str:
    """Return a digest of a file's content, or the target of a link.

    It is empty for a pipe or socket, and if another process has removed the file.
    """
    try:
        if path.is_symlink():
            return f"-> {path.readlink()}"
        if not path.is_file():
            return ""
        with path.open("rb") as f:  # another process may replace the file meanwhile
            size = os.fstat(f.fileno()).st_size
            digest = hashlib.sha256(f"{size};".encode())
            for part in samples(f, size):
                digest.update(part)
    except FileNotFoundError:
        return ""
    return digest.hexdigest()[:16]


def samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the start, the middle and the end of an open file, a megabyte each."""
    middle = max(0, size // 2 - SAMPLE_BYTES // 2)
    end = max(0, size - SAMPLE_BYTES)
    for start in sorted({0, middle, end}):
        file.seek(start)
        yield file.read(SAMPLE_BYTES)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files and links below a folder, without temporary files and ledgers."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        # in place: `os.walk` then leaves the others out
        folders[:] = [name for name in folders if name != LEDGER and not OURS.fullmatch(name)]
        for name in (*files, *links):
            if not OURS.fullmatch(name):
                yield Path(place, name)
