"""Synthetic slides that need no download: scikit-learn's handwritten digits laid out as tissue.

Positive slides contain contiguous lesions of one digit. All slides contain regions of similar
digits, and noise makes single patches ambiguous. Train, val and test share no digit image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import ndimage

from ..core import seed_of, write_bag, write_csv
from ..errors import InputError

LESION_DIGIT = 3
LOOKALIKE_DIGITS = (2, 5, 8)
STRIDE = 256
"""Level-0 pixels between neighbouring patches."""
PARTS = {"train": 0.5, "val": 0.2, "test": 0.3}
"""Share of the slides and of the digit images in each part."""
SIZE = (16, 16)
"""Columns and rows of a slide; tissue covers about half of it."""
LESION = (6, 16)
"""Minimum and maximum number of patches of a lesion; a positive slide has one or two."""
NOISE = 0.65
"""Standard deviation of the noise that is added to pixels in [0, 1]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DigitSlide:
    """One slide of n patches."""

    name: str
    features: Float[np.ndarray, "n 64"]
    """float32; pixels in [0, 1] plus noise, multiplied by an orthogonal matrix."""
    coords: Int[np.ndarray, "n 2"]
    """Level-0 (x, y) of each patch's top-left corner."""
    label: int
    instance_labels: Int[np.ndarray, " n"]
    """1 for patches of a lesion."""
    split: str
    digits: Int[np.ndarray, " n"] = field(repr=False)
    """The row of each patch's image in scikit-learn's `load_digits`."""


