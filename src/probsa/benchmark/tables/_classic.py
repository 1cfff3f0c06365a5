"""Classic tests of AUROC, as notes below a table; they do not decide winners.

DeLong's test treats the runs as fixed, and Nadeau and Bengio's treats folds as the only source of
chance; winners are decided by `pooled`, which covers both patients and replicates.
"""

from collections.abc import Mapping, Sequence

from ...statistics import corrected_t, delong, holm
from ..results.means import split_values
from ..results.pooled import Compared
from ..results.results import Scores
from ._shared import find


def classic_tests(scores: Sequence[Scores], compared: Compared) -> list[str]:
    """Return tests against the reference method, or why a test cannot be made."""
    pooled = compared.pooled["auroc"]
    base = None if pooled is None else find(scores, pooled.comparison.reference)
    if base is None or len(scores) < 2:
        return []
    others = [s for s in scores if s is not base]
    return [_delong(base, others), *_over_folds(base, others)]


def _delong(base: Scores, others: Sequence[Scores]) -> str:
    if len(set(base.groups.tolist())) < len(base.bags):
        return "DeLong's test is omitted: it assumes independent bags, but patients have several."
    means = [s.p.mean(axis=0) for s in (base, *others)]
    delong_test = delong(base.y, means)
    p = {s.method.name: delong_test.compare(i, 0).p for i, s in enumerate(others, start=1)}
    return (
        "DeLong's test of the pooled AUROC of mean probabilities over replicates, against "
        f"{base.method.name}, Holm-adjusted p: {_named(p)}. It treats the runs as fixed."
    )


def _over_folds(base: Scores, others: Sequence[Scores]) -> list[str]:
    base_values = split_values(base, "auroc")
    if not base.folds or len(base_values) < 2:
        return []
    p = {}
    for s in others:
        values = split_values(s, "auroc")  # the same bags, hence the same folds
        test = corrected_t(
            [values[k] for k in base_values],
            list(base_values.values()),
            test_share=1 / len(base_values),
        )
        p[s.method.name] = test.p
    return [
        f"Nadeau and Bengio's corrected t over {len(base_values)} folds, against "
        f"{base.method.name}, Holm-adjusted p: {_named(p)}. With few folds its power is low."
    ]


def _named(p: Mapping[str, float | None]) -> str:
    """Return Holm-adjusted p by method; an undefined test counts as 1."""
    adjusted = holm([1.0 if one is None else one for one in p.values()])
    return ", ".join(f"{name} {one:.3g}" for name, one in zip(p, adjusted, strict=True))
