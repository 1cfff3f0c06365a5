"""The file of one traced run: what it predicted after every epoch, with a header that describes it.

A run has predictions of three kinds of weights: `raw` (as they were at the end of an epoch), `ema`
(averaged exponentially over the steps) and, once, `average` (of the epochs of the last quarter).
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Part = Literal["val", "test"]
Weights = Literal["raw", "ema", "average"]


@dataclass(frozen=True, kw_only=True)
class Instances:
    """A test or validation bag as a run saw it after one epoch."""

    name: str
    label: int
    truth: np.ndarray
    """Instance labels, 0 or 1; -1 where unknown."""
    mean: np.ndarray
    """Mean of the score of each instance."""
    variance: np.ndarray
    g: np.ndarray | None
    """Class score uᵀh of each instance, for models that pool before a linear classifier."""

    @property
    def has_both(self) -> bool:
        """Whether the bag is positive and has positive and negative instances."""
        return self.label > 0 and bool((self.truth > 0).any()) and bool((self.truth == 0).any())


@dataclass(frozen=True)
class Trace:
    """A traced run: the header and the arrays of its file."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def epochs(self) -> np.ndarray:
        """Epochs, counted from 1, that have predictions of instances: the candidates."""
        return self.arrays["instance_epochs"]

    def labels(self, part: Part) -> np.ndarray:
        """Return the labels of a part's bags."""
        return np.array(self.header[part]["labels"])

    def names(self, part: Part) -> list[str]:
        """Return the names of a part's bags."""
        return self.header[part]["names"]

    def probability(self, part: Part, *, weights: Weights) -> np.ndarray:
        """Return p(Y = 1) by epoch (one row for `average`) and bag."""
        bags = len(self.header["val"]["names"])
        rows = slice(0, bags) if part == "val" else slice(bags, None)
        return self.arrays[f"{weights}_p"][:, rows].astype(float)

    def test_probability(self, weights: Weights, epoch: int) -> np.ndarray:
        """Return p(Y = 1) of the test bags after an epoch, which `average` ignores."""
        row = 0 if weights == "average" else epoch - 1
        return self.probability("test", weights=weights)[row]

    def instances(
        self, weights: Weights, epoch: int, *, part: Part = "test"
    ) -> Iterator[Instances]:
        """Yield the stored bags of a part as predicted after an epoch, which `average` ignores."""
        row = 0 if weights == "average" else int(np.flatnonzero(self.epochs == epoch)[0])
        columns = {
            key: self.arrays[f"{weights}_{key}"][row].astype(float)
            for key in ("mean", "variance", "g")
            if f"{weights}_{key}" in self.arrays
        }
        start, n_val = 0, len(self.header["val"]["names"])
        for bag in self.header["kept"]:
            owner = self.header["val" if bag < n_val else "test"]
            k = bag if bag < n_val else bag - n_val
            rows = slice(start, start + owner["sizes"][k])
            start = rows.stop
            if (bag < n_val) != (part == "val"):
                continue
            mean = columns["mean"][rows]
            yield Instances(
                name=owner["names"][k],
                label=owner["labels"][k],
                truth=self.arrays["instance_labels"][rows],
                mean=mean,
                variance=columns["variance"][rows]
                if "variance" in columns
                else np.zeros(len(mean)),
                g=columns["g"][rows] if "g" in columns else None,
            )


def path_of(out: Path, *, data: str, method: str, fold: int, seed: int) -> Path:
    """Return the file of a run."""
    return out / data / method / f"f{fold}_s{seed}.npz"


def save(path: Path, trace: Trace) -> None:
    """Write a trace; an interrupted write leaves nothing under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as f:
        np.savez_compressed(f, header=np.array(json.dumps(trace.header)), **trace.arrays)
    Path(f.name).replace(path)


def load(path: Path) -> Trace:
    """Read a trace."""
    with np.load(path) as stored:
        arrays = {k: stored[k] for k in stored.files}
    return Trace(json.loads(str(arrays.pop("header"))), arrays)


def load_all(out: Path, *, sets: list[str] | None, methods: list[str] | None) -> list[Trace]:
    """Read the traces of some sets and methods (None: of all), in the order of their names."""
    files = sorted(out.glob("*/*/f*_s*.npz"))
    return [
        load(f)
        for f in files
        if (sets is None or f.parts[-3] in sets) and (methods is None or f.parts[-2] in methods)
    ]
