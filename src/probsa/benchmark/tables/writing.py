"""Every table of an experiment, into its folder."""

from collections.abc import Callable
from pathlib import Path

from ..execution.timing import read_timing
from ..results.cache import Kept
from ..results.results import Results, read_results
from ._shared import by_data
from .ablation import ablation_table
from .comparison import comparison_table
from .folds import folds_table
from .formats import write_table
from .instances import instances_table
from .table import ResultTable
from .timing import timing_table

FOLDER = "tables"


def write_tables(
    out: Path, *, told: Callable[[str], None] | None = None, kept: Kept | None = None
) -> list[Path]:
    """Writes `out`/tables/*.md, *.tex and *.csv from the run folders alone; gives the files.

    The same runs give the same bytes.

    Args:
        out: the experiment's folder.
        told: is told of each table before it is made: some take minutes.
        kept: takes what is computed, for figures of the same runs.

    Raises:
        InputError: no finished run below `out`, or a damaged timing.csv.
    """
    results = read_results(out)
    times = read_timing(out)
    made: list[Path] = []

    def add(what: str, make: Callable[[], ResultTable | None]) -> None:
        if told is not None:
            told(what)
        table = make()
        if table is not None:
            made.extend(write_table(table, out / FOLDER))

    for what, make in _tables(results, kept or Kept()):
        add(what, make)
    if times:
        add("timing", lambda: timing_table(times))
    return list(dict.fromkeys(made))


def _tables(results: Results, kept: Kept) -> list[tuple[str, Callable[[], ResultTable | None]]]:
    found: list[tuple[str, Callable[[], ResultTable | None]]] = [
        ("comparison, local", lambda: comparison_table(results, "local", kept=kept)),
        ("comparison, global", lambda: comparison_table(results, "global", kept=kept)),
        ("ablation", lambda: ablation_table(results, kept=kept)),
    ]
    for data, scores in by_data(results.scores).items():
        found.append((f"folds of {data}", lambda scores=scores: folds_table(scores)))
        found.append(
            (f"instances of {data}", lambda scores=scores: instances_table(scores, kept=kept))
        )
    return found
