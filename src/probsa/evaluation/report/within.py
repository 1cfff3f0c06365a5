"""The section on maps within positive bags, beside null maps, which hardly look at the image."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool
from rich.table import Table as Grid

from ...statistics import Draws, Metric
from ..baselines.null_maps import (
    NO_NULL_MAPS,
    about_null_maps,
    centre,
    read_null_scores,
)
from ..claims import Claim
from ..context import Context
from ..instances.measures import (
    POSITIVE_BAGS,
    WITHIN,
    WITHIN_BAGS,
    dice,
    dice_threshold,
    no_threshold_reason,
    pooled,
    recall_and_precision,
    within_bags,
)
from ..instances.table import Column, InstanceTable, MapColumn, Values
from ..map_scores import MapScore, available_scores, map_values
from ..prediction import Prediction
from ..scores import class_column
from ..section import Section, grid, plain
from ..words import NULL_TITLES, WITHIN_TITLES, no_interval_text, shortened

DICE = "dice"
Verdict = Literal["better", "not better", "undecided", "undefined"]
FINDS: dict[Verdict, str] = {
    "better": "The {} map finds evidence better than every null map",
    "not better": "The {} map does not find evidence better than the null maps",
    "undecided": "It is not shown that the {} map finds evidence better than every null map",
}


def instance_table(context: Context) -> InstanceTable | None:
    """Read the labelled instances of the evaluated bags with every map and null map.

    The maps are the model's own score and, if it differs, the score that its maps show.
    Returns: None if no bag has instance labels.
    """
    folder = context.predictions.path
    if folder is None:
        return None
    choice = context.predictions.metadata.map_score
    has_null_scores = about_null_maps(folder) is not None

    def maps(p: Prediction) -> dict[Column, Values | str]:
        scores = available_scores(p)
        shown_scores: list[MapScore] = [scores[0]]  # the model's own
        if choice is not None and choice.chosen in scores[1:]:
            shown_scores.append(choice.chosen)
        columns: dict[Column, Values | str] = {}
        for score in shown_scores:
            columns[MapColumn("map", score)] = class_column(p, map_values(p, score))
        null_scores = {"centre": centre(p.coords)}
        if has_null_scores:
            null_scores = read_null_scores(folder, p.name, instances=len(p.attention_mean))
        for name, values in null_scores.items():
            columns[MapColumn("null", name)] = values
        return columns

    table = InstanceTable.of(context.instances(), positive=context.is_positive, more=maps)
    return table if table.names else None


def validation_table(context: Context) -> InstanceTable | None:
    """Return the instances of the positive validation bags, on which thresholds are chosen.

    None if validation bags are evaluated themselves.
    """
    if context.part in ("val", "all"):
        return None
    bags = (p for p in context.validation.instances() if context.is_positive(p))
    return InstanceTable.of(bags, positive=lambda _: True)


def pooled_nulls(context: Context, table: InstanceTable) -> dict[str, dict[str, Metric]]:
    """Return AUROC and AP of null maps over the instances of all positive bags together."""
    inside = table.of_bags()
    draws = context.resamples(table.names, table.positive)
    null_metrics: dict[str, dict[str, Metric]] = {}
    if not len(inside.y):
        return null_metrics
    for name in table.map_names("null"):
        metrics = pooled(inside, MapColumn("null", name), draws=draws, what=POSITIVE_BAGS)
        null_metrics[name] = {f"{key}_positive_bags": m for key, m in metrics.items()}
    return null_metrics


def best_of(metrics: Mapping[str, Metric]) -> str | None:
    """Return which metric has the highest value; None if none has one."""
    values = {name: m.value for name, m in metrics.items() if m.value is not None}
    return max(values, key=lambda name: values[name], default=None)


def within_section(
    context: Context,
    table: InstanceTable,
    validation: InstanceTable | None,
    nulls_pooled: Mapping[str, Mapping[str, Metric]],
) -> Section:
    """Compare the model's maps with null maps within positive bags.

    See `instance_table`, `validation_table` and `pooled_nulls` for the arguments.
    """
    draws = context.resamples(table.names, table.positive, at_most=context.bootstrap)
    maps = _metrics_of_maps(table, "map", draws=draws)
    nulls = _metrics_of_maps(table, "null", draws=draws)
    null_aurocs = {name: metrics[WITHIN] for name, metrics in nulls.items()}
    comparisons = [
        compare_to_null_maps(name, metrics[WITHIN], null_aurocs) for name, metrics in maps.items()
    ]
    inside = table.of_bags()
    rule = _dice_rule(inside, validation)
    at_threshold: dict[str, Metric] = {}
    own_metrics, *other_metrics = maps.values()
    if rule.called is None:
        own_metrics[DICE] = Metric.undefined(rule.undefined)
    else:
        own_metrics[DICE] = dice(inside, rule.called, draws=draws)["dice"]
        at_threshold = recall_and_precision(inside, rule.called, draws=draws)
    for metrics in other_metrics:
        metrics[DICE] = Metric.undefined("only the model's own score has a threshold")
    rule_text = _rule_text(rule, at_threshold)
    about = about_null_maps(context.predictions.folder)
    missing = {}
    for column, reason in table.missing.items():
        if isinstance(column, MapColumn) and column.kind == "null":
            missing[column.name] = reason
    if about is None:
        missing["others"] = NO_NULL_MAPS
    # with classes, bags without instance labels count as well
    positive = int(((context.y > 0) if context.task.has_classes else table.positive).sum())
    counted_bags = int(table.mixed.sum())
    unlabelled = len(context.rows) - len(table.names)
    means = (
        f"Means over {counted_bags} of {positive} positive bags: those that have instances of "
        f"both labels. Top instance and top 1 %: the share that is positive. {rule_text}"
    )
    if unlabelled:
        means += f" {unlabelled} evaluated bags have no instance labels."
    values = {
        "maps": maps,
        "null_maps": nulls,
        "null_maps_pooled": nulls_pooled,
        "comparisons": comparisons,
        "own_map": next(iter(maps)),
        "shown_map": next(reversed(maps)),
        "missing": missing,
        "counted_bags": counted_bags,
        "positive_bags": positive,
        "bags_without_instance_labels": unlabelled,
        "dice_threshold": rule_text,
        "at_threshold": at_threshold,
        "about": about or {},
    }
    text = [
        _grid_of_maps(maps, nulls, dice_title=rule.title),
        means,
        *(f"null map {name}: {reason}" for name, reason in missing.items()),
        *(comparison.sentence for comparison in comparisons),
    ]
    return Section("within_bags", values, text=text)


def _metrics_of_maps(
    table: InstanceTable, kind: Literal["map", "null"], *, draws: Draws
) -> dict[str, dict[str, Metric]]:
    """Return the metrics within bags of each map, or null map, of the table."""
    return {
        name: within_bags(table, MapColumn(kind, name), draws=draws)
        for name in table.map_names(kind)
    }


def _grid_of_maps(
    maps: Mapping[str, Mapping[str, Metric]],
    nulls: Mapping[str, Mapping[str, Metric]],
    *,
    dice_title: str,
) -> Grid:
    """Return a table with a row for each map, and a line between maps and null maps."""
    rows: list[list[str]] = [[name, *_cells(metrics)] for name, metrics in maps.items()]
    rows.append([])
    rows += [[name, *_cells(metrics)] for name, metrics in nulls.items()]
    columns = {"map": {"no_wrap": True}}
    columns |= {title: {} for title in (*WITHIN_TITLES.values(), dice_title)}
    return grid("maps within positive bags (below the line: null maps)", columns, rows)


def _cells(metrics: Mapping[str, Metric]) -> list[str]:
    """Return the cells of a map: values, with the intervals below them."""
    cells = []
    for name in (*WITHIN_BAGS, DICE):
        if name in metrics:
            m = metrics[name]
            cells.append("-" if m.value is None else f"{m.value:.3f}{m.span(2, before=chr(10))}")
    return cells


class DiceRule(NamedTuple):
    """How instances are called for Dice."""

    called: Bool[np.ndarray, " n"] | None
    """Whether each instance is called positive; None where there is no threshold."""
    text: str
    """The rule in a sentence."""
    title: str
    """The title of the column of Dice."""
    undefined: str = ""
    """Why there is no threshold."""


def _dice_rule(inside: InstanceTable, validation: InstanceTable | None) -> DiceRule:
    """Return how the instances of positive bags are called, or why they are not."""
    if inside.kind == "evidence":
        text = "Dice: instances with evidence e above 0 are called positive."
        return DiceRule(inside["evidence"] > 0, text=text, title="Dice\nat e > 0")
    reason = no_threshold_reason(validation)
    if reason is not None or validation is None:
        text = f"Dice is undefined: {reason}."
        return DiceRule(None, text=text, title="Dice", undefined=f"{reason}")
    limit = dice_threshold(validation.y, validation.decision)
    return DiceRule(
        inside.decision >= limit,
        text="Dice: at the threshold with the best Dice on the validation bags.",
        title="Dice at the\nvalidation\nthreshold",
    )


def _rule_text(rule: DiceRule, at_threshold: Mapping[str, Metric]) -> str:
    """Return the rule in words, with recall and precision at the threshold."""
    if rule.called is None:
        return rule.text
    values = [
        f"{name} {m if m.value is not None else f'- ({m.reason})'}"
        for name, m in at_threshold.items()
    ]
    together = "There, of all instances of positive bags together"
    return f"{rule.text} {together}: {', '.join(values)}."


# Comparison with null maps


@dataclass(frozen=True, kw_only=True, slots=True)
class NullComparison:
    """A map beside the null map with the highest AUROC within bags."""

    map: str
    verdict: Verdict
    value: Metric
    null: str | None = None
    """The best null map on these data; None if none could be computed."""
    null_value: Metric | None = None
    differences: Mapping[str, Metric] = field(default_factory=dict)
    """The paired difference to every null map."""

    @property
    def claim(self) -> Claim | None:
        """What the verdict claims; None if nothing is shown."""
        return {"better": Claim.BETTER_MAP, "not better": Claim.WORSE_MAP}.get(self.verdict)

    @property
    def statement(self) -> str:
        """The verdict with its values, without a full stop."""
        if self.null is None or self.null_value is None or self.value.value is None:
            reason = "no null map could be computed"
            if self.value.value is None:
                reason = self.value.reason
            return f"The {self.map} map cannot be compared with null maps: {reason}"
        value = shortened(f"{self.value.value:.3f}")
        null_value = shortened(f"{self.null_value.value:.3f}")
        best = NULL_TITLES.get(self.null, self.null)
        statement = (
            f"{FINDS[self.verdict].format(self.map)}: AUROC within bags {value} against "
            f"{null_value} of {best}; difference {_difference(self.differences[self.null])}"
        )
        # the best null map on these data may be beaten, and another one, with a wide interval, not
        lows = _lows(self.differences)
        least_sure = min(lows, key=lambda name: lows[name])
        if self.verdict == "undecided" and least_sure != self.null and lows[self.null] > 0:
            other = NULL_TITLES.get(least_sure, least_sure)
            statement += f", but {_difference(self.differences[least_sure])} to {other}"
        return statement

    @property
    def sentence(self) -> str:
        """The verdict with its values."""
        return f"{self.statement}."

    @property
    def reservation(self) -> str:
        """What a reader of the map must know in a sentence; empty if it is better than all."""
        if self.null is None or self.verdict == "better":
            return ""
        best = NULL_TITLES.get(self.null, self.null)
        return f"{FINDS[self.verdict].format(self.map)}, of which {best} is the best."

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison with its sentence for JSON."""
        return {
            "map": self.map,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "value": plain(self.value),
            "null": self.null,
            "null_value": plain(self.null_value),
            "differences": plain(self.differences),
        }


