"""Stage 5: what the training part of a split must contain, so that every output is trained."""

import math
from collections.abc import Iterable, Sequence

from ..core import counted
from ..errors import TableError
from .labels import SHOWN, SPLIT_PARTS, LabelTable
from .splits import Split
from .strata import needed_strata, stratum_names


def check_training_part(table: LabelTable, split: Split) -> None:
    """Check that a model can learn every class, finding or event from the training part.

    For tasks with classes or grades, training needs bags of two or more of them, and each one of a
    validation or test bag must occur in training, since its probability would be untrained
    otherwise. For multilabel, each finding needs a bag with and
    one without it in training, and one with it in the test part if that has labels. For regression,
    the training values must differ. For survival, training needs an event; how many the model
    needs is left to its likelihood.

    Raises:
        TableError: one of these is violated; names the class or finding and the part.
    """
    rows = {p: _rows(table, getattr(split, p)) for p in SPLIT_PARTS}
    if table.task == "multilabel":
        _check_findings(table, rows["train"], rows["test"])
    elif table.task == "regression":
        values = {_value(table, r)[0] for r in rows["train"]}
        if len(values) < 2:
            shown = f"{min(values):g}" if values else "missing"
            raise TableError(
                f"{table.where}: all {len(rows['train'])} training targets "
                f"({table.target[0]!r}) are {shown} ({split.origin}): nothing can be learned from "
                "a constant. Give bags with other values, or another target"
            )
    else:
        _check_strata(table, rows, origin=split.origin)


def _rows(table: LabelTable, names: Iterable[str]) -> list[int]:
    wanted = set(names)
    return [
        r for r, b in enumerate(table.bags) if b in wanted and table.labels[r] is not None
    ]  # fmt: skip


def _value(table: LabelTable, row: int) -> tuple[float, ...]:
    value = table.values[row]
    assert value is not None
    return value


def _check_strata(table: LabelTable, rows: dict[str, list[int]], *, origin: str) -> None:
    """Check that two classes, every needed class, or an event occurs in training."""
    trained = {y for r in rows["train"] if (y := table.labels[r]) is not None}
    if table.task == "survival" and 1 not in trained:
        raise TableError(
            f"{table.where}: all {counted(len(rows['train']), 'training bag')} are censored "
            f"({origin}), so no hazard can be learned. Give bags with an event "
            f"({table.target[1]!r}), or check the column"
        )
    if table.task != "survival" and len(trained) == 1:
        (only,) = trained
        raise TableError(
            f"{table.where}: all {counted(len(rows['train']), 'training bag')} are "
            f"{stratum_names(table, trained)} ({origin}), so no difference between classes can be "
            f"learned. Give training bags of another class than {table.classes[only]!r}, or check "
            "the column of labels"
        )
    for part in ("val", "test"):
        of_class: dict[int, list[str]] = {}
        for r in rows[part]:
            label = table.labels[r]
            if label in needed_strata(table) - trained and label is not None:
                of_class.setdefault(label, []).append(table.bags[r])
        for label, bags in sorted(of_class.items()):
            shown = ", ".join(repr(b) for b in bags[:SHOWN]) + (", …" if len(bags) > SHOWN else "")
            raise TableError(
                f"{table.where}: {counted(len(bags), 'bag')} {stratum_names(table, [label])} in "
                f"{part} ({shown}), but none in training ({origin}): the probability of this class "
                "would be untrained. Put some of them into the training part, or leave them out"
            )


def _check_findings(table: LabelTable, train: Sequence[int], test: Sequence[int]) -> None:
    """Check that training has both values of each finding, and the test part a positive one."""
    for k, finding in enumerate(table.classes):
        known = [v for r in train if not math.isnan(v := _value(table, r)[k])]
        if len(set(known)) < 2:
            what = (
                "no bag where it is known" if not known else f"{len(known)} bags, all {known[0]:g}"
            )
            raise TableError(
                f"{table.where}: the finding {finding!r} has only one class in training ({what}). "
                "Give bags with and without it, or leave it out of the target"
            )
        if test and not any(_value(table, r)[k] == 1 for r in test):
            raise TableError(
                f"{table.where}: no bag of the test part has the finding {finding!r}, so it cannot "
                "be judged. Test on bags with it, or leave it out of the target"
            )
