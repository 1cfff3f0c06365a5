"""The file of a grid on a folder of stored bags."""

from pathlib import Path
from typing import Any

import yaml

SHORT_RUNS = {"epochs": 2, "batch_size": 4, "learning_rate": 0.01, "device": "cpu", "threads": 1}


def write_grid(folder: Path, **keys: Any) -> Path:
    """Write a grid beside a folder of `write_folder`, with two models; None leaves out a key."""
    data = {"features": str(folder / "features"), "labels": str(folder / "labels.csv")}
    given = {"data": data, "models": ["abmil", "abmil-probsa-diag"], **keys}
    path = folder.parent / "grid.yaml"
    path.write_text(
        yaml.safe_dump({k: v for k, v in given.items() if v is not None}, sort_keys=False)
    )
    return path
