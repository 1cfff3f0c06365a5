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
