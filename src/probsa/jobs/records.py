"""Small JSON files that record how tasks ended."""

import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..core import write_json

R = TypeVar("R", bound="RecordFile")


class RecordFile:
    """Base of frozen dataclasses that are stored as one JSON file each."""

    @classmethod
    def read(cls: type[R], path: Path) -> R | None:
        """Read a record; return None if the file is missing or damaged."""
        assert is_dataclass(cls)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            known = {f.name for f in fields(cls)}
            values: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in stored.items() if k in known
            }
            return cls(**values)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        assert is_dataclass(self)
        write_json(path, asdict(self))
