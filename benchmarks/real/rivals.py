"""Check that each model learns, on colon_tiles with five pooled folds and three seeds.

    python benchmarks/real/rivals.py --out RUNS [--only gtp,camil]   (can be resumed)
    python benchmarks/real/rivals.py --out RUNS --table

As in ready_bags.py (batch size 4, learning rate 3e-4, standardised features), but with 40 epochs,
or 20 for the models in SLOW; those in HALF use bf16 matrix products. Models with a prior use the
cyclical λ. The score of an instance is the one that maps show.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from ready_bags import Cell, run
from sklearn.metrics import roc_auc_score

from probsa import models

DATA, SEEDS = "colon_tiles", 3
SLOW = ("camil", "gtp", "iibmil", "patchgcn", "setmil", "tabmil", "transmil", "vmil")
HALF = ("gtp", "iibmil", "patchgcn", "setmil", "tabmil")


def cells(names: list[str]) -> Iterator[Cell]:
    """Yield the runs seed by seed, so that an interruption leaves complete seeds."""
    for seed in range(SEEDS):
        for model in names:
            for fold in range(5):
                yield Cell(
                    data=DATA,
                    model=model,
                    kl_weight="cyclical" if "probsa" in model else 0.0,
                    fold=fold,
                    seed=seed,
                    epochs=20 if model.startswith(SLOW) else 40,
                    precision="bf16" if model.startswith(HALF) else "float32",
                )


def metrics(out: Path, folds: list[Cell]) -> tuple[float, float, float]:
    """Return bag AUROC over pooled bags, and instance AUROC pooled and within bags, of a seed.

    Instance AUROC uses the positive bags with both classes of instances; within bags, it is the
    mean over these bags.
    """
    y, p, pooled_y, pooled_s, within = [], [], [], [], []
    for cell in folds:
        saved = np.load(out / cell.file)
        y += saved["y"].tolist()
        p += saved["p"].tolist()
        ends = np.cumsum(saved["sizes"])
        score = saved["attention_mean"].reshape(len(saved["instance_labels"]), -1)[:, -1]
        for label, start, stop in zip(saved["y"], [0, *ends], ends, strict=False):
            bag_labels = saved["instance_labels"][start:stop]
            known = bag_labels >= 0
            if label == 1 and len(set(bag_labels[known])) == 2:
                truth, s = bag_labels[known], score[start:stop][known]
                within.append(roc_auc_score(truth, s))
                pooled_y += truth.tolist()
                pooled_s += s.tolist()
    return roc_auc_score(y, p), roc_auc_score(pooled_y, pooled_s), float(np.mean(within))


def table(out: Path, names: list[str]) -> None:
    print("| model | seeds | bag AUROC | instance AUROC, pooled | instance AUROC, within bags |")
    print("|---|---|---|---|---|")
    for name in names:
        seeds: dict[int, list[Cell]] = {}
        for cell in cells([name]):
            if (out / cell.file).is_file():
                seeds.setdefault(cell.seed, []).append(cell)
        complete = [metrics(out, folds) for folds in seeds.values() if len(folds) == 5]
        if not complete:
            print(f"| `{name}` | not run | | | |")
            continue
        columns = np.array(complete)
        text = [f"{100 * m:.1f}" for m in columns.mean(0)]
        if len(complete) > 1:
            text = [f"{m} ± {100 * s:.1f}" for m, s in zip(text, columns.std(0), strict=True)]
        print(f"| `{name}` | {len(complete)} | {' | '.join(text)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/bags"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(models.names()), help="models, comma-separated")
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    names = a.only.split(",")
    if a.table:
        table(a.out, names)
        return
    scratch = Path(tempfile.mkdtemp())
    try:
        for cell in cells(names):
            if not (a.out / cell.file).is_file():
                start = time.perf_counter()
                run(cell, a.data, out=a.out, scratch=scratch)
                print(f"{time.perf_counter() - start:.0f} s {cell}", flush=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
