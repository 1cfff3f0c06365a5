"""Small JSON files that record how tasks ended."""

from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TypeVar

from ..core import read_record, write_json
from ..errors import InputError

R = TypeVar("R", bound="RecordFile")


class RecordFile:
    """Base of frozen dataclasses that are stored as one JSON file each."""

    @classmethod
    def read(cls: type[R], path: Path) -> R | None:
        """Read a record; return None if the file is missing or damaged."""
        assert is_dataclass(cls)
        try:
            return read_record(cls, path)
        except InputError:
            return None

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        assert is_dataclass(self)
        write_json(path, asdict(self))
