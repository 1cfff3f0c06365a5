"""The tables of metrics in the text of a report.

Detectors of wrong calls are left out where the section on doubt shows them. Pooled measures of null
maps stand below those of the model.
"""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table as Grid

from ..core import counted
from ..statistics import Metric
from .doubt_section import DoubtSection
from .null_report import WithinBags
from .pooled_nulls import POOLED_MEASURES, best_null
from .sections import Section
from .titles import INSTANCE_TITLES, POOLED, TARGET_TITLES

DETECTOR = "error_auroc_"


def print_bags(
    console: Console, metrics: Mapping[str, Metric], *, sections: Iterable[Section]
) -> None:
    """Print the table of bags."""
    has_doubt = any(isinstance(s, DoubtSection) for s in sections)
    console.print(metric_grid("bags", _shown(metrics, repeated=has_doubt), titles=TARGET_TITLES))


def print_instances(
    console: Console, metrics: Mapping[str, Metric], *, bags: int, sections: Sequence[Section]
) -> None:
    """Print the table of instances.

    Args:
        console: where to print.
        metrics: the metrics of the model's own score.
        bags: number of bags with instance labels.
        sections: the sections of the report.
    """
    has_doubt = any(isinstance(s, DoubtSection) and s.instances is not None for s in sections)
    nulls = next((s.pooled for s in sections if isinstance(s, WithinBags)), {})
    shown: dict[str, Metric] = {}
    titles = dict(INSTANCE_TITLES)
    for name, metric in _shown(metrics, repeated=has_doubt).items():
        shown[name] = metric
        best = best_null(nulls, name) if name in POOLED_MEASURES else None
        if best is not None:
            shown[f"null_{name}"] = best[1]
            titles[f"null_{name}"] = f"… of the best null map ({best[0]})"
    title = f"instances of {counted(bags, 'bag')}"
    console.print(metric_grid(title, shown, titles=titles))
    console.print(POOLED, markup=False, soft_wrap=True)


def metric_grid(title: str, metrics: Mapping[str, Metric], *, titles: Mapping[str, str]) -> Grid:
    """Return a table with one row per metric."""
    grid = Grid(title=title, title_justify="left")
    grid.add_column("metric")
    grid.add_column("value", justify="right")
    grid.add_column("95 % interval")
    for name, m in metrics.items():
        if m.value is None:
            grid.add_row(titles.get(name, name), "-", m.reason)
            continue
        span = "" if m.low is None or m.high is None else f"[{m.low:.3f}, {m.high:.3f}]"
        left = f" ({m.left_out} resamples undefined)" if m.left_out else ""
        grid.add_row(titles.get(name, name), f"{m.value:.3f}", span + left)
    return grid


def _shown(metrics: Mapping[str, Metric], *, repeated: bool) -> dict[str, Metric]:
    """Return the metrics, without detectors of wrong calls if these are repeated elsewhere."""
    return {k: m for k, m in metrics.items() if not (repeated and k.startswith(DETECTOR))}
