"""A bag as its tool left it, brought to level-0 pixels with all that can be told of its patches."""

from dataclasses import replace

import numpy as np
import torch

from ..core import StoredBag, graphs
from ..errors import BagError, GraphError
from .bag_set import BagSet
from .formats.slideflow import SlideflowBags, corners, side_level0
from .metadata import Metadata, nominal
from .resolutions import Resolutions
from .writers.base import Outgoing

WHOLE = 0.1
"""Level-0 pixels that corners in µm may lie beside whole ones before it is said."""


def completed(bags: BagSet, name: str, *, given: Resolutions) -> tuple[Outgoing, list[str]]:
    """A bag ready to be written, and what of it is uncertain or was left out.

    Raises:
        BagError: the bag cannot be used, or its corners need a resolution that nobody states.
    """
    metadata, stored = bags.metadata(name), bags.stored(name)
    said = list(metadata.remarks)
    if metadata.unreadable:
        said.append(f"{metadata.unreadable} instances flagged as unreadable (left out)")
    if stored.inferred_kind != "slide":
        return Outgoing(stored=stored, metadata=metadata), said
    mpp = given.of(name)
    if metadata.mpp_level0 is None and mpp is not None:
        metadata = replace(metadata, mpp_level0=mpp)
    elif metadata.mpp_level0 and mpp and abs(mpp / metadata.mpp_level0 - 1) > graphs.AGREES:
        said.append(f"resolution given ({mpp:g}; the file says {metadata.mpp_level0:g})")
    if stored.coords is None:
        return Outgoing(stored=stored, metadata=_filled(metadata)), said
    if bags.unit == "um":
        stored, metadata = _in_pixels(stored, metadata, said, given=given)
    elif isinstance(bags, SlideflowBags):
        stored, metadata = _from_centres(bags, stored, metadata)
    return _placed(stored, metadata, said), said


def _in_pixels(
    stored: StoredBag, metadata: Metadata, said: list[str], *, given: Resolutions
) -> tuple[StoredBag, Metadata]:
    """From micrometres. A tile's side is the distance between tiles: STAMP's do not overlap."""
    coords, mpp, stride = stored.coords, metadata.mpp_level0, stored.stride
    if mpp is None:
        raise BagError(
            f"bag {stored.name!r}: its corners are in µm, and level-0 pixels need the resolution "
            f"of the slide, which the files do not hold. {given.why_none(stored.name)}"
        )
    assert coords is not None
    assert stride is not None
    exact = coords / mpp
    pixels = np.rint(exact)
    off = float(np.abs(exact - pixels).max())
    if off > WHOLE:
        said.append(
            f"places between pixels (corners moved by up to {off:.2g} pixels to be whole: is "
            f"{mpp:g} µm per pixel the resolution that the tiles were cut at?)"
        )
    moved = torch.from_numpy(pixels)
    between = graphs.check_stride(moved, stride=stride / mpp, name=stored.name)
    usual = graphs.check_stride(moved, stride=None)
    if abs(usual / between - 1) <= graphs.AGREES:
        between = usual  # whole pixels, where µm are rounded
    target = metadata.mpp if metadata.patch_size is None else between * mpp / metadata.patch_size
    stored = replace(stored, coords=pixels.astype(np.int64), stride=between)
    return stored, replace(metadata, size_level0=between, mpp=target)


def _from_centres(
    bags: SlideflowBags, stored: StoredBag, metadata: Metadata
) -> tuple[StoredBag, Metadata]:
    """Corners of slideflow's tiles, whose side follows from the resolution where that is known."""
    centres, mpp = bags.centres(stored.name), metadata.mpp_level0
    assert centres is not None
    if mpp is None:
        if len(centres) < 2:
            raise BagError(
                f"bag {stored.name!r} has a single tile, whose size its place does not tell: give "
                "--slide-mpp, from which the size follows"
            )
        return stored, metadata
    side = side_level0(centres, metadata=metadata, mpp=mpp, name=stored.name)
    apart = graphs.check_stride(torch.from_numpy(centres * 1.0), stride=None)
    overlap = None
    if len(centres) > 1 and metadata.patch_size and side / apart > 1 + graphs.AGREES:
        overlap = metadata.patch_size * (1 - apart / side)
    stride = side if overlap is None else apart
    stored = replace(stored, coords=corners(centres, side), stride=stride)
    return stored, replace(metadata, size_level0=side, overlap=overlap)


def _placed(stored: StoredBag, metadata: Metadata, said: list[str]) -> Outgoing:
    """With a distance between patches that the coordinates do not contradict."""
    coords = torch.from_numpy(stored.coords)
    try:
        stride = graphs.check_stride(coords, stride=stored.stride, name=stored.name)
    except GraphError:
        stride = graphs.check_stride(coords, stride=None)
        side = metadata.size_level0 or 0.0
        if metadata.overlap is not None or stride >= side or metadata.patch_size is None:
            raise BagError(
                f"bag {stored.name!r}: its patches are stated to lie {stored.stride:g} apart, but "
                f"the coordinates say {stride:g}: the sizes belong to another run, or to another "
                "magnification. Correct them at the source"
            ) from None
        # CLAM cuts with a step of its own and does not write it down
        metadata = replace(metadata, overlap=metadata.patch_size * (1 - stride / side))
        said.append(f"step between patches (not stated; {stride:g} pixels by the coordinates)")
    if metadata.size_level0 is None:
        if len(coords) < 2:
            raise BagError(
                f"bag {stored.name!r} has one patch, and nothing states its size: no other "
                "patches tell it. Add the tool's file of patches, or leave the bag out"
            )
        said.append(f"patch size (not stated; {stride:g} level-0 pixels by the coordinates)")
        metadata = replace(metadata, size_level0=stride)
    return Outgoing(stored=replace(stored, stride=stride), metadata=_filled(metadata))


def _filled(metadata: Metadata) -> Metadata:
    """What follows from the rest: nominal magnifications, and the patch's own resolution."""
    side, level0 = metadata.size_level0, metadata.magnification_level0
    if metadata.patch_size is None and side is not None:
        metadata = replace(metadata, patch_size=float(round(side)))
    if level0 is None and metadata.mpp_level0 is not None:
        level0 = nominal(metadata.mpp_level0)
    ratio = metadata.patch_size / side if metadata.patch_size and side else None
    magnification = metadata.magnification
    if magnification is None and level0 is not None and ratio is not None:
        magnification = level0 * ratio
    mpp = metadata.mpp
    if mpp is None and metadata.mpp_level0 is not None and ratio is not None:
        mpp = metadata.mpp_level0 / ratio
    return replace(metadata, magnification_level0=level0, magnification=magnification, mpp=mpp)
