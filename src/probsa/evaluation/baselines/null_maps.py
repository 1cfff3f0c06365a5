"""Maps that hardly look at the image, which the map of a model has to beat. See docs/null-maps.md.

`centre`, `norm`, `darkness` and `brightness` need no training; `mahalanobis` uses the training
instances, and the others are logistic regressions on the labels of bags, as the models are. A run
has the fit in null_maps.safetensors; predictions have null_maps/<bag>.h5 with a dataset per map,
for each bag with instance labels, and null_maps/about.json, which is written last.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sklearn.preprocessing import SplineTransformer

from ...core import (
    ONE_NUMBER,
    StoredBag,
    as_record,
    dataset_of,
    named_file,
    open_hdf5,
    parse_json,
    read_json,
    replacing,
    replacing_hdf5,
    write_json,
)
from ...errors import BagError, CheckpointError, InputError
from ...models import BagFeatures, FeatureSums, fit_logistic, sample_size
from ..ensemble import MeansOfRuns
from ..storage import INSTANCES, NULL_SCORES
from .distance import problem_of, whitening

FITTED = ("mean_features", "single_instance", "position")
"""The regressions, each an array `weight` and an array `bias`."""
NULL_MAPS = ("centre", "position", "norm", "mahalanobis", *FITTED[:2], "darkness", "brightness")
"""Every null map, in the order of tables.

