"""Stage 5: what was read from a label table, in one sentence for the user."""

import math

from ..core import counted
from .labels import LabelTable


def describe(table: LabelTable) -> str:
    """Say in one sentence what was taken from a table as the target.

    It names the task and the columns; the classes with their numbers of bags, the number of events
    or the range of values; and the share of bags or cells without a label.
    """
    known = [v for v in table.values if v is not None]
    columns = ("column " if len(table.target) == 1 else "columns ") + ", ".join(
        repr(c) for c in table.target
    )
    start = f"The task is {table.task}, from the {columns} of {table.where}"
    total = counted(len(table.bags), "bag")
    unlabelled = len(table.bags) - len(known)
    missing = f"{unlabelled / len(table.bags):.0%} of them without a label" if unlabelled else (
        "all labelled"
    )  # fmt: skip
    return f"{start}: {_content(table, known)}; {total}, {missing}."


def _content(table: LabelTable, known: list[tuple[float, ...]]) -> str:
    if not known:
        return "no label is given"
    if table.task == "survival":
        events = int(sum(event for _, event in known))
        times = [time for time, _ in known]
        return (
            f"{counted(events, 'event')} and {len(known) - events:,} censored, times from "
            f"{min(times):g} to {max(times):g}"
        )
    if table.task == "regression":
        numbers = [value for (value,) in known]
        return f"values from {min(numbers):g} to {max(numbers):g}"
    if table.task == "multilabel":
        positive = [sum(v[k] == 1 for v in known) for k in range(len(table.classes))]
        findings = ", ".join(
            f"{name} ({n:,} positive)" for name, n in zip(table.classes, positive, strict=True)
        )
        cells = len(known) * len(table.classes)
        unknown = sum(math.isnan(x) for v in known for x in v)
        return f"the findings {findings}, {unknown / cells:.0%} of their cells not known"
    counts = [sum(y == k for y in table.labels) for k in range(len(table.classes))]
    order = "grades in order" if table.task == "ordinal" else "classes"
    return f"the {order} " + ", ".join(
        f"{name} ({n:,})" for name, n in zip(table.classes, counts, strict=True)
    )
