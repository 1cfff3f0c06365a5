"""What every writer takes and gives."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import StoredBag, write_csv
from ...errors import BagError
from ..labels import Table
from ..metadata import Metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A bag on its way into other files: corners in level-0 pixels, or slice positions."""

    stored: StoredBag
    metadata: Metadata
    """Completed from the resolution and the coordinates as far as they tell."""

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def slide(self) -> bool:
        return self.stored.inferred_kind == "slide"


class Writer(ABC):
    """Writes bags below a folder, each file atomically.

    Args:
        out: the folder.
        encoder: what the features were made with; goes into names of folders.
        stride: level-0 pixels between neighbours in most of the bags, where that is known.
    """

    def __init__(self, out: Path, *, encoder: str | None, stride: float | None) -> None:
        self.out = out
        self.encoder = encoder
        self.stride = stride

    @property
    def features(self) -> str:
        """Name of the folder of features where the tool names it after the encoder."""
        name = (self.encoder or "unknown").partition("@")[0]  # without the digest of its weights
        kept = "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)
        return f"features_{kept.strip('.') or 'unknown'}"

    @abstractmethod
    def present(self) -> set[str]:
        """Names of the bags that are there already."""

    @abstractmethod
    def write(self, bag: Outgoing) -> tuple[Path, list[str]]:
        """Writes one bag; gives the file of its features and what could not be carried.

        Raises:
            BagError: the tool's files have no place for such a bag.
        """

    def write_labels(self, table: Table, bags: Sequence[str]) -> list[str]:
        """Writes the labels of these bags; gives what of the table could not be carried."""
        wanted = set(bags)
        columns: dict[str, Sequence[object] | None] = {
            "bag": table.bags,
            "label": [None if y is None else table.classes[y] for y in table.labels],
            "group": table.groups,
            "fold": table.folds,
            "split": table.splits,
        }
        given = {k: v for k, v in columns.items() if v is not None}
        rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
        write_csv(self.out / "labels.csv", list(given), [r for r in rows if r["bag"] in wanted])
        return []


def lost_resolution(metadata: Metadata) -> list[str]:
    """Where files have no place for it."""
    if metadata.mpp_level0 is not None:
        return [f"resolution ({metadata.mpp_level0:.4g} µm per pixel)"]
    if metadata.magnification_level0 is not None:
        return [f"magnification ({metadata.magnification_level0:g}x)"]
    return []


def missing_resolution(metadata: Metadata) -> list[str]:
    """Where files have a place for it, and the source does not state it."""
    stated = metadata.mpp_level0 is not None or metadata.magnification_level0 is not None
    return [] if stated else ["resolution (not stated by the source; --slide-mpp gives it)"]


def single(features: np.ndarray, lost: list[str]) -> np.ndarray:
    """The features in float32, said where they were not."""
    if features.dtype != np.float32:
        lost.append(f"{features.dtype} (written as float32)")
    return np.ascontiguousarray(features, np.float32)


def needs_a_slide(bag: Outgoing, tool: str) -> np.ndarray:
    """The corners of a slide's patches.

    Raises:
        BagError: a scan, or no coordinates.
    """
    if not bag.slide:
        raise BagError(
            f"bag {bag.name!r} is a scan, and {tool}'s files are of slides: convert it to torchmil "
            "or probsa"
        )
    return needs_corners(bag, tool)


def needs_corners(bag: Outgoing, tool: str) -> np.ndarray:
    """The coordinates of a bag.

    Raises:
        BagError: there are none.
    """
    if bag.stored.coords is None:
        raise BagError(
            f"bag {bag.name!r} has no coordinates, without which {tool}'s files are no slide: "
            "convert it to clam or probsa"
        )
    return bag.stored.coords


def trident_attributes(metadata: Metadata, *, stride: float | None) -> dict[str, object]:
    """TRIDENT's attributes of `coords`, and our exact ones where they say more."""
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
    """Whole numbers as such."""
    return int(value) if value is not None and float(value).is_integer() else value
