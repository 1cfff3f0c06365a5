"""FROC of one method over its replicates (seeds, splits): the mean, and its interval.

The interval resamples slides (or patients), the same ones in all replicates, and the replicates.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ..errors import InputError
from ..statistics import (
    RATES,
    Draws,
    Hits,
    Metric,
    Sampled,
    froc,
    mean_of,
    replicate_weights,
    undefined,
    with_data,
)

NAMES = ("froc", *(f"sensitivity_at_{r:g}" for r in RATES))


def froc_summary(
    replicates: Sequence[Sequence[Hits]],
    *,
    groups: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """`froc` (the score) and `sensitivity_at_<rate>`; undefined, and why, without a lesion to find.

    Args:
        replicates: the same slides in the same order, as each replicate's detections hit them.
        groups: patient of each slide; a slide that is missing here is its own.
        blocks: of each replicate, what it shares with others: the split, of a split and a seed.
        bootstrap: resamples; 0: no intervals.
        seed: of the resamples.

    Raises:
        InputError: replicates of different slides, or none.
    """
    if not replicates or any(
        [s.name for s in r] != [s.name for s in replicates[0]] for r in replicates
    ):
        raise InputError("replicates are to be of the same slides, and there is to be one at least")
    first = replicates[0]
    try:
        froc(first)
    except InputError as error:
        return dict.fromkeys(NAMES, undefined(str(error)))
    draws = with_data(
        Draws.of(
            np.array([s.tumour for s in first]),
            groups=None if groups is None else [groups.get(s.name, (s.name,)) for s in first],
            resamples=bootstrap,
            seed=seed,
        )
    )
    found = [_rows(slides, draws) for slides in replicates]
    weights = replicate_weights(
        len(found), resamples=len(draws.counts) - 1, seed=seed, blocks=blocks
    )
    mean = [
        mean_of([Sampled(rows=rows[:, k]) for rows in found], weights=weights)
        for k in range(len(NAMES))
    ]
    return {name: m.metric() for name, m in zip(NAMES, mean, strict=True)}


def _rows(slides: Sequence[Hits], draws: Draws) -> np.ndarray:
    """Score and sensitivities in each row of the draws; nan where no lesion was drawn."""
    rows = np.full((len(draws.counts), len(NAMES)), np.nan)
    for row, counts in zip(rows, draws.counts[:, draws.member], strict=True):
        again = [s for s, times in zip(slides, counts, strict=True) for _ in range(int(times))]
        if any(s.lesions for s in again):
            curve = froc(again)
            row[:] = [curve.score, *curve.at.values()]
    return rows
