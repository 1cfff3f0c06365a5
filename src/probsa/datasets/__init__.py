"""Stage 5: folders of stored bags, tables of labels, and splits.

`open_bags` recognises the folder's layout; a format is one module of this folder.
"""

from pathlib import Path

from ..errors import BagError, hint
from ._base import BagSet as BagSet
from ._base import GraphOptions as GraphOptions
from .hdf5 import Hdf5Bags, hdf5_files
from .splits import Split as Split
from .splits import make_split as make_split
from .splits import read_clam_split as read_clam_split
from .tables import Table as Table
from .tables import match as match
from .tables import read_table as read_table
from .torchmil import TorchmilBags, npy_files

DEFAULT_GRAPH = GraphOptions()


def open_bags(
    folder: Path,
    *,
    graph: GraphOptions = DEFAULT_GRAPH,
    cache_gb: float = 4.0,
    features: str | None = None,
) -> BagSet:
    """The bags of a folder: HDF5 files (ours, TRIDENT's, CLAM's) or torchmil's .npy layout.

    Args:
        folder: the files' folder, or the one above it that the tool which made them wrote to.
        graph: how graphs are built.
        cache_gb: gigabytes of features and graphs kept in memory, in each process that reads.
        features: which folder of features, where there are several (`features_resnet50`).

    Raises:
        BagError: no bags there, two of one name, or several folders of features and none chosen.
    """
    if not folder.is_dir():
        raise BagError(f"there is no folder {folder}: give the one that holds the bags")
    chosen = _chosen(folder, features)
    if hdf5_files(chosen):
        return Hdf5Bags(chosen, graph=graph, cache_gb=cache_gb)
    if npy_files(chosen):
        return TorchmilBags(chosen, graph=graph, cache_gb=cache_gb)
    held = sorted({p.suffix or f"{p.name}/" for p in chosen.iterdir()})[:8]
    raise BagError(
        f"there are no bags in {chosen}: expected .h5 files with a dataset 'features', or "
        f"torchmil's features/<encoder>/*.npy; found {', '.join(held) or 'nothing'}"
    )


def _chosen(folder: Path, features: str | None) -> Path:
    """The folder that holds the features' files."""
    if (folder / "h5_files").is_dir() and features is None:
        return folder / "h5_files"
    found: dict[str, Path] = {}
    for above in (folder, folder / "features", *sorted(folder.glob("patches_*/features"))):
        for f in sorted(above.glob("features_*")):
            if f.is_dir() and (npy_files(f) or hdf5_files(f)):
                found[str(f.relative_to(folder))] = f
    if features is not None:
        hits = [f for key, f in found.items() if features in (key, f.name)]
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
