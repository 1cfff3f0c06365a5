"""When a map may be shown as an explanation: one rule, for the summary, the page and the pictures.

docs/which-model.md explains the rule. A map passes only what is shown by a 95 % interval.

A run's verdict is stored with all its predictions. A folder of predictions whose own bags were
measured with `probsa predict --faithfulness` has its own answer to that test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...statistics import Metric
from ...tasks import Task
from ..map_tests import MapTest
from ..metadata import MapScoreChoice, StoredTrust
from ..words import shortened

Verdict = Literal["yes", "no", "untested"]


LEAST_DROP = 0.05
"""Drop of the probability of validation bags without the top instances of a score, minus that of
random instances, below which its map explains almost nothing of the predictions."""
BETTER_THAN: Mapping[MapTest, str] = {
    MapTest.CHANCE: "chance",
    MapTest.MEAN_FEATURES: "the mean features",
    MapTest.NULL_MAPS: "every null map",
    MapTest.FAITHFULNESS: "removal of instances at random",
}
"""What model and map must be shown to be better than."""
NEEDS: Mapping[MapTest, str] = {
    MapTest.NULL_MAPS: " (needs labels of instances)",
    MapTest.FAITHFULNESS: " (probsa predict --faithfulness)",
}
"""What a test needs that evaluation alone cannot make."""


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
    def stored(self) -> StoredTrust:
        """What predictions.json states of it."""
        failed = tuple(map(str, self.failed))
        untested = tuple(map(str, self.untested))
        return StoredTrust(map=self.map, failed=failed, untested=untested)

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        drop = self.validation_drop
        on_validation = "" if drop is None else f" ({_validation_bags(drop)})"
        if self.failed:
            rivals = dict(BETTER_THAN)
            rivals[MapTest.FAITHFULNESS] += on_validation
            failed = ", ".join(rivals[test] for test in self.failed)
            return f"do not show them as explanations; not shown to beat {failed}"
        if self.untested:
            untested = ", ".join(BETTER_THAN[test] + NEEDS.get(test, "") for test in self.untested)
            return f"not known yet; still to be compared with {untested}{on_validation}"
        return f"they may be shown as explanations: better than {', '.join(BETTER_THAN.values())}"

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


def _validation_bags(drop: float) -> str:
    return f"validation bags: {_short(drop)} more, wanted {_short(LEAST_DROP)}"


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
    verdict: Verdict = "yes"
    if failed:
        verdict = "no"
    elif untested:
        verdict = "untested"
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


def is_gain(difference: Metric | None) -> bool | None:
    """Return whether a difference is shown to be above 0; None if it has no value."""
    if difference is None or difference.value is None:
        return None
    return difference.is_above(0.0)
