"""From scores to what the figures show: differences with intervals, ranks, splits."""

import math
from collections.abc import Iterator, Sequence
from typing import get_args

from ...evaluation.comparison import Comparison
from ...evaluation.detectable import detectable
from ...evaluation.difference import ALPHA
from ...evaluation.ranking import CriticalDifference, average_ranks, critical_difference
from .._base import Family
from ..means import SplitMetric, mean_over_splits, split_values
from ..odd import odd_splits
from ..paper import BASELINES, LABELS, STUDIES, paper_rows, title_of
from ..pooled import pool
from ..results import Scores
from ..variants import plain_of
from .folds import FoldScores
from .forest import Difference
from .improvement import Gain
from .ranks import AverageRank

TITLES: dict[SplitMetric, str] = {"auroc": "AUROC", "f1": "F1"}
POINTS = 100.0


def per_label(scores: Sequence[Scores]) -> list[Scores]:
    """One λ of each method and data set: cyclical, as in the paper's table 2, or the first."""
    found: dict[tuple[str, str], Scores] = {}
    for s in scores:
        key = (s.data, s.method.label)
        if key not in found or s.method.kl_weight == "cyclical":
            found[key] = s
    return list(found.values())


def compared(
    scores: Sequence[Scores], metric: SplitMetric, *, baseline: str | None
) -> Comparison | str:
    """Methods on one data set, over the replicates that all of them have; or why not."""
    pooled = pool(scores, metric=metric, baseline=baseline)
    if pooled is not None:
        return pooled.comparison
    if len(set(scores[0].y.tolist())) < 2:
        return "its test bags have one class"
    return f"no seed that all of {', '.join(s.method.name for s in scores)} were run with"


def gains(scores: Sequence[Scores]) -> tuple[list[Gain], list[str]]:
    """Every λ against its plain baseline on the same seeds, and why some are not."""
    found: list[Gain] = []
    lost: list[str] = []
    for s in scores:
        base = s.method.baseline
        if base is None or s.method.kl_weight is None:
            continue
        plain = [b for b in plain_of(scores, s.method) if b.data == s.data]
        if not plain:
            lost.append(f"{s.method.name} on {s.data}: {base} of the same arguments was not run")
            continue
        for metric, title in TITLES.items():
            c = compared([s, plain[0]], metric, baseline=plain[0].method.name)
            if isinstance(c, str):
                lost.append(f"{s.method.name} on {s.data}: {c}")
                break
            d = c.differences[s.method.name]
            kl = s.method.name.rpartition("λ=")[2]
            found.append(
                Gain(
                    data=s.data,
                    variant=s.method.label,
                    kl_weight=kl,
                    metric=title,
                    points=POINTS * d.difference,
                    low=_points(d.low),
                    high=_points(d.high),
                )
            )
    return found, lost


def paper_gains() -> list[Gain]:
    """The paper's table 5 over its own λ = 0 rows."""
    rows = [r for r in paper_rows("5") if r.metric != "rank"]
    base = {(r.label, r.study, r.metric): r.mean for r in rows if r.kl_weight == "0.0"}
    return [
        Gain(
            source="paper",
            data=title_of(r.study),
            variant=r.label,
            kl_weight=r.kl_weight if r.kl_weight == "cyclical" else f"{float(r.kl_weight):g}",
            metric=r.metric,
            points=r.mean - base[r.label, r.study, r.metric],
        )
        for r in rows
        if r.kl_weight != "0.0"
    ]


def differences(scores: Sequence[Scores]) -> tuple[list[Difference], list[str]]:
    """Every method against the baseline of its family, one λ each, and why some are not."""
    found: list[Difference] = []
    lost: list[str] = []
    for data, family, own in _families(per_label(scores)):
        base = next((s for s in own if s.method.model == BASELINES[family]), None)
        if base is None or len(own) < 2:
            lost.append(f"{data}, {family}: needs {BASELINES[family]} and another method")
            continue
        for metric, title in TITLES.items():
            c = compared(own, metric, baseline=base.method.name)
            if isinstance(c, str):
                lost.append(f"{data}, {family}: {c}")
                break
            for s in own:
                if s is base:
                    continue
                name = s.method.name
                d = c.differences[name]
                found.append(
                    Difference(
                        data=data,
                        metric=title,
                        method=name,
                        model=s.method.model,
                        baseline=base.method.name,
                        points=POINTS * d.difference,
                        low=_points(d.low),
                        high=_points(d.high),
                        p=c.adjusted[name],
                        distinct=c.adjusted[name] <= ALPHA,
                        winner=c.winner == name,
                        detectable=None if d.spread is None else POINTS * detectable(d.spread),
                    )
                )
    return found, lost


