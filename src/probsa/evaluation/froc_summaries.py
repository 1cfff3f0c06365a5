"""FROC of one method: the mean over its replicates (seeds, splits), with an interval.

The interval resamples the replicates and the slides (or patients); all replicates share the
resamples of the slides.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ..errors import InputError
from ..statistics import (
    RATES,
    Draws,
    Metric,
    SlideHits,
    froc,
    mean_over_replicates,
    replicate_weights,
)
from .pools import bag_draws

FROC_METRICS = ("froc", *(f"sensitivity_at_{r:g}" for r in RATES))


def froc_summary(
    replicates: Sequence[Sequence[SlideHits]],
    *,
    groups: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return `froc` (the score) and `sensitivity_at_<rate>`, each with an interval.

    All of them are undefined, with the reason, if there is no lesion to find.

    Args:
        replicates: for each replicate, the same slides in the same order, with its detections.
        groups: the patient of each slide; a slide that is missing here is its own patient.
        blocks: the block of each replicate, for example its split; see `replicate_weights`.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: there are no replicates, or their slides differ.
    """
    if not replicates or any(
        [s.name for s in r] != [s.name for s in replicates[0]] for r in replicates
    ):
        raise InputError("expected one or more replicates of the same slides in the same order")
    first = replicates[0]
    try:
        froc(first)
    except InputError as error:
        return dict.fromkeys(FROC_METRICS, Metric.undefined(str(error)))
    draws = bag_draws(
        [s.name for s in first],
        np.array([s.tumour for s in first]),
        groups=groups,
        resamples=bootstrap,
        seed=seed,
    )
    by_replicate = [_rows(slides, draws) for slides in replicates]
    weights = replicate_weights(
        len(replicates), resamples=len(draws.counts) - 1, seed=seed, blocks=blocks
    )
    means = [
        mean_over_replicates([Metric.of(rows[:, k]) for rows in by_replicate], weights=weights)
        for k in range(len(FROC_METRICS))
    ]
    return dict(zip(FROC_METRICS, means, strict=True))


def _rows(slides: Sequence[SlideHits], draws: Draws) -> np.ndarray:
    """Return score and sensitivities in each row of the draws; nan without a lesion to find."""
    rows = np.full((len(draws.counts), len(FROC_METRICS)), np.nan)
    for row, counts in zip(rows, draws.counts[:, draws.member], strict=True):
        resample = [s for s, times in zip(slides, counts, strict=True) for _ in range(int(times))]
        if any(s.lesions for s in resample):
            curve = froc(resample)
            row[:] = [curve.score, *curve.at.values()]
    return rows
