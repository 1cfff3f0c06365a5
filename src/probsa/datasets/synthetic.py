"""Slide-like bags without a download: handwritten digits (scikit-learn's) laid out as tissue.

A positive slide holds contiguous lesions of one digit, a negative none; both hold regions of digits
that look like it, and noise makes single patches ambiguous. No digit image serves two of train, val
and test.
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

LESION = 3
LOOKALIKES = (2, 5, 8)
STRIDE = 256
"""Level-0 pixels between neighbouring patches."""
PARTS = {"train": 0.5, "val": 0.2, "test": 0.3}
"""Share of the slides, and of the digit images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DigitSlide:
    """One slide of n patches."""

    name: str
    features: Float[np.ndarray, "n 64"]
    """float32: the pixels in [0, 1], mixed linearly and with noise."""
    coords: Int[np.ndarray, "n 2"]
    """Level-0 (x, y) of each patch's top-left corner."""
    label: int
    instance_labels: Int[np.ndarray, " n"]
    """1: a patch of a lesion."""
    split: str
    digits: Int[np.ndarray, " n"] = field(repr=False)
    """Row of scikit-learn's `load_digits` behind each patch."""


def digit_slides(
    *,
    bags: int,
    seed: int,
    size: tuple[int, int] = (16, 16),
    lesion: tuple[int, int] = (6, 16),
    noise: float = 0.65,
) -> list[DigitSlide]:
    """Half of the slides positive in each part, the same for the same arguments.

    Args:
        bags: slides in all.
        seed: of everything.
        size: (columns, rows) of the glass; tissue covers about half of it.
        lesion: fewest and most patches of a lesion; a positive slide has one or two.
        noise: standard deviation added to pixels of 0 to 1.

    Raises:
        InputError: too few bags, a glass too small, or impossible lesions.
    """
    if bags < 12 or min(size) < 8:
        raise InputError(f"digit slides need 12 bags and 8×8 cells at least, not {bags} and {size}")
    if not 1 <= lesion[0] <= lesion[1] <= min(size) or noise < 0:
        raise InputError(f"lesions of {lesion} patches, noise {noise}: cannot be made on {size}")
    mixing = np.linalg.qr(np.random.default_rng(seed_of(seed, "mixing")).normal(size=(64, 64)))[0]
    pools = _pools(seed)
    slides = []
    for k, part in enumerate(_parts(bags)):
        rng = np.random.default_rng(seed_of(seed, "slide", k))
        tissue = _tissue(rng, size)
        marked = np.zeros_like(tissue)
        if k % 2:
            for _ in range(rng.integers(1, 3)):
                marked |= blob(rng, tissue, cells=int(rng.integers(lesion[0], lesion[1] + 1)))
        kinds = _regions(rng, tissue)
        kinds[marked] = LESION
        rows, columns = np.nonzero(tissue)
        chosen = [pools[part][d] for d in kinds[tissue]]
        digits = np.array([pool[rng.integers(len(pool))] for pool in chosen])
        pixels = _digits()[0][digits] + noise * rng.normal(size=(len(digits), 64))
        slides.append(
            DigitSlide(
                name=f"slide_{k:03d}",
                features=(pixels @ mixing).astype(np.float32),
                coords=np.stack([columns, rows], axis=1) * STRIDE,
                label=k % 2,
                instance_labels=marked[tissue].astype(np.int64),
                split=part,
                digits=digits,
            )
        )
    return slides


def write_digit_slides(folder: Path, *, bags: int, seed: int) -> Sequence[DigitSlide]:
    """Writes `features/<slide>.h5` and `labels.csv` (with a split column), and gives the slides."""
    slides = digit_slides(bags=bags, seed=seed)
    for s in slides:
        write_bag(
            folder / "features" / f"{s.name}.h5",
            features=s.features,
            coords=s.coords,
            kind="slide",
            instance_labels=s.instance_labels,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
    rows = [{"bag": s.name, "label": s.label, "split": s.split} for s in slides]
    write_csv(folder / "labels.csv", ("bag", "label", "split"), rows)
    return slides


@cache
def _digits() -> tuple[Float[np.ndarray, "images 64"], Int[np.ndarray, " images"]]:
    """The 1,797 images of 8×8 pixels in [0, 1], and which digit each is."""
    from sklearn.datasets import load_digits  # 0.1 s that only a demo needs to wait

    pixels, digit = load_digits(return_X_y=True)
    return pixels / 16, digit.astype(np.int64)


def _pools(seed: int) -> dict[str, list[Int[np.ndarray, " k"]]]:
    """For each part and digit, the images that are its own."""
    digit = _digits()[1]
    pools: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for d in range(10):
        images = np.random.default_rng(seed_of(seed, "pool", d)).permutation(
            np.flatnonzero(digit == d)
        )
        cuts = (np.cumsum(list(PARTS.values()))[:-1] * len(images)).astype(int)
        for part, own in zip(PARTS, np.split(images, cuts), strict=True):
            pools[part].append(own)
    return pools


def _parts(bags: int) -> list[str]:
    """The part of each slide; pairs (negative, positive) stay together, so parts are balanced."""
    cuts = np.cumsum(list(PARTS.values()))
    pairs = (bags + 1) // 2
    return [list(PARTS)[int(np.searchsorted(cuts, (k // 2 + 0.5) / pairs))] for k in range(bags)]


def _tissue(rng: np.random.Generator, size: tuple[int, int]) -> Bool[np.ndarray, "rows columns"]:
    """One irregular piece, or now and then two islands, with holes."""
    columns, rows = size
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
    """Grows from a random cell over neighbouring tissue (sides only), so it is connected."""
    blob = np.zeros_like(tissue)
    start = rng.choice(np.argwhere(tissue))
    blob[tuple(start)] = True
    while blob.sum() < cells:
        border = np.argwhere(ndimage.binary_dilation(blob) & tissue & ~blob)
        if not len(border):
            break
        blob[tuple(rng.choice(border))] = True
    return blob


def _regions(
    rng: np.random.Generator, tissue: Bool[np.ndarray, "rows columns"]
) -> Int[np.ndarray, "rows columns"]:
    """A digit class a cell: regions around random centres, a quarter of the cells of any class.

    A third of the regions are of a digit that looks like the lesion's.
    """
    others = [d for d in range(10) if d != LESION]
    rows, columns = tissue.shape
    y, x = np.mgrid[:rows, :columns]
    centres = rng.uniform(0, 1, (12, 2)) * (rows, columns)
    near = ((y[..., None] - centres[:, 0]) ** 2 + (x[..., None] - centres[:, 1]) ** 2).argmin(-1)
    alike = rng.random(12) < 1 / 3
    of = np.where(alike, rng.choice(LOOKALIKES, 12), rng.choice(others, 12))
    mixed = rng.random(tissue.shape) < 0.25
    return np.where(mixed, rng.choice(others, tissue.shape), of[near])
