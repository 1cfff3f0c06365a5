"""Synthetic slides that need no download: handwritten digits as tissue, and simulated cohorts.

Digit slides have contiguous lesions of one digit, regions of similar digits, and noise that makes
single patches ambiguous; train, val and test share no image of scikit-learn's. The patches of a
simulated cohort are noise, N(0, I), in lesions shifted by `signal` along a fixed direction: the
best score of one patch alone has AUROC Φ(signal / √2).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image
from scipy import ndimage

from ..core import replacing, seed_of, write_bag, write_csv
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
IMAGE = 8
"""Pixels along the side of a digit's image."""
NOISE = 0.65
"""Standard deviation of the noise that is added to pixels in [0, 1]."""

FOLDS = 5
"""Number of folds of a simulated cohort."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticSlide:
    """One slide of n patches."""

    name: str
    features: Float[np.ndarray, "n features"]
    """float32; of digits, pixels in [0, 1] plus noise, multiplied by an orthogonal matrix."""
    coords: Int[np.ndarray, "n 2"]
    """Level-0 (x, y) of each patch's top-left corner."""
    label: int
    """1 if the slide has a lesion."""
    instance_labels: Int[np.ndarray, " n"]
    """1 for patches of a lesion."""
    part: str | int
    """The split of a digit slide, the fold of a simulated one."""
    digits: Int[np.ndarray, " n"] | None = field(default=None, repr=False)
    """The row of each patch's image in scikit-learn's `load_digits`."""
    images: Float[np.ndarray, "n 8 8"] | None = field(default=None, repr=False)
    """The image of each patch of a digit slide, with its noise: what its features are made of."""


