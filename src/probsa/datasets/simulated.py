"""Simulated cohorts with known weak lesions: contiguous, scattered, or (null) without signal.

Instances are noise, N(0, I); those of a lesion are shifted by `signal` along a fixed direction. In
each layout, the best score computed from one instance alone has AUROC Φ(signal / √2). Neighbours
add information if lesions are `contiguous`. A `decoy` is a second, scattered shift in positive
bags, which bag labels cannot distinguish from the lesion. In a `null` cohort, features are
independent of the labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ..core import seed_of, write_bag, write_csv
from ..errors import InputError
from .synthetic import STRIDE, blob

Layout = Literal["contiguous", "scattered", "null"]

FOLDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedBag:
    """One slide of columns × rows instances."""

    name: str
    features: Float[np.ndarray, "n features"]
    """float32."""
    coords: Int[np.ndarray, "n 2"]
    """Level-0 (x, y) of each patch's top-left corner, row by row."""
    label: int
    """1 if the bag has a lesion."""
    instance_labels: Int[np.ndarray, " n"]
    """1 for instances of the lesion."""
    fold: int
    """0 to 4; every fold has both classes."""


def simulated_cohort(
    *,
    bags: int,
    layout: Layout,
    seed: int,
    size: tuple[int, int] = (12, 12),
    lesion: tuple[int, int] = (8, 20),
    features: int = 32,
    signal: float = 1.0,
    decoy: float = 0.0,
) -> Sequence[SimulatedBag]:
    """Simulate bags, half of them with one lesion; equal arguments give equal bags.

        from probsa.datasets.simulated import simulated_cohort

        for bag in simulated_cohort(bags=100, layout="contiguous", seed=0):
            print(bag.name, bag.label, bag.features.shape, bag.instance_labels.sum())

    Args:
        bags: Number of bags, at least 10 so that every fold has both classes.
        layout: `contiguous`: lesions are connected by sides; `scattered`: lesions are the same
            number of random instances; `null`: connected, but without signal in the features.
        seed: Random seed. Layouts with the same seed share noise, direction and lesion sizes.
        size: (columns, rows) of the lattice.
        lesion: Minimum and maximum number of instances of a lesion.
        features: Number of features.
        signal: Shift of lesion instances, in std of the noise.
        decoy: Shift of the decoys: in each bag with a lesion, an equal number of other instances
            is shifted along a direction orthogonal to that of the lesion. 0: no decoys.

    Raises:
        InputError: there are too few bags, or the lattice cannot hold the lesions.
    """
    _check(bags, size=size, lesion=lesion, features=features, signal=min(signal, decoy))
    cells = size[0] * size[1]
    direction = _direction(seed, "direction", features)
    decoy_direction = _direction(seed, "decoy", features)
    decoy_direction -= (decoy_direction @ direction) * direction
    decoy_direction *= decoy / np.linalg.norm(decoy_direction) if decoy else 0.0
    direction *= 0.0 if layout == "null" else signal
    simulated = []
    for index in range(bags):
        noise = np.random.default_rng(seed_of(seed, "noise", index)).normal(size=(cells, features))
        count = int(
            np.random.default_rng(seed_of(seed, "lesion", index)).integers(lesion[0], lesion[1] + 1)
        )
        rng = np.random.default_rng(seed_of(seed, "places", index))
        in_lesion = _places(rng, size, layout, count=count)
        decoy_cells = np.random.default_rng(seed_of(seed, "elsewhere", index)).permutation(
            np.flatnonzero(~in_lesion)
        )[:count]
        if index % 2:
            noise[in_lesion] += direction
            noise[decoy_cells] += decoy_direction
        simulated.append(_bag(index, noise, in_lesion & bool(index % 2), size=size))
    return simulated


def _bag(
    k: int,
    features: Float[np.ndarray, "n features"],
    marked: Bool[np.ndarray, " n"],
    *,
    size: tuple[int, int],
) -> SimulatedBag:
    y, x = np.divmod(np.arange(len(marked)), size[0])
    return SimulatedBag(
        name=f"sim_{k:04d}",
        features=features.astype(np.float32),
        coords=np.stack([x, y], axis=1) * STRIDE,
        label=k % 2,
        instance_labels=marked.astype(np.int64),
        fold=k // 2 % FOLDS,
    )


def write_simulated(  # noqa: PLR0913 - the parameters are independent
    folder: Path,
    *,
    bags: int,
    layout: Layout,
    seed: int,
    size: tuple[int, int] = (12, 12),
    lesion: tuple[int, int] = (8, 20),
    features: int = 32,
    signal: float = 1.0,
    decoy: float = 0.0,
) -> Sequence[SimulatedBag]:
    """Write `features/<bag>.h5` and `labels.csv` (with folds), and return the bags.

    Arguments and errors are those of `simulated_cohort`. Existing files are replaced.
    """
    simulated = simulated_cohort(
        bags=bags, layout=layout, seed=seed, size=size, lesion=lesion, features=features,
        signal=signal, decoy=decoy,
    )  # fmt: skip
    for bag in simulated:
        write_bag(
            folder / "features" / f"{bag.name}.h5",
            features=bag.features,
            coords=bag.coords,
            kind="slide",
            instance_labels=bag.instance_labels,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
    rows = [{"bag": b.name, "label": b.label, "fold": b.fold} for b in simulated]
    write_csv(folder / "labels.csv", ("bag", "label", "fold"), rows)
    return simulated


def _direction(seed: int, name: str, features: int) -> Float[np.ndarray, " features"]:
    """Return a random unit vector."""
    vector = np.random.default_rng(seed_of(seed, name)).normal(size=features)
    return vector / np.linalg.norm(vector)


def _check(
    bags: int, *, size: tuple[int, int], lesion: tuple[int, int], features: int, signal: float
) -> None:
    cells = size[0] * size[1]
    if bags < 2 * FOLDS or features < 1 or signal < 0:
        raise InputError(
            f"{bags} bags of {features} features, signal {signal:g}: give {2 * FOLDS} bags or "
            "more, 1 feature or more, and a signal of at least 0"
        )
    if min(size) < 1 or not 1 <= lesion[0] <= lesion[1] < cells:
        raise InputError(
            f"lesions of {lesion[0]} to {lesion[1]} instances do not fit a lattice of {size[0]} × "
            f"{size[1]}: give 1 or more, and fewer than {cells}"
        )


def _places(
    rng: np.random.Generator, size: tuple[int, int], layout: Layout, *, count: int
) -> Bool[np.ndarray, " n"]:
    """Return the mask of the cells of a lesion."""
    cells = size[0] * size[1]
    if layout == "scattered":
        in_lesion = np.zeros(cells, dtype=bool)
        in_lesion[rng.choice(cells, count, replace=False)] = True
        return in_lesion
    return blob(rng, np.ones((size[1], size[0]), dtype=bool), cells=count).reshape(-1)
