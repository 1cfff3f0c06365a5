"""The paper's tables 2, 3 and 5: methods on every data set, winners, and the folds of each set.

Methods that are compared with each other are a family (tables 2 and 3), or the plain model and
every λ of a posterior (table 5, the ablation). Both are shown by the same code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...statistics import Pooling, Ranks
from ...tasks import Measure
from ..grid.methods_and_cells import Family, Method
from ..grid.variants import chosen, chosen_note, family_baseline, variants_of
from ..results.comparing import ROUNDING, Compared, compare_methods
from ..results.method_order import kl_text
from ..results.ranked import ranked
from ..results.results import Results
from ..results.sampling import kinds_of, means_of, null_rivals, values_by_split
from ..results.scores import Scores, by_data
from ._notes import (
    MEANS,
    bold_note,
    folds_notes,
    measures_notes,
    metadata,
    ranks_notes,
    rule_notes,
    shown_titles,
    titles_of,
    verdicts,
)
from .table import METHOD, Column, ResultTable, TableCell, key, metric_cell, text_cell

TITLES: dict[Family, str] = {
    "local": "methods without interactions over the whole bag",
    "global": "methods with interactions over the whole bag",
}
VARIANT = (Column(key="variant", title="variant"), Column(key="kl_weight", title="λ"))
RANK = Column(key="rank", title="average rank", unit="rank")
LOOKS_AT_NONE = (
    "The last rows are null rivals, which do not look at single instances. They are means over "
    "the runs, without intervals, and do not take part in the comparison of methods."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Methods that are compared with each other, on all data sets."""

    label: str = ""
    """The variant whose λ they are; empty for a family."""
    scores: Sequence[Scores]
    plain: Callable[[Sequence[Scores]], str | None]
    """Returns the name of the method that differences refer to, if it is among the given ones."""

    def compared(self, data: str) -> Compared | None:
        """Return the comparison on a data set; None without a method on it."""
        scores = by_data(self.scores).get(data)
        return None if scores is None else compare_methods(scores, baseline=self.plain(scores))

    def head(self, method: Method) -> tuple[TableCell, ...]:
        """Return the cells that name a method."""
        if not self.label:
            return (text_cell(method.name),)
        return text_cell(self.label), text_cell(kl_text(method))


def comparison_table(results: Results, family: Family) -> ResultTable | None:
    """Return means over splits with average ranks, followed by each data set's pooled values,
    intervals and differences to the plain model; None if the family has no method."""
    family_scores = [s for s in results.scores if s.method.family == family]
    if not family_scores:
        return None

    def plain(scores: Sequence[Scores]) -> str | None:
        baseline = family_baseline([s.method for s in scores], family)
        return None if baseline is None else baseline.name

    group = Group(scores=chosen(family_scores), plain=plain)
    scores = group.scores
    rule = chosen_note(family_scores)
    return ResultTable(
        name=f"comparison_{family}",
        title=f"Comparison by {shown_titles(scores)}: {TITLES[family]}",
        columns=_mean_columns(METHOD, scores=scores),
        rows=tuple(_mean_rows(group, scores)),
        footnotes=(
            f"{MEANS}.",
            *measures_notes(scores),
            bold_note("the pooled table of the data set"),
            *([rule] if rule else []),
            *ranks_notes(ranked(scores)),
            *results.left_out(),
        ),
        follow=tuple(_pooled(group, data, family) for data in by_data(scores).values()),
    )


def _pooled(group: Group, scores: Sequence[Scores], family: Family) -> ResultTable:
    """Return every metric of each method, the differences to the plain model, and null rivals."""
    first = scores[0]
    compared = group.compared(first.data)
    assert compared is not None, "it has methods"
    rows = [(*group.head(s.method), *_difference_cells(s, compared)) for s in scores]
    rivals = null_rivals(first)
    for name, values in rivals.items():
        rows.append((text_cell(name), *_rival_cells(first, values)))
    if group.plain(scores) is None:
        to = "to the best by each metric (the family's plain model was not run)"
    elif compared.comparisons:
        to = f"to {compared.comparisons[0].comparison.reference}"
    else:
        to = ""
    return ResultTable(
        name=f"pooled_{family}_{key(first.data)}",
        title=f"{first.data} ({first.task.name}): {titles_of(first)}, with 95 % intervals",
        columns=(METHOD, *_difference_columns(first)),
        rows=tuple(rows),
        footnotes=(
            metadata(scores),
            *rule_notes(first, compared, to=to, over="over the rows"),
            *folds_notes(first, compared),
            *verdicts(first, compared),
            *([LOOKS_AT_NONE] if rivals else []),
        ),
    )


