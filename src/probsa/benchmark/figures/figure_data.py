"""Turn scores into the data of the figures: differences with intervals, ranks, splits."""

from collections.abc import Iterator, Sequence
from typing import get_args

from ...statistics import (
    ALPHA,
    CriticalDifference,
    average_ranks,
    critical_difference,
    minimum_detectable,
)
from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, family_baseline, variants_of
from ..results.comparing import Pooled, compare_methods
from ..results.method_order import BASELINES
from ..results.ranked import Ranked, ranked
from ..results.sampling import values_by_split
from ..results.scores import Scores
from .folds import FoldScores
from .forest import BaselineDifference
from .improvement import Gain
from .ranks import AverageRank

TITLES = {"auroc": "AUROC", "f1": "F1"}
POINTS = 100.0


def why_not(scores: Sequence[Scores]) -> str:
    """Return why nothing can be compared on one data set."""
    if len(set(scores[0].positive.tolist())) < 2:
        return "its test bags have only one class"
    return f"{' and '.join(s.method.name for s in scores)} have no seed in common"


def gains(scores: Sequence[Scores]) -> tuple[list[Gain], list[str]]:
    """Return every λ against its plain baseline on the same seeds, and why some are missing.

    With folds, AUROC is computed within folds, as in the means over them.
    """
    result: list[Gain] = []
    missing: list[str] = []
    for variant_scores in variants_of(scores).values():
        for data in dict.fromkeys(s.data for s in variant_scores if s.method.kl_weight is not None):
            data_scores = [s for s in variant_scores if s.data == data]
            if data_scores[0].method.kl_weight is not None:
                base = data_scores[0].method.baseline
                missing += [
                    f"{s.method.name} on {data}: {base} with the same arguments was not run"
                    for s in data_scores
                ]
                continue
            plain, *others = data_scores
            compared = compare_methods(data_scores, baseline=plain.method.name)
            for s in others:
                by_metric = [_gain(s, compared.deciding(m)) for m in TITLES]
                result += [g for g in by_metric if g is not None]
                if None in by_metric:
                    missing.append(f"{s.method.name} on {data}: {why_not([plain, s])}")
    return result, missing


def _gain(s: Scores, compared: Pooled | None) -> Gain | None:
    difference = None if compared is None else compared.comparison.differences.get(s.method.name)
    if compared is None or difference is None:
        return None
    return Gain(
        data=s.data,
        variant=s.method.label,
        kl_weight=s.method.name.rpartition("λ=")[2],
        metric=compared.measure.title,
        pooling=compared.pooling,
        points=POINTS * difference.difference,
        low=_points(difference.low),
        high=_points(difference.high),
    )


def differences(scores: Sequence[Scores]) -> tuple[list[BaselineDifference], list[str]]:
    """Return every method against its family's baseline, one λ each, and why some are missing.

    With folds, AUROC is computed within folds, as in the means over them.
    """
    result: list[BaselineDifference] = []
    missing: list[str] = []
    for data, family, family_scores in _families(chosen(scores)):
        plain = family_baseline([s.method for s in family_scores], family)
        base = next((s for s in family_scores if s.method == plain), None)
        if base is None or len(family_scores) < 2:
            missing.append(f"{data}, {family}: needs {BASELINES[family]} and another method")
            continue
        compared = compare_methods(family_scores, baseline=base.method.name)
        for s in family_scores:
            if s is base:
                continue
            by_metric = [_difference(s, compared.deciding(m)) for m in TITLES]
            result += [d for d in by_metric if d is not None]
            if None in by_metric:
                missing.append(f"{s.method.name} on {data}: {why_not([base, s])}")
    return result, missing


def _difference(s: Scores, compared: Pooled | None) -> BaselineDifference | None:
    name = s.method.name
    comparison = None if compared is None else compared.comparison
    if compared is None or comparison is None or name not in comparison.differences:
        return None
    difference = comparison.differences[name]
    return BaselineDifference(
        data=s.data,
        metric=compared.measure.title,
        pooling=compared.pooling,
        method=name,
        model=s.method.model,
        baseline=comparison.reference,
        points=POINTS * difference.difference,
        low=_points(difference.low),
        high=_points(difference.high),
        p=comparison.adjusted[name],
        distinct=comparison.adjusted[name] <= ALPHA,
        winner=comparison.winner == name,
        detectable=None
        if difference.spread is None
        else POINTS * min(1.0, minimum_detectable(difference.spread)),
    )


def family_ranks(scores: Sequence[Scores]) -> tuple[list[AverageRank], list[str]]:
    """Return ranks within families, and notes on methods without a value, which are left out as in
    the tables."""
    result: list[AverageRank] = []
    notes: list[str] = []
    for family in get_args(Family):
        family_scores = [s for s in chosen(scores) if s.method.family == family]
        columns = ranked(family_scores)
        notes += [columns.note()] if columns.unranked else []
        methods = {s.method.name: s.method for s in family_scores}
        for metric, title in TITLES.items():
            values = columns.of(metric)
            means = average_ranks(values).mean if values else {}
            result += [
                AverageRank(
                    family=family,
                    metric=title,
                    method=name,
                    model=methods[name].model,
                    rank=rank,
                    data_sets=len(values[name]),
                )
                for name, rank in means.items()
            ]
    return result, notes


def critical(scores: Sequence[Scores], family: Family, metric: str) -> CriticalDifference | str:
    """Return the critical difference of a family's methods with a value on every data set, or why
    there is none."""
    columns = ranked([s for s in chosen(scores) if s.method.family == family])
    return _critical(columns, columns.of(metric))


def critical_by_primary(scores: Sequence[Scores], family: Family) -> CriticalDifference | str:
    """Return the same by the primary metric of each data set, whatever its task."""
    columns = ranked([s for s in chosen(scores) if s.method.family == family])
    return _critical(columns, columns.values)


def _critical(columns: Ranked, values: dict[str, list[float]]) -> CriticalDifference | str:
    sets = len({data for data, _ in columns.columns})
    if len(values) < 2 or sets < 2:
        counts = f"methods: {len(values)}, data sets in common: {sets}; two of each are needed"
        return f"{counts}. {columns.note()}".removesuffix(". ")
    result = critical_difference(values)
    return result.reason or result


def folds(scores: Sequence[Scores]) -> list[FoldScores]:
    """Return the AUROC of every method by split, one λ each."""
    return [
        FoldScores(
            data=s.data,
            method=s.method.name,
            model=s.method.model,
            auroc=values_by_split(s)["auroc"],
        )
        for s in chosen(scores)
    ]


def _families(scores: Sequence[Scores]) -> Iterator[tuple[str, Family, list[Scores]]]:
    for data in dict.fromkeys(s.data for s in scores):
        for family in get_args(Family):
            family_scores = [s for s in scores if s.data == data and s.method.family == family]
            if family_scores:
                yield data, family, family_scores


def _points(value: float | None) -> float | None:
    return None if value is None else POINTS * value
