"""Whether a map finds evidence better than every null map, in one sentence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...statistics import Metric
from ..words import NULL_TITLES, shortened

Verdict = Literal["better", "not better", "undecided", "undefined"]


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
    differences: Mapping[str, Metric]
    """The paired difference to every null map."""


def compare_to_null_maps(
    name: str, value: Metric, nulls: Mapping[str, Metric], *, groups: int
) -> NullComparison:
    """Compare the AUROC within bags of a map with that of every null map.

    The map is better if the 95 % interval of its difference to *each* null map lies above 0. This
    is an intersection-union test: whichever null map is truly the best, a map that is no better
    than it is called better with a probability of at most 2.5 %. The sentence quotes the null map
    that is best on the evaluated bags. This choice favours the null maps: the quoted difference is
    smaller than that to a null map fixed beforehand, so a win is conservative, and a difference
    below 0 does not show that the map is worse than any null map.

    All metrics come from the same draws; `groups` is the number of groups with a bag that counts.
    """
    defined = {k: m for k, m in nulls.items() if m.value is not None}
    if value.value is None or not defined:
        reason = value.reason if value.value is None else "no null map could be computed"
        sentence = f"The {name} map cannot be compared with null maps: {reason}."
        return NullComparison(
            map=name, verdict="undefined", sentence=sentence, value=value, differences={}
        )
    best = max(defined, key=lambda k: defined[k].value or 0.0)
    differences = {k: (value - m).student(groups=groups) for k, m in defined.items()}
    lows = {k: -math.inf if d.low is None else d.low for k, d in differences.items()}
    to_best, lowest = differences[best], min(lows, key=lambda k: lows[k])
    verdict, opening = "undecided", (
        f"It cannot be told whether the {name} map finds evidence better than every null map"
    )  # fmt: skip
    if lows[lowest] > 0:
        verdict, opening = "better", f"The {name} map finds evidence better than every null map"
    elif to_best.high is not None and to_best.high < 0:
        verdict = "not better"
        opening = f"The {name} map does not find evidence better than the null maps"
    sentence = (
        f"{opening}: AUROC within bags {shortened(value.value)} against "
        f"{shortened(defined[best].value or 0.0)} of {NULL_TITLES.get(best, best)}; difference "
        f"{_difference(to_best)}"
    )
    if verdict == "undecided" and lowest != best and lows[best] > 0:
        other = NULL_TITLES.get(lowest, lowest)
        sentence += f", but {_difference(differences[lowest])} to {other}"
    return NullComparison(
        map=name, verdict=verdict, sentence=f"{sentence}.", value=value, null=best,
        null_value=defined[best], differences=differences,
    )  # fmt: skip


def _difference(m: Metric) -> str:
    value = shortened(m.value or 0.0, sign=True)
    if m.low is None or m.high is None:
        return f"{value} (no interval: too few groups or resamples)"
    return f"{value} [{shortened(m.low, sign=True)}, {shortened(m.high, sign=True)}]"
