"""The instance metrics of one method over its replicates (seeds, splits): one row of a table.

A value is the mean over replicates; its interval resamples bags (or patients), the same ones in all
replicates, and the replicates. The same bags and seed give the same draws, so that two methods'
rows are paired: `difference` of their samples is the comparison.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool
from sklearn.metrics import roc_auc_score

from ..errors import InputError
from ..statistics import (
    Draws,
    Metric,
    Sampled,
    auroc,
    mean_of,
    none,
    one_class,
    replicate_weights,
    share,
    with_data,
)
from .dice import DICE, NO_VALIDATION, dice_samples, dice_threshold, no_threshold
from .error_detectors import AREAS, detector_samples, gain, spread_over
from .isolated import isolated_samples
from .neighbours import neighbours_or_reason
from .pools import Pool, held_out, kind_of, labelled
from .prediction import Prediction

Validation = Sequence[Prediction] | Mapping[Hashable, Sequence[Prediction]]
"""Of one replicate: predictions of its validation bags; where each fold has a run, by fold."""

WITHIN = "auroc_within_bags"
NO_LABELS = "no bag has instance labels"


def instance_summary(
    predictions_by_replicate: Sequence[Sequence[Prediction]],
    *,
    positive: Mapping[str, bool],
    validation: Sequence[Validation] | None,
    groups: Mapping[str, Hashable] | None,
    folds: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Every instance metric, the mean over replicates with its interval.

    `auroc`, `average_precision` (all labelled instances, μ); the same with `_positive_bags`;
    `auroc_within_bags` (the mean over positive bags of each one's AUROC); `dice`, `dice_pooled`;
    all of `error_detectors`; all of `isolated_false_positives`. With folds, all that ranks μ or σ²
    over bags is the mean over folds, since two runs have no common scale, and the thresholds of
    Dice are each run's own.

    Args:
        predictions_by_replicate: of the same test bags, one sequence a replicate.
        positive: whether a bag is positive; a bag that is missing here is not.
        validation: of each replicate, where the threshold of Dice is chosen; None: no Dice.
        groups: patient of each bag; a bag that is missing here is its own.
        folds: which run of a replicate predicted each bag; None: one run predicted all.
        blocks: of each replicate, what it shares with others: the split, of a split and a seed.
        bootstrap: resamples; 0 gives no intervals.
        seed: of the resamples, and of the random maps.

    Raises:
        InputError: replicates of different bags, scores of several kinds, or validation that does
            not fit the replicates.
        BagError: a bag's attention is not finite.
    """
    samples = instance_samples(
        predictions_by_replicate,
        positive=positive,
        validation=validation,
        groups=groups,
        folds=folds,
        blocks=blocks,
        bootstrap=bootstrap,
        seed=seed,
    )
    return {name: s.metric() for name, s in samples.items()}


def instance_samples(
    predictions_by_replicate: Sequence[Sequence[Prediction]],
    *,
    positive: Mapping[str, bool],
    validation: Sequence[Validation] | None,
    groups: Mapping[str, Hashable] | None,
    folds: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Sampled]:
    """`instance_summary` with all resamples, for paired differences between methods."""
    replicates = _aligned(predictions_by_replicate)
    if validation is not None and len(validation) != len(replicates):
        raise InputError(
            f"{len(replicates)} replicates, but validation predictions of {len(validation)}: give "
            "one sequence a replicate, in the same order"
        )
    bags = [p.name for p in replicates[0]]
    flags = np.array([bool(positive.get(b, False)) for b in bags], dtype=bool)
    names = None if groups is None else [groups.get(b, (b,)) for b in bags]
    draws = with_data(Draws.of(flags, groups=names, resamples=bootstrap, seed=seed))
    # Coordinates are the bag's own: the graph is the same in every replicate.
    graphs = {p.name: neighbours_or_reason(p) for p in replicates[0]}
    spread = spread_over(replicates) if len(replicates) > 1 else None
    found: list[dict[str, Sampled]] = []
    for r, predictions in enumerate(replicates):
        kept = np.array([p.instance_labels is not None for p in predictions])
        judged, inside, drawn = (
            labelled(predictions),
            flags[kept],
            draws.items(np.flatnonzero(kept)),
        )
        of_runs = []
        runs = _runs(judged, folds=folds)
        for rows in runs.values():
            at = np.array(rows, dtype=np.int64)
            own, mine, within = [judged[i] for i in rows], inside[at], drawn.items(at)
            of_runs.append(
                _ranks(own, mine, draws=within)
                | detector_samples(
                    own, positive=mine, graphs=graphs, spread=spread, draws=within, seed=seed
                )
            )
        equal = np.ones((len(draws.counts), len(of_runs)))
        held = None if validation is None else validation[r]
        found.append(
            {k: mean_of([one[k] for one in of_runs], weights=equal) for k in of_runs[0]}
            | {WITHIN: _within(judged, inside, draws=drawn)}
            | _dice(judged, inside, runs=runs, validation=held, positive=positive, draws=drawn)
            | isolated_samples(predictions, positive=flags, graphs=graphs, draws=draws)
        )
    weights = replicate_weights(
        len(found), resamples=len(draws.counts) - 1, seed=seed, blocks=blocks
    )
    mean = {k: mean_of([f[k] for f in found], weights=weights) for k in found[0]}
    return mean | {f"error_auroc_gain_{area}": gain(mean, area=area) for area in AREAS}