def digit_slides(*, bags: int, seed: int) -> list[DigitSlide]:
    """Make slides, half of them positive in each part; equal arguments give equal slides.

    Raises:
        InputError: there are fewer than 12 bags.
    """
    if bags < 12:
        raise InputError(f"digit slides need at least 12 bags, not {bags}")
    mixing = np.linalg.qr(np.random.default_rng(seed_of(seed, "mixing")).normal(size=(64, 64)))[0]
    pools = _pools(seed)
    slides = []
    cuts, pairs = np.cumsum(list(PARTS.values())), (bags + 1) // 2
    for index in range(bags):
        # pairs (negative, positive) share a part, for balance
        part = list(PARTS)[int(np.searchsorted(cuts, (index // 2 + 0.5) / pairs))]
        rng = np.random.default_rng(seed_of(seed, "slide", index))
        tissue = _tissue(rng)
        in_lesion = np.zeros_like(tissue)
        if index % 2:
            for _ in range(rng.integers(1, 3)):
                in_lesion |= blob(rng, tissue, cells=int(rng.integers(LESION[0], LESION[1] + 1)))
        digit_of_cell = _regions(rng, tissue)
        digit_of_cell[in_lesion] = LESION_DIGIT
        rows, columns = np.nonzero(tissue)
        image_pools = [pools[part][digit] for digit in digit_of_cell[tissue]]
        digits = np.array([pool[rng.integers(len(pool))] for pool in image_pools])
        pixels = _digits()[0][digits] + NOISE * rng.normal(size=(len(digits), 64))
        slides.append(
            DigitSlide(
                name=f"slide_{index:03d}",
                features=(pixels @ mixing).astype(np.float32),
                coords=np.stack([columns, rows], axis=1) * STRIDE,
                label=index % 2,
                instance_labels=in_lesion[tissue].astype(np.int64),
                split=part,
                digits=digits,
            )
        )
    return slides


def write_digit_slides(folder: Path, *, bags: int, seed: int) -> Sequence[DigitSlide]:
    """Write `features/<slide>.h5` and `labels.csv` (with a split column); return the slides."""
    slides = digit_slides(bags=bags, seed=seed)
    for slide in slides:
        write_bag(
            folder / "features" / f"{slide.name}.h5",
            features=slide.features,
            coords=slide.coords,
            kind="slide",
            instance_labels=slide.instance_labels,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
    rows = [{"bag": slide.name, "label": slide.label, "split": slide.split} for slide in slides]
    write_csv(folder / "labels.csv", ("bag", "label", "split"), rows)
    return slides


@cache
def _digits() -> tuple[Float[np.ndarray, "images 64"], Int[np.ndarray, " images"]]:
    """Return the 1,797 images of 8×8 pixels in [0, 1], and the digit of each."""
    from sklearn.datasets import load_digits  # takes 0.1 s, which only the demo needs

    pixels, digit = load_digits(return_X_y=True)
    return np.asarray(pixels) / 16, np.asarray(digit).astype(np.int64)


def _pools(seed: int) -> dict[str, list[Int[np.ndarray, " k"]]]:
    """Return the image rows of each part and digit; no image is in two parts."""
    digit = _digits()[1]
    pools: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for digit_class in range(10):
        images = np.random.default_rng(seed_of(seed, "pool", digit_class)).permutation(
            np.flatnonzero(digit == digit_class)
        )
        cuts = (np.cumsum(list(PARTS.values()))[:-1] * len(images)).astype(int)
        for part, part_images in zip(PARTS, np.split(images, cuts), strict=True):
            pools[part].append(part_images)
    return pools


def _tissue(rng: np.random.Generator) -> Bool[np.ndarray, "rows columns"]:
    """Draw an irregular piece of tissue, sometimes two, with holes."""
    columns, rows = SIZE
    y, x = np.mgrid[:rows, :columns]
    rough = ndimage.gaussian_filter(rng.normal(size=(rows, columns)), 1.6)
    rough /= rough.std()
    islands = 2 if rng.random() < 0.3 else 1
    field = np.full((rows, columns), -np.inf)
    for k in range(islands):
        cx = columns * (rng.uniform(0.4, 0.6) if islands == 1 else (0.25, 0.75)[k])
        cy = rows * rng.uniform(0.4, 0.6)
        rx, ry = columns * (0.42 if islands == 1 else 0.22), rows * 0.42
        field = np.maximum(field, 1 - ((x + 0.5 - cx) / rx) ** 2 - ((y + 0.5 - cy) / ry) ** 2)
    tissue = field + 0.3 * rough > 0
    holes = ndimage.gaussian_filter(rng.normal(size=(rows, columns)), 1.0)
    return tissue & (holes < 2.0 * holes.std())


def blob(
    rng: np.random.Generator, tissue: Bool[np.ndarray, "rows columns"], *, cells: int
) -> Bool[np.ndarray, "rows columns"]:
    """Grow a region from a random tissue cell, connected by sides."""
    region = np.zeros_like(tissue)
    start = rng.choice(np.argwhere(tissue))
    region[tuple(start)] = True
    while region.sum() < cells:
        border = np.argwhere(ndimage.binary_dilation(region) & tissue & ~region)
        if not len(border):
            break
        region[tuple(rng.choice(border))] = True
    return region


def _regions(
    rng: np.random.Generator, tissue: Bool[np.ndarray, "rows columns"]
) -> Int[np.ndarray, "rows columns"]:
    """Assign a digit to each cell: regions around random centres, and a quarter random cells.

    About a third of the regions have a digit that resembles the lesion's.
    """
    others = [digit for digit in range(10) if digit != LESION_DIGIT]
    rows, columns = tissue.shape
    y, x = np.mgrid[:rows, :columns]
    centres = rng.uniform(0, 1, (12, 2)) * (rows, columns)
    nearest_centre = (
        (y[..., None] - centres[:, 0]) ** 2 + (x[..., None] - centres[:, 1]) ** 2
    ).argmin(-1)
    is_lookalike = rng.random(12) < 1 / 3
    region_digits = np.where(is_lookalike, rng.choice(LOOKALIKE_DIGITS, 12), rng.choice(others, 12))
    mixed = rng.random(tissue.shape) < 0.25
    return np.where(mixed, rng.choice(others, tissue.shape), region_digits[nearest_centre])
