"""Instance metrics of one method over its replicates, and those of null maps.

Null maps are fitted once per data set and split, however many methods ran:
OUT/null_maps/<data>/split<k>/null_maps.safetensors    the maps fitted on the split's training part
OUT/null_maps/<data>/split<k>/null_maps/<bag>.h5       their scores of the held-out bags
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ProbSAError
from ...evaluation import (
    NULL_MAPS,
    InstanceTable,
    Prediction,
    about_null_maps,
    fit_null_maps,
    instance_metrics,
    labelled_bags,
    null_maps_file,
    read_null_scores,
    write_null_scores,
)
from ...statistics import Metric
from ...training import RunFolder, as_two_classes, open_units, read_split
from .results import instances_of, validation_of
from .scores import Scores, once

BOOTSTRAP = 200


@once
def metrics_of(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
    """Return all instance metrics of one method with their resamples, or None without labels.

    Raises:
        BagError: A bag's file is missing or damaged, or its attention is not finite.
        InputError: The replicates do not match.
    """
    labels = scores.labels

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
        groups=scores.patients,
        folds=scores.fold_of,
        blocks=scores.blocks,
        bootstrap=bootstrap,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NullResults:
    """Metrics of null maps on the test bags of a data set, pooled and within positive bags."""

    metrics: Mapping[str, Mapping[str, Metric]]
    """By null map and measure; paired with those of the methods."""
    missing: Mapping[str, str]
    """The null maps that could not be computed, with the reason."""


def null_results(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> NullResults:
    """Return the metrics of every null map on the test bags of a method's replicates.

    Without the features or a bag's file, there are no metrics but the reason.
    """
    try:
        tables, missing = null_tables(scores)
    except ProbSAError as error:
        return NullResults(metrics={}, missing={"all": str(error)})
    options = {"groups": scores.patients, "folds": scores.fold_of, "bootstrap": bootstrap}
    return NullResults(
        metrics={
            name: instance_metrics(tables, null_map=name, **options)
            for name in NULL_MAPS
            if all(name in table.columns for table in tables)
        },
        missing=missing,
    )


@once
def null_tables(scores: Scores) -> tuple[list[InstanceTable], dict[str, str]]:
    """Return the labelled instances of the test bags with a column for each null map.

    Null maps depend on the split only, so that one seed of each split is used. Scores that are
    stored in the experiment's folder are used again.

    Returns: a table for each split, and the reasons why maps are missing.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    first = {split: row for row, (split, _) in reversed(list(enumerate(scores.keys)))}
    of_splits = scores.take(sorted(first.values()))
    folders, missing = _folders(of_splits)
    labels, tables = scores.labels, []
    for k, predictions in enumerate(instances_of(of_splits)):

        def more(p: Prediction, k: int = k) -> Mapping[str, np.ndarray | str]:
            if not folders:
                return {}
            return read_null_scores(folders[k][p.name], p.name, instances=len(p.attention_mean))

        table = InstanceTable.of(predictions, positive=lambda p: labels[p.name], more=more)
        tables.append(table)
        missing |= {k: v for k, v in table.missing.items() if k in NULL_MAPS}
    return tables, missing


def _folders(scores: Scores) -> tuple[list[dict[str, Path]], dict[str, str]]:
    """Return the folder with the scores of each bag, by replicate; fit maps that are not there.

    Where they cannot be fitted, because the features are gone, there are no folders.
    """
    folders: list[dict[str, Path]] = []
    for parts in scores.replicates:
        folders.append({})
        for part in parts:
            try:
                folder = _fitted(part.path)
            except (ProbSAError, OSError) as e:
                return [], {"all": f"cannot be computed for {part.path.name}: {e}"}
            folders[-1] |= {scores.bags[row]: folder for row in part.rows}
    return folders, {}


def _fitted(run: Path) -> Path:
    """Return the folder of the null maps of a run's data set and split, after fitting them.

    Raises:
        ProbSAError, OSError: The features or labels cannot be read.
    """
    out, data = run.parents[3], run.parent.parent.name
    folder = out / "null_maps" / data / run.name.partition("-")[0]
    if about_null_maps(folder) is not None:
        return folder
    of_run = RunFolder(run)
    config, split = of_run.config(), read_split(of_run)
    bags, table = open_units(config.data)
    labels = as_two_classes(table, split.train)
    maps = fit_null_maps(bags.stored, labels=labels, train=split.train, validation=split.val)
    maps.save(null_maps_file(folder))
    tested = (name for name in labelled_bags(of_run.predictions) if name in set(split.test))
    write_null_scores(of_run.predictions, maps, read=bags.stored, names=tested, out=folder)
    return folder
