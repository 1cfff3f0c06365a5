"""What several tables say in the same words: data sets, means, the paper's figures."""

from collections.abc import Sequence

from ..results.means import SplitMetric, mean_over_splits
from ..results.paper import (
    PaperMetric,
    PaperRow,
    PaperTable,
    paper_rows,
    paper_value,
    study_of,
    title_of,
)
from ..results.pooled import ROUNDING, Compared, Interval
from ..results.results import Scores
from .table import Column, Entry, ResultTable, key, words

METRICS: tuple[tuple[SplitMetric, PaperMetric], ...] = (("auroc", "AUROC"), ("f1", "F1"))
"""Ours, and as tables write them."""


def by_data(scores: Sequence[Scores]) -> dict[str, list[Scores]]:
    """The methods of each data set, in their order."""
    found: dict[str, list[Scores]] = {}
    for s in scores:
        found.setdefault(s.data, []).append(s)
    return found


def method_names(scores: Sequence[Scores]) -> list[str]:
    """Every method once, in the order given."""
    return list(dict.fromkeys(s.method.name for s in scores))


def find(scores: Sequence[Scores], name: str) -> Scores | None:
    """A method of one data set."""
    return next((s for s in scores if s.method.name == name), None)


def mean_entry(scores: Scores | None, metric: SplitMetric, *, bold: bool = False) -> Entry:
    """Mean and deviation over splits."""
    if scores is None:
        return Entry()
    m = mean_over_splits(scores, metric)
    return Entry(value=m.mean, sd=m.sd, bold=bold and m.mean is not None)


def mean_entries(name: str, own: Sequence[Scores], compared: Compared) -> list[Entry]:
    """A method's means on one data set: bold is the best of those beside it, if it is a winner."""
    found = []
    for metric, _ in METRICS:
        means = {s.method.name: mean_over_splits(s, metric).mean for s in own}
        mean, known = means.get(name), [m for m in means.values() if m is not None]
        p = compared.deciding(metric)
        won = p is not None and p.comparison.winner == name
        bold = won and mean is not None and mean > max(known) - ROUNDING
        found.append(mean_entry(find(own, name), metric, bold=bold))
    return found


def interval_entry(value: Interval | None, *, bold: bool = False) -> Entry:
    """A pooled value with its interval."""
    if value is None:
        return Entry()
    return Entry(value=value.value, low=value.low, high=value.high, bold=bold)


def printed(row: PaperRow | None) -> Entry:
    """One of the paper's figures."""
    return Entry() if row is None else Entry(value=row.mean, sd=row.sd)


def metadata(scores: Sequence[Scores]) -> str:
    """What one data set's figures are of: bags, patients, splits, seeds."""
    s = scores[0]
    patients = len(set(s.groups.tolist()))
    of = "" if patients == len(s.bags) else f" of {patients} patients"
    splits = sorted({int(k) for one in scores for k in one.split.ravel()})
    kind = "folds, each bag tested once a seed" if s.folds else "splits, one test part"
    seeds = {m: sorted(set(one.seed.tolist())) for one in scores for m in [one.method.name]}
    same = len({tuple(v) for v in seeds.values()}) == 1
    first = next(iter(seeds.values()))
    said = _seeds(first) if same else "; ".join(f"{m}: {_seeds(v)}" for m, v in seeds.items())
    return (
        f"{s.data}: {len(s.bags)} test bags ({int(s.y.sum())} positive){of}; {len(splits)} {kind}; "
        f"{said}."
    )


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'} ({', '.join(map(str, seeds))})"


def data_columns(data: str, table: PaperTable) -> list[Column]:
    """AUROC and F1 of a data set, and the paper's beside them where it is one of the paper's."""
    own = [Column(key=key(data, m), title=t, group=data, unit="percent") for m, t in METRICS]
    if study_of(data) is None:
        return own
    group = f"{data}, paper's table {table}"
    return own + [
        Column(key=key(data, "paper", m), title=t, group=group, unit="printed") for m, t in METRICS
    ]


def paper_entries(data: str, table: PaperTable, *, label: str, kl_weight: str = "") -> list[Entry]:
    """The paper's AUROC and F1; nothing for a data set that it has not."""
    study = study_of(data)
    if study is None:
        return []
    return [
        printed(paper_value(table, label, study=study, metric=t, kl_weight=kl_weight))
        for _, t in METRICS
    ]


def paper_table(table: PaperTable, *, of: str) -> ResultTable:
    """One of the paper's result tables (2, 3, 5) as it prints it."""
    rows = paper_rows(table)
    studies = [s for s in dict.fromkeys(r.study for r in rows) if s != "rank"]
    pairs: list[tuple[str, PaperMetric]] = [(s, t) for s in studies for _, t in METRICS]
    columns = [Column(key="method", title="method")]
    with_kl = any(r.kl_weight for r in rows)
    columns += [Column(key="kl_weight", title="λ")] if with_kl else []
    columns += [Column(key=key(s, t), title=t, group=title_of(s), unit="printed") for s, t in pairs]
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    body, rules, last = [], set(), None
    for method, label, kl in dict.fromkeys((r.method, r.label, r.kl_weight) for r in rows):
        if with_kl and method != last:
            rules.add(len(body))
        last = method
        entries = [words(method)] + ([words(kl)] if with_kl else [])
        wanted: list[tuple[str, PaperMetric]] = [*pairs, ("rank", "rank")]
        entries += [
            printed(paper_value(table, label, study=s, metric=t, kl_weight=kl)) for s, t in wanted
        ]
        body.append(tuple(entries))
    return ResultTable(
        name=f"paper_table{table}",
        title=f"The paper's table {table}: {of}",
        columns=tuple(columns),
        rows=tuple(body),
        rules=frozenset(rules),
        footnotes=(
            "As printed there: percent, mean ± s.d. over five splits, on the paper's data sets.",
        ),
    )
