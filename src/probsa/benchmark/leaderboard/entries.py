"""What the leaderboard knows of one method on one data set, from runs or a null map."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from ...core import TextTable
from ...evaluation import (
    NULL_MAPS,
    BagMeasures,
    InstanceTable,
    bag_measures,
    bag_rows,
    within_bag,
)
from ..execution.map_checks import MapChecks, read_map_checks
from ..results.null_maps import null_tables
from ..results.results import instances_of
from ..results.scores import Scores

VALUES = ("auroc", "average_precision", "doubt_gain", "faithfulness")
"""The fields of `BagMeasures`."""
CHECKS = ("area", "shown_precision")
"""What only `execution.map_checks` knows."""
LEAST = 1e-7
"""Probabilities are kept this far from 0, as float32 cannot be nearer to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One method on one data set: a row per replicate, a column per test bag, nan if undefined."""

    data: str
    name: str
    bags: tuple[str, ...]
    groups: tuple[str, ...]
    values: Mapping[str, Float[np.ndarray, "replicates bags"]]
    """`VALUES` and `CHECKS` of the positive bags; nan for the others."""
    scores: Scores | None = None
    """The predictions of the bags; None for null maps, which make none."""
    seconds: float | None = None
    """Mean duration of the training of a run, with its validation."""

    @property
    def gains(self) -> Float[np.ndarray, "replicates bags"] | None:
        """The log-likelihood of each bag's label: minus its NLL, so that more is better."""
        if self.scores is None:
            return None
        p = np.where(self.scores.positive, self.scores.p, 1 - self.scores.p)
        return np.log(np.clip(p, LEAST, 1))


def entry_of(scores: Scores) -> Entry | None:
    """Return the entry of a method's runs; None if no test bag has instance labels.

    Raises:
        BagError: a bag's file is missing or damaged, or its scores are not finite.
        InputError: a run's file of left-out instances is damaged.
    """
    measures: list[dict[str, BagMeasures]] = []
    labelled = False
    positive = {bag for bag, y in zip(scores.bags, scores.positive, strict=True) if y}
    for predictions in instances_of(scores):
        for p in predictions:
            labelled |= p.instance_labels is not None and bool((p.instance_labels >= 0).any())
        measures.append({p.name: bag_measures(p) for p in predictions if p.name in positive})
    if not labelled:
        return None
    checks = [_checks(runs) for runs in scores.runs]
    values = values_of(measures, bags=scores.bags, checks=checks)
    return Entry(
        data=scores.data,
        name=scores.method.name,
        bags=scores.bags,
        groups=tuple(map(str, scores.groups.tolist())),
        values=values,
        scores=scores,
        seconds=_seconds([path for runs in scores.runs for path in runs]),
    )


def null_entries(scores: Scores) -> tuple[list[Entry], list[str]]:
    """Return an entry for each null map of a method's data set, and why others are missing.

    Raises:
        BagError: a bag's file is missing or damaged.
    """
    tables, missing = null_tables(scores)
    entries = [
        Entry(
            data=scores.data,
            name=name,
            bags=scores.bags,
            groups=tuple(map(str, scores.groups.tolist())),
            values=values_of([_ranked(table, name) for table in tables], bags=scores.bags),
        )
        for name in NULL_MAPS
        if all(name in table.columns for table in tables)
    ]
    return entries, [f"Null map {name} on {scores.data}: {why}." for name, why in missing.items()]


def _ranked(table: InstanceTable, column: str) -> dict[str, BagMeasures]:
    """Return the measures within each positive bag that has instances of both labels."""
    found = {}
    for b, rows in enumerate(bag_rows(table)):
        if table.mixed[b]:
            area, precision, *_ = within_bag(table.y[rows], table[column][rows]).tolist()
            found[table.names[b]] = BagMeasures(auroc=area, average_precision=precision)
    return found


def values_of(
    replicates: Sequence[Mapping[str, BagMeasures]],
    *,
    bags: Sequence[str],
    checks: Sequence[Mapping[str, Mapping[str, float | None]]] = (),
) -> dict[str, Float[np.ndarray, "replicates bags"]]:
    """Return the measures of all bags as arrays; nan for bags without.

    Args:
        replicates: the measures of each replicate by bag.
        bags: the bags, in the order of the columns.
        checks: `CHECKS` of each replicate, and `faithfulness` of bags whose prediction has none.
    """
    values = {name: np.full((len(replicates), len(bags)), np.nan) for name in (*VALUES, *CHECKS)}

    def fill(name: str, r: int, i: int, value: float | None) -> None:
        if value is not None and np.isnan(values[name][r, i]):
            values[name][r, i] = value

    for r, measures in enumerate(replicates):
        for i, bag in enumerate(bags):
            for name in VALUES if bag in measures else ():
                fill(name, r, i, getattr(measures[bag], name))
            for name, of_bags in (checks[r] if checks else {}).items():
                fill(name, r, i, of_bags.get(bag))
    return values


def defined(values: Float[np.ndarray, "replicates bags"]) -> Bool[np.ndarray, " bags"]:
    """Return which bags have a value in every replicate."""
    return np.asarray(np.isfinite(values).all(0))


def _checks(runs: Sequence[Path]) -> dict[str, dict[str, float | None]]:
    """Return what the checks of a replicate's runs found, by measure and bag."""
    known = [c for run in runs if (c := read_map_checks(run)) is not None]
    fields: dict[str, Callable[[MapChecks], Mapping[str, float | None]]] = {
        "area": lambda c: c.areas,
        "shown_precision": lambda c: c.shown_precisions,
        "faithfulness": lambda c: c.correlations,
    }
    return {
        name: {bag: value for c in known for bag, value in of(c).items()}
        for name, of in fields.items()
    }


def _seconds(runs: Sequence[Path]) -> float | None:
    totals = []
    for path in runs:
        file = path / "metrics.csv"
        rows = TextTable.read(file).rows if file.is_file() else []
        totals.append(sum(float(row.get("seconds") or 0) for row in rows))
    return float(np.mean(totals)) if any(totals) else None
