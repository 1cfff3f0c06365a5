"""Instance metrics of a method: of one run, or averaged over its replicates (seeds, splits).

A value is the mean over the replicates. Its interval resamples the replicates and the bags (or
patients); all replicates share the resamples of the bags. The same bags and seed give the same
draws, so that the metrics of two methods are paired and can be subtracted.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from ...statistics import Draws, Metric, mean_over_replicates, replicate_weights
from .measures import (
    POSITIVE_BAGS,
    WRONG_CALLS,
    balanced_threshold,
    calls_of_authors,
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
CALLS = ("dice", "dice_pooled", "authors_f1", "authors_accuracy")
"""Metrics at thresholds that are chosen on validation bags."""
DICE_OF_MAP = "dice_of_map"
"""The mean Dice at evidence 0 for scores with a level, at the chosen threshold for others."""

Validation = InstanceTable | Mapping[Hashable, InstanceTable]
"""The positive validation bags of one replicate; by fold if each fold has its own run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The part of a replicate that one run predicted."""

    fold: Hashable
    rows: np.ndarray
    """The indices of its bags among those of the table."""


def instance_metrics(
    tables: Sequence[InstanceTable],
    *,
    null_map: str | None = None,
    validation: Sequence[Validation] | None = None,
    groups: Mapping[str, Hashable] | None = None,
    folds: Mapping[str, Hashable] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return every instance metric, averaged over the replicates, with its interval.

    The metrics are those of `RANKS` (over all labelled instances, and over those of positive bags),
    of `measures.WITHIN_BAGS` (means over positive bags), of `CALLS`, `dice_of_map`, and those of
    `measures.wrong_calls` and `measures.gains`. Metrics that rank scores across bags are averaged
    over the folds, because two runs have no common scale, and each run has its own thresholds.

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
    groups = groups or {}
    draws = Draws.stratified(
        first.positive,
        groups=[groups.get(name, (name,)) for name in first.names],
        resamples=bootstrap,
        seed=seed,
    )
    runs = _runs(first, folds)
    column = null_map or "score"
    by_replicate = []
    for r, table in enumerate(tables):
        ranked = [_ranked(table, null_map, run, draws) for run in runs]
        metrics = _mean(ranked) | within_bags(table, column, draws=draws)
        if null_map is None:
            chosen_on = None if validation is None else validation[r]
            metrics |= _at_thresholds(table, runs, chosen_on, draws=draws)
        by_replicate.append(metrics)
    weights = replicate_weights(
        len(tables), resamples=len(draws.counts) - 1, seed=seed, blocks=blocks
    )
    found = _mean(by_replicate, weights=weights)
    if null_map is not None:
        return found
    flagged = zip(first.names, first.positive, strict=True)
    of_positive = {groups.get(name, name) for name, positive in flagged if positive}
    compared = gains(found)
    # percentiles are too narrow for few groups, and this difference has a verdict
    gain = compared["error_auroc_doubt_gain"].student(groups=len(of_positive))
    return found | compared | {"error_auroc_doubt_gain": gain}


def _runs(table: InstanceTable, folds: Mapping[str, Hashable] | None) -> list[_Run]:
    """Return which run predicted which bags, one for each fold."""
    if folds is None or not table.names:
        return [_Run(fold=None, rows=np.arange(len(table.names)))]
    missing = [name for name in table.names if name not in folds]
    if missing:
        raise InputError(
            f"bag {missing[0]!r} has no fold: give the fold of every test bag, or no folds"
        )
    rows: dict[Hashable, list[int]] = {}
    for i, name in enumerate(table.names):
        rows.setdefault(folds[name], []).append(i)
    return [_Run(fold=fold, rows=np.array(own)) for fold, own in rows.items()]


def _mean(
    parts: Sequence[Mapping[str, Metric]], *, weights: np.ndarray | None = None
) -> dict[str, Metric]:
    """Return the mean of each metric over runs or replicates, in which it counts by `weights`."""
    if len(parts) == 1:
        return dict(parts[0])
    known = [m.rows for part in parts for m in part.values() if m.rows is not None]
    equal = np.ones((len(known[0]) if known else 1, len(parts)))
    return {
        name: mean_over_replicates(
            [part[name] for part in parts], weights=equal if weights is None else weights
        )
        for name in parts[0]
    }


def _ranked(
    table: InstanceTable, null_map: str | None, run: _Run, draws: Draws
) -> dict[str, Metric]:
    """Return the metrics that rank instances across the bags of a run."""
    if not table.names:
        undefined = Metric.undefined(NO_INSTANCE_LABELS)
        return dict.fromkeys(RANKS if null_map else (*RANKS, *WRONG_CALLS), undefined)
    column = null_map or "score"
    of_run = np.isin(np.arange(len(table.names)), run.rows)
    inside = table.inside(of_run & table.positive)
    metrics = pooled(table.inside(of_run), column, draws=draws)
    of_positive = pooled(inside, column, draws=draws, what=POSITIVE_BAGS)
    metrics |= {f"{name}_positive_bags": m for name, m in of_positive.items()}
    return metrics if null_map else metrics | wrong_calls(inside, draws=draws)


def _at_thresholds(
    table: InstanceTable, runs: Sequence[_Run], validation: Validation | None, *, draws: Draws
) -> dict[str, Metric]:
    """Return the metrics of calls at thresholds that each run's validation bags choose."""
    inside = table.inside()
    called = np.zeros((2, len(inside.y)), dtype=bool)
    reason = None if table.names else NO_INSTANCE_LABELS
    for run in runs if table.names else ():
        own = validation.get(run.fold) if isinstance(validation, Mapping) else validation
        why = no_threshold_reason(own)
        if why is not None or own is None:
            reason = why if run.fold is None else f"fold {run.fold}: {why}"
            break
        if own.kind != table.kind:
            raise InputError(
                f"test scores are of kind {table.kind!r}, validation's {own.kind!r}: predict both "
                "with one model"
            )
        rows = np.isin(inside.bag, run.rows)
        limit = balanced_threshold(own.y, own["score"])
        called[0, rows] = inside.decision[rows] >= dice_threshold(own.y, own.decision)
        called[1, rows] = inside["score"][rows] >= limit
    if reason is not None:
        metrics = dict.fromkeys(CALLS, Metric.undefined(reason))
    else:
        metrics = dice(inside, called[0], draws=draws)
        metrics |= calls_of_authors(inside, called[1], draws=draws)
    of_map = metrics["dice"]
    if table.kind == "evidence":
        of_map = dice(inside, inside["evidence"] > 0, draws=draws)["dice"]
    return metrics | {DICE_OF_MAP: of_map}
