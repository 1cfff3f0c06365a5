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


def settle_levels(stored: Sequence[StoredLevel]) -> Pyramid:
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
        ratios = first.width / level.width, first.height / level.height
        plain = _plain_factor(first, level, factors)
        factor = None
        if plain is None:
            # a file that has padded one level pads the others
            factor = _padded_factor(first, level, factors, pads=pads)
            pads = pads or factor is not None
        factors.append(factor if plain is None else plain)
        if plain is not None:
            levels.append(Level(width=level.width, height=level.height, downsample=plain))
            places.append(k)
            continue
        size = f"Level {k} has {level.width} x {level.height} pixels"
        shares = f"{ratios[0]:.4g} and {ratios[1]:.4g} times fewer than level 0"
        if factor is None:
            notes.append(f"{size}, {shares}: its factor is unknown, so it is left out.")
            continue
        # the content may be a pixel larger, of which the rest is padding
        width, height = (max(1, side // factor) for side in (first.width, first.height))
        levels.append(Level(width=width, height=height, downsample=float(factor)))
        places.append(k)
        notes.append(
            f"{size}, {shares}: it is padded to whole tiles, its factor is {factor}, and "
            f"{width} x {height} pixels are read."
        )
    return Pyramid(levels=tuple(levels), places=tuple(places), notes=tuple(notes))


def _rounding_interval(first: StoredLevel, level: StoredLevel) -> tuple[float, float]:
    """Return the factors that explain both sizes up to a pixel of rounding: low < factor < high."""
    low, high = 0.0, float("inf")
    for whole, part in ((first.width, level.width), (first.height, level.height)):
        low = max(low, whole / (part + 1))
        high = min(high, whole / (part - 1) if part > 1 else float("inf"))
    return low, high


def _is_whole_tiles(level: StoredLevel, tile: tuple[int, int] | None) -> bool:
    return tile is not None and not (level.width % tile[0] or level.height % tile[1])


def _padded_factors(
    first: StoredLevel, level: StoredLevel, factors: Sequence[float | None]
) -> list[int]:
    """Return the whole factors that explain both sizes if at least one axis is padded.

    They exceed those of the levels above.
    """
    if level.tile is None:
        return []
    candidates = np.arange(int(_last(factors) * 1.01) + 1, max(first.width, first.height) + 1)
    across_exact, across_padded = _explained(first.width, level.width, level.tile[0], candidates)
    down_exact, down_padded = _explained(first.height, level.height, level.tile[1], candidates)
    explained = (across_exact | across_padded) & (down_exact | down_padded)
    return candidates[explained & ~(across_exact & down_exact)].tolist()


def _explained(
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
    stated = level.downsample
    if stated is not None and abs(stated - mean) > _SAME * mean:
        return stated  # the reader takes it from the file's metadata instead of the sizes
    return mean if _is_plain(first, level, factors) else None


def _is_plain(first: StoredLevel, level: StoredLevel, factors: Sequence[float | None]) -> bool:
    """Return whether the ratio of the sizes is taken as the factor: nothing is padded."""
    low, high = _rounding_interval(first, level)
    padded = _padded_factors(first, level, factors)
    if not padded or not low < high:
        return low < high
    if first.width / level.width <= _last(factors):
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
    larger = first.width / level.width > _last(factors)
    if (
        not pads
        and low < high
        and larger
        and (int(low) + 1 < high or _is_whole_tiles(first, level.tile))
    ):
        return None  # the ratio of the sizes explains them as well
    if len(candidates) == 1:
        return candidates[0]
    expected = _expected(factors)
    if expected in candidates:
        return expected
    known = [f for f in factors if f is not None]
    base = round(known[1]) if len(known) > 1 else 1
    powers = [f for f in candidates if base > 1 and _is_power(f, base)]
    return powers[0] if len(powers) == 1 else None


def _last(factors: Sequence[float | None]) -> float:
    return max(f for f in factors if f is not None)


def _expected(factors: Sequence[float | None]) -> int | None:
    """Return the factor that continues the two levels above as a geometric series."""
    if len(factors) < 2:
        return None
    last, before = factors[-1], factors[-2]
    return None if last is None or before is None else round(last * last / before)


def _is_power(number: int, base: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1
