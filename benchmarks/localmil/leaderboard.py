"""Write the leaderboard of LocalMIL from the runs of an experiment: a table for each set.

    python benchmarks/localmil/leaderboard.py OUT

OUT is the folder that `run.py` wrote; OUT/leaderboard/SET.csv has a row for each method and null
map. The gain is the AP within bags minus that of the null map that is best on these test bags.
Winners of AUROC, NLL and AP differ from every other method by a Holm-adjusted p of at most 0.05,
over the seeds that all methods have; of differences, all values are marked that are above 0 by a p
of at most 0.05, Holm-adjusted over the methods.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measures import HEADER, RESAMPLES, Measured, cells, means, measured

from probsa.benchmark import fit_maps_of_split
from probsa.core import TextTable, read_json, write_csv
from probsa.datasets import open_bags, read_table
from probsa.evaluation import NULL_MAPS, read_null_scores, within_bag
from probsa.statistics import ALPHA, Difference, compare, holm

AP = 1
"""The place of the average precision among the measures within a bag."""
DIFFERENCES = ("gain", "doubt_gain")
"""The columns that are differences themselves."""


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description="The tables of LocalMIL from an experiment.")
    parser.add_argument("out", type=Path, help="folder that run.py wrote")
    for path in write_leaderboard(parser.parse_args().out):
        print(path)


def write_leaderboard(out: Path) -> list[Path]:
    """Write a table for each set of an experiment, and return the files."""
    files = []
    for checked_set in read_json(out / "sets.json"):
        name = checked_set["name"]
        folder = Path(checked_set["folder"])
        folds = sorted(set(read_table(folder / "labels.csv").folds or ()))
        methods: dict[str, Measured] = {}
        seconds: dict[str, str] = {}
        split_of: dict[Path, int] = {}
        run_of_fold: dict[int, Path] = {}
        for method_folder in sorted((out / "cells" / name).iterdir()):
            runs = sorted(cell.parent for cell in method_folder.glob("*/cell.json"))
            if not runs:
                continue
            for run in runs:
                split_of[run] = read_json(run / "cell.json")["split"]
                run_of_fold[folds[split_of[run]]] = run
            test_folds = [folds[split_of[run]] for run in runs]
            title = _title(read_json(runs[0] / "cell.json"))
            predictions = [run / "predictions" for run in runs]
            methods[title] = measured(predictions, folder, folds=test_folds)
            seconds[title] = f"{np.mean([_seconds(run) for run in runs]):.0f}"
        if not methods:
            continue
        first = next(iter(methods.values()))
        for title, method in methods.items():
            if method.table.bags != first.table.bags:
                raise SystemExit(f"{title} was tested on other folds of {name}: run the grid again")
        # the null maps of a fold are the same for all methods, so any of its runs may fit them
        null_folders: dict[int, Path] = {}
        for fold, run in run_of_fold.items():
            null_folders[fold] = fit_maps_of_split(run, data=name, split=split_of[run])
        rows = rows_of(methods, null_maps(null_folders, folder, first))
        for row in rows:
            row["seconds"] = seconds.get(row["method"], "")
        file = out / "leaderboard" / f"{name}.csv"
        file.parent.mkdir(exist_ok=True)
        write_csv(file, HEADER, rows)
        files.append(file)
    return files


def _title(cell: Mapping[str, Any]) -> str:
    """Return the name of a method, from the cell.json of one of its runs."""
    if cell["kl_weight"] is None:
        return cell["label"]
    return f"{cell['label']} λ={cell['kl_weight']}"


def rows_of(methods: Mapping[str, Measured], nulls: Mapping[str, Measured]) -> list[dict[str, str]]:
    """Return the rows of one set, the highest AP within bags first."""
    entries = {**methods, **{f"{name} (null)": null for name, null in nulls.items()}}
    values = {name: means(entry) for name, entry in entries.items()}
    best = max(nulls, key=lambda name: means(nulls[name])["ap"].difference, default=None)
    if best is not None:
        null_ap = nulls[best].values["ap"]
        has_ap = np.isfinite(null_ap[0])
        for name, entry in entries.items():
            if name != f"{best} (null)":
                gain = entry.values["ap"][:, has_ap] - null_ap[:, has_ap]
                values[name]["gain"] = entry.mean(gain, has_ap)
    marked: dict[str, list[str]] = {name: [] for name in entries}
    for column, winner in winners(methods).items():
        if winner is not None:
            marked[winner].append(column)
    for column in DIFFERENCES:
        differences = {name: values[name][column] for name in methods if column in values[name]}
        for name in above_zero(differences):
            marked[name].append(column)
    order = sorted(values, key=lambda name: -values[name]["ap"].difference)
    return [{"method": name, **cells(values[name], marked[name])} for name in order]


def winners(methods: Mapping[str, Measured]) -> dict[str, str | None]:
    """Return the winner by bag AUROC, NLL and AP within bags, over the seeds that all have."""
    first = next(iter(methods.values()))
    seeds = min(len(m.loss) for m in methods.values())
    has_ap = np.isfinite(first.values["ap"][0])
    y = np.array(first.table.labels)
    compared = {
        "auroc": compare(
            y,
            {name: m.p[:seeds] for name, m in methods.items()},
            groups=first.groups(),
            metric="auroc",
            folds=np.array(first.table.folds),
            resamples=RESAMPLES,
        ),
        "nll": compare(
            None,
            {name: -m.loss[:seeds] for name, m in methods.items()},
            groups=first.groups(),
            metric="mean",
            resamples=RESAMPLES,
        ),
        "ap": compare(
            None,
            {name: m.values["ap"][:seeds, has_ap] for name, m in methods.items()},
            groups=first.groups(has_ap),
            metric="mean",
            resamples=RESAMPLES,
        ),
    }
    return {column: comparison.winner for column, comparison in compared.items()}


def above_zero(differences: Mapping[str, Difference]) -> frozenset[str]:
    """Return whose difference is above 0 with p ≤ 0.05, by Holm's adjustment over all of them."""
    adjusted = holm([1.0 if d.p is None else d.p for d in differences.values()])
    names = set()
    for (name, d), p in zip(differences.items(), adjusted, strict=True):
        if p <= ALPHA and d.difference > 0:
            names.add(name)
    return frozenset(names)


