"""The section on maps within positive bags, beside maps that look at almost nothing."""

from collections.abc import Mapping

from rich.table import Table as Grid

from ...statistics import Metric
from ..baselines.comparison import compare_to_null_maps
from ..baselines.null_maps import (
    NO_NULL_MAPS,
    NULL_MAPS,
    about_null_maps,
    centre,
    read_null_scores,
)
from ..context import Context
from ..faithfulness.choice import MapScoreChoice
from ..instances.measures import (
    POSITIVE_BAGS,
    WITHIN,
    WITHIN_BAGS,
    dice,
    dice_threshold,
    no_threshold_reason,
    pooled,
    within_bags,
)
from ..instances.table import InstanceTable, Values
from ..map_scores import available_scores, map_values
from ..prediction import Prediction
from ..scores import class_column
from ..section import Section
from ..storage import METADATA
from ..words import WITHIN_TITLES

MAP, NULL = "map:", "null:"
"""The beginnings of the columns of maps and null maps in the table of instances."""
DICE = "dice"


def instance_table(context: Context) -> InstanceTable | None:
    """Read the labelled instances of the evaluated bags with every map and null map.

    The maps are the model's own score and, if it differs, the score that its maps show.
    Returns: None if no bag has instance labels.
    """
    folder = context.predictions.folder
    choice = MapScoreChoice.of(context.predictions.metadata, where=folder / METADATA)
    stored = about_null_maps(folder) is not None

    def more(p: Prediction) -> dict[str, Values | str]:
        known = available_scores(p)
        shown = known[0] if choice is None or choice.chosen not in known else choice.chosen
        maps = {f"{MAP}{k}": class_column(p, map_values(p, k)) for k in (known[0], shown)}
        nulls = {"centre": centre(p.coords)}
        if stored:
            nulls = read_null_scores(folder, p.name, instances=len(p.attention_mean))
        return {**maps, **{f"{NULL}{name}": score for name, score in nulls.items()}}

    table = InstanceTable.of(context.instances(), positive=context.is_positive, more=more)
    return table if table.names else None


def validation_table(context: Context) -> InstanceTable | None:
    """Return the instances of the positive validation bags, on which thresholds are chosen.

    None if validation bags are evaluated themselves.
    """
    if context.part in ("val", "all"):
        return None
    bags = (p for p in context.validation.instances() if context.is_positive(p))
    return InstanceTable.of(bags, positive=lambda _: True)


def named(table: InstanceTable, beginning: str) -> list[str]:
    """Return the names of the maps (or null maps) that every bag of the table has."""
    names = [k.removeprefix(beginning) for k in table.columns if k.startswith(beginning)]
    return names if beginning == MAP else [n for n in NULL_MAPS if n in names]


def pooled_nulls(context: Context, table: InstanceTable) -> dict[str, dict[str, Metric]]:
    """Return AUROC and AP of null maps over the instances of all positive bags together."""
    inside, draws = table.inside(), context.resamples(table.names, table.positive)
    return {
        name: {
            f"{k}_positive_bags": m
            for k, m in pooled(inside, NULL + name, draws=draws, what=POSITIVE_BAGS).items()
        }
        for name in (named(table, NULL) if len(inside.y) else ())
    }


def best_null(
    metrics: Mapping[str, Mapping[str, Metric]], measure: str
) -> tuple[str, Metric] | None:
    """Return the null map with the highest value of a measure; None if no map has one."""
    values = {k: m[measure].value for k, m in metrics.items() if measure in m}
    known = {k: v for k, v in values.items() if v is not None}
    if not known:
        return None
    best = max(known, key=lambda name: known[name])
    return best, metrics[best][measure]


