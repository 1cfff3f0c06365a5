"""The paper's tables 2 and 3: the methods of a family on every data set, and who wins."""

from collections.abc import Mapping, Sequence

from ...evaluation.comparison import Comparison
from .._base import Family
from ..means import SplitMetric
from ..paper import BASELINES, PaperTable, paper_value, study_of
from ..pooled import Pooled, align, pool, within_folds
from ..results import Results, Scores
from ..table import Column, Entry, ResultTable, words
from ._notes import (
    detectable,
    folds_note,
    left_out_replicates,
    oddities,
    pairs_note,
    rank_note,
    verdict,
)
from ._ranks import ranked
from ._shared import (
    METRICS,
    about,
    by_data,
    data_columns,
    find,
    interval_entry,
    key,
    mean_entry,
    method_names,
    paper_entries,
    paper_table,
    printed,
)

TABLES: dict[Family, PaperTable] = {"local": "2", "global": "3"}
TITLES: dict[Family, str] = {
    "local": "methods without interactions over the whole bag",
    "global": "methods with interactions over the whole bag",
}
Compared = Mapping[SplitMetric, Pooled | None]


def comparison_table(results: Results, family: Family) -> ResultTable | None:
    """Means over splits with average ranks; below it, of each data set, pooled values, intervals
    and differences to the plain model; None where the family has no method.
    """
    scores = chosen([s for s in results.scores if s.method.family == family])
    if not scores:
        return None
    data = by_data(scores)
    compared = {d: _compared(own, family) for d, own in data.items()}
    table, names = TABLES[family], method_names(scores)
    ranks = ranked(scores, names)
    columns = [Column(key="method", title="method")]
    for d in data:
        columns += data_columns(d, table)
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    known = any(study_of(d) is not None for d in data)
    if known:
        columns.append(Column(key="paper_rank", title="average rank", group="paper", unit="rank"))
    rows = []
    for name in names:
        row = [words(name)]
        for d, own in data.items():
            row += _mean_entries(find(own, name), compared[d])
            row += paper_entries(d, table, label=_label(scores, name))
        row.append(ranks.entry(name))
        if known:
            label = _label(scores, name)
            row.append(printed(paper_value(table, label, study="rank", metric="rank")))
        rows.append(tuple(row))
    below = [_pooled_table(own, compared[d], family) for d, own in data.items()]
    below += [] if known else [paper_table(table, of=TITLES[family])]
    return ResultTable(
        name=f"comparison_{family}",
        title=f"Comparison: {TITLES[family]}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "Percent: mean ± s.d. over splits, seeds averaged within a split first; F1 at the "
            "threshold that each run chose on its validation part. Bold: a winner by the rule "
            "stated below the pooled table of its data set.",
            *_chosen_note(results, scores, family),
            *ranks.notes,
            rank_note(ranks.ranks),
            *pairs_note(ranks.values, BASELINES[family]),
            *results.left_out(),
        ),
        follow=tuple(below),
    )


def chosen(scores: Sequence[Scores]) -> list[Scores]:
    """One λ of each method where the paper's tables have one: cyclical, if it was run."""
    cyclical = {s.method.label for s in scores if s.method.kl_weight == "cyclical"}
    return [s for s in scores if s.method.label not in cyclical or s.method.kl_weight == "cyclical"]


def _chosen_note(results: Results, scores: Sequence[Scores], family: Family) -> list[str]:
    every = [s for s in results.scores if s.method.family == family]
    if len(method_names(every)) == len(method_names(scores)):
        return []
    return ["Of methods that were run with several λ, cyclical stands here, as in the paper."]


def _label(scores: Sequence[Scores], name: str) -> str:
    """The registered model, by which the paper's figures are found."""
    return next(s.method.model for s in scores if s.method.name == name)


def _compared(scores: Sequence[Scores], family: Family) -> Compared:
    plain = baseline_of(scores, family)
    return {m: pool(scores, metric=m, baseline=plain) for m, _ in METRICS}


