"""Conformal prediction sets of bags: which classes a bag may have, at a stated coverage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..core import seed_of
from ..statistics import (
    ConformalSets,
    Metric,
    aps_scores,
    coverage_band,
    coverage_band_in_test,
    lac_scores,
)
from .evaluated import Evaluated
from .group_means import group_mean, rate_among
from .guarantee_options import GuaranteeOptions, SetScore
from .truth import class_names
from .unmet_guarantees import check_groups


def set_scores(
    evaluated: Evaluated, rows: Sequence[int], *, score: SetScore
) -> Float[np.ndarray, "bags classes"]:
    """Return the nonconformity score of each class of each bag.

    The random part of `aps` depends on the name of the bag alone, so that a bag always has the same
    set.
    """
    p = evaluated.p(rows)
    if score == "lac":
        return lac_scores(p)
    names = [evaluated.predictions.bags[i] for i in rows]
    u = [np.random.default_rng(seed_of("aps", name)).random() for name in names]
    return aps_scores(p, u=np.array(u, dtype=np.float64))


def requested_sets(
    calibration: Evaluated, options: GuaranteeOptions, *, coverage: float
) -> ConformalSets:
    """Return the sets that the calibration bags give.

    Raises:
        UnmetGuarantee: there are too few groups for the coverage; says how many are needed.
    """
    rows = calibration.rows
    y, groups = calibration.y(rows).tolist(), calibration.groups(rows)
    if options.per_class:
        for c, name in enumerate(class_names(calibration.predictions)):
            count = len({g for g, label in zip(groups, y, strict=True) if label == c})
            what = f"calibration bags of class {name}"
            check_groups(count, coverage=coverage, what=what)
    else:
        check_groups(len(set(groups)), coverage=coverage)
    return ConformalSets.calibrated(
        set_scores(calibration, rows, score=options.score),
        calibration.y(rows),
        groups=calibration.groups(rows),
        alpha=1 - coverage,
        per_class=options.per_class,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SetsReport:
    """Prediction sets of the evaluated bags: what is promised, and what happened."""

    coverage: float
    """The level that was requested."""
    score: SetScore
    per_class: bool
    thresholds: dict[str, float]
    """The largest score of a class that is in a set."""
    groups: dict[str, int]
    """Number of calibration groups; by class with `per_class`, otherwise under `all`."""
    bands: dict[str, tuple[float, float]]
    """Where the realised coverage lies for 9 of 10 calibration sets of this size."""
    test_bands: dict[str, tuple[float, float]]
    """The same for the coverage of as many groups as are evaluated, which is wider."""
    metrics: dict[str, Metric]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "coverage": self.coverage,
            "method": self.score,
            "per_class": self.per_class,
            "thresholds": self.thresholds,
            "calibration_groups": self.groups,
            "bands": {k: list(v) for k, v in self.bands.items()},
            "bands_of_this_test": {k: list(v) for k, v in self.test_bands.items()},
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
        }

    def lines(self) -> list[str]:
        """Return the report as sentences."""
        kind = "per class" if self.per_class else "over all classes"
        lines = [f"prediction sets ({self.score}) at a coverage of {self.coverage:.3g} {kind}"]
        for name, (low, high) in self.bands.items():
            of_class = "" if name == "all" else f" of class {name}"
            near, far = self.test_bands[name]
            lines.append(
                f"  {self.groups[name]} calibration groups{of_class}: the realised coverage is "
                f"between {low:.3f} and {high:.3f} for 9 of 10 calibration sets of this size, and "
                f"between {near:.3f} and {far:.3f} in a test of this size"
            )
        return lines


def sets_report(
    evaluated: Evaluated, sets: ConformalSets, *, coverage: float, score: SetScore
) -> SetsReport:
    """Compare the sets of the evaluated bags with their labels."""
    y, groups = evaluated.y(evaluated.rows), evaluated.groups(evaluated.rows)
    inside = sets.sets(set_scores(evaluated, evaluated.rows, score=score))
    names = class_names(evaluated.predictions)
    parts: dict[str, Bool[np.ndarray, " bags"]] = {"all": np.ones(len(y), dtype=bool)}
    if sets.per_class:
        parts = {name: y == c for c, name in enumerate(names)}
    calibration = {name: sets.groups[c] for c, name in enumerate(parts)}
    tested = {k: len({groups[i] for i in np.flatnonzero(v)}) for k, v in parts.items()}
    return SetsReport(
        coverage=coverage,
        score=score,
        per_class=sets.per_class,
        thresholds=dict(zip(names, sets.thresholds.tolist(), strict=True)),
        groups=calibration,
        bands={k: coverage_band(n, alpha=sets.alpha) for k, n in calibration.items()},
        test_bands={
            k: coverage_band_in_test(n, test_groups=max(tested[k], 1), alpha=sets.alpha)
            for k, n in calibration.items()
        },
        metrics=_metrics(evaluated, inside),
    )


def _metrics(evaluated: Evaluated, inside: Bool[np.ndarray, "bags classes"]) -> dict[str, Metric]:
    y = evaluated.y(evaluated.rows)
    size = inside.sum(1)
    covered = np.take_along_axis(inside, y[:, None], axis=1)[:, 0]
    names = class_names(evaluated.predictions)
    return {
        "coverage": group_mean(evaluated, covered),
        "coverage_of_bags": group_mean(evaluated, covered, weighted=False),
        **{
            f"coverage_{name}": group_mean(evaluated, covered, among=y == c)
            for c, name in enumerate(names)
        },
        "set_size": group_mean(evaluated, size.astype(np.float64)),
        "empty_sets": group_mean(evaluated, size == 0),
        "single_sets": group_mean(evaluated, size == 1),
        "larger_sets": group_mean(evaluated, size > 1),
        "error_of_single_sets": rate_among(evaluated, ~covered, size == 1),
    }
