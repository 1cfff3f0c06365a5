"""Classic tests of AUROC, in words below a table: no winner is told by them.

DeLong's takes the runs as they are, and Nadeau and Bengio's takes folds for the only chance there
is; what winners are told by (`pooled`) has both patients and replicates in it.
"""

from collections.abc import Mapping, Sequence

from ...statistics import corrected_t, delong, holm
from ..results.means import split_values
from ..results.pooled import Compared
from ..results.results import Scores
from ._shared import find


def classic_tests(scores: Sequence[Scores], compared: Compared) -> list[str]:
    """Against the method that differences are to; a test that cannot be made says why."""
    pooled = compared.pooled["auroc"]
    base = None if pooled is None else find(scores, pooled.comparison.reference)
    if base is None or len(scores) < 2:
        return []
    others = [s for s in scores if s is not base]
    return [_delong(base, others), *_over_folds(base, others)]


def _delong(base: Scores, others: Sequence[Scores]) -> str:
    if len(set(base.groups.tolist())) < len(base.bags):
        return (
            "DeLong's test takes bags as independent: it is not made where a patient has several."
        )
    means = [s.p.mean(axis=0) for s in (base, *others)]
    found = delong(base.y, means)
    p = {s.method.name: found.compare(i, 0).p for i, s in enumerate(others, start=1)}
    return (
        "DeLong's test of the pooled AUROC of mean probabilities over replicates, against "
        f"{base.method.name}, Holm-adjusted p: {_named(p)}. It takes the runs as given."
    )


def _over_folds(base: Scores, others: Sequence[Scores]) -> list[str]:
    own = split_values(base, "auroc")
    if not base.folds or len(own) < 2:
        return []
    p = {}
    for s in others:
        theirs = split_values(s, "auroc")  # of the same bags, and so of the same folds
        test = corrected_t([theirs[k] for k in own], list(own.values()), test_share=1 / len(own))
        p[s.method.name] = test.p
    return [
        f"Nadeau and Bengio's corrected t over {len(own)} folds, the same: {_named(p)}. Few folds "
        "seldom tell anything."
    ]


def _named(p: Mapping[str, float | None]) -> str:
    """Holm's p, by method; a test that says nothing counts as 1."""
    adjusted = holm([1.0 if one is None else one for one in p.values()])
    return ", ".join(f"{name} {one:.3g}" for name, one in zip(p, adjusted, strict=True))
