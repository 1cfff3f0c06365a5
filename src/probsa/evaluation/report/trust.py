"""When a map may be shown as an explanation: one rule, for the summary, the page and the pictures.

docs/which-model.md explains the rule. A map passes only what is shown by a 95 % interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from ...statistics import Metric

Verdict = Literal["yes", "no", "untested"]


class MapTest(StrEnum):
    """What a model and its map must be shown to do before the map explains anything."""

    CHANCE = "chance"
    """The model predicts bags better than chance."""
    MEAN_FEATURES = "mean features"
    """The model predicts bags better than a linear model of the mean features of a bag, which
    cannot know where the evidence is."""
    NULL_MAPS = "null maps"
    """The map finds labelled instances better than every null map."""
    FAITHFULNESS = "faithfulness"
    """Removing what the map shows changes the prediction more than removing random instances."""


FAILED: Mapping[MapTest, str] = {
    MapTest.CHANCE: "the model is not shown to be better than chance",
    MapTest.MEAN_FEATURES: "the model is not shown to be better than a linear model of the mean "
    "features, which looks at no single instance",
    MapTest.NULL_MAPS: "the map is not shown to find evidence better than every null map",
    MapTest.FAITHFULNESS: "removing what the map shows is not shown to change the predictions more "
    "than removing instances at random",
}
"""What is said of a test that was not passed."""
MISSING: Mapping[MapTest, str] = {
    MapTest.CHANCE: "the model beside chance",
    MapTest.MEAN_FEATURES: "the model beside the mean features",
    MapTest.NULL_MAPS: "the map beside null maps (needs labels of instances)",
    MapTest.FAITHFULNESS: "faithfulness (probsa predict --faithfulness)",
}
"""What is said of a test that was not made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MapTrust:
    """Whether the maps of a model may be shown as explanations, with the tests that say so."""

    verdict: Verdict
    """`no` if a test was made and not passed; `yes` if all were passed."""
    failed: tuple[MapTest, ...]
    untested: tuple[MapTest, ...]

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        if self.failed:
            reasons = "; ".join(FAILED[test] for test in self.failed)
            return f"do not show them as explanations: {reasons}"
        if self.untested:
            missing = ", ".join(MISSING[test] for test in self.untested)
            return f"not known yet; still to be tested: {missing}"
        return (
            "they may be shown as explanations: model and map are better than chance, than the "
            "mean features and than every null map, and predictions rest on what the map shows"
        )


def map_trust(passed: Mapping[MapTest, bool | None]) -> MapTrust:
    """Apply the rule: every test must be passed; None stands for a test that was not made."""
    results = {test: passed.get(test) for test in MapTest}
    failed = tuple(test for test, result in results.items() if result is False)
    untested = tuple(test for test, result in results.items() if result is None)
    verdict: Verdict = "no" if failed else "untested" if untested else "yes"
    return MapTrust(verdict=verdict, failed=failed, untested=untested)


def is_gain(metric: Metric | Mapping[str, Any] | None) -> bool | None:
    """Return whether a difference is shown to be above 0; None if it has no value."""
    if metric is None:
        return None
    stated = metric.to_dict() if isinstance(metric, Metric) else metric
    if stated.get("value") is None:
        return None
    low = stated.get("low")
    return low is not None and low > 0
