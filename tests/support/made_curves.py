"""Curves of deletion made without a model."""

from probsa.evaluation import DeletionCurves, MapScore


def made_curves(
    name: str, drops: dict[str, float], *, shown: MapScore = "evidence"
) -> DeletionCurves:
    """Return curves of two steps, which fall by these amounts if the highest go first."""
    return DeletionCurves(
        name=name,
        shown=shown,
        removal="bag",
        instances=9,
        counts=(0, 8),
        most_first={order: (0.9, 0.9 - drop) for order, drop in drops.items()},
        least_first=dict.fromkeys(drops, (0.9, 0.9)),
    )
