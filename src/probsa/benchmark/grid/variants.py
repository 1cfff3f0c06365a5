"""Posteriors by λ: which runs are one variant, its plain model (λ = 0), which λ stands for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...models import arguments
from ...variational import KLWeight
from ..results.paper import BASELINES
from ..results.results import Scores
from .methods_and_cells import Family, Method

CHOSEN = "cyclical if it was run, as in the paper, else linear, else the largest constant"
"""Which λ stands for a method beside others, in words."""


def chosen(scores: Sequence[Scores]) -> list[Scores]:
    """One λ of each method, the same on all data sets, by the rule that `CHOSEN` says."""
    best: dict[str, KLWeight | None] = {}
    for s in scores:
        label, own = s.method.label, s.method.kl_weight
        if label not in best or _place(own) > _place(best[label]):
            best[label] = own
    return [s for s in scores if s.method.kl_weight == best[s.method.label]]


def chosen_note(scores: Sequence[Scores]) -> str:
    """Says the rule where it chose; else nothing."""
    if len(chosen(scores)) == len(scores):
        return ""
    return f"Of methods that were run with several λ one stands here: {CHOSEN}."


def _place(kl_weight: KLWeight | None) -> tuple[int, float]:
    if isinstance(kl_weight, str):
        return (3, 0.0) if kl_weight == "cyclical" else (2, 0.0)
    return (0, 0.0) if kl_weight is None else (1, float(kl_weight))


def variants_of(scores: Sequence[Scores]) -> dict[str, list[Scores]]:
    """By label of what has a λ: its runs with each λ, on all data sets, the plain model first."""
    found: dict[str, list[Scores]] = {}
    for label in dict.fromkeys(s.method.label for s in scores if s.method.baseline is not None):
        own = [s for s in scores if s.method.label == label]
        found[label] = [*plain_of(scores, own[0].method), *own]
    return found


def plain_of(scores: Sequence[Scores], variant: Method) -> list[Scores]:
    """The plain model of a variant, on each data set; empty where it was not run.

    The one that was made for it, else one of the same arguments: that of the model's own name
    before others.
    """
    base = variant.baseline
    if base is None:
        return []
    there = [s for s in scores if s.method.model == base and s.method.kl_weight is None]
    wanted = _arguments(base, variant)
    alike = [s.method.label for s in there if _arguments(base, s.method) == wanted]
    for label in (f"{base} of {variant.label}", *sorted(alike, key=lambda name: name != base)):
        if own := [s for s in there if s.method.label == label]:
            return own
    return []


def family_baseline(methods: Sequence[Method], family: Family) -> Method | None:
    """What a family is compared to among these: its plain model, by its own name before others."""
    base = BASELINES[family]
    there = [m for m in methods if m.model == base]
    return min(there, key=lambda m: (m.label != base, bool(m.arguments)), default=None)


def _arguments(base: str, method: Method) -> Mapping[str, Any]:
    """Every argument that the plain model has: what a method gives, else the default."""
    known = arguments(base)
    given = {k: v for k, v in method.arguments.items() if k in known}
    return {k: p.default for k, p in known.items()} | given
