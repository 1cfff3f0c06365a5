"""The words for each kind of target: in titles, captions, tables, maps and pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import TaskName

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


WORDS: Mapping[TaskName, Words] = {
    "binary": Words(predicts="the probability of {either}"),
    "multiclass": Words(
        predicts="the probability of {either}",
        call_rule="none: the most probable class is called",
        remedy=", or merge the class with another",
    ),
    "ordinal": Words(
        predicts="the probability of the grade: one of {either}, in rising order",
        called="grade {}",
        call_rule="none: the median grade is called",
        towards=("speaks for a higher grade", "for a lower one"),
        aim="a higher grade",
        response="mean grade",
        noun="grade",
        raised="the grade",
        part="grade and above, against those below",
        page=PageWords(
            said="grade",
            call="Grade",
            call_hint="The predicted grade: the median of its distribution",
            number_hint="Probability of the predicted grade",
            column="Grade",
            unsure_hint="The grade changes within one standard deviation of its probability.",
        ),
    ),
    "multilabel": Words(
        predicts="the probability of each of the findings {names}",
        towards=("speaks for the finding", "against it"),
        aim="the finding",
        noun="finding",
        raised="the logit of the finding",
        part="finding",
        remedy=", or leave the finding out of the target",
        page=PageWords(
            said="findings",
            measure="largest p",
            call="Found",
            call_hint="The findings that are predicted to be present",
            number_hint="Probability of the most probable finding",
            spread_hint="Standard deviation of this probability over posterior samples and members",
            column="Finding",
            wrong_hint="A known finding is called although it is absent, or the reverse.",
            unsure_hint="The call of a finding changes within one standard deviation.",
        ),
    ),
    "regression": Words(
        predicts="a number{of}, with its distribution ({outputs}: mean, standard deviation and "
        "quantiles)",
        towards=("raises the value", "lowers it"),
        aim="a higher value",
        response="predicted value",
        noun="value",
        raised="the value",
        evidence_unit="sd of the target",
        part="interval",
        page=PageWords(
            said="90 % interval",
            measure="mean",
            call="90 %",
            call_hint="The predicted 90 % interval, in the unit of the target",
            number="Mean",
            number_hint="The predicted mean, in the unit of the target",
            spread_hint="The whole standard deviation, of noise and attention, in the same unit",
            wrong="outside",
            wrong_hint="The true value is outside the predicted 90 % interval.",
            unsure_hint="",
            column="Part",
            is_probability=False,
        ),
    ),
    "survival": Words(
        predicts="the time to an event ({outputs}: the risk, where higher is worse, and the "
        "probability of no event until each time). Nothing is predicted beyond the time {last}",
        towards=("raises the risk", "lowers it"),
        aim="a higher risk",
        response="risk",
        noun="risk",
        raised="the risk",
        part="time",
        undefined="the c-index",
        note="S(t) is the predicted probability of no event until the time t; the risk is the "
        "expected time lost to the event.",
        page=PageWords(
            measure="risk",
            call_hint="S(t): the predicted probability of no event until the time t",
            wrong="",
            number="Risk",
            number_hint="Expected time lost to the event, up to the last event of training; higher "
            "is worse",
            spread_hint="Standard deviation of the risk over samples: the doubt of the attention "
            "alone",
            unsure_hint="",
            column="Time",
            is_probability=False,
        ),
    ),
}
"""The words of each task."""


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
    least = min(p, 1 - p)
    if least < 1e-4:
        return ("0" if p == 0 else "<0.0001") if p < 0.5 else ("1" if p == 1 else ">0.9999")
    digits = min(4, max(2, 1 - math.floor(math.log10(least))))
    while digits < 4 and any(round(p, digits) == round(o, digits) and p != o for o in others):
        digits += 1
    return f"{p:.{digits}f}"


def class_name(classes: Sequence[str], k: int) -> str:
    """Return the name of a class; its number, if there are no names."""
    return classes[k] if k < len(classes) and len(classes) > 1 else str(k)


def quoted(names: Sequence[str], word: str) -> str:
    """Return names in backticks with a word before the last one, as "`a`, `b` or `c`"."""
    *others, last = [f"`{name}`" for name in names] or [""]
    return f"{', '.join(others)} {word} {last}" if others else last
