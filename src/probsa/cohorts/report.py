"""The report on a run over a cohort: a table with one row per slide or series, and a summary."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core import counted, locked, write_csv
from .geometry import MAX_NAMES, resolution_hint
from .records import Record

HEADER = [
    "name",
    "status",
    "reason",
    "instances",
    "unreadable",
    "seconds",
    "kind",
    "format",
    "mpp",
    "mpp_source",
    "notes",
    "source",
]
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
        counts = dict(Counter(o.status for o in self.outcomes))
        kept = sum(o.kept for o in self.outcomes if o.status == "done")
        if kept:
            counts["kept"] = kept
        return counts

    def _note_lines(self) -> list[str]:
        """Return one line for each remark on how slides were read and where their tissue is."""
        names: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.kind == "slide" and not outcome.kept:
                for note in outcome.notes:
                    names.setdefault(note, []).append(outcome.name)
        lines = [f"{_list_names(slides)}: {note}" for note, slides in names.items()]
        if len(lines) > MAX_SHOWN:
            rest = len(lines) - MAX_SHOWN
            lines = [*lines[:MAX_SHOWN], f"and {counted(rest, 'more note')}: {self.table}"]
        return lines

    def render(self, console: Console) -> None:
        """Print the failures with their reasons, then the totals."""
        failures = [o for o in self.outcomes if o.status != "done"]
        without_mpp = [o.name for o in failures if o.needs_mpp]
        if len(without_mpp) > 1:  # one hint for all of them
            failures = [o for o in failures if not o.needs_mpp]
            console.print(resolution_hint(without_mpp), markup=False, soft_wrap=True)
        if failures:
            self._print_failures(failures, console)
        for line in (*self._note_lines(), *self.metadata):
            console.print(line, markup=False)
        total = sum(o.count for o in self.outcomes if o.status == "done")
        counts = [f"{n} {status.replace('_', ' ')}" for status, n in sorted(self.counts.items())]
        words = ", ".join(counts) or "nothing to do"
        console.print(f"{words}; {total} {self.what}: {self.table}", markup=False)

    def _print_failures(self, failures: Sequence[Record], console: Console) -> None:
        """Print a table of failures, in which what is wrong with many is said once."""
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in failures:
            common_reason = record.reason.replace(record.name, "")
            groups.setdefault((record.status, common_reason), []).append(record)
        records_of_rows = list(groups.values())
        table = Table(box=None, pad_edge=False)
        for heading in ("name", "status", "reason"):
            table.add_column(heading, overflow="fold")
        for records in records_of_rows[:MAX_SHOWN]:
            names = _list_names([record.name for record in records])
            table.add_row(names, records[0].status.replace("_", " "), records[0].reason)
        console.print(table, markup=False)
        if len(records_of_rows) > MAX_SHOWN:
            rest = sum(len(records) for records in records_of_rows[MAX_SHOWN:])
            console.print(f"and {rest} more: {self.table}", markup=False)


def _list_names(names: Sequence[str]) -> str:
    """Return the first few names, with their number if there are more."""
    first = ", ".join(names[:MAX_NAMES])
    return first if len(names) <= MAX_NAMES else f"{len(names)}: {first}, …"


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
    new = {record.name: record for record in outcomes}
    with locked(path):  # another run may be adding records
        records = {record.name: record for record in others} | new
        write_csv(path, HEADER, [_row(records[name]) for name in sorted(records)])
    ordered = tuple(new[name] for name in sorted(new))
    return CohortReport(what=what, outcomes=ordered, table=path, metadata=metadata)


def _row(r: Record) -> dict[str, object]:
    """Return a row of the table."""
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
