"""From run folders to what uncertainty.py draws: σ² and its rivals as detectors of wrong calls."""

from collections.abc import Sequence

from ...errors import ProbSAError
from ..results.cache import Kept
from ..results.instances import AREA
from ..results.results import Scores, instances_of
from .uncertainty import SHORT, ErrorDetection


def detections(
    scores: Sequence[Scores], *, kept: Kept | None = None
) -> tuple[list[ErrorDetection], list[str]]:
    """Of every method with a variance where instances have labels; and why others have none.

    The numbers of the table of errors: means over replicates and, with folds, over folds.
    """
    kept = kept or Kept()
    found: list[ErrorDetection] = []
    lost: list[str] = []
    for s in scores:
        if s.method.baseline is None:
            continue  # only a posterior has a variance
        try:
            first = next(instances_of(s))
            if all(p.instance_labels is None for p in first):
                lost.append(f"{s.data} has no instance labels")
                continue
            if not any(p.attention_variance.any() for p in first):
                continue  # Dirac
            metrics = kept.summary(s)
        except (ProbSAError, OSError) as error:
            lost.append(f"{s.method.name} on {s.data}: {error}")
            continue
        assert metrics is not None, "its instances have labels"
        found.append(
            ErrorDetection(
                data=s.data,
                method=s.method.name,
                model=s.method.model,
                metrics={name: metrics[f"error_auroc_{d}_{AREA}"] for d, name in SHORT.items()},
            )
        )
    return found, list(dict.fromkeys(lost))
