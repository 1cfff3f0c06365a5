"""The null maps of the package on every fold of the ready-made sets, as a table.

    python benchmarks/real/null_maps.py --data BAGS --out null_maps.csv [--sets ct_ich]

Fold k is for testing and fold k + 1 for validation. The maps are those of `probsa evaluate`
(docs/null-maps.md). Measures are within positive test bags, the means over those that have
instances of both labels. The regressions that are models of bags too (`mean-pool`, `instance-lr`)
stand in the tables of bags of `probsa benchmark`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from study_metrics import number

from probsa.core import write_csv
from probsa.evaluation import fit_for_run
from probsa.evaluation.within_bags import is_mixed, within_bag
from probsa.training import open_data, prepare
from probsa.training.config import DataConfig, RunConfig

MEASURES = ("within_auroc", "within_ap", "pointing_game", "top_share")
"""Columns for `within_bag`, with the names that summary.py reads."""


def rows_of(folder: Path, *, fold: int) -> list[dict[str, object]]:
    """Return a row for each null map of a fold."""
    data = DataConfig(features=folder / "features", labels=folder / "labels.csv", test_fold=fold)
    prepared = prepare(RunConfig(data=data, model="abmil"))
    split, labels = prepared.split, prepared.labels
    bags = open_data(data)
    maps = fit_for_run(bags, train=split.train, validation=split.val, labels=labels)
    found: dict[str, list[np.ndarray]] = {}
    for name in split.test:
        stored = bags.stored(name)
        if not labels[name] or stored.instance_labels is None:
            continue
        known = stored.instance_labels >= 0
        y = stored.instance_labels[known] > 0
        if is_mixed(y):
            for null_map, score in maps.scores(stored).items():
                if not isinstance(score, str):
                    found.setdefault(null_map, []).append(within_bag(y, score[known]))
    return [
        {"set": folder.name, "fold": fold, "map": name, "C": maps.about.get(f"{name}_C", "")}
        | dict(zip(MEASURES, np.mean(values, axis=0).tolist(), strict=True))
        for name, values in found.items()
    ]


def table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print means over the folds."""
    head = " | ".join(MEASURES)
    print(f"| set | map | {head} |\n|---|---" + "|---" * len(MEASURES) + "|")
    for key in dict.fromkeys((str(r["set"]), str(r["map"])) for r in rows):
        of_map = [r for r in rows if (r["set"], r["map"]) == key]
        means = [float(np.mean([float(str(r[m])) for r in of_map])) for m in MEASURES]
        print(f"| {key[0]} | {key[1]} | " + " | ".join(map(number, means)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", help="folders of --data; all by default")
    parser.add_argument("--folds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    a = parser.parse_args()
    rows: list[dict[str, object]] = []
    for data in a.sets or sorted(p.parent.name for p in a.data.glob("*/labels.csv")):
        for fold in a.folds:
            rows += rows_of(a.data / data, fold=fold)
            write_csv(a.out, ("set", "fold", "map", "C", *MEASURES), rows)
    table(rows)


if __name__ == "__main__":
    main()
