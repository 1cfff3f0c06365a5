"""Stage 5: open a folder of bags. Its format is recognised by its content."""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core import (
    GraphOptions,
    bag_limit,
    files_by_name,
    hdf5_files,
    is_there,
    not_a_file,
    npy_files,
    passed_over,
    pt_files,
)
from ..errors import BagError, hint
from ..slides import is_scan, slide_files
from .formats.recognition import INDEXES, is_slideflow, is_stamp
from .names import encoder_of_folder
from .overlay import label_files

if TYPE_CHECKING:
    from .bag_set import BagSet

log = logging.getLogger(__name__)

SETS = ("features", "patches_*/features", "*px_overlap", "slices")
"""Where `features_<encoder>` may be within a folder, besides the folder itself: in `features`
(torchmil, also by the size of its patches), in the job of TRIDENT or of probsa, or in `slices`."""
Reader = Literal["clam", "hdf5", "slideflow", "stamp", "torchmil"]
"""The modules of `formats` that read bags."""
STAMP_FOLDER = re.compile(r".+-[0-9a-f]{8}")
"""Name of STAMP's feature folders: <extractor>-<hash>."""


def open_bags(
    folder: Path | str,
    *,
    graph: GraphOptions | None = None,
    cache_gb: float = 4.0,
    features: str | None = None,
    instance_labels: Path | str | None = None,
    max_bag_gb: float | None = None,
) -> "BagSet":
    """Open the bags of a folder, written by probsa, TRIDENT, CLAM, STAMP, slideflow or torchmil.

    Args:
        folder: The folder of the files, or the output folder of the tool that wrote them.
        graph: How graphs are built. None: as `GraphOptions` has it; for predictions with a run, as
            the run has it.
        cache_gb: Gigabytes of features and graphs to keep in memory, in each process.
        features: Which folder of features to open, if there are several (`features_resnet50`).
        instance_labels: A folder of `<bag>.npy` that overrides the instance labels in the files.
        max_bag_gb: Gigabytes that a bag may take in memory; bags that state more are refused. None
            is the setting of `bag_limit`, or its default.

    Raises:
        BagError: there are no bags, two share a name, the folder mixes bags of several tools,
            several folders of features exist and none is chosen, or no file of instance labels
            is named after a bag.
    """
    chosen = _chosen_folder(Path(folder), features)
    with bag_limit(max_bag_gb):
        reader, files = _recognised(chosen)
        for path in passed_over(chosen, files):
            log.warning("note: %s: it is passed over", not_a_file(path))
        paths = files_by_name(files)
        options = graph or GraphOptions()
        bags = _bag_set(reader)(chosen, paths, graph=options, cache_gb=cache_gb)
    bags.graph_chosen = graph is not None
    if instance_labels is not None:
        bags.overlay = label_files(Path(instance_labels), bags.names)
    return bags


def bag_names(folder: Path | str, *, features: str | None = None) -> tuple[str, ...]:
    """Return the names of the bags that `open_bags` finds in a folder.

    Files are opened only until one tells the format; no bag is read.

    Raises:
        BagError: as `open_bags`, as far as names tell.
    """
    _, files = _recognised(_chosen_folder(Path(folder), features))
    return tuple(files_by_name(files))


def _bag_set(reader: Reader) -> "type[BagSet]":
    """Return the class that reads the bags of a tool; its module needs PyTorch."""
    from .formats.clam import ClamTensorBags
    from .formats.hdf5 import Hdf5Bags
    from .formats.slideflow import SlideflowBags
    from .formats.stamp import StampBags
    from .formats.torchmil import TorchmilBags

    readers: dict[Reader, type[BagSet]] = {
        "clam": ClamTensorBags,
        "hdf5": Hdf5Bags,
        "slideflow": SlideflowBags,
        "stamp": StampBags,
        "torchmil": TorchmilBags,
    }
    return readers[reader]


def feature_folders(folder: Path) -> dict[str, Path]:
    """Find the folders of features in a tool's output folder, by their relative path."""
    parents = [folder]
    for pattern in SETS:
        parents += sorted(folder.glob(pattern))
    folders: dict[str, Path] = {}
    for parent in parents:
        for path in sorted(parent.glob("features_*")):
            if path.is_dir() and (npy_files(path) or hdf5_files(path)):
                folders[str(path.relative_to(folder))] = path
    for path in sorted(folder.iterdir()):
        if path.is_dir() and STAMP_FOLDER.fullmatch(path.name) and hdf5_files(path):
            folders[path.name] = path
    return folders


