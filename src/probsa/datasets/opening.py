"""Stage 5: open a folder of bags; its format is recognised, and each format has one module."""

from collections.abc import Callable
from pathlib import Path

from ..core import bag_limit, hdf5_files, npy_files, pt_files
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
    max_bag_gb: float | None = None,
) -> BagSet:
    """Open the bags of a folder, written by probsa, TRIDENT, CLAM, STAMP, slideflow or torchmil.

    Args:
        folder: The folder of the files, or the output folder of the tool that wrote them.
        graph: How graphs are built.
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
    if not folder.is_dir():
        raise BagError(f"there is no folder {folder}: give the one that holds the bags")
    chosen = chosen_folder(folder, features)
    with bag_limit(max_bag_gb):
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
