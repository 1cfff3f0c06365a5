"""Every instance metric of a method, over its replicates, folds and chosen thresholds."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from ...core import group_keys
from ...errors import InputError
from ...statistics import Draws, Metric, mean_over_replicates, replicate_weights
from .measures import (
    GAINS,
    POSITIVE_BAGS,
    WITHIN_BAGS,
    WRONG_CALLS,
    dice,
    dice_threshold,
    gains,
    no_threshold_reason,
    pooled,
    within_bags,
    wrong_calls,
)
from .table import NO_INSTANCE_LABELS, InstanceTable

RANKS = ("auroc", "average_precision", "auroc_positive_bags", "average_precision_positive_bags")
CALLS = ("dice", "dice_pooled")
"""Metrics at a threshold that is chosen on validation bags."""
DICE_OF_MAP = "dice_of_map"
"""The mean Dice at evidence 0 for scores with a level, at the chosen threshold for others."""

Validation = InstanceTable | Mapping[Hashable, InstanceTable]
"""The positive validation bags of one replicate; by fold if each fold has its own run."""


def instance_metrics(
    tables: Sequence[InstanceTable],
    *,
    null_map: str | None = None,
    validation: Sequence[Validation] | None = None,
    groups: Mapping[str, str] | None = None,
    folds: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return every instance metric, averaged over the replicates, with its interval.

    The metrics are those of `RANKS` (over all labelled instances, and over those of positive bags),
    of `WITHIN_BAGS` (means over positive bags), of `CALLS`, `dice_of_map`, and those of
    `wrong_calls` and `gains`. Metrics that rank scores across bags are averaged over the folds,
    because two runs have no common scale, and each run has its own thresholds.

    Args:
        tables: the same test bags in the same order, one table per replicate.
        null_map: the column of a null map, for which there are only the metrics that rank
            instances, pooled and within bags; None for the model's score.
        validation: for each replicate, the instances on which thresholds are chosen; None for none.
        groups: the patient of each bag; a bag that is missing here is its own patient.
        folds: the fold of each bag, if a replicate has one run per fold; None for a single run.
        blocks: the block of each replicate, for example its split; see `replicate_weights`.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: the replicates have different bags or score kinds, or the validation bags do
            not fit the replicates.
    """
    first = tables[0]
    if validation is not None and len(validation) != len(tables):
        raise InputError(
            f"{len(tables)} replicates, but validation predictions of {len(validation)}: give "
            "one table per replicate, in the same order"
        )
    _check_replicates(tables)
    if not first.names:
        names = (*RANKS, *WITHIN_BAGS)
        if null_map is None:
            names += (*CALLS, DICE_OF_MAP, *WRONG_CALLS, *GAINS)
        return dict.fromkeys(names, Metric.undefined(NO_INSTANCE_LABELS))
    patients = group_keys(first.names, groups or {})
    draws = Draws.patients(first.positive, groups=patients, resamples=bootstrap, seed=seed)
    runs = _runs(first, folds)
    by_replicate = []
    for r, table in enumerate(tables):
        ranked = [_ranked(table, null_map, bags, draws) for bags in runs.values()]
        metrics = _mean_over_folds(ranked) | within_bags(table, null_map or "score", draws=draws)
        if null_map is None:
            chosen_on = None if validation is None else validation[r]
            metrics |= _at_thresholds(table, runs, chosen_on, draws=draws)
        by_replicate.append(metrics)
    resamples = len(draws.counts) - 1
    weights = replicate_weights(len(tables), resamples=resamples, seed=seed, blocks=blocks)
    means = dict(by_replicate[0])
    if len(by_replicate) > 1:
        for name in means:
            replicates = [metrics[name] for metrics in by_replicate]
            means[name] = mean_over_replicates(replicates, weights=weights)
    return means if null_map is not None else means | gains(means)


