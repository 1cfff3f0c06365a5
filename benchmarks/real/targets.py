"""Targets beyond two classes on the ready bag sets, with the rival that has no attention beside.

    python benchmarks/real/targets.py --data ../shared/data/bags [--only apnea:ordinal] [--folds 5]

The sets have labels of instances, from which targets of bags are made that are known exactly:
`ordinal` is the lesion burden (0 none, 1 to 3 tertiles of the positive share among positive bags of
the set), `regression` is the positive share in percent, `binary` whether there is any, and
`multiclass` the kind of defect in the names of magnetic_tiles. Each fold is predicted by a model
that was trained on three others and validated on one. Predictions of all folds are pooled; 95 %
intervals and differences resample groups (nights, parts of magnets; elsewhere bags).

Rivals: `mean features` has the same likelihood and is linear in the mean of the bag's features,
with its ridge chosen by the validation bags; `constant` predicts for each bag what holds for the
whole set. `map` is the mean AUROC of the map within bags with instances of both labels.

Criteria, written before the first run of a model: a model is useful for a target if it is better
than `constant` with an interval that excludes 0, and attention is if it is better than `mean
features` likewise. A map made from grades or shares should find instances at least as well as one
made from two classes.
"""

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from sklearn.metrics import roc_auc_score

from probsa.core import GraphOptions, TaskName, write_csv
from probsa.datasets import open_bags
from probsa.evaluation import load
from probsa.statistics import (
    Draws,
    SampledMetric,
    multiclass_metrics,
    ordinal_metrics,
    regression_metrics,
    sampled_auroc,
)
from probsa.tasks import TargetOptions
from probsa.training import DataConfig, RunConfig, TrainingConfig, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from target_rivals import Columns, constant_columns, linear_columns

RUNS = (
    "apnea:ordinal",
    "colon_tiles:ordinal",
    "magnetic_tiles:multiclass",
    "ct_ich:ordinal",
    "colon_tiles:regression",
    "apnea:regression",
    "ct_ich:regression",
    "colon_tiles:binary",
    "ct_ich:binary",
    "apnea:binary",
)
"""What is run, in order of importance. The share of magnetic_tiles is about .02 in most positive
bags, so that its tertiles say little."""
MODELS = ("evidence-field", "abmil-probsa-diag")
KINDS = ("free", "blowhole", "break", "crack")
PRIMARY = {
    "ordinal": "quadratic_kappa",
    "regression": "mae",
    "multiclass": "macro_auroc",
    "binary": "auroc",
}
RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Case:
    """A set with one target."""

    data: Path
    task: TaskName
    rows: list[dict[str, str]]
    y: np.ndarray
    """(bags, 1)"""
    means: np.ndarray
    """The mean of the features of each bag."""
    labels: dict[str, np.ndarray]
    """The labels of the instances."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes or grades."""
        if self.task == "multiclass":
            return KINDS
        return ("0", "1", "2", "3") if self.task == "ordinal" else ("0", "1")[: _classes(self.task)]

    @property
    def groups(self) -> list[str]:
        """The group of each bag, which resamples keep whole."""
        return [r.get("group") or r["bag"] for r in self.rows]


def _classes(task: TaskName) -> int:
    return 0 if task == "regression" else 2


