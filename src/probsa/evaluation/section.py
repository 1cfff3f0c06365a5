"""A part of an evaluation report: its values for JSON, its text, and its figures."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..statistics import Metric
from .words import INTERVAL, no_interval_text

Style = Literal["main", "plain", "null", "points"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel: its points, and the limits of its band or intervals."""

    name: str
    """What it is of; figures give the same name the same colour."""
    x: Sequence[float]
    y: Sequence[float]
    _: KW_ONLY
    label: str | None = None
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    style: Style = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A diagram of lines, with the words around it."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    xlim: tuple[float, float] = (0.0, 1.0)
    ylim: tuple[float, float] | None = None
    """None: from 0 to somewhat above the highest line."""
    diagonal: bool = False
    level: tuple[float, str] | None = None
    """The height and the label of a horizontal line."""
    between: tuple[str, str, str] | None = None
    """The names of two lines, and the label of the area between them."""


class SectionFigure(NamedTuple):
    """The figure of a section."""

    file: str
    """The name of its file, without suffix."""
    panels: Sequence[Panel]
    """Its panels from left to right."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report. Everything that a report knows of it are these fields."""

    key: str
    """Its key in the JSON report, or in that of the section that it is a part of."""
    values: Mapping[str, Any]
    _: KW_ONLY
    parts: Mapping[str, "Section"] = field(default_factory=dict)
    """The sections that it consists of, by their key, which JSON has before `values`."""
    text: Sequence[Grid | str] = ()
    """Tables and sentences, in order."""
    figure: SectionFigure | None = None
    metrics: Mapping[str, Mapping[str, Metric]] = field(default_factory=dict)
    """Metrics by what they are of, for data frames."""
    warnings: Sequence[str] = ()
    """What a reader must know before the numbers; a report shows it on its first screen."""
    cautions: Sequence[str] = ()
    """What speaks against its values; sentences on it are in `text`."""
    on_request: bool = False
    """Whether a report has it only if it was asked for; its text then stands below the summary."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**plain(self.parts), **plain(self.values)}

    def render(self, console: Console) -> None:
        """Print it as text."""
        print_parts(console, self.text)


def print_parts(console: Console, parts: Iterable[Grid | str]) -> None:
    """Print tables as they are, and sentences, of which some may be empty, without markup."""
    for part in parts:
        if isinstance(part, Grid):
            console.print(part)
        elif part:
            console.print(part, markup=False, soft_wrap=True, highlight=False)


def plain(value: Any) -> Any:
    """Return a value with its records, mappings, sequences and arrays as plain values for JSON."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def bags_and_instances(
    key: str,
    bags: Section,
    instances: Section | str,
    *,
    figure: str,
    between: str,
    more: Mapping[str, Any],
) -> Section:
    """Join a part on bags and a part on instances, or the reason why there is none of these.

    Args:
        key: the key of the joint section.
        bags: the part on bags.
        instances: the part on instances, or why there is none.
        figure: the name of the file with the panels of both.
        between: a sentence between the parts.
        more: further values.
    """
    parts = {"bags": bags}
    values: dict[str, Any] = {}
    if isinstance(instances, str):
        values["instances"] = None
        values["instances_reason"] = instances
    else:
        parts["instances"] = instances
        values["instances_reason"] = None
    panels = [panel for part in parts.values() if part.figure for panel in part.figure.panels]
    return Section(
        key,
        {**values, **more},
        parts=parts,
        text=[*bags.text, between, *(parts["instances"].text if "instances" in parts else ())],
        figure=SectionFigure(figure, panels) if panels else None,
    )


RIGHT = {"justify": "right"}


def grid(
    title: str | None,
    columns: Mapping[str, Mapping[str, Any]],
    rows: Iterable[Sequence[str | None]],
) -> Grid:
    """Return a table for a console; an empty row draws a line.

    columns: the options of `rich` for each column, by its heading.
    """
    table = Grid(title=title, title_justify="left")
    for name, options in columns.items():
        table.add_column(name, **options)
    for row in rows:
        table.add_row(*row) if row else table.add_section()
    return table


def metric_grid(title: str, metrics: Mapping[str, Metric], *, titles: Mapping[str, str]) -> Grid:
    """Return a table with a row for each metric: value and interval, or why it is undefined.

    A reason that several metrics share is said once, below the table.
    """
    counts = Counter(m.reason for m in metrics.values() if m.value is None and m.reason)
    shared_reasons = [reason for reason, count in counts.items() if count > 1]
    marks = {reason: f"see {k}" for k, reason in enumerate(shared_reasons, 1)}
    rows = []
    for name, m in metrics.items():
        value = "-" if m.value is None else f"{m.value:.{m.digits}f}"
        if m.value is None:
            interval = marks.get(m.reason or "", m.reason)
        elif m.no_interval is not None:
            interval = no_interval_text(m.no_interval)
        else:
            interval = m.span(before="")
            if m.left_out:
                interval += f" ({m.left_out} resamples undefined)"
        rows.append((titles[name], value, interval))
    table = grid(title, {"metric": {}, "value": RIGHT, INTERVAL: {}}, rows)
    if shared_reasons:
        notes = (f"{k}: {reason}" for k, reason in enumerate(shared_reasons, 1))
        table.caption = Text("\n".join(notes))
        table.caption_justify = "left"
    return table


def metric_columns(
    title: str, rows: Mapping[str, Mapping[str, Metric]], *, titles: Mapping[str, str]
) -> Grid:
    """Return a table with a row for each part and a column for each metric that has a value."""
    names: list[str] = []
    for metrics in rows.values():
        names += [name for name in metrics if name not in names]
    columns = [name for name in names if _has_value(name, rows.values())]
    cells = []
    for part, metrics in rows.items():
        values = [str(metrics[name]) if name in metrics else "-" for name in columns]
        cells.append((part, *values))
    return grid(None, {title: {}, **{titles[name]: RIGHT for name in columns}}, cells)


def _has_value(name: str, rows: Iterable[Mapping[str, Metric]]) -> bool:
    """Return whether a metric has a value in a row."""
    return any(metrics[name].value is not None for metrics in rows if name in metrics)
