"""The paper's table 5: every posterior by λ, with the plain model as λ = 0."""

from collections.abc import Mapping, Sequence

from ..grid.variants import variants_of
from ..results.cache import ResultCache
from ..results.method_order import kl_text
from ..results.pooled import Compared
from ..results.results import AnyScores, Results, Scores
from ..results.target_comparison import TargetCompared
from ..results.target_scores import TargetScores
from ._notes import bold_note, detectable, folds_note, replicates_note, verdicts
from ._ranks import Ranked, ranked
from ._sets import (
    SetCompared,
    compare_set,
    empty_cells,
    of_classes,
    of_targets,
    set_cells,
    set_columns,
)
from ._shared import (
    by_data,
    key,
    metadata,
    method_names,
)
from ._targets import metric_cells, metric_columns, primary_notes
from .comparison import pooled_cells, pooled_columns, ranks_notes
from .table import Column, ResultTable, TableCell, text_cell
from .target_tables import direction_note, target_notes, titles_of


def ablation_table(results: Results, *, cache: ResultCache | None = None) -> ResultTable | None:
    """Return means over splits by variant and λ, ranked within a variant, followed by each data
    set's pooled differences to λ = 0; None if no variant has two λ besides its plain model."""
    cache = cache or ResultCache()
    variants = variants_of(results.all)
    if not any(len(method_names(variant_scores)) > 2 for variant_scores in variants.values()):
        return None
    data = by_data(results.all)
    columns = [Column(key="variant", title="variant"), Column(key="kl_weight", title="λ")]
    for data_scores in data.values():
        columns += set_columns(data_scores)
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    rows: list[tuple[TableCell, ...]] = []
    rules: set[int] = set()
    notes: list[str] = []
    for label, variant_scores in variants.items():
        rules.add(len(rows))
        ranks = ranked(variant_scores)
        compared = {
            d: compare_set(data_scores, cache, baseline=_baseline(data_scores))
            for d, data_scores in by_data(variant_scores).items()
        }
        for name in method_names(variant_scores):
            rows.append(
                _row(label, name, variant_scores, data=data, compared=compared, ranks=ranks)
            )
        notes += [f"{label}: {note}" for note in (*ranks.notes, *ranks_notes(ranks))]
    following = [_differences(d, variants, cache) for d in by_data(results.scores)]
    following += [_target_differences(d, variants, cache) for d in by_data(results.targets)]
    return ResultTable(
        name="ablation",
        title="Ablation: the posterior and λ",
        columns=tuple(columns),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            *_means_notes(results.targets),
            f"{_bold_note(results)} Columns are compared within a variant.",
            *notes,
            *results.left_out(),
        ),
        follow=tuple(following),
    )


def _means_notes(targets: Sequence[TargetScores]) -> list[str]:
    plain = "λ = 0 is the plain model, trained once for all posteriors."
    means = "mean ± s.d. over splits, after averaging seeds within a split"
    if not targets:
        return [f"Values are in percent: {means}. {plain}"]
    return [f"Values are {means}. {plain}", *primary_notes(targets)]


def _bold_note(results: Results) -> str:
    if not results.targets:
        return bold_note("the tables of differences")
    return (
        "Bold: the best mean of its column, if it is also a winner; the rule is given below the "
        "tables of differences."
    )


def _compared(scores: Sequence[Scores], cache: ResultCache) -> Compared:
    return cache.compared(scores, baseline=_baseline(scores))


def _baseline(scores: Sequence[AnyScores]) -> str | None:
    return next((s.method.name for s in scores if s.method.kl_weight is None), None)


def _row(
    label: str,
    name: str,
    variant_scores: Sequence[AnyScores],
    *,
    data: Mapping[str, Sequence[AnyScores]],
    compared: Mapping[str, SetCompared],
    ranks: Ranked,
) -> tuple[TableCell, ...]:
    method = next(s.method for s in variant_scores if s.method.name == name)
    row = [text_cell(label), text_cell(kl_text(method))]
    scores_by_data = by_data(variant_scores)
    for d, data_scores in data.items():
        row += (
            set_cells(name, scores_by_data[d], compared[d])
            if d in scores_by_data
            else empty_cells(data_scores)
        )
    row.append(ranks.cell(name))
    return tuple(row)


