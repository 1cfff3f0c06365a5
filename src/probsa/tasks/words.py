"""The words of a task: in titles, captions, tables, maps and pages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST_CHANCE = 1e-4
"""Probabilities that are nearer to 0 or 1 are not written out."""
MOST_DECIMALS = 4
"""Decimals of a probability at most."""
LEAST_SPREAD = 1e-4
"""Standard deviations below this are rounding, and are not written out."""
UNSURE = "The call changes within one standard deviation of the probability."


@dataclass(frozen=True, kw_only=True, slots=True)
class PageWords:
    """Titles and explanations of the columns of the page's list of bags, and of its flags."""

    said: str = "call"
    """What stands before the prediction in the heading of a bag."""
    measure: str = "p"
    """What stands before the number in the heading of a bag."""
    call: str = "Call"
    """Title of the column of predictions."""
    call_hint: str = "The predicted class"
    number: str = "p"
    """Title of the column of numbers."""
    number_hint: str = "Probability of the last of two classes, or of the predicted one of several"
    spread_hint: str = (
        "Standard deviation of the probability over posterior samples and members. It does not "
        "span what other training bags would change"
    )
    wrong: str = "wrong"
    """Flag of a bag whose label contradicts its prediction; empty if no label can."""
    wrong_hint: str = ""
    unsure_hint: str = UNSURE
    """Explanation of the flag of an unsure bag; empty if no bag can be unsure."""
    column: str = "Class"
    """What the reader chooses where an instance has several values: `Class`, `Time`."""
    is_probability: bool = True
    """Whether the number is a probability, which is shown with a fixed number of digits."""
    up: str = ""
    """`Words.towards` of positive evidence; empty for classes, which are named instead."""
    down: str = ""
    """`Words.towards` of negative evidence; empty for classes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The words of a task.

    Many complete a sentence, which is given with the default in brackets.
    """

    predicts: str
    """What a model predicts, for its card; see `Task.predicts`."""
    called: str = "class {}"
    """A format of the called class in the text of a verdict."""
    noun: str = "class"
    """“contribution to the [class]”."""
    towards: tuple[str, str] = ("speaks for the class", "against it")
    """“Evidence …: red [speaks for the class], blue [against it]”."""
    aim: str = "the class"
    """“The probability that the instance speaks for [the class]”."""
    response: str = "probability"
    """The name of the number that `Task.response` returns."""
    raised: str = "the logit of the class"
    """“A contribution …: red raises [the logit of the class]”."""
    evidence_unit: str = "logit"
    """The unit of evidence, for colour bars."""
    part: str = "class against the others"
    """Title of the first column of a table with one row per class, finding or time."""
    undefined_metric: str = "AUROC"
    """The metric that is undefined in a part of a split that lacks a class, or events."""
    call_rule: str = ""
    """How a bag is called without a threshold."""
    note: str = ""
    """What the text of a verdict means, where it is not a probability."""
    remedy: str = ""
    """What else can be done about a test part on which the primary metric is undefined."""
    page: PageWords = PageWords()


def span_of(p: Any) -> str:
    """Return what the standard deviation of a prediction spans: samples of one model, or models.

    The samples of one model do not show how far another one, trained on the same bags, would
    differ; therefore every ± says which it is.

    Args:
        p: A prediction, with `std_between`: the part between models, None for one model.
    """
    return "one model" if p.std_between is None else "models"


def plus_minus(spread: float, *, span: str) -> str:
    """Return ` ± 0.08 (models)`, with what the standard deviation spans; nothing if it is ≈ 0."""
    return f" ± {format_number(spread, 2)} ({span})" if spread >= LEAST_SPREAD else ""


def format_number(value: float, digits: int) -> str:
    """Return a number with some significant digits, and all digits before the decimal point.

    >>> format_number(1234.5, 3), format_number(0.012345, 3)
    ('1234', '0.0123')
    """
    if abs(value) >= 10**digits - 0.5:  # where the format `g` begins to write powers of ten
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def format_probability(p: float, *others: float) -> str:
    """Return a probability with two significant digits of p or of 1 − p, whichever is nearer to 0.

    It has two to four decimals, and more of them than it needs if it would otherwise look like one
    of the others.

    >>> format_probability(0.25), format_probability(0.013), format_probability(0.9954)
    ('0.25', '0.013', '0.9954')
    """
    if p in (0, 1):
        return f"{p:.0f}"
    if p < LEAST_CHANCE:
        return f"<{LEAST_CHANCE:.4f}"
    if 1 - p < LEAST_CHANCE:
        return f">{1 - LEAST_CHANCE:.4f}"
    first_digit = -math.floor(math.log10(min(p, 1 - p)))
    decimals = min(MOST_DECIMALS, max(2, first_digit + 1))
    while decimals < MOST_DECIMALS and _looks_like_another(p, others, decimals=decimals):
        decimals += 1
    return f"{p:.{decimals}f}"


def _looks_like_another(p: float, others: Sequence[float], *, decimals: int) -> bool:
    """Return whether a different number is the same with so many decimals."""
    different = [other for other in others if other != p]
    return round(p, decimals) in [round(other, decimals) for other in different]


def class_name(classes: Sequence[str], k: int) -> str:
    """Return the name of a class; its number, if there are no names."""
    return classes[k] if k < len(classes) and len(classes) > 1 else str(k)


def quoted(names: Sequence[str], word: str) -> str:
    """Return names in backticks with a word before the last one, as "`a`, `b` or `c`"."""
    quoted_names = [f"`{name}`" for name in names]
    if len(quoted_names) < 2:
        return "".join(quoted_names)
    return f"{', '.join(quoted_names[:-1])} {word} {quoted_names[-1]}"
