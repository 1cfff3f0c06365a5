"""Small folders of stored bags, for tests that read them and train on them."""

from pathlib import Path

import h5py
import numpy as np

WIDTH = 6


def write_folder(
    folder: Path, *, bags: int = 12, seed: int = 0, kind: str = "ct", signal: float = 3.0
) -> tuple[Path, Path]:
    """Write bags of 3 to 9 instances, every other one positive; return (features, labels.csv)."""
    g = np.random.default_rng(seed)
    features = folder / "features"
    features.mkdir(parents=True)
    lines = ["bag,label,fold"]
    for k in range(bags):
        n = int(g.integers(3, 10))
        x = g.normal(size=(n, WIDTH)).astype(np.float32)
        truth = np.zeros(n, np.int8)
        if k % 2:
            truth[: max(1, n // 3)] = 1
            x[truth == 1, 0] += signal
        with h5py.File(features / f"{k:03d}.h5", "w") as f:
            f["features"] = x
            rows = np.arange(n)
            f["coords"] = rows[:, None] if kind == "ct" else np.stack([rows % 3, rows // 3], 1) * 64
            f["instance_labels"] = truth
            f["coords"].attrs["kind"] = kind
        lines.append(f"{k:03d},{k % 2},{k // 2 % 3}")
    table = folder / "labels.csv"
    table.write_text("\n".join(lines) + "\n")
    return features, table
