"""The paper's tables 2 and 3: the methods of a family on every data set, and the winners."""

from collections.abc import Sequence

from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note, family_baseline
from ..results.comparing import Compared, ResultCache
from ..results.ranked import ranked
from ..results.results import Results
from ..results.sampling import null_rivals
from ..results.scores import Scores, by_data
from ._columns import (
    METHOD,
    RANK,
    difference_cells,
    difference_columns,
    mean_cells,
    mean_columns,
    method_names,
    rank_cell,
    rival_cells,
)
from ._notes import (
    MEANS,
    bold_note,
    folds_notes,
    measures_notes,
    metadata,
    pairs_note,
    ranks_notes,
    rule_notes,
    shown_titles,
    titles_of,
    verdicts,
)
from .table import ResultTable, key, text_cell

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
        d: cache.compared(of_set, baseline=_baseline(of_set, family)) for d, of_set in data.items()
    }
    ranks = ranked(scores)
    rows = [
        (
            text_cell(name),
            *(c for d, (s, *_) in data.items() for c in mean_cells(name, s, compared[d])),
            rank_cell(ranks, name),
        )
        for name in method_names(scores)
    ]
    pairs = [] if ranks.by_primary else pairs_note(ranks.values, _baseline(scores, family))
    return ResultTable(
        name=f"comparison_{family}",
        title=f"Comparison by {shown_titles(scores)}: {TITLES[family]}",
        columns=(METHOD, *(c for s, *_ in data.values() for c in mean_columns(s)), RANK),
        rows=tuple(rows),
        footnotes=(
            f"{MEANS}.",
            *measures_notes(scores),
            bold_note("the pooled table of the data set"),
            *([note] if (note := chosen_note(family_scores)) else []),
            *ranks_notes(ranks),
            *pairs,
            *results.left_out(),
        ),
        follow=tuple(_pooled(of_set, compared[d], family) for d, of_set in data.items()),
    )


def _baseline(scores: Sequence[Scores], family: Family) -> str | None:
    """Return the name of the family's plain model among these."""
    baseline = family_baseline([s.method for s in scores], family)
    return None if baseline is None else baseline.name


def _pooled(scores: Sequence[Scores], compared: Compared, family: Family) -> ResultTable:
    """Return every metric of each method, the differences to the plain model, and null rivals."""
    first = scores[0]
    rows = [
        (text_cell(name), *difference_cells(name, first, compared)) for name in method_names(scores)
    ]
    rivals = null_rivals(first)
    rules = {len(rows)} if rivals else set()
    rows += [(text_cell(name), *rival_cells(first, rival)) for name, rival in rivals.items()]
    to = f"to {compared.known[0].comparison.reference}" if compared.known else ""
    if _baseline(scores, family) is None:
        to = "to the best by each metric (the family's plain model was not run)"
    looks_at_none = (
        "The last rows are null rivals, which do not look at single instances. They are means over "
        "the runs, without intervals, and do not take part in the comparison of methods."
    )
    return ResultTable(
        name=f"pooled_{family}_{key(first.data)}",
        title=f"{first.data} ({first.task.name}): {titles_of(first)}, with 95 % intervals",
        columns=(METHOD, *difference_columns(first)),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=(
            metadata(scores),
            *rule_notes(first, compared, to=to, over="over the rows"),
            *folds_notes(first, compared),
            *verdicts(first, compared),
            *([looks_at_none] if rivals else []),
        ),
    )
