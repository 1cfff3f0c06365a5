"""Instance metrics of one method over its replicates, for both tables and figures."""

from collections.abc import Hashable, Mapping

from ...evaluation import InstanceTable, Prediction, instance_metrics
from ...statistics import Metric
from .results import instances_of, validation_of
from .scores import Scores

BOOTSTRAP = 200


def metrics_of(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
    """Return all instance metrics of one method with their resamples, or None without labels.

    Raises:
        BagError: A bag's file is missing or damaged, or its attention is not finite.
        InputError: The replicates do not match.
    """
    labels = dict(zip(scores.bags, scores.positive.tolist(), strict=True))

    def positive(p: Prediction) -> bool:
        """Return the label of a test bag; of a validation bag, whether an instance is positive."""
        if p.name in labels:
            return labels[p.name]
        return p.instance_labels is not None and bool((p.instance_labels > 0).any())

    tables = [InstanceTable.of(r, positive=positive) for r in instances_of(scores)]
    if not tables[0].names:
        return None
    validation: list[InstanceTable | Mapping[Hashable, InstanceTable]] = []
    for runs in validation_of(scores):
        of_split: dict[Hashable, InstanceTable] = {
            split: InstanceTable.of((p for p in run if positive(p)), positive=positive)
            for split, run in runs.items()
        }
        validation.append(of_split if scores.folds else next(iter(of_split.values())))
    return instance_metrics(
        tables,
        validation=validation,
        groups=dict(zip(scores.bags, scores.groups.tolist(), strict=True)),
        folds=folds_of(scores),
        blocks=scores.blocks,
        bootstrap=bootstrap,
    )


def folds_of(scores: Scores) -> dict[str, int] | None:
    """Return the fold of each test bag; None if one run predicts all of them."""
    if not scores.folds:
        return None
    return dict(zip(scores.bags, scores.split[0].tolist(), strict=True))
