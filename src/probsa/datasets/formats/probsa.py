"""Write probsa's layout: one HDF5 file per bag, with all metadata as attributes of `coords`."""

from pathlib import Path

from ...core import StoredBag, write_bag
from ..metadata import Metadata


def write_converted(
    out: Path, bag: StoredBag, metadata: Metadata, *, encoder: str | None, lost: list[str]
) -> Path:
    """Write `out`/<bag>.h5 atomically, and return it.

    Args:
        out: Folder of the bags.
        bag: A bag of level-0 corners or slice positions.
        metadata: What its files state besides.
        encoder: The encoder of the features, if it is known.
        lost: What could not be converted is appended to it.
    """
    path = out / f"{bag.name}.h5"
    is_slide = bag.inferred_kind == "slide"
    attributes = slide_attributes(metadata, stride=bag.stride) if is_slide else {}
    write_bag(
        path,
        features=bag.features,
        kind=bag.inferred_kind,
        coords=bag.coords,
        instance_labels=bag.instance_labels,
        intensity=bag.intensity,
        attributes={k: v for k, v in attributes.items() if v is not None},
        stamps={} if encoder is None else {"encoder": encoder},
    )
    if is_slide and metadata.mpp_level0 is None and metadata.magnification_level0 is None:
        lost.append("resolution (not stated by the source; --slide-mpp gives it)")
    return path


def slide_attributes(metadata: Metadata, *, stride: float | None) -> dict[str, object]:
    """Return TRIDENT's attributes of `coords`, and probsa's, which are not rounded."""
    width, height = metadata.slide_size or (None, None)
    return {
        "patch_size": _whole(metadata.patch_size),
        "patch_size_level0": None if metadata.size_level0 is None else round(metadata.size_level0),
        "level0_magnification": _whole(metadata.magnification_level0),
        "target_magnification": _whole(metadata.magnification),
        "overlap": round(metadata.overlap or 0),
        "level0_width": width,
        "level0_height": height,
        "size_level0": metadata.size_level0,
        "mpp": metadata.mpp,
        "mpp_level0": metadata.mpp_level0,
        "pitch": stride,
    }


def _whole(value: float | None) -> int | float | None:
    """Convert an integral float to int."""
    return int(value) if value is not None and float(value).is_integer() else value
