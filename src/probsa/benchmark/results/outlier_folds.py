"""Folds on which all methods do unlike on the others, and test parts on which they do worse than
chance: their labels or pictures deserve a look."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from ...statistics import odd_folds
from .pooled import interval_of
from .results import Scores


def odd_splits(scores: Sequence[Scores]) -> dict[int, str]:
    """By fold of one data set: in words why it stands out; empty where none does.

    A fixed test part has no folds to be odd: every split tests on the same bags. See
    `odd_test_part`.
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


def odd_test_part(scores: Sequence[Scores]) -> str | None:
    """Why the fixed test part of one data set stands out: all methods together are below chance.

    Their scores' mean ranks must have an AUROC whose 95 % interval over patients lies below 0.5.
    """
    first = scores[0]
    if first.folds or len(set(first.y.tolist())) < 2:
        return None
    ranks = np.concatenate([rankdata(s.p, axis=1) for s in scores]).mean(axis=0, keepdims=True)
    one = {"calls": first.calls[:1], "split": first.split[:1], "seed": first.seed[:1], "runs": ()}
    found = interval_of(replace(first, p=ranks, **one), "auroc")
    if found.value >= 0.5 or (found.high is not None and found.high >= 0.5):
        return None
    spread = "" if found.high is None else f" [{found.low:.3f}, {found.high:.3f}]"
    return f"labels flipped? AUROC {found.value:.3f}{spread} by all methods together"


def odd_notes(scores: Sequence[Scores]) -> tuple[str, ...]:
    """The folds and test parts that stand out, of all data sets, in a sentence each."""
    notes = []
    for data in dict.fromkeys(s.data for s in scores):
        own = [s for s in scores if s.data == data]
        notes += [f"{data}, fold {k}: {why}" for k, why in odd_splits(own).items()]
        if why := odd_test_part(own):
            notes.append(f"{data}, the test part: {why}")
    return tuple(notes)
