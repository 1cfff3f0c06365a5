"""Which tool left a folder of bags: by what lies in it, never by its name alone."""

import re
from itertools import pairwise
from pathlib import Path

from ..core import by_name, hdf5_files, npy_files, pt_files
from ..errors import BagError, hint
from .formats.slideflow import INDEXES
from .formats.stamp import is_stamp

SETS = ("", "features", "patches_*/features", "*px_overlap", "slices")
"""Where folders named `features_<encoder>` may lie: beside `patches` as TRIDENT's and ours, or
below `features` as torchmil's."""
PREFIX = "features_"
"""May be left out where a folder is chosen."""
STAMP_FOLDER = re.compile(r".+-[0-9a-f]{8}")
"""<extractor>-<hash>."""


def chosen_folder(folder: Path, features: str | None) -> Path:
    """The folder that holds the features' files.

    Raises:
        BagError: several and none chosen, or none of that name.
    """
    if features is None:
        for clam in ("h5_files", "pt_files"):
            if (folder / clam).is_dir():
                return folder / clam
    found = feature_folders(folder)
    if features is not None:
        hits = [
            f for key, f in found.items() if features in (key, f.name, f.name.removeprefix(PREFIX))
        ]
        if len(hits) == 1:
            return hits[0]
        raise BagError(
            f"{len(hits) or 'no'} folders of features are named {features!r} in {folder}."
            f"{hint(features, found)} There are: {', '.join(found) or 'none'}"
        )
    if len(found) > 1 and not any(p.parent == folder for p in hdf5_files(folder)):
        raise BagError(
            f"{folder} holds several folders of features: {', '.join(found)}. "
            "Choose one with --feature-set, or give the path of one"
        )
    return next(iter(found.values())) if len(found) == 1 else folder


def feature_folders(folder: Path) -> dict[str, Path]:
    """Folders of features in a tool's folder, by their path below it."""
    found: dict[str, Path] = {}
    for pattern in SETS:
        for above in sorted(folder.glob(pattern)) if pattern else [folder]:
            for f in sorted(above.glob("features_*")):
                if f.is_dir() and (npy_files(f) or hdf5_files(f)):
                    found[str(f.relative_to(folder))] = f
    for f in sorted(folder.iterdir()):
        if f.is_dir() and STAMP_FOLDER.fullmatch(f.name) and hdf5_files(f):
            found[f.name] = f
    return found


def stamp_files(files: list[Path]) -> bool:
    """Whether the first of these HDF5 files that can be opened is STAMP's."""
    for path in files:
        try:
            return is_stamp(path)
        except BagError:  # said where the bag is read
            continue
    return False


def refuse_mixed(folder: Path) -> None:
    """A folder with bags of two kinds: one of them would be left out without a word.

    Raises:
        BagError: names a file of each.
    """
    tensors = pt_files(folder)
    arrays = [p for p in npy_files(folder) if not p.name.endswith(INDEXES)]
    stored = [p for p in hdf5_files(folder) if p.parent == folder]
    kinds = [by_name(files) for files in (stored, tensors, arrays) if files]
    for first, second in pairwise(kinds):
        if first.keys() != second.keys():
            alone = sorted(first.keys() ^ second.keys())[0]
            one = first.get(alone) or second[alone]
            other = next(iter((second if alone in first else first).values()))
            raise BagError(
                f"{folder} holds bags of several kinds: {one.name} and {other.name}, which are "
                "not the same bags. Give each tool's files a folder of their own"
            )


def refusal(folder: Path) -> str:
    """Why there are no bags in a folder, and what to do."""
    held = sorted({p.suffix or f"{p.name}/" for p in folder.iterdir()})[:8]
    said = f"there are no bags in {folder}"
    tensors = pt_files(folder)
    if any(folder.glob("*.zarr")):
        return (
            f"{said}: these .zarr stores look like LazySlide's or tiatoolbox's, which are not read "
            "here. Save each slide's features and corners as .h5 with the datasets 'features' "
            "(instances, width) and 'coords' (instances, 2), level-0 pixels, or run probsa extract"
        )
    if (folder / "manifest.csv").is_file() or any(folder.glob("coords_*.csv")):
        return (
            f"{said}: manifest.csv and lists in .pt look like eva's, whose rows can be in another "
            "order than their coordinates, so no graph of them can be trusted. Extract the "
            "features with probsa extract, TRIDENT or CLAM"
        )
    if tensors:
        return (
            f"{said}: found only .pt files, which are CLAM's in a folder named pt_files, and "
            "slideflow's beside <slide>.index.npz and bags_config.json. Add what belongs to them"
        )
    return (
        f"{said}: expected .h5 files with a dataset 'features' (ours, TRIDENT's, CLAM's) or "
        "'feats' (STAMP's), slideflow's or CLAM's .pt, or torchmil's features/<encoder>/*.npy; "
        f"found {', '.join(held) or 'nothing'}"
    )
