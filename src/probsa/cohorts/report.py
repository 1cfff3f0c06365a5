"""The report on a run over a cohort: a table with one row per slide or series, and a summary."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core import counted, locked, write_csv
from .geometry import ADVICE, SHOWN, resolution_hint
from .records import Record

HEADER = [
    "name", "status", "reason", "instances", "unreadable", "seconds", "kind", "format", "mpp",
    "mpp_source", "notes", "source",
]  # fmt: skip
MAX_SHOWN = 20
"""Number of reasons listed on the terminal; the table contains all failures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CohortReport:
    """The outcomes of a run, sorted by name."""

    what: str
    """What the instances are called: patches, slices or instances."""
    outcomes: tuple[Record, ...]
    table: Path
    """CSV file with one row per outcome."""
    metadata: tuple[str, ...] = ()
    """Further lines of the summary."""

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(name, reason) of everything that did not succeed, including slides without tissue."""
        return [(o.name, o.reason) for o in self.outcomes if o.status != "done"]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
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
        """Number of outcomes per status; `kept` counts those of `done` from earlier runs."""
        by_status = Counter(o.status for o in self.outcomes)
        kept = sum(o.kept for o in self.outcomes if o.status == "done")
        return {**by_status, **({"kept": kept} if kept else {})}

    def _note_lines(self) -> list[str]:
        """Return one line for each remark on how slides were read and where their tissue is."""
        names: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.kind == "slide" and not outcome.kept:
                for note in outcome.notes:
                    names.setdefault(note, []).append(outcome.name)
        lines = [f"{_shown_names(slides)}: {note}" for note, slides in names.items()]
        if len(lines) > MAX_SHOWN:
            rest = len(lines) - MAX_SHOWN
            lines = [*lines[:MAX_SHOWN], f"and {counted(rest, 'more note')}: {self.table}"]
        return lines

    def render(self, console: Console) -> None:
        """Print the failures with their reasons, then the totals."""
        failed = [o for o in self.outcomes if o.status != "done"]
        unknown = [o for o in failed if ADVICE in o.reason]
        if len(unknown) > 1:  # one hint for all of them
            failed = [o for o in failed if o not in unknown]
            console.print(resolution_hint([o.name for o in unknown]), markup=False, soft_wrap=True)
        if failed:
            table = Table(box=None, pad_edge=False)
            for heading in ("name", "status", "reason"):
                table.add_column(heading, overflow="fold")
            alike: dict[tuple[str, str], list[Record]] = {}
            for o in failed:  # what is wrong with many is said once
                alike.setdefault((o.status, o.reason.replace(o.name, "")), []).append(o)
            for (status, _), records in list(alike.items())[:MAX_SHOWN]:
                names = _shown_names([o.name for o in records])
                table.add_row(names, status.replace("_", " "), records[0].reason)
            console.print(table, markup=False)
            if len(alike) > MAX_SHOWN:
                rest = sum(len(records) for records in list(alike.values())[MAX_SHOWN:])
                console.print(f"and {rest} more: {self.table}", markup=False)
        for line in (*self._note_lines(), *self.metadata):
            console.print(line, markup=False)
        total = sum(o.count for o in self.outcomes if o.status == "done")
        words = ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in sorted(self.counts.items()))
        console.print(
            f"{words or 'nothing to do'}; {total} {self.what}: {self.table}", markup=False
        )


def _shown_names(names: Sequence[str]) -> str:
    """Return the first few names, with their number if there are more."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{len(names)}: {shown}, …"


def write_report(
    path: Path,
    outcomes: Iterable[Record],
    *,
    what: str,
    others: Iterable[Record] = (),
    metadata: tuple[str, ...] = (),
) -> CohortReport:
    """Write the table of a cohort and return the report.

    Args:
        path: Path of the table.
        outcomes: The outcomes of this run.
        what: What the instances are called.
        others: Records of earlier runs, which become rows for items that are not in this run.
        metadata: Further lines of the summary.
    """
    new = {r.name: r for r in outcomes}
    with locked(path):  # another run may be adding records
        rows = {r.name: r for r in others} | new
        write_csv(path, HEADER, [_row(rows[name]) for name in sorted(rows)])
    ordered = tuple(new[name] for name in sorted(new))
    return CohortReport(what=what, outcomes=ordered, table=path, metadata=metadata)


def _row(r: Record) -> dict[str, object]:
    return {
        "name": r.name,
        "status": r.status,
        "reason": r.reason,
        "instances": r.count,
        "unreadable": r.unreadable,
        "seconds": f"{r.seconds:.2f}",
        "kind": r.kind,
        "format": r.format,
        "mpp": f"{r.mpp:.6g}" if r.mpp else "",
        "mpp_source": "" if r.geometry is None or not r.mpp else r.geometry.mpp_source,
        "notes": " ".join(r.notes),
        "source": r.source,
    }
