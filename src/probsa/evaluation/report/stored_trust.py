"""What is known of the maps of a folder of predictions: the run's verdict, and its own bags'."""

from collections.abc import Mapping
from typing import Any

from ...statistics import Metric
from ..context import Context, default_part, labelled_rows, read_truth, threshold_of
from ..faithfulness import faithfulness_section
from ..map_scores import available_scores
from ..map_tests import MapTest
from ..storage import FAITHFULNESS, Predictions
from .trust import MapTrust, judged_faithfulness, map_trust

RESAMPLES = 2000
"""Number of resamples of `evaluate`, so that both say the same."""
OF_MAP = (MapTest.NULL_MAPS, MapTest.FAITHFULNESS)
"""The tests of a map; the others are tests of its model."""


def shown_score(predictions: Predictions) -> str:
    """Return the score that the maps of a folder show; empty if that is not known."""
    choice = predictions.metadata.map_score
    if choice is not None:
        return choice.chosen
    for bag in predictions.bags:
        if predictions.has_instances(bag):
            return available_scores(predictions.instances(bag))[0]
    return ""


def measured_gain(values: Mapping[str, Any], *, score: str) -> Metric | None:
    """Return the gain of a section of faithfulness over random orders; None for other scores."""
    if values.get("shown") != [score]:
        return None
    return values["metrics"]["gain_over_random"]


def stored_trust(predictions: Predictions, *, score: str | None = None) -> MapTrust:
    """Return the verdict on the maps of a folder, as its run stated it.

    Whether predictions rest on what the maps show is said by the bags of the folder if they were
    measured, see `judged_faithfulness`.

    Args:
        predictions: the folder.
        score: the score that the maps show; None for the chosen one. Of another score than the one
            that the run tested, what is specific to a map is not known.
    """
    stored = predictions.metadata.map_trust
    score = shown_score(predictions) if score is None else score
    passed: dict[MapTest, bool | None] = {}
    if stored is not None:
        for test in MapTest:
            if test not in stored.untested and (stored.map == score or test not in OF_MAP):
                passed[test] = test not in stored.failed
    faithful = judged_faithfulness(
        _gain(predictions, score=score),
        predictions.metadata.map_score,
        score=score,
        task=predictions.of_task,
    )
    passed[MapTest.FAITHFULNESS] = faithful.passed
    return map_trust(passed, map=score, validation_drop=faithful.validation_drop)


def _gain(predictions: Predictions, *, score: str) -> Metric | None:
    """Return the gain over random orders of the bags that `evaluate` would choose."""
    if predictions.path is None or not (predictions.path / FAITHFULNESS).is_file():
        return None
    truth = read_truth(predictions, None)
    labelled = labelled_rows(predictions, truth)
    part = default_part(labelled)
    limit = threshold_of(predictions, truth)
    context = Context(
        predictions=predictions,
        truth=truth,
        part=part,
        rows=labelled[part] or tuple(range(len(predictions.bags))),
        threshold=None if limit is None else limit.value,
        bootstrap=RESAMPLES,
        seed=0,
    )
    section = faithfulness_section(context)
    return None if section is None else measured_gain(section.values, score=score)
