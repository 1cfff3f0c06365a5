"""The labels and groups that predictions are evaluated against."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..datasets import patient_table, read_table
from ..errors import InputError
from ..tasks import TargetOptions
from .tables import Predictions

SHOWN = 5
"""Number of names listed in texts; JSON reports have all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """Labels and groups by bag, and warnings about them."""

    label: dict[str, int]
    group: dict[str, str]
    """Groups (patients); a bag that is missing is its own group."""
    warnings: tuple[str, ...] = ()


def read_truth(
    predictions: Predictions, path: Path | None, *, classes: Sequence[str] | None
) -> Truth:
    """Read the labels of a table, or those stored with the predictions.

    Args:
        predictions: the predictions.
        path: table `bag,label[,group]`; None for the stored labels, without groups.
        classes: names of the classes in the order of their index, if the labels are names.

    Raises:
        InputError: a label is not one of the classes of the model.
        TableError: the table cannot be used.
    """
    stored = {
        b: y for b, y in zip(predictions.bags, predictions.labels, strict=True) if y is not None
    }
    if path is None:
        return _checked(stored, predictions, group={}, where="predictions.csv", warnings=())
    names = class_names(predictions)
    if names != tuple(str(i) for i in range(len(names))):
        if classes is not None and tuple(classes) != names:
            raise InputError(
                f"the classes are {', '.join(classes)}, but those of the model of "
                f"{predictions.folder} are {', '.join(names)}, in this order: leave classes out"
            )
        classes = names
    elif classes is not None and len(classes) != len(names):
        raise InputError(
            f"{len(classes)} classes are named ({', '.join(classes)}), but the model of "
            f"{predictions.folder} has {len(names)}: name each, in the order of their indices"
        )
    columns = predictions.metadata.get("target")
    options = TargetOptions(
        task="auto" if predictions.of_task.unordered_classes else predictions.task,
        target=None if columns is None else tuple(columns),
    )
    table = read_table(
        path,
        classes=classes,
        labels_required=False,
        target=options,
        covariates=predictions.metadata.get("covariates", ()),
    )
    if predictions.metadata.get("unit") == "patient":
        table = patient_table(table)
    given = {b: y for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    group = dict(zip(table.bags, table.groups, strict=True)) if table.groups is not None else {}
    changed = [b for b, y in stored.items() if b in given and given[b] != y]
    warnings = ()
    if changed:
        warnings = (f"{path} replaces different labels in predictions.csv for {listed(changed)}",)
    return _checked(given, predictions, group=group, where=str(path), warnings=warnings)


def _checked(
    label: dict[str, int],
    predictions: Predictions,
    *,
    group: dict[str, str],
    where: str,
    warnings: tuple[str, ...],
) -> Truth:
    top = len(class_names(predictions)) - 1
    too_high = [b for b in predictions.bags if label.get(b, 0) > top]
    if too_high:
        bag = too_high[0]
        raise InputError(
            f"{where} gives bag {bag!r} class {label[bag]}, but the model of {predictions.folder} "
            f"has classes 0 to {top}"
        )
    return Truth(label=label, group=group, warnings=warnings)


def class_names(predictions: Predictions) -> tuple[str, ...]:
    """Return one name per class; a single logit has two classes."""
    if predictions.probability.shape[1] > 1 or len(predictions.classes) == 2:
        return predictions.classes
    positive = predictions.classes[-1]
    return ("0", "1") if positive == "1" else (f"not {positive}", positive)


def listed(names: Sequence[str]) -> str:
    """Return the number of bags and the names of the first ones."""
    shown = ", ".join(repr(n) for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} bag{'' if len(names) == 1 else 's'} ({shown}{more})"
