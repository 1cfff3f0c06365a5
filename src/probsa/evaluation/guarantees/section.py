"""The guarantees of a report, and the table of new bags that `probsa sets` writes."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ...core import counted, write_csv
from ...errors import InputError, OutputExists, UnmetGuarantee
from ...tasks import HALF, TASKS
from ..context import SEEN, Context, read_truth
from ..section import Section
from ..storage import read_predictions
from .accepted import accepted_calls
from .base import Guarantee, metric_line
from .calibration import calibration_bags, caution, shift_alarm
from .coverage import intervals, prediction_sets
from .options import GuaranteeOptions

COVERAGE = {"sets": prediction_sets, "intervals": intervals}
"""The kind of guarantee of each `Task.coverage_by`."""
NOT_REQUESTED = {
    "coverage": None,
    "bands": {},
    "sizes": {},
    "accepted": None,
    "max_error": None,
    "certified": None,
    "undecided": None,
}
"""Values of `probsa sets --json` without the guarantee that they belong to."""


def guarantees_section(context: Context) -> Section | None:
    """Return the requested guarantees and whether they held; None if none is requested.

    Raises:
        InputError: the calibration bags cannot be used, or the task cannot have a guarantee.
        UnmetGuarantee: none of the requests can be met; gives every reason.
    """
    options = context.guarantees
    if options is None:
        return None
    calibration, found, unmet = requested_guarantees(context, options)
    if not found:
        raise _refusal(unmet)
    bags, groups = len(calibration.rows), len(set(calibration.groups))
    origin = _origin(calibration, options)
    shift, warnings = _shift_and_caution(context, calibration)
    metrics = {g.key: g.metrics() for g in found}
    lines = [(*g.lines, *(metric_line(k, m) for k, m in metrics[g.key].items())) for g in found]
    return Section(
        key="guarantees",
        values={
            "calibration": origin,
            "calibration_bags": bags,
            "calibration_groups": groups,
            **{g.key: {**g.values, "metrics": metrics[g.key]} for g in found},
            **shift,
            "unmet": unmet,
        },
        text=[
            f"guarantees, from {bags} calibration bags of {groups} groups {origin}",
            *chain.from_iterable(lines),
            *warnings,
            *(f"not guaranteed: {reason}" for reason in unmet.values()),
        ],
        unmet=tuple(unmet.values()),
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
        UnmetGuarantee: a request cannot be met; gives every reason. A table without a requested
            column would be mistaken for a whole one.
    """
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another --out, or --overwrite")
    new = _new_bags(folder, labels=labels, classes=classes, seed=seed)
    calibration, found, unmet = requested_guarantees(new, options)
    if unmet:
        raise _refusal(unmet)
    columns: dict[str, Sequence[str]] = {"bag": new.names}
    values: dict[str, Any] = dict(NOT_REQUESTED)
    for guarantee in found:
        columns |= guarantee.columns
        values |= {k: v for k, v in guarantee.values.items() if k in values} | guarantee.summary
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    write_csv(out, list(columns), rows)
    groups = counted(len(set(calibration.groups)), "group")
    origin = f"{counted(len(calibration.rows), 'bag')} of {groups} {_origin(calibration, options)}"
    shift, warnings = _shift_and_caution(new, calibration)
    sizes = ", ".join(f"{n} of size {k}" for k, n in values["sizes"].items())
    accepted = values["accepted"]
    return Section(
        key="sets",
        values={"table": str(out), "bags": len(rows), "calibration": origin, **values, **shift},
        text=[
            f"{out}: {counted(len(rows), 'bag')}, calibrated with {origin}",
            *(line for guarantee in found for line in guarantee.lines),
            *([f"sets: {sizes}"] if sizes else []),
            *([] if accepted is None else [f"{accepted} of {len(rows)} calls are accepted"]),
            *warnings,
        ],
    )


def requested_guarantees(
    bags: Context, options: GuaranteeOptions
) -> tuple[Context, list[Guarantee], dict[str, str]]:
    """Return the calibration bags, the guarantees, and why others cannot be given, by flag.

    Raises:
        InputError: the calibration bags cannot be used, or the task cannot have a guarantee.
    """
    made = {}
    if options.coverage is not None:
        if bags.task.coverage_by is None:
            raise InputError(
                "--coverage makes sets of classes or intervals of numbers, and the task is "
                f"{bags.task.name}: leave it out"
            )
        made["--coverage"] = COVERAGE[bags.task.coverage_by]
    if options.max_error is not None:
        if not bags.task.has_classes:
            raise InputError(f"--max-error accepts calls of classes, not of {bags.task.name}")
        made["--max-error"] = accepted_calls
    calibration = calibration_bags(bags, options.calibration)
    found: list[Guarantee] = []
    unmet: dict[str, str] = {}
    for flag, calibrated in made.items():
        try:
            found.append(calibrated(calibration, bags, options))
        except UnmetGuarantee as error:
            unmet[flag] = str(error)
    return calibration, found, unmet


def _refusal(unmet: Mapping[str, str]) -> UnmetGuarantee:
    """Return the error that states all reasons."""
    many = f"{len(unmet)} guarantees cannot be given: " if len(unmet) > 1 else ""
    return UnmetGuarantee(many + "; ".join(unmet.values()))


def _origin(calibration: Context, options: GuaranteeOptions) -> str:
    """Return which bags calibrate, in words."""
    if options.calibration is None:
        return "(the validation bags of these predictions)"
    return f"(the {calibration.part} bags of {options.calibration})"


def _shift_and_caution(bags: Context, calibration: Context) -> tuple[dict[str, Any], list[str]]:
    """Return why the promises may not hold, for JSON and as sentences."""
    (shift, line), why = shift_alarm(bags, calibration), caution(bags, calibration)
    lines = [line] if why is None else [line, f"caution: {why}"]
    return {"shift": shift, "caution": why}, lines


def _new_bags(
    folder: Path, *, labels: Path | None, classes: Sequence[str] | None, seed: int
) -> Context:
    """Return the bags of a predictions folder that the run has not seen."""
    predictions = read_predictions(folder)
    rows = tuple(i for i, part in enumerate(predictions.parts) if part not in SEEN)
    if not rows:
        raise InputError(
            f"{folder} has only training and validation bags, for which nothing can be "
            "guaranteed: predict new bags with `probsa predict`"
        )
    threshold = HALF if predictions.threshold is None else predictions.threshold
    return Context(
        predictions=predictions,
        truth=read_truth(predictions, labels, classes=classes),
        part="new",
        rows=rows,
        threshold=threshold if TASKS[predictions.task].two_classes else None,
        bootstrap=0,
        seed=seed,
    )
