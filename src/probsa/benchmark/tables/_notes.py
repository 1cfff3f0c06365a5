"""What stands under a table in plain words: winners, ranks, what could have been seen at all."""

from collections.abc import Mapping, Sequence

from ...statistics import Ranks, critical_difference, detectable_sentence, holm, signed_rank
from ..results.outlier_folds import odd_splits, odd_test_part
from ..results.pooled import Compared, Pooled
from ..results.results import Scores
from ._shared import METRICS


def verdicts(compared: Compared) -> list[str]:
    """Who wins by each metric, or why nobody does."""
    return [_verdict(title, compared.deciding(m)) for m, title in METRICS]


def _verdict(title: str, compared: Pooled | None) -> str:
    if compared is None:
        return (
            f"{title}: nothing can be compared: one class, or no replicate that two methods have."
        )
    what = f"{title} within folds" if compared.pooling == "within" else title
    c = compared.comparison
    if c.winner is not None:
        return f"{what}: {c.winner} wins."
    return f"{what}: no winner: {c.reason}."


def bold_note(below: str) -> str:
    """The rule of bold in tables of means."""
    return (
        "Bold: the best mean of its column, if it is a winner too: of AUROC by differences within "
        "folds (where each has two patients of either class), of F1 by the calls of all folds "
        f"together. The rule stands below {below}."
    )


def rank_note(ranks: Ranks | None) -> str:
    """How average ranks are made, and what the Friedman and Nemenyi tests say of them."""
    if ranks is None:
        return "Average rank: none with fewer than two methods that have a value in every column."
    n = ranks.ranks.shape[1]
    rule = (
        f"Average rank: over {n} (data set, metric) columns, 1 is best, ties share; ± s.d. over "
        "columns (ddof = 1), the paper's rule."
    )
    values = {m: (-ranks.ranks[i]).tolist() for i, m in enumerate(ranks.methods)}
    found = critical_difference(values)
    test = found.friedman
    friedman = (
        f"Friedman's test: {test.reason}"
        if test.p is None
        else f"Friedman's test: p = {test.p:.3g}{f' ({test.reason})' if test.reason else ''}"
    )
    nemenyi = (
        found.reason or f"ranks further apart than {found.difference:.2f} differ (Nemenyi, 0.05)"
    )
    return (
        f"{rule} {friedman}; {nemenyi}. AUROC and F1 of one data set are not independent: this is "
        "lenient."
    )


def pairs_note(values: Mapping[str, Sequence[float]], baseline: str | None) -> list[str]:
    """Wilcoxon's test of each method against the plain one, over the same columns."""
    others = {m: v for m, v in values.items() if m != baseline}
    if baseline is None or baseline not in values or not others:
        return []
    tests = {m: signed_rank(v, values[baseline]) for m, v in others.items()}
    n = len(values[baseline])
    if 2.0 ** (1 - n) > 0.05:
        return [
            f"Wilcoxon's test against {baseline}: {n} column{'' if n == 1 else 's'} can reach no p "
            f"below {2.0 ** (1 - n):.3g}, so it can say nothing here."
        ]
    adjusted = holm([1.0 if t.p is None else t.p for t in tests.values()])
    named = ", ".join(f"{m} {p:.3g}" for m, p in zip(tests, adjusted, strict=True))
    return [f"Wilcoxon's test against {baseline} over {n} columns, Holm-adjusted p: {named}."]


def detectable(compared: Compared) -> list[str]:
    """The smallest difference, of the kind that winners are told by, that could have been seen."""
    found = [compared.deciding(m) for m, _ in METRICS]
    return [
        detectable_sentence(
            p.comparison,
            within=p.pooling == "within",
            replicates=[n for n in p.replicates.values() if n],
        )
        for p in found
        if p is not None
    ]


def oddities(scores: Sequence[Scores]) -> list[str]:
    """Folds, or the test part, that stand out by all methods of one data set."""
    part = odd_test_part(scores)
    folds = [f"Odd: fold {k}: {why}." for k, why in odd_splits(scores).items()]
    return folds + ([] if part is None else [f"Odd: the test part: {part}."])


def replicates_note(compared: Compared) -> list[str]:
    """What differences and the winner are over where methods have other replicates."""
    p = compared.pooled["auroc"]
    if p is None or not p.lacking:
        return []
    shared = ", ".join(f"{name} {n}" for name, n in p.replicates.items())
    n = p.comparison.replicates
    winner = (
        f"a winner is sought over the {n} that all of them have"
        if n
        else "no replicate is in all of them, so there is no winner"
    )
    return [
        "Not every method has every replicate: values are over a method's own, Δ over those that "
        f"it has in common with {p.comparison.reference} ({shared}); {winner}."
    ]


def folds_note(scores: Sequence[Scores], compared: Compared) -> list[str]:
    """Why differences of folds that are pooled may be others than those of the means over folds."""
    if not scores[0].folds:
        return []
    said = (
        "Pooled AUROC ranks the bags of all folds together: a method whose runs give "
        "probabilities at different levels pays for it. Within folds it does not: that is the "
        "difference between means over folds"
    )
    if compared.within is None:
        return [
            f"{said}, which needs two patients of either class in every fold: here a winner is "
            "told by the pooled one."
        ]
    return [f"{said}, and what a winner by AUROC is told by."]
