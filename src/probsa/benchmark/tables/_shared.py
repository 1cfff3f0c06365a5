"""Parts that several tables share: data sets and means."""

from collections.abc import Sequence
from typing import TypeVar

from ...tasks import TASKS
from ..results.means import SplitMetric, mean_over_splits
from ..results.pooled import ROUNDING, Compared, Interval
from ..results.results import AnyScores, Scores
from ..results.target_scores import TargetScores
from .table import Column, TableCell, key

METRICS: tuple[tuple[SplitMetric, str], ...] = (("auroc", "AUROC"), ("f1", "F1"))
"""Our names, and the names in tables."""


S = TypeVar("S", Scores, TargetScores, AnyScores)


def by_data(scores: Sequence[S]) -> dict[str, list[S]]:
    """Return the methods of each data set, in their order."""
    grouped: dict[str, list[S]] = {}
    for s in scores:
        grouped.setdefault(s.data, []).append(s)
    return grouped


def method_names(scores: Sequence[AnyScores]) -> list[str]:
    """Return every method once, in the order given."""
    return list(dict.fromkeys(s.method.name for s in scores))


def find(scores: Sequence[Scores], name: str) -> Scores | None:
    """Return a method's scores on one data set, or None."""
    return next((s for s in scores if s.method.name == name), None)


def mean_cell(scores: Scores | None, metric: SplitMetric, *, bold: bool = False) -> TableCell:
    """Return the mean and s.d. over splits."""
    if scores is None:
        return TableCell()
    m = mean_over_splits(scores, metric)
    return TableCell(value=m.mean, sd=m.sd, bold=bold and m.mean is not None)


def mean_cells(name: str, scores: Sequence[Scores], compared: Compared) -> list[TableCell]:
    """Return a method's means on one data set; the best mean is bold if it is a winner."""
    cells = []
    for metric, _ in METRICS:
        means = {s.method.name: mean_over_splits(s, metric).mean for s in scores}
        mean, known = means.get(name), [m for m in means.values() if m is not None]
        p = compared.deciding(metric)
        is_winner = p is not None and p.comparison.winner == name
        bold = is_winner and mean is not None and mean > max(known) - ROUNDING
        cells.append(mean_cell(find(scores, name), metric, bold=bold))
    return cells


def interval_cell(value: Interval | None, *, bold: bool = False) -> TableCell:
    """Return a pooled value with its interval."""
    if value is None:
        return TableCell()
    return TableCell(value=value.value, low=value.low, high=value.high, bold=bold)


def metadata(scores: Sequence[AnyScores]) -> str:
    """Return a sentence on the data behind one table: bags, patients, splits, seeds."""
    s = scores[0]
    patients = len(set(s.groups.tolist()))
    patient_text = "" if patients == len(s.bags) else f" of {patients} patients"
    splits = sorted({int(k) for method_scores in scores for k in method_scores.split.ravel()})
    split_kind = "folds, each bag tested once per seed" if s.folds else "splits, one test part"
    seeds = {
        m: sorted(set(method_scores.seed.tolist()))
        for method_scores in scores
        for m in [method_scores.method.name]
    }
    same_seeds = len({tuple(v) for v in seeds.values()}) == 1
    first = next(iter(seeds.values()))
    seed_text = (
        _seeds(first) if same_seeds else "; ".join(f"{m}: {_seeds(v)}" for m, v in seeds.items())
    )
    return (
        f"{s.data}: {len(s.bags)} test bags ({_labels(s)}){patient_text}; "
        f"{len(splits)} {split_kind}; {seed_text}."
    )


def _labels(s: AnyScores) -> str:
    """Return what the test bags are labelled with."""
    if not isinstance(s, TargetScores):
        return f"{int(s.y.sum())} positive"
    found = TASKS[s.task].labels.counts(s.y, s.names)
    return ", ".join(what if n == len(s.y) else f"{n} {what}" for what, n in found.items())


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'} ({', '.join(map(str, seeds))})"


def data_columns(data: str) -> list[Column]:
    """Return AUROC and F1 of a data set."""
    return [Column(key=key(data, m), title=t, group=data, unit="percent") for m, t in METRICS]
