"""The guarantees of a report, and the table of new bags that `probsa sets` writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...core import counted, write_csv
from ...errors import InputError, OutputExists, UnmetGuarantee
from ...tasks import HALF
from ..context import SEEN, Context, read_truth
from ..section import Section
from ..storage import read_predictions
from .accepted import accepted_calls
from .base import Guarantee, GuaranteeOptions, metric_line
from .calibration import calibration_bags, caution, shift_alarm
from .coverage import intervals, prediction_sets

COVERAGE = {"sets": prediction_sets, "intervals": intervals}
"""The guarantee of each `Task.coverage_by`."""
NOT_REQUESTED = {
    **dict.fromkeys(("coverage", "accepted", "max_error", "certified", "undecided")),
    "bands": {},
    "sizes": {},
}
"""Values of `probsa sets --json` without the guarantee that they belong to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested:
    """The requested guarantees of some bags, and why they may not hold."""

    bags: int
    groups: int
    """Number of calibration bags and of their groups."""
    origin: str
    """Which bags calibrate, in words."""
    guarantees: Sequence[Guarantee]
    unmet: Mapping[str, str]
    """Why others cannot be given, by their flag."""
    doubts: Mapping[str, Any]
    """The test for shift and the caution, for JSON."""
    lines: Sequence[str]
    """The same as sentences."""

    @classmethod
    def of(cls, bags: Context, options: GuaranteeOptions, *, all_or_none: bool) -> "Requested":
        """Compute the requested guarantees from calibration bags.

        Raises:
            InputError: the calibration bags cannot be used, or the task cannot have a guarantee.
            UnmetGuarantee: none can be given, or with `all_or_none` one cannot; gives every reason.
        """
        task, kinds = bags.task, {}
        if options.coverage is not None:
            if task.coverage_by is None:
                raise InputError(
                    "--coverage makes sets of classes or intervals of numbers, and the task is "
                    f"{task.name}: leave it out"
                )
            kinds["--coverage"] = COVERAGE[task.coverage_by]
        if options.max_error is not None:
            if not task.has_classes:
                raise InputError(
                    f"--max-error accepts calls of classes, and the task is {task.name}"
                )
            kinds["--max-error"] = accepted_calls
        calibration = calibration_bags(bags, options.calibration)
        found, unmet = [], {}
        for flag, calibrated in kinds.items():
            try:
                found.append(calibrated(calibration, bags, options))
            except UnmetGuarantee as error:
                unmet[flag] = str(error)
        if unmet and (all_or_none or not found):
            many = f"{len(unmet)} guarantees cannot be given: " if len(unmet) > 1 else ""
            raise UnmetGuarantee(many + "; ".join(unmet.values()))
        where = "validation bags of these predictions"
        if options.calibration is not None:
            where = f"{calibration.part} bags of {options.calibration}"
        (shift, line), why = shift_alarm(bags, calibration), caution(bags, calibration)
        return cls(
            bags=len(calibration.rows),
            groups=len(set(calibration.groups)),
            origin=f"(the {where})",
            guarantees=found,
            unmet=unmet,
            doubts={"shift": shift, "caution": why},
            lines=[line, *([f"caution: {why}"] if why else [])],
        )


def guarantees_section(context: Context, options: GuaranteeOptions | None) -> Section | None:
    """Return the requested guarantees and whether they held; None if none is requested.

    Raises:
        InputError: the calibration bags cannot be used, or the task cannot have a guarantee.
        UnmetGuarantee: none of the requests can be met; gives every reason.
    """
    if options is None:
        return None
    made = Requested.of(context, options, all_or_none=False)
    values: dict[str, Any] = {}
    text = [f"guarantees, from {made.bags} calibration bags of {made.groups} groups {made.origin}"]
    for guarantee in made.guarantees:
        metrics = guarantee.metrics(context)
        values[guarantee.key] = {**guarantee.values, "metrics": metrics}
        text += [*guarantee.lines, *(metric_line(k, m) for k, m in metrics.items())]
    unmet = tuple(made.unmet.values())
    return Section(
        key="guarantees",
        values={
            "calibration": made.origin,
            "calibration_bags": made.bags,
            "calibration_groups": made.groups,
            **values,
            **made.doubts,
            "unmet": made.unmet,
        },
        text=[*text, *made.lines, *(f"not guaranteed: {why}" for why in unmet)],
        unmet=unmet,
    )


def write_sets(
    folder: Path,
    options: GuaranteeOptions,
    *,
    out: Path,
    labels: Path | None = None,
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
    seed: int = 0,
) -> Section:
    """Write guarantees of the test and new bags of a predictions folder, without their labels.

    The table has the columns bag, set (class names joined by `|`), p_value_<class>, and with
    `options.max_error`, accepted. For numbers it has the columns bag, low and high.

    Args:
        folder: predictions folder of the new bags.
        options: the requested guarantees, and the calibration bags.
        out: the CSV table to write.
        labels: table with the labels and groups of the calibration bags; None for the labels that
            are stored with their predictions.
        classes: class names in the order of their index, if the labels of the table are names.
        overwrite: replace an existing table.
        seed: seed of the permutations of the alarm.

    Raises:
        OutputExists: the table exists and `overwrite` is not set.
        InputError: the calibration bags cannot be used, there are no new bags, or the task cannot
            have a guarantee.
        UnmetGuarantee: a request cannot be met, so that the table would lack columns; gives every
            reason.
    """
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another --out, or --overwrite")
    predictions = read_predictions(folder)
    rows = tuple(i for i, part in enumerate(predictions.parts) if part not in SEEN)
    if not rows:
        raise InputError(
            f"{folder} has only training and validation bags, for which nothing can be "
            "guaranteed: predict new bags with `probsa predict`"
        )
    threshold = HALF if predictions.threshold is None else predictions.threshold
    new = Context(
        predictions=predictions,
        truth=read_truth(predictions, labels, classes=classes),
        part="new",
        rows=rows,
        threshold=threshold if predictions.of_task.two_classes else None,
        bootstrap=0,
        seed=seed,
    )
    made = Requested.of(new, options, all_or_none=True)
    columns: dict[str, Sequence[str]] = {"bag": new.names}
    values: dict[str, Any] = dict(NOT_REQUESTED)
    for guarantee in made.guarantees:
        columns |= guarantee.columns
        values |= {k: guarantee.values[k] for k in values if k in guarantee.values}
        values |= guarantee.summary
    write_csv(out, list(columns), pd.DataFrame(columns).to_dict("records"))
    bags = counted(len(rows), "bag")
    origin = f"{counted(made.bags, 'bag')} of {counted(made.groups, 'group')} {made.origin}"
    about = {"table": str(out), "bags": len(rows), "calibration": origin}
    lines = [line for guarantee in made.guarantees for line in guarantee.lines]
    return Section(
        key="sets",
        values={**about, **values, **made.doubts},
        text=[f"{out}: {bags}, calibrated with {origin}", *lines, *made.lines],
    )
