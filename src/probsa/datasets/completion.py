"""Complete a bag for conversion: level-0 pixels, and metadata inferred where possible."""

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
"""Level-0 pixels by which corners in µm may deviate from whole pixels without a remark."""


def completed(bags: BagSet, name: str, *, resolutions: Resolutions) -> tuple[Outgoing, list[str]]:
    """Return a bag ready to be written, with remarks on what is uncertain or was left out.

    Raises:
        BagError: the bag cannot be used, or its corners need a resolution that is unknown.
    """
    metadata, stored = bags.metadata(name), bags.stored(name)
    remarks = list(metadata.remarks)
    if metadata.unreadable:
        remarks.append(f"{metadata.unreadable} instances flagged as unreadable (left out)")
    if stored.inferred_kind != "slide":
        return Outgoing(stored=stored, metadata=metadata), remarks
    mpp = resolutions.mpp_of(name)
    if metadata.mpp_level0 is None and mpp is not None:
        metadata = replace(metadata, mpp_level0=mpp)
    elif (
        metadata.mpp_level0
        and mpp
        and abs(mpp / metadata.mpp_level0 - 1) > graphs.DISTANCE_TOLERANCE
    ):
        remarks.append(f"resolution given ({mpp:g}; the file says {metadata.mpp_level0:g})")
    if stored.coords is None:
        return Outgoing(stored=stored, metadata=_fill_derived(metadata)), remarks
    if bags.unit == "um":
        stored, metadata = _in_pixels(stored, metadata, remarks, resolutions=resolutions)
    elif isinstance(bags, SlideflowBags):
        stored, metadata = _from_centres(bags, stored, metadata)
    return _complete_spacing(stored, metadata, remarks), remarks


def _in_pixels(
    stored: StoredBag, metadata: Metadata, remarks: list[str], *, resolutions: Resolutions
) -> tuple[StoredBag, Metadata]:
    """Convert from micrometres. The side of a tile is the stride, as STAMP's do not overlap."""
    coords, mpp, stride = stored.coords, metadata.mpp_level0, stored.stride
    if mpp is None:
        raise BagError(
            f"bag {stored.name!r}: its corners are in µm, and level-0 pixels need the resolution "
            f"of the slide, which the files do not hold. {resolutions.why_none(stored.name)}"
        )
    assert coords is not None
    assert stride is not None
    exact_pixels = coords / mpp
    pixels = np.rint(exact_pixels)
    offset = float(np.abs(exact_pixels - pixels).max())
    if offset > WHOLE:
        remarks.append(
            f"places between pixels (corners moved by up to {offset:.2g} pixels to be whole: is "
            f"{mpp:g} µm per pixel the resolution at which the tiles were cut?)"
        )
    corner_tensor = torch.from_numpy(pixels)
    pixel_stride = graphs.check_stride(corner_tensor, stride=stride / mpp, name=stored.name)
    estimate = graphs.check_stride(corner_tensor, stride=None)
    if abs(estimate / pixel_stride - 1) <= graphs.DISTANCE_TOLERANCE:
        pixel_stride = estimate  # in whole pixels, whereas µm are rounded
    target = (
        metadata.mpp if metadata.patch_size is None else pixel_stride * mpp / metadata.patch_size
    )
    stored = replace(stored, coords=pixels.astype(np.int64), stride=pixel_stride)
    return stored, replace(metadata, size_level0=pixel_stride, mpp=target)


def _from_centres(
    bags: SlideflowBags, stored: StoredBag, metadata: Metadata
) -> tuple[StoredBag, Metadata]:
    """Return the corners of slideflow's tiles; the side follows from the resolution if known."""
    centres, mpp = bags.centres(stored.name), metadata.mpp_level0
    assert centres is not None
    if mpp is None:
        if len(centres) < 2:
            raise BagError(
                f"bag {stored.name!r} has a single tile, so its size cannot be inferred from the "
                "coordinates: give --slide-mpp, from which the size follows"
            )
        return stored, metadata
    side = side_level0(centres, metadata=metadata, mpp=mpp, name=stored.name)
    spacing = graphs.check_stride(torch.from_numpy(centres * 1.0), stride=None)
    overlap = None
    if len(centres) > 1 and metadata.patch_size and side / spacing > 1 + graphs.DISTANCE_TOLERANCE:
        overlap = metadata.patch_size * (1 - spacing / side)
    stride = side if overlap is None else spacing
    stored = replace(stored, coords=corners(centres, side), stride=stride)
    return stored, replace(metadata, size_level0=side, overlap=overlap)


def _complete_spacing(stored: StoredBag, metadata: Metadata, remarks: list[str]) -> Outgoing:
    """Complete the stride and the patch size so that they agree with the coordinates."""
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
        # CLAM has a separate option for the step, which its files do not state.
        metadata = replace(metadata, overlap=metadata.patch_size * (1 - stride / side))
        remarks.append(f"step between patches (not stated; {stride:g} pixels by the coordinates)")
    if metadata.size_level0 is None:
        if len(coords) < 2:
            raise BagError(
                f"bag {stored.name!r} has one patch, and nothing states its size, which cannot be "
                "inferred from one patch. Add the tool's file of patches, or leave the bag out"
            )
        remarks.append(f"patch size (not stated; {stride:g} level-0 pixels by the coordinates)")
        metadata = replace(metadata, size_level0=stride)
    return Outgoing(stored=replace(stored, stride=stride), metadata=_fill_derived(metadata))


def _fill_derived(metadata: Metadata) -> Metadata:
    """Fill in what follows from the rest: nominal magnifications and the patch resolution."""
    side, magnification_level0 = metadata.size_level0, metadata.magnification_level0
    if metadata.patch_size is None and side is not None:
        metadata = replace(metadata, patch_size=float(round(side)))
    if magnification_level0 is None and metadata.mpp_level0 is not None:
        magnification_level0 = nominal(metadata.mpp_level0)
    ratio = metadata.patch_size / side if metadata.patch_size and side else None
    magnification = metadata.magnification
    if magnification is None and magnification_level0 is not None and ratio is not None:
        magnification = magnification_level0 * ratio
    mpp = metadata.mpp
    if mpp is None and metadata.mpp_level0 is not None and ratio is not None:
        mpp = metadata.mpp_level0 / ratio
    return replace(
        metadata, magnification_level0=magnification_level0, magnification=magnification, mpp=mpp
    )
