"""What is known of each slide or series after a stage worked on it: one small file each."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from ..core import BagKind, write_json
from .tasks import Outcome, Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What is known of one slide or series after a stage worked on it."""

    name: str
    kind: BagKind
    source: str
    """Path of the slide, or of the folder or file that the series is in."""
    status: Status = "failed"
    reason: str = ""
    files: tuple[str, ...] = ()
    """The slices of a DICOM series."""
    format: str = ""
    mpp: float | None = None
    """Micrometres per level-0 pixel that were used."""
    count: int = 0
    unreadable: int = 0
    seconds: float = 0.0
    made_with: str = ""
    """Digest of the source, the settings and whatever else the result depends on."""
    content: str = ""
    """Digest of the slide or the series that the patches are of."""
    settings: str = ""
    """Digest of the settings that the patches were cut with."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """The record, or None where there is none or it cannot be read (then it is made anew)."""
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            known = {f.name for f in fields(cls)}
            values: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in held.items() if k in known
            }
            return cls(**values)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def write(self, path: Path) -> None:
        """Atomically."""
        write_json(path, asdict(self))

    def outcome(self, *, kept: bool = False) -> Outcome:
        """For the report of a run; `kept`: nothing had to be done."""
        return Outcome(
            name=self.name,
            status=self.status if self.status in get_args(Status) else "failed",
            reason=self.reason,
            count=self.count,
            unreadable=self.unreadable,
            seconds=self.seconds,
            source=self.source,
            kept=kept,
        )

    def with_outcome(self, outcome: Outcome) -> "Record":
        """This record with what came of the work."""
        return replace(
            self,
            status=outcome.status,
            reason=outcome.reason,
            count=outcome.count,
            unreadable=outcome.unreadable,
            seconds=round(outcome.seconds, 3),
        )
