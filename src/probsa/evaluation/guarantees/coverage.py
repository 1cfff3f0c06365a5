"""Conformal prediction sets of classes and intervals of numbers, at a stated coverage."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from ...core import seed_of
from ...errors import InputError, UnmetGuarantee
from ...statistics import (
    ConformalSets,
    Metric,
    aps_scores,
    conformal_half_width,
    coverage_band,
    coverage_band_in_test,
    least_groups,
    smallest_alpha,
)
from ..context import Context
from .base import Guarantee, shares, weighted_mean
from .options import GuaranteeOptions, SetScore


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
        set_scores(calibration, options.score),
        y,
        groups=calibration.groups,
        alpha=1 - options.coverage,
        per_class=options.per_class,
    )
    counts = dict(zip(names if options.per_class else ("all",), rule.groups, strict=False))
    kind = "per class" if options.per_class else "over all classes"
    first = f"prediction sets ({options.score}) at a coverage of {options.coverage:.3g} {kind}"
    bands, in_test, lines = _bands(counts, bags, coverage=options.coverage)
    scores = set_scores(bags, options.score)
    inside, p_values = rule.sets(scores), zip(names, rule.p_values(scores).T, strict=True)
    sizes = dict(enumerate(np.bincount(inside.sum(1), minlength=len(names) + 1).tolist()))
    counted = f"  sets: {', '.join(f'{n} of size {k}' for k, n in sizes.items())}"
    return Guarantee(
        key="sets",
        values={
            "coverage": options.coverage,
            "method": options.score,
            "per_class": options.per_class,
            "thresholds": dict(zip(names, rule.thresholds.tolist(), strict=True)),
            "calibration_groups": counts,
            "bands": bands,
            "bands_of_this_test": in_test,
        },
        lines=[first, *lines, counted],
        columns={
            "set": ["|".join(np.array(names)[row]) for row in inside],
            **{f"p_value_{name}": [f"{v:.6g}" for v in column] for name, column in p_values},
        },
        summary={"sizes": sizes},
        metrics=lambda: _metrics_of_sets(bags, inside),
    )


def _metrics_of_sets(bags: Context, inside: Bool[np.ndarray, "bags classes"]) -> dict[str, Metric]:
    y, size, share = bags.y, inside.sum(1), shares(bags)
    covered = np.take_along_axis(inside, y[:, None], axis=1)[:, 0]
    return {
        **_realised(bags, covered),
        **{
            f"coverage_{name}": weighted_mean(bags, covered, shares(bags, among=y == c))
            for c, name in enumerate(bags.predictions.class_names)
        },
        "set_size": weighted_mean(bags, size.astype(np.float64), share),
        "empty_sets": weighted_mean(bags, size == 0, share),
        "single_sets": weighted_mean(bags, size == 1, share),
        "larger_sets": weighted_mean(bags, size > 1, share),
        "error_of_single_sets": weighted_mean(bags, ~covered, share * (size == 1)),
    }


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
    adapts, count = options.score == "aps", len(set(calibration.groups))
    check_groups(count, coverage=options.coverage)
    known, spread = (_spread(of) if adapts else np.ones(len(of.rows)) for of in (calibration, bags))
    half_width = conformal_half_width(
        calibration.targets[:, 0],
        calibration.output("mean"),
        spread=known,
        groups=calibration.groups,
        alpha=1 - options.coverage,
    )
    low, high = bags.output("mean") + half_width * np.stack([-spread, spread])
    unit = " predicted standard deviations" if adapts else ""
    text = f"the predicted mean ± {half_width:.4g}{unit}"
    bands, in_test, lines = _bands({"all": count}, bags, coverage=options.coverage)

    def metrics() -> dict[str, Metric]:
        y, share = bags.targets[:, 0], shares(bags)
        return {
            **_realised(bags, (low <= y) & (y <= high)),
            "width": weighted_mean(bags, high - low, share),
            "below": weighted_mean(bags, y < low, share),
            "above": weighted_mean(bags, y > high, share),
        }

    return Guarantee(
        key="intervals",
        values={
            "coverage": options.coverage,
            "rule": text,
            "half_width": half_width,
            "adapts": adapts,
            "calibration_groups": count,
            "band": bands["all"],
            "band_of_this_test": in_test.get("all"),
        },
        lines=[f"intervals at a coverage of {options.coverage:.3g}: {text}", *lines],
        columns={"low": [f"{v:.6g}" for v in low], "high": [f"{v:.6g}" for v in high]},
        summary={"limits": text, "bands": bands},
        metrics=metrics,
    )


def _spread(bags: Context) -> Float[np.ndarray, " bags"]:
    spread = bags.output("sd")
    if not bool((np.isfinite(spread) & (spread > 0)).all()):
        raise InputError("predicted spreads must be above 0 and finite; some are not")
    return spread


def set_scores(bags: Context, score: SetScore) -> Float[np.ndarray, "bags classes"]:
    """Return the nonconformity score of each class of each bag.

    The random part of `aps` depends on the name of the bag alone, so that a bag always has the same
    set.
    """
    if score == "lac":
        return 1 - bags.p
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


def _realised(bags: Context, covered: Bool[np.ndarray, " bags"]) -> dict[str, Metric]:
    """Return the realised coverage: if groups count once, as promised, and if bags do."""
    return {
        "coverage": weighted_mean(bags, covered, shares(bags)),
        "coverage_of_bags": weighted_mean(bags, covered, np.ones(len(covered))),
    }
