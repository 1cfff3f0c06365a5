"""Simulated cohorts with known weak lesions, contiguous or (null) without signal.

Instances are noise, N(0, I); those of a lesion are shifted by `signal` along a fixed direction, so
the best score computed from one instance alone has AUROC Φ(signal / √2). In a `null` cohort,
features are independent of the labels.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from ..core import seed_of, write_bag, write_csv
from ..errors import InputError
from .synthetic import STRIDE, blob

FOLDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedBag:
    """One slide of columns × rows instances, row by row."""

    name: str
    features: Float[np.ndarray, "n features"]
    """float32."""
    label: int
    """1 if the bag has a lesion."""
    instance_labels: Int[np.ndarray, " n"]
    """1 for instances of the lesion."""


def write_simulated(
    folder: Path,
    *,
    bags: int,
    layout: Literal["contiguous", "null"],
    seed: int,
    size: tuple[int, int] = (12, 12),
    lesion: tuple[int, int] = (8, 20),
    features: int = 32,
    signal: float = 1.0,
) -> list[SimulatedBag]:
    """Write `features/<bag>.h5` and `labels.csv` (with folds), and return the bags.

    Half of the bags have one lesion, whose instances are connected by sides. Equal arguments give
    equal bags, and both layouts of a seed share noise and lesions.

    Args:
        folder: Output folder; existing files are replaced.
        bags: Number of bags, at least 10 so that every fold has both classes.
        layout: `null`: lesions without signal in the features.
        seed: Random seed.
        size: (columns, rows) of the lattice.
        lesion: Minimum and maximum number of instances of a lesion.
        features: Number of features.
        signal: Shift of lesion instances, in std of the noise.

    Raises:
        InputError: there are too few bags, or the lattice cannot hold the lesions.
    """
    cells = size[0] * size[1]
    if bags < 2 * FOLDS or features < 1 or signal < 0 or not 1 <= lesion[0] <= lesion[1] < cells:
        raise InputError(
            f"{bags} bags of {size[0]} × {size[1]} instances with {features} features, lesions of "
            f"{lesion[0]} to {lesion[1]}, signal {signal:g}: give {2 * FOLDS} bags or more, 1 "
            f"feature or more, lesions of 1 to {cells - 1}, and a signal of at least 0"
        )
    direction = np.random.default_rng(seed_of(seed, "direction")).normal(size=features)
    direction *= (0.0 if layout == "null" else signal) / np.linalg.norm(direction)
    y, x = np.divmod(np.arange(cells), size[0])
    made, rows = [], []
    for k in range(bags):
        noise, counts, places = (
            np.random.default_rng(seed_of(seed, stream, k))
            for stream in ("noise", "lesion", "places")
        )
        values = noise.normal(size=(cells, features))
        count = int(counts.integers(*lesion, endpoint=True))
        marked = blob(places, np.ones(size[::-1], dtype=bool), cells=count).reshape(-1)
        marked &= bool(k % 2)
        values[marked] += direction
        bag = SimulatedBag(
            name=f"sim_{k:04d}",
            features=values.astype(np.float32),
            label=k % 2,
            instance_labels=marked.astype(np.int64),
        )
        write_bag(
            folder / "features" / f"{bag.name}.h5",
            features=bag.features,
            coords=np.stack([x, y], axis=1) * STRIDE,
            kind="slide",
            instance_labels=bag.instance_labels,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
        made.append(bag)
        rows.append({"bag": bag.name, "label": bag.label, "fold": k // 2 % FOLDS})
    write_csv(folder / "labels.csv", ("bag", "label", "fold"), rows)
    return made
