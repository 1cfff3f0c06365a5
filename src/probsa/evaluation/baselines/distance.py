"""How far the features of bags and instances are from those of training.

The distance is Mahalanobis' with a shrunk covariance (Ledoit and Wolf, J. Multivar. Anal. 2004) of
standardised features: for a bag, that of its mean features; for an instance, that of its own. A
percentile among the validation bags, which the fit does not use, makes it readable. Labels are not
used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf

from ...core import (
    Bag,
    load_arrays,
    random_stream,
    read_json,
    remove_written,
    replacing,
    write_json,
)
from ...datasets import Split
from ...errors import BagError, InputError
from ...training import RunFolder

FLOOR = 1e-10
"""Smallest eigenvalue of the covariance, relative to the largest one."""
MOST_INSTANCES = 10_000
"""Largest number of instances that a fit uses, and to which an instance is compared."""
FEWEST_BAGS = 2
BLOCK = 8192
"""Number of instances measured at once, so that a slide needs no float64 copy."""
LEVELS = ("bags", "instances")
VALIDATION_PATIENTS = "validation_patients"
ADVICE = "delete it to predict without them"


@dataclass(frozen=True, slots=True)
class Gaussian:
    """The standardised features of training, as a normal distribution, and validation distances."""

    scale_mean: Float[np.ndarray, " d"]
    scale_deviation: Float[np.ndarray, " d"]
    mean: Float[np.ndarray, " d"]
    whitening: Float[np.ndarray, "d d"]
    """W with W Wᵀ = Σ⁻¹, so that the distance is ‖(x - mean) W‖."""
    reference: Float[np.ndarray, " validation"] = field(default_factory=lambda: np.zeros(0))
    """Distances of validation items, ascending."""

    @classmethod
    def fit(
        cls, x: Float[np.ndarray, "n d"], *, validation: Float[np.ndarray, "m d"]
    ) -> "Gaussian":
        """Fit the features of training items; `validation` gives the distances to compare with."""
        mean = x.mean(0)
        deviation = x.std(0)
        # constant features keep a deviation of 1: rounding errors would be blown up otherwise
        constant = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-6)
        deviation = np.where(constant, 1.0, deviation)
        z = (x - mean) / deviation
        fitted = cls(mean, deviation, mean=z.mean(0), whitening=whitening(z)[0])
        return replace(fitted, reference=np.sort(fitted.distance(validation)))

    def distance(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return the distance of each item."""
        distance = np.zeros(len(x))
        for start in range(0, len(x), BLOCK):
            block = x[start : start + BLOCK].astype(np.float64)
            z = (block - self.scale_mean) / self.scale_deviation - self.mean
            distance[start : start + BLOCK] = np.linalg.norm(z @ self.whitening, axis=1)
        return distance

    def percentile(self, distance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the share of the validation items that are nearer, half of those as near.

        1 is beyond all.
        """
        below = np.searchsorted(self.reference, distance, side="left")
        until = np.searchsorted(self.reference, distance, side="right")
        return (below + until) / (2 * len(self.reference))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingDistance:
    """The distances of bags and of their instances from the training part of a run."""

    bags: Gaussian
    instances: Gaussian
    about: dict[str, Any]
    """How many bags and instances were used; of a run, also how many validation patients."""

    @classmethod
    def fit(
        cls,
        read: Callable[[str], Bag],
        *,
        training: Sequence[str],
        validation: Sequence[str],
        seed: int = 0,
    ) -> "TrainingDistance | None":
        """Fit the features of a training part; None with fewer than two bags in a part.

        Bags are read one at a time, and of each at most 10,000 / (number of bags) instances are
        kept, at random by seed and name.

        Args:
            read: reads a bag; bags that cannot be read are passed over.
            training: names of the training bags.
            validation: names of the validation bags.
            seed: seed of the choice of instances.
        """
        trained = _features(read, training, seed=seed)
        validated = _features(read, validation, seed=seed)
        if min(len(trained["bags"]), len(validated["bags"])) < FEWEST_BAGS:
            return None
        return cls(
            bags=Gaussian.fit(trained["bags"], validation=validated["bags"]),
            instances=Gaussian.fit(trained["instances"], validation=validated["instances"]),
            about={
                "training_bags": len(trained["bags"]),
                "training_instances": len(trained["instances"]),
                "validation_bags": len(validated["bags"]),
                "validation_instances": len(validated["instances"]),
                "features": trained["bags"].shape[1],
                "seed": seed,
            },
        )

    def scores(self, bag: Bag) -> dict[str, Any]:
        """Return the distances of a bag and its instances, by field of `Prediction`.

        Raises:
            BagError: the bag has another number of features than those of training.
        """
        x = bag.x.numpy()
        width = len(self.bags.scale_mean)
        if x.shape[1] != width:
            raise BagError(
                f"bag {bag.name!r} has {x.shape[1]} features per instance, those of training "
                f"{width}: extract them with the encoder that the run was trained on"
            )
        bag_distance = self.bags.distance(_mean(x))
        instance_distances = self.instances.distance(x)
        return {
            "bag_ood": float(self.bags.percentile(bag_distance)[0]),
            "bag_ood_distance": float(bag_distance[0]),
            "ood": self.instances.percentile(instance_distances).astype(np.float32),
            "ood_distance": instance_distances.astype(np.float32),
        }

    def write(self, path: Path) -> None:
        """Write the arrays as .npz, and what they were fitted on as .json beside it."""
        arrays: dict[str, Any] = {}
        for level, gaussian in (("bags", self.bags), ("instances", self.instances)):
            for name, array in asdict(gaussian).items():
                arrays[f"{level}_{name}"] = array.astype(np.float32)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        write_json(path.with_suffix(".json"), self.about)

    @classmethod
    def read(cls, path: Path) -> "TrainingDistance":
        """Read what `write` wrote.

        Raises:
            InputError: the file is damaged or has other contents.
        """
        what = f"{path} does not hold the distances of a run"
        try:
            arrays = load_arrays(path)
        except BagError as error:
            raise InputError(f"{what} ({error}): {ADVICE}") from error
        width = arrays["bags_scale_mean"].size if "bags_scale_mean" in arrays else 0
        shape_of: dict[str, tuple[int | None, ...]] = {f.name: (width,) for f in fields(Gaussian)}
        shape_of |= {"whitening": (width, width), "reference": (None,)}
        shapes: dict[str, tuple[int | None, ...]] = {}
        for level in LEVELS:
            shapes |= {f"{level}_{name}": shape for name, shape in shape_of.items()}
        problem = problem_of(arrays, shapes)
        if problem is not None:
            raise InputError(f"{what}: {problem}: {ADVICE}")
        gaussians: dict[str, Gaussian] = {}
        for level in LEVELS:
            fitted = {name: arrays[f"{level}_{name}"].astype(np.float64) for name in shape_of}
            gaussians[level] = Gaussian(**fitted)
        beside = path.with_suffix(".json")
        about = read_json(beside, advice=ADVICE) if beside.is_file() else {}
        return cls(bags=gaussians["bags"], instances=gaussians["instances"], about=about)


def fit_run_distance(
    run: RunFolder, read: Callable[[str], Bag], *, split: Split, patients: Mapping[str, str]
) -> TrainingDistance | None:
    """Fit and store the distances from the training features of a run; None if it has too few bags.

    They are read back, so that they are the same as in later predictions. `patients` holds the
    patient of each bag.
    """
    fitted = TrainingDistance.fit(
        read, training=split.train, validation=split.val, seed=run.config().seed
    )
    if fitted is None:
        remove_written(run.distance_file)
        return None
    validation_patients = len({patients[name] for name in split.val})
    about = {**fitted.about, VALIDATION_PATIENTS: validation_patients}
    replace(fitted, about=about).write(run.distance_file)
    return TrainingDistance.read(run.distance_file)


def _features(
    read: Callable[[str], Bag], names: Sequence[str], *, seed: int
) -> dict[str, Float[np.ndarray, "items d"]]:
    """Return by level the mean features of each bag, and a sample of the instances of all."""
    most_of_bag = max(1, MOST_INSTANCES // max(len(names), 1))
    means: list[np.ndarray] = []
    samples: list[np.ndarray] = []
    for name in names:
        try:
            bag = read(name)
        except BagError:  # the prediction of the bag reports the problem
            continue
        x = bag.x.numpy()
        generator = random_stream(seed, "training distance", bag.name)
        chosen = torch.randperm(len(x), generator=generator)[:most_of_bag].numpy()
        means.append(_mean(x))
        samples.append(x[np.sort(chosen)].astype(np.float64))
    nothing = [np.zeros((0, 0))]
    return {
        "bags": np.concatenate(means or nothing),
        "instances": np.concatenate(samples or nothing),
    }


def _mean(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "1 d"]:
    return x.mean(0, keepdims=True, dtype=np.float64)


def whitening(x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "d d"], float]:
    """Return W with W Wᵀ = Σ⁻¹, and the shrinkage of Σ.

    Σ is the covariance of the standardised features x, shrunk towards a multiple of the identity
    (Ledoit and Wolf, Journal of Multivariate Analysis 2004). The Mahalanobis distance of an item
    from a mean is ‖(x - mean) W‖.
    """
    covariance, shrinkage = ledoit_wolf(x)
    values, vectors = np.linalg.eigh(covariance)
    # directions without variance must not divide by zero
    floor = max(float(values.max()), 1e-12) * FLOOR
    return vectors / np.sqrt(np.maximum(values, floor)), float(shrinkage)


def problem_of(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int | None, ...]]
) -> str | None:
    """Say which array of a file is not of finite numbers of its shape, in which None is any size.

    None if all are.
    """
    for name, shape in shapes.items():
        if name not in arrays:
            return f"it has no array {name!r}"
        array = arrays[name]
        fits = _has_shape(array, shape)
        if not fits or array.dtype.kind != "f" or not np.isfinite(array).all():
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            return (
                f"{name} is {array.dtype} of shape {array.shape}, expected finite numbers of shape "
                f"({expected})"
            )
    return None


def _has_shape(array: np.ndarray, shape: tuple[int | None, ...]) -> bool:
    """Return whether an array has a shape, in which None is any size, and is not empty."""
    if array.ndim != len(shape):
        return False
    sizes = zip(array.shape, shape, strict=True)
    return all(n > 0 and expected in (n, None, 0) for n, expected in sizes)
