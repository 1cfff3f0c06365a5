"""Null maps of a run, and their scores beside the predictions, so that no evaluation fits again.

RUN/null_maps.safetensors          the fitted maps
PREDICTIONS/null_maps/<bag>.h5     a dataset per map, for each bag with instance labels
PREDICTIONS/null_maps/about.json   the fit, written last
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...core import (
    StoredBag,
    as_typed,
    dataset_of,
    open_hdf5,
    read_json,
    replacing_hdf5,
    write_json,
)
from ...errors import BagError
from ..ensemble import MeansOfRuns
from ..storage import INSTANCES, NULL_SCORES
from .null_maps import NULL_MAPS, NullMaps, Scores

ABOUT = "about.json"
AGAIN = "predict again"
NO_NULL_MAPS = (
    "no null maps were stored with these predictions: `probsa train` fits them if the held-out "
    "bags have instance labels"
)


def null_maps_file(run: Path) -> Path:
    """Return the path of a run's fitted null maps."""
    return run / "null_maps.safetensors"


def write_null_scores(
    predictions: Path,
    maps: NullMaps | MeansOfRuns,
    *,
    read: Callable[[str], StoredBag],
    names: Iterable[str] | None = None,
    out: Path | None = None,
) -> bool:
    """Write the scores of the instances of predicted bags, one bag at a time.

    Args:
        predictions: the folder of predictions.
        maps: the fitted null maps.
        read: reads a bag.
        names: the bags; None for all predicted bags that have instance labels.
        out: the folder in which the folder of scores is written; None for that of the predictions.

    Returns:
        Whether there are any such bags; nothing is written otherwise.
    """
    folder = (out or predictions) / NULL_SCORES
    scored = False
    for name in labelled_bags(predictions) if names is None else names:
        with replacing_hdf5(folder / f"{name}.h5") as f:
            for null_map, score in maps.scores(read(name)).items():
                if isinstance(score, str):
                    f.attrs[null_map] = score
                else:
                    f.create_dataset(null_map, data=score.astype(np.float32))
        scored = True
    if scored:
        write_json(folder / ABOUT, dict(maps.about))
    return scored


def read_null_scores(parent: Path, name: str, *, instances: int) -> Scores:
    """Return the scores of a bag's instances by null map, or the reason why there are none.

    Raises:
        BagError: the file is damaged, or belongs to other instances.
    """
    path = parent / NULL_SCORES / f"{name}.h5"
    if not path.is_file():
        return dict.fromkeys(NULL_MAPS, f"no scores of bag {name!r} are stored")
    found: Scores = {}
    with open_hdf5(path, again=AGAIN) as f:
        for null_map in NULL_MAPS:
            if null_map in f.attrs:
                reason = f.attrs[null_map]
                if not isinstance(reason, str):
                    raise BagError(
                        f"{path}: {null_map} is {reason!r:.60}, expected the reason why there are "
                        f"no scores: {AGAIN}"
                    )
                found[null_map] = reason
            scores = dataset_of(f, null_map, again=AGAIN)
            if scores is None:
                continue
            # the stated size is compared before anything is read
            fits = scores.shape == (instances,) and scores.dtype.kind in "fiu"
            values = np.asarray(scores[...], np.float64) if fits else np.array(np.nan)
            if not np.isfinite(values).all():
                raise BagError(
                    f"{path}: {null_map} is {scores.dtype} of shape {scores.shape}, expected "
                    f"{instances} finite scores: predict this bag again"
                )
            found[null_map] = values
    return found


def about_null_maps(parent: Path) -> dict[str, Any] | None:
    """Return what is known of the fit, or None if no scores of null maps are stored in a folder."""
    path = parent / NULL_SCORES / ABOUT
    if not path.is_file():
        return None
    return as_typed(read_json(path, advice=AGAIN), dict[str, Any], where=str(path), advice=AGAIN)


def labelled_bags(predictions: Path) -> Iterator[str]:
    """Yield the names of the predicted bags that have instance labels."""
    for path in sorted((predictions / INSTANCES).glob("*.h5")):
        with open_hdf5(path, again=AGAIN) as f:
            if "instance_labels" in f:
                yield path.stem
