"""Write every table of an experiment to its folder."""

from collections.abc import Callable
from pathlib import Path

from ..results.comparing import ResultCache
from ..results.results import Results, read_results
from ..results.scores import by_data
from .ablation import ablation_table
from .comparison import comparison_table
from .folds import folds_table
from .formats import write_table
from .instances import instances_table
from .table import ResultTable

FOLDER = "tables"


def write_tables(
    out: Path, *, told: Callable[[str], None] | None = None, cache: ResultCache | None = None
) -> list[Path]:
    """Write `out`/tables/*.md, *.tex and *.csv from the run folders, and return the files.

    The same runs give the same bytes.

    Args:
        out: The experiment's folder.
        told: A function called with the name of each table before it is made; some take minutes.
        cache: Stores results for figures of the same runs.

    Raises:
        InputError: There is no finished run below `out`.
    """
    results = read_results(out)
    files: list[Path] = []

    def add(name: str, make: Callable[[], ResultTable | None]) -> None:
        if told is not None:
            told(name)
        table = make()
        if table is not None:
            files.extend(write_table(table, out / FOLDER))

    for name, make in _tables(results, cache or ResultCache()):
        add(name, make)
    return list(dict.fromkeys(files))


def _tables(
    results: Results, cache: ResultCache
) -> list[tuple[str, Callable[[], ResultTable | None]]]:
    tables: list[tuple[str, Callable[[], ResultTable | None]]] = [
        ("comparison, local", lambda: comparison_table(results, "local", cache=cache)),
        ("comparison, global", lambda: comparison_table(results, "global", cache=cache)),
        ("ablation", lambda: ablation_table(results, cache=cache)),
    ]
    for data, scores in by_data(results.scores).items():
        tables.append((f"folds of {data}", lambda s=scores: folds_table(s)))
    for data, scores in by_data(results.two_classes).items():
        tables.append((f"instances of {data}", lambda s=scores: instances_table(s, cache=cache)))
    return tables
