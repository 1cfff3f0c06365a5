"""Variants of a model by λ: their runs, their plain model (λ = 0), and the λ shown for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...models import arguments as model_arguments
from ..results.method_order import BASELINES, kl_position
from ..results.scores import Scores
from .methods_and_cells import Family, Method

CHOSEN = "cyclical if it was run, as in the paper, else linear, else the largest constant"
"""The rule that chooses one λ of a method for a comparison with others."""


def chosen(scores: Sequence[Scores]) -> list[Scores]:
    """Return the scores of one λ per method, the same on all data sets, by the rule `CHOSEN`."""
    best: dict[str, Method] = {}
    for s in scores:
        rival = best.setdefault(s.method.label, s.method)
        if kl_position(s.method.kl_weight) > kl_position(rival.kl_weight):
            best[s.method.label] = s.method
    return [s for s in scores if s.method.kl_weight == best[s.method.label].kl_weight]


def chosen_note(scores: Sequence[Scores]) -> str:
    """Return a note that states the rule if it left out any λ, else an empty text."""
    if len(chosen(scores)) == len(scores):
        return ""
    return f"Methods that were run with several λ are shown with one: {CHOSEN}."


def variants_of(scores: Sequence[Scores]) -> dict[str, list[Scores]]:
    """Map the label of each method with a λ to the scores of its plain model and its own."""
    variants: dict[str, list[Scores]] = {}
    for label in dict.fromkeys(s.method.label for s in scores if s.method.baseline is not None):
        same_label = [s for s in scores if s.method.label == label]
        variants[label] = [*plain_of(scores, same_label[0].method), *same_label]
    return variants


def plain_of(scores: Sequence[Scores], variant: Method) -> list[Scores]:
    """Return the scores of a variant's plain model on each data set; empty if it was not run.

    This is the one created for the variant, else one with the same arguments, preferably labelled
    with the model's own name.
    """
    base = variant.baseline
    if base is None:
        return []
    plain = [s for s in scores if s.method.model == base and s.method.kl_weight is None]
    arguments = _arguments(base, variant)
    equal = [s.method.label for s in plain if _arguments(base, s.method) == arguments]
    equal.sort(key=lambda label: label != base)
    for label in (f"{base} of {variant.label}", *equal):
        same_label = [s for s in plain if s.method.label == label]
        if same_label:
            return same_label
    return []


def family_baseline(methods: Sequence[Method], family: Family) -> Method | None:
    """Return the baseline of a family among these, preferably labelled with the model's name."""
    base = BASELINES[family]
    plain = [m for m in methods if m.model == base]
    return min(plain, key=lambda m: (m.label != base, bool(m.arguments)), default=None)


def _arguments(base: str, method: Method) -> Mapping[str, Any]:
    """Return the method's values for the arguments of the plain model, or their defaults."""
    defaults = {name: p.default for name, p in model_arguments(base).items()}
    return {name: method.arguments.get(name, default) for name, default in defaults.items()}
