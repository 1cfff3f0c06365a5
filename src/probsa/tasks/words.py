"""The words of a task: in titles, captions, tables, maps and pages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST_CHANCE = 1e-4
"""Probabilities that are nearer to 0 or 1 are not written out."""
UNSURE = "The call changes within one standard deviation of the probability."


@dataclass(frozen=True, kw_only=True, slots=True)
class PageWords:
    """Titles and explanations of the columns of the page's list of bags, and of its flags."""

    said: str = "call"
    """What the heading of a bag says before the prediction, and before its number."""
    measure: str = "p"
    call: str = "Call"
    call_hint: str = "The predicted class"
    number: str = "p"
    number_hint: str = "Probability of the last of two classes, or of the predicted one of several"
    spread_hint: str = (
        "Standard deviation of the probability over posterior samples and members. It does not "
        "span what other training bags would change"
    )
    wrong: str = "wrong"
    """Empty if no label can contradict a prediction."""
    wrong_hint: str = ""
    unsure_hint: str = UNSURE
    """Empty if no bag can be unsure."""
    column: str = "Class"
    """What several columns of values are of."""
    is_probability: bool = True
    """Whether the number is one, which is shown with a fixed number of digits."""
    up: str = ""
    """What positive evidence does; empty for classes, which are named."""
    down: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The words of a task."""

    predicts: str
    """What a model predicts, for its card; see `Task.predicts`."""
    called: str = "class {}"
    """What the text of a verdict states of the called class."""
    noun: str = "class"
    """What evidence is about, and the contribution of an instance is part of."""
    towards: tuple[str, str] = ("speaks for the class", "against it")
    """What positive and negative evidence of an instance does."""
    aim: str = "the class"
    """What positive evidence speaks for."""
    response: str = "probability"
    """What `Task.response` returns."""
    raised: str = "the logit of the class"
    """What positive contributions raise."""
    evidence_unit: str = "logit"
    """The unit of evidence, for colour bars."""
    part: str = "class against the others"
    """What the metrics by part are of."""
    undefined: str = "AUROC"
    """The metric that a part without one of the needed strata leaves undefined."""
    call_rule: str = ""
    """How a bag is called without a threshold."""
    note: str = ""
    """What the text of a verdict means, where it is not a probability."""
    remedy: str = ""
    """What else can be done about a test part on which the primary metric is undefined."""
    page: PageWords = PageWords()


def span_of(p: Any) -> str:
    """Return what the standard deviation of a prediction spans.

    One model knows nothing of what another one that was trained on the same bags would predict.
    """
    return "one model" if p.std_between is None else "models"


def plus_minus(spread: float, *, span: str) -> str:
    """Return ` ± 0.08 (models)`, with what the standard deviation spans; nothing if it is ≈ 0."""
    return f" ± {spread:.2g} ({span})" if spread >= 1e-4 else ""


def of_chance(p: float, *others: float) -> str:
    """Return a probability with two significant digits of it or of 1 − p, as 0.25, 0.013 or 0.9954.

    It has more, up to four decimals, if it would otherwise look like one of the others.
    """
    if p in (0, 1):
        return f"{p:.0f}"
    if p < LEAST_CHANCE:
        return f"<{LEAST_CHANCE:.4f}"
    if 1 - p < LEAST_CHANCE:
        return f">{1 - LEAST_CHANCE:.4f}"
    digits = min(4, max(2, 1 - math.floor(math.log10(min(p, 1 - p)))))
    while digits < 4 and any(round(p, digits) == round(o, digits) and p != o for o in others):
        digits += 1
    return f"{p:.{digits}f}"


def class_name(classes: Sequence[str], k: int) -> str:
    """Return the name of a class; its number, if there are no names."""
    return classes[k] if k < len(classes) and len(classes) > 1 else str(k)


def quoted(names: Sequence[str], word: str) -> str:
    """Return names in backticks with a word before the last one, as "`a`, `b` or `c`"."""
    quoted_names = [f"`{name}`" for name in names]
    if len(quoted_names) < 2:
        return "".join(quoted_names)
    return f"{', '.join(quoted_names[:-1])} {word} {quoted_names[-1]}"
