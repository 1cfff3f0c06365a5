"""Prepare the data of uncertainty.py: σ² and its rivals as detectors of wrong calls."""

from collections.abc import Sequence

from ...errors import ProbSAError
from ..results.instances import metrics_of
from ..results.results import instances_of
from ..results.scores import Scores
from .uncertainty import SHORT, ErrorDetection


def error_detections(
    scores: Sequence[Scores],
) -> tuple[list[ErrorDetection], list[str]]:
    """Return every method with a variance on labelled instances, and why others are missing.

    The numbers are those of the table of errors: means over replicates and, with folds, over folds.
    """
    methods: list[ErrorDetection] = []
    reasons: list[str] = []
    for s in scores:
        if s.method.baseline is None:
            continue  # only posteriors have a variance
        try:
            first = next(instances_of(s))
            if all(p.instance_labels is None for p in first):
                reasons.append(f"{s.data} has no instance labels")
                continue
            if not any(p.attention_variance.any() for p in first):
                continue  # Dirac
            metrics = metrics_of(s)
        except (ProbSAError, OSError) as error:
            reasons.append(f"{s.method.name} on {s.data}: {error}")
            continue
        assert metrics is not None, "its instances have labels"
        methods.append(
            ErrorDetection(
                data=s.data,
                method=s.method.name,
                model=s.method.model,
                metrics={name: metrics[f"error_auroc_{d}"] for d, name in SHORT.items()},
            )
        )
    return methods, list(dict.fromkeys(reasons))