def _chosen_folder(folder: Path, features: str | None) -> Path:
    """Return the folder that contains the feature files.

    If none is chosen, it is CLAM's folder; else the given one if .h5 files are in it; else its only
    folder of features; else the given one.
    """
    if not folder.is_dir():
        beside = [p.name for p in folder.parent.glob("*/")]
        raise BagError(
            f"there is no folder {folder}: give the one that holds the bags."
            f"{hint(folder.name, beside)}"
        )
    if features is None:
        for clam in ("h5_files", "pt_files"):
            if is_there(folder / clam, folder=True):
                return folder / clam
    sets = feature_folders(folder)
    if features is not None:
        matches = []
        for key, path in sets.items():
            if features in (key, path.name, encoder_of_folder(path.name)):
                matches.append(path)
        if len(matches) == 1:
            return matches[0]
        raise BagError(
            f"{len(matches) or 'no'} folders of features are named {features!r} in {folder}."
            f"{hint(features, sets)} Available: {', '.join(sets) or 'none'}"
        )
    # .h5 files in the folder itself are bags, and then so are those of its subfolders
    if not sets or any(path.parent == folder for path in hdf5_files(folder)):
        return folder
    if len(sets) > 1:
        raise BagError(
            f"{folder} holds several folders of features: {', '.join(sets)}. "
            "Give the path of one, or choose one with --feature-set (train, convert)"
        )
    (only_set,) = sets.values()
    return only_set


def _recognised(folder: Path) -> tuple[Reader, list[Path]]:
    """Return the reader and the files of a folder."""
    stored = hdf5_files(folder)
    tensors = pt_files(folder)
    arrays = npy_files(folder)
    top_level = [path for path in stored if path.parent == folder]
    without_indexes = [path for path in arrays if not path.name.endswith(INDEXES)]
    _refuse_mixed(folder, (top_level, tensors, without_indexes))
    if stored:
        for path in stored:
            with suppress(BagError):  # raised again where the bag is read
                return ("stamp" if is_stamp(path) else "hdf5"), stored
        return "hdf5", stored
    if tensors and is_slideflow(folder, tensors):
        return "slideflow", tensors
    if tensors and folder.name == "pt_files":
        return "clam", tensors
    if without_indexes and tensors:  # each bag is in both, and nothing reads such tensors
        return "torchmil", without_indexes
    if arrays and not tensors:
        return "torchmil", arrays
    raise _no_bags(folder, tensors)


def _refuse_mixed(folder: Path, formats: Sequence[list[Path]]) -> None:
    """Refuse files of several formats unless each bag has one of every format."""
    by_name = [files_by_name(files) for files in formats if files]
    for first, second in pairwise(by_name):
        only_first = first.keys() - second.keys()
        only_second = second.keys() - first.keys()
        if not (only_first or only_second):
            continue
        name = min(only_first | only_second)
        having, lacking = (first, second) if name in first else (second, first)
        file = having[name]
        other = next(iter(lacking.values()))
        raise BagError(
            f"{folder} holds different bags in several formats: {file.name} and {other.name}. Put "
            "each tool's files in a folder of their own"
        )


def _no_bags(folder: Path, tensors: Sequence[Path]) -> BagError:
    """Return the error that says why a folder has no bags, and what to do."""
    start = f"there are no bags in {folder}"
    if any(folder.glob("*.zarr")):
        return BagError(
            f"{start}: these .zarr stores look like LazySlide's or tiatoolbox's, which are not "
            "supported. Save each slide's features and corners as .h5 with the datasets 'features' "
            "(instances, width) and 'coords' (instances, 2), level-0 pixels, or run probsa extract"
        )
    if (folder / "manifest.csv").is_file() or any(folder.glob("coords_*.csv")):
        return BagError(
            f"{start}: manifest.csv and lists in .pt look like eva's, whose rows may be in a "
            "different order than their coordinates, so no graph can be built from them. Extract "
            "the features with probsa extract, TRIDENT or CLAM"
        )
    if tensors:
        return BagError(
            f"{start}: found only .pt files. CLAM's must be in a folder named pt_files; "
            "slideflow's need <slide>.index.npz and bags_config.json beside them. Add these"
        )
    is_work_folder = any(folder.glob("*/patches"))
    is_job = (folder / "patches").exists()  # a folder in the work folder
    if is_work_folder or is_job:
        work = folder if is_work_folder else folder.parent
        return BagError(f"{start}: its patches have no features yet: run probsa extract {work}")
    if slide_files(folder) or any(is_scan(p) for p in folder.iterdir() if p.is_file()):
        return BagError(
            f"{start}: it holds slides or scans. Run `probsa patch` and `probsa extract` first, "
            "or `probsa run` to predict them with a trained run"
        )
    contents = sorted({p.suffix or f"{p.name}/" for p in folder.iterdir()})[:8]
    return BagError(
        f"{start}: expected .h5 files with a dataset 'features' (ours, TRIDENT's, CLAM's) or "
        "'feats' (STAMP's), slideflow's or CLAM's .pt, or torchmil's features/<encoder>/*.npy; "
        f"found {', '.join(contents) or 'nothing'}"
    )
