"""A data set's part of a table over all data sets, whatever its task."""

from collections.abc import Sequence

from ..results.cache import ResultCache
from ..results.pooled import Compared
from ..results.results import AnyScores, Scores
from ..results.target_comparison import TargetCompared
from ..results.target_scores import TargetScores
from ._shared import METRICS, data_columns, mean_cells
from ._targets import target_cells, target_columns
from .table import Column, TableCell

SetCompared = Compared | TargetCompared


def of_classes(scores: Sequence[AnyScores]) -> list[Scores]:
    """Return the scores of data sets of two classes."""
    return [s for s in scores if isinstance(s, Scores)]


def of_targets(scores: Sequence[AnyScores]) -> list[TargetScores]:
    """Return the scores of data sets of other tasks."""
    return [s for s in scores if isinstance(s, TargetScores)]


def compare_set(
    scores: Sequence[AnyScores], cache: ResultCache, *, baseline: str | None
) -> SetCompared:
    """Compare the methods of one data set."""
    if targets := of_targets(scores):
        return cache.compared_targets(targets, baseline=baseline)
    return cache.compared(of_classes(scores), baseline=baseline)


def set_columns(scores: Sequence[AnyScores]) -> list[Column]:
    """Return the columns of one data set."""
    targets = of_targets(scores)
    return target_columns(targets[0]) if targets else data_columns(scores[0].data)


def set_cells(name: str, scores: Sequence[AnyScores], compared: SetCompared) -> list[TableCell]:
    """Return a method's cells in these columns."""
    if isinstance(compared, TargetCompared):
        return target_cells(name, of_targets(scores), compared)
    return mean_cells(name, of_classes(scores), compared)


def empty_cells(scores: Sequence[AnyScores]) -> list[TableCell]:
    """Return the cells of a method that was not run on a data set."""
    return [TableCell()] * (1 if of_targets(scores) else len(METRICS))