def _check_replicates(tables: Sequence[InstanceTable]) -> None:
    """Refuse replicates of other bags, or with scores of other kinds, than the first."""
    first = tables[0]
    for r, table in enumerate(tables):
        if table.names != first.names or not np.array_equal(table.bag, first.bag):
            different = sorted(set(table.names) ^ set(first.names)) or ["other instances"]
            raise InputError(
                f"replicates 0 and {r} have different bags ({different[0]!r}): predict the same "
                "test bags with each"
            )
        if table.kind != first.kind:
            raise InputError(
                f"replicates 0 and {r} have scores of different kinds ({first.kind}, {table.kind})"
            )


def _runs(
    table: InstanceTable, folds: Mapping[str, Hashable] | None
) -> dict[Hashable, Bool[np.ndarray, " bags"]]:
    """Return which bags each run predicted, by fold; None stands for the only run."""
    if folds is None:
        return {None: np.ones(len(table.names), dtype=bool)}
    fold_of_bag: list[Hashable] = []
    for name in table.names:
        if name not in folds:
            raise InputError(
                f"bag {name!r} has no fold: give the fold of every test bag, or no folds"
            )
        fold_of_bag.append(folds[name])
    runs = {}
    for fold in dict.fromkeys(fold_of_bag):
        runs[fold] = np.array([other == fold for other in fold_of_bag])
    return runs


def _mean_over_folds(folds: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Return the mean of each metric over the folds in which it is defined."""
    if len(folds) == 1:
        return dict(folds[0])
    rows = 1
    for metrics in folds:
        for m in metrics.values():
            if m.rows is not None:
                rows = len(m.rows)
    equal_weights = np.ones((rows, len(folds)))
    means = {}
    for name in folds[0]:
        values = [metrics[name] for metrics in folds]
        means[name] = mean_over_replicates(values, weights=equal_weights, same_patients=False)
    return means


def _ranked(
    table: InstanceTable, null_map: str | None, bags: Bool[np.ndarray, " bags"], draws: Draws
) -> dict[str, Metric]:
    """Return the metrics that rank instances across the bags of a run."""
    column = null_map or "score"
    inside = table.of_bags(bags & table.positive)
    metrics = pooled(table.of_bags(bags), column, draws=draws)
    for name, m in pooled(inside, column, draws=draws, what=POSITIVE_BAGS).items():
        metrics[f"{name}_positive_bags"] = m
    return metrics if null_map else metrics | wrong_calls(inside, draws=draws)


def _at_thresholds(
    table: InstanceTable,
    runs: Mapping[Hashable, Bool[np.ndarray, " bags"]],
    validation: Validation | None,
    *,
    draws: Draws,
) -> dict[str, Metric]:
    """Return the metrics of calls at thresholds that each run's validation bags choose."""
    inside = table.of_bags()
    called = np.zeros(len(inside.y), dtype=bool)
    metrics: dict[str, Metric] = {}
    for fold, bags in runs.items():
        chosen_on = validation.get(fold) if isinstance(validation, Mapping) else validation
        reason = no_threshold_reason(chosen_on)
        if reason is not None or chosen_on is None:
            where = "" if fold is None else f"fold {fold}: "
            metrics = dict.fromkeys(CALLS, Metric.undefined(f"{where}{reason}"))
            break
        if chosen_on.kind != table.kind:
            raise InputError(
                f"test scores are of kind {table.kind!r}, validation's {chosen_on.kind!r}: predict "
                "both with one model"
            )
        rows = bags[inside.bag]
        threshold = dice_threshold(chosen_on.y, chosen_on.decision)
        called[rows] = inside.decision[rows] >= threshold
    if not metrics:
        metrics = dice(inside, called, draws=draws)
    dice_of_map = metrics["dice"]
    if table.kind == "evidence":
        dice_of_map = dice(inside, inside["evidence"] > 0, draws=draws)["dice"]
    return metrics | {DICE_OF_MAP: dice_of_map}