def ablation_table(results: Results) -> ResultTable | None:
    """Return means over splits by variant and λ, ranked within a variant, followed by each data
    set's pooled differences to λ = 0; None if no variant has two λ besides its plain model."""

    def plain(scores: Sequence[Scores]) -> str | None:
        return next((s.method.name for s in scores if s.method.kl_weight is None), None)

    groups: list[Group] = []
    for label, scores in variants_of(results.scores).items():
        groups.append(Group(label=label, scores=scores, plain=plain))
    if not any(len({s.method.name for s in g.scores}) > 2 for g in groups):
        return None
    rows: list[tuple[TableCell, ...]] = []
    notes: list[str] = []
    for g in groups:
        rows += _mean_rows(g, results.scores)
        notes += [f"{g.label}: {note}" for note in ranks_notes(ranked(g.scores))]
    return ResultTable(
        name="ablation",
        title="Ablation: the posterior and λ",
        columns=_mean_columns(*VARIANT, scores=results.scores),
        rows=tuple(rows),
        footnotes=(
            f"{MEANS}. λ = 0 is the plain model, trained once for all posteriors.",
            *measures_notes(results.scores),
            f"{bold_note('the tables of differences')} Columns are compared within a variant.",
            *notes,
            *results.left_out(),
        ),
        follow=tuple(_effects(data, groups) for data in by_data(results.scores)),
    )


def _effects(data: str, groups: Sequence[Group]) -> ResultTable:
    """Return one data set's differences of each λ to the plain model, on the same patients and
    replicates."""
    rows: list[tuple[TableCell, ...]] = []
    notes: list[str] = []
    methods: dict[str, Scores] = {}
    for g in groups:
        compared = g.compared(data)
        if compared is None:
            continue
        scores = by_data(g.scores)[data]
        first = scores[0]
        for s in scores:
            methods.setdefault(s.method.name, s)
        if not rows:
            notes += rule_notes(first, compared, to="to λ = 0", over="within a variant")
            notes += folds_notes(first, compared)
        rows += [(*g.head(s.method), *_difference_cells(s, compared)) for s in scores]
        variant_notes = verdicts(first, compared)
        if g.plain(scores) is None:
            variant_notes.append("the plain model was not run, so Δ refers to the best λ.")
        notes += [f"{g.label}: {note}" for note in variant_notes]
    first = next(iter(methods.values()))
    return ResultTable(
        name=f"ablation_{key(data)}",
        title=f"{data} ({first.task.name}): effect of λ by {titles_of(first)}, with 95 % intervals",
        columns=(*VARIANT, *_difference_columns(first)),
        rows=tuple(rows),
        footnotes=(metadata(list(methods.values())), *notes),
    )


def folds_table(scores: Sequence[Scores]) -> ResultTable:
    """Return one data set's primary metric: a row per method, a column per fold or split."""
    first = scores[0]
    measure = first.task.primary
    part = "fold" if first.folds else "split"
    splits = sorted({int(split) for s in scores for split in s.split.ravel()})
    columns = [METHOD]
    for title in (*(f"{part} {split}" for split in splits), "mean"):
        digits = _digits(first, measure)
        columns.append(Column(key=key(title), title=title, unit=measure.unit, digits=digits))
    rows = []
    defined_splits: set[int] = set()
    for s in scores:
        by_split = values_by_split(s)[measure.name]
        defined_splits.update(by_split)
        mean = means_of(s)[measure.name]
        cells = [TableCell(value=by_split.get(split)) for split in splits]
        rows.append((text_cell(s.method.name), *cells, TableCell(value=mean.mean, sd=mean.sd)))
    percent = " in percent" if measure.unit == "percent" else ""
    notes = [f"{measure.title}{percent}, averaged over seeds; mean ± s.d. over the columns."]
    if not measure.higher_is_better:
        notes.append("Lower is better.")
    undefined = [str(split) for split in splits if split not in defined_splits]
    if undefined:
        why = ", which has only one class" if first.task.two_classes else ""
        notes.append(f"{measure.title} is undefined on {part} {', '.join(undefined)}{why}.")
    return ResultTable(
        name=f"folds_{key(first.data)}",
        title=f"{measure.title} on each {part} of {first.data}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(metadata(scores), *notes),
    )


def _digits(scores: Scores, measure: Measure) -> int | None:
    """Return the decimals of a metric in the unit of the target; None for the usual ones."""
    deviation = float(scores.targets[:, 0].std())
    if not measure.of_target or deviation == 0:
        return None
    return min(12, max(0, 3 - math.floor(math.log10(deviation))))


