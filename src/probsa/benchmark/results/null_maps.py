"""Null maps of an experiment: fitted once per data set and split, however many methods ran.

OUT/null_maps/<data>/split<k>/null_maps.safetensors    the maps fitted on the split's training part
OUT/null_maps/<data>/split<k>/null_maps/<bag>.h5       their scores of the held-out bags
"""

from collections.abc import Iterator, Mapping, Sequence
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
from .instances import BOOTSTRAP, folds_of
from .results import instances_of
from .scores import Scores


@dataclass(frozen=True, kw_only=True, slots=True)
class NullResults:
    """Metrics of null maps on the test bags of a data set, pooled and within positive bags."""

    metrics: Mapping[str, Mapping[str, Metric]]
    """By null map and measure; paired with those of the methods."""
    missing: Mapping[str, str]
    """The null maps that could not be computed, with the reason."""
    groups: int
    """Number of patients with a positive bag that has instances of both labels."""


def nulls_or_reason(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> NullResults:
    """Return `null_results`, or no metrics with the reason if they cannot be computed."""
    try:
        return null_results(scores, bootstrap=bootstrap)
    except ProbSAError as error:
        return NullResults(metrics={}, missing={"all": str(error)}, groups=0)


def null_results(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> NullResults:
    """Return the metrics of every null map on the test bags of a method's replicates.

    Null maps depend on the split only, so that one seed of each split is used. Scores that are
    stored in the experiment's folder are used again.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    tables, missing = null_tables(scores)
    groups = dict(zip(scores.bags, scores.groups.tolist(), strict=True))
    mixed = zip(tables[0].names, tables[0].mixed, strict=True)
    return NullResults(
        metrics={
            name: instance_metrics(
                tables,
                null_map=name,
                groups=groups,
                folds=folds_of(scores),
                bootstrap=bootstrap,
            )
            for name in NULL_MAPS
            if all(name in table.columns for table in tables)
        },
        missing=missing,
        groups=len({groups[name] for name, counts in mixed if counts}),
    )


def null_tables(scores: Scores) -> tuple[list[InstanceTable], dict[str, str]]:
    """Return the labelled instances of the test bags with a column for each null map.

    Returns: a table for each split, and the reasons why maps are missing.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    rows = _one_per_split(scores)
    runs = [scores.runs[r] for r in rows]
    folders, missing = _folders(runs, names=scores.bags)
    labels = dict(zip(scores.bags, scores.positive.tolist(), strict=True))
    tables = []
    for k, r in enumerate(rows):
        predictions = next(instances_of(scores.take([r])))

        def more(p: Prediction, k: int = k) -> Mapping[str, np.ndarray | str]:
            if not folders:
                return {}
            return read_null_scores(folders[p.name][k], p.name, instances=len(p.attention_mean))

        table = InstanceTable.of(predictions, positive=lambda p: labels[p.name], more=more)
        tables.append(table)
        missing |= {k: v for k, v in table.missing.items() if k in NULL_MAPS}
    return tables, missing


def _one_per_split(scores: Scores) -> list[int]:
    """Return the first replicate of each split, in the order of the splits."""
    first: dict[int, int] = {}
    for row, (split, _) in enumerate(scores.keys):
        first.setdefault(split, row)
    return list(first.values())


def _folders(
    replicates: Sequence[Sequence[Path]], *, names: Sequence[str]
) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Return the folder with the scores of each bag, by replicate; fit maps that are not there.

    Where they cannot be fitted, because the features are gone, there are no folders.
    """
    folders: dict[str, list[Path]] = {name: [] for name in names}
    for runs in replicates:
        for run in runs:
            try:
                folder = _fitted(run)
            except (ProbSAError, OSError) as e:
                return {}, {"all": f"cannot be computed for {run.name}: {e}"}
            for name in read_split(RunFolder(run)).test:
                if name in folders:
                    folders[name].append(folder)
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

    def tested() -> Iterator[str]:
        return (name for name in labelled_bags(of_run.predictions) if name in set(split.test))

    write_null_scores(of_run.predictions, maps, read=bags.stored, names=tested(), out=folder)
    return folder
