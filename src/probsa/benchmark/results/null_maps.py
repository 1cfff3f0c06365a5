"""Null maps of an experiment: fitted once per data set and split, however many methods ran.

OUT/null_maps/<data>/split<k>/null_maps.safetensors    the maps fitted on the split's training part
OUT/null_maps/<data>/split<k>/null_maps/<bag>.h5       their scores of the held-out bags
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import ProbSAError
from ...evaluation import (
    NULL_MAPS,
    Prediction,
    about_null_maps,
    fit_for_run,
    is_mixed,
    labelled_bags,
    null_maps_file,
    ranking_samples,
    read_null_scores,
    write_null_scores,
)
from ...statistics import Metric
from ...training import RunFolder, as_two_classes, open_units, read_split
from .instances import BOOTSTRAP
from .pooled import replicate_keys
from .results import Scores, instances_of, replicates_of


@dataclass(frozen=True, kw_only=True, slots=True)
class NullResults:
    """Measures of null maps on the test bags of a data set, pooled and within positive bags."""

    samples: Mapping[str, Mapping[str, Metric]]
    """By null map and measure; paired with those of the methods."""
    missing: Mapping[str, str]
    """The null maps that could not be computed, with the reason."""
    groups: int
    """Number of patients with a positive bag that has instances of both labels."""


def nulls_or_reason(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> NullResults:
    """Return `null_results`, or no measures with the reason if they cannot be computed."""
    try:
        return null_results(scores, bootstrap=bootstrap)
    except ProbSAError as error:
        return NullResults(samples={}, missing={"all": str(error)}, groups=0)


def null_results(scores: Scores, *, bootstrap: int = BOOTSTRAP) -> NullResults:
    """Return the measures of every null map on the test bags of a method's replicates.

    Null maps depend on the split only, so that one seed of each split is used. Scores that are
    stored in the experiment's folder are used again.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    replaced, missing, predictions = null_predictions(scores)
    positive = {b: bool(y) for b, y in zip(scores.bags, scores.y, strict=True)}
    groups = dict(zip(scores.bags, scores.groups.tolist(), strict=True))
    folds = dict(zip(scores.bags, scores.split[0].tolist(), strict=True)) if scores.folds else None
    samples = {
        name: ranking_samples(
            of_map, positive=positive, groups=groups, folds=folds, bootstrap=bootstrap
        )
        for name, of_map in replaced.items()
    }
    counted = {
        groups[p.name]
        for p in predictions[0]
        if positive[p.name]
        and p.instance_labels is not None
        and is_mixed(p.instance_labels[p.instance_labels >= 0] > 0)
    }
    return NullResults(samples=samples, missing=missing, groups=len(counted))


def null_predictions(
    scores: Scores,
) -> tuple[dict[str, list[list[Prediction]]], dict[str, str], list[list[Prediction]]]:
    """Return predictions of the test bags in which the scores are those of null maps.

    Returns: the predictions by null map and replicate (one for each split), the reasons why maps
        are missing, and the predictions of the method itself.

    Raises:
        BagError: A bag's file is missing or damaged.
    """
    rows = _one_per_split(scores)
    runs = [replicates_of(scores)[r] for r in rows]
    predictions = [next(instances_of(_replicate(scores, r))) for r in rows]
    folders, missing = _stored_scores(runs, names=scores.bags)
    found: dict[str, list[list[Prediction]]] = {}
    for name in NULL_MAPS if folders else ():
        replaced, reason = _replaced(name, predictions, folders)
        if reason is not None:
            missing[name] = reason
        elif replaced:
            found[name] = replaced
    return found, missing, predictions


def _replicate(scores: Scores, row: int) -> Scores:
    """Return a single replicate."""
    one = slice(row, row + 1)
    return replace(
        scores,
        p=scores.p[one],
        calls=scores.calls[one],
        split=scores.split[one],
        seed=scores.seed[one],
        runs=replicates_of(scores)[row],
    )


def _one_per_split(scores: Scores) -> list[int]:
    """Return the first replicate of each split, in the order of the splits."""
    first: dict[int, int] = {}
    for row, (split, _) in enumerate(replicate_keys(scores)):
        first.setdefault(split, row)
    return list(first.values())


def _stored_scores(
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
    maps = fit_for_run(bags, train=split.train, validation=split.val, labels=labels)
    maps.save(null_maps_file(folder))
    tested = set(split.test)
    names = (name for name in labelled_bags(of_run.predictions) if name in tested)
    write_null_scores(folder, maps, names=names, read=bags.stored)
    return folder


def _replaced(
    name: str, replicates: Sequence[Sequence[Prediction]], folders: Mapping[str, Sequence[Path]]
) -> tuple[list[list[Prediction]], str | None]:
    """Return predictions whose scores are those of a null map, or why a bag has none.

    Both are empty for a map that no bag has.
    """
    result: list[list[Prediction]] = []
    reasons: list[str] = []
    found = 0
    for r, predictions in enumerate(replicates):
        result.append([])
        for p in predictions:
            if p.instance_labels is None:
                result[-1].append(p)
                continue
            n = len(p.instance_labels)
            score = read_null_scores(folders[p.name][r], p.name, instances=n).get(name)
            if isinstance(score, np.ndarray):
                found += 1
                result[-1].append(_with_score(p, score))
            elif score is not None:
                reasons.append(score)
    if reasons:
        return [], f"{reasons[0]} ({len(reasons)} of {len(reasons) + found} bags)"
    return (result if found else []), None


def _with_score(p: Prediction, score: np.ndarray) -> Prediction:
    values = score.astype(np.float32)
    return replace(
        p,
        attention_mean=values,
        attention_variance=np.zeros_like(values),
        score_kind="relevance",
        class_score=None,
        contribution=None,
        leave_one_out=None,
    )
