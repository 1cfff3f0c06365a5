"""Records of a work folder: one small file per slide or CT series and stage."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core import BagKind
from ..errors import InputError
from ..jobs import RecordFile, TaskOutcome

STATUSES = ("done", "no_tissue", "failed")
NOUNS: dict[BagKind, str] = {"slide": "slide", "ct": "series"}
"""What messages call an input of each kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(RecordFile):
    """What is known about one slide or series after a stage has processed it."""

    name: str
    kind: BagKind
    source: str
    """Path of the slide, or of the folder or file that contains the series."""
    status: str = "failed"
    """One of `STATUSES`."""
    reason: str = ""
    files: tuple[str, ...] = ()
    """Files of the slices of a DICOM series, or the NIfTI file."""
    format: str = ""
    mpp: float | None = None
    """Micrometres per level-0 pixel that were used."""
    count: int = 0
    """Number of patches, slices or instances."""
    unreadable: int = 0
    """Number of those that could not be decoded."""
    seconds: float = 0.0
    made_with: str = ""
    """Digest of the source, the settings and everything else that the result depends on."""
    content: str = ""
    """Digest of the slide or series from which the patches were made."""
    settings: str = ""
    """Digest of the settings of the patches."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """Read a record; return None if the file is missing or damaged.

        Raises:
            InputError: it is the record of another name. Files of that name would be written and
                deleted, wherever it leads.
        """
        record = super(Record, cls).read(path)
        if record is not None and record.name != path.stem:
            raise InputError(
                f"{path} is the record of {record.name!r}, but a record has the name of its file: "
                "it was changed by hand. Remove it, and run probsa patch again"
            )
        return record

    def outcome(self, *, kept: bool = False) -> TaskOutcome:
        """Return the outcome for the report of a run; `kept` if nothing had to be done."""
        return TaskOutcome(
            name=self.name,
            status=self.status if self.status in STATUSES else "failed",
            reason=self.reason,
            count=self.count,
            unreadable=self.unreadable,
            seconds=self.seconds,
            source=self.source,
            kept=kept,
        )

    def with_outcome(self, outcome: TaskOutcome) -> "Record":
        """Return this record with the outcome of the task."""
        return replace(
            self,
            status=outcome.status,
            reason=outcome.reason,
            count=outcome.count,
            unreadable=outcome.unreadable,
            seconds=round(outcome.seconds, 3),
        )