def baseline_of(scores: Sequence[Scores], family: Family) -> str | None:
    """The name of the family's plain model among these."""
    return next((s.method.name for s in scores if s.method.model == BASELINES[family]), None)


def _mean_entries(scores: Scores | None, compared: Compared) -> list[Entry]:
    found = []
    for metric, _ in METRICS:
        p = compared[metric]
        won = scores is not None and p is not None and p.comparison.winner == scores.method.name
        found.append(mean_entry(scores, metric, bold=won))
    return found


def pooled_columns(first: Sequence[Column], *, folds: bool) -> list[Column]:
    """Of a table of pooled values and differences; with folds, differences within them too."""
    columns = list(first)
    for metric, title in METRICS:
        group = f"pooled {title}"
        columns += [
            Column(key=metric, title="value", group=group, unit="percent"),
            Column(key=key(metric, "difference"), title="Δ", group=group, unit="points"),
            Column(key=key(metric, "p_holm"), title="Holm p", group=group, unit="p"),
        ]
    if folds:
        group = "AUROC within folds"
        columns += [
            Column(key="auroc_within_difference", title="Δ", group=group, unit="points"),
            Column(key="auroc_within_p_holm", title="Holm p", group=group, unit="p"),
        ]
    return columns


def pooled_entries(
    name: str, compared: Compared, within: Comparison | None, *, folds: bool
) -> list[Entry]:
    """A method's row below these columns."""
    row: list[Entry] = []
    for metric, _ in METRICS:
        p = compared[metric]
        c = None if p is None else p.comparison
        value = None if p is None else p.values.get(name)
        won = c is not None and c.winner == name
        row += [interval_entry(value, bold=won), *_difference_entries(c, name)]
    return row + (list(_difference_entries(within, name)) if folds else [])


def reference_of(compared: Compared) -> str | None:
    """The method that differences of AUROC are to."""
    p = compared["auroc"]
    return None if p is None else p.comparison.reference


def _difference_entries(compared: Comparison | None, name: str) -> tuple[Entry, Entry]:
    """The paired difference of a method to the reference, and Holm's p."""
    d = None if compared is None else compared.differences.get(name)
    if compared is None or d is None:
        return Entry(), Entry()
    p = None if d.p is None else compared.adjusted[name]
    return Entry(value=d.difference, low=d.low, high=d.high), Entry(value=p)


def _pooled_table(scores: Sequence[Scores], compared: Compared, family: Family) -> ResultTable:
    first = scores[0]
    within = within_folds(scores, baseline=reference_of(compared))
    rows = [
        (words(name), *pooled_entries(name, compared, within, folds=first.folds))
        for name in method_names(scores)
    ]
    return ResultTable(
        name=f"pooled_{family}_{key(first.data)}",
        title=f"{first.data}: pooled, with 95 % intervals",
        columns=tuple(pooled_columns([Column(key="method", title="method")], folds=first.folds)),
        rows=tuple(rows),
        footnotes=(
            about(scores),
            *left_out_replicates(align(scores)[1]),
            *_rule(compared, baseline_of(scores, family)),
            *folds_note(scores, within),
            *(verdict(title, compared[m]) for m, title in METRICS),
            *detectable(compared),
            *oddities(scores),
        ),
    )


def _rule(compared: Compared, baseline: str | None) -> list[str]:
    p = next((p for p in compared.values() if p is not None), None)
    if p is None:
        return []
    against = f"to {p.comparison.reference}"
    if baseline is None:
        against += ", the best (the family's plain model was not run)"
    return [
        f"Values are means over replicates; Δ is the paired difference {against}, in points. "
        "[lo, hi] are 95 % intervals over patients and replicates; p is two-sided, by Holm's "
        "correction over the rows. A winner is the method with the highest value if its paired "
        "difference to every other one has a Holm-adjusted p of at most 0.05. Sentences below give "
        "differences as shares: 0.01 is a point.",
        *(note[:1].upper() + note[1:] + "." for note in p.comparison.notes),
    ]
