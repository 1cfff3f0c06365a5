"""Write the tables and figures of an experiment from its run folders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..core import foreign_files, remove_leftovers, remove_written
from ..maps import Sources
from .execution.cells import open_experiment
from .figures.write import write_figures
from .results.results import read_results
from .tables.writing import FOLDER, write_tables


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFiles:
    """The files of a report, and what could not be made."""

    files: tuple[Path, ...]
    missing: tuple[tuple[str, str], ...]
    """(figure, why it is missing or incomplete)."""


def write_report(
    out: Path | str,
    *,
    bags: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    sources: Mapping[str, Sources] = MappingProxyType({}),
    told: Callable[[str], None] | None = None,
) -> ReportFiles:
    """Write tables and figures below `out`; the same runs give the same bytes.

    Args:
        out: The experiment's folder.
        bags: Bags whose attention maps are drawn side by side; None: chosen by rule.
        methods: Methods of those maps, in drawing order; None: chosen by rule.
        sources: The slides or scans of data sets, by name, drawn above those maps.
        told: A function called with the name of each part before it is made; some take minutes.

    Raises:
        InputError: There is no finished run below `out`.
        UnknownName: A bag or a method is not in the experiment.
    """
    out = Path(out)
    told = told or (lambda _: None)
    results = read_results(out)
    open_experiment(out)
    for name in (FOLDER, "figures"):
        remove_leftovers(out / name)
    files = write_tables(results, out, told=told)
    told("figures")
    figures = write_figures(out, bags=bags, methods=methods, results=results, sources=sources)
    foreign = set(foreign_files(out / "figures"))
    for file in (out / "figures").glob("attention-*"):
        # a map of an earlier report, of a bag that is no longer chosen
        if file not in figures.written and file not in foreign:
            remove_written(file)
    return ReportFiles(files=(*files, *figures.written), missing=figures.missing)
