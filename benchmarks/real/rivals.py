"""Does each model learn? All of them on colon_tiles: five folds, three seeds, folds pooled.

    python benchmarks/real/rivals.py --out RUNS [--only gtp,camil]   (goes on where it stopped)
    python benchmarks/real/rivals.py --out RUNS --table

As ready_bags.py (batch 4, learning rate 3e-4, standardised features), with 40 epochs, or 20 for the
methods with interactions over the bag (SLOW), of which HALF multiply matrices in bf16; models with
a prior use the cyclical λ. An instance's score is what maps show of it.
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
    """Seed by seed, so that what is there after an interruption is whole seeds."""
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


def figures(out: Path, of: list[Cell]) -> tuple[float, float, float]:
    """One seed: bag AUROC over the pooled test bags; instance AUROC, pooled and within a bag.

    Instances are those of positive bags; within: the mean over the bags that have both kinds.
    """
    y, p, pooled_y, pooled_s, within = [], [], [], [], []
    for cell in of:
        held = np.load(out / cell.file)
        y += held["y"].tolist()
        p += held["p"].tolist()
        ends = np.cumsum(held["sizes"])
        score = held["attention_mean"].reshape(len(held["instance_labels"]), -1)[:, -1]
        for label, start, stop in zip(held["y"], [0, *ends], ends, strict=False):
            own = held["instance_labels"][start:stop]
            known = own >= 0
            if label == 1 and len(set(own[known])) == 2:
                truth, s = own[known], score[start:stop][known]
                within.append(roc_auc_score(truth, s))
                pooled_y += truth.tolist()
                pooled_s += s.tolist()
    return roc_auc_score(y, p), roc_auc_score(pooled_y, pooled_s), float(np.mean(within))


def table(out: Path, names: list[str]) -> None:
    print("| model | seeds | bag AUROC | instance AUROC, pooled | instance AUROC, within a bag |")
    print("|---|---|---|---|---|")
    for name in names:
        seeds: dict[int, list[Cell]] = {}
        for cell in cells([name]):
            if (out / cell.file).is_file():
                seeds.setdefault(cell.seed, []).append(cell)
        whole = [figures(out, found) for found in seeds.values() if len(found) == 5]
        if not whole:
            print(f"| `{name}` | not run | | | |")
            continue
        columns = np.array(whole)
        text = [f"{100 * m:.1f}" for m in columns.mean(0)]
        if len(whole) > 1:
            text = [f"{m} ± {100 * s:.1f}" for m, s in zip(text, columns.std(0), strict=True)]
        print(f"| `{name}` | {len(whole)} | {' | '.join(text)} |")


def main() -> None:
    """Runs or tabulates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/bags"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(models.names()), help="models, by commas")
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
