"""Folds on which all methods do unlike on the others: their labels or pictures deserve a look."""

from collections.abc import Sequence

import numpy as np

from ..evaluation.oddity import odd_folds
from .results import Scores


def odd_splits(scores: Sequence[Scores]) -> dict[int, str]:
    """By fold of one data set: in words why it stands out; empty where none does.

    A fixed test part has no folds to be odd: every split tests on the same bags.
    """
    first = scores[0]
    if not first.folds:
        return {}
    found = odd_folds(
        first.y,
        np.concatenate([s.p for s in scores]),
        folds=first.split[0],
        groups=first.groups,
    )
    return {int(str(f.fold)): f.reason or "" for f in found if f.odd}


def odd_notes(scores: Sequence[Scores]) -> tuple[str, ...]:
    """The folds that stand out, of all data sets, in a sentence each."""
    named = dict.fromkeys(s.data for s in scores)
    found = {data: odd_splits([s for s in scores if s.data == data]) for data in named}
    return tuple(
        f"{data}, fold {k}: {why}" for data, folds in found.items() for k, why in folds.items()
    )
