"""A threshold of the instance score that bounds the expected share of missed positive instances.

Conformal risk control (Angelopoulos et al., ICLR 2024) with groups (patients) as units; it needs
instance labels of calibration bags.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import UnmetGuarantee
from ..statistics import Metric, group_shares, risk_threshold
from .evaluated import Evaluated
from .group_means import share_ratio
from .pools import Pool, labelled, score_kind_of
from .prediction import Prediction
from .unmet_guarantees import check_groups


@dataclass(frozen=True, kw_only=True, slots=True)
class MissedReport:
    """Instances flagged at the threshold: what is promised, and what happened."""

    max_missed: float
    threshold: float
    """Instances with at least this evidence (score, for relevance) are flagged."""
    bags: int
    groups: int
    """Calibration bags with positive instances, and their groups."""
    metrics: dict[str, Metric]
    """`missed` share of positive instances; `flagged_<positive|negative>_bags`, the flagged shares
    of bags with and without positive instances."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "max_missed": self.max_missed,
            "threshold": self.threshold,
            "calibration_bags": self.bags,
            "calibration_groups": self.groups,
            "flagged_by_a_random_map": 1 - self.max_missed,
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
        }

    def lines(self) -> list[str]:
        """Return the report as sentences."""
        return [
            f"missed instances: at most {self.max_missed:.3g} of a bag's positive instances on "
            f"average, if those with evidence of at least {self.threshold:.4g} are flagged",
            f"  calibrated with {self.bags} bags of {self.groups} groups; a random map would have "
            f"to flag {1 - self.max_missed:.3g} of all instances",
        ]


def missed_report(
    evaluated: Evaluated, calibration: Evaluated, *, max_missed: float
) -> MissedReport:
    """Choose the threshold on the calibration bags, and apply it to the evaluated bags.

    The loss of a bag is the share of its positive instances below the threshold; bags count
    equally in their group, and groups equally.

    Raises:
        UnmetGuarantee: no calibration bag has positive instance labels, or there are too few groups
            of such bags.
        InputError: the two sides have different kinds of scores.
    """
    known = labelled(list(calibration.instances(calibration.rows)))
    known = [p for p in known if p.instance_labels is not None and (p.instance_labels > 0).any()]
    if not known:
        raise UnmetGuarantee(
            f"--max-missed {max_missed:g} needs calibration bags with labels of positive "
            f"instances, and none of the {len(calibration.rows)} calibration bags has any"
        )
    tested = labelled(list(evaluated.instances(evaluated.rows)))
    score_kind_of([*known, *tested])
    rows = dict(zip(calibration.names, calibration.rows, strict=True))
    groups = calibration.groups([rows[p.name] for p in known])
    count = len(set(groups))
    what = "calibration bags with positive instances"
    check_groups(count, flag="--max-missed", level=max_missed, what=what)
    pool = Pool.of(known)
    share = (group_shares(groups)[0][pool.bag] * _share_in_bag(pool))[pool.y]
    threshold = -risk_threshold(-pool.decision[pool.y], share, groups=count, alpha=max_missed)
    return MissedReport(
        max_missed=max_missed,
        threshold=threshold,
        bags=len(known),
        groups=count,
        metrics=_metrics(evaluated, tested, threshold=threshold),
    )


def _share_in_bag(pool: Pool) -> Float[np.ndarray, " n"]:
    """Return 1 / number of positive instances of the bag, for positive instances."""
    positives = np.bincount(pool.bag, weights=pool.y)
    return 1 / np.maximum(positives, 1)[pool.bag]


def _metrics(
    evaluated: Evaluated, tested: list[Prediction], *, threshold: float
) -> dict[str, Metric]:
    names = ("missed", "flagged_positive_bags", "flagged_negative_bags")
    if not tested:
        return dict.fromkeys(names, Metric.undefined("no evaluated bag has instance labels"))
    pool = Pool.of(tested)
    flagged = pool.decision >= threshold
    place = {name: i for i, name in enumerate(evaluated.names)}
    bag_rows = np.array([place[p.name] for p in tested])
    n = len(tested)
    positives = np.bincount(pool.bag, weights=pool.y, minlength=n)
    sizes = np.bincount(pool.bag, minlength=n)
    caught = np.bincount(pool.bag, weights=pool.y & flagged, minlength=n)
    flags = np.bincount(pool.bag, weights=flagged, minlength=n)

    def mean(above: np.ndarray, below: np.ndarray, inside: np.ndarray) -> Metric:
        """Return the mean ratio over the bags inside, in which groups count equally."""
        rows = bag_rows[inside]
        share, _ = group_shares(evaluated.groups([evaluated.rows[i] for i in rows]))
        ratio = above[inside] / below[inside]
        return share_ratio(evaluated, ratio * share, share, rows=rows)

    has = positives > 0
    return {
        "missed": mean(positives - caught, positives, has),
        "flagged_positive_bags": mean(flags, sizes, has),
        "flagged_negative_bags": mean(flags, sizes, ~has & (sizes > 0)),
    }
