"""Whether σ² and P(wrong) find wrong calls better than their null rivals, in one sentence each."""

from collections.abc import Mapping

from ...statistics import Metric
from ..words import INSTANCE_DETECTORS
from .measures import POSITIVE_BAGS, best_rival


def variance_verdict(metrics: Mapping[str, Metric]) -> str:
    """Compare σ² with its best null rival; `metrics` are those of `instance_metrics`."""
    best = best_rival(metrics)
    variance, gain = metrics["error_auroc_variance"], metrics["error_auroc_gain"]
    if variance.value is None or gain.value is None or best is None:
        return f"σ² cannot be evaluated on {POSITIVE_BAGS}: {gain.reason or variance.reason}."
    rival = metrics[f"error_auroc_{best}"].value
    title = INSTANCE_DETECTORS[best].removesuffix(" (null)")
    values = (
        f"AUROC {variance.value:.3f} against {rival:.3f} of {title}, its best null rival, on "
        f"{POSITIVE_BAGS}"
    )
    return _sentence("σ²", gain, values, rivals="all null rivals", best="the best null rival")


def doubt_verdict(metrics: Mapping[str, Metric]) -> str:
    """Compare P(wrong) with the margin; `metrics` are those of `instance_metrics`."""
    return margin_verdict(
        metrics["error_auroc_doubt"],
        metrics["error_auroc_margin"],
        metrics["error_auroc_doubt_gain"],
        what=POSITIVE_BAGS,
    )


def margin_verdict(doubt: Metric, margin: Metric, gain: Metric, *, what: str) -> str:
    """Compare P(wrong) with the margin; `what` names the items."""
    if doubt.value is None or margin.value is None or gain.value is None:
        return f"P(wrong) cannot be evaluated on {what}: " + (
            f"{gain.reason or doubt.reason or margin.reason}."
        )
    values = f"AUROC {doubt.value:.3f} against {margin.value:.3f} on {what}"
    return _sentence("P(wrong)", gain, values, rivals="the margin", best="the margin")


def _sentence(score: str, gain: Metric, values: str, *, rivals: str, best: str) -> str:
    if gain.low is None or gain.high is None:
        return f"No interval shows whether {score} finds wrong calls better than {best}: {values}."
    difference = f"{values}; difference {gain.text(sign=True)}"
    if gain.low > 0:
        return f"{score} finds wrong calls better than {rivals}: {difference}."
    if gain.high < 0:
        return f"{score} finds wrong calls worse than {best}: {difference}."
    return f"{score} does not find wrong calls significantly better than {rivals}: {difference}."
