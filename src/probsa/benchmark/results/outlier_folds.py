"""Find outlier folds, and test parts on which all methods do worse than chance; their labels or
pictures should be checked."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from ...statistics import find_outlier_folds
from .pooled import interval_of
from .results import Scores


def outlier_splits(scores: Sequence[Scores]) -> dict[int, str]:
    """Return the outlier folds of one data set, each with the reason in words.

    With a fixed test part there are no folds to compare: every split tests on the same bags. See
    `outlier_test_part`.
    """
    first = scores[0]
    if not first.folds:
        return {}
    folds = find_outlier_folds(
        first.y,
        np.concatenate([s.p for s in scores]),
        folds=first.split[0],
        groups=first.groups,
    )
    return {int(str(f.fold)): f.reason or "" for f in folds if f.odd}


def outlier_test_part(scores: Sequence[Scores]) -> str | None:
    """Return why the fixed test part of one data set is an outlier, or None.

    This is so if the AUROC of the methods' mean ranks has a 95 % interval over patients below 0.5.
    """
    first = scores[0]
    if first.folds or len(set(first.y.tolist())) < 2:
        return None
    ranks = np.concatenate([rankdata(s.p, axis=1) for s in scores]).mean(axis=0, keepdims=True)
    single_run = {
        "calls": first.calls[:1],
        "split": first.split[:1],
        "seed": first.seed[:1],
        "runs": (),
    }
    auroc = interval_of(replace(first, p=ranks, **single_run), "auroc")
    if auroc.value >= 0.5 or (auroc.high is not None and auroc.high >= 0.5):
        return None
    interval = "" if auroc.high is None else f" [{auroc.low:.3f}, {auroc.high:.3f}]"
    return f"labels flipped? AUROC {auroc.value:.3f}{interval} over all methods together"


def outlier_notes(scores: Sequence[Scores]) -> tuple[str, ...]:
    """Return one sentence per outlier fold or test part of all data sets."""
    notes = []
    for data in dict.fromkeys(s.data for s in scores):
        data_scores = [s for s in scores if s.data == data]
        notes += [f"{data}, fold {k}: {why}" for k, why in outlier_splits(data_scores).items()]
        if why := outlier_test_part(data_scores):
            notes.append(f"{data}, the test part: {why}")
    return tuple(notes)
