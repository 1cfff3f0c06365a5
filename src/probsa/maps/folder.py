"""Stage 10: the maps of a folder of predictions, and what could not be drawn."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ProbSAError, UnknownName
from ..evaluation import Prediction, read_predictions
from .over import Over, Sources, draw_over
from .panels import Scale, heading
from .qupath import write_qupath
from .render import render_map
from .scale import Limits, map_limits

BROKEN = (ProbSAError, OSError, RuntimeError, MemoryError)
"""What a damaged file may raise, in the libraries that decode it too."""


def render_folder(
    predictions: Path,
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    scale: Scale = "per-bag",
    over: tuple[Sources, Over] | None = None,
    geojson: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str]]:
    """Writes `out/<bag>.png` for these bags of a folder of predictions (None: all).

    Args:
        predictions: as `probsa predict` wrote it.
        out: made if need be; maps of these bags that are there are replaced.
        bags: names of bags.
        scale: `fixed` takes the colours from all bags of the folder, drawn or not.
        over: draws over the slides and scans there; where one cannot be read, the map without it.
        geojson: whether to write `out/<bag>.geojson` for QuPath as well.
        progress: told (done, total) after each bag.

    Returns: (bag, reason) of every bag of which something could not be drawn; all else is.

    Raises:
        UnknownName: a bag that is not in the predictions; nothing is drawn then.
        InputError, TableError: no folder of predictions.
    """
    found = read_predictions(predictions)
    wanted = list(found.bags if bags is None else bags)
    for bag in wanted:
        if bag not in found.bags:
            raise UnknownName("predicted bag", bag, found.bags)
    limits = map_limits(predictions) if scale == "fixed" else None
    labels = dict(zip(found.bags, found.labels, strict=True))
    parts = dict(zip(found.bags, found.parts, strict=True))
    failures = []
    for k, bag in enumerate(wanted):
        try:
            p = found.instances(bag)
            # a map of a bag that was trained on flatters: it says so
            seen = " · a training bag" if parts[bag] == "train" else ""
            title = heading(p, label=labels[bag]) + seen
            failures += _draw(p, out, over=over, scale=scale, title=title, limits=limits)
            if geojson:
                failures += _tiles(p, out, classes=found.classes, over=over)
        except (ProbSAError, OSError) as error:
            failures.append((bag, str(error)))
        if progress is not None:
            progress(k + 1, len(wanted))
    return failures


def _draw(
    p: Prediction,
    out: Path,
    *,
    over: tuple[Sources, Over] | None,
    scale: Scale,
    title: str,
    limits: Limits | None,
) -> list[tuple[str, str]]:
    failures = []
    if over is not None:
        sources, how = over
        try:
            lost = draw_over(
                p, out, sources=sources, how=how, scale=scale, title=title, limits=limits
            )
        except BROKEN as error:
            failures.append((p.name, f"the slide or scan below its map, drawn without: {error}"))
        else:
            return [(p.name, lost)] if lost else []
    render_map(p, out / f"{p.name}.png", scale=scale, title=title, limits=limits)
    return failures


def _tiles(
    p: Prediction, out: Path, *, classes: Sequence[str], over: tuple[Sources, Over] | None
) -> list[tuple[str, str]]:
    try:
        patches = None if over is None else over[0].patches(p)
        side = None if patches is None else patches.size_level0
        write_qupath(out / f"{p.name}.geojson", p, classes=classes, side=side)
    except (ProbSAError, OSError) as error:
        return [(p.name, f"its GeoJSON: {error}")]
    return []