def _aligned(replicates: Sequence[Sequence[Prediction]]) -> list[list[Prediction]]:
    """Every replicate in the order of the first one's bags."""
    if not replicates or not replicates[0]:
        raise InputError("no predictions to summarise: give at least one replicate with a bag")
    bags = [p.name for p in replicates[0]]
    found = []
    for r, one in enumerate(replicates):
        by_name = {p.name: p for p in one}
        if set(by_name) != set(bags) or len(one) != len(by_name):
            other = sorted(set(by_name) ^ set(bags)) or ["one twice"]
            raise InputError(
                f"replicates 0 and {r} are of different bags ({other[0]!r}): predict the same test "
                "bags with each"
            )
        found.append([by_name[b] for b in bags])
    kind_of([p for one in found for p in one])
    return found


def _runs(
    predictions: Sequence[Prediction], *, folds: Mapping[str, Hashable] | None
) -> dict[Hashable, list[int]]:
    """The rows of the bags that each run predicted."""
    if folds is None or not predictions:
        return {None: list(range(len(predictions)))}
    lacking = [p.name for p in predictions if p.name not in folds]
    if lacking:
        raise InputError(
            f"bag {lacking[0]!r} has no fold: give the fold of every test bag, or no folds"
        )
    of: dict[Hashable, list[int]] = {}
    for i, p in enumerate(predictions):
        of.setdefault(folds[p.name], []).append(i)
    return of


def _ranks(
    predictions: Sequence[Prediction], positive: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, Sampled]:
    names = ("auroc", "average_precision", "auroc_positive_bags", "average_precision_positive_bags")
    if not predictions:
        return dict.fromkeys(names, none(NO_LABELS))
    pool = Pool.of(predictions)
    inside = pool.within(positive.tolist())
    what = "instances of positive bags"
    found = [*_both(pool, draws=draws, what="instances"), *_both(inside, draws=draws, what=what)]
    return dict(zip(names, found, strict=True))


def _both(pool: Pool, *, draws: Draws, what: str) -> tuple[Sampled, Sampled]:
    """AUROC and average precision."""
    within = draws.items(pool.bag)
    reason = one_class(pool.y, what=what)
    precision = (
        none(f"{reason}: average precision is undefined")
        if reason
        else Sampled(rows=within.ranks(pool.y, pool.score)[1])
    )
    return auroc(pool.y, pool.score, draws=within, what=what), precision


def _within(
    predictions: Sequence[Prediction], positive: Bool[np.ndarray, " bags"], *, draws: Draws
) -> Sampled:
    """The mean over positive bags with both labels of the AUROC inside each."""
    if not predictions:
        return none(NO_LABELS)
    value, judged = np.zeros(len(predictions)), np.zeros(len(predictions), dtype=bool)
    for b in np.flatnonzero(positive).tolist():
        one = Pool.of([predictions[b]])
        judged[b] = one.y.any() and not one.y.all()
        if judged[b]:
            value[b] = roc_auc_score(one.y, one.score)
    if not judged.any():
        return none("no positive bag has instances of both labels")
    return share(value, judged, draws=draws)


def _dice(
    predictions: Sequence[Prediction],
    inside: Bool[np.ndarray, " bags"],
    *,
    runs: Mapping[Hashable, Sequence[int]],
    validation: Validation | None,
    positive: Mapping[str, bool],
    draws: Draws,
) -> dict[str, Sampled]:
    if validation is None:
        return dict.fromkeys(DICE, none(NO_VALIDATION))
    if not predictions:
        return dict.fromkeys(DICE, none(NO_LABELS))
    kind = kind_of(predictions)
    pool = Pool.of(predictions).within(inside.tolist())
    called = np.zeros(len(pool.y), dtype=bool)
    for fold, at in runs.items():
        own = validation.get(fold, ()) if isinstance(validation, Mapping) else validation
        held = Pool.of(held_out(own, positive=positive, kind=kind))
        reason = no_threshold(held)
        if reason:
            of = "" if fold is None else f"fold {fold}: "
            return dict.fromkeys(DICE, none(of + reason))
        mine = np.isin(pool.bag, at)
        called[mine] = pool.decision[mine] >= dice_threshold(held.y, held.decision)
    return dice_samples(pool, called, draws=draws)
