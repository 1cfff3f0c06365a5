"""What LocalMIL measures of a method on one set, from its predictions alone."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from map_checks import read_map_checks
from sklearn.metrics import roc_auc_score

from probsa.datasets import LabelTable, drop_bags, open_bags, read_table
from probsa.evaluation import Prediction, bag_measures, read_predictions
from probsa.statistics import Difference, compare, mean_interval

UNITS = {
    "auroc": 100.0,
    "nll": 1.0,
    "ap": 100.0,
    "gain": 100.0,
    "ap_shown": 100.0,
    "doubt_gain": 100.0,
    "area": 1.0,
    "faithfulness": 1.0,
}
"""The columns of a table, and the factor of their unit."""
HEADER = (
    "method",
    *(column + end for column in UNITS for end in ("", "_low", "_high", "_winner")),
    "seconds",
)
OF_BAG = {"ap": "average_precision", "doubt_gain": "doubt_gain", "faithfulness": "faithfulness"}
"""The fields of `BagMeasures`."""
OF_CHECKS = {"ap_shown": "shown_precisions", "area": "areas", "faithfulness": "correlations"}
"""The fields of `MapChecks`; `faithfulness` of bags whose prediction has none."""
RESAMPLES = 1000
SMALLEST = 1e-7
"""Probabilities are kept this far from 0, as float32 cannot be nearer to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A method, or a null map, on one set; a row per seed and a column per bag of the table."""

    table: LabelTable
    p: np.ndarray | None
    """p(Y = 1); None for a null map, which has none."""
    values: Mapping[str, np.ndarray]
    """The values of positive bags by column; nan if undefined."""

    @property
    def loss(self) -> np.ndarray:
        """The negative log-likelihood of each bag's label."""
        assert self.p is not None, "a null map predicts no bag"
        likelihood = np.where(np.array(self.table.labels) == 1, self.p, 1 - self.p)
        return -np.log(np.clip(likelihood, SMALLEST, 1))

    def groups(self, bags: np.ndarray | None = None) -> list[str]:
        """Return the group of each bag, or of some of them."""
        rows = range(len(self.table.bags)) if bags is None else np.flatnonzero(bags).tolist()
        return [self.table.group(row) for row in rows]

    def mean(self, values: np.ndarray, bags: np.ndarray | None = None) -> Difference:
        """Return the mean of values of the bags with its interval over groups and seeds."""
        return mean_interval(values, groups=self.groups(bags), resamples=RESAMPLES)