def read_case(data: Path, task: TaskName) -> Case:
    """Read a set and make its target."""
    with (data / "labels.csv").open(encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    means, labels = [], {}
    for row in rows:
        with h5py.File(data / "features" / f"{row['bag']}.h5") as f:
            means.append(np.asarray(f["features"], dtype=np.float64).mean(0))
            labels[row["bag"]] = np.asarray(f["instance_labels"]) > 0
    share = np.array([labels[r["bag"]].mean() for r in rows])
    if task == "ordinal":
        cuts = np.quantile(share[share > 0], [1 / 3, 2 / 3])
        y = np.where(share > 0, 1 + (share[:, None] > cuts).sum(1), 0)
    elif task == "regression":
        y = 100 * share
    elif task == "multiclass":
        y = np.array([KINDS.index(r["bag"].partition("_")[0]) for r in rows])
    else:
        y = share > 0
    return Case(
        data=data,
        task=task,
        rows=rows,
        y=np.asarray(y, dtype=np.float64)[:, None],
        means=np.array(means),
        labels=labels,
    )


def run_of(case: Case, table: Path, *, model: str, fold: int, seed: int) -> RunConfig:
    """Return the run: the training of the default recipe with one member; larger sets have fewer
    epochs and larger batches, for about 600 steps."""
    many = len(case.rows) > 300
    return RunConfig(
        data=DataConfig(
            features=case.data / "features",
            labels=table,
            test_fold=fold,
            standardize=True,
            graph=GraphOptions(weight_scale="median"),
            targets=TargetOptions(task=case.task),
        ),
        model=model,
        model_arguments={"embed": 128, "attention_dim": 64},
        training=TrainingConfig(
            epochs=20 if many else 40,
            batch_size=16 if many else 4,
            learning_rate=1e-3 if many else 3e-4,
            kl_weight=0.1,
            select="ema-nll",
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
        seed=seed,
    )


def sampled(case: Case, columns: Columns, picked: np.ndarray) -> dict[str, SampledMetric]:
    """Return the metrics of some bags with their resamples, which are the same for all methods."""
    y = case.y[picked, 0]
    strata = y if case.task in ("ordinal", "multiclass", "binary") else np.zeros(len(y))
    groups = [case.groups[i] for i in picked]
    draws = Draws.stratified(strata, groups=groups, resamples=RESAMPLES, seed=0).with_data()
    values = columns.values[picked]
    if case.task == "ordinal":
        return dict(ordinal_metrics(y.astype(int), values, draws=draws).overall)
    if case.task == "multiclass":
        return dict(multiclass_metrics(y.astype(int), values, names=KINDS, draws=draws).overall)
    if case.task == "binary":
        return {"auroc": sampled_auroc(y > 0, values[:, -1], draws=draws, what="bags")}
    mean = values[:, columns.names.index("mean")]
    levels = {0.05: "q05", 0.95: "q95"}
    quantiles = {a: values[:, columns.names.index(n)] for a, n in levels.items()}
    found = regression_metrics(y, mean, quantiles=quantiles, draws=draws)
    return dict(found.overall) | {"coverage": found.by_part["90 %"]["coverage"]}


def results(
    case: Case, *, folds: Sequence[int], seed: int, models: Sequence[str]
) -> Iterator[dict]:
    """Yield a row for each method, with intervals and the difference from `mean features`."""
    fold = np.array([int(r["fold"]) for r in case.rows])
    picked = np.flatnonzero(np.isin(fold, folds))
    pooled: dict[str, Columns] = {}
    extra: dict[str, dict[str, float]] = {}
    for name in ("mean features", "constant"):
        parts = []
        for k in folds:
            test, val = fold == k, fold == (k + 1) % 5
            rest = ~(test | val)
            if name == "constant":
                # of all bags: shares that differ between folds would rank pooled bags
                columns = constant_columns(
                    case.task, case.y, bags=int(test.sum()), classes=case.classes
                )
            else:
                columns = linear_columns(
                    case.task,
                    train=(case.means[rest], case.y[rest]),
                    validation=(case.means[val], case.y[val]),
                    test=case.means[test],
                    classes=case.classes,
                )
            parts.append((np.flatnonzero(test), columns))
        pooled[name] = _pool(case, parts)
    for model in models:
        start = time.process_time()
        parts, aurocs = [], []
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "labels.csv"
            write_csv(
                table,
                ["bag", "group", "fold", "label"],
                [
                    {"bag": r["bag"], "group": g, "fold": r["fold"], "label": _cell(case, y)}
                    for r, g, (y,) in zip(case.rows, case.groups, case.y, strict=True)
                ],
            )
            for k in folds:
                config = run_of(case, table, model=model, fold=k, seed=seed)
                run = train(config, Path(folder) / f"run{k}")
                bags = open_bags(config.data.features, graph=config.data.graph)
                test = np.flatnonzero(fold == k)
                names = [case.rows[i]["bag"] for i in test]
                found = list(load(run.path, device="cpu").predict(bags.bag(n) for n in names))
                outputs = found[0].outputs or case.classes
                values = np.array([p.probability for p in found], dtype=np.float64)
                parts.append((test, Columns(values=values, names=tuple(outputs))))
                for n, p in zip(names, found, strict=True):
                    own = case.labels[n]
                    if own.any() and not own.all() and p.attention_mean.ndim == 1:
                        aurocs.append(roc_auc_score(own, p.attention_mean))
        pooled[model] = _pool(case, parts)
        extra[model] = {"seconds": time.process_time() - start}
        if aurocs:
            extra[model]["map"] = float(np.mean(aurocs))
    key = PRIMARY[case.task]
    metrics = {name: sampled(case, columns, picked) for name, columns in pooled.items()}
    for name, own in metrics.items():
        row: dict[str, object] = {"set": case.data.name, "task": case.task, "method": name}
        for metric in _shown(case.task):
            found = own[metric].metric()
            row[metric] = _text(found.value, found.low, found.high)
        for rival in ("constant", "mean features"):
            if name not in ("constant", rival):
                row[f"{key} less that of {rival}"] = _difference(own[key], metrics[rival][key])
        yield row | {k: f"{v:.3f}" for k, v in extra.get(name, {}).items()}


def _pool(case: Case, parts: Sequence[tuple[np.ndarray, Columns]]) -> Columns:
    names = parts[0][1].names
    values = np.full((len(case.rows), len(names)), np.nan)
    for rows, columns in parts:
        values[rows] = columns.values
    return Columns(values=values, names=names)


def _cell(case: Case, y: float) -> str:
    return f"{y:.6g}" if case.task == "regression" else str(int(y))


def _shown(task: TaskName) -> tuple[str, ...]:
    return {
        "ordinal": ("quadratic_kappa", "mae", "rps"),
        "regression": ("mae", "r_squared", "spearman", "coverage"),
        "multiclass": ("macro_auroc", "macro_f1", "nll"),
        "binary": ("auroc",),
    }[task]


def _text(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _difference(one: SampledMetric, other: SampledMetric) -> str:
    """Return the difference with its percentile interval over the same resamples."""
    if one.rows is None or other.rows is None:
        return "-"
    rows = one.rows - other.rows
    low, high = np.nanpercentile(rows[1:], [2.5, 97.5])
    return f"{rows[0]:+.3f} [{low:+.3f}, {high:+.3f}]"


def table_of(rows: Sequence[dict]) -> str:
    """Return a table for each set and target."""
    lines = []
    for case in dict.fromkeys((r["set"], r["task"]) for r in rows):
        own = [r for r in rows if (r["set"], r["task"]) == case]
        keys = [k for k in dict.fromkeys(k for r in own for k in r) if k not in ("set", "task")]
        lines += ["", f"{case[0]}, {case[1]}", "", f"| {' | '.join(keys)} |"]
        lines += ["|---" * len(keys) + "|"]
        lines += [f"| {' | '.join(str(r.get(k, '')) for k in keys)} |" for r in own]
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the ready bag sets")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    rows: list[dict] = []
    for name in a.only.split(","):
        data, task = name.split(":")
        case = read_case(a.data / data, task)  # type: ignore[arg-type]
        for row in results(
            case, folds=range(a.folds), seed=a.seed, models=[m for m in a.models.split(",") if m]
        ):
            rows.append(row)
            print(row, flush=True)
    print(table_of(rows))


if __name__ == "__main__":
    main()
