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

import numpy as np
from measures import HEADER, RESAMPLES, Measured, cells, means, measured

from probsa.core import TextTable, read_json, write_csv
from probsa.datasets import open_bags, read_table
from probsa.evaluation import (
    NULL_MAPS,
    about_null_maps,
    fit_null_maps,
    labelled_bags,
    null_maps_file,
    read_null_scores,
    within_bag,
    write_null_scores,
)
from probsa.statistics import ALPHA, Difference, compare, holm
from probsa.training import RunFolder, as_two_classes, open_units, read_split

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
    for checked in read_json(out / "sets.json"):
        name = checked["name"]
        folder = Path(checked["folder"])
        folds = sorted(set(read_table(folder / "labels.csv").folds or ()))
        methods: dict[str, Measured] = {}
        seconds: dict[str, str] = {}
        run_of: dict[int, Path] = {}
        for method in sorted((out / "cells" / name).iterdir()):
            runs = sorted(cell.parent for cell in method.glob("*/cell.json"))
            if not runs:
                continue
            stated = read_json(runs[0] / "cell.json")
            kl_weight = stated["kl_weight"]
            title = stated["label"] if kl_weight is None else f"{stated['label']} λ={kl_weight}"
            tested = [folds[read_json(run / "cell.json")["split"]] for run in runs]
            run_of.update(zip(tested, runs, strict=True))
            predictions = [run / "predictions" for run in runs]
            methods[title] = measured(predictions, folder, folds=tested)
            seconds[title] = f"{np.mean([_seconds(run) for run in runs]):.0f}"
        if not methods:
            continue
        first = next(iter(methods.values()))
        for title, method in methods.items():
            if method.table.bags != first.table.bags:
                raise SystemExit(f"{title} was tested on other folds of {name}: run the grid again")
        fitted = {fold: fit_maps(run, of_set=name) for fold, run in run_of.items()}
        nulls = null_maps(fitted, folder, first)
        rows = rows_of(methods, nulls)
        for row in rows:
            row["seconds"] = seconds.get(row["method"], "")
        files.append(out / "leaderboard" / f"{name}.csv")
        files[-1].parent.mkdir(exist_ok=True)
        write_csv(files[-1], HEADER, rows)
    return files


def rows_of(methods: Mapping[str, Measured], nulls: Mapping[str, Measured]) -> list[dict[str, str]]:
    """Return the rows of one set, the highest AP within bags first."""
    entries = {**methods, **{f"{name} (null)": null for name, null in nulls.items()}}
    found = {name: means(entry) for name, entry in entries.items()}
    best = max(nulls, key=lambda name: means(nulls[name])["ap"].difference, default=None)
    if best is not None:
        of_null = nulls[best].values["ap"]
        known = np.isfinite(of_null[0])
        for name, entry in entries.items():
            if name != f"{best} (null)":
                gain = entry.values["ap"][:, known] - of_null[:, known]
                found[name]["gain"] = entry.mean(gain, known)
    marked: dict[str, list[str]] = {name: [] for name in entries}
    for column, winner in winners(methods).items():
        if winner is not None:
            marked[winner].append(column)
    for column in DIFFERENCES:
        of_methods = {name: found[name][column] for name in methods if column in found[name]}
        for name in above_zero(of_methods):
            marked[name].append(column)
    order = sorted(found, key=lambda name: -found[name]["ap"].difference)
    return [{"method": name, **cells(found[name], marked[name])} for name in order]


def winners(methods: Mapping[str, Measured]) -> dict[str, str | None]:
    """Return the winner by bag AUROC, NLL and AP within bags, over the seeds that all have."""
    first = next(iter(methods.values()))
    seeds = min(len(m.loss) for m in methods.values())
    known = np.isfinite(first.values["ap"][0])
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
            {name: m.values["ap"][:seeds, known] for name, m in methods.items()},
            groups=first.groups(known),
            metric="mean",
            resamples=RESAMPLES,
        ),
    }
    return {column: comparison.winner for column, comparison in compared.items()}


def above_zero(differences: Mapping[str, Difference]) -> frozenset[str]:
    """Return whose difference is above 0 with p ≤ 0.05, by Holm's adjustment over all of them."""
    adjusted = holm([1.0 if d.p is None else d.p for d in differences.values()])
    return frozenset(
        name
        for (name, d), p in zip(differences.items(), adjusted, strict=True)
        if p <= ALPHA and d.difference > 0
    )


def fit_maps(run: Path, *, of_set: str) -> Path:
    """Return the folder of the null maps of a run's split, after fitting them if need be."""
    folder = run.parents[3] / "null_maps" / of_set / run.name.partition("-")[0]
    if about_null_maps(folder) is not None:
        return folder
    of_run = RunFolder(run)
    split = read_split(of_run)
    bags, table = open_units(of_run.config().data)
    labels = as_two_classes(table, split.train)
    maps = fit_null_maps(bags.stored, labels=labels, train=split.train, validation=split.val)
    maps.save(null_maps_file(folder))
    tested = [name for name in labelled_bags(of_run.predictions) if name in set(split.test)]
    write_null_scores(of_run.predictions, maps, read=bags.stored, names=tested, out=folder)
    return folder


def null_maps(fitted: Mapping[int, Path], of_set: Path, method: Measured) -> dict[str, Measured]:
    """Return the AP within bags of each null map; a map without a score of some bag is left out.

    Args:
        fitted: The folder of the maps by fold.
        of_set: The set.
        method: Any method on the set.
    """
    features = open_bags(of_set / "features")
    of_bags = method.table.folds
    assert of_bags is not None, "LocalMIL tests folds"
    known = np.isfinite(method.values["ap"][0])
    precisions = {name: np.full((1, len(known)), np.nan) for name in NULL_MAPS}
    for k in np.flatnonzero(known):
        bag = method.table.bags[k]
        labels = features.stored(bag).instance_labels
        assert labels is not None, "its AP is known"
        scores = read_null_scores(fitted[of_bags[k]], bag, instances=len(labels))
        for name in NULL_MAPS:
            score = scores.get(name)
            if isinstance(score, np.ndarray):
                stated = labels >= 0
                precisions[name][0, k] = within_bag(labels[stated] > 0, score[stated])[1]
    return {
        name: Measured(table=method.table, p=None, values={"ap": values})
        for name, values in precisions.items()
        if np.isfinite(values[0, known]).all()
    }


def _seconds(run: Path) -> float:
    rows = TextTable.read(run / "metrics.csv").rows if (run / "metrics.csv").is_file() else []
    return sum(float(row.get("seconds") or 0) for row in rows)


if __name__ == "__main__":
    main()
