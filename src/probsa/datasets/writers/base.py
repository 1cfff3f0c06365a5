"""Base class of the writers, and functions that they share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import StoredBag, check_file_name, write_csv
from ...errors import BagError
from ..labels import LabelTable
from ..metadata import Metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A bag to be written: coordinates are level-0 corners, or slice positions."""

    stored: StoredBag
    metadata: Metadata
    """Metadata, completed from the resolution and the coordinates where possible."""

    @property
    def name(self) -> str:
        """The name, which its files bear."""
        return check_file_name(self.stored.name)

    @property
    def slide(self) -> bool:
        return self.stored.inferred_kind == "slide"


class Writer(ABC):
    """Writes bags to a folder, each file atomically.

    Args:
        out: The output folder.
        encoder: Encoder of the features, used in folder names.
        stride: Level-0 pixels between neighbours in most of the bags, if known.
    """

    def __init__(self, out: Path, *, encoder: str | None, stride: float | None) -> None:
        self.out = out
        self.encoder = encoder
        self.stride = stride

    @property
    def features(self) -> str:
        """Name of the feature folder for tools that name it after the encoder."""
        name = (self.encoder or "unknown").partition("@")[0]  # without the digest of its weights
        safe_name = "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)
        return f"features_{safe_name.strip('.') or 'unknown'}"

    @abstractmethod
    def present(self) -> set[str]:
        """Return the names of the bags that exist already."""

    @abstractmethod
    def write(self, bag: Outgoing) -> tuple[Path, list[str]]:
        """Write one bag; return its feature file and a list of what could not be converted.

        Raises:
            BagError: the format cannot represent the bag.
        """

    def write_labels(self, table: LabelTable, bags: Sequence[str]) -> list[str]:
        """Write the labels of these bags; return a list of what could not be converted."""
        wanted = set(bags)
        columns: dict[str, Sequence[object] | None] = {
            "bag": table.bags,
            "label": [None if y is None else table.classes[y] for y in table.labels],
            "group": table.groups,
            "fold": table.folds,
            "split": table.splits,
        }
        present = {k: v for k, v in columns.items() if v is not None}
        rows = [dict(zip(present, row, strict=True)) for row in zip(*present.values(), strict=True)]
        write_csv(self.out / "labels.csv", list(present), [r for r in rows if r["bag"] in wanted])
        return []


def lost_resolution(metadata: Metadata) -> list[str]:
    """Report the resolution as lost, for formats that cannot store it."""
    if metadata.mpp_level0 is not None:
        return [f"resolution ({metadata.mpp_level0:.4g} µm per pixel)"]
    if metadata.magnification_level0 is not None:
        return [f"magnification ({metadata.magnification_level0:g}x)"]
    return []


def missing_resolution(metadata: Metadata) -> list[str]:
    """Report the resolution as missing, for formats that store it, if the source has none."""
    is_stated = metadata.mpp_level0 is not None or metadata.magnification_level0 is not None
    return [] if is_stated else ["resolution (not stated by the source; --slide-mpp gives it)"]


def single(features: np.ndarray, lost: list[str]) -> np.ndarray:
    """Return the features in float32, and report the conversion if they were not."""
    if features.dtype != np.float32:
        lost.append(f"{features.dtype} (written as float32)")
    return np.ascontiguousarray(features, np.float32)


def needs_a_slide(bag: Outgoing, tool: str) -> np.ndarray:
    """Return the corners of a slide's patches.

    Raises:
        BagError: the bag is a scan, or has no coordinates.
    """
    if not bag.slide:
        raise BagError(
            f"bag {bag.name!r} is a scan, but {tool}'s files hold slides: convert it to torchmil "
            "or probsa"
        )
    return needs_corners(bag, tool)


def needs_corners(bag: Outgoing, tool: str) -> np.ndarray:
    """Return the coordinates of a bag.

    Raises:
        BagError: the bag has none.
    """
    if bag.stored.coords is None:
        raise BagError(
            f"bag {bag.name!r} has no coordinates, which {tool}'s files require for slides: "
            "convert it to clam or probsa"
        )
    return bag.stored.coords


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
