"""A small experiment with instance labels, its prepared set, and rows of the leaderboard."""

import hashlib

import h5py
import numpy as np
from support.made_experiments import write_folds

from probsa.core import write_csv, write_json
from probsa.datasets import SetCard, fingerprint_line
from probsa.datasets.localmil import SetDescription
from probsa.evaluation import submit

FOLDS = [[f"f{k}b{i}" for i in range(10)] for k in range(4)]
BAGS = [b for fold in FOLDS for b in fold]
Y = {b: i % 2 for i, b in enumerate(BAGS)}
GROUPS = {b: b[:3] + str(int(b[-1]) // 2) for b in BAGS}
N = 12
LABELS = {b: [int(Y[b] and 3 <= n < 6) for n in range(N)] for b in BAGS}
SOME_LABELS = {b: v for b, v in LABELS.items() if b not in ("f0b0", "f0b1", "f3b3")}
SOME_LABELS["f1b1"] = [v if n < 8 else -1 for n, v in enumerate(LABELS["f1b1"])]


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
                out, Y, FOLDS, p, model=model, seed=seed, instances=labels, means=means,
                groups=GROUPS,
            )  # fmt: skip
    return labels


def write_set(folder, *, labels=LABELS):
    """Write the set as `probsa dataset localmil` does; bags that `labels` lacks have none."""
    digest = hashlib.sha256()
    for b in sorted(BAGS):
        positive = sum(v > 0 for v in labels.get(b, []))
        digest.update(fingerprint_line(b, y=Y[b], n=N, positive=positive))
    (folder / "features").mkdir(parents=True, exist_ok=True)
    for b in BAGS:
        with h5py.File(folder / "features" / f"{b}.h5", "w") as f:
            f["features"] = np.zeros((N, 2), np.float32)
            f["coords"] = np.stack([np.arange(N), np.zeros(N)], 1).astype(np.int64)
            if b in labels:
                f["instance_labels"] = np.array(labels[b], np.int8)
    description = SetDescription(title="toy", source="a", licence="b", commit="c", graph="grid")
    card = SetCard(
        name="toy", description=description, bags=40, positive_bags=20, groups=20, folds=4,
        labelled_bags=len(labels), instances=40 * N, positive_instances=60, features=2,
        fingerprint=digest.hexdigest(),
    )  # fmt: skip
    write_json(folder / "card.json", card.to_dict())
    rows = [
        {"bag": b, "label": Y[b], "group": GROUPS[b], "fold": k}
        for k, fold in enumerate(FOLDS)
        for b in fold
    ]
    write_csv(folder / "labels.csv", ["bag", "label", "group", "fold"], rows)
    return folder


def run_of(out, split):
    """Return the predictions folder of a run of the first method."""
    return out / "cells" / "toy" / "abmil" / f"split{split}-seed0" / "predictions"


def write_row(out, row, *, name="theirs", folds=4, replicate=0, labels=LABELS):
    """Make a row of the first method's runs, and return the prepared set."""
    prepared = write_set(out / "set", labels=labels)
    for split in range(folds):
        submit(run_of(out, split), row, folder=prepared, method=name, replicate=replicate)
    return prepared
