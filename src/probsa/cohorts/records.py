"""Records of a work folder: one small file per slide or CT series and stage."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..core import BagKind, read_record, write_json
from ..errors import InputError
from ..jobs import TaskOutcome
from .geometry import SlideGeometry

STATUSES = ("done", "no_tissue", "failed")
NOUNS: dict[BagKind, str] = {"slide": "slide", "ct": "series"}
"""What messages call an input of each kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(TaskOutcome):
    """All that is known about one slide or series, before a stage has processed it and after.

    Its `status` is one of `STATUSES`, `count` the number of patches, slices or instances.
    """

    kind: BagKind
    source: str
    """Absolute path of the slide, or of the folder or file that contains the series."""
    files: tuple[str, ...] = ()
    """Files of the slices of a DICOM series, or the NIfTI file."""
    format: str = ""
    mpp: float | None = None
    """Micrometres per level-0 pixel that were used or, before that, given for this slide."""
    needs_mpp: bool = False
    """Whether it failed because its resolution is needed and unknown."""
    unreadable: int = 0
    """Number of instances that could not be decoded."""
    seconds: float = 0.0
    made_with: str = ""
    """Digest of the source, the settings and everything else that the result depends on."""
    content: str = ""
    """Digest of the slide or series from which the patches were made."""
    settings: str = ""
    """Digest of the settings of the patches."""
    notes: tuple[str, ...] = ()
    geometry: SlideGeometry | None = None
    """How the patches of the slide are cut."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it is read from."""
        return self.files or (self.source,)

    def bytes_on_disk(self) -> int:
        """Return the size of its files, without those that cannot be found."""
        size = 0
        for path in self.paths:
            with suppress(OSError):
                size += Path(path).stat().st_size
        return size

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """Read a record; return None if the file is missing or damaged.

        Raises:
            InputError: it is the record of another name. Files of that name would be written and
                deleted, wherever it leads.
        """
        try:
            record = read_record(cls, path)
        except InputError:
            return None
        if record.name != path.stem:
            raise InputError(
                f"{path} is the record of {record.name!r}, but a record has the name of its file: "
                "it was changed by hand. Remove it, and run probsa patch again"
            )
        return record if record.status in STATUSES else replace(record, status="failed")

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        values = asdict(self) | {"seconds": round(self.seconds, 3)}
        del values["kept"]  # it is true of a run, not of the result
        write_json(path, values)

    def failed(self, reason: str) -> "Record":
        """Return the record of the same slide or series after a failure."""
        return replace(self, status="failed", reason=reason, count=0, unreadable=0, seconds=0.0)
