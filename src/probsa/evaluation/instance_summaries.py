"""Instance metrics of one method, averaged over its replicates (seeds, splits).

A value is the mean over the replicates. Its interval resamples the replicates and the bags (or
patients); all replicates share the resamples of the bags. The same bags and seed give the same
draws, so that the samples of two methods are paired and can be subtracted.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from ..statistics import (
    Draws,
    Metric,
    mean_over_replicates,
    one_class_reason,
    replicate_weights,
)
from ..statistics import (
    auroc as auroc_of,
)
from .dice import (
    DICE,
    DICE_OF_MAP,
    NO_VALIDATION,
    dice_samples,
    dice_threshold,
    no_threshold_reason,
)
from .error_detectors import AREAS, detector_samples, doubt_gain, gain
from .pools import NO_INSTANCE_LABELS, Pool, bag_draws, labelled, score_kind_of, threshold_bags
from .prediction import Prediction
from .within_bags import WITHIN_BAGS, is_mixed, within_bag, within_samples

ValidationPredictions = Sequence[Prediction] | Mapping[Hashable, Sequence[Prediction]]
"""Predictions of the validation bags of one replicate; by fold if each fold has its own run."""


def instance_samples(
    predictions_by_replicate: Sequence[Sequence[Prediction]],
    *,
    positive: Mapping[str, bool],
    validation: Sequence[ValidationPredictions] | None,
    groups: Mapping[str, Hashable] | None,
    folds: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return every instance metric, averaged over the replicates, with all resamples.

    The metrics are `auroc` and `average_precision` of μ (over all labelled instances; with the
    suffix `_positive_bags`, over those of positive bags), those of `WITHIN_BAGS` (means over
    positive bags), `dice`, `dice_pooled`, `dice_of_map`, and those of `detector_samples` with
    `error_auroc_gain_<area>` (σ² minus its best rival) and `error_auroc_doubt_gain_<area>`
    (P(wrong) minus the margin). With folds, metrics that rank μ or σ² across bags are averaged over
    the folds, because two runs have no common scale, and each run has its own threshold for Dice.

    Args:
        predictions_by_replicate: predictions of the same test bags, one sequence per replicate.
        positive: whether each bag is positive; a bag that is missing here is negative.
        validation: for each replicate, the bags on which the threshold of Dice is chosen; None for
            no Dice.
        groups: the patient of each bag; a bag that is missing here is its own patient.
        folds: the fold of each bag, if a replicate has one run per fold; None for a single run.
        blocks: the block of each replicate, for example its split; see `replicate_weights`.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: the replicates have different bags or score kinds, or the validation bags do
            not fit the replicates.
        BagError: the attention of a bag is not finite.
    """
    replicates = _align(predictions_by_replicate)
    if validation is not None and len(validation) != len(replicates):
        raise InputError(
            f"{len(replicates)} replicates, but validation predictions of {len(validation)}: give "
            "one sequence per replicate, in the same order"
        )
    bags = [p.name for p in replicates[0]]
    flags = np.array([bool(positive.get(b, False)) for b in bags], dtype=bool)
    draws = bag_draws(bags, flags, groups=groups, resamples=bootstrap, seed=seed)
    by_replicate: list[dict[str, Metric]] = []
    for r, predictions in enumerate(replicates):
        rows = np.flatnonzero([p.instance_labels is not None for p in predictions])
        judged, inside, within = labelled(predictions), flags[rows], draws.for_items(rows)
        runs = _rows_by_run(judged, folds=folds)
        dice = _dice(
            judged,
            inside,
            runs=runs,
            validation=None if validation is None else validation[r],
            positive=positive,
            draws=within,
        )
        by_replicate.append(
            _mean_over_runs(judged, inside, runs=runs, draws=within)
            | _within_bags(judged, inside, draws=within)
            | dice
            | {DICE_OF_MAP: _dice_of_map(judged, inside, chosen=dice["dice"], draws=within)}
        )
    weights = replicate_weights(
        len(replicates), resamples=len(draws.counts) - 1, seed=seed, blocks=blocks
    )
    mean = _mean(by_replicate, weights=weights)
    gains = {f"error_auroc_gain_{area}": gain(mean, area=area) for area in AREAS}
    gains |= {f"error_auroc_doubt_gain_{area}": doubt_gain(mean, area=area) for area in AREAS}
    return mean | gains