def measured(
    folders: Sequence[Path], folder: Path, *, folds: Collection[int] | None = None
) -> Measured:
    """Measure a method by the predictions of its runs, of which each tests a fold.

    Args:
        folders: The folders of predictions of all folds, and of further seeds.
        folder: The set, with features/ and labels.csv.
        folds: The folds that are tested; None for all.

    Raises:
        SystemExit: A bag is not in the set, has another label or number of instances, or is not
            tested as often as the others.
    """
    table = read_table(folder / "labels.csv")
    if table.folds is None:
        raise SystemExit(f"{table.where} has no column 'fold'")
    if folds is not None:
        others = [b for b, k in zip(table.bags, table.folds, strict=True) if k not in folds]
        table = drop_bags(table, others)
    features = open_bags(folder / "features")
    place = {bag: k for k, bag in enumerate(table.bags)}
    probability: dict[str, list[float]] = defaultdict(list)
    values: dict[str, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for path in folders:
        predictions = read_predictions(path)
        checks = read_map_checks(path.parent)
        for k, bag in enumerate(predictions.bags):
            if predictions.parts[k] in ("train", "val"):
                continue
            y = table.labels[place[bag]] if bag in place else None
            if y is None or predictions.labels[k] not in (None, y):
                raise SystemExit(
                    f"bag {bag!r} of {path} has the label {predictions.labels[k]}, expected "
                    f"{'none, as it is not in the set' if y is None else y} ({table.where})"
                )
            probability[bag].append(float(predictions.probability[k, -1]))
            if not y:
                continue
            labels = features.stored(bag).instance_labels
            p = _with_labels(predictions.instances(bag), labels, where=f"{bag!r} of {path}")
            measures = bag_measures(p)
            bag_values = {column: getattr(measures, field) for column, field in OF_BAG.items()}
            for column, field in OF_CHECKS.items():
                if checks is not None and bag_values.get(column) is None:
                    bag_values[column] = getattr(checks, field).get(bag)
            for column, value in bag_values.items():
                values[column][bag].append(value)
    times = {bag: len(probability[bag]) for bag in table.bags}
    if len(set(times.values())) > 1 or 0 in times.values():
        few = min(times, key=lambda bag: times[bag])
        raise SystemExit(
            f"bag {few!r} is tested {times[few]} times and others {max(times.values())} times: "
            "give the predictions of every fold, each once per seed"
        )
    missing = [None] * times[table.bags[0]]  # one per seed; an array of floats has nan for it
    columns: dict[str, np.ndarray] = {}
    for column, bag_values in values.items():
        columns[column] = np.array([bag_values.get(bag, missing) for bag in table.bags], float).T
    p = np.array([probability[bag] for bag in table.bags]).T
    return Measured(table=table, p=p, values=columns)


def _with_labels(p: Prediction, labels: np.ndarray | None, *, where: str) -> Prediction:
    """Return a prediction with the instance labels of the set."""
    if labels is not None and len(labels) != len(p.attention_mean):
        raise SystemExit(
            f"bag {where} has {len(p.attention_mean)} instances, expected {len(labels)}: predict "
            "with the features of the set"
        )
    return replace(p, instance_labels=labels)


def means(method: Measured) -> dict[str, Difference]:
    """Return the mean of each column that a method has, with its 95 % interval over groups."""
    column_means: dict[str, Difference] = {}
    if method.p is not None:
        column_means["auroc"] = bag_auroc(method)
        column_means["nll"] = method.mean(method.loss)
    for column, values in method.values.items():
        has_value = np.isfinite(values).any(0)
        if not has_value.any():
            continue
        bag_values = values[:, has_value]
        if column != "ap":  # a measure that a bag may lack in some replicates
            bag_values = np.nanmean(bag_values, axis=0, keepdims=True)
        column_means[column] = method.mean(bag_values, has_value)
    return column_means


def bag_auroc(method: Measured) -> Difference:
    """Return the AUROC of the bags, the mean over the folds that have both classes.

    If all folds have, its interval is that of the difference to scores that are all equal, whose
    AUROC is 0.5.
    """
    assert method.p is not None
    y = np.array(method.table.labels)
    folds = np.array(method.table.folds)
    parts = [folds == fold for fold in sorted(set(folds.tolist()))]
    both_classes = [part for part in parts if len(set(y[part].tolist())) > 1]
    areas = []
    for seed_p in method.p:
        areas += [roc_auc_score(y[part], seed_p[part]) for part in both_classes]
    value = float(np.mean(areas))
    if len(both_classes) < len(parts):
        return Difference(difference=value, low=None, high=None, p=None)
    difference = compare(
        y,
        {"equal": np.zeros_like(method.p), "method": method.p},
        groups=method.groups(),
        metric="auroc",
        baseline="equal",
        folds=folds,
        resamples=RESAMPLES,
    ).differences["method"]
    low = None if difference.low is None else max(0.5 + difference.low, 0.0)
    high = None if difference.high is None else min(0.5 + difference.high, 1.0)
    return Difference(difference=value, low=low, high=high, p=difference.p)


def cells(values: Mapping[str, Difference], winners: Sequence[str] = ()) -> dict[str, str]:
    """Return the texts of a row by column; `winners` are the columns that are marked."""
    row = dict.fromkeys(HEADER[1:], "")
    for column, d in values.items():
        for end, value in {"": d.difference, "_low": d.low, "_high": d.high}.items():
            row[column + end] = "" if value is None else f"{UNITS[column] * value:.6f}"
        row[f"{column}_winner"] = str(int(column in winners))
    return row
