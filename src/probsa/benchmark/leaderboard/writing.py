"""Write the leaderboard of an experiment: Markdown, CSV and LaTeX."""

from collections.abc import Sequence
from pathlib import Path

from ...errors import ProbSAError
from ..grid.variants import chosen
from ..results.results import Results
from ..results.scores import Scores
from ..tables.formats import write_table
from .entries import Entry, entry_of, null_entries
from .measures import RESAMPLES, set_board
from .tables import leaderboard_table

FOLDER = "leaderboard"


def write_leaderboard(
    out: Path, results: Results, *, resamples: int = RESAMPLES
) -> tuple[Path, ...]:
    """Write `out`/leaderboard/leaderboard.{md,tex,csv} and a CSV file for each data set.

    Args:
        out: the experiment's folder.
        results: its results.
        resamples: number of resamples of the intervals.

    Returns: the files; none if no test bag has instance labels.
    """
    entries, notes = _own(chosen(results.two_classes))
    for own in list({e.data: e.scores for e in entries if e.scores is not None}.values()):
        nulls, missing = null_entries(own)
        entries += nulls
        notes += missing
    if not entries:
        return ()
    boards = [
        set_board(
            [e for e in entries if e.data == data],
            resamples=resamples,
            notes=tuple(n for n in notes if f" on {data}" in n),
        )
        for data in dict.fromkeys(e.data for e in entries)
    ]
    table = leaderboard_table(boards, notes=results.left_out())
    return tuple(write_table(table, out / FOLDER))


def _own(scores: Sequence[Scores]) -> tuple[list[Entry], list[str]]:
    entries: list[Entry] = []
    notes: list[str] = []
    for s in scores:
        try:
            entry = entry_of(s)
        except ProbSAError as error:
            notes.append(f"{s.method.name} on {s.data} has no measures: {error}.")
            continue
        if entry is not None:
            entries.append(entry)
    return entries, notes
