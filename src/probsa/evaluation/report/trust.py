"""When a map may be shown as an explanation: one rule, for the summary, the page and the pictures.

docs/which-model.md explains the rule. A map passes only what is shown by a 95 % interval.

A run's verdict is stored with all its predictions. A folder of predictions whose own bags were
measured with `probsa predict --faithfulness` has its own answer to that test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ...statistics import Metric
from ...tasks import Task
from ..faithfulness import MapScoreChoice
from ..map_tests import FAILED, MapTest
from ..words import shortened

Verdict = Literal["yes", "no", "untested"]


LEAST_DROP = 0.05
"""Drop of the probability of validation bags without the top instances of a score, minus that of
random instances, below which its map explains almost nothing of the predictions."""
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
    map: str = ""
    """The score that the tests are about; empty if that is not known."""
    validation_drop: float | None = None
    """By how much the probability of validation bags drops without the top instances of the map,
    where this stands for faithfulness; None where the evaluated bags were measured."""

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        if self.failed:
            reasons = "; ".join(self.reasons)
            return f"do not show them as explanations: {reasons}"
        if self.untested:
            missing = ", ".join(self.missing)
            return f"not known yet; still to be tested: {missing}"
        return (
            "they may be shown as explanations: model and map are better than chance, than the "
            "mean features and than every null map, and predictions rest on what the map shows"
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is said of the tests that were not passed."""
        drop = self.validation_drop
        said = dict(FAILED)
        if drop is not None:
            said[MapTest.FAITHFULNESS] = (
                f"{_validation_bags(drop)}, less than {_short(LEAST_DROP)}: the map explains "
                f"almost nothing of the predictions ({MEASURE})"
            )
        return tuple(said[test] for test in self.failed)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is said of the tests that were not made."""
        said = dict(MISSING)
        if self.validation_drop is not None:
            said[MapTest.FAITHFULNESS] = (
                f"{said[MapTest.FAITHFULNESS]}, as {_validation_bags(self.validation_drop)}, "
                "which has no interval"
            )
        return tuple(said[test] for test in self.untested)

    @property
    def line(self) -> str:
        """The verdict in one short line, and where its reasons are."""
        maps = f"{self.map} maps" if self.map else "maps"
        count = len(MapTest)
        if self.failed:
            return (
                f"This run's {maps}: do not show them as explanations, {len(self.failed)} of "
                f"{count} tests not passed (reasons: probsa evaluate)"
            )
        if self.untested:
            return (
                f"This run's {maps}: not known whether they explain anything, "
                f"{len(self.untested)} of {count} tests not made (which: probsa evaluate)"
            )
        return (
            f"This run's {maps}: they may be shown as explanations, {count} of {count} tests "
            "passed (probsa evaluate)"
        )


MEASURE = "on validation bags; probsa predict --faithfulness measures the predicted ones"


def _validation_bags(drop: float) -> str:
    return (
        f"removing the top instances of validation bags lowers their probability by {_short(drop)} "
        "more than removing random ones"
    )


def _short(value: float) -> str:
    return shortened(f"{value:.3f}".rstrip("0").replace("-", "−"))


def map_trust(
    passed: Mapping[MapTest, bool | None], *, map: str = "", validation_drop: float | None = None
) -> MapTrust:
    """Apply the rule: every test must be passed; None stands for a test that was not made.

    Args:
        passed: the results.
        map: the score that the tests are about.
        validation_drop: what stands for faithfulness, see `judged_faithfulness`.
    """
    results = {test: passed.get(test) for test in MapTest}
    failed = tuple(test for test, result in results.items() if result is False)
    untested = tuple(test for test, result in results.items() if result is None)
    verdict: Verdict = "no" if failed else "untested" if untested else "yes"
    return MapTrust(
        verdict=verdict, failed=failed, untested=untested, map=map, validation_drop=validation_drop
    )


class Faithfulness(NamedTuple):
    """The result of the test of faithfulness."""

    passed: bool | None
    """None if it was not made."""
    validation_drop: float | None = None
    """See `MapTrust.validation_drop`."""


def judged_faithfulness(
    gain: Metric | None, choice: MapScoreChoice | None, *, score: str, task: Task
) -> Faithfulness:
    """Return whether predictions rest on what a map shows: the one rule for all texts.

    Where the evaluated bags were measured, they judge. Otherwise the drop of the validation bags
    does: a small one says no; a larger one shows nothing, since it has no interval.

    Args:
        gain: the area between the curves of the evaluated bags, minus that of random orders; None
            if they were not measured.
        choice: the drops of the validation bags; None if there are none.
        score: the score that the map shows.
        task: what is predicted; drops of numbers have no limit.
    """
    measured = is_gain(gain)
    if measured is not None:
        return Faithfulness(measured)
    drop = None if choice is None or not task.by_probability else choice.drops.get(score)
    if drop is None:
        return Faithfulness(None)
    return Faithfulness(False if drop < LEAST_DROP else None, drop)


def is_gain(metric: Metric | Mapping[str, Any] | None) -> bool | None:
    """Return whether a difference is shown to be above 0; None if it has no value."""
    if metric is None:
        return None
    stated = metric.to_dict() if isinstance(metric, Metric) else metric
    if stated.get("value") is None:
        return None
    low = stated.get("low")
    return low is not None and low > 0
