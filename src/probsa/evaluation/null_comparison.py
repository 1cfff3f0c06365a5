"""Whether a map finds evidence better than every null map, in one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..statistics import Metric

Verdict = Literal["better", "not better", "undecided", "undefined"]
NULL_TITLES = {
    "centre": "the distance from the centre",
    "position": "the place within the bag",
    "norm": "the length of the features",
    "mahalanobis": "the distance from the mean instance",
    "mean_features": "the regression on mean features",
    "single_instance": "the regression on single instances",
    "darkness": "darkness",
    "brightness": "brightness",
}


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
        value: the map's AUROC within bags; all samples come from the same draws.
        nulls: that of each null map.
        groups: number of groups with a bag that counts.
    """
    defined = {k: s for k, s in nulls.items() if s.rows is not None}
    if value.rows is None or not defined:
        reason = value.reason if value.rows is None else "no null map could be computed"
        return NullComparison(
            map=name,
            verdict="undefined",
            sentence=f"The {name} map cannot be compared with null maps: {reason}.",
            value=value,
            differences={},
        )
    best = max(defined, key=lambda k: defined[k].value or 0.0)
    differences = {k: (value - s).student(groups=groups) for k, s in defined.items()}
    verdict = _verdict(differences, best=best)
    return NullComparison(
        map=name,
        verdict=verdict,
        sentence=_sentence(
            name,
            verdict,
            values=(value.value or 0.0, defined[best].value or 0.0),
            differences=differences,
            best=best,
        ),
        value=value,
        null=best,
        null_value=defined[best],
        differences=differences,
    )


def _verdict(differences: Mapping[str, Metric], *, best: str) -> Verdict:
    if all(d.low is not None and d.low > 0 for d in differences.values()):
        return "better"
    high = differences[best].high
    return "not better" if high is not None and high < 0 else "undecided"


def _sentence(
    name: str,
    verdict: Verdict,
    *,
    values: tuple[float, float],
    differences: Mapping[str, Metric],
    best: str,
) -> str:
    opening = {
        "better": f"The {name} map finds evidence better than every null map",
        "not better": f"The {name} map does not find evidence better than the null maps",
        "undecided": f"It cannot be told whether the {name} map finds evidence better than every "
        "null map",
    }[verdict]
    text = (
        f"{opening}: AUROC within bags {_number(values[0])} against {_number(values[1])} "
        f"of {NULL_TITLES.get(best, best)}; difference {_difference(differences[best])}"
    )
    lowest = min(differences, key=lambda k: _low(differences[k]))
    if verdict == "undecided" and lowest != best and _low(differences[best]) > 0:
        text += f", but {_difference(differences[lowest])} to {NULL_TITLES.get(lowest, lowest)}"
    return text + "."


def _low(m: Metric) -> float:
    return float("-inf") if m.low is None else m.low


def _number(value: float | None, *, sign: bool = False) -> str:
    assert value is not None
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    return text.replace("0.", ".", 1).replace("-", "−")


def _difference(m: Metric) -> str:
    if m.low is None or m.high is None:
        return f"{_number(m.value, sign=True)} (no interval: too few groups or resamples)"
    low, high = _number(m.low, sign=True), _number(m.high, sign=True)
    return f"{_number(m.value, sign=True)} [{low}, {high}]"
