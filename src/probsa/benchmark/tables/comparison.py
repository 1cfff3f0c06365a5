"""The paper's tables 2 and 3: the methods of a family on every data set, and the winners."""

from collections.abc import Sequence

from ...tasks import TASKS
from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note, family_baseline
from ..results.cache import ResultCache
from ..results.pooled import Compared, Pooled
from ..results.results import AnyScores, Results, Scores
from ..results.target_comparison import TargetCompared
from ._notes import (
    bold_note,
    detectable,
    folds_note,
    pairs_note,
    primary_rank_note,
    rank_note,
    replicates_note,
    verdicts,
)
from ._ranks import Ranked, ranked
from ._sets import (
    SetCompared,
    compare_set,
    of_classes,
    of_targets,
    set_cells,
    set_columns,
)
from ._shared import (
    METRICS,
    by_data,
    interval_cell,
    key,
    metadata,
    method_names,
)
from ._targets import primary_notes
from .table import Column, ResultTable, TableCell, text_cell
from .target_tables import target_pooled_table

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
    family_scores = [s for s in results.all if s.method.family == family]
    scores = chosen(family_scores)
    if not scores:
        return None
    data = by_data(scores)
    compared = {
        d: compare_set(data_scores, cache, baseline=baseline_of(data_scores, family))
        for d, data_scores in data.items()
    }
    ranks = ranked(scores)
    columns = [Column(key="method", title="method")]
    for data_scores in data.values():
        columns += set_columns(data_scores)
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    rows = []
    for name in method_names(scores):
        row = [text_cell(name)]
        for d, data_scores in data.items():
            row += set_cells(name, data_scores, compared[d])
        row.append(ranks.cell(name))
        rows.append(tuple(row))
    following = [_following(data_scores, compared[d], family) for d, data_scores in data.items()]
    return ResultTable(
        name=f"comparison_{family}",
        title=_title(scores, family),
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            *_means_notes(scores),
            *([note] if (note := chosen_note(family_scores)) else []),
            *ranks.notes,
            *ranks_notes(ranks),
            *_pairs_notes(ranks, baseline_of(scores, family)),
            *results.left_out(),
        ),
        follow=tuple(following),
    )


def _means_notes(scores: Sequence[AnyScores]) -> list[str]:
    """Return what the means are of, and which of them are bold."""
    targets = of_targets(scores)
    if not targets:
        return [
            "Values are in percent: mean ± s.d. over splits, after averaging seeds within a split; "
            "F1 is at the threshold that each run chose on its validation part.",
            bold_note("the pooled table of the data set"),
        ]
    classes = list(by_data(of_classes(scores)))
    notes = [
        "Values are mean ± s.d. over splits, after averaging seeds within a split, of each data "
        "set's primary metric. Bold: the best mean of its column, if it is also a winner; the rule "
        "is given below the table of the data set.",
        *primary_notes(targets),
    ]
    if classes:
        notes.append(
            f"{', '.join(classes)} (binary): AUROC and F1 in percent, F1 at the threshold that "
            "each run chose on its validation part; methods are ranked by AUROC."
        )
    return notes


def ranks_notes(ranks: Ranked) -> list[str]:
    """Return how ranks are computed, and their tests."""
    if ranks.by_primary:
        return [primary_rank_note(ranks.ranks)]
    return [rank_note(ranks.ranks)]


def _pairs_notes(ranks: Ranked, baseline: str | None) -> list[str]:
    return [] if ranks.by_primary else pairs_note(ranks.values, baseline)


def _title(scores: Sequence[AnyScores], family: Family) -> str:
    targets = of_targets(scores)
    if not targets:
        return f"Comparison: {TITLES[family]}"
    metrics = [] if len(targets) == len(scores) else ["AUROC"]
    metrics += dict.fromkeys(TASKS[s.task].primary.title for s in targets)
    return f"Comparison by {', '.join(metrics)}: {TITLES[family]}"


def _following(scores: Sequence[AnyScores], compared: SetCompared, family: Family) -> ResultTable:
    if isinstance(compared, TargetCompared):
        targets = of_targets(scores)
        return target_pooled_table(
            targets, compared, family=family, baseline=baseline_of(targets, family)
        )
    return _pooled_table(of_classes(scores), compared, family)


def baseline_of(scores: Sequence[AnyScores], family: Family) -> str | None:
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
