"""Instance metrics of one method over its replicates, and those of null maps.

Null maps are fitted once per data set and split, however many methods ran:
OUT/null_maps/<data>/split<k>/null_maps.safetensors    the maps fitted on the split's training part
OUT/null_maps/<data>/split<k>/null_maps/<bag>.h5       their scores of the held-out bags
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    bag_labels = scores.labels

    def positive(p: Prediction) -> bool:
        """Return the label of a test bag; of a validation bag, whether an instance is positive."""
        if p.name in bag_labels:
            return bag_labels[p.name]
        return p.instance_labels is not None and bool((p.instance_labels > 0).any())

    tables = [InstanceTable.of(r, positive=positive) for r in instances_of(scores)]
    if not tables[0].names:
        return None
    validation: list[InstanceTable | Mapping[Hashable, InstanceTable]] = []
    for runs in validation_of(scores):
        by_split: dict[Hashable, InstanceTable] = {}
        for split, predictions in runs.items():
            positive_bags = (p for p in predictions if positive(p))
            by_split[split] = InstanceTable.of(positive_bags, positive=positive)
        validation.append(by_split if scores.folds else next(iter(by_split.values())))
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
    metrics: dict[str, Mapping[str, Metric]] = {}
    for name in NULL_MAPS:
        if all(name in table.columns for table in tables):
            metrics[name] = instance_metrics(
                tables,
                null_map=name,
                groups=scores.patients,
                folds=scores.fold_of,
                bootstrap=bootstrap,
            )
    return NullResults(metrics=metrics, missing=missing)


@once
def null_tables(scores: Scores) -> tuple[list[InstanceTable], dict[str, str]]:
    """Return the labelled instances of the test bags with a column for each null map.

    Null maps depend on the split only, so that one seed of each split is used. Scores that are
    stored in the experiment's folder are used again.

    Returns: a table for each split, and the reasons why maps are missing.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    first_rows: dict[int, int] = {}
    for row, (split, _) in enumerate(scores.keys):
        first_rows.setdefault(split, row)
    one_seed = scores.take(sorted(first_rows.values()))
    folders, missing = _folders(one_seed)
    bag_labels = scores.labels
    tables: list[InstanceTable] = []
    for k, predictions in enumerate(instances_of(one_seed)):

        def null_scores(p: Prediction, k: int = k) -> Mapping[Any, np.ndarray | str]:
            if not folders:
                return {}
            return read_null_scores(folders[k][p.name], p.name, instances=len(p.attention_mean))

        table = InstanceTable.of(
            predictions, positive=lambda p: bag_labels[p.name], more=null_scores
        )
        tables.append(table)
        for column, why in table.missing.items():
            if isinstance(column, str) and column in NULL_MAPS:
                missing[column] = why
    return tables, missing


def _folders(scores: Scores) -> tuple[list[dict[str, Path]], dict[str, str]]:
    """Return the folder with the scores of each bag, by replicate; fit maps that are not there.

    Where they cannot be fitted, because the features are gone, there are no folders.
    """
    folders: list[dict[str, Path]] = []
    for parts in scores.replicates:
        folder_of_bag: dict[str, Path] = {}
        for part in parts:
            try:
                folder = fit_maps_of_split(part.path, data=scores.data, split=part.split)
            except (ProbSAError, OSError) as e:
                return [], {"all": f"cannot be computed for {part.path.name}: {e}"}
            folder_of_bag |= {scores.bags[row]: folder for row in part.rows}
        folders.append(folder_of_bag)
    return folders, {}


def fit_maps_of_split(run: Path, *, data: str, split: int) -> Path:
    """Return the folder of the null maps of a data set and split, after fitting them if need be.

    Args:
        run: The folder of any run of the split.
        data: The data set.
        split: The split of the run.

    Raises:
        ProbSAError, OSError: The features or labels cannot be read.
    """
    out = run.parents[3]
    folder = out / "null_maps" / data / f"split{split}"
    if about_null_maps(folder) is not None:
        return folder
    run_folder = RunFolder(run)
    parts = read_split(run_folder)
    bags, table = open_units(run_folder.config().data)
    labels = as_two_classes(table, parts.train)
    maps = fit_null_maps(bags.stored, labels=labels, train=parts.train, validation=parts.val)
    maps.save(null_maps_file(folder))
    test_bags = set(parts.test)
    names = (name for name in labelled_bags(run_folder.predictions) if name in test_bags)
    write_null_scores(run_folder.predictions, maps, read=bags.stored, names=names, out=folder)
    return folder
