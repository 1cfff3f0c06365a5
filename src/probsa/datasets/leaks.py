"""Stage 5: detect leaks of a split: a patient, a bag or a copy of it in several parts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import TableError
from ..tasks import SHOWN
from .bag_set import BagSet
from .copies import BagCopy, find_copies
from .labels import LabelTable
from .names import SPLIT_PARTS
from .patients import PatientBags
from .splits import Split

LeakKind = Literal["patient", "bag", "copy", "near-copy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Two bags (or one bag) in parts that they must not share."""

    kind: LeakKind
    first: str
    second: str
    parts: tuple[str, str]
    """The part of the first and of the second bag."""
    what: str
    """A description in one sentence."""

    @property
    def across(self) -> bool:
        """Whether the leak joins two parts, rather than being a duplicate within one."""
        return self.parts[0] != self.parts[1]


def find_leaks(
    bags: BagSet, table: LabelTable, split: Split, *, copies: Sequence[BagCopy] | None = None
) -> list[Leak]:
    """Find patients and bags in several parts, and bags that share features (`find_copies`).

    Args:
        bags: The features; each bag of the split is read once. Of patients, slides are compared.
        table: Label table with the groups (patients) of the bags.
        split: The parts.
        copies: The result of `find_copies`, if known already (from other splits); for patients that
            of their slides.

    Raises:
        BagError: a bag cannot be read.
    """
    parts = {p: tuple(dict.fromkeys(getattr(split, p))) for p in SPLIT_PARTS}
    named = [(n, p) for p in SPLIT_PARTS for n in parts[p]]
    label_of = dict(zip(table.bags, table.labels, strict=True))
    leaks = [*_bags(named), *_patients(table, named)]
    if isinstance(bags, PatientBags):  # copies are slides, whatever else their patients have
        slides = [(slide, n, p) for n, p in named for slide in bags.slides_of(n)]
        label_of = {slide: label_of.get(patient) for slide, patient, _ in slides}
        bags, named = bags.slide_bags, [(slide, p) for slide, _, p in slides]
    if copies is None:
        copies = find_copies(bags, [n for n, _ in named])
    return [*leaks, *_copies(label_of, named, copies)]


def refuse_leaks(
    bags: BagSet, table: LabelTable, split: Split, *, copies: Sequence[BagCopy] | None = None
) -> list[Leak]:
    """Reject a split with leaks across parts; return those within a part, for a warning.

    Raises:
        TableError: there are leaks across parts; names the first few, with advice.
        BagError: a bag cannot be read.
    """
    leaks = find_leaks(bags, table, split, copies=copies)
    across = [leak.what for leak in leaks if leak.across]
    if across:
        more = f"; and {len(across) - SHOWN} more" if len(across) > SHOWN else ""
        raise TableError(
            f"the split leaks ({split.origin}): {'; '.join(across[:SHOWN])}{more}. Give bags that "
            f"belong together one group in {table.where}, or leave one of them out"
        )
    return leaks


def _bags(named: Sequence[tuple[str, str]]) -> Iterator[Leak]:
    part_of: dict[str, str] = {}
    for name, part in named:
        if (first := part_of.setdefault(name, part)) != part:
            what = f"bag {name!r} is in {first} and in {part}"
            yield Leak(kind="bag", first=name, second=name, parts=(first, part), what=what)


def _patients(table: LabelTable, named: Sequence[tuple[str, str]]) -> Iterator[Leak]:
    """Return a leak for each further part that a patient's bags are in."""
    group_of = {b: table.group(row) for row, b in enumerate(table.bags)}
    first_bags: dict[str, dict[str, str]] = {}
    for name, part in named:
        first_bags.setdefault(group_of.get(name, name), {}).setdefault(part, name)
    for patient, parts in first_bags.items():
        (part, name), *others = parts.items()
        for other, second in others:
            if second != name:  # else already reported as a bag in two parts
                what = (
                    f"patient {patient!r} is in {part} (bag {name!r}) and in {other} ({second!r})"
                )
                pair = (part, other)
                yield Leak(kind="patient", first=name, second=second, parts=pair, what=what)


def _copies(
    label_of: Mapping[str, int | None],
    named: Sequence[tuple[str, str]],
    copies: Sequence[BagCopy],
) -> Iterator[Leak]:
    part_of = dict(named)
    for copy in copies:
        one, two = copy.first, copy.second
        if one not in part_of or two not in part_of:
            continue
        alike = (
            "the same features" if copy.kind == "copy" else f"{copy.share:.0%} of the rows alike"
        )
        what = f"bags {one!r} ({part_of[one]}) and {two!r} ({part_of[two]}) have {alike}"
        if label_of.get(one) != label_of.get(two):
            what += " but different labels"
        pair = (part_of[one], part_of[two])
        yield Leak(kind=copy.kind, first=one, second=two, parts=pair, what=what)
