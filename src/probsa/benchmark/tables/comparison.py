"""The paper's tables 2 and 3: the methods of a family on every data set, and who wins."""

from collections.abc import Sequence

from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note, family_baseline
from ..results.cache import Kept
from ..results.paper import PaperTable, paper_value, study_of
from ..results.pooled import Compared, Pooled
from ..results.results import Results, Scores
from ._classic import classic_tests
from ._notes import (
    bold_note,
    detectable,
    folds_note,
    oddities,
    pairs_note,
    rank_note,
    replicates_note,
    verdicts,
)
from ._ranks import ranked
from ._shared import (
    METRICS,
    by_data,
    data_columns,
    interval_entry,
    key,
    mean_entries,
    metadata,
    method_names,
    paper_entries,
    paper_table,
    printed,
)
from .table import Column, Entry, ResultTable, words

TABLES: dict[Family, PaperTable] = {"local": "2", "global": "3"}
TITLES: dict[Family, str] = {
    "local": "methods without interactions over the whole bag",
    "global": "methods with interactions over the whole bag",
}


def comparison_table(
    results: Results, family: Family, *, kept: Kept | None = None
) -> ResultTable | None:
    """Means over splits with average ranks; below it, of each data set, pooled values, intervals
    and differences to the plain model; None where the family has no method.
    """
    kept = kept or Kept()
    every = [s for s in results.scores if s.method.family == family]
    scores = chosen(every)
    if not scores:
        return None
    data = by_data(scores)
    compared = {d: kept.compared(own, baseline=baseline_of(own, family)) for d, own in data.items()}
    table, names = TABLES[family], method_names(scores)
    ranks = ranked(scores)
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
            row += mean_entries(name, own, compared[d])
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
            "threshold that each run chose on its validation part.",
            bold_note("the pooled table of the data set"),
            *([note] if (note := chosen_note(every)) else []),
            *ranks.notes,
            rank_note(ranks.ranks),
            *pairs_note(ranks.values, baseline_of(scores, family)),
            *results.left_out(),
        ),
        follow=tuple(below),
    )


def _label(scores: Sequence[Scores], name: str) -> str:
    """The registered model, by which the paper's figures are found."""
    return next(s.method.model for s in scores if s.method.name == name)


def baseline_of(scores: Sequence[Scores], family: Family) -> str | None:
    """The name of the family's plain model among these."""
    found = family_baseline([s.method for s in scores], family)
    return None if found is None else found.name


def pooled_columns(first: Sequence[Column], *, folds: bool) -> list[Column]:
    """Of a table of pooled values and differences; with folds, those within them too."""
    columns = list(first)
    groups = [(metric, f"pooled {title}") for metric, title in METRICS]
    groups += [("auroc_within", "AUROC within folds")] if folds else []
    for name, group in groups:
        columns += [
            Column(key=name, title="value", group=group, unit="percent"),
            Column(key=key(name, "difference"), title="Δ", group=group, unit="points"),
            Column(key=key(name, "p_holm"), title="Holm p", group=group, unit="p"),
        ]
    return columns


def pooled_entries(name: str, compared: Compared, *, folds: bool) -> list[Entry]:
    """A method's row below these columns."""
    row: list[Entry] = []
    for metric, _ in METRICS:
        p = compared.pooled[metric]
        row += _entries(name, p, decides=p is compared.deciding(metric))
    return row + (_entries(name, compared.within, decides=True) if folds else [])


def _entries(name: str, compared: Pooled | None, *, decides: bool) -> list[Entry]:
    """A value, its paired difference to the reference, and Holm's p; bold where it decides."""
    if compared is None:
        return [Entry()] * 3
    c = compared.comparison
    value = interval_entry(compared.values.get(name), bold=decides and c.winner == name)
    d = c.differences.get(name)
    if d is None:
        return [value, Entry(), Entry()]
    p = None if d.p is None else c.adjusted[name]
    return [value, Entry(value=d.difference, low=d.low, high=d.high), Entry(value=p)]


def _pooled_table(scores: Sequence[Scores], compared: Compared, family: Family) -> ResultTable:
    first = scores[0]
    rows = [
        (words(name), *pooled_entries(name, compared, folds=first.folds))
        for name in method_names(scores)
    ]
    return ResultTable(
        name=f"pooled_{family}_{key(first.data)}",
        title=f"{first.data}: pooled, with 95 % intervals",
        columns=tuple(pooled_columns([Column(key="method", title="method")], folds=first.folds)),
        rows=tuple(rows),
        footnotes=(
            metadata(scores),
            *replicates_note(compared),
            *_rule(compared, baseline_of(scores, family)),
            *folds_note(scores, compared),
            *verdicts(compared),
            *detectable(compared),
            *classic_tests(scores, compared),
            *oddities(scores),
        ),
    )


def _rule(compared: Compared, baseline: str | None) -> list[str]:
    p = next((p for p in compared.pooled.values() if p is not None), None)
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