def compare_to_null_maps(name: str, value: Metric, nulls: Mapping[str, Metric]) -> NullComparison:
    """Compare the AUROC within bags of a map with that of every null map.

    The map is better if the 95 % interval of its difference to *each* null map lies above 0. This
    is an intersection-union test: whichever null map is truly the best, a map that is no better
    than it is called better with a probability of at most 2.5 %. The sentence quotes the null map
    that is best on the evaluated bags. This choice favours the null maps: the quoted difference is
    smaller than that to a null map fixed beforehand, so a win is conservative, and a difference
    below 0 does not show that the map is worse than any null map.

    All metrics come from the same draws.
    """
    best = best_of(nulls)
    if value.value is None or best is None:
        return NullComparison(map=name, verdict="undefined", value=value)
    differences = {null: value - m for null, m in nulls.items() if m.value is not None}
    to_best = differences[best]
    verdict: Verdict = "undecided"
    if all(difference.is_above(0.0) for difference in differences.values()):
        verdict = "better"
    elif to_best.is_below(0.0):
        verdict = "not better"
    return NullComparison(
        map=name,
        verdict=verdict,
        value=value,
        null=best,
        null_value=nulls[best],
        differences=differences,
    )


def _lows(differences: Mapping[str, Metric]) -> dict[str, float]:
    """Return the lower limit of the interval of each difference; -inf without an interval."""
    return {name: -math.inf if d.low is None else d.low for name, d in differences.items()}


def _difference(m: Metric) -> str:
    why = "" if m.no_interval is None else no_interval_text(m.no_interval)
    return shortened(m.text(sign=True)) + (f" ({why})" if why else "")