`centre`: minus the distance from the middle of the bag's coordinates. `position`: a smooth function
of the place within the bag. `norm`: the length of the standardised features. `mahalanobis`: the
distance from the mean training instance, with a shrunk covariance. `mean_features`: a regression on
the bags' mean features, applied to instances. `single_instance`: a regression of instances on their
bag's label. `darkness`: minus the mean grey level of a patch. `brightness`: the mean of a slice.
"""
NO_COORDINATES = "no coordinates"
NO_INTENSITY = (
    "the feature files have no dataset 'intensity', which `probsa extract` computes from the pixels"
)
FORMAT = 1
ADVICE = "remove it, and evaluate the run again"
ABOUT = "about.json"
AGAIN = "predict again"
NO_NULL_MAPS = (
    f"the predictions have no folder {NULL_SCORES}: it was not copied, or the run has none, "
    "because its held-out bags had no instance labels. `probsa predict` writes those of the run"
)
SEED = 0
"""Seed of the sampled instances."""
KNOTS = 5
"""Number of knots of the cubic splines of `position`, on each axis."""

Scores = dict[str, "Float[np.ndarray, ' n'] | str"]
"""A score of each instance by null map, or the reason why there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NullMaps:
    """Fitted null maps, which score the instances of any bag with the same features."""

    arrays: Mapping[str, Float[np.ndarray, "..."]]
    """mean, deviation, whitening, and `<map>.weight` and `<map>.bias` of the regressions."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """The maps that could not be fitted, with the reason."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of bags and instances of the fit, and the C of each regression."""

    def scores(self, bag: StoredBag) -> Scores:
        """Return the scores of a bag's instances.

        Raises:
            BagError: the bag has another number of features than those of the fit.
        """
        width = len(self.arrays["mean"])
        if bag.features.shape[1] != width:
            raise BagError(
                f"bag {bag.name!r} has {bag.features.shape[1]} features per instance, but the null "
                f"maps were fitted on {width}: extract them with the same encoder"
            )
        x = (bag.features.astype(np.float64) - self.arrays["mean"]) / self.arrays["deviation"]
        position: np.ndarray | str = NO_COORDINATES
        if bag.coords is not None:
            position = self._linear("position", position_basis(bag.coords))
        brightness: np.ndarray | str = NO_INTENSITY
        darkness: np.ndarray | str = NO_INTENSITY
        if bag.intensity is not None:
            brightness = bag.intensity.astype(np.float64)
            darkness = -brightness
        scores: Scores = {
            "centre": centre(bag.coords),
            "position": position,
            "norm": np.linalg.norm(x, axis=1),
            "mahalanobis": np.linalg.norm(x @ self.arrays["whitening"], axis=1),
            "mean_features": self._linear("mean_features", x),
            "single_instance": self._linear("single_instance", x),
        }
        # tissue is dark on a slide, and bright in a scan
        if bag.inferred_kind == "ct":
            scores["brightness"] = brightness
        else:
            scores["darkness"] = darkness
        return scores

    def _linear(self, name: str, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"] | str:
        if name in self.missing:
            return self.missing[name]
        weight = self.arrays[f"{name}.weight"]
        if len(weight) != x.shape[1]:
            return "the training bags' coordinates have another number of axes"
        return x @ weight + self.arrays[f"{name}.bias"]

    def save(self, path: Path) -> None:
        """Write the maps to a safetensors file, atomically."""
        header = {"format": FORMAT, "missing": dict(self.missing), "about": dict(self.about)}
        arrays = {
            name: np.ascontiguousarray(array, np.float64) for name, array in self.arrays.items()
        }
        with replacing(path) as temporary:
            save_file(arrays, temporary, metadata={"probsa_null_maps": json.dumps(header)})

    @classmethod
    def load(cls, path: Path) -> "NullMaps":
        """Read the maps that `save` wrote.

        Raises:
            CheckpointError: the file is damaged or is something else.
        """
        try:
            with safe_open(path, framework="np") as f:
                header = (f.metadata() or {}).get("probsa_null_maps")
                arrays = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as e:
            raise CheckpointError(f"{path} is damaged or not a safetensors file ({e})") from e
        values = parse_json(header or "{}", where=str(path), advice=ADVICE, error=CheckpointError)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise CheckpointError(f"{path} does not hold null maps of format {FORMAT}: {ADVICE}")
        stored = as_record(_Header, values, where=str(path), advice=ADVICE, error=CheckpointError)
        width = arrays["mean"].size if "mean" in arrays else 0
        shapes: dict[str, tuple[int | None, ...]] = {
            "mean": (width,),
            "deviation": (width,),
            "whitening": (width, width),
        }
        for name in FITTED:
            if name in stored.missing:
                continue
            # the number of splines depends on the number of axes
            shapes[f"{name}.weight"] = (None,) if name == "position" else (width,)
            shapes[f"{name}.bias"] = (1,)
        problem = problem_of(arrays, shapes)
        if problem is not None:
            raise CheckpointError(f"{path} is damaged: {problem}. {ADVICE.capitalize()}")
        return cls(arrays=arrays, missing=stored.missing, about=stored.about)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """What the file of null maps states."""

    missing: dict[str, str]
    about: dict[str, Any]


def centre(coords: Shaped[np.ndarray, "n axes"] | None) -> Float[np.ndarray, " n"] | str:
    """Return minus the distance of each instance from the middle of the coordinates' range."""
    if coords is None:
        return NO_COORDINATES
    place = coords.astype(np.float64)
    return -np.linalg.norm(place - (place.min(0) + place.max(0)) / 2, axis=1)


def position_basis(coords: Shaped[np.ndarray, "n axes"]) -> Float[np.ndarray, "n columns"]:
    """Return cubic B-splines of the coordinates, scaled to [0, 1] within the bag.

    With two axes, the columns are the products of the splines of both.
    """
    place = coords.astype(np.float64)
    low = place.min(0)
    high = place.max(0)
    # on an axis without extent, all instances are in the middle
    extent = np.where(high > low, high - low, 1.0)
    unit = np.where(high > low, (place - low) / extent, 0.5)
    # fitted to the ends of [0, 1], so that the knots are the same for every bag
    splines = SplineTransformer(n_knots=KNOTS, degree=3).fit(np.array([[0.0], [1.0]]))
    columns = splines.transform(unit[:, :1])
    for axis in range(1, unit.shape[1]):
        other = splines.transform(unit[:, axis : axis + 1])
        columns = (columns[:, :, None] * other[:, None, :]).reshape(len(unit), -1)
    return columns


def fit_null_maps(
    read: Callable[[str], StoredBag],
    *,
    train: Sequence[str],
    validation: Sequence[str],
    labels: Mapping[str, int],
) -> NullMaps:
    """Fit the null maps on training bags, which are read once, one at a time.

    At most `sample_size` instances of each bag are kept (all bags together: 20,000), a random
    sample that depends on the bag's name.

    Args:
        read: reads a bag.
        train: the training bags.
        validation: the validation bags, on which the regressions choose C; C is 1 without any.
        labels: the class of each bag; class 0 is negative, any other positive.

    Raises:
        InputError: there are no training bags.
        BagError: the features of a bag are not finite.
    """
    if not train:
        raise InputError("there are no training bags to fit null maps on")
    per_bag = sample_size(len(train))
    trained = _gathered(map(read, train), labels, per_bag=per_bag)
    validated = _gathered(map(read, validation), labels, per_bag=0)
    features = trained["features"]
    whitener, shrinkage = whitening((features.rows - features.mean) / features.deviation)
    arrays = {"mean": features.mean, "deviation": features.deviation, "whitening": whitener}
    about: dict[str, Any] = {
        "training_bags": len(train),
        "validation_bags": len(validation),
        "instances": len(features.rows),
        "instances_per_bag": per_bag,
        "shrinkage": shrinkage,
        "seed": SEED,
    }
    missing: dict[str, str] = {}
    for name in FITTED:
        columns = "position" if name == "position" else "features"
        training = trained.get(columns)
        if training is None:
            missing[name] = f"{NO_COORDINATES} in the training bags"
            continue
        if len(set(training.y.tolist())) == 1:
            label = "positive" if training.y.all() else "negative"
            missing[name] = (
                f"cannot be fitted: all {len(training.y)} training bags are {label}, and a "
                "regression needs both labels"
            )
            continue
        level = "means" if name == "mean_features" else "instances"
        fit = fit_logistic(training, validated.get(columns), on=level)
        weight = fit.weight[0]
        bias = fit.bias
        if name == "position":  # the fit standardises its columns, and `scores` does not
            weight = weight / training.deviation
            bias = bias - training.mean @ weight
        arrays |= {f"{name}.weight": weight, f"{name}.bias": bias}
        about[f"{name}_C"] = fit.c
    return NullMaps(arrays=arrays, missing=missing, about=about)


def _gathered(
    bags: Iterable[StoredBag], labels: Mapping[str, int], *, per_bag: int
) -> dict[str, BagFeatures]:
    """Return the `features` of the bags, and of bags with coordinates the bases of `position`."""
    sums = {name: FeatureSums(per_bag=per_bag, seed=SEED) for name in ("features", "position")}
    axes = None  # of the first bag with coordinates; bases of others do not fit together
    for bag in bags:
        positive = int(labels[bag.name] > 0)
        sums["features"].add(bag.name, bag.features, y=positive)
        if bag.coords is None:
            continue
        if axes is None:
            axes = bag.coords.shape[1]
        if bag.coords.shape[1] == axes:
            sums["position"].add(bag.name, position_basis(bag.coords), y=positive)
    return {name: sum_of_bags.result() for name, sum_of_bags in sums.items() if sum_of_bags}


def null_maps_file(run: Path) -> Path:
    """Return the path of a run's fitted null maps."""
    return run / "null_maps.safetensors"


def write_null_scores(
    predictions: Path,
    maps: NullMaps | MeansOfRuns,
    *,
    read: Callable[[str], Any],
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
        with replacing_hdf5(named_file(folder, name, ".h5")) as f:
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
    path = named_file(parent / NULL_SCORES, name, ".h5")
    if not path.is_file():
        return dict.fromkeys(NULL_MAPS, f"no scores of bag {name!r} are stored")
    scores: Scores = {}
    with open_hdf5(path, again=AGAIN) as f:
        for null_map in NULL_MAPS:
            reason = f.attrs.get(null_map)
            if reason is not None and not isinstance(reason, str):
                raise BagError(
                    f"{path}: the attribute {null_map!r} is {str(reason)[:80]}, expected a text: "
                    f"{AGAIN}"
                )
            if reason is not None:
                scores[null_map] = reason
            dataset = dataset_of(f, null_map, again=AGAIN)
            if dataset is None:
                continue
            # the stated size is compared before anything is read
            ONE_NUMBER.check(dataset, what=null_map, where=path, rows=instances, again=AGAIN)
            values = np.asarray(dataset[...], np.float64)
            if not np.isfinite(values).all():
                raise BagError(f"{path}: {null_map} has values that are not finite: {AGAIN}")
            scores[null_map] = values
    return scores


def about_null_maps(parent: Path) -> dict[str, Any] | None:
    """Return what is known of the fit, or None if no scores of null maps are stored in a folder."""
    path = parent / NULL_SCORES / ABOUT
    if not path.is_file():
        return None
    return as_record(dict[str, Any], read_json(path, advice=AGAIN), where=str(path), advice=AGAIN)


def labelled_bags(predictions: Path) -> Iterator[str]:
    """Yield the names of the predicted bags that have instance labels."""
    for path in sorted((predictions / INSTANCES).glob("*.h5")):
        with open_hdf5(path, again=AGAIN) as f:
            if "instance_labels" in f:
                yield path.stem
