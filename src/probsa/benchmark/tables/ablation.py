"""The paper's table 5: every posterior by λ, with the plain model as λ = 0."""

from collections.abc import Mapping, Sequence

from ..grid.variants import variants_of
from ..results.comparing import ResultCache
from ..results.method_order import kl_text
from ..results.ranked import ranked
from ..results.results import Results
from ..results.scores import Scores, by_data
from ._columns import (
    RANK,
    difference_cells,
    difference_columns,
    mean_cells,
    mean_columns,
    method_names,
    rank_cell,
)
from ._notes import (
    MEANS,
    bold_note,
    folds_notes,
    measures_notes,
    metadata,
    ranks_notes,
    rule_notes,
    titles_of,
    verdicts,
)
from .table import Column, ResultTable, TableCell, key, text_cell

VARIANT = (Column(key="variant", title="variant"), Column(key="kl_weight", title="λ"))


def ablation_table(results: Results, *, cache: ResultCache | None = None) -> ResultTable | None:
    """Return means over splits by variant and λ, ranked within a variant, followed by each data
    set's pooled differences to λ = 0; None if no variant has two λ besides its plain model."""
    cache = cache or ResultCache()
    variants = variants_of(results.scores)
    if not any(len(method_names(of_variant)) > 2 for of_variant in variants.values()):
        return None
    data = by_data(results.scores)
    rows: list[tuple[TableCell, ...]] = []
    rules: set[int] = set()
    notes: list[str] = []
    for label, of_variant in variants.items():
        rules.add(len(rows))
        ranks = ranked(of_variant)
        compared = {
            d: cache.compared(of_set, baseline=_baseline(of_set))
            for d, of_set in by_data(of_variant).items()
        }
        for name, method in {s.method.name: s.method for s in of_variant}.items():
            means = (mean_cells(name, s, compared.get(d)) for d, (s, *_) in data.items())
            cells = [text_cell(label), text_cell(kl_text(method)), *(c for m in means for c in m)]
            rows.append((*cells, rank_cell(ranks, name)))
        notes += [f"{label}: {note}" for note in ranks_notes(ranks)]
    return ResultTable(
        name="ablation",
        title="Ablation: the posterior and λ",
        columns=(*VARIANT, *(c for s, *_ in data.values() for c in mean_columns(s)), RANK),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            f"{MEANS}. λ = 0 is the plain model, trained once for all posteriors.",
            *measures_notes(results.scores),
            f"{bold_note('the tables of differences')} Columns are compared within a variant.",
            *notes,
            *results.left_out(),
        ),
        follow=tuple(_differences(d, variants, cache) for d in data),
    )


def _baseline(scores: Sequence[Scores]) -> str | None:
    return next((s.method.name for s in scores if s.method.kl_weight is None), None)


def _differences(
    data: str, variants: Mapping[str, Sequence[Scores]], cache: ResultCache
) -> ResultTable:
    """Return one data set's differences of each λ to the plain model, on the same patients and
    replicates."""
    rows: list[tuple[TableCell, ...]] = []
    rules: set[int] = set()
    notes: list[str] = []
    on_set = {label: by_data(of_variant).get(data, []) for label, of_variant in variants.items()}
    scores = list({s.method.name: s for of_set in on_set.values() for s in of_set}.values())
    for label, of_set in on_set.items():
        if not of_set:
            continue
        rules.add(len(rows))
        compared = cache.compared(of_set, baseline=_baseline(of_set))
        for s in of_set:
            cells = difference_cells(s.method.name, s, compared)
            rows.append((text_cell(label), text_cell(kl_text(s.method)), *cells))
        if not notes:
            notes += rule_notes(scores[0], compared, to="to λ = 0", over="within a variant")
            notes += folds_notes(scores[0], compared)
        own = verdicts(scores[0], compared)
        if _baseline(of_set) is None:
            own.append("the plain model was not run, so Δ refers to the best λ.")
        notes += [f"{label}: {note}" for note in own]
    first = scores[0]
    return ResultTable(
        name=f"ablation_{key(data)}",
        title=f"{data} ({first.task.name}): effect of λ by {titles_of(first)}, with 95 % intervals",
        columns=(*VARIANT, *difference_columns(first)),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(metadata(scores), *notes),
    )
