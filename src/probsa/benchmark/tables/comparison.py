"""The paper's tables 2 and 3: the methods of a family on every data set, and the winners."""

from collections.abc import Sequence

from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note, family_baseline
from ..results.cache import ResultCache
from ..results.paper import PaperTable, paper_value, study_of
from ..results.pooled import Compared, Pooled
from ..results.results import Results, Scores
from ._classic import classic_tests
from ._notes import (
    bold_note,
    detectable,
    folds_note,
    outlier_notes,
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
    interval_cell,
    key,
    mean_cells,
    metadata,
    method_names,
    paper_cell,
    paper_cells,
    paper_table,
)
from .table import Column, ResultTable, TableCell, text_cell

TABLES: dict[Family, PaperTable] = {"local": "2", "global": "3"}
TITLES: dict[Family, str] = {
    "local": "methods without interactions over the whole bag",
    "global": "methods with interactions over the whole bag",
}


def comparison_table(
    results: Results, family: Family, *, cache: ResultCache | None = None
) -> ResultTable | None:
    """Return means over splits with average ranks, followed by each data set's pooled values,
    intervals and differences to the plain model; None if the family has no method."""
    cache = cache or ResultCache()
    family_scores = [s for s in results.scores if s.method.family == family]
    scores = chosen(family_scores)
    if not scores:
        return None
    data = by_data(scores)
    compared = {
        d: cache.compared(data_scores, baseline=baseline_of(data_scores, family))
        for d, data_scores in data.items()
    }
    table, names = TABLES[family], method_names(scores)
    ranks = ranked(scores)
    columns = [Column(key="method", title="method")]
    for d in data:
        columns += data_columns(d, table)
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    in_paper = any(study_of(d) is not None for d in data)
    if in_paper:
        columns.append(Column(key="paper_rank", title="average rank", group="paper", unit="rank"))
    rows = []
    for name in names:
        row = [text_cell(name)]
        for d, data_scores in data.items():
            row += mean_cells(name, data_scores, compared[d])
            row += paper_cells(d, table, label=_label(scores, name))
        row.append(ranks.cell(name))
        if in_paper:
            label = _label(scores, name)
            row.append(paper_cell(paper_value(table, label, study="rank", metric="rank")))
        rows.append(tuple(row))
    following = [_pooled_table(data_scores, compared[d], family) for d, data_scores in data.items()]
    following += [] if in_paper else [paper_table(table, subject=TITLES[family])]
    return ResultTable(
        name=f"comparison_{family}",
        title=f"Comparison: {TITLES[family]}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            "Values are in percent: mean ± s.d. over splits, after averaging seeds within a split; "
            "F1 is at the threshold that each run chose on its validation part.",
            bold_note("the pooled table of the data set"),
            *([note] if (note := chosen_note(family_scores)) else []),
            *ranks.notes,
            rank_note(ranks.ranks),
            *pairs_note(ranks.values, baseline_of(scores, family)),
            *results.left_out(),
        ),
        follow=tuple(following),
    )


def _label(scores: Sequence[Scores], name: str) -> str:
    """Return the registered model, which identifies the paper's results."""
    return next(s.method.model for s in scores if s.method.name == name)


def baseline_of(scores: Sequence[Scores], family: Family) -> str | None:
    """Return the name of the family's plain model among these."""
    baseline = family_baseline([s.method for s in scores], family)
    return None if baseline is None else baseline.name


def pooled_columns(first: Sequence[Column], *, folds: bool) -> list[Column]:
    """Return the columns of pooled values and differences, with folds also those within folds."""
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


def pooled_cells(name: str, compared: Compared, *, folds: bool) -> list[TableCell]:
    """Return a method's row for these columns."""
    row: list[TableCell] = []
    for metric, _ in METRICS:
        p = compared.pooled[metric]
        row += _cells(name, p, decides=p is compared.deciding(metric))
    return row + (_cells(name, compared.within, decides=True) if folds else [])


def _cells(name: str, compared: Pooled | None, *, decides: bool) -> list[TableCell]:
    """Return a value, its paired difference and Holm's p; the value is bold if it decides."""
    if compared is None:
        return [TableCell()] * 3
    comparison = compared.comparison
    value = interval_cell(compared.values.get(name), bold=decides and comparison.winner == name)
    difference = comparison.differences.get(name)
    if difference is None:
        return [value, TableCell(), TableCell()]
    p = None if difference.p is None else comparison.adjusted[name]
    return [
        value,
        TableCell(value=difference.difference, low=difference.low, high=difference.high),
        TableCell(value=p),
    ]


def _pooled_table(scores: Sequence[Scores], compared: Compared, family: Family) -> ResultTable:
    first = scores[0]
    rows = [
        (text_cell(name), *pooled_cells(name, compared, folds=first.folds))
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
            *outlier_notes(scores),
        ),
    )


def _rule(compared: Compared, baseline: str | None) -> list[str]:
    p = next((p for p in compared.pooled.values() if p is not None), None)
    if p is None:
        return []
    reference = f"to {p.comparison.reference}"
    if baseline is None:
        reference += ", the best (the family's plain model was not run)"
    return [
        f"Values are means over replicates; Δ is the paired difference {reference}, in points. "
        "[lo, hi] are 95 % intervals over patients and replicates; p is two-sided and "
        "Holm-corrected over the rows. A winner is the method with the highest value if its paired "
        "difference to every other one has a Holm-adjusted p of at most 0.05. The notes below give "
        "differences as fractions: 0.01 is a point.",
        *(note[:1].upper() + note[1:] + "." for note in p.comparison.notes),
    ]
