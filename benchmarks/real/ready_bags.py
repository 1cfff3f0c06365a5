"""Evaluate ABMIL, T-ABMIL and ProbSA on the two ready bag sets: five pooled folds, several seeds.

    python benchmarks/real/ready_bags.py --out RUNS            (make all runs; can be resumed)
    python benchmarks/real/ready_bags.py --out RUNS --table    (print tables of the finished runs)

Fold k is for testing, fold k + 1 for validation, the others for training; features are standardised
on the training part; batch size 4, learning rate 3e-4, 100 epochs. Each run determines its
threshold for F1 on its validation part.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probsa import models
from probsa.evaluation.metrics import best_threshold
from probsa.evaluation.prediction import Prediction
from probsa.evaluation.predictor import load
from probsa.training import train
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.preparation import open_data, read_split

SETS = ("ct_ich", "colon_tiles")
LAMBDAS = (0.1, 0.5, 1.0, "cyclical")
ARRAYS = ("attention_mean", "attention_variance", "weight_mean", "degree", "instance_labels")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: a data set, a method, a fold and a seed."""

    data: str
    model: str
    kl_weight: float | str
    fold: int
    seed: int
    precision: str = "float32"
    epochs: int = 100

    @property
    def method(self) -> str:
        """The table row to which the run belongs."""
        is_plain = "probsa" not in self.model
        return self.model if is_plain else f"{self.model} λ={self.kl_weight}"

    @property
    def file(self) -> str:
        """The file of its results."""
        return f"{self.data}/{self.model}_{self.kl_weight}_f{self.fold}_s{self.seed}.npz"


def grid(*, family: str, seeds: int) -> Iterator[Cell]:
    """Yield the runs of `abmil` (float32, all λ) or `tabmil` (bf16, cyclical λ), seed by seed."""
    encoder, lambdas = ("abmil", LAMBDAS) if family == "abmil" else ("tabmil", ("cyclical",))
    precision = "float32" if family == "abmil" else "bf16"
    variants: list[tuple[str, float | str]] = [(encoder, 0.0)]
    variants += [(f"{encoder}-probsa-{q}", lam) for q in ("dirac", "diag") for lam in lambdas]
    for seed in range(seeds):
        for data in SETS:
            for fold in range(5):
                for model, lam in variants:
                    yield Cell(
                        data=data, model=model, kl_weight=lam, fold=fold, seed=seed,
                        precision=precision,
                    )  # fmt: skip


def config_of(cell: Cell, folder: Path) -> RunConfig:
    """Return the run file of a cell."""
    return RunConfig(
        data=DataConfig(
            features=folder / cell.data / "features",
            labels=folder / cell.data / "labels.csv",
            test_fold=cell.fold,
            standardize=True,
        ),
        model=cell.model,
        training=TrainingConfig(
            epochs=cell.epochs,
            batch_size=4,
            learning_rate=3e-4,
            kl_weight=cell.kl_weight,  # pyright: ignore[reportArgumentType]
            precision=cell.precision,  # pyright: ignore[reportArgumentType]
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
        seed=cell.seed,
    )


def run(cell: Cell, folder: Path, *, out: Path, scratch: Path) -> None:
    """Train a cell; save the predictions of its test bags and the threshold from validation."""
    config = config_of(cell, folder)
    run_folder = train(config, scratch / "run", overwrite=True)
    predictor = load(run_folder.path, device="cpu")
    bags, split = open_data(config.data), read_split(run_folder)
    labels = {r["bag"]: int(r["label"]) for r in _rows(config.data.labels)}
    validated = list(predictor.predict(bags.bag(n) for n in split.val))
    y = np.array([labels[p.name] for p in validated])
    threshold = best_threshold(y, np.array([p.probability[0] for p in validated], dtype=np.float64))
    tested = list(predictor.predict(bags.bag(n) for n in split.test))
    file = out / cell.file
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = {k: np.concatenate([getattr(p, k) for p in tested]) for k in ARRAYS}
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".npz", delete=False) as f:
        np.savez_compressed(
            f,
            names=np.array([p.name for p in tested]),
            y=np.array([labels[p.name] for p in tested]),
            p=np.array([p.probability[0] for p in tested]),
            sd=np.array([p.std[0] for p in tested]),
            sizes=np.array([len(p.attention_mean) for p in tested]),
            threshold=np.array(threshold),
            **arrays,
        )
    Path(f.name).replace(file)


def _rows(path: Path) -> list[dict[str, str]]:
    from probsa.core.files import read_csv

    return read_csv(path)


def pooled(cells: list[Cell], out: Path) -> tuple[list[Prediction], np.ndarray, np.ndarray]:
    """Return predictions, labels and calls at each fold's own threshold of all test bags."""
    predictions, labels, calls = [], [], []
    for cell in cells:
        saved = np.load(out / cell.file)
        start = 0
        for k, name in enumerate(saved["names"]):
            rows = slice(start, start + int(saved["sizes"][k]))
            start = rows.stop
            part: dict[str, Any] = {key: saved[key][rows] for key in ARRAYS}
            predictions.append(
                Prediction(
                    name=str(name),
                    probability=saved["p"][k : k + 1],
                    std=saved["sd"][k : k + 1],
                    coords=None,
                    weight_variance=np.zeros_like(part["weight_mean"]),
                    **part,
                )
            )
            labels.append(int(saved["y"][k]))
            calls.append(int(saved["p"][k] >= float(saved["threshold"])))
    return predictions, np.array(labels), np.array(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/bags"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", choices=("abmil", "tabmil"), default="abmil")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="skip earlier seeds")
    parser.add_argument("--only", choices=SETS, help="one data set")
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    cells = [c for c in grid(family=a.family, seeds=a.seeds) if a.only in (None, c.data)]
    if a.table:
        from ready_bags_table import tables

        tables(cells, a.out)
        return
    assert {c.model for c in cells} <= set(models.names())
    scratch = Path(tempfile.mkdtemp())
    try:
        for k, cell in enumerate(cells):
            if cell.seed >= a.first_seed and not (a.out / cell.file).is_file():
                run(cell, a.data, out=a.out, scratch=scratch)
                print(f"{k + 1}/{len(cells)} {cell}", flush=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
