"""Compare σ² and P(wrong) with null rivals, cheap scores, as detectors of wrong calls.

The null rivals are nearness of the score to the threshold, and the weight's term of the entropy.
Detectors are measured by AUROC for finding wrong calls, and by AUGRC (risk.py; lower is better).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from ..statistics import (
    Draws,
    Metric,
    augrc,
    ratio_of_sums,
)
from ..statistics import (
    auroc as auroc_of,
)
from .detector_pool import detector_pool, missing_detectors
from .metrics import NO_VARIANCE, all_same_reason
from .pools import NO_CALLS, NO_INSTANCE_LABELS, score_kind_of
from .prediction import Prediction

InstanceArea = Literal["all", "positive_bags"]
"""All labelled instances, or those of positive bags."""
ErrorDetector = Literal["variance", "doubt", "doubt_within", "doubt_between", "margin", "entropy"]
"""`doubt` is P(wrong) from the whole variance, or from its part within or between members."""
AREAS: tuple[InstanceArea, ...] = get_args(InstanceArea)
ERROR_DETECTORS: tuple[ErrorDetector, ...] = get_args(ErrorDetector)
RIVALS: tuple[ErrorDetector, ...] = ("margin", "entropy")
"""The null rivals."""

DETECTOR_TITLES = {
    "variance": "σ²",
    "doubt": "P(wrong) = Φ(−|e|/σ)",
    "doubt_within": "P(wrong) with σ within members",
    "doubt_between": "P(wrong) with σ between members",
    "margin": "−|e|",
    "entropy": "−w log w",
}
INSTANCES_OF: dict[InstanceArea, str] = {
    "all": "instances",
    "positive_bags": "instances of positive bags",
}


def error_verdict(metrics: Mapping[str, Metric], *, area: InstanceArea = "positive_bags") -> str:
    """Return one sentence that compares σ² with its best rival.

    metrics: those of `detector_samples`, and the `gain` as `error_auroc_gain_<area>`.
    """
    variance = metrics[f"error_auroc_variance_{area}"]
    difference = metrics[f"error_auroc_gain_{area}"]
    instances = INSTANCES_OF[area]
    if variance.value is None or difference.value is None:
        return f"σ² cannot be evaluated on {instances}: {difference.reason or variance.reason}."
    best = best_rival({name: m.value for name, m in metrics.items()}, area=area)
    assert best is not None
    rival = metrics[f"error_auroc_{best}_{area}"]
    values = (
        f"AUROC {variance.value:.3f} against {rival.value:.3f} of {DETECTOR_TITLES[best]}, "
        f"its best null rival, on {instances}"
    )
    if difference.low is None or difference.high is None:
        return f"No interval shows whether σ² finds wrong calls better than its rivals: {values}."
    span = f"difference {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    if difference.low > 0:
        return f"σ² finds wrong calls better than all null rivals: {values}; {span}."
    if difference.high < 0:
        return f"σ² finds wrong calls worse than the best null rival: {values}; {span}."
    return (
        f"σ² does not find wrong calls significantly better than the null rivals: {values}; {span}."
    )


def doubt_verdict(metrics: Mapping[str, Metric], *, area: InstanceArea = "positive_bags") -> str:
    """Return one sentence that says whether P(wrong) finds wrong calls better than the margin.

    metrics: those of `detector_samples`, and the `doubt_gain` as `error_auroc_doubt_gain_<area>`.
    """
    return margin_verdict(
        metrics[f"error_auroc_doubt_{area}"],
        metrics[f"error_auroc_margin_{area}"],
        metrics[f"error_auroc_doubt_gain_{area}"],
        what=INSTANCES_OF[area],
    )


def margin_verdict(doubt: Metric, margin: Metric, difference: Metric, *, what: str) -> str:
    """Return one sentence that compares P(wrong) with the margin; `what` names the items."""
    if doubt.value is None or margin.value is None or difference.value is None:
        reason = difference.reason or doubt.reason or margin.reason
        return f"P(wrong) cannot be evaluated on {what}: {reason}."
    values = f"AUROC {doubt.value:.3f} against {margin.value:.3f} on {what}"
    if difference.low is None or difference.high is None:
        return f"No interval shows whether P(wrong) beats the margin: {values}."
    span = f"difference {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    if difference.low > 0:
        return f"P(wrong) finds wrong calls better than the margin: {values}; {span}."
    if difference.high < 0:
        return f"P(wrong) finds wrong calls worse than the margin: {values}; {span}."
    return (
        "P(wrong) does not find wrong calls significantly better than the margin: "
        f"{values}; {span}."
    )


def best_rival(values: Mapping[str, float | None], *, area: InstanceArea) -> ErrorDetector | None:
    """Return the rival with the highest AUROC in the data; None if no rival has one."""
    best, highest = None, -np.inf
    for detector in RIVALS:
        value = values.get(f"error_auroc_{detector}_{area}")
        if value is not None and value > highest:
            best, highest = detector, value
    return best


def gain(samples: Mapping[str, Metric], *, area: InstanceArea) -> Metric:
    """Return the AUROC of σ² minus that of the rival that is best in the data, row by row."""
    variance = samples[f"error_auroc_variance_{area}"]
    best = best_rival({name: s.value for name, s in samples.items()}, area=area)
    if variance.rows is None or best is None:
        return Metric.undefined(variance.reason or "no rival is defined")
    return variance - samples[f"error_auroc_{best}_{area}"]


def doubt_gain(samples: Mapping[str, Metric], *, area: InstanceArea) -> Metric:
    """Return the AUROC of P(wrong) minus that of the margin, row by row."""
    return samples[f"error_auroc_doubt_{area}"] - samples[f"error_auroc_margin_{area}"]


def detector_samples(
    predictions: Sequence[Prediction],
    *,
    positive: Bool[np.ndarray, " bags"],
    draws: Draws,
) -> dict[str, Metric]:
    """Return `error_rate_<area>`, `error_auroc_<detector>_<area>` and `augrc_<detector>_<area>`.

    An instance is called positive if its evidence (scores.py) is above 0.

    Args:
        predictions: bags with instance labels.
        positive: whether each bag is positive.
        draws: draws of these bags with the data as row 0.

    Raises:
        InputError: the predictions have several score kinds.
        BagError: the attention of a bag is not finite.
    """
    if not predictions:
        return _all_undefined(NO_INSTANCE_LABELS)
    if score_kind_of(predictions) == "relevance":
        return _all_undefined(NO_CALLS)
    pool = detector_pool(predictions)
    everything = np.ones(len(pool["bag"]), dtype=bool)
    return _area_samples(pool, everything, draws=draws, area="all") | _area_samples(
        pool, positive[pool["bag"]], draws=draws, area="positive_bags"
    )


def _area_samples(
    pool: Mapping[str, np.ndarray],
    inside: Bool[np.ndarray, " n"],
    *,
    draws: Draws,
    area: InstanceArea,
) -> dict[str, Metric]:
    what = INSTANCES_OF[area]
    within, wrong = draws.for_items(pool["bag"][inside]), pool["wrong"][inside]
    if len(wrong) == 0:
        return _all_undefined(f"no {what}", areas=(area,))
    rate = ratio_of_sums(wrong, np.ones_like(wrong), draws=within)
    samples = {f"error_rate_{area}": rate}
    all_same = all_same_reason(wrong, what=what)
    for detector, score in detectors_of(pool, inside):
        if isinstance(score, str):
            auroc = Metric.undefined(score)
        elif all_same:
            auroc = Metric.undefined(all_same)
        else:
            auroc = auroc_of(wrong, score, draws=within, what=what)
        samples[f"error_auroc_{detector}_{area}"] = auroc
        samples[f"augrc_{detector}_{area}"] = (
            auroc
            if auroc.rows is None or rate.rows is None
            else Metric.of(augrc(rate.rows, auroc.rows))
        )
    return samples


def detectors_of(
    pool: Mapping[str, np.ndarray], inside: Bool[np.ndarray, " n"]
) -> Iterator[tuple[ErrorDetector, Float[np.ndarray, " m"] | str]]:
    """Yield every detector of some instances, or the reason why it is undefined.

    Args:
        pool: the result of `detector_pool`.
        inside: which of its instances to use; at least one.
    """
    missing = missing_detectors(pool)
    for detector in ERROR_DETECTORS:
        if detector in missing:
            yield detector, missing[detector]
        elif detector == "variance" and not _varies(pool[detector][inside]):
            yield detector, NO_VARIANCE
        else:
            yield detector, pool[detector][inside].astype(np.float64)


def _varies(value: np.ndarray) -> bool:
    return bool((value != value[0]).any())


def _all_undefined(reason: str, *, areas: Sequence[InstanceArea] = AREAS) -> dict[str, Metric]:
    names = [
        name
        for area in areas
        for name in (
            f"error_rate_{area}",
            *(
                f"{metric}_{d}_{area}"
                for d in ERROR_DETECTORS
                for metric in ("error_auroc", "augrc")
            ),
        )
    ]
    return dict.fromkeys(names, Metric.undefined(reason))
