"""Small bags with targets of every task, whose instances carry what the targets follow from."""

from pathlib import Path

import h5py
import numpy as np

TASKS: dict[str, dict[str, object]] = {
    "multiclass": {},
    "ordinal": {"task": "ordinal"},
    "multilabel": {"task": "multilabel", "target": ["tumour", "necrosis"]},
    "regression": {"task": "regression", "target": "age"},
    "survival": {"task": "survival", "bins": 3},
}
"""The keys of a run for each task."""
HEADERS = {
    "multiclass": "label",
    "ordinal": "label",
    "multilabel": "tumour,necrosis",
    "regression": "age",
    "survival": "time,event",
}


def write_cohort(folder: Path, task: str, *, bags: int = 36, folds: int = 3) -> dict[str, str]:
    """Write bags of 2 to 4 instances with a target; return the paths as keys of a run."""
    g = np.random.default_rng(list(TASKS).index(task))
    (folder / "features").mkdir(parents=True)
    lines = [f"bag,{HEADERS[task]},fold"]
    for k in range(bags):
        level = k // folds % 3
        x = g.normal(size=(int(g.integers(2, 5)), 4)).astype(np.float32)
        x[:, 0] += 2 * level
        x[:, 1] += 3 * (k // (3 * folds) % 2)
        with h5py.File(folder / "features" / f"{k:02d}.h5", "w") as file:
            file["features"] = x
            file["coords"] = np.arange(len(x))[:, None]
            file["coords"].attrs["kind"] = "ct"
        cells = {
            "multiclass": f"{level}",
            "ordinal": f"{level}",
            "multilabel": f"{int(level > 0)},{'' if k % 11 == 5 else k // (3 * folds) % 2}",
            "regression": f"{40 + 10 * level + g.normal():.3f}",
            "survival": f"{(4 - level) * g.uniform(1, 2):.3f},{int(k % 4 != 1)}",
        }
        lines.append(f"{k:02d},{cells[task]},{k % folds}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return {"features": str(folder / "features"), "labels": str(folder / "labels.csv")}
