"""Variants of posteriors: their runs by λ, their plain model (λ = 0), and the λ that represents
them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...models import arguments
from ...variational import KLWeight
from ..results.paper import BASELINES
from ..results.results import Scores
from .methods_and_cells import Family, Method

CHOSEN = "cyclical if it was run, as in the paper, else linear, else the largest constant"
"""The rule that selects the λ of a method for comparisons."""


def chosen(scores: Sequence[Scores]) -> list[Scores]:
    """Return one λ of each method, the same on all data sets, by the rule of `CHOSEN`."""
    best: dict[str, KLWeight | None] = {}
    for s in scores:
        label, kl_weight = s.method.label, s.method.kl_weight
        if label not in best or _place(kl_weight) > _place(best[label]):
            best[label] = kl_weight
    return [s for s in scores if s.method.kl_weight == best[s.method.label]]


def chosen_note(scores: Sequence[Scores]) -> str:
    """Return a note on the rule if it was applied, else an empty string."""
    if len(chosen(scores)) == len(scores):
        return ""
    return f"Methods that were run with several λ are shown with one: {CHOSEN}."


def _place(kl_weight: KLWeight | None) -> tuple[int, float]:
    if isinstance(kl_weight, str):
        return (3, 0.0) if kl_weight == "cyclical" else (2, 0.0)
    return (0, 0.0) if kl_weight is None else (1, float(kl_weight))


def variants_of(scores: Sequence[Scores]) -> dict[str, list[Scores]]:
    """Return the runs with each λ by label, on all data sets, the plain model first."""
    variants: dict[str, list[Scores]] = {}
    for label in dict.fromkeys(s.method.label for s in scores if s.method.baseline is not None):
        label_scores = [s for s in scores if s.method.label == label]
        variants[label] = [*plain_of(scores, label_scores[0].method), *label_scores]
    return variants


def plain_of(scores: Sequence[Scores], variant: Method) -> list[Scores]:
    """Return the scores of a variant's plain model on each data set; empty if it was not run.

    The plain model made for the variant comes first, then one with the same arguments, preferably
    under the model's own name.
    """
    base = variant.baseline
    if base is None:
        return []
    plain_scores = [s for s in scores if s.method.model == base and s.method.kl_weight is None]
    wanted = _arguments(base, variant)
    labels = [s.method.label for s in plain_scores if _arguments(base, s.method) == wanted]
    for label in (f"{base} of {variant.label}", *sorted(labels, key=lambda name: name != base)):
        if label_scores := [s for s in plain_scores if s.method.label == label]:
            return label_scores
    return []


def family_baseline(methods: Sequence[Method], family: Family) -> Method | None:
    """Return the family's plain model among these, preferably under its own name."""
    base = BASELINES[family]
    candidates = [m for m in methods if m.model == base]
    return min(candidates, key=lambda m: (m.label != base, bool(m.arguments)), default=None)


def _arguments(base: str, method: Method) -> Mapping[str, Any]:
    """Return every argument of the plain model: the method's value, else the default."""
    known = arguments(base)
    given = {k: v for k, v in method.arguments.items() if k in known}
    return {k: p.default for k, p in known.items()} | given
