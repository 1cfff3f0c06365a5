"""Write every figure that an experiment's runs allow, and report why others are missing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from ...maps import Sources
from ..results.results import Results, read_results
from ..results.scores import Scores
from .attention import attention_figures
from .forest import differences, draw_forest
from .improvement import draw_improvement, gains
from .ranks import draw_ranks, family_ranks
from .style import FigureData, FigureFiles, write


class FigureKind(NamedTuple):
    """A figure: its data, how it is drawn, and why there may be nothing to draw."""

    data: Callable[[Sequence[Scores]], FigureData]
    draw: Callable[..., Figure]
    none: str


FIGURES = {
    "improvement": FigureKind(
        gains, draw_improvement, "no ProbSA method with λ > 0 has its baseline (λ = 0)"
    ),
    "ranks": FigureKind(family_ranks, draw_ranks, "ranks need at least two methods"),
    "differences": FigureKind(differences, draw_forest, "no method has a baseline to compare with"),
}
"""The figures of two classes by the names of their files, besides attention maps."""


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
    files = FigureFiles()
    other_tasks = {s.data: s.task.name for s in results.scores if not s.task.two_classes}
    for data, task in other_tasks.items():
        reason = f"they show AUROC, F1 and calls, but the task is {task}"
        files += FigureFiles(missing=((f"figures of {data}", reason),))
    if not scores:
        return files
    for name, kind in FIGURES.items():
        rows, missing, remark = kind.data(scores)
        if rows:
            figure = kind.draw(rows, remark=remark)
            written = write(figure, out / "figures" / f"{name}.png", rows)
            files += FigureFiles(tuple(written), tuple((name, why) for why in missing))
        else:
            files += FigureFiles(missing=((name, "; ".join([kind.none, *missing])),))
    return files + attention_figures(out, bags=bags, methods=methods, seed=seed, sources=sources)
