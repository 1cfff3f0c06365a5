"""Cohorts whose right answer is known: the same weak lesions, contiguous, scattered or unseen.

Every instance is noise, N(0, I); one of a lesion is moved by `signal` along a direction of the
cohort's own. The best score of a single instance has AUROC Φ(signal / √2), whatever the layout:
neighbours tell more where lesions are `contiguous`. A `decoy` is a second, scattered sign of the
label: bags' labels do not say which of the two is the lesion. In a `null` cohort they tell nothing.
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
    """1: it has a lesion."""
    instance_labels: Int[np.ndarray, " n"]
    """1: an instance of the lesion."""
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
    """Half of the bags with one lesion each; the same for the same arguments.

        from probsa.datasets.simulated import simulated_cohort

        for bag in simulated_cohort(bags=100, layout="contiguous", seed=0):
            print(bag.name, bag.label, bag.features.shape, bag.instance_labels.sum())

    Args:
        bags: how many; 10 at least, so that every fold has both classes.
        layout: lesions as one connected piece (sides only); as many instances anywhere; or, `null`,
            as one piece that features do not show.
        seed: of everything. Layouts of one seed share noise, direction and sizes of lesions.
        size: (columns, rows) of the lattice.
        lesion: fewest and most instances of a lesion.
        features: width.
        signal: distance of lesion instances from the others, in deviations of the noise.
        decoy: that of as many instances anywhere else in a bag with a lesion, along a direction of
            their own, at a right angle to the lesion's; 0: there are none.

    Raises:
        InputError: too few bags, or lesions that the lattice cannot hold.
    """
    _check(bags, size=size, lesion=lesion, features=features, signal=min(signal, decoy))
    cells = size[0] * size[1]
    direction = _direction(seed, "direction", features)
    other = _direction(seed, "decoy", features)
    other -= (other @ direction) * direction
    other *= decoy / np.linalg.norm(other) if decoy else 0.0
    direction *= 0.0 if layout == "null" else signal
    made = []
    for k in range(bags):
        noise = np.random.default_rng(seed_of(seed, "noise", k)).normal(size=(cells, features))
        several = int(
            np.random.default_rng(seed_of(seed, "lesion", k)).integers(lesion[0], lesion[1] + 1)
        )
        places = np.random.default_rng(seed_of(seed, "places", k))
        there = _places(places, size, layout, count=several)
        elsewhere = np.random.default_rng(seed_of(seed, "elsewhere", k)).permutation(
            np.flatnonzero(~there)
        )[:several]
        if k % 2:
            noise[there] += direction
            noise[elsewhere] += other
        made.append(_bag(k, noise, there & bool(k % 2), size=size))
    return made


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


def write_simulated(  # noqa: PLR0913 - each is a choice of its own
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
    """Writes `features/<bag>.h5` and `labels.csv` (with folds), and gives the bags.

    Args and errors as `simulated_cohort`; what is there already of the same names is replaced.
    """
    made = simulated_cohort(
        bags=bags, layout=layout, seed=seed, size=size, lesion=lesion, features=features,
        signal=signal, decoy=decoy,
    )  # fmt: skip
    for bag in made:
        write_bag(
            folder / "features" / f"{bag.name}.h5",
            features=bag.features,
            coords=bag.coords,
            kind="slide",
            instance_labels=bag.instance_labels,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
    rows = [{"bag": b.name, "label": b.label, "fold": b.fold} for b in made]
    write_csv(folder / "labels.csv", ("bag", "label", "fold"), rows)
    return made


def _direction(seed: int, name: str, features: int) -> Float[np.ndarray, " features"]:
    """Of length 1."""
    found = np.random.default_rng(seed_of(seed, name)).normal(size=features)
    return found / np.linalg.norm(found)


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
    """Which cells a lesion takes."""
    cells = size[0] * size[1]
    if layout == "scattered":
        there = np.zeros(cells, dtype=bool)
        there[rng.choice(cells, count, replace=False)] = True
        return there
    return blob(rng, np.ones((size[1], size[0]), dtype=bool), cells=count).reshape(-1)
