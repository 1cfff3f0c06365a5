"""Write every table of an experiment to its folder."""

from collections.abc import Callable
from pathlib import Path

from ..results.results import Results
from ..results.scores import by_data
from .comparison import ablation_table, comparison_table, folds_table
from .instances import instances_table
from .table import ResultTable, write_table

FOLDER = "tables"


def write_tables(
    results: Results, out: Path, *, told: Callable[[str], None] | None = None
) -> list[Path]:
    """Write `out`/tables/*.md, *.tex and *.csv, and return the files.

    The same runs give the same bytes.

    Args:
        results: The experiment's results.
        out: The experiment's folder.
        told: A function called with the name of each table before it is made; some take minutes.
    """
    tables: dict[str, Callable[[], ResultTable | None]] = {
        "comparison, local": lambda: comparison_table(results, "local"),
        "comparison, global": lambda: comparison_table(results, "global"),
        "ablation": lambda: ablation_table(results),
    }
    for data, scores in by_data(results.scores).items():
        tables[f"folds of {data}"] = lambda s=scores: folds_table(s)
    for data, scores in by_data(results.two_classes).items():
        tables[f"instances of {data}"] = lambda s=scores: instances_table(s)
    files: list[Path] = []
    for name, make in tables.items():
        if told is not None:
            told(name)
        table = make()
        files += [] if table is None else write_table(table, out / FOLDER)
    return list(dict.fromkeys(files))
