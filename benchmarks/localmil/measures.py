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
        groups = [self.table.group(k) for k in range(len(self.table.bags))]
        return groups if bags is None else [g for g, kept in zip(groups, bags, strict=True) if kept]

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
            of_bag = bag_measures(p)
            found = {column: getattr(of_bag, field) for column, field in OF_BAG.items()}
            for column, field in OF_CHECKS.items():
                if checks is not None and found.get(column) is None:
                    found[column] = getattr(checks, field).get(bag)
            for column, value in found.items():
                values[column][bag].append(value)
    times = {bag: len(probability[bag]) for bag in table.bags}
    if len(set(times.values())) > 1 or 0 in times.values():
        few = min(times, key=lambda bag: times[bag])
        raise SystemExit(
            f"bag {few!r} is tested {times[few]} times and others {max(times.values())} times: "
            "give the predictions of every fold, each once per seed"
        )
    seeds = times[table.bags[0]]
    return Measured(
        table=table,
        p=np.array([probability[bag] for bag in table.bags]).T,
        values={
            column: np.array([of.get(bag, [None] * seeds) for bag in table.bags], float).T
            for column, of in values.items()
        },
    )


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
    found: dict[str, Difference] = {}
    if method.p is not None:
        found["auroc"] = bag_auroc(method)
        found["nll"] = method.mean(method.loss)
    for column, values in method.values.items():
        known = np.isfinite(values).any(0)
        if not known.any():
            continue
        shown = values[:, known]
        if column != "ap":  # a measure that a bag may lack in some replicates
            shown = np.nanmean(shown, axis=0, keepdims=True)
        found[column] = method.mean(shown, known)
    return found


def bag_auroc(method: Measured) -> Difference:
    """Return the AUROC of the bags, the mean over the folds that have both classes.

    If all folds have, its interval is that of the difference to scores that are all equal, whose
    AUROC is 0.5.
    """
    assert method.p is not None
    y = np.array(method.table.labels)
    folds = np.array(method.table.folds)
    parts = [folds == fold for fold in sorted(set(folds.tolist()))]
    areas = [
        roc_auc_score(y[part], of_seed[part])
        for of_seed in method.p
        for part in parts
        if len(set(y[part].tolist())) > 1
    ]
    value = float(np.mean(areas))
    if len(areas) < len(parts) * len(method.p):
        return Difference(difference=value, low=None, high=None, p=None)
    found = compare(
        y,
        {"equal": np.zeros_like(method.p), "method": method.p},
        groups=method.groups(),
        metric="auroc",
        baseline="equal",
        folds=folds,
        resamples=RESAMPLES,
    ).differences["method"]
    low = None if found.low is None else max(0.5 + found.low, 0.0)
    high = None if found.high is None else min(0.5 + found.high, 1.0)
    return Difference(difference=value, low=low, high=high, p=found.p)


def cells(found: Mapping[str, Difference], winners: Sequence[str] = ()) -> dict[str, str]:
    """Return the texts of a row by column; `winners` are the columns that are marked."""
    row = dict.fromkeys(HEADER[1:], "")
    for column, d in found.items():
        for end, value in {"": d.difference, "_low": d.low, "_high": d.high}.items():
            row[column + end] = "" if value is None else f"{UNITS[column] * value:.6f}"
        row[f"{column}_winner"] = str(int(column in winners))
    return row
