"""From run folders to what uncertainty.py draws: σ² and its rivals as detectors of wrong calls."""

from collections.abc import Sequence

from ...errors import ProbSAError
from ...evaluation.error_detectors import Area, error_detectors
from ..results import Scores, instances_of
from .uncertainty import SHORT, ErrorDetection

AREA: Area = "positive_bags"


def detections(scores: Sequence[Scores]) -> tuple[list[ErrorDetection], list[str]]:
    """Of every method with a variance where instances have labels; and why others have none.

    The first replicate is judged; the others are the rival `s.d. over replicates`.
    """
    found: list[ErrorDetection] = []
    lost: list[str] = []
    for s in scores:
        if s.method.baseline is None:
            continue  # only a posterior has a variance
        try:
            first, *others = instances_of(s)
            if all(p.instance_labels is None for p in first):
                lost.append(f"{s.data} has no instance labels")
                continue
            if not any(p.attention_variance.any() for p in first):
                continue  # Dirac
            metrics = error_detectors(
                first,
                positive={b: bool(y) for b, y in zip(s.bags, s.y, strict=True)},
                others=others,
                groups=dict(zip(s.bags, s.groups.tolist(), strict=True)),
            )
        except (ProbSAError, OSError) as error:
            lost.append(f"{s.method.name} on {s.data}: {error}")
            continue
        found.append(
            ErrorDetection(
                data=s.data,
                method=s.method.name,
                model=s.method.model,
                metrics={name: metrics[f"error_auroc_{d}_{AREA}"] for d, name in SHORT.items()},
            )
        )
    return found, list(dict.fromkeys(lost))