def ranking_samples(
    predictions_by_replicate: Sequence[Sequence[Prediction]],
    *,
    positive: Mapping[str, bool],
    groups: Mapping[str, Hashable] | None,
    folds: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return the metrics that rank scores, pooled and within bags, as `instance_samples` does."""
    replicates = _align(predictions_by_replicate)
    bags = [p.name for p in replicates[0]]
    flags = np.array([bool(positive.get(b, False)) for b in bags], dtype=bool)
    draws = bag_draws(bags, flags, groups=groups, resamples=bootstrap, seed=seed)
    by_replicate = []
    for predictions in replicates:
        rows = np.flatnonzero([p.instance_labels is not None for p in predictions])
        judged, inside, within = labelled(predictions), flags[rows], draws.for_items(rows)
        by_run = []
        for of_run in _rows_by_run(judged, folds=folds).values():
            index = np.array(of_run, dtype=np.int64)
            bags_of_run = [judged[i] for i in of_run]
            by_run.append(_rank_samples(bags_of_run, inside[index], draws=within.for_items(index)))
        by_replicate.append(
            _mean(by_run, weights=np.ones((len(draws.counts), len(by_run))))
            | _within_bags(judged, inside, draws=within)
        )
    weights = replicate_weights(len(replicates), resamples=bootstrap, seed=seed, blocks=blocks)
    return _mean(by_replicate, weights=weights[: len(draws.counts)])


def _align(replicates: Sequence[Sequence[Prediction]]) -> list[list[Prediction]]:
    """Return every replicate in the order of the first one's bags."""
    if not replicates or not replicates[0]:
        raise InputError("no predictions to summarise: give at least one replicate with a bag")
    bags = [p.name for p in replicates[0]]
    aligned = []
    for r, predictions in enumerate(replicates):
        by_name = {p.name: p for p in predictions}
        if set(by_name) != set(bags) or len(predictions) != len(by_name):
            different = sorted(set(by_name) ^ set(bags)) or ["a bag occurs twice"]
            raise InputError(
                f"replicates 0 and {r} have different bags ({different[0]!r}): predict the same "
                "test bags with each"
            )
        aligned.append([by_name[b] for b in bags])
    score_kind_of([p for predictions in aligned for p in predictions])
    return aligned


def _rows_by_run(
    predictions: Sequence[Prediction], *, folds: Mapping[str, Hashable] | None
) -> dict[Hashable, list[int]]:
    """Return the rows of the bags that each run predicted, by fold."""
    if folds is None or not predictions:
        return {None: list(range(len(predictions)))}
    missing = [p.name for p in predictions if p.name not in folds]
    if missing:
        raise InputError(
            f"bag {missing[0]!r} has no fold: give the fold of every test bag, or no folds"
        )
    rows: dict[Hashable, list[int]] = {}
    for i, p in enumerate(predictions):
        rows.setdefault(folds[p.name], []).append(i)
    return rows


def _mean(
    samples: Sequence[Mapping[str, Metric]], *, weights: Float[np.ndarray, "rows samples"]
) -> dict[str, Metric]:
    return {
        name: mean_over_replicates([s[name] for s in samples], weights=weights)
        for name in samples[0]
    }


def _mean_over_runs(
    predictions: Sequence[Prediction],
    inside: Bool[np.ndarray, " bags"],
    *,
    runs: Mapping[Hashable, list[int]],
    draws: Draws,
) -> dict[str, Metric]:
    """Return the metrics that rank across bags, computed for each run and averaged."""
    by_run = []
    for rows in runs.values():
        index = np.array(rows, dtype=np.int64)
        bags, flags, within = [predictions[i] for i in rows], inside[index], draws.for_items(index)
        by_run.append(
            _rank_samples(bags, flags, draws=within)
            | detector_samples(bags, positive=flags, draws=within)
        )
    return _mean(by_run, weights=np.ones((len(draws.counts), len(by_run))))


def _rank_samples(
    predictions: Sequence[Prediction], positive: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, Metric]:
    names = ("auroc", "average_precision", "auroc_positive_bags", "average_precision_positive_bags")
    if not predictions:
        return dict.fromkeys(names, Metric.undefined(NO_INSTANCE_LABELS))
    pool = Pool.of(predictions)
    inside = pool.within(positive.tolist())
    samples = [
        *_auroc_and_precision(pool, draws=draws, what="instances"),
        *_auroc_and_precision(inside, draws=draws, what="instances of positive bags"),
    ]
    return dict(zip(names, samples, strict=True))


def _auroc_and_precision(pool: Pool, *, draws: Draws, what: str) -> tuple[Metric, Metric]:
    within = draws.for_items(pool.bag)
    reason = one_class_reason(pool.y, what=what)
    average_precision = (
        Metric.undefined(f"{reason}: average precision is undefined")
        if reason
        else Metric.of(within.ranks(pool.y, pool.score)[1])
    )
    return auroc_of(pool.y, pool.score, draws=within, what=what), average_precision


def _within_bags(
    predictions: Sequence[Prediction], positive: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, Metric]:
    """Return the means over the positive bags that have instances of both labels."""
    values = np.zeros((len(predictions), len(WITHIN_BAGS)))
    mixed = np.zeros(len(predictions), dtype=bool)
    for b in np.flatnonzero(positive).tolist():
        bag = Pool.of([predictions[b]])
        mixed[b] = is_mixed(bag.y)
        if mixed[b]:
            values[b] = within_bag(bag.y, bag.score)
    return within_samples(values, mixed, draws=draws)


def _dice(
    predictions: Sequence[Prediction],
    inside: Bool[np.ndarray, " bags"],
    *,
    runs: Mapping[Hashable, Sequence[int]],
    validation: ValidationPredictions | None,
    positive: Mapping[str, bool],
    draws: Draws,
) -> dict[str, Metric]:
    if validation is None:
        return dict.fromkeys(DICE, Metric.undefined(NO_VALIDATION))
    if not predictions:
        return dict.fromkeys(DICE, Metric.undefined(NO_INSTANCE_LABELS))
    kind = score_kind_of(predictions)
    pool = Pool.of(predictions).within(inside.tolist())
    called = np.zeros(len(pool.y), dtype=bool)
    for fold, rows in runs.items():
        bags = validation.get(fold, ()) if isinstance(validation, Mapping) else validation
        validation_pool = Pool.of(threshold_bags(bags, positive=positive, kind=kind))
        reason = no_threshold_reason(validation_pool)
        if reason:
            prefix = "" if fold is None else f"fold {fold}: "
            return dict.fromkeys(DICE, Metric.undefined(prefix + reason))
        threshold = dice_threshold(validation_pool.y, validation_pool.decision)
        of_run = np.isin(pool.bag, rows)
        called[of_run] = pool.decision[of_run] >= threshold
    return dice_samples(pool, called, draws=draws)


def _dice_of_map(
    predictions: Sequence[Prediction],
    inside: Bool[np.ndarray, " bags"],
    *,
    chosen: Metric,
    draws: Draws,
) -> Metric:
    """Return the Dice at evidence 0 of scores with a level, otherwise the one that is given."""
    if not predictions or not all(p.score_has_level for p in predictions):
        return chosen
    pool = Pool.of(predictions).within(inside.tolist())
    return dice_samples(pool, pool.evidence > 0, draws=draws)["dice"]