def null_maps(folders: Mapping[int, Path], folder: Path, method: Measured) -> dict[str, Measured]:
    """Return the AP within bags of each null map; a map without a score of some bag is left out.

    Args:
        folders: The folder of the maps by fold.
        folder: The set.
        method: Any method on the set.
    """
    features = open_bags(folder / "features")
    folds = method.table.folds
    assert folds is not None, "LocalMIL tests folds"
    has_ap = np.isfinite(method.values["ap"][0])
    precisions = {name: np.full((1, len(has_ap)), np.nan) for name in NULL_MAPS}
    for k in np.flatnonzero(has_ap):
        bag = method.table.bags[k]
        labels = features.stored(bag).instance_labels
        assert labels is not None, "its AP is known"
        scores = read_null_scores(folders[folds[k]], bag, instances=len(labels))
        is_labelled = labels >= 0
        for name in NULL_MAPS:
            score = scores.get(name)
            if isinstance(score, np.ndarray):  # a text says why a map has no score
                measures = within_bag(labels[is_labelled] > 0, score[is_labelled])
                precisions[name][0, k] = measures[AP]
    nulls: dict[str, Measured] = {}
    for name, values in precisions.items():
        if np.isfinite(values[0, has_ap]).all():
            nulls[name] = Measured(table=method.table, p=None, values={"ap": values})
    return nulls


def _seconds(run: Path) -> float:
    rows = TextTable.read(run / "metrics.csv").rows if (run / "metrics.csv").is_file() else []
    return sum(float(row.get("seconds") or 0) for row in rows)


if __name__ == "__main__":
    main()
