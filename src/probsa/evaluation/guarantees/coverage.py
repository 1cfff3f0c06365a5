"""Conformal prediction sets of classes and intervals of numbers, at a stated coverage."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ...core import seed_of
from ...errors import InputError, UnmetGuarantee
from ...statistics import (
    ConformalIntervals,
    ConformalSets,
    aps_scores,
    coverage_band,
    coverage_band_in_test,
    lac_scores,
    least_groups,
    smallest_alpha,
)
from ..context import Context
from .base import Guarantee, GuaranteeOptions, Means, SetScore, shares


def prediction_sets(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Return sets of classes that contain the class of a bag.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    assert options.coverage is not None
    y, groups, names = calibration.y, np.array(calibration.groups), bags.predictions.class_names
    parts = {f" of class {n}": groups[y == c] for c, n in enumerate(names)}
    for part, found in parts.items() if options.per_class else [("", groups)]:
        check_groups(len(set(found)), coverage=options.coverage, what=f"calibration bags{part}")
    rule = ConformalSets.calibrated(
        _set_scores(calibration, options.score),
        y,
        groups=calibration.groups,
        alpha=1 - options.coverage,
        per_class=options.per_class,
    )
    counts = dict(zip(names if rule.per_class else ("all",), rule.groups, strict=False))
    kind = "per class" if rule.per_class else "over all classes"
    first = f"prediction sets ({options.score}) at a coverage of {options.coverage:.3g} {kind}"
    bands, in_test, lines = _bands(counts, bags, coverage=options.coverage)
    scores = _set_scores(bags, options.score)
    inside, p_values = rule.sets(scores), zip(names, rule.p_values(scores).T, strict=True)
    size = inside.sum(1)
    sizes = dict(enumerate(np.bincount(size, minlength=len(names) + 1).tolist()))

    def means() -> Means:
        covered, share = np.take_along_axis(inside, bags.y[:, None], axis=1)[:, 0], shares(bags)
        of_class = {name: shares(bags, among=bags.y == c) for c, name in enumerate(names)}
        return {
            "coverage": (covered, share),
            "coverage_of_bags": (covered, np.ones(len(covered))),
            **{f"coverage_{name}": (covered, weight) for name, weight in of_class.items()},
            "set_size": (size, share),
            "empty_sets": (size == 0, share),
            "single_sets": (size == 1, share),
            "larger_sets": (size > 1, share),
            "error_of_single_sets": (~covered, share * (size == 1)),
        }

    return Guarantee(
        key="sets",
        values={
            "coverage": options.coverage,
            "method": options.score,
            "per_class": rule.per_class,
            "thresholds": dict(zip(names, rule.thresholds.tolist(), strict=True)),
            "calibration_groups": counts,
            "bands": bands,
            "bands_of_this_test": in_test,
        },
        lines=[first, *lines, f"  sets: {', '.join(f'{n} of size {k}' for k, n in sizes.items())}"],
        columns={
            "set": ["|".join(np.array(names)[row]) for row in inside],
            **{f"p_value_{name}": [f"{v:.6g}" for v in column] for name, column in p_values},
        },
        summary={"sizes": sizes},
        means=means,
    )


def intervals(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Return intervals around the predicted mean that contain the number of a bag.

    Raises:
        InputError: coverage within each class is requested.
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    assert options.coverage is not None
    if options.per_class:
        task = bags.task.name
        raise InputError(f"--per-class is for classes, and the task is {task}: leave it out")
    adapts = options.score == "aps"
    check_groups(len(set(calibration.groups)), coverage=options.coverage)
    rule = ConformalIntervals.calibrated(
        calibration.targets[:, 0],
        calibration.output("mean"),
        groups=calibration.groups,
        alpha=1 - options.coverage,
        spread=calibration.output("sd") if adapts else None,
    )
    spread = bags.output("sd") if adapts else None
    low, high = rule.intervals(bags.output("mean"), spread=spread).T
    unit = " predicted standard deviations" if adapts else ""
    text = f"the predicted mean ± {rule.half_width:.4g}{unit}"
    bands, in_test, lines = _bands({"all": rule.groups}, bags, coverage=options.coverage)

    def means() -> Means:
        y, share = bags.targets[:, 0], shares(bags)
        covered = (low <= y) & (y <= high)
        return {
            "coverage": (covered, share),
            "coverage_of_bags": (covered, np.ones(len(covered))),
            "width": (high - low, share),
            "below": (y < low, share),
            "above": (y > high, share),
        }

    return Guarantee(
        key="intervals",
        values={
            "coverage": options.coverage,
            "rule": text,
            "half_width": rule.half_width,
            "adapts": adapts,
            "calibration_groups": rule.groups,
            "band": bands["all"],
            "band_of_this_test": in_test.get("all"),
        },
        lines=[f"intervals at a coverage of {options.coverage:.3g}: {text}", *lines],
        columns={"low": [f"{v:.6g}" for v in low], "high": [f"{v:.6g}" for v in high]},
        summary={"limits": text, "bands": bands},
        means=means,
    )


def _set_scores(bags: Context, score: SetScore) -> Float[np.ndarray, "bags classes"]:
    """Return the nonconformity score of each class of each bag.

    The random part of `aps` depends on the name of the bag alone, so that a bag always has the same
    set.
    """
    if score == "lac":
        return lac_scores(bags.p)
    u = [np.random.default_rng(seed_of("aps", name)).random() for name in bags.names]
    return aps_scores(bags.p, u=np.array(u, dtype=np.float64))


def check_groups(count: int, *, coverage: float, what: str = "calibration bags") -> None:
    """Check that there are enough calibration groups for a coverage.

    Raises:
        UnmetGuarantee: there are fewer; says how many are needed, and which level is possible.
    """
    least = least_groups(1 - coverage)
    if count < least:
        possible = f", or give --coverage {1 - smallest_alpha(count):.3g}" if count else ""
        raise UnmetGuarantee(
            f"--coverage {coverage:g} needs {what} of at least {least} groups (patients), but "
            f"there are {count}: add calibration bags{possible}"
        )


Bands = dict[str, tuple[float, float]]


def _bands(
    groups: Mapping[str, int], bags: Context, *, coverage: float
) -> tuple[Bands, Bands, list[str]]:
    """Return where the realised coverage lies for 9 of 10 calibration sets of this size.

    It is given for each part of `groups`, the calibration groups of all bags or by class. The
    second value is the same for the coverage of as many groups as are evaluated, which is wider,
    and not known for new bags; the third has both as sentences.
    """
    names, bands, in_test, lines = bags.predictions.class_names, {}, {}, []
    for part, count in groups.items():
        low, high = bands[part] = coverage_band(count, alpha=1 - coverage)
        of_class, test = "" if part == "all" else f" of class {part}", ""
        if bags.part != "new":
            among = None if part == "all" else bags.y == names.index(part)
            tested = max(1, round(shares(bags, among=among).sum()))
            near, far = coverage_band_in_test(count, test_groups=tested, alpha=1 - coverage)
            in_test[part] = near, far
            test = f", and between {near:.3f} and {far:.3f} in a test of this size"
        lines.append(
            f"  {count} calibration groups{of_class}: the realised coverage is between {low:.3f} "
            f"and {high:.3f} for 9 of 10 calibration sets of this size{test}"
        )
    return bands, in_test, lines
