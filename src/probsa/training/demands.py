"""Stage 8: what an epoch reads, where it fits and how long it takes, for `probsa train --dry-run`.

Sizes are those that the files state; speeds are measured on a few bags.
"""

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..core import build_graph
from ..datasets import PatientBags
from .devices import device_bytes, host_bytes
from .preparation import PreparedData

MEASURED = 5
"""Number of files that are read to measure the speed."""
BYTES_OF_A_WEIGHT = 4
SHARE_OF_MEMORY = 0.5
"""Largest part of the memory of the machine that a larger cache is advised for."""

Advice = Literal["larger_cache", "cache_for_graphs", "half_precision", "workers"]
"""What makes an epoch faster: keep the features in memory, keep the weights of the graphs, store
features in half precision, or read in several processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingSpeed:
    """What was measured while a few files were read."""

    bytes_per_second: float
    bytes_per_value: int
    """Bytes of a feature in the files."""
    edges_per_instance: float
    graph_seconds_per_instance: float
    """Seconds in which the graph of an instance is made for the first time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """What the epochs of a run need, in gigabytes (10⁹ bytes) and seconds."""

    instances: int
    """Instances that an epoch reads, of the training and the validation bags."""
    features: int
    """Width of the features."""
    speed: ReadingSpeed
    cache_gb: float
    """Memory for bags between epochs."""
    host_gb: float | None
    """Memory of the machine; None if the system does not say."""
    device_gb: float | None
    """Free memory of a CUDA device; None for another device."""
    step_seconds: float | None
    """Seconds that an epoch computes, without reading; None for a model without epochs."""

    @property
    def epoch_gb(self) -> float:
        """Size of the features that an epoch reads, in the precision of their files."""
        return self.instances * self.features * self.speed.bytes_per_value / 1e9

    @property
    def weights_gb(self) -> float:
        """Size of the edge weights of all bags, which are kept before features are."""
        return self.instances * self.speed.edges_per_instance * BYTES_OF_A_WEIGHT / 1e9

    @property
    def cached_share(self) -> float:
        """Share of the features that stay in memory between epochs."""
        free = max(0.0, self.cache_gb - self.weights_gb)
        return min(1.0, free / self.epoch_gb)

    @property
    def device_share(self) -> float | None:
        """Share of the features for which the device has memory; None without a CUDA device."""
        return None if self.device_gb is None else min(1.0, self.device_gb / self.epoch_gb)

    @property
    def remakes_graphs(self) -> bool:
        """Whether edge weights are computed anew in every epoch."""
        return self.weights_gb > self.cache_gb

    @property
    def graph_seconds(self) -> float:
        """Seconds in which the graphs of all bags are made once."""
        return self.instances * self.speed.graph_seconds_per_instance

    @property
    def reading_seconds(self) -> float:
        """Seconds that an epoch after the first one reads, in one process."""
        read_bytes = (1 - self.cached_share) * self.epoch_gb * 1e9
        seconds = read_bytes / self.speed.bytes_per_second
        return seconds + self.graph_seconds if self.remakes_graphs else seconds

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of an epoch after the first one: bags are read while steps are taken."""
        return None if self.step_seconds is None else max(self.step_seconds, self.reading_seconds)

    def run_seconds(self, epochs: int) -> float | None:
        """Return the seconds of a run, with the graphs that its first epoch makes."""
        if self.epoch_seconds is None:
            return None
        graphs = 0.0 if self.remakes_graphs else self.graph_seconds
        return epochs * self.epoch_seconds + graphs

    @property
    def wanted_cache_gb(self) -> float:
        """The cache that holds all features and weights."""
        return self.epoch_gb + self.weights_gb

    @property
    def advice(self) -> Advice | None:
        """What would shorten the epochs; None where reading does not decide how long they take."""
        if self.step_seconds is None or self.reading_seconds <= self.step_seconds:
            return None
        if self.host_gb is not None and self.wanted_cache_gb <= SHARE_OF_MEMORY * self.host_gb:
            return "larger_cache"
        if self.remakes_graphs:
            return "cache_for_graphs"
        return "half_precision" if self.speed.bytes_per_value > 2 else "workers"


def demands_of(
    prepared: PreparedData, *, device: torch.device, speed: ReadingSpeed, step_seconds: float | None
) -> Demands:
    """Return what a run needs whose data are prepared.

    Args:
        prepared: The data of the run.
        device: Where the run is trained.
        speed: How fast its files are read; see `reading_speed`.
        step_seconds: Seconds that an epoch computes; None for a model without epochs.
    """
    bags = prepared.bags
    names = (*prepared.split.train, *prepared.split.val)
    free = device_bytes(device)
    memory = host_bytes()
    return Demands(
        instances=sum(bags.size(name) for name in names),
        features=bags.in_dim,
        speed=speed,
        cache_gb=bags.cache_gb,
        host_gb=None if memory is None else memory / 1e9,
        device_gb=None if free is None else free / 1e9,
        step_seconds=step_seconds,
    )


def reading_speed(prepared: PreparedData) -> ReadingSpeed:
    """Read a few of the training files, evenly spread over their sizes, and make their graphs.

    Raises:
        BagError: the file of a bag cannot be used.
        GraphError: the coordinates are missing or contradict the stride.
    """
    bags = prepared.bags
    files = bags.slide_bags if isinstance(bags, PatientBags) else bags
    by_size = sorted(prepared.training_files(), key=files.size)
    places = np.linspace(0, len(by_size) - 1, min(MEASURED, len(by_size)))
    read_bytes = 0
    instances = 0
    edges = 0
    read_seconds = 0.0
    graph_seconds = 0.0
    bytes_per_value = 0
    for place in places.round().astype(int):
        start = time.perf_counter()
        stored = files.stored(by_size[place])
        read = time.perf_counter()
        graph = build_graph(stored, options=files.graph)
        graph_seconds += time.perf_counter() - read
        read_seconds += read - start
        read_bytes += stored.features.nbytes
        instances += len(stored.features)
        edges += graph.edges.shape[1]
        bytes_per_value = stored.features.itemsize
    return ReadingSpeed(
        bytes_per_second=read_bytes / read_seconds,
        bytes_per_value=bytes_per_value,
        edges_per_instance=edges / instances,
        graph_seconds_per_instance=graph_seconds / instances,
    )
