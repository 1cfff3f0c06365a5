"""Small bags with targets of every task, whose instances carry what the targets follow from."""

from pathlib import Path

import h5py
import numpy as np

TASKS: dict[str, dict[str, object]] = {
    "multiclass": {},
    "ordinal": {"task": "ordinal"},
    "multilabel": {"task": "multilabel", "target": ["tumour", "necrosis"]},
    "regression": {"task": "regression", "target": "age"},
    "survival": {"task": "survival", "bins": 2},
}
"""The keys of a run for each task."""
HEADERS = {
    "multiclass": "label",
    "ordinal": "label",
    "multilabel": "tumour,necrosis",
    "regression": "age",
    "survival": "time,event",
}


def write_cohort(
    folder: Path, task: str, *, bags: int = 36, column: str = "fold"
) -> dict[str, object]:
    """Write bags of 2 to 4 instances in three folds, or with a third in the test part.

    Returns: the keys of a run.
    """
    g = np.random.default_rng(list(TASKS).index(task))
    (folder / "features").mkdir(parents=True)
    lines = [f"bag,{HEADERS[task]},{column}"]
    for k in range(bags):
        level = k // 3 % 3
        finding = k // 9 % 2
        x = g.normal(size=(int(g.integers(2, 5)), 4)).astype(np.float32)
        x[:, 0] += 2 * level
        x[:, 1] += 3 * finding
        with h5py.File(folder / "features" / f"{k:02d}.h5", "w") as file:
            file["features"] = x
            file["coords"] = np.arange(len(x))[:, None]
            file["coords"].attrs["kind"] = "ct"
        cells = {
            "multiclass": f"{level}",
            "ordinal": f"{level}",
            "multilabel": f"{int(level > 0)},{'' if k % 11 == 5 else finding}",
            "regression": f"{40 + 10 * level + g.normal():.3f}",
            "survival": f"{(4 - level) * g.uniform(1, 2):.3f},{int(k % 4 != 1)}",
        }
        part = k % 3 if column == "fold" else "train" if k % 3 else "test"
        lines.append(f"{k:02d},{cells[task]},{part}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    paths = {"features": str(folder / "features"), "labels": str(folder / "labels.csv")}
    return {**paths, **TASKS[task]}