def family_ranks(scores: Sequence[Scores]) -> tuple[list[AverageRank], list[str]]:
    """Ours and the paper's, within families; methods that a data set lacks are left out."""
    chosen = per_label(scores)
    sets = list(dict.fromkeys(s.data for s in chosen))
    found: list[AverageRank] = []
    lost: list[str] = []
    for family in get_args(Family):
        own = [s for s in chosen if s.method.family == family]
        by_name = {n: [s for s in own if s.method.name == n] for n in _unique(own)}
        partial = [n for n, s in by_name.items() if len(s) < len(sets)]
        lost += [f"{n}: not run on every data set" for n in partial]
        whole = {n: s for n, s in by_name.items() if n not in partial}
        for metric, title in TITLES.items():
            if not whole:
                continue
            ours = _ranked(list(whole.values()), metric)
            theirs = paper_ranks(family, title)
            for (name, s), rank in zip(whole.items(), ours, strict=True):
                found.append(
                    AverageRank(
                        family=family,
                        metric=title,
                        method=name,
                        model=s[0].method.model,
                        ours=rank,
                        paper=theirs.get(s[0].method.label),
                        data_sets=len(sets),
                    )
                )
    return found, lost


def critical(
    scores: Sequence[Scores], family: Family, metric: SplitMetric
) -> CriticalDifference | str:
    """The methods of a family over the data sets that all of them were run on; or why not."""
    own = [s for s in per_label(scores) if s.method.family == family]
    values: dict[str, dict[str, float]] = {}
    for s in own:
        mean = mean_over_splits(s, metric).mean
        if mean is not None:
            values.setdefault(s.method.name, {})[s.data] = mean
    sets = [d for d in dict.fromkeys(s.data for s in own) if all(d in v for v in values.values())]
    if len(values) < 2 or len(sets) < 2:
        return f"{len(values)} methods on {len(sets)} data sets in common: two of each are needed"
    found = critical_difference({m: [v[d] for d in sets] for m, v in values.items()})
    return found.reason or found


def _ranked(methods: Sequence[Sequence[Scores]], metric: SplitMetric) -> list[float]:
    """The average over data sets of each method's rank; undefined is last."""
    values = [[mean_over_splits(s, metric).mean for s in own] for own in methods]
    table = {str(i): [-math.inf if v is None else v for v in row] for i, row in enumerate(values)}
    return list(average_ranks(table).mean.values())


def paper_ranks(family: Family, metric: str) -> dict[str, float]:
    """By our label: the average over the paper's data sets, as its figure 4."""
    rows = [r for r in paper_rows("2" if family == "local" else "3") if r.metric == metric]
    labels = [label for label in LABELS.values() if any(r.label == label for r in rows)]
    mean = {(r.label, r.study): r.mean for r in rows}
    return average_ranks(
        {label: [mean[label, study] for study in STUDIES.values()] for label in labels}
    ).mean


def folds(scores: Sequence[Scores]) -> list[FoldScores]:
    """AUROC by split of every method, one λ each."""
    return [
        FoldScores(
            data=s.data,
            method=s.method.name,
            model=s.method.model,
            auroc=split_values(s, "auroc"),
        )
        for s in per_label(scores)
    ]


def odd(scores: Sequence[Scores]) -> dict[str, list[int]]:
    """By data set, the splits that stand out."""
    chosen = per_label(scores)
    return {
        data: list(odd_splits([s for s in chosen if s.data == data]))
        for data in dict.fromkeys(s.data for s in chosen)
    }


def _families(scores: Sequence[Scores]) -> Iterator[tuple[str, Family, list[Scores]]]:
    for data in dict.fromkeys(s.data for s in scores):
        for family in get_args(Family):
            own = [s for s in scores if s.data == data and s.method.family == family]
            if own:
                yield data, family, own


def _unique(scores: Sequence[Scores]) -> list[str]:
    return list(dict.fromkeys(s.method.name for s in scores))


def _points(value: float | None) -> float | None:
    return None if value is None else POINTS * value
