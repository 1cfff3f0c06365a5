"""From scores to what the figures show: differences with intervals, ranks, splits."""

from collections.abc import Iterator, Sequence
from typing import get_args

from ...statistics import ALPHA, CriticalDifference, average_ranks, critical_difference, detectable
from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, family_baseline, variants_of
from ..results.cache import Kept
from ..results.means import SplitMetric, split_values
from ..results.outlier_folds import odd_splits
from ..results.paper import BASELINES, LABELS, STUDIES, paper_rows, title_of
from ..results.pooled import Pooled
from ..results.ranked import columns_of
from ..results.results import Scores
from .folds import FoldScores
from .forest import Difference
from .improvement import Gain
from .ranks import AverageRank

TITLES: dict[SplitMetric, str] = {"auroc": "AUROC", "f1": "F1"}
POINTS = 100.0


def why_not(scores: Sequence[Scores]) -> str:
    """Why nothing can be compared on one data set."""
    if len(set(scores[0].y.tolist())) < 2:
        return "its test bags have one class"
    return f"no seed that {' and '.join(s.method.name for s in scores)} were both run with"


def gains(scores: Sequence[Scores], *, kept: Kept | None = None) -> tuple[list[Gain], list[str]]:
    """Every λ against its plain baseline on the same seeds, and why some are not.

    AUROC is within folds where there are folds, as the means over them are.
    """
    kept = kept or Kept()
    found: list[Gain] = []
    lost: list[str] = []
    for every in variants_of(scores).values():
        for data in dict.fromkeys(s.data for s in every if s.method.kl_weight is not None):
            own = [s for s in every if s.data == data]
            if own[0].method.kl_weight is not None:
                base = own[0].method.baseline
                lost += [
                    f"{s.method.name} on {data}: {base} of the same arguments was not run"
                    for s in own
                ]
                continue
            plain, *others = own
            compared = kept.compared(own, baseline=plain.method.name)
            for s in others:
                of = [_gain(s, compared.deciding(m)) for m in TITLES]
                found += [g for g in of if g is not None]
                if None in of:
                    lost.append(f"{s.method.name} on {data}: {why_not([plain, s])}")
    return found, lost


def _gain(s: Scores, compared: Pooled | None) -> Gain | None:
    d = None if compared is None else compared.comparison.differences.get(s.method.name)
    if compared is None or d is None:
        return None
    return Gain(
        data=s.data,
        variant=s.method.label,
        kl_weight=s.method.name.rpartition("λ=")[2],
        metric=TITLES[compared.metric],
        pooling=compared.pooling,
        points=POINTS * d.difference,
        low=_points(d.low),
        high=_points(d.high),
    )


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


def differences(
    scores: Sequence[Scores], *, kept: Kept | None = None
) -> tuple[list[Difference], list[str]]:
    """Every method against the baseline of its family, one λ each, and why some are not.

    AUROC is within folds where there are folds, as the means over them are.
    """
    kept = kept or Kept()
    found: list[Difference] = []
    lost: list[str] = []
    for data, family, own in _families(chosen(scores)):
        plain = family_baseline([s.method for s in own], family)
        base = next((s for s in own if s.method == plain), None)
        if base is None or len(own) < 2:
            lost.append(f"{data}, {family}: needs {BASELINES[family]} and another method")
            continue
        compared = kept.compared(own, baseline=base.method.name)
        for s in own:
            if s is base:
                continue
            of = [_difference(s, compared.deciding(m)) for m in TITLES]
            found += [d for d in of if d is not None]
            if None in of:
                lost.append(f"{s.method.name} on {data}: {why_not([base, s])}")
    return found, lost


def _difference(s: Scores, compared: Pooled | None) -> Difference | None:
    name = s.method.name
    c = None if compared is None else compared.comparison
    if compared is None or c is None or name not in c.differences:
        return None
    d = c.differences[name]
    return Difference(
        data=s.data,
        metric=TITLES[compared.metric],
        pooling=compared.pooling,
        method=name,
        model=s.method.model,
        baseline=c.reference,
        points=POINTS * d.difference,
        low=_points(d.low),
        high=_points(d.high),
        p=c.adjusted[name],
        distinct=c.adjusted[name] <= ALPHA,
        winner=c.winner == name,
        detectable=None if d.spread is None else POINTS * min(1.0, detectable(d.spread)),
    )


def family_ranks(scores: Sequence[Scores]) -> tuple[list[AverageRank], list[str]]:
    """Ours and the paper's, within families; as in tables, methods that lack a value are left out
    and said.
    """
    found: list[AverageRank] = []
    lost: list[str] = []
    for family in get_args(Family):
        own = [s for s in chosen(scores) if s.method.family == family]
        columns = columns_of(own)
        lost += [columns.note()] if columns.lost else []
        methods = {s.method.name: s.method for s in own}
        for metric, title in TITLES.items():
            theirs = paper_ranks(family, title)
            values = columns.of(metric)
            ours = average_ranks(values).mean if values else {}
            found += [
                AverageRank(
                    family=family,
                    metric=title,
                    method=name,
                    model=methods[name].model,
                    ours=rank,
                    paper=theirs.get(methods[name].label),
                    data_sets=len(values[name]),
                )
                for name, rank in ours.items()
            ]
    return found, lost


def critical(
    scores: Sequence[Scores], family: Family, metric: SplitMetric
) -> CriticalDifference | str:
    """The methods of a family that have a value on every data set; or why they are too few."""
    columns = columns_of([s for s in chosen(scores) if s.method.family == family])
    values = columns.of(metric)
    sets = len({data for data, _ in columns.columns})
    if len(values) < 2 or sets < 2:
        few = f"methods: {len(values)}, data sets in common: {sets}; two of each are needed"
        return f"{few}. {columns.note()}".removesuffix(". ")
    found = critical_difference(values)
    return found.reason or found


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
        for s in chosen(scores)
    ]


def odd(scores: Sequence[Scores]) -> dict[str, list[int]]:
    """By data set, the splits that stand out."""
    shown = chosen(scores)
    return {
        data: list(odd_splits([s for s in shown if s.data == data]))
        for data in dict.fromkeys(s.data for s in shown)
    }


def _families(scores: Sequence[Scores]) -> Iterator[tuple[str, Family, list[Scores]]]:
    for data in dict.fromkeys(s.data for s in scores):
        for family in get_args(Family):
            own = [s for s in scores if s.data == data and s.method.family == family]
            if own:
                yield data, family, own


def _points(value: float | None) -> float | None:
    return None if value is None else POINTS * value
