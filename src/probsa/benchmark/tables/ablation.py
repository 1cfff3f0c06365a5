"""The paper's table 5: every posterior by λ, the plain model as λ = 0."""

from collections.abc import Sequence

from ..grid.variants import variants_of
from ..results.cache import Kept
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
    mean_entries,
    metadata,
    method_names,
    paper_entries,
    paper_table,
    printed,
)
from .comparison import pooled_columns, pooled_entries
from .table import Column, Entry, ResultTable, words


def ablation_table(results: Results, *, kept: Kept | None = None) -> ResultTable | None:
    """Means over splits by variant and λ, ranked within a variant; below it, of each data set, the
    pooled differences to λ = 0. None where no variant has two λ beside its plain model.
    """
    kept = kept or Kept()
    variants = variants_of(results.scores)
    if not any(len(method_names(own)) > 2 for own in variants.values()):
        return None
    data = list(by_data(results.scores))
    columns = [Column(key="variant", title="variant"), Column(key="kl_weight", title="λ")]
    for d in data:
        columns += data_columns(d, "5")
    columns.append(Column(key="rank", title="average rank", unit="rank"))
    known = any(study_of(d) is not None for d in data)
    if known:
        columns.append(Column(key="paper_rank", title="average rank", group="paper", unit="rank"))
    rows: list[tuple[Entry, ...]] = []
    rules: set[int] = set()
    notes: list[str] = []
    for label, own in variants.items():
        rules.add(len(rows))
        ranks = ranked(own)
        compared = {d: _compared(of, kept) for d, of in by_data(own).items()}
        for name in method_names(own):
            rows.append(_row(label, name, own, data=data, compared=compared, ranks=ranks))
        notes += [f"{label}: {note}" for note in (*ranks.notes, rank_note(ranks.ranks))]
    below = [_differences(d, variants, kept) for d in data]
    below += [] if known else [paper_table("5", of="variants by λ")]
    return ResultTable(
        name="ablation",
        title="Ablation: the posterior and λ",
        columns=tuple(columns),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            "Percent: mean ± s.d. over splits, seeds averaged within a split first. λ = 0 is the "
            "plain model, trained once for all posteriors.",
            f"{bold_note('the tables of differences')} Columns are of a variant.",
            *notes,
            *results.left_out(),
        ),
        follow=tuple(below),
    )


def _compared(scores: Sequence[Scores], kept: Kept) -> Compared:
    return kept.compared(scores, baseline=_baseline(scores))


def _baseline(scores: Sequence[Scores]) -> str | None:
    return next((s.method.name for s in scores if s.method.kl_weight is None), None)


def _row(
    label: str,
    name: str,
    own: Sequence[Scores],
    *,
    data: Sequence[str],
    compared: dict[str, Compared],
    ranks: Ranked,
) -> tuple[Entry, ...]:
    method = next(s.method for s in own if s.method.name == name)
    model = next(s.method.model for s in own if s.method.label == label)
    kl = spelled(method)
    row = [words(label), words(kl)]
    by = by_data(own)
    for d in data:
        row += mean_entries(name, by[d], compared[d]) if d in by else [Entry()] * 2
        row += paper_entries(d, "5", label=model, kl_weight=kl)
    row.append(ranks.entry(name))
    if any(study_of(d) is not None for d in data):
        row.append(printed(paper_value("5", model, study="rank", metric="rank", kl_weight=kl)))
    return tuple(row)


def _differences(data: str, variants: dict[str, list[Scores]], kept: Kept) -> ResultTable:
    """Of one data set: every λ against the plain model, on the same patients and replicates."""
    rows, rules, notes, every, levels = [], set(), [], [], []
    for label, of in variants.items():
        own = by_data(of).get(data, [])
        if not own:
            continue
        every += [s for s in own if s not in every]
        rules.add(len(rows))
        compared = _compared(own, kept)
        for s in own:
            entries = pooled_entries(s.method.name, compared, folds=s.folds)
            rows.append((words(label), words(spelled(s.method)), *entries))
        levels = folds_note(own, compared)
        said = replicates_note(compared) + verdicts(compared) + detectable(compared)
        said += classic_tests(own, compared)
        if _baseline(own) is None:
            said.append("the plain model was not run: Δ is to the best λ.")
        notes += [f"{label}: {one}" for one in said]
    return ResultTable(
        name=f"ablation_{key(data)}",
        title=f"{data}: what λ changes, pooled, with 95 % intervals",
        columns=tuple(
            pooled_columns(
                [Column(key="variant", title="variant"), Column(key="kl_weight", title="λ")],
                folds=any(s.folds for s in every),
            )
        ),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            metadata(every),
            "Δ is the paired difference to λ = 0, in points; [lo, hi] are 95 % intervals over "
            "patients and replicates; p is two-sided, by Holm's correction within a variant. A "
            "winner is the λ with the highest value if its paired difference to every other one "
            "has a Holm-adjusted p of at most 0.05. Sentences below give differences as shares: "
            "0.01 is a point.",
            *levels,
            *notes,
        ),
    )
