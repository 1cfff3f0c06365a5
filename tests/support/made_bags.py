"""Labelled bags in memory: arrays with coordinates, of which some instances decide the label."""

import numpy as np

WIDTH = 6


def made_bags(count: int = 16, *, seed: int = 0, size: int | None = None, signal: float = 3.0):
    """Return pairs (features, coords) of slides, and labels 'benign' and 'tumour' in turn."""
    g = np.random.default_rng(seed)
    bags = []
    labels = []
    for k in range(count):
        n = size or int(g.integers(4, 10))
        x = g.normal(size=(n, WIDTH)).astype(np.float32)
        if k % 2:
            x[: max(1, n // 3), 0] += signal
        rows = np.arange(n)
        bags.append((x, np.stack([rows % 3, rows // 3], 1) * 64))
        labels.append("tumour" if k % 2 else "benign")
    return bags, labels
