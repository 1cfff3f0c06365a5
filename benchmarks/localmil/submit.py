"""Measure a method of your own on a set of LocalMIL, as a row beside the leaderboard's.

    python benchmarks/localmil/submit.py runs/*/predictions --set SETS/ct_ich --method "my model"
        --out mine/ct_ich.csv

The folders hold predictions (docs/benchmark.md). Test each fold once with a model that was not
trained on it; give the folders of further seeds as well, so that each bag is tested once per seed.
Labels of bags and instances are those of the prepared set. The row has the columns and units of
`leaderboard_SET.csv` and replaces an earlier row of the same name in the file; `page.py` puts it on
the page. Bag AUROC is the mean over the folds that have both classes. Nothing is computed again
from the model, so ask for the predictions or the code before you rely on a row.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from probsa.core import TextTable, write_csv
from probsa.datasets import LabelTable, open_bags, read_table
from probsa.evaluation import BagMeasures, Prediction, bag_measures, read_predictions
from probsa.statistics import mean_interval

MEASURES = {
    "ap": ("average_precision", 100.0),
    "doubt_gain": ("doubt_gain", 100.0),
    "faithfulness": ("faithfulness", 1.0),
}
"""The columns that are means over positive bags: the field of `BagMeasures`, and its unit."""
COLUMNS = ("auroc", "nll", *MEASURES)
HEADER = ("method", *(f"{c}{end}" for c in COLUMNS for end in ("", "_low", "_high")))
SMALLEST = 1e-7
"""Probabilities are kept this far from 0, as float32 cannot be nearer to 1."""


def main() -> None:
    """Write the row."""
    parser = argparse.ArgumentParser(description="A row of LocalMIL from predictions.")
    parser.add_argument("predictions", type=Path, nargs="+", help="folders of all folds and seeds")
    parser.add_argument("--set", type=Path, required=True, help="what `probsa dataset` prepared")
    parser.add_argument("--method", required=True, help="name of the row")
    parser.add_argument("--out", type=Path, required=True, help="CSV file, named after the set")
    given = parser.parse_args()
    row = {"method": given.method, **measured(given.predictions, given.set)}
    others = TextTable.read(given.out).rows if given.out.is_file() else []
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(given.out, HEADER, [*(r for r in others if r["method"] != given.method), row])
    print(", ".join(f"{k} {row[k]}" for k in ("method", *COLUMNS)))


def measured(folders: Sequence[Path], prepared: Path) -> dict[str, str]:
    """Return the measures of a row, by column."""
    table, features = read_table(prepared / "labels.csv"), open_bags(prepared / "features")
    if table.folds is None:
        raise SystemExit(f"{table.where} has no column 'fold': prepare the set again")
    probability: dict[str, list[float]] = defaultdict(list)
    measures: dict[str, list[BagMeasures]] = defaultdict(list)
    place = {bag: k for k, bag in enumerate(table.bags)}
    for folder in folders:
        predictions = read_predictions(folder)
        for k, bag in enumerate(predictions.bags):
            if predictions.parts[k] in ("train", "val"):
                continue
            y = table.labels[place[bag]] if bag in place else None
            if y is None or predictions.labels[k] not in (None, y):
                raise SystemExit(
                    f"bag {bag!r} of {folder} has the label {predictions.labels[k]}, expected "
                    f"{'none, as it is not in the set' if y is None else y} ({table.where})"
                )
            probability[bag].append(float(predictions.probability[k, -1]))
            if y:
                labels = features.stored(bag).instance_labels
                p = with_labels(predictions.instances(bag), labels, where=f"{bag!r} of {folder}")
                measures[bag].append(bag_measures(p))
    times = {bag: len(probability[bag]) for bag in table.bags}
    if len(set(times.values())) > 1 or 0 in times.values():
        few = min(times, key=lambda bag: times[bag])
        raise SystemExit(
            f"bag {few!r} is tested {times[few]} times and others {max(times.values())} times: "
            "give the predictions of every fold, each once per seed"
        )
    return summary(table, np.array([probability[b] for b in table.bags]).T, measures)


def with_labels(p: Prediction, labels: np.ndarray | None, *, where: str) -> Prediction:
    """Return a prediction with the instance labels of the set."""
    if labels is not None and len(labels) != len(p.attention_mean):
        raise SystemExit(
            f"bag {where} has {len(p.attention_mean)} instances, expected {len(labels)}: predict "
            "with the features of the prepared set"
        )
    return replace(p, instance_labels=labels)


def summary(
    table: LabelTable, p: np.ndarray, measures: dict[str, list[BagMeasures]]
) -> dict[str, str]:
    """Return means with 95 % intervals over groups; `p` has a row for each replicate."""
    y, folds = np.array(table.labels), np.array(table.folds)
    areas = [
        roc_auc_score(y[folds == fold], of_seed[folds == fold])
        for fold in sorted(set(folds.tolist()))
        for of_seed in p
        if len(set(y[folds == fold].tolist())) > 1
    ]
    loss = -np.log(np.clip(np.where(y == 1, p, 1 - p), SMALLEST, 1))
    groups = [table.group(k) for k in range(len(table.bags))]
    row = {"auroc": f"{100 * np.mean(areas):.6f}" if areas else ""}
    row |= interval("nll", loss, groups)
    nothing = [None] * len(p)
    for column, (field, unit) in MEASURES.items():
        found = [[getattr(m, field) for m in measures.get(b, ())] or nothing for b in table.bags]
        values = unit * np.array(found, float).T
        known = np.isfinite(values).any(0)
        values = values[:, known]
        if column != "ap":  # a measure that a bag may lack in some replicates
            values = np.nanmean(values, axis=0, keepdims=True)
        if known.any():
            row |= interval(column, values, [g for g, k in zip(groups, known, strict=True) if k])
    return {column: row.get(column, "") for column in HEADER[1:]}


def interval(column: str, values: np.ndarray, groups: Sequence[str]) -> dict[str, str]:
    """Return the mean of the values and its limits, as cells."""
    d = mean_interval(values, groups=groups, resamples=1000)
    cells = {"": d.difference, "_low": d.low, "_high": d.high}
    return {f"{column}{end}": "" if v is None else f"{v:.6f}" for end, v in cells.items()}


if __name__ == "__main__":
    main()
