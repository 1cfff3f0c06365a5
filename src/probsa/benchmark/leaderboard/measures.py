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
from ...statistics import Difference, compare_means, mean_interval
from ..results.pooled import interval_of, pool
from ..results.results import Scores
from .entries import Entry, defined

RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value with its interval; undefined if it is None."""

    value: float | None
    low: float | None = None
    high: float | None = None
    wins: bool = False

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low is not None and self.low > 0


NONE = Value(value=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class SetBoard:
    """All measures of all methods on one data set, by the method's name."""

    data: str
    names: tuple[str, ...]
    nulls: frozenset[str]
    values: Mapping[str, Mapping[str, Value]]
    """By measure (`auroc`, `nll`, `ap`, `gain`, `doubt_gain`, `faithfulness`, `seconds`) and
    name."""
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
        "doubt_gain": {e.name: _own_mean(e, "doubt_gain", resamples) for e in entries},
        "faithfulness": {e.name: _own_mean(e, "faithfulness", resamples) for e in entries},
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
                f"{entry.name} on {entry.data} has no AP within {counted(len(lacking), 'bag')} "
                f"that others have one in ({entry.bags[lacking[0]]!r} first): AP within bags, the "
                "gain and the choice of the best null leave out these bags for every method."
            )
    return np.asarray(known.all(0)), notes


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else -np.inf


def _aurocs(scores: Sequence[Scores], resamples: int) -> dict[str, Value]:
    if not scores:
        return {}
    pooling = "within"
    compared = pool(scores, metric="auroc", baseline=None, pooling="within", resamples=resamples)
    if compared is None:
        pooling = "pooled"
        compared = pool(scores, metric="auroc", baseline=None, resamples=resamples)
    if compared is None:
        return {}
    values = {}
    for s in scores:
        v = interval_of(s, "auroc", pooling=pooling, resamples=resamples)
        wins = compared.comparison.winner == s.method.name
        values[s.method.name] = Value(value=v.value, low=v.low, high=v.high, wins=wins)
    return values


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
    """Return the AP within bags minus that of the best null map, which has 0 itself."""
    if not both.any():
        return {}
    groups, null = _groups(best, both), best.values["average_precision"][:, both].mean(0)
    found = {best.name: Value(value=0.0)}
    for e in entries:
        if e is not best:
            difference = e.values["average_precision"][:, both] - null
            d = mean_interval(difference, groups=groups, resamples=resamples)
            found[e.name] = Value(value=d.difference, low=d.low, high=d.high)
    return found


def _own_mean(entry: Entry, measure: str, resamples: int) -> Value:
    """Return the mean over the bags where a measure is defined in any replicate."""
    values = entry.values[measure]
    known = np.asarray(np.isfinite(values).any(0))
    if not known.any():
        return NONE
    by_bag = np.nanmean(values[:, known], axis=0, keepdims=True)
    return _limited(
        mean_interval(by_bag, groups=_groups(entry, known), resamples=resamples), -1.0, 1.0
    )


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
    return compare_means(aligned, groups=groups, resamples=resamples).winner
