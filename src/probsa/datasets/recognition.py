"""Recognise which tool wrote a folder of bags, by its content."""

import re
from itertools import pairwise
from pathlib import Path

from ..core import files_by_name, hdf5_files, npy_files, pt_files
from ..errors import BagError, hint
from .formats.slideflow import INDEXES
from .formats.stamp import is_stamp

SETS = ("", "features", "patches_*/features", "*px_overlap", "slices")
"""Folders that may contain `features_<encoder>`: beside `patches` (TRIDENT, probsa), or `features`
(torchmil)."""
PREFIX = "features_"
"""Optional prefix of the name when users choose a folder of features."""
STAMP_FOLDER = re.compile(r".+-[0-9a-f]{8}")
"""Name of STAMP's feature folders: <extractor>-<hash>."""


def chosen_folder(folder: Path, features: str | None) -> Path:
    """Return the folder that contains the feature files.

    Raises:
        BagError: there are several and none is chosen, or none has the chosen name.
    """
    if features is None:
        for clam in ("h5_files", "pt_files"):
            if (folder / clam).is_dir():
                return folder / clam
    feature_sets = feature_folders(folder)
    if features is not None:
        matches = [
            f
            for key, f in feature_sets.items()
            if features in (key, f.name, f.name.removeprefix(PREFIX))
        ]
        if len(matches) == 1:
            return matches[0]
        raise BagError(
            f"{len(matches) or 'no'} folders of features are named {features!r} in {folder}."
            f"{hint(features, feature_sets)} Available: {', '.join(feature_sets) or 'none'}"
        )
    if len(feature_sets) > 1 and not any(p.parent == folder for p in hdf5_files(folder)):
        raise BagError(
            f"{folder} holds several folders of features: {', '.join(feature_sets)}. "
            "Choose one with --feature-set, or give the path of one"
        )
    return next(iter(feature_sets.values())) if len(feature_sets) == 1 else folder


def feature_folders(folder: Path) -> dict[str, Path]:
    """Find the folders of features in a tool's output folder, by their relative path."""
    folders: dict[str, Path] = {}
    for pattern in SETS:
        for parent in sorted(folder.glob(pattern)) if pattern else [folder]:
            for path in sorted(parent.glob("features_*")):
                if path.is_dir() and (npy_files(path) or hdf5_files(path)):
                    folders[str(path.relative_to(folder))] = path
    for path in sorted(folder.iterdir()):
        if path.is_dir() and STAMP_FOLDER.fullmatch(path.name) and hdf5_files(path):
            folders[path.name] = path
    return folders


def stamp_files(files: list[Path]) -> bool:
    """Return whether the first readable HDF5 file was written by STAMP."""
    for path in files:
        try:
            return is_stamp(path)
        except BagError:  # raised again where the bag is read
            continue
    return False


def refuse_mixed(folder: Path) -> None:
    """Reject a folder with different bags in several file formats.

    Raises:
        BagError: there are such bags; names a file of each format.
    """
    tensors = pt_files(folder)
    arrays = [p for p in npy_files(folder) if not p.name.endswith(INDEXES)]
    stored = [p for p in hdf5_files(folder) if p.parent == folder]
    kinds = [files_by_name(files) for files in (stored, tensors, arrays) if files]
    for first, second in pairwise(kinds):
        if first.keys() != second.keys():
            unpaired = sorted(first.keys() ^ second.keys())[0]
            first_file = first.get(unpaired) or second[unpaired]
            second_file = next(iter((second if unpaired in first else first).values()))
            raise BagError(
                f"{folder} holds different bags in several formats: {first_file.name} and "
                f"{second_file.name}. Put each tool's files in a folder of their own"
            )


def refusal(folder: Path) -> str:
    """Explain why a folder contains no bags, with advice."""
    contents = sorted({p.suffix or f"{p.name}/" for p in folder.iterdir()})[:8]
    start = f"there are no bags in {folder}"
    tensors = pt_files(folder)
    if any(folder.glob("*.zarr")):
        return (
            f"{start}: these .zarr stores look like LazySlide's or tiatoolbox's, which are not "
            "supported. Save each slide's features and corners as .h5 with the datasets 'features' "
            "(instances, width) and 'coords' (instances, 2), level-0 pixels, or run probsa extract"
        )
    if (folder / "manifest.csv").is_file() or any(folder.glob("coords_*.csv")):
        return (
            f"{start}: manifest.csv and lists in .pt look like eva's, whose rows may be in a "
            "different order than their coordinates, so no graph can be built from them. Extract "
            "the features with probsa extract, TRIDENT or CLAM"
        )
    if tensors:
        return (
            f"{start}: found only .pt files. CLAM's must be in a folder named pt_files; "
            "slideflow's need <slide>.index.npz and bags_config.json beside them. Add these"
        )
    return (
        f"{start}: expected .h5 files with a dataset 'features' (ours, TRIDENT's, CLAM's) or "
        "'feats' (STAMP's), slideflow's or CLAM's .pt, or torchmil's features/<encoder>/*.npy; "
        f"found {', '.join(contents) or 'nothing'}"
    )