def within_section(
    context: Context, table: InstanceTable, nulls_pooled: Mapping[str, Mapping[str, Metric]]
) -> Section:
    """Compare the model's maps with null maps within positive bags.

    Args:
        context: what is evaluated.
        table: what `instance_table` returned.
        nulls_pooled: what `pooled_nulls` returned.
    """
    draws = context.resamples(table.names, table.positive, at_most=context.bootstrap)
    maps = {n: within_bags(table, MAP + n, draws=draws) for n in named(table, MAP)}
    nulls = {n: within_bags(table, NULL + n, draws=draws) for n in named(table, NULL)}
    mixed = table.mixed
    groups = {
        context.truth.group.get(name, name)
        for name, counts in zip(table.names, mixed, strict=True)
        if counts
    }
    of_nulls = {name: m[WITHIN] for name, m in nulls.items()}
    comparisons = [
        compare_to_null_maps(name, m[WITHIN], of_nulls, groups=len(groups))
        for name, m in maps.items()
    ]
    limit, sentence, title = _threshold(context, table)
    inside = table.inside()
    undefined = Metric.undefined("only the model's own score has a threshold")
    for place, metrics in enumerate(maps.values()):
        metrics[DICE] = undefined
        if place == 0 and isinstance(limit, str):
            metrics[DICE] = Metric.undefined(limit)
        elif place == 0 and not isinstance(limit, str):
            called = inside["evidence"] > 0 if limit is None else inside.decision >= limit
            metrics[DICE] = dice(inside, called, draws=draws)["dice"]
    about = about_null_maps(context.predictions.folder)
    missing = {
        name.removeprefix(NULL): reason
        for name, reason in table.missing.items()
        if name.startswith(NULL)
    } | ({"others": NO_NULL_MAPS} if about is None else {})
    positive = int(table.positive.sum())
    if context.task.has_classes:  # bags without instance labels count as well
        positive = int((context.y > 0).sum())
    unlabelled = len(context.rows) - len(table.names)
    text: list[Grid | str] = [_grid(maps, nulls, title)]
    text.append(
        f"Means over {int(mixed.sum())} of {positive} positive bags: those that have instances of "
        f"both labels. Top instance and top 1 %: the share that is positive. {sentence}"
        + (f" {unlabelled} evaluated bags have no instance labels." if unlabelled else "")
    )
    text += [f"null map {name}: {reason}" for name, reason in missing.items()]
    text += [comparison.sentence for comparison in comparisons]
    return Section(
        key="within_bags",
        values={
            "maps": maps,
            "null_maps": nulls,
            "null_maps_pooled": nulls_pooled,
            "comparisons": comparisons,
            "missing": missing,
            "counted_bags": int(mixed.sum()),
            "positive_bags": positive,
            "bags_without_instance_labels": unlabelled,
            "dice_threshold": sentence,
            "about": about or {},
        },
        text=text,
    )


def _threshold(context: Context, table: InstanceTable) -> tuple[float | str | None, str, str]:
    """Return the threshold of Dice (None: evidence 0), or why there is none; words; a title."""
    if table.kind == "evidence":
        words = "Dice: instances with evidence e above 0 are called positive."
        return None, words, "Dice\nat e > 0"
    validation = validation_table(context)
    reason = no_threshold_reason(validation)
    if reason is not None or validation is None:
        return reason or "", f"Dice is undefined: {reason}.", "Dice"
    words = "Dice: at the threshold with the best Dice on the validation bags."
    limit = dice_threshold(validation.y, validation.decision)
    return limit, words, "Dice at the\nvalidation\nthreshold"


def _grid(
    maps: Mapping[str, Mapping[str, Metric]],
    nulls: Mapping[str, Mapping[str, Metric]],
    dice_title: str,
) -> Grid:
    title = "maps within positive bags (below the line: null maps)"
    grid = Grid(title=title, title_justify="left")
    grid.add_column("map", no_wrap=True)
    for column in (*WITHIN_TITLES.values(), dice_title):
        grid.add_column(column)
    for name, metrics in maps.items():
        grid.add_row(name, *(_cell(metrics[k]) for k in (*WITHIN_BAGS, DICE)))
    grid.add_section()
    for name, metrics in nulls.items():
        grid.add_row(name, *(_cell(metrics[k]) for k in WITHIN_BAGS), "")
    return grid


def _cell(m: Metric) -> str:
    return "-" if m.value is None else f"{m.value:.3f}{m.span(2, before=chr(10))}"
