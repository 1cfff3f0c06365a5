"""Stage 5: folders of stored bags, tables of labels, and splits.

`open_bags` recognises the folder's layout; a tool's format is one module of this folder.
"""

from collections.abc import Callable
from pathlib import Path

from ..core import hdf5_files, npy_files, pt_files
from ..errors import BagError
from .bag_set import BagSet, GraphOptions
from .formats.clam import ClamTensorBags
from .formats.hdf5 import Hdf5Bags
from .formats.slideflow import SlideflowBags, is_slideflow
from .formats.stamp import StampBags
from .formats.torchmil import TorchmilBags
from .overlay import Overlay
from .recognition import chosen_folder, refusal, refuse_mixed, stamp_files

DEFAULT_GRAPH = GraphOptions()


def open_bags(
    folder: Path,
    *,
    graph: GraphOptions = DEFAULT_GRAPH,
    cache_gb: float = 4.0,
    features: str | None = None,
    instance_labels: Path | None = None,
) -> BagSet:
    """The bags of a folder: ours, TRIDENT's, CLAM's, STAMP's, slideflow's or torchmil's.

    Args:
        folder: the files' folder, or the one above it that the tool which made them wrote to.
        graph: how graphs are built.
        cache_gb: gigabytes of features and graphs kept in memory, in each process that reads.
        features: which folder of features, where there are several (`features_resnet50`).
        instance_labels: a folder of `<bag>.npy`, which go before what the bags' files hold.

    Raises:
        BagError: no bags there, two of one name, bags of two tools in one folder, several
            folders of features and none chosen, or labels of instances that name no bag.
    """
    if not folder.is_dir():
        raise BagError(f"there is no folder {folder}: give the one that holds the bags")
    chosen = chosen_folder(folder, features)
    bags = _recognised(chosen)(chosen, graph=graph, cache_gb=cache_gb)
    if instance_labels is not None:
        bags.overlay = Overlay(instance_labels, bags.names)
    return bags


def _recognised(folder: Path) -> Callable[..., BagSet]:
    refuse_mixed(folder)
    if files := hdf5_files(folder):
        return StampBags if stamp_files(files) else Hdf5Bags
    if files := pt_files(folder):
        if is_slideflow(folder, files):
            return SlideflowBags
        if folder.name == "pt_files":
            return ClamTensorBags
    elif npy_files(folder):
        return TorchmilBags
    raise BagError(refusal(folder))
