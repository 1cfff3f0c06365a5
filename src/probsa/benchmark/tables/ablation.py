"""The paper's table 5: every posterior by λ, with the plain model as λ = 0."""

from collections.abc import Sequence

from ..grid.variants import variants_of
from ..results.cache import ResultCache
from ..results.paper import paper_value, spelled, study_of
from ..results.pooled import Compared
from ..results.results import Results, Scores
from ._classic import classic_tests
from ._notes import bold_note, detectable, folds_note, rank_note, replicates_note, verdicts
from ._ranks import Ranked, ranked
from ._shared import (
    by_data,
    data_columns,
    key,
    mean_cells,
    metadata,
    method_names,
    paper_cell,
    paper_cells,
    paper_table,
)
from .comparison import pooled_cells, pooled_columns
from .table import Column, ResultTable, TableCell, text_cell


def ablation_table(results: Results, *, cache: ResultCache | None = None) -> ResultTable | None:
    """Return means over splits by variant and λ, ranked within a variant, followed by each data
    set's pooled differences to λ = 0; None if no variant has two λ besides its plain model."""
    cache = cache or ResultCache()
    variants = variants_of(results.scores)
    if not any(len(method_names(variant_scores)) > 2 for variant_scores in variants.values()):
        return None
    data = list(by_data(results.scores))
    columns = [Column(key="variant", title="variant"), Column(key="kl_weight", title="λ")]
    for d in data:
        columns += data_columns(d, "5")
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    in_paper = any(study_of(d) is not None for d in data)
    if in_paper:
        columns.append(Column(key="paper_rank", title="average rank", group="paper", unit="rank"))
    rows: list[tuple[TableCell, ...]] = []
    rules: set[int] = set()
    notes: list[str] = []
    for label, variant_scores in variants.items():
        rules.add(len(rows))
        ranks = ranked(variant_scores)
        compared = {
            d: _compared(data_scores, cache) for d, data_scores in by_data(variant_scores).items()
        }
        for name in method_names(variant_scores):
            rows.append(
                _row(label, name, variant_scores, data=data, compared=compared, ranks=ranks)
            )
        notes += [f"{label}: {note}" for note in (*ranks.notes, rank_note(ranks.ranks))]
    following = [_differences(d, variants, cache) for d in data]
    following += [] if in_paper else [paper_table("5", subject="variants by λ")]
    return ResultTable(
        name="ablation",
        title="Ablation: the posterior and λ",
        columns=tuple(columns),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            "Values are in percent: mean ± s.d. over splits, after averaging seeds within a split. "
            "λ = 0 is the plain model, trained once for all posteriors.",
            f"{bold_note('the tables of differences')} Columns are compared within a variant.",
            *notes,
            *results.left_out(),
        ),
        follow=tuple(following),
    )


def _compared(scores: Sequence[Scores], cache: ResultCache) -> Compared:
    return cache.compared(scores, baseline=_baseline(scores))


def _baseline(scores: Sequence[Scores]) -> str | None:
    return next((s.method.name for s in scores if s.method.kl_weight is None), None)


def _row(
    label: str,
    name: str,
    variant_scores: Sequence[Scores],
    *,
    data: Sequence[str],
    compared: dict[str, Compared],
    ranks: Ranked,
) -> tuple[TableCell, ...]:
    method = next(s.method for s in variant_scores if s.method.name == name)
    model = next(s.method.model for s in variant_scores if s.method.label == label)
    kl = spelled(method)
    row = [text_cell(label), text_cell(kl)]
    scores_by_data = by_data(variant_scores)
    for d in data:
        row += (
            mean_cells(name, scores_by_data[d], compared[d])
            if d in scores_by_data
            else [TableCell()] * 2
        )
        row += paper_cells(d, "5", label=model, kl_weight=kl)
    row.append(ranks.cell(name))
    if any(study_of(d) is not None for d in data):
        row.append(paper_cell(paper_value("5", model, study="rank", metric="rank", kl_weight=kl)))
    return tuple(row)


def _differences(data: str, variants: dict[str, list[Scores]], cache: ResultCache) -> ResultTable:
    """Return one data set's differences of each λ to the plain model, on the same patients and
    replicates."""
    rows, rules, notes, all_scores, level_notes = [], set(), [], [], []
    for label, variant_scores in variants.items():
        data_scores = by_data(variant_scores).get(data, [])
        if not data_scores:
            continue
        all_scores += [s for s in data_scores if s not in all_scores]
        rules.add(len(rows))
        compared = _compared(data_scores, cache)
        for s in data_scores:
            entries = pooled_cells(s.method.name, compared, folds=s.folds)
            rows.append((text_cell(label), text_cell(spelled(s.method)), *entries))
        level_notes = folds_note(data_scores, compared)
        variant_notes = replicates_note(compared) + verdicts(compared) + detectable(compared)
        variant_notes += classic_tests(data_scores, compared)
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
