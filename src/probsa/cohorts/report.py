"""What came of a run over a cohort: one row a slide or series, as a table and in words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core import write_csv
from ..jobs import Outcome, writing
from .records import Record

HEADER = [
    "name", "status", "reason", "instances", "unreadable", "seconds", "kind", "format", "mpp",
    "notes", "source",
]  # fmt: skip
SHOWN = 20
"""Failures that are listed on the terminal; the table has all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CohortReport:
    """The outcomes of a run, in the order of their names."""

    what: str
    """What the instances are: patches, features."""
    outcomes: tuple[Outcome, ...]
    table: Path
    """The CSV file with a row for each."""
    metadata: tuple[str, ...] = ()
    """What else should be said."""

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(name, reason) of all that did not succeed; a slide without tissue is none that did."""
        return [(o.name, o.reason) for o in self.outcomes if o.status != "done"]

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "table": str(self.table),
            "counts": self.counts,
            "instances": sum(o.count for o in self.outcomes if o.status == "done"),
            "about": list(self.metadata),
            "items": [
                {
                    "name": o.name,
                    "status": o.status,
                    "reason": o.reason,
                    "instances": o.count,
                    "unreadable": o.unreadable,
                    "seconds": round(o.seconds, 3),
                    "kept": o.kept,
                    "source": o.source,
                }
                for o in self.outcomes
            ],
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many of each status; `kept` are those of `done` that were there already."""
        found = Counter(o.status for o in self.outcomes)
        kept = sum(o.kept for o in self.outcomes if o.status == "done")
        return {**found, **({"kept": kept} if kept else {})}

    def render(self, console: Console) -> None:
        """For people: what failed and why, then the sums."""
        failed = [o for o in self.outcomes if o.status != "done"]
        if failed:
            table = Table(box=None, pad_edge=False)
            for heading in ("name", "status", "reason"):
                table.add_column(heading, overflow="fold")
            for o in failed[:SHOWN]:
                table.add_row(o.name, o.status.replace("_", " "), o.reason)
            console.print(table, markup=False)
            if len(failed) > SHOWN:
                console.print(f"and {len(failed) - SHOWN} more: {self.table}", markup=False)
        for line in self.metadata:
            console.print(line, markup=False)
        total = sum(o.count for o in self.outcomes if o.status == "done")
        words = ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in sorted(self.counts.items()))
        console.print(
            f"{words or 'nothing to do'}; {total} {self.what}: {self.table}", markup=False
        )


def write_report(
    path: Path,
    outcomes: Sequence[Outcome],
    records: Iterable[Record],
    *,
    what: str,
    others: Iterable[Record] = (),
    metadata: tuple[str, ...] = (),
) -> CohortReport:
    """Writes the table of a cohort.

    Args:
        path: of the table.
        outcomes: this run's.
        records: of the same items: what outcomes do not know (format, resolution).
        what: the instances are.
        others: records of earlier runs: rows of what this one was not given.
        about: what else should be said.
    """
    known = {r.name: r for r in records}
    given = {o.name: o for o in outcomes}
    told = {**{r.name: r.outcome(kept=True) for r in others}, **given}
    rows = [_row(told[name], known.get(name)) for name in sorted(told)]
    with writing(path):
        write_csv(path, HEADER, rows)
    return CohortReport(
        what=what,
        outcomes=tuple(given[name] for name in sorted(given)),
        table=path,
        metadata=metadata,
    )


def _row(o: Outcome, r: Record | None) -> dict[str, object]:
    return {
        "name": o.name,
        "status": o.status,
        "reason": o.reason,
        "instances": o.count,
        "unreadable": o.unreadable,
        "seconds": f"{o.seconds:.2f}",
        "kind": r.kind if r else "",
        "format": r.format if r else "",
        "mpp": f"{r.mpp:.6g}" if r and r.mpp else "",
        "notes": " ".join(r.notes) if r else "",
        "source": o.source,
    }