def digit_slides(
    *, bags: int, seed: int, stride: int = STRIDE, size: tuple[int, int] = SIZE
) -> list[SyntheticSlide]:
    """Make slides, half of them positive in each part; equal arguments give equal slides.

    Args:
        bags: Number of slides, at least 12.
        seed: Random seed.
        stride: Level-0 pixels between neighbouring patches.
        size: Columns and rows of a slide.
    """
    if bags < 12:
        raise InputError(f"digit slides need at least 12 bags, not {bags}")
    mixing = np.linalg.qr(np.random.default_rng(seed_of(seed, "mixing")).normal(size=(64, 64)))[0]
    pools = _pools(seed)
    slides = []
    cuts = np.cumsum(list(PARTS.values()))
    pairs = (bags + 1) // 2
    for index in range(bags):
        # pairs (negative, positive) share a part, for balance
        part = list(PARTS)[int(np.searchsorted(cuts, (index // 2 + 0.5) / pairs))]
        rng = np.random.default_rng(seed_of(seed, "slide", index))
        tissue = _tissue(rng, size)
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
            SyntheticSlide(
                name=f"slide_{index:03d}",
                features=(pixels @ mixing).astype(np.float32),
                coords=np.stack([columns, rows], axis=1) * stride,
                label=index % 2,
                instance_labels=in_lesion[tissue].astype(np.int64),
                part=part,
                digits=digits,
                images=pixels.reshape(-1, IMAGE, IMAGE),
            )
        )
    return slides


def write_digit_slides(
    folder: Path | str,
    *,
    bags: int,
    seed: int,
    stride: int = STRIDE,
    size: tuple[int, int] = SIZE,
) -> Sequence[SyntheticSlide]:
    """Write `features/<slide>.h5` and `labels.csv` (with a split column); return the slides.

    The arguments are those of `digit_slides`.
    """
    slides = digit_slides(bags=bags, seed=seed, stride=stride, size=size)
    return _write(Path(folder), slides, column="split", stride=stride)


def write_digit_pictures(
    folder: Path | str,
    slides: Sequence[SyntheticSlide],
    *,
    stride: int = STRIDE,
    size: tuple[int, int] = SIZE,
) -> None:
    """Write `<slide>.png` of digit slides: dark digits with their noise, on white glass.

    Args:
        folder: Output folder.
        slides: Slides of `digit_slides`.
        stride: Level-0 pixels between neighbouring patches: those of the slides, and at least 8.
        size: Columns and rows of the slides.
    """
    enlarged = stride // IMAGE
    columns, rows = size
    for slide in slides:
        assert slide.images is not None, "only digit slides have pictures"
        picture = np.full((rows * stride, columns * stride), 255, np.uint8)
        # black and white lie one standard deviation of the noise beyond ink and paper
        grey = np.rint(255 * (1 - (slide.images + NOISE) / (1 + 2 * NOISE)).clip(0, 1))
        for (x, y), image in zip(slide.coords, grey.astype(np.uint8), strict=True):
            square = image.repeat(enlarged, axis=0).repeat(enlarged, axis=1)
            picture[y : y + len(square), x : x + len(square)] = square
        with replacing(Path(folder) / f"{slide.name}.png") as file:
            Image.fromarray(picture).convert("RGB").save(file, format="png", compress_level=1)


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
) -> Sequence[SyntheticSlide]:
    """Write `features/<bag>.h5` and `labels.csv` (with folds), and return the bags.

    Half of the bags have one lesion, whose patches are connected by sides. Equal arguments give
    equal bags, and both layouts of a seed share noise and lesions.

    Args:
        folder: Output folder; existing files are replaced.
        bags: Number of bags, at least 10 so that every fold has both classes.
        layout: `null`: lesions without signal in the features.
        seed: Random seed.
        size: (columns, rows) of the lattice.
        lesion: Minimum and maximum number of patches of a lesion.
        features: Number of features.
        signal: Shift of the patches of lesions, in std of the noise.
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
    slides = []
    for k in range(bags):
        # streams of their own, so that both layouts share noise and lesions
        noise = np.random.default_rng(seed_of(seed, "noise", k))
        counts = np.random.default_rng(seed_of(seed, "lesion", k))
        places = np.random.default_rng(seed_of(seed, "places", k))
        values = noise.normal(size=(cells, features))
        count = int(counts.integers(*lesion, endpoint=True))
        in_lesion = blob(places, np.ones(size[::-1], dtype=bool), cells=count).reshape(-1)
        in_lesion &= bool(k % 2)  # only every other bag has one
        values[in_lesion] += direction
        slide = SyntheticSlide(
            name=f"sim_{k:04d}",
            features=values.astype(np.float32),
            coords=np.stack([x, y], axis=1) * STRIDE,
            label=k % 2,
            instance_labels=in_lesion.astype(np.int64),
            part=k // 2 % FOLDS,
        )
        slides.append(slide)
    return _write(folder, slides, column="fold")


def _write(
    folder: Path, slides: Sequence[SyntheticSlide], *, column: str, stride: int = STRIDE
) -> Sequence[SyntheticSlide]:
    for slide in slides:
        write_bag(
            folder / "features" / f"{slide.name}.h5",
            features=slide.features,
            coords=slide.coords,
            kind="slide",
            instance_labels=slide.instance_labels,
            attributes={"patch_size": stride, "patch_size_level0": stride, "overlap": 0},
        )
    rows = [{"bag": slide.name, "label": slide.label, column: slide.part} for slide in slides]
    write_csv(folder / "labels.csv", ("bag", "label", column), rows)
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


def _tissue(rng: np.random.Generator, size: tuple[int, int]) -> Bool[np.ndarray, "rows columns"]:
    """Draw an irregular piece of tissue, sometimes two, with holes."""
    columns, rows = size
    y, x = np.mgrid[:rows, :columns]
    rough = ndimage.gaussian_filter(rng.normal(size=(rows, columns)), 1.6)
    rough /= rough.std()
    islands = 2 if rng.random() < 0.3 else 1
    field = np.full((rows, columns), -np.inf)
    for k in range(islands):
        if islands == 1:
            cx = columns * rng.uniform(0.4, 0.6)
            rx = columns * 0.42
        else:  # side by side
            cx = columns * (0.25, 0.75)[k]
            rx = columns * 0.22
        cy = rows * rng.uniform(0.4, 0.6)
        ry = rows * 0.42
        # positive within an ellipse around (cx, cy)
        island = 1 - ((x + 0.5 - cx) / rx) ** 2 - ((y + 0.5 - cy) / ry) ** 2
        field = np.maximum(field, island)
    # smooth noise makes the outline irregular
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
