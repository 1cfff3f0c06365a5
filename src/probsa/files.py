"""Files that exist are complete: written under a temporary name, flushed, renamed."""

import csv
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed to it at the end, removed if anything fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as f:
            os.fsync(f.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically, indented; paths become strings."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Writes a table atomically; a missing value is an empty cell."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, header, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, every cell a string without blanks around it."""
    with path.open(newline="", encoding="utf-8-sig") as f:
        return [
            {(k or "").strip(): (v or "").strip() for k, v in row.items() if k is not None}
            for row in csv.DictReader(f)
        ]
