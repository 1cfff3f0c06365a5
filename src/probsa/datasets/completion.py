"""A bag as its tool left it, brought to level-0 pixels with all that can be told of its patches."""

from dataclasses import replace

import numpy as np
import torch

from ..core import StoredBag, graphs
from ..errors import BagError, GraphError
from .bag_set import BagSet
from .formats.slideflow import SlideflowBags, corners, side_level0
from .metadata import About, nominal
from .resolutions import Resolutions
from .writers.base import Outgoing

WHOLE = 0.1
"""Level-0 pixels that corners in µm may lie beside whole ones before it is said."""


def completed(bags: BagSet, name: str, *, given: Resolutions) -> tuple[Outgoing, list[str]]:
    """A bag ready to be written, and what of it is uncertain or was left out.

    Raises:
        BagError: the bag cannot be used, or its corners need a resolution that nobody states.
    """
    about, stored = bags.about(name), bags.stored(name)
    said = list(about.remarks)
    if about.unreadable:
        said.append(f"{about.unreadable} instances flagged as unreadable (left out)")
    if stored.nature != "slide":
        return Outgoing(stored=stored, about=about), said
    mpp = given.of(name)
    if about.mpp_level0 is None and mpp is not None:
        about = replace(about, mpp_level0=mpp)
    elif about.mpp_level0 and mpp and abs(mpp / about.mpp_level0 - 1) > graphs.AGREES:
        said.append(f"resolution given ({mpp:g}; the file says {about.mpp_level0:g})")
    if stored.coords is None:
        return Outgoing(stored=stored, about=_filled(about)), said
    if bags.unit == "um":
        stored, about = _in_pixels(stored, about, said, given=given)
    elif isinstance(bags, SlideflowBags):
        stored, about = _from_centres(bags, stored, about)
    return _placed(stored, about, said), said


def _in_pixels(
    stored: StoredBag, about: About, said: list[str], *, given: Resolutions
) -> tuple[StoredBag, About]:
    """From micrometres. A tile's side is the distance between tiles: STAMP's do not overlap."""
    coords, mpp, pitch = stored.coords, about.mpp_level0, stored.pitch
    if mpp is None:
        raise BagError(
            f"bag {stored.name!r}: its corners are in µm, and level-0 pixels need the resolution "
            f"of the slide, which the files do not hold. {given.why_none(stored.name)}"
        )
    assert coords is not None
    assert pitch is not None
    exact = coords / mpp
    pixels = np.rint(exact)
    off = float(np.abs(exact - pixels).max())
    if off > WHOLE:
        said.append(
            f"places between pixels (corners moved by up to {off:.2g} pixels to be whole: is "
            f"{mpp:g} µm per pixel the resolution that the tiles were cut at?)"
        )
    moved = torch.from_numpy(pixels)
    between = graphs.check_pitch(moved, pitch=pitch / mpp, name=stored.name)
    usual = graphs.check_pitch(moved, pitch=None)
    if abs(usual / between - 1) <= graphs.AGREES:
        between = usual  # whole pixels, where µm are rounded
    target = about.mpp if about.patch_size is None else between * mpp / about.patch_size
    stored = replace(stored, coords=pixels.astype(np.int64), pitch=between)
    return stored, replace(about, size_level0=between, mpp=target)


def _from_centres(bags: SlideflowBags, stored: StoredBag, about: About) -> tuple[StoredBag, About]:
    """Corners of slideflow's tiles, whose side follows from the resolution where that is known."""
    centres, mpp = bags.centres(stored.name), about.mpp_level0
    assert centres is not None
    if mpp is None:
        if len(centres) < 2:
            raise BagError(
                f"bag {stored.name!r} has a single tile, whose size its place does not tell: give "
                "--slide-mpp, from which the size follows"
            )
        return stored, about
    side = side_level0(centres, about=about, mpp=mpp, name=stored.name)
    apart = graphs.check_pitch(torch.from_numpy(centres * 1.0), pitch=None)
    overlap = None
    if len(centres) > 1 and about.patch_size and side / apart > 1 + graphs.AGREES:
        overlap = about.patch_size * (1 - apart / side)
    pitch = side if overlap is None else apart
    stored = replace(stored, coords=corners(centres, side), pitch=pitch)
    return stored, replace(about, size_level0=side, overlap=overlap)


def _placed(stored: StoredBag, about: About, said: list[str]) -> Outgoing:
    """With a distance between patches that the coordinates do not contradict."""
    coords = torch.from_numpy(stored.coords)
    try:
        pitch = graphs.check_pitch(coords, pitch=stored.pitch, name=stored.name)
    except GraphError:
        pitch = graphs.check_pitch(coords, pitch=None)
        side = about.size_level0 or 0.0
        if about.overlap is not None or pitch >= side or about.patch_size is None:
            raise BagError(
                f"bag {stored.name!r}: its patches are stated to lie {stored.pitch:g} apart, but "
                f"the coordinates say {pitch:g}: the sizes belong to another run, or to another "
                "magnification. Correct them at the source"
            ) from None
        # CLAM cuts with a step of its own and does not write it down
        about = replace(about, overlap=about.patch_size * (1 - pitch / side))
        said.append(f"step between patches (not stated; {pitch:g} pixels by the coordinates)")
    if about.size_level0 is None:
        if len(coords) < 2:
            raise BagError(
                f"bag {stored.name!r} has one patch, and nothing states its size: no other "
                "patches tell it. Add the tool's file of patches, or leave the bag out"
            )
        said.append(f"patch size (not stated; {pitch:g} level-0 pixels by the coordinates)")
        about = replace(about, size_level0=pitch)
    return Outgoing(stored=replace(stored, pitch=pitch), about=_filled(about))


def _filled(about: About) -> About:
    """What follows from the rest: nominal magnifications, and the patch's own resolution."""
    side, level0 = about.size_level0, about.magnification_level0
    if about.patch_size is None and side is not None:
        about = replace(about, patch_size=float(round(side)))
    if level0 is None and about.mpp_level0 is not None:
        level0 = nominal(about.mpp_level0)
    ratio = about.patch_size / side if about.patch_size and side else None
    magnification = about.magnification
    if magnification is None and level0 is not None and ratio is not None:
        magnification = level0 * ratio
    mpp = about.mpp
    if mpp is None and about.mpp_level0 is not None and ratio is not None:
        mpp = about.mpp_level0 / ratio
    return replace(about, magnification_level0=level0, magnification=magnification, mpp=mpp)