def _differences(
    data: str, variants: Mapping[str, Sequence[AnyScores]], cache: ResultCache
) -> ResultTable:
    """Return one data set's differences of each λ to the plain model, on the same patients and
    replicates."""
    rows, rules, notes, all_scores, level_notes = [], set(), [], [], []
    for label, variant_scores in variants.items():
        data_scores = by_data(of_classes(variant_scores)).get(data, [])
        if not data_scores:
            continue
        all_scores += [s for s in data_scores if s not in all_scores]
        rules.add(len(rows))
        compared = _compared(data_scores, cache)
        for s in data_scores:
            entries = pooled_cells(s.method.name, compared, folds=s.folds)
            rows.append((text_cell(label), text_cell(kl_text(s.method)), *entries))
        level_notes = folds_note(data_scores, compared)
        variant_notes = replicates_note(compared) + verdicts(compared) + detectable(compared)
        if _baseline(data_scores) is None:
            variant_notes.append("the plain model was not run, so Δ refers to the best λ.")
        notes += [f"{label}: {note}" for note in variant_notes]
    return ResultTable(
        name=f"ablation_{key(data)}",
        title=f"{data}: effect of λ, pooled, with 95 % intervals",
        columns=tuple(
            pooled_columns(
                [Column(key="variant", title="variant"), Column(key="kl_weight", title="λ")],
                folds=any(s.folds for s in all_scores),
            )
        ),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            metadata(all_scores),
            "Δ is the paired difference to λ = 0, in points; [lo, hi] are 95 % intervals over "
            "patients and replicates; p is two-sided and Holm-corrected within a variant. A "
            "winner is the λ with the highest value if its paired difference to every other one "
            "has a Holm-adjusted p of at most 0.05. The notes below give differences as fractions: "
            "0.01 is a point.",
            *level_notes,
            *notes,
        ),
    )


def _target_differences(
    data: str, variants: Mapping[str, Sequence[AnyScores]], cache: ResultCache
) -> ResultTable:
    """Return the same of a data set whose task is not two classes, by each metric of it."""
    found: list[tuple[str, list[TargetScores], TargetCompared]] = []
    for label, variant_scores in variants.items():
        scores = by_data(of_targets(variant_scores)).get(data, [])
        if scores:
            found.append(
                (label, scores, cache.compared_targets(scores, baseline=_baseline(scores)))
            )
    rows, rules, notes = [], set(), []
    for label, scores, compared in found:
        rules.add(len(rows))
        rows += [
            (
                text_cell(label),
                text_cell(kl_text(s.method)),
                *metric_cells(s.method.name, s, compared),
            )
            for s in scores
        ]
        own = target_notes(compared, scores[0])
        if _baseline(scores) is None:
            own.append("the plain model was not run, so Δ refers to the best λ.")
        notes += [f"{label}: {note}" for note in own]
    first = found[0][1][0]
    first_columns = (Column(key="variant", title="variant"), Column(key="kl_weight", title="λ"))
    return ResultTable(
        name=f"ablation_{key(data)}",
        title=f"{data} ({first.task}): effect of λ by {titles_of(first)}, with 95 % intervals",
        columns=(*first_columns, *metric_columns(first, found[0][2])),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            metadata([s for _, scores, _ in found for s in scores]),
            f"{direction_note(first)} Δ is the paired difference to λ = 0; [lo, hi] are 95 % "
            "intervals over patients and replicates; p is two-sided, from the bootstrap over "
            "patients, and Holm-corrected within a variant. A winner is the λ with the best value "
            "if its paired difference to every other one has a Holm-adjusted p of at most 0.05. "
            "The notes below give percentages as fractions.",
            *notes,
        ),
    )
