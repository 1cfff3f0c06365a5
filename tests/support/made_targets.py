"""A folder of made bags with a target of every kind, and tiny runs on each."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

WIDTH = 6
CLASSES = ("none", "mild", "severe")
TARGETS: dict[str, dict[str, Any]] = {
    "binary": {"task": "binary", "target": "tumour"},
    "multiclass": {"task": "multiclass", "target": "kind", "classes": list(CLASSES)},
    "ordinal": {"task": "ordinal", "target": "grade"},
    "multilabel": {"task": "multilabel", "target": ["oedema", "necrosis"]},
    "regression": {"task": "regression", "target": "thickness"},
    "survival": {"task": "survival", "target": ["months", "dead"], "bins": 2},
}
"""The options of run files, by task."""
COLUMNS = {
    "binary": ["tumour"],
    "multiclass": ["kind"],
    "ordinal": ["grade"],
    "multilabel": ["oedema", "necrosis"],
    "regression": ["thickness"],
    "survival": ["months", "dead"],
}
KEYS = {
    "model": "evidence-field",
    "embed": 4,
    "predict_samples": 8,
    "samples": 2,
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 0.02,
    "warmup_epochs": 0,
    "threads": 1,
    "device": "cpu",
    "tensorboard": False,
    "seed": 0,
}
"""The options of a tiny run."""


def write_targets(folder: Path, *, bags: int = 48, seed: int = 0) -> Path:
    """Write bags of 4 to 9 patches into `features`, and `labels_<task>.csv`; return the folder.

    The first feature of some patches is raised by the amount that every target follows. Two of
    three bags share a patient.
    """
    g = np.random.default_rng(seed)
    (folder / "features").mkdir(parents=True)
    cells: list[dict[str, str]] = []
    for k in range(bags):
        n = int(g.integers(4, 10))
        amount = k % 3
        x = g.normal(size=(n, WIDTH)).astype(np.float32)
        found = np.zeros(n, np.int8)
        found[: 1 + n // 3] = amount > 0
        x[found > 0, 0] += 2.0 * amount
        rows = np.arange(n)
        with h5py.File(folder / "features" / f"s{k:02d}.h5", "w") as f:
            f["features"] = x
            f["coords"] = np.stack([rows % 3, rows // 3], 1) * 64
            f["coords"].attrs["kind"] = "slide"
            f["instance_labels"] = found
        time = (12 - 4 * amount) * g.uniform(0.6, 1.4)
        cells.append(
            {
                "bag": f"s{k:02d}",
                "group": f"p{k // 3}" if k % 3 < 2 else f"q{k}",
                "split": ("train", "train", "val", "test")[k // 3 % 4],
                "tumour": str(int(amount > 0)),
                "kind": CLASSES[amount],
                "grade": str(amount),
                "oedema": str(int(amount > 0)),
                "necrosis": "" if k % 7 == 0 else str(int(amount == 2)),
                "thickness": f"{10 + 4 * amount + g.normal():.3f}",
                "months": f"{time:.3f}",
                "dead": str(int(k % 5 > 0)),
            }
        )
    for task, columns in COLUMNS.items():
        header = ["bag", "group", "split", *columns]
        lines = [",".join(header), *(",".join(row[c] for c in header) for row in cells)]
        (folder / f"labels_{task}.csv").write_text("\n".join(lines) + "\n")
    return folder


def run_keys(folder: Path, task: str, **changes: Any) -> dict[str, Any]:
    """Return the run file of a tiny run on one task, as flat keys."""
    files = {"features": str(folder / "features"), "labels": str(folder / f"labels_{task}.csv")}
    return {**KEYS, **files, **TARGETS[task], **changes}
