"""The flags of commands that compute guarantees from calibration bags."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from ...errors import InputError

if TYPE_CHECKING:
    from ...evaluation import GuaranteeOptions


def add_guarantee_flags(parser: ArgumentParser) -> None:
    """Add the flags of prediction sets, accepted calls and calibration bags."""
    add = parser.add_argument
    add(
        "--coverage", type=float, metavar="SHARE",
        help="Make prediction sets that contain the true class of a bag with this probability, for "
        "example 0.9. For a regression: intervals that contain the true number.",
    )  # fmt: skip
    add(
        "--max-error", type=float, metavar="RATE",
        help="Accept only calls so confident that their error rate is at most this, for example "
        "0.05.",
    )  # fmt: skip
    add(
        "--calibration", default="val", metavar="DIR",
        help="Predictions folder of other labelled bags, by the same model, from which the "
        "guarantees are computed. Default: val, the validation bags of the predictions.",
    )  # fmt: skip
    add(
        "--per-class", action="store_true",
        help="With --coverage: reach the coverage within each class.",
    )  # fmt: skip
    add(
        "--set-score", choices=("lac", "aps"), default="lac",
        help="With --coverage: lac for the smallest sets, aps for sets that adapt to how difficult "
        "a bag is. For a regression: lac for intervals of equal width, aps for intervals as wide "
        "as the predicted standard deviation suggests. Default: lac.",
    )  # fmt: skip


def guarantee_options(args: Namespace) -> "GuaranteeOptions | None":
    """Return the requested guarantees, or None if there is no flag that requests one.

    Raises:
        InputError: a flag has no effect because another one is missing.
    """
    from ...evaluation import GuaranteeOptions

    if args.coverage is None and args.max_error is None:
        flags = {"--calibration": args.calibration != "val", "--per-class": args.per_class}
        given = [flag for flag, is_given in flags.items() if is_given]
        if given:
            raise InputError(
                f"{given[0]} alone guarantees nothing: add a level, for example --coverage 0.9"
            )
        return None
    if args.per_class and args.coverage is None:
        raise InputError("--per-class needs --coverage, for example --coverage 0.9")
    return GuaranteeOptions(
        coverage=args.coverage,
        max_error=args.max_error,
        calibration=None if args.calibration == "val" else Path(args.calibration),
        per_class=args.per_class,
        score=args.set_score,
    )
