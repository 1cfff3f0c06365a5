"""The section on maps within positive bags, beside null maps, which hardly look at the image."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool

from ...statistics import Metric
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
from ..instances.table import InstanceTable, Values
from ..map_scores import available_scores, map_values
from ..prediction import Prediction
from ..scores import class_column
from ..section import Section, grid
from ..words import NULL_TITLES, WITHIN_TITLES, no_interval_text, shortened

MAP, NULL = "map:", "null:"
"""The beginnings of the columns of maps and null maps in the table of instances."""
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
    folder = context.predictions.folder
    choice = context.predictions.metadata.map_score
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


def pooled_nulls(context: Context, table: InstanceTable) -> dict[str, dict[str, Metric]]:
    """Return AUROC and AP of null maps over the instances of all positive bags together."""
    inside, draws = table.of_bags(), context.resamples(table.names, table.positive)
    names = _named(table, NULL) if len(inside.y) else ()
    found = {n: pooled(inside, NULL + n, draws=draws, what=POSITIVE_BAGS) for n in names}
    return {n: {f"{k}_positive_bags": m for k, m in of_map.items()} for n, of_map in found.items()}


def _named(table: InstanceTable, beginning: str) -> list[str]:
    """Return the names of the maps (or null maps) that every bag of the table has."""
    return [k.removeprefix(beginning) for k in table.columns if k.startswith(beginning)]


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
    maps, nulls = (
        {name: within_bags(table, kind + name, draws=draws) for name in _named(table, kind)}
        for kind in (MAP, NULL)
    )
    counting = [name for name, counts in zip(table.names, table.mixed, strict=True) if counts]
    of_nulls = {name: m[WITHIN] for name, m in nulls.items()}
    comparisons = [compare_to_null_maps(name, m[WITHIN], of_nulls) for name, m in maps.items()]
    inside = table.of_bags()
    called, rule, dice_title = _calls(inside, validation)
    own, *others = maps.values()
    for metrics in others:
        metrics[DICE] = Metric.undefined("only the model's own score has a threshold")
    at_cut: dict[str, Metric] = {}
    if isinstance(called, str):
        own[DICE] = Metric.undefined(called)
    else:
        own[DICE] = dice(inside, called, draws=draws)["dice"]
        at_cut = recall_and_precision(inside, called, draws=draws)
        rule += " There, of all instances of positive bags together: " + ", ".join(
            f"{name} {m if m.value is not None else f'- ({m.reason})'}"
            for name, m in at_cut.items()
        )
        rule += "."
    about = about_null_maps(context.predictions.folder)
    missing = {k.removeprefix(NULL): v for k, v in table.missing.items() if k.startswith(NULL)}
    if about is None:
        missing["others"] = NO_NULL_MAPS
    # with classes, bags without instance labels count as well
    positive = int(((context.y > 0) if context.task.has_classes else table.positive).sum())
    unlabelled = len(context.rows) - len(table.names)
    means = (
        f"Means over {len(counting)} of {positive} positive bags: those that have instances of "
        f"both labels. Top instance and top 1 %: the share that is positive. {rule}"
    )
    means += f" {unlabelled} evaluated bags have no instance labels." if unlabelled else ""

    def cells(metrics: Mapping[str, Metric]) -> list[str]:
        found = [metrics[k] for k in (*WITHIN_BAGS, DICE) if k in metrics]
        return [
            "-" if m.value is None else f"{m.value:.3f}{m.span(2, before=chr(10))}" for m in found
        ]

    rows = [[name, *cells(m)] for name, m in maps.items()]
    rows += [[], *([name, *cells(m)] for name, m in nulls.items())]
    columns = {"map": {"no_wrap": True}}
    columns |= {title: {} for title in (*WITHIN_TITLES.values(), dice_title)}
    values = {
        "maps": maps,
        "null_maps": nulls,
        "null_maps_pooled": nulls_pooled,
        "comparisons": comparisons,
        "own_map": next(iter(maps)),
        "shown_map": next(reversed(maps)),
        "missing": missing,
        "counted_bags": len(counting),
        "positive_bags": positive,
        "bags_without_instance_labels": unlabelled,
        "dice_threshold": rule,
        "at_threshold": at_cut,
        "about": about or {},
    }
    text = [
        grid("maps within positive bags (below the line: null maps)", columns, rows),
        means,
        *(f"null map {name}: {reason}" for name, reason in missing.items()),
        *(comparison.sentence for comparison in comparisons),
    ]
    return Section("within_bags", values, text=text)


def _calls(
    inside: InstanceTable, validation: InstanceTable | None
) -> tuple[Bool[np.ndarray, " n"] | str, str, str]:
    """Return the calls of Dice, or why there are none; the rule in words; and a title."""
    if inside.kind == "evidence":
        words = "Dice: instances with evidence e above 0 are called positive."
        return inside["evidence"] > 0, words, "Dice\nat e > 0"
    reason = no_threshold_reason(validation)
    if reason is not None or validation is None:
        return f"{reason}", f"Dice is undefined: {reason}.", "Dice"
    words = "Dice: at the threshold with the best Dice on the validation bags."
    limit = dice_threshold(validation.y, validation.decision)
    return inside.decision >= limit, words, "Dice at the\nvalidation\nthreshold"


# Comparison with null maps


@dataclass(frozen=True, kw_only=True, slots=True)
class NullComparison:
    """A map beside the null map with the highest AUROC within bags."""

    map: str
    verdict: Verdict
    sentence: str
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
    def reservation(self) -> str:
        """What a reader of the map must know in a sentence; empty if it is better than all."""
        if self.null is None or self.verdict == "better":
            return ""
        best = NULL_TITLES.get(self.null, self.null)
        return f"{FINDS[self.verdict].format(self.map)}, of which {best} is the best."


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
        reason = value.reason if value.value is None else "no null map could be computed"
        sentence = f"The {name} map cannot be compared with null maps: {reason}."
        return NullComparison(map=name, verdict="undefined", sentence=sentence, value=value)
    differences = {k: value - m for k, m in nulls.items() if m.value is not None}
    lows = {k: -math.inf if d.low is None else d.low for k, d in differences.items()}
    to_best, lowest = differences[best], min(lows, key=lambda k: lows[k])
    verdict: Verdict = "undecided"
    if lows[lowest] > 0:
        verdict = "better"
    elif to_best.high is not None and to_best.high < 0:
        verdict = "not better"
    sentence = (
        f"{FINDS[verdict].format(name)}: AUROC within bags {shortened(f'{value.value:.3f}')} "
        f"against {shortened(f'{nulls[best].value:.3f}')} of {NULL_TITLES.get(best, best)}; "
        f"difference {_difference(to_best)}"
    )
    if verdict == "undecided" and lowest != best and lows[best] > 0:
        other = NULL_TITLES.get(lowest, lowest)
        sentence += f", but {_difference(differences[lowest])} to {other}"
    return NullComparison(
        map=name,
        verdict=verdict,
        sentence=f"{sentence}.",
        value=value,
        null=best,
        null_value=nulls[best],
        differences=differences,
    )


def _difference(m: Metric) -> str:
    why = "" if m.no_interval is None else no_interval_text(m.no_interval)
    return shortened(m.text(sign=True)) + (f" ({why})" if why else "")
