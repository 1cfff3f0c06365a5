"""Stage 1: the factor of each level of a pyramid, from the sizes that a file states.

Some writers pad levels to whole tiles (DICOM, OME-TIFF and tiled TIFF), so that the ratio of two
sizes is not the factor between them. A level whose factor does not follow is left out with a note.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from ._base import Level

_SAME = 1e-6
"""Relative difference up to which a downsample that a reader states is the mean of the ratios."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredLevel:
    """One image of a pyramid as the file states it."""

    width: int
    height: int
    tile: tuple[int, int] | None
    """(width, height) of its tiles; None if it has none, or if they are unknown."""
    downsample: float | None = None
    """Level-0 pixels per pixel as the reader states them; None if it does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pyramid:
    """The levels that can be read at the right place."""

    levels: tuple[Level, ...]
    """Their padding is not part of them."""
    places: tuple[int, ...]
    """The index in the file of each level."""
    notes: tuple[str, ...]
    """Sentences on levels that are padded or left out."""


def decide_levels(stored: Sequence[StoredLevel]) -> Pyramid:
    """Decide the factor of each level of a file; the first one is level 0.

    A factor is accepted if one number explains the sizes of both axes: up to a pixel of rounding,
    or as a whole number with padding to whole tiles. If several whole numbers do, the one that
    continues the levels above it is taken. Otherwise, the level is left out.
    """
    first = stored[0]
    levels = [Level(width=first.width, height=first.height, downsample=first.downsample or 1.0)]
    places = [0]
    notes: list[str] = []
    factors: list[float | None] = [1.0]
    pads = False
    for k, level in enumerate(stored[1:], start=1):
        plain_factor = _plain_factor(first, level, factors)
        if plain_factor is not None:
            factors.append(plain_factor)
            levels.append(Level(width=level.width, height=level.height, downsample=plain_factor))
            places.append(k)
            continue
        # a file that has padded one level pads the others
        factor = _padded_factor(first, level, factors, pads=pads)
        factors.append(factor)
        size = (
            f"Level {k} has {level.width} x {level.height} pixels, "
            f"{first.width / level.width:.4g} and {first.height / level.height:.4g} times fewer "
            "than level 0"
        )
        if factor is None:
            notes.append(f"{size}: its factor is unknown, so it is left out.")
            continue
        pads = True
        # the content may be a pixel larger, of which the rest is padding
        width = max(1, first.width // factor)
        height = max(1, first.height // factor)
        levels.append(Level(width=width, height=height, downsample=float(factor)))
        places.append(k)
        notes.append(
            f"{size}: it is padded to whole tiles, its factor is {factor}, and "
            f"{width} x {height} pixels are read."
        )
    return Pyramid(levels=tuple(levels), places=tuple(places), notes=tuple(notes))


def _rounding_interval(first: StoredLevel, level: StoredLevel) -> tuple[float, float]:
    """Return the factors that explain both sizes up to a pixel of rounding: low < factor < high."""
    low = 0.0
    high = float("inf")
    for whole, part in ((first.width, level.width), (first.height, level.height)):
        low = max(low, whole / (part + 1))
        if part > 1:
            high = min(high, whole / (part - 1))
    return low, high


def _is_whole_tiles(level: StoredLevel, tile: tuple[int, int] | None) -> bool:
    """Return whether tiles of this size cover a level without a rest."""
    return tile is not None and not (level.width % tile[0] or level.height % tile[1])


def _padded_factors(
    first: StoredLevel, level: StoredLevel, factors: Sequence[float | None]
) -> list[int]:
    """Return the whole factors that explain both sizes if at least one axis is padded.

    They exceed those of the levels above.
    """
    if level.tile is None:
        return []
    candidates = np.arange(int(_largest(factors) * 1.01) + 1, max(first.width, first.height) + 1)
    tile_width, tile_height = level.tile
    across_exact, across_padded = _explain(first.width, level.width, tile_width, candidates)
    down_exact, down_padded = _explain(first.height, level.height, tile_height, candidates)
    explains_both = (across_exact | across_padded) & (down_exact | down_padded)
    return candidates[explains_both & ~(across_exact & down_exact)].tolist()


def _explain(
    whole: int, part: int, tile: int, factors: Int[np.ndarray, " n"]
) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return which factors give this length of an axis by rounding, and which by padding."""
    below = whole // factors
    above = -(-whole // factors)
    exact = (below == part) | (above == part)
    # a length of 0 pixels would need no tile
    tiles_below = -(-np.maximum(below, 1) // tile) * tile
    tiles_above = -(-above // tile) * tile
    padded = (tiles_below == part) | (tiles_above == part)
    return exact, padded


def _plain_factor(
    first: StoredLevel, level: StoredLevel, factors: Sequence[float | None]
) -> float | None:
    """Return the factor of a level without padding; None if it is padded or undecided."""
    mean = (first.width / level.width + first.height / level.height) / 2
    downsample = level.downsample
    if downsample is not None and abs(downsample - mean) > _SAME * mean:
        return downsample  # the reader takes it from the file's metadata instead of the sizes
    return mean if _is_plain(first, level, factors) else None


def _is_plain(first: StoredLevel, level: StoredLevel, factors: Sequence[float | None]) -> bool:
    """Return whether the ratio of the sizes is taken as the factor: nothing is padded."""
    low, high = _rounding_interval(first, level)
    padded = _padded_factors(first, level, factors)
    if not padded or not low < high:
        return low < high
    if first.width / level.width <= _largest(factors):
        return False  # no smaller than the level above it
    if int(low) + 1 < high:  # a whole factor explains it without padding
        expected = _expected(factors)
        return expected not in padded or low < (expected or 0) < high
    # Without a whole factor, whole tiles on both axes are padding, unless this is so at level 0,
    # too, and the shape is the same, as for 2560 x 1280 and 1024 x 512 pixels.
    same_shape = first.width * level.height == first.height * level.width
    return _is_whole_tiles(first, level.tile) and same_shape and first.width != first.height


def _padded_factor(
    first: StoredLevel, level: StoredLevel, factors: Sequence[float | None], *, pads: bool
) -> int | None:
    """Return the factor of a padded level; None if the sizes do not decide it."""
    candidates = _padded_factors(first, level, factors)
    low, high = _rounding_interval(first, level)
    continues = first.width / level.width > _largest(factors)
    if not pads and low < high and continues:
        has_whole_factor = int(low) + 1 < high
        if has_whole_factor or _is_whole_tiles(first, level.tile):
            return None  # the ratio of the sizes explains them as well
    if len(candidates) == 1:
        return candidates[0]
    expected = _expected(factors)
    if expected in candidates:
        return expected
    # levels are usually powers of the first factor that is known
    decided = [factor for factor in factors if factor is not None]
    base = round(decided[1]) if len(decided) > 1 else 1
    if base < 2:
        return None
    powers = [factor for factor in candidates if _is_power(factor, base)]
    return powers[0] if len(powers) == 1 else None


def _largest(factors: Sequence[float | None]) -> float:
    return max(factor for factor in factors if factor is not None)


def _expected(factors: Sequence[float | None]) -> int | None:
    """Return the factor that continues the two levels above as a geometric series."""
    if len(factors) < 2:
        return None
    before, last = factors[-2:]
    if last is None or before is None:
        return None
    return round(last * last / before)


def _is_power(number: int, base: int) -> bool:
    """Return whether a number is a power of the base."""
    while number % base == 0:
        number //= base
    return number == 1
