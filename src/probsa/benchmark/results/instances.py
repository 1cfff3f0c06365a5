"""Instance metrics of one method over its replicates, for both tables and figures."""

from collections.abc import Hashable, Mapping, Sequence

from ...evaluation import InstanceArea, Prediction, ValidationPredictions, instance_samples
from ...statistics import Metric
from .pooled import blocks
from .results import Scores, instances_of, validation_of

AREA: InstanceArea = "positive_bags"
"""The instances among which wrong calls are counted."""
BOOTSTRAP = 200


def summary_of(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
    """Return all instance metrics of one method, as `samples_of` does."""
    samples = samples_of(scores, bootstrap=bootstrap)
    return None if samples is None else dict(samples)


def samples_of(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
    """Return all instance metrics of one method with their resamples, or None without labels.

    Raises:
        BagError: A bag's file is missing or damaged, or its attention is not finite.
        InputError: The replicates do not match.
    """
    replicates = list(instances_of(scores))
    if all(p.instance_labels is None for p in replicates[0]):
        return None
    by_run = list(validation_of(scores))
    validation: list[ValidationPredictions] = []
    for runs in by_run:
        by_split: dict[Hashable, Sequence[Prediction]] = {**runs}
        validation.append(by_split if scores.folds else next(iter(runs.values())))
    by_fold = dict(zip(scores.bags, scores.split[0].tolist(), strict=True))
    return instance_samples(
        replicates,
        positive=_positive(scores, by_run),
        validation=validation,
        groups=dict(zip(scores.bags, scores.groups.tolist(), strict=True)),
        folds=by_fold if scores.folds else None,
        blocks=blocks(scores),
        bootstrap=bootstrap,
    )


def _positive(
    scores: Scores, by_run: Sequence[Mapping[int, Sequence[Prediction]]]
) -> dict[str, bool]:
    """Return which bags are positive: test bags by their label, others by their instances."""
    from_instances = {
        p.name: bool((p.instance_labels > 0).any())
        for runs in by_run
        for run in runs.values()
        for p in run
        if p.instance_labels is not None
    }
    return from_instances | {b: bool(y) for b, y in zip(scores.bags, scores.y, strict=True)}
