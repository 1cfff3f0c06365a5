"""Stage 10: the maps of a folder of predictions, and what could not be drawn."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ProbSAError, UnknownName
from ..evaluation.tables import read_predictions
from .panels import Scale, heading
from .render import render_map
from .scale import map_limits


def render_folder(
    predictions: Path,
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    scale: Scale = "per-bag",
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str]]:
    """Writes `out/<bag>.png` for these bags of a folder of predictions (None: all).

    Args:
        predictions: as `probsa predict` wrote it.
        out: made if need be; maps of these bags that are there are replaced.
        bags: names of bags.
        scale: `fixed` takes the colours from all bags of the folder, drawn or not.
        progress: told (done, total) after each bag.

    Returns: (bag, reason) of every bag that could not be drawn; the others are.

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
            render_map(p, out / f"{bag}.png", scale=scale, title=title, limits=limits)
        except (ProbSAError, OSError) as error:
            failures.append((bag, str(error)))
        if progress is not None:
            progress(k + 1, len(wanted))
    return failures
