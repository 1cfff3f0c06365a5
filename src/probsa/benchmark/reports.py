"""The tables and figures of an experiment, from its run folders alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..jobs import write_lock
from .figures.write import write_figures
from .results.cache import Kept
from .results.outlier_folds import odd_notes
from .results.results import read_scores
from .tables.writing import FOLDER, write_tables


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What was made, and what was not."""

    files: tuple[Path, ...]
    missing: tuple[tuple[str, str], ...]
    """(figure, why there is none, or what is not in it)."""
    odd: tuple[str, ...] = ()
    """Folds on which all methods do unlike on the others, and test parts below chance: labels
    flipped, say."""


def write_report(
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    told: Callable[[str], None] | None = None,
) -> Written:
    """Writes tables and figures below `out`; the same runs give the same bytes.

    Args:
        out: the experiment's folder.
        bags: whose attention maps are drawn side by side; None: chosen by rule.
        told: is told of each part before it is made: some take minutes.

    Raises:
        InputError: no finished run below `out`.
        UnknownName: a bag that the experiment has not.
    """
    kept = Kept()
    with write_lock(out / FOLDER):
        files = write_tables(out, told=told, kept=kept)
    if told is not None:
        told("figures")
    with write_lock(out / "figures"):
        figures = write_figures(out, bags=bags, kept=kept)
        for old in (out / "figures").glob("attention-*"):  # of bags that are chosen no more
            if old not in figures.written:
                old.unlink()
    return Written(
        files=(*files, *figures.written),
        missing=figures.missing,
        odd=odd_notes(read_scores(out)),
    )
