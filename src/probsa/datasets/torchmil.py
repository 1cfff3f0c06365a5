"""Bags in torchmil's layout: one .npy file a bag and kind, in folders beside one another."""

import re
from pathlib import Path

import numpy as np

from ..errors import BagError
from ..store import StoredBag, as_columns, as_features, checked
from ._base import BagSet, GraphOptions
from .hdf5 import by_name

INSTANCE_LABELS = ("patch_labels", "slice_labels")


class TorchmilBags(BagSet):
    """`root/features/<encoder>/<bag>.npy` with `root/coords` and `root/patch_labels` (slides) or
    `root/slice_labels` (scans, which have no coordinates: their rows are in order).

    A root named `patches_512` states the pitch, 512 level-0 pixels.
    """

    def __init__(self, folder: Path, *, graph: GraphOptions, cache_gb: float) -> None:
        files = by_name(npy_files(folder))
        super().__init__(folder, files, graph=graph, cache_gb=cache_gb)
        self._root = folder.parent.parent if folder.parent.name == "features" else folder.parent
        size = re.match(r"patches_(\d+)", self._root.name)
        self._pitch = float(size[1]) if size else None

    def _read(self, name: str) -> StoredBag:
        path = self._files[name]
        coords = self._beside("coords", name)
        is_slide = (self._root / "coords").is_dir()
        if is_slide and coords is None:
            raise BagError(f"bag {name!r}: there is no {self._root / 'coords' / path.name}")
        labels = next(
            (a for f in INSTANCE_LABELS if (a := self._beside(f, name)) is not None), None
        )
        bag = StoredBag(
            name=name,
            features=as_features(_loaded(path), source=path),
            coords=None if coords is None else as_columns(coords),
            instance_labels=None if labels is None else labels.reshape(-1).astype(np.int64),
            kind="slide" if is_slide else "ct",
            pitch=self._pitch if is_slide else None,
        )
        return checked(bag, source=path)

    def _peek(self, name: str) -> tuple[int, int]:
        shape = _loaded(self._files[name], mapped=True).shape
        if len(shape) not in (2, 3):
            raise BagError(
                f"{self._files[name]}: features have the shape {shape}, expected (instances, width)"
            )
        return shape[-2], shape[-1]

    def _beside(self, kind: str, name: str) -> np.ndarray | None:
        path = self._root / kind / f"{name}.npy"
        return _loaded(path) if path.is_file() else None


def npy_files(folder: Path) -> list[Path]:
    """The .npy files of a folder, not of those below."""
    return sorted(p for p in folder.glob("*.npy") if not p.name.startswith("."))


def _loaded(path: Path, *, mapped: bool = False) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BagError(
            f"{path} cannot be read as .npy: it is truncated, damaged or foreign ({error}). "
            "Copy or make it again"
        ) from error
