"""Notes below a table: winners, ranks, and which differences could have been detected."""

from collections.abc import Mapping, Sequence

from ...statistics import (
    Ranks,
    critical_difference,
    detectable_sentence,
    holm,
    signed_rank,
)
from ..results.pooled import Compared, Pooled
from ..results.results import Scores
from ._shared import METRICS


def verdicts(compared: Compared) -> list[str]:
    """Return the winner by each metric, or why there is none."""
    return [_verdict(title, compared.deciding(m)) for m, title in METRICS]


def _verdict(title: str, compared: Pooled | None) -> str:
    if compared is None:
        return (
            f"{title}: no comparison: there is only one class, or no replicate that two methods "
            "share."
        )
    metric = f"{title} within folds" if compared.pooling == "within" else title
    comparison = compared.comparison
    if comparison.winner is not None:
        return f"{metric}: {comparison.winner} wins."
    return f"{metric}: no winner: {comparison.reason}."


def bold_note(below: str) -> str:
    """Return the rule for bold means."""
    return (
        "Bold: the best mean of its column, if it is also a winner. For AUROC, winners are decided "
        "within folds (if each has two patients of either class), for F1 on the calls of all folds "
        f"together. The rule is given below {below}."
    )


def rank_note(ranks: Ranks | None) -> str:
    """Return how average ranks over pairs of data set and metric are computed.

    They have no test: the metrics of a data set depend on each other.
    """
    if ranks is None:
        return "Average rank: needs two methods that have a value in every column."
    return (
        f"Average rank: over {ranks.ranks.shape[1]} (data set, metric) columns, 1 is best, ties "
        "share a rank; ± s.d. over columns (ddof = 1), as in the paper."
    )


def _rank_tests(ranks: Ranks) -> str:
    """Return the tests of Friedman and Nemenyi in words, for independent columns."""
    values = {m: (-ranks.ranks[i]).tolist() for i, m in enumerate(ranks.methods)}
    critical = critical_difference(values)
    test = critical.friedman
    friedman = (
        f"Friedman's test: {test.reason}"
        if test.p is None
        else f"Friedman's test: p = {test.p:.3g}{f' ({test.reason})' if test.reason else ''}"
    )
    nemenyi = (
        critical.reason
        or f"ranks further apart than {critical.difference:.2f} differ (Nemenyi, 0.05)"
    )
    return f"{friedman}; {nemenyi}"


def primary_rank_note(ranks: Ranks | None) -> str:
    """Return how ranks over data sets of several tasks are computed, and their tests.

    Wilcoxon's test is left out: it compares the sizes of differences, which are in several units.
    """
    if ranks is None:
        return "Average rank: needs two methods that have a value on every data set."
    n = ranks.ranks.shape[1]
    return (
        f"Average rank: over {n} data set{'' if n == 1 else 's'}, each by its primary metric; 1 is "
        f"best, ties share a rank; ± s.d. over data sets (ddof = 1). {_rank_tests(ranks)}."
    )


def pairs_note(values: Mapping[str, Sequence[float]], baseline: str | None) -> list[str]:
    """Return Wilcoxon's test of each method against the baseline, over the same columns."""
    others = {m: v for m, v in values.items() if m != baseline}
    if baseline is None or baseline not in values or not others:
        return []
    tests = {m: signed_rank(v, values[baseline]) for m, v in others.items()}
    n = len(values[baseline])
    if 2.0 ** (1 - n) > 0.05:
        return [
            f"Wilcoxon's test against {baseline}: omitted, since with {n} column"
            f"{'' if n == 1 else 's'} p cannot be below {2.0 ** (1 - n):.3g}."
        ]
    adjusted = holm([1.0 if t.p is None else t.p for t in tests.values()])
    named = ", ".join(f"{m} {p:.3g}" for m, p in zip(tests, adjusted, strict=True))
    return [
        f"Wilcoxon's test against {baseline} over {n} columns, Holm-adjusted p: {named}. AUROC and "
        "F1 of one data set are not independent, so this test is lenient."
    ]


def detectable(compared: Compared) -> list[str]:
    """Return the smallest detectable difference of each metric that decides winners."""
    deciding = [compared.deciding(m) for m, _ in METRICS]
    return [
        detectable_sentence(
            p.comparison,
            within=p.pooling == "within",
            replicates=[n for n in p.replicates.values() if n],
        )
        for p in deciding
        if p is not None
    ]


def replicates_note(compared: Compared) -> list[str]:
    """Return which replicates differences and winners use, if methods do not share all of them."""
    p = compared.pooled["auroc"]
    if p is None or not p.lacking:
        return []
    shared = ", ".join(f"{name} {n}" for name, n in p.replicates.items())
    n = p.comparison.replicates
    winner = (
        f"the winner is determined over the {n} that all methods have"
        if n
        else "no replicate is common to all, so there is no winner"
    )
    return [
        "Not every method has every replicate: values are over all replicates of a method, Δ over "
        f"those that it shares with {p.comparison.reference} ({shared}); {winner}."
    ]


def folds_note(scores: Sequence[Scores], compared: Compared) -> list[str]:
    """Return why differences of pooled folds may deviate from those of means over folds."""
    if not scores[0].folds:
        return []
    explanation = (
        "Pooled AUROC ranks the bags of all folds together, which penalises a method whose runs "
        "give probabilities at different levels. AUROC within folds does not: its "
        "differences are those between means over folds"
    )
    if compared.within is None:
        return [
            f"{explanation}, but it needs two patients of either class in every fold. Here pooled "
            "AUROC decides the winner."
        ]
    return [f"{explanation}, and decide the winner by AUROC."]
