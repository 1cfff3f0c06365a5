"""Whether a map finds evidence better than every null map, in one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "map": self.map,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "value": self.value.to_dict(),
            "null": self.null,
            "null_value": None if self.null_value is None else self.null_value.to_dict(),
            "differences": {k: m.to_dict() for k, m in self.differences.items()},
        }


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

    Args:
        name: what the map shows.
        value: the map's AUROC within bags; all metrics come from the same draws.
        nulls: that of each null map.
        groups: number of groups with a bag that counts.
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
    to_best = differences[best]
    if all(d.low is not None and d.low > 0 for d in differences.values()):
        verdict = "better"
    else:
        verdict = "not better" if to_best.high is not None and to_best.high < 0 else "undecided"
    opening = {
        "better": f"The {name} map finds evidence better than every null map",
        "not better": f"The {name} map does not find evidence better than the null maps",
        "undecided": f"It cannot be told whether the {name} map finds evidence better than every "
        "null map",
    }[verdict]
    sentence = (
        f"{opening}: AUROC within bags {shortened(value.value)} against "
        f"{shortened(defined[best].value or 0.0)} of {NULL_TITLES.get(best, best)}; difference "
        f"{_difference(to_best)}"
    )
    lowest = min(differences, key=lambda k: _low(differences[k]))
    if verdict == "undecided" and lowest != best and _low(to_best) > 0:
        other = NULL_TITLES.get(lowest, lowest)
        sentence += f", but {_difference(differences[lowest])} to {other}"
    return NullComparison(
        map=name,
        verdict=verdict,
        sentence=f"{sentence}.",
        value=value,
        null=best,
        null_value=defined[best],
        differences=differences,
    )


def _low(m: Metric) -> float:
    return float("-inf") if m.low is None else m.low


def _difference(m: Metric) -> str:
    value = shortened(m.value or 0.0, sign=True)
    if m.low is None or m.high is None:
        return f"{value} (no interval: too few groups or resamples)"
    return f"{value} [{shortened(m.low, sign=True)}, {shortened(m.high, sign=True)}]"
