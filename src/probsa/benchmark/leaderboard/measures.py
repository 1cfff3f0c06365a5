"""The measures of the leaderboard on one data set: values, intervals and winners.

Bag AUROC is compared within folds, if these allow it, by the rule of the other tables. The NLL and
the AP within bags are means over bags, compared by the same rule. A winner is decided over the
seeds that all methods have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from ...core import counted
from ...statistics import ALPHA, Difference, compare, holm, mean_interval
from ..results.comparing import compare_methods
from ..results.scores import Scores
from .entries import Entry, defined

RESAMPLES = 1000
OWN_MEANS = {
    "ap_shown": "shown_precision",
    "doubt_gain": "doubt_gain",
    "area": "area",
    "faithfulness": "faithfulness",
}
"""Measures that are means over the bags on which a method has them, by key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value with its interval; undefined if it is None.

    `wins`: it is shown to be the best of its column, or, of a gain, to be above 0.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    wins: bool = False


NONE = Value(value=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class SetBoard:
    """All measures of all methods on one data set, by the method's name."""

    data: str
    names: tuple[str, ...]
    nulls: frozenset[str]
    values: Mapping[str, Mapping[str, Value]]
    """By measure (a key of `tables.MEASURES`) and name."""
    best_null: str | None
    """The null map with the highest AP within bags on these test bags."""
    bags: int
    positive: int
    notes: tuple[str, ...] = ()

    def of(self, measure: str, name: str) -> Value:
        """Return a method's value."""
        return self.values[measure].get(name, NONE)


def set_board(
    entries: Sequence[Entry], *, resamples: int = RESAMPLES, notes: tuple[str, ...] = ()
) -> SetBoard:
    """Return the measures of all entries of one data set; names are unique."""
    with_bags = [e for e in entries if e.scores is not None]
    nulls = [e for e in entries if e.scores is None]
    first = (with_bags or list(entries))[0]
    both, lacking = _evaluated(entries)
    best = max(
        nulls,
        key=lambda e: _mean(e.values["average_precision"][:, both]),
        default=None,
    )
    values = {
        "auroc": _aurocs([e.scores for e in with_bags if e.scores is not None], resamples),
        "nll": _nlls(with_bags, resamples),
        "ap": _precisions(entries, both, resamples),
        "gain": {} if best is None else _gains(entries, best, both, resamples),
        **{
            key: _own_means(entries, measure, resamples, test=key == "doubt_gain")
            for key, measure in OWN_MEANS.items()
        },
        "seconds": {e.name: Value(value=e.seconds) for e in entries},
    }
    return SetBoard(
        data=first.data,
        names=tuple(e.name for e in entries),
        nulls=frozenset(e.name for e in nulls),
        values=values,
        best_null=None if best is None else best.name,
        bags=len(first.bags),
        positive=int(both.sum()),
        notes=(*notes, *lacking),
    )


def _evaluated(entries: Sequence[Entry]) -> tuple[Bool[np.ndarray, " bags"], list[str]]:
    """Return the bags on which every entry has an AP, and which entries lack one that others have.

    These are the positive bags with instances of both labels, unless labels or scores of some
    entries are missing.
    """
    known = np.stack([defined(e.values["average_precision"]) for e in entries])
    some = np.stack([np.isfinite(e.values["average_precision"]).any(0) for e in entries]).any(0)
    notes = []
    for entry, of_entry in zip(entries, known, strict=True):
        lacking = np.flatnonzero(some & ~of_entry)
        if len(lacking):
            notes.append(
                f"{entry.name} on {entry.data} has no AP for {counted(len(lacking), 'bag')} "
                f"({entry.bags[lacking[0]]!r} first) for which other methods have one. AP within "
                "bags, the gain and the best null map are computed without these bags for all."
            )
    return np.asarray(known.all(0)), notes


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else -np.inf


def _aurocs(scores: Sequence[Scores], resamples: int) -> dict[str, Value]:
    if not scores:
        return {}
    compared = compare_methods(scores, baseline=None, resamples=resamples).deciding("auroc")
    if compared is None:
        return {}
    winner = compared.comparison.winner
    return {
        name: Value(value=v.value, low=v.low, high=v.high, wins=winner == name)
        for name, v in compared.values.items()
    }


def _nlls(entries: Sequence[Entry], resamples: int) -> dict[str, Value]:
    """Return the mean NLL of each method; lower is better, so its gains are compared."""
    gains = {e.name: g for e in entries if (g := e.gains) is not None}
    if not gains:
        return {}
    groups = entries[0].groups
    winner = _winner(gains, entries, groups=groups, resamples=resamples)
    values = {}
    for name, g in gains.items():
        d = mean_interval(-g, groups=groups, resamples=resamples)
        values[name] = Value(value=d.difference, low=d.low, high=d.high, wins=winner == name)
    return values


def _precisions(
    entries: Sequence[Entry], both: Bool[np.ndarray, " bags"], resamples: int
) -> dict[str, Value]:
    if not both.any():
        return {}
    groups = _groups(entries[0], both)
    values = {e.name: e.values["average_precision"][:, both] for e in entries}
    winner = _winner(values, entries, groups=groups, resamples=resamples)
    found = {}
    for name, v in values.items():
        d = mean_interval(v, groups=groups, resamples=resamples)
        found[name] = replace(_limited(d, 0.0, 1.0), wins=winner == name)
    return found


def _gains(
    entries: Sequence[Entry], best: Entry, both: Bool[np.ndarray, " bags"], resamples: int
) -> dict[str, Value]:
    """Return the AP within bags minus that of the best null map, which has 0 itself.

    A gain wins if it is shown to be above 0, by Holm's adjustment over the trained methods.
    """
    if not both.any():
        return {}
    groups, null = _groups(best, both), best.values["average_precision"][:, both].mean(0)
    gains = {
        e.name: mean_interval(
            e.values["average_precision"][:, both] - null, groups=groups, resamples=resamples
        )
        for e in entries
        if e is not best
    }
    above = above_zero({e.name: gains[e.name] for e in entries if e.scores is not None})
    return {best.name: Value(value=0.0)} | {
        name: Value(value=d.difference, low=d.low, high=d.high, wins=name in above)
        for name, d in gains.items()
    }


def above_zero(differences: Mapping[str, Difference]) -> frozenset[str]:
    """Return whose difference is above 0 with p ≤ 0.05, by Holm's adjustment over all of them."""
    adjusted = holm([1.0 if d.p is None else d.p for d in differences.values()])
    return frozenset(
        name
        for (name, d), p in zip(differences.items(), adjusted, strict=True)
        if p <= ALPHA and d.difference > 0
    )


def _own_means(
    entries: Sequence[Entry], measure: str, resamples: int, *, test: bool
) -> dict[str, Value]:
    """Return the mean over the bags where a measure is defined in any replicate.

    test: whether the measure is a difference, which wins if it is shown to be above 0.
    """
    means: dict[str, Difference] = {}
    for e in entries:
        known = np.asarray(np.isfinite(e.values[measure]).any(0))
        if known.any():
            by_bag = np.nanmean(e.values[measure][:, known], axis=0, keepdims=True)
            means[e.name] = mean_interval(by_bag, groups=_groups(e, known), resamples=resamples)
    above = above_zero(means) if test else frozenset()
    return {name: replace(_limited(d, -1.0, 1.0), wins=name in above) for name, d in means.items()}


def _limited(d: Difference, lowest: float, highest: float) -> Value:
    """Return a mean whose interval ends where its values do."""
    low = None if d.low is None else max(d.low, lowest)
    high = None if d.high is None else min(d.high, highest)
    return Value(value=d.difference, low=low, high=high)


def _groups(entry: Entry, chosen: Bool[np.ndarray, " bags"]) -> list[str]:
    return [group for group, keep in zip(entry.groups, chosen, strict=True) if keep]


def _winner(
    values: Mapping[str, Float[np.ndarray, "replicates items"]],
    entries: Sequence[Entry],
    *,
    groups: Sequence[str],
    resamples: int,
) -> str | None:
    """Return the winner over the seeds that all trained methods have; nulls have no seeds."""
    if len(values) < 2:
        return None
    seeds = {e.name: [] if e.scores is None else e.scores.seed.tolist() for e in entries}
    lists = [set(seeds[name]) for name in values if seeds[name]]
    common = sorted(set.intersection(*lists)) if lists else [0]
    if not common:
        return None
    aligned = {
        name: np.stack([v[seeds[name].index(s) if seeds[name] else 0] for s in common])
        for name, v in values.items()
    }
    return compare(None, aligned, groups=groups, metric="mean", resamples=resamples).winner
