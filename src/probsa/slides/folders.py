"""Stage 1: walk through folders, also through links to folders."""

import os
from collections.abc import Iterator
from pathlib import Path


def folders_below(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with the names of its folders and files, as `os.walk` does.

    Links to folders are followed after the folders themselves, so that a folder has its own path
    where it can be reached in two ways. A folder is visited once, whatever links lead to it.
    Removing names from the list of folders leaves these out.
    """
    visited: set[Path] = set()
    starts = [root]
    while starts:
        for parent, folders, files in os.walk(starts.pop(0)):
            real = Path(parent).resolve()
            if real in visited:
                folders.clear()
                continue
            visited.add(real)
            folders.sort()
            yield Path(parent), folders, sorted(files)
            starts += [Path(parent) / name for name in folders if Path(parent, name).is_symlink()]


def files_below(root: Path) -> list[Path]:
    """Return the regular files below a folder, also those behind links, sorted."""
    files: list[Path] = []
    for parent, _, names in folders_below(root):
        files += [parent / name for name in names if (parent / name).is_file()]
    return sorted(files)
