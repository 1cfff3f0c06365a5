"""How well one method finds instances, over its replicates: what tables and figures both show."""

from collections.abc import Hashable, Mapping, Sequence

from ...evaluation import Area, Prediction, Validation, instance_summary
from ...statistics import Metric
from .pooled import blocks
from .results import Scores, instances_of, validation_of

AREA: Area = "positive_bags"
"""Where wrong calls are looked for."""
BOOTSTRAP = 200


def summary_of(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
    """All instance metrics of one method; None without instance labels.

    Raises:
        BagError: the file of a bag is missing or damaged, or its attention is not finite.
        InputError: replicates that do not fit each other.
    """
    replicates = list(instances_of(scores))
    if all(p.instance_labels is None for p in replicates[0]):
        return None
    held = list(validation_of(scores))
    validation: list[Validation] = []
    for of in held:
        by_split: dict[Hashable, Sequence[Prediction]] = {**of}
        validation.append(by_split if scores.folds else next(iter(of.values())))
    by_fold = dict(zip(scores.bags, scores.split[0].tolist(), strict=True))
    return instance_summary(
        replicates,
        positive=_positive(scores, held),
        validation=validation,
        groups=dict(zip(scores.bags, scores.groups.tolist(), strict=True)),
        folds=by_fold if scores.folds else None,
        blocks=blocks(scores),
        bootstrap=bootstrap,
    )


def _positive(
    scores: Scores, held: Sequence[Mapping[int, Sequence[Prediction]]]
) -> dict[str, bool]:
    """Of test bags by their label; of others by what their instances say."""
    found = {
        p.name: bool((p.instance_labels > 0).any())
        for of in held
        for run in of.values()
        for p in run
        if p.instance_labels is not None
    }
    return found | {b: bool(y) for b, y in zip(scores.bags, scores.y, strict=True)}
