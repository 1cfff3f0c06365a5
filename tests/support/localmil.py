"""A small experiment with instance labels, and its prepared set."""

import h5py
import numpy as np
from support.made_experiments import write_folds

from probsa.core import write_csv

FOLDS = [[f"f{k}b{i}" for i in range(10)] for k in range(4)]
BAGS = [b for fold in FOLDS for b in fold]
Y = {b: i % 2 for i, b in enumerate(BAGS)}
GROUPS = {b: b[:3] + str(int(b[-1]) // 2) for b in BAGS}
N = 12
LABELS = {b: [int(Y[b] and 3 <= n < 6) for n in range(N)] for b in BAGS}


def write_experiment(out, *, better=0.0, seeds=2, labels=None):
    """Write two methods; the second one's scores of positive instances are higher by `better`."""
    labels = LABELS if labels is None else labels
    for seed in range(seeds):
        for k, model in enumerate(("abmil", "clam-sb")):
            rng = np.random.default_rng((seed, k))
            p = {b: float(np.clip(0.25 + 0.5 * Y[b] + rng.normal(0, 0.2), 0.02, 0.98)) for b in Y}
            means = {
                b: (rng.normal(size=N) + (better * k + 0.5) * np.array(LABELS[b])).tolist()
                for b in BAGS
            }
            write_folds(
                out,
                Y,
                FOLDS,
                p,
                model=model,
                seed=seed,
                instances=labels,
                means=means,
                groups=GROUPS,
            )
    return labels


def write_set(folder, *, n=N):
    """Write the set, with `n` instances in each bag."""
    (folder / "features").mkdir(parents=True, exist_ok=True)
    for b in BAGS:
        with h5py.File(folder / "features" / f"{b}.h5", "w") as f:
            f["features"] = np.zeros((n, 2), np.float32)
            f["coords"] = np.stack([np.arange(n), np.zeros(n)], 1).astype(np.int64)
            f["instance_labels"] = np.array([*LABELS[b], *[0] * (n - N)], np.int8)
    rows = [
        {"bag": b, "label": Y[b], "group": GROUPS[b], "fold": k}
        for k, fold in enumerate(FOLDS)
        for b in fold
    ]
    write_csv(folder / "labels.csv", ["bag", "label", "group", "fold"], rows)
    return folder


def run_of(out, split, *, seed=0):
    """Return the predictions folder of a run of the first method."""
    return out / "cells" / "toy" / "abmil" / f"split{split}-seed{seed}" / "predictions"
