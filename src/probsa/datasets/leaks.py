"""Stage 5: what lets a method know its test bags: a patient, a bag or its copy in two parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import TableError
from .bag_set import BagSet
from .copies import Copy, find_copies
from .labels import PARTS, SHOWN, Table
from .splits import Split

LeakKind = Literal["patient", "bag", "copy", "near-copy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Two bags (or one) that should not be where they are."""

    kind: LeakKind
    first: str
    second: str
    parts: tuple[str, str]
    """Of the first and of the second bag."""
    what: str
    """One sentence."""

    @property
    def across(self) -> bool:
        """Whether it joins two parts; else it is a bag that counts twice in one."""
        return self.parts[0] != self.parts[1]


def find_leaks(
    bags: BagSet, table: Table, split: Split, *, copies: Sequence[Copy] | None = None
) -> list[Leak]:
    """Patients and bags in two parts, and bags whose features are another's (`find_copies`).

    Args:
        bags: the features; all bags of the split are read, once.
        table: groups (patients) of the bags.
        split: the parts.
        copies: what `find_copies` found, where it was called already (for other splits).

    Raises:
        BagError: a bag cannot be read.
    """
    parts = {p: tuple(dict.fromkeys(getattr(split, p))) for p in PARTS}
    named = [(n, p) for p in PARTS for n in parts[p]]
    if copies is None:
        copies = find_copies(bags, [n for n, _ in named])
    return [*_bags(named), *_patients(table, named), *_copies(table, named, copies)]


def refuse_leaks(
    bags: BagSet, table: Table, split: Split, *, copies: Sequence[Copy] | None = None
) -> list[Leak]:
    """Refuses a split with leaks across parts; gives those within one, which are worth a warning.

    Raises:
        TableError: names the first few, and what to do.
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


def _bags(named: Sequence[tuple[str, str]]) -> list[Leak]:
    first: dict[str, str] = {}
    found = []
    for name, part in named:
        if first.setdefault(name, part) != part:
            what = f"bag {name!r} is in {first[name]} and in {part}"
            pair = (first[name], part)
            found.append(Leak(kind="bag", first=name, second=name, parts=pair, what=what))
    return found


def _patients(table: Table, named: Sequence[tuple[str, str]]) -> list[Leak]:
    """One leak for each part that a patient is in beside their first."""
    group = {b: table.group(row) for row, b in enumerate(table.bags)}
    seen: dict[str, dict[str, str]] = {}
    for name, part in named:
        seen.setdefault(group.get(name, name), {}).setdefault(part, name)
    found = []
    for patient, places in seen.items():
        (part, name), *others = places.items()
        for other, second in others:
            if second == name:  # said of the bag
                continue
            what = f"patient {patient!r} is in {part} (bag {name!r}) and in {other} ({second!r})"
            pair = (part, other)
            found.append(Leak(kind="patient", first=name, second=second, parts=pair, what=what))
    return found


def _copies(table: Table, named: Sequence[tuple[str, str]], copies: Sequence[Copy]) -> list[Leak]:
    part, label = dict(named), dict(zip(table.bags, table.labels, strict=True))
    found = []
    for c in copies:
        if c.first not in part or c.second not in part:
            continue
        pair = (part[c.first], part[c.second])
        share = "the same features" if c.kind == "copy" else f"{c.share:.0%} of the rows alike"
        what = f"bags {c.first!r} ({pair[0]}) and {c.second!r} ({pair[1]}) have {share}"
        if label.get(c.first) != label.get(c.second):
            what += " and other labels"
        found.append(Leak(kind=c.kind, first=c.first, second=c.second, parts=pair, what=what))
    return found
