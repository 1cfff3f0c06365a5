"""Stage 10: the words of the page for what is predicted, by task."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..core import TaskName
from ..evaluation import TOWARDS, Predictions, middle_time

UNSURE = "The call changes within one standard deviation of the probability."


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Titles and explanations of the columns of the list, and of what flags mean."""

    said: str = "call"
    """What the heading of a bag says before the prediction, and before its number."""
    measure: str = "p"
    call: str = "Call"
    call_hint: str = "The predicted class"
    number: str = "p"
    number_hint: str = "Probability of the last of two classes, or of the predicted one of several"
    spread_hint: str = "Standard deviation of the probability: the model’s doubt about the bag"
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


CLASSES = Words()
BY_TASK: dict[TaskName, Words] = {
    "ordinal": Words(
        said="grade",
        call="Grade",
        call_hint="The predicted grade: the median of its distribution",
        number_hint="Probability of the predicted grade",
        column="Grade",
        unsure_hint="The grade changes within one standard deviation of its probability.",
    ),
    "multilabel": Words(
        said="findings",
        measure="largest p",
        call="Found",
        call_hint="The findings that are predicted to be present",
        number="p",
        number_hint="Probability of the most probable finding",
        spread_hint="Standard deviation of this probability",
        column="Finding",
        wrong_hint="A known finding is called although it is absent, or the reverse.",
        unsure_hint="The call of a finding changes within one standard deviation.",
    ),
    "regression": Words(
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
    "survival": Words(
        measure="risk",
        call_hint="S(t): the predicted probability to be without the event at the time t",
        wrong="",
        number="Risk",
        number_hint="Expected time that is lost before the last training event; higher is worse",
        spread_hint="Standard deviation of the risk over samples: the doubt of the attention alone",
        unsure_hint="",
        column="Time",
        is_probability=False,
    ),
}


def words_of(table: Predictions) -> dict[str, Any]:
    """Return the words for the predictions of a folder, as the page reads them."""
    words = BY_TASK.get(table.task, CLASSES)
    target = table.metadata.get("target") or []
    if table.task == "regression" and target:
        words = replace(words, measure=str(target[0]), number_hint=f"Predicted mean of {target[0]}")
    if table.task == "survival":
        time = float(table.outputs[1 + middle_time(table.outputs)].removeprefix("s_"))
        words = replace(words, said=f"S({time:.3g})", call=f"S({time:.3g})")
    if table.task in BY_TASK:
        up, down = TOWARDS[table.task]
        words = replace(words, up=up, down=down)
    return asdict(words)