def _mean_columns(*head: Column, scores: Sequence[Scores]) -> tuple[Column, ...]:
    """Return the columns of a table of several data sets: means over splits, and the rank."""
    means: list[Column] = []
    for data, methods in by_data(scores).items():
        first = methods[0]
        for m in first.overview:
            column = Column(
                key=key(data, m.name),
                title=m.title,
                group=data,
                unit=m.unit,
                digits=_digits(first, m),
            )
            means.append(column)
    return (*head, *means, RANK)


def _mean_rows(group: Group, scores: Sequence[Scores]) -> list[tuple[TableCell, ...]]:
    """Return the group's means ± s.d. over splits on the data sets of `scores`, and the ranks."""
    ranks = ranked(group.scores).ranks
    methods = {s.method.name: s.method for s in group.scores}
    rows: list[tuple[TableCell, ...]] = []
    for name, method in methods.items():
        cells: list[TableCell] = []
        for data, data_scores in by_data(scores).items():
            cells += _mean_cells(name, data_scores[0], group.compared(data))
        rows.append((*group.head(method), *cells, rank_cell(ranks, name)))
    return rows


def _mean_cells(name: str, scores: Scores, compared: Compared | None) -> list[TableCell]:
    """Return a method's means on a data set; the best one is bold if it is a winner.

    They are empty without a comparison or a run of the method on the data set.
    """
    if compared is None or name not in compared.means:
        return [TableCell()] * len(scores.overview)
    cells = []
    for m in scores.overview:
        mean = compared.means[name][m.name]
        if mean.mean is None:
            cells.append(TableCell())
            continue
        sign = 1 if m.higher_is_better else -1
        means = [by_metric[m.name].mean for by_metric in compared.means.values()]
        best = max(sign * value for value in means if value is not None)
        pooled = compared.deciding(m.name)
        wins = pooled is not None and pooled.comparison.winner == name
        bold = wins and sign * mean.mean > best - ROUNDING
        cells.append(TableCell(value=mean.mean, sd=mean.sd, bold=bold))
    return cells


def rank_cell(ranks: Ranks | None, name: str) -> TableCell:
    """Return a method's average rank ± s.d. over the columns (ddof = 1)."""
    if ranks is None or name not in ranks.mean:
        return TableCell()
    sd = ranks.sd[name]
    return TableCell(value=ranks.mean[name], sd=None if math.isnan(sd) else sd)


def _difference_columns(scores: Scores) -> list[Column]:
    """Return the columns of values, differences and p of everything that is compared."""
    columns: list[Column] = []
    kinds = kinds_of(scores)
    for m, pooling in kinds:
        name = m.name
        group = m.title
        if pooling == "within":
            group = f"{m.title} within folds"
            if _compared_twice(m, kinds):
                name = key(m.name, "within")
        elif _compared_twice(m, kinds):
            group = f"pooled {m.title}"
        unit = "points" if m.unit == "percent" else "difference"
        digits = _digits(scores, m)
        columns += [
            Column(key=key(name), title="value", group=group, unit=m.unit, digits=digits),
            Column(key=key(name, "difference"), title="Δ", group=group, unit=unit, digits=digits),
            Column(key=key(name, "p_holm"), title="Holm p", group=group, unit="p"),
        ]
    return columns


def _compared_twice(measure: Measure, kinds: Sequence[tuple[Measure, Pooling]]) -> bool:
    return [m for m, _ in kinds].count(measure) > 1


def _difference_cells(scores: Scores, compared: Compared) -> list[TableCell]:
    """Return a method's row for these columns, with the values by which it wins in bold."""
    cells: list[TableCell] = []
    name = scores.method.name
    for m, pooling in kinds_of(scores):
        value = difference = p = TableCell()
        pooled = compared.of(m.name, pooling)
        if pooled is not None and name in pooled.values:
            comparison = pooled.comparison
            wins = pooled is compared.deciding(m.name) and comparison.winner == name
            value = metric_cell(pooled.values[name], bold=wins)
            d = comparison.differences.get(name)
            if d is not None:
                difference = TableCell(value=d.difference, low=d.low, high=d.high)
                p = TableCell(value=None if d.p is None else comparison.adjusted[name])
        cells += [value, difference, p]
    return cells


def _rival_cells(scores: Scores, values: Mapping[str, float]) -> list[TableCell]:
    """Return the row of a null rival for the same columns: its values over all bags alone."""
    cells: list[TableCell] = []
    kinds = kinds_of(scores)
    for m, pooling in kinds:
        is_repeated = pooling == "within" and _compared_twice(m, kinds)
        value = TableCell() if is_repeated else TableCell(value=values.get(m.name))
        cells += [value, TableCell(), TableCell()]
    return cells
