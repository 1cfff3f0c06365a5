"""Write every figure that an experiment's runs allow, and report why others are missing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from ...maps import Sources
from ...statistics import CriticalDifference
from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note
from ..results.results import Results, read_results
from ..results.scores import Scores
from .attention import attention_figures
from .critical import write_critical
from .detectors import error_detections
from .figure_data import (
    TITLES,
    critical,
    critical_by_primary,
    differences,
    family_ranks,
    folds,
    gains,
)
from .figure_files import FigureFiles
from .folds import write_folds
from .forest import write_forest
from .improvement import write_improvement
from .ranks import FAMILIES, write_ranks
from .uncertainty import write_uncertainty

Row = TypeVar("Row")


def write_figures(
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seed: int = 0,
    results: Results | None = None,
    sources: Mapping[str, Sources] = MappingProxyType({}),
) -> FigureFiles:
    """Write `out`/figures/*.png, each with its numbers as CSV.

    Args:
        out: The experiment's folder.
        bags: Bags whose attention maps are drawn side by side; None: chosen by rule.
        methods: Methods of those maps; None: chosen by rule.
        seed: Seed of the runs behind those maps.
        results: The experiment's results; None to read them.
        sources: The slides or scans of data sets, drawn above those maps.

    Raises:
        InputError: There is no finished run below `out`.
        UnknownName: A bag or a method is not in the experiment.
    """
    results = results or read_results(out)
    scores = results.two_classes
    others = FigureFiles()
    if len(scores) < len(results.scores):
        others += _left_out([s for s in results.scores if s not in scores])
        others += _critical_by_primary(out / "figures", results.scores)
    if not scores:
        return others
    rule = chosen_note(scores)
    folder = out / "figures"

    def path(name: str) -> Path:
        return folder / f"{name}.png"

    files = others + _comparisons(folder, scores, rule=rule)
    splits = [s for s in folds(scores) if s.auroc]
    files += _one(
        path("splits"), splits, [], write_folds,
        none="no split has test bags of both classes",
    )  # fmt: skip
    files += _critical(folder, scores)
    detected, missing = error_detections(chosen(scores))
    files += _one(
        path("uncertainty"), detected, missing, write_uncertainty,
        none="no method with a variance on bags with instance labels",
    )  # fmt: skip
    return files + attention_figures(out, bags=bags, methods=methods, seed=seed, sources=sources)


def _comparisons(folder: Path, scores: Sequence[Scores], *, rule: str) -> FigureFiles:
    """Write the gains over λ = 0, the ranks, and the differences to the baselines."""
    ours, missing = gains(scores)
    files = _one(
        folder / "improvement.png", ours, missing,
        write_improvement,
        none="no ProbSA method with λ > 0 has its baseline (λ = 0)",
    )  # fmt: skip
    ranks, lost_ranks = family_ranks(scores)
    many = len(chosen(scores)) > 1
    files += _one(
        folder / "ranks.png", ranks if many else [], lost_ranks,
        lambda p, r: write_ranks(p, r, remark=" ".join([rule, *lost_ranks]).strip()),
        none="ranks need at least two methods",
    )  # fmt: skip
    baseline_differences, missing = differences(scores)
    files += _one(
        folder / "differences.png", baseline_differences, missing,
        lambda p, r: write_forest(p, r, remark=rule),
        none="no method has a baseline to compare with",
    )  # fmt: skip
    return files


def _critical(folder: Path, scores: Sequence[Scores]) -> FigureFiles:
    """Write critical-difference diagrams for families with enough data sets."""
    files = FigureFiles()
    families: dict[Family, None] = dict.fromkeys(s.method.family for s in scores)
    for family in families:
        for metric, title in TITLES.items():
            name = f"critical-{family}-{metric}"
            result = critical(scores, family, metric)
            files += _diagram(folder / f"{name}.png", result, scores, family, title=title)
    return files


def _critical_by_primary(folder: Path, scores: Sequence[Scores]) -> FigureFiles:
    """Write the diagrams of experiments with data sets of several tasks."""
    files = FigureFiles()
    families: dict[Family, None] = dict.fromkeys(s.method.family for s in scores)
    for family in families:
        path = folder / f"critical-{family}-primary.png"
        result = critical_by_primary(scores, family)
        files += _diagram(path, result, scores, family, title="The primary metric")
    return files


def _diagram(
    path: Path,
    result: CriticalDifference | str,
    scores: Sequence[Scores],
    family: Family,
    *,
    title: str,
) -> FigureFiles:
    """Write one critical-difference diagram, or report why there is none."""
    if isinstance(result, str):
        return FigureFiles(missing=((path.stem, result),))
    models = {s.method.name: s.method.model for s in scores}
    methods = result.ranks.methods
    cliques = [[methods.index(m) for m in clique] for clique in result.cliques]
    columns = result.ranks.ranks.shape[1]
    written = write_critical(
        path,
        methods,
        list(result.ranks.mean.values()),
        cd=result.difference,
        cliques=cliques,
        models=[models[m] for m in methods],
        title=f"{title} on {columns} data sets, {FAMILIES[family]}",
    )
    return FigureFiles(written=tuple(written))


def _left_out(targets: Sequence[Scores]) -> FigureFiles:
    """Report the data sets of which figures show nothing: those of other tasks than two classes."""
    return FigureFiles(
        missing=tuple(
            (f"figures of {data}", f"they show AUROC, F1 and calls, but the task is {task}")
            for data, task in {s.data: s.task.name for s in targets}.items()
        )
    )


def _one(
    path: Path,
    rows: Sequence[Row],
    left_out: Sequence[str],
    write: Callable[[Path, Sequence[Row]], list[Path]],
    *,
    none: str,
) -> FigureFiles:
    """Write a figure and report what it leaves out, or why it is missing."""
    name = path.stem
    if not rows:
        return FigureFiles(missing=((name, "; ".join([none, *left_out])),))
    return FigureFiles(
        written=tuple(write(path, rows)), missing=tuple((name, why) for why in left_out)
    )
