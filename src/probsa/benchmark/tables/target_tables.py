"""Tables of one data set whose task is not two classes: every metric, with intervals."""

from collections.abc import Sequence

from ...statistics import detectable_sentence
from ...tasks import TASKS
from ..results.target_comparison import TargetCompared
from ..results.target_samples import null_rivals, values_by_split
from ..results.target_scores import TargetScores
from ._shared import key, metadata, method_names
from ._targets import digits_of, metric_cells, metric_columns, rival_cells
from .table import Column, ResultTable, TableCell, text_cell


def target_pooled_table(
    scores: Sequence[TargetScores], compared: TargetCompared, *, family: str, baseline: str | None
) -> ResultTable:
    """Return every metric of each method, the differences to the plain model, and null rivals."""
    first = scores[0]
    rows = [
        (text_cell(name), *metric_cells(name, first, compared)) for name in method_names(scores)
    ]
    rivals = null_rivals(first)
    rules = {len(rows)} if rivals else set()
    rows += [(text_cell(name), *rival_cells(first, rivals[name])) for name in rivals]
    return ResultTable(
        name=f"pooled_{family}_{key(first.data)}",
        title=f"{first.data} ({first.task}): {titles_of(first)}, with 95 % intervals",
        columns=(Column(key="method", title="method"), *metric_columns(first, compared)),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            metadata(scores),
            *_rule(first, compared, baseline),
            *target_notes(compared, first),
            *_rivals_note(rivals),
        ),
    )


def titles_of(scores: TargetScores) -> str:
    """Return the metrics of a data set in words, the primary one first."""
    *most, last = [m.title for m in TASKS[scores.task].measures]
    return f"{', '.join(most)} and {last}"


def target_notes(compared: TargetCompared, scores: TargetScores) -> list[str]:
    """Return the winner by each metric or why there is none, and what could be detected."""
    notes: list[str] = []
    for metric in TASKS[scores.task].measures:
        pooled = compared.pooled[metric.name]
        if pooled is None:
            notes.append(f"{metric.title}: no comparison: {compared.reasons[metric.name]}.")
            continue
        title = metric.title + (" within folds" if pooled.pooling == "within" else "")
        winner, why = pooled.comparison.winner, pooled.comparison.reason
        notes.append(f"{title}: {winner} wins." if winner else f"{title}: no winner: {why}.")
    primary = TASKS[scores.task].primary
    pooled = compared.pooled[primary.name]
    if pooled is not None:
        notes.append(
            detectable_sentence(
                pooled.comparison,
                within=pooled.pooling == "within",
                replicates=[n for n in pooled.replicates.values() if n],
                title=primary.title,
            )
        )
    return [*notes, *_lacking(compared)]


def direction_note(scores: TargetScores) -> str:
    """Return which metrics are better if lower, and in which unit they are."""
    measures = TASKS[scores.task].measures
    lower = [m.title for m in measures if not m.higher_is_better]
    percent = [m.title for m in measures if m.unit == "percent"]
    of_target = [m.title for m in measures if m.of_target]
    parts = []
    if lower:
        parts.append(f"Lower is better for {', '.join(lower)}.")
    if percent:
        parts.append(f"{', '.join(percent)}: in percent, their Δ in points.")
    if of_target:
        parts.append(f"{', '.join(of_target)}: in the unit of the target.")
    return " ".join(parts)


def target_folds_table(scores: Sequence[TargetScores]) -> ResultTable:
    """Return the primary metric of each fold or split by method."""
    first = scores[0]
    metric, part = TASKS[first.task].primary, "fold" if first.folds else "split"
    values = [values_by_split(s)[metric.name] for s in scores]
    splits = sorted({int(k) for s in scores for k in s.split.ravel()})
    digits = digits_of(first, metric)
    columns = [
        Column(key=key(part, str(k)), title=f"{part} {k}", unit=metric.unit, digits=digits)
        for k in splits
    ]
    return ResultTable(
        name=f"folds_{key(first.data)}",
        title=f"{metric.title} on each {part} of {first.data}",
        columns=(Column(key="method", title="method"), *columns),
        rows=tuple(
            (text_cell(s.method.name), *(TableCell(value=of_method.get(k)) for k in splits))
            for s, of_method in zip(scores, values, strict=True)
        ),
        footnotes=(metadata(scores), f"{direction_note(first)} Averaged over seeds.".strip()),
    )


def _rule(first: TargetScores, compared: TargetCompared, baseline: str | None) -> list[str]:
    pooled = next((p for p in compared.pooled.values() if p is not None), None)
    if pooled is None:
        return []
    reference = f"to {pooled.comparison.reference}"
    if baseline is None:
        reference = "to the best by each metric (the family's plain model was not run)"
    kinds = {p.pooling for p in compared.pooled.values() if p is not None}
    folds = ""
    if first.folds:
        folds = " Metrics are of the bags of all folds together"
        folds += ", those within folds means over the folds." if "within" in kinds else "."
    return [
        f"{direction_note(first)} Values are means over replicates; Δ is the paired difference "
        f"{reference}. [lo, hi] are 95 % intervals over patients and replicates; p is two-sided, "
        "from the bootstrap over patients, and Holm-corrected over the rows. A winner is the "
        "method with the best value if its paired difference to every other one has a "
        f"Holm-adjusted p of at most 0.05. The notes below give percentages as fractions.{folds}",
        *(note[:1].upper() + note[1:] + "." for note in pooled.comparison.notes),
    ]


def _rivals_note(rivals: object) -> list[str]:
    if not rivals:
        return []
    return [
        "The last rows are null rivals, which look at no bag: means over the runs, without "
        "intervals, and not among the methods that are compared."
    ]


def _lacking(compared: TargetCompared) -> list[str]:
    """Return which replicates are used, if methods do not share all of them."""
    pooled = next((p for p in compared.pooled.values() if p is not None and p.lacking), None)
    if pooled is None:
        return []
    shared = ", ".join(f"{name} {n}" for name, n in pooled.replicates.items())
    n = pooled.comparison.replicates
    return [
        "Not every method has every replicate: values are over all replicates of a method, Δ over "
        f"those that it shares with {pooled.comparison.reference} ({shared}); a winner is "
        f"determined over the {n} that all methods have."
    ]
