"""Base class of the writers of other tools' files, and what several of them share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import StoredBag, slice_order
from ...errors import BagError
from ..labels import LabelTable, write_table
from ..metadata import Metadata


class Writer(ABC):
    """Writes bags to a folder, each file atomically.

    Folders are named after the encoder of the features; `stride` is that of most of the bags.
    """

    patterns: ClassVar[tuple[str, ...]]
    """Where the feature files are below `out`; `{features}` is the name of their folder."""

    def __init__(self, out: Path, *, encoder: str | None, stride: float | None) -> None:
        self.out, self.encoder, self.stride = out, encoder, stride
        name = (encoder or "unknown").partition("@")[0]  # without the digest of its weights
        safe_name = "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)
        self.features = f"features_{safe_name.strip('.') or 'unknown'}"
        """Name of the feature folder for tools that name it after the encoder."""

    def files(self) -> dict[str, Path]:
        """Return the feature files of the bags that exist already."""
        patterns = [pattern.format(features=self.features) for pattern in self.patterns]
        return {path.stem: path for pattern in patterns for path in self.out.glob(pattern)}

    @abstractmethod
    def write(self, bag: StoredBag, metadata: Metadata, lost: list[str]) -> Path:
        """Write a bag of level-0 corners or slice positions, and return its feature file.

        What the format cannot represent is appended to `lost`; BagError if it is the whole bag.
        """

    def write_labels(self, table: LabelTable, bags: Sequence[str]) -> list[str]:
        """Write the labels of these bags; return a list of what could not be converted."""
        write_table(self.out / "labels.csv", table, bags)
        return []


def report_resolution(metadata: Metadata, lost: list[str]) -> None:
    """Report the resolution as lost, for formats that cannot store it."""
    if metadata.mpp_level0 is not None:
        lost.append(f"resolution ({metadata.mpp_level0:.4g} µm per pixel)")
    elif metadata.magnification_level0 is not None:
        lost.append(f"magnification ({metadata.magnification_level0:g}x)")


def report_no_resolution(metadata: Metadata, lost: list[str]) -> None:
    """Report the resolution as missing, for formats that store it, if the source has none."""
    if metadata.mpp_level0 is None and metadata.magnification_level0 is None:
        lost.append("resolution (not stated by the source; --slide-mpp gives it)")


def single(features: np.ndarray, lost: list[str]) -> np.ndarray:
    """Return the features in float32, and report the conversion if they were not."""
    if features.dtype != np.float32:
        lost.append(f"{features.dtype} (written as float32)")
    return np.ascontiguousarray(features, np.float32)


def corners_of(bag: StoredBag, tool: str) -> np.ndarray:
    """Return the corners of a slide's patches."""
    if bag.coords is None:
        raise BagError(
            f"bag {bag.name!r} has no coordinates, which {tool}'s files require for slides: "
            "convert it to clam or probsa"
        )
    return bag.coords


def slices_in_order(bag: StoredBag) -> StoredBag:
    """Return a scan with its rows in the order of their positions.

    A format without positions keeps the neighbours of the slices by this alone.
    """
    if bag.coords is None or bag.coords.shape[1] != 1:
        return bag
    order = slice_order(bag.coords[:, 0])
    labels = bag.instance_labels
    return replace(
        bag,
        features=bag.features[order],
        coords=bag.coords[order],
        instance_labels=None if labels is None else labels[order],
    )


def trident_attributes(metadata: Metadata, *, stride: float | None) -> dict[str, object]:
    """Return TRIDENT's attributes of `coords`, and probsa's, which are not rounded."""
    width, height = metadata.slide_size or (None, None)
    return {
        "patch_size": whole(metadata.patch_size),
        "patch_size_level0": None if metadata.size_level0 is None else round(metadata.size_level0),
        "level0_magnification": whole(metadata.magnification_level0),
        "target_magnification": whole(metadata.magnification),
        "overlap": round(metadata.overlap or 0),
        "level0_width": width,
        "level0_height": height,
        "size_level0": metadata.size_level0,
        "mpp": metadata.mpp,
        "mpp_level0": metadata.mpp_level0,
        "pitch": stride,
    }


def whole(value: float | None) -> int | float | None:
    """Convert an integral float to int."""
    return int(value) if value is not None and float(value).is_integer() else value
