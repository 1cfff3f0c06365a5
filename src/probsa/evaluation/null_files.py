"""Null maps of a run, and their scores beside the predictions, so that no evaluation fits again.

RUN/null_maps.safetensors          the fitted maps
PREDICTIONS/null_maps/<bag>.h5     a dataset per map, for each bag with instance labels
PREDICTIONS/null_maps/about.json   the fit, written last
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import h5py
import numpy as np
from jaxtyping import Float

from ..core import (
    StoredBag,
    as_typed,
    dataset_of,
    open_hdf5,
    read_json,
    replacing_hdf5,
    write_json,
)
from ..datasets import BagSet
from ..errors import BagError
from ..training import RunFolder
from .null_maps import NULL_MAPS, NullMaps, fit_null_maps
from .storage import INSTANCES, NULL_SCORES

ABOUT = "about.json"
AGAIN = "predict again"
NO_NULL_MAPS = (
    "no null maps were stored with these predictions: `probsa train` fits them if the held-out "
    "bags have instance labels"
)


@runtime_checkable
class ScoresBags(Protocol):
    """The null maps of one or of several runs."""

    @property
    def about(self) -> Mapping[str, Any]: ...

    def scores(self, bag: StoredBag) -> dict[str, Float[np.ndarray, " n"] | str]: ...


def null_maps_file(run: Path) -> Path:
    """Return the path of a run's fitted null maps."""
    return run / "null_maps.safetensors"


def fit_for_run(
    bags: BagSet, *, train: Sequence[str], validation: Sequence[str], labels: Mapping[str, int]
) -> NullMaps:
    """Fit the null maps on the training part of a run; class 0 is negative, any other positive.

    Raises:
        BagError: a bag cannot be read.
        InputError: there are no training bags.
    """

    def read(names: Sequence[str]) -> Iterator[tuple[StoredBag, bool]]:
        return ((bags.stored(name), labels[name] > 0) for name in names)

    return fit_null_maps(read(train), read(validation), bags=len(train))


def store_null_maps(
    run: RunFolder,
    bags: BagSet,
    *,
    train: Sequence[str],
    validation: Sequence[str],
    labels: Mapping[str, int],
) -> bool:
    """Fit the null maps of a run and score its predicted bags, if any has instance labels.

    Returns: whether any has.
    """
    if not any(True for _ in labelled_bags(run.predictions)):
        return False
    maps = fit_for_run(bags, train=train, validation=validation, labels=labels)
    maps.save(null_maps_file(run.path))
    write_null_scores(run.predictions, maps, names=labelled_bags(run.predictions), read=bags.stored)
    return True


def apply_null_maps(maps: ScoresBags | None, predictions: Path, bags: BagSet) -> bool:
    """Score newly predicted bags that have instance labels with the null maps of their run.

    Returns: whether the bags were scored.
    """
    if maps is None or not any(True for _ in labelled_bags(predictions)):
        return False
    write_null_scores(predictions, maps, names=labelled_bags(predictions), read=bags.stored)
    return True


def write_null_scores(
    parent: Path, maps: ScoresBags, *, names: Iterable[str], read: Callable[[str], StoredBag]
) -> None:
    """Write the scores of the instances of some bags, one bag at a time.

    Args:
        parent: folder of predictions, or another one, in which a folder `null_maps` is written.
        maps: the fitted null maps.
        names: the bags.
        read: reads a bag.
    """
    folder = parent / NULL_SCORES
    for name in names:
        with replacing_hdf5(folder / f"{name}.h5") as f:
            for null_map, score in maps.scores(read(name)).items():
                if isinstance(score, str):
                    f.attrs[null_map] = score
                else:
                    f.create_dataset(null_map, data=score.astype(np.float32))
    write_json(folder / ABOUT, dict(maps.about))


def read_null_scores(
    parent: Path, name: str, *, instances: int
) -> dict[str, Float[np.ndarray, " n"] | str]:
    """Return the scores of a bag's instances by null map, or the reason why there are none.

    Raises:
        BagError: the file is damaged, or belongs to other instances.
    """
    path = parent / NULL_SCORES / f"{name}.h5"
    if not path.is_file():
        return dict.fromkeys(NULL_MAPS, f"no scores of bag {name!r} are stored")
    with open_hdf5(path, again=AGAIN) as f:
        found: dict[str, Any] = {k: v for k, v in f.attrs.items() if k in NULL_MAPS}
        for null_map, reason in found.items():
            if not isinstance(reason, str):
                raise BagError(
                    f"{path}: {null_map} is {reason!r:.60}, expected the reason why there are no "
                    f"scores: {AGAIN}"
                )
        for null_map in NULL_MAPS:
            scores = dataset_of(f, null_map, again=AGAIN)
            if scores is not None:
                found[null_map] = _scores(scores, path, instances=instances)
    for null_map, score in found.items():
        if not isinstance(score, str) and (
            score.shape != (instances,) or not np.isfinite(score).all()
        ):
            raise BagError(
                f"{path}: {null_map} has shape {score.shape}, expected {instances} finite scores: "
                "predict this bag again"
            )
    return found


def _scores(dataset: h5py.Dataset, path: Path, *, instances: int) -> np.ndarray:
    """Read the scores of a null map; its size is compared before anything is read."""
    if dataset.shape != (instances,) or dataset.dtype.kind not in "fiu":
        raise BagError(
            f"{path}: {dataset.name} is {dataset.dtype} of shape {dataset.shape}, expected "
            f"{instances} finite scores: predict this bag again"
        )
    return np.asarray(dataset[...], np.float64)


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
