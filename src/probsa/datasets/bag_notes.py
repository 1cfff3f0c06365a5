"""What is remarkable about bags: a record for each kind of note, from which its text is made."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..core import as_record, counted, read_json, write_json
from .names import listed


@dataclass(frozen=True, kw_only=True, slots=True)
class BagNote(ABC):
    """A note on a bag; its text is made of its fields."""

    kind: ClassVar[str]
    """The name of the kind in files."""
    title: ClassVar[str]
    """What notes of this kind are about, in a few words."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The note in words."""

    @property
    def subject(self) -> str:
        """What the note is counted under, see `most_frequent`."""
        return self.title


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut(BagNote):
    """The bag is not used."""

    kind = "left_out"
    title = "left out"
    reason: str

    @property
    def text(self) -> str:
        return f"left out: {self.reason}"

    @property
    def subject(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class NoCoordinates(BagNote):
    """The graph needs coordinates, of which there are none."""

    kind = "no_coordinates"
    title = "no coordinates"

    @property
    def text(self) -> str:
        return "no coordinates, so none of its instances has a neighbour"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicesNotInOrder(BagNote):
    """The rows of a scan are not in the order of their positions."""

    kind = "slices_not_in_order"
    title = "slices not in order"
    first_row: int
    """The first row that another one should precede."""

    @property
    def text(self) -> str:
        return (
            f"its rows are not in the order of their positions (from row {self.first_row} on); "
            "neighbours are the slices next in position"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicesAtOnePosition(BagNote):
    """Several slices of a scan have the same position."""

    kind = "slices_at_one_position"
    title = "several slices at one position"
    position: float
    """The first such position."""
    slices: int
    """Number of slices at this position."""
    other_positions: int
    """Number of further positions with several slices."""

    @property
    def text(self) -> str:
        more = f" and several at {self.other_positions} more" if self.other_positions else ""
        return (
            f"{self.slices} slices at position {self.position:g}{more}, which follow one another "
            "in row order"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingSlices(BagNote):
    """Neighbouring slices of a scan are farther apart than the others."""

    kind = "missing_slices"
    title = "slices missing"
    gaps: tuple[tuple[float, float], ...]
    """The positions of the slices beside each gap; only the first few gaps."""
    more_gaps: int
    """Number of further gaps."""
    step: float
    """The median distance between neighbouring slices; 1 if positions are numbers of slices."""

    @property
    def text(self) -> str:
        missing = ", ".join(self._absent(low, high) for low, high in self.gaps)
        more = f" and {self.more_gaps} more gaps" if self.more_gaps else ""
        return f"slices {missing}{more} missing"

    def _absent(self, low: float, high: float) -> str:
        """Return the numbers of the absent slices, or the positions that they are between."""
        if self.step != 1 or high - low < 2:
            return f"between {low:g} and {high:g}"
        if high - low < 3:
            return f"{low + 1:g}"
        return f"{low + 1:g}-{high - 1:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatedStride(BagNote):
    """The distance between neighbouring patches is not stated, but estimated."""

    kind = "estimated_stride"
    title = "distance between neighbours estimated"
    stride: float

    @property
    def text(self) -> str:
        return f"stride estimated as {self.stride:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class IsolatedPatches(BagNote):
    """Most patches have no neighbour."""

    kind = "isolated_patches"
    title = "patches without a neighbour"
    share: float

    @property
    def text(self) -> str:
        return f"{self.share:.0%} of the patches have no neighbour"


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingSlides(BagNote):
    """Slides of a patient are missing."""

    kind = "missing_slides"
    title = "slides of the patient missing"
    used: int
    """Number of slides in the bag; if 0, the patient is left out."""
    missing: Mapping[str, Literal["no bag", "no instances"]]
    """Why each of the other slides is missing."""

    @property
    def text(self) -> str:
        reasons = [f"{slide} ({reason})" for slide, reason in self.missing.items()]
        expected = self.used + len(self.missing)
        return (
            f"{'' if self.used else 'left out: '}{self.used} of {counted(expected, 'slide')} used; "
            f"missing: {listed(reasons, quote=False)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredText(BagNote):
    """A note of which only the text is known: files of version 0.2 have no more."""

    kind = "text"
    title = "other"
    stored_text: str

    @property
    def text(self) -> str:
        return self.stored_text

    @property
    def subject(self) -> str:
        return self.stored_text


KINDS: dict[str, type[BagNote]] = {
    note.kind: note
    for note in (
        LeftOut,
        NoCoordinates,
        SlicesNotInOrder,
        SlicesAtOnePosition,
        MissingSlices,
        EstimatedStride,
        IsolatedPatches,
        MissingSlides,
        StoredText,
    )
}
BagNotes = dict[str, tuple[BagNote, ...]]
"""The notes on each bag that has any, by its name."""


def most_frequent(notes: Iterable[Sequence[BagNote]]) -> str:
    """Return in words what most notes on bags are about; empty if there is no note."""
    subjects = Counter(note.subject for bag_notes in notes for note in bag_notes)
    return "".join(subject for subject, _ in subjects.most_common(1))


def write_notes(path: Path, notes: BagNotes) -> None:
    """Write notes as JSON, with their texts for readers."""
    content: dict[str, list[dict[str, Any]]] = {}
    for bag, bag_notes in sorted(notes.items()):
        content[bag] = [{"kind": n.kind, "text": n.text, **asdict(n)} for n in bag_notes]
    write_json(path, content)


def read_notes(path: Path, *, advice: str) -> BagNotes:
    """Read the file of `write_notes`, or one of version 0.2, which has only a text for each bag.

    Args:
        path: The file.
        advice: What users can do if it is damaged.

    Raises:
        InputError: The file is damaged.
    """
    where = str(path)
    content = read_json(path, advice=advice)
    notes: BagNotes = {}
    for bag, stored in as_record(dict[str, Any], content, where=where, advice=advice).items():
        if isinstance(stored, str):
            notes[bag] = (StoredText(stored_text=stored),)
            continue
        rows = as_record(list[dict[str, Any]], stored, where=where, advice=advice)
        notes[bag] = tuple(_note(row, where=where, advice=advice) for row in rows)
    return notes


def _note(row: Mapping[str, Any], *, where: str, advice: str) -> BagNote:
    """Return a stored note; of a kind that only a later version has, the text alone."""
    kind = KINDS.get(str(row.get("kind")))
    if kind is None:
        text = as_record(str, row.get("text"), where=where, advice=advice)
        return StoredText(stored_text=text)
    return as_record(kind, row, where=where, advice=advice)
