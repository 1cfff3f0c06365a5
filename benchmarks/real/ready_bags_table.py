"""Tables of `ready_bags.py`: pooled test folds, mean ± std over seeds, intervals over bags.

Intervals are from 200 resamples of the bags, stratified by class, with the mean over seeds within
each resample. Differences from the plain model are paired: they use the same resamples.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.metrics import f1_score, roc_auc_score

from probsa.evaluation.prediction import Prediction

if TYPE_CHECKING:
    from ready_bags import Cell

RESAMPLES = 200
Scores = Callable[[np.ndarray], float]
"""A metric of a method and seed, as a function of the number of times each bag is drawn."""


def tables(cells: "list[Cell]", out: Path) -> None:
    """Print a Markdown table for each data set with a seed of which all five folds are done."""
    done = [c for c in cells if (out / c.file).is_file()]
    by_run: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in done:
        by_run[cell.data, cell.method, cell.seed].append(cell)
    complete = {k: v for k, v in by_run.items() if len(v) == 5}
    for data in dict.fromkeys(k[0] for k in complete):
        methods = list(dict.fromkeys(k[1] for k in complete if k[0] == data))
        labels = _labels(next(c for c in done if c.data == data), out)
        metrics = {
            m: [_metrics(v, out) for k, v in sorted(complete.items()) if k[:2] == (data, m)]
            for m in methods
        }
        _print(data, metrics, y=labels)


def _metrics(cells: "list[Cell]", out: Path) -> dict[str, Scores]:
    """Return the metrics of a method and seed over the pooled test bags, sorted by name."""
    from ready_bags import pooled

    predictions, y, calls = pooled(cells, out)
    order = np.argsort([p.name for p in predictions])
    predictions = [predictions[k] for k in order]
    y, calls = y[order], calls[order]
    p = np.array([q.probability[0] for q in predictions], dtype=float)
    truth, mu, score, variance, degree, bag = _instances(predictions, y)
    wrong = (score > 0) != truth

    def at_instances(target: np.ndarray, value: np.ndarray) -> Scores:
        return lambda w: float(roc_auc_score(target, value, sample_weight=w[bag]))

    metrics: dict[str, Scores] = {
        "bag AUROC": lambda w: float(roc_auc_score(y, p, sample_weight=w)),
        "bag F1": lambda w: float(f1_score(y, calls, sample_weight=w)),
        "instance AUROC": at_instances(truth, mu),
        "errors by −abs(s)": at_instances(wrong, -np.abs(score)),
        "errors by 1/degree": at_instances(wrong, 1 / degree),
    }
    if variance.max() > 0:
        metrics["errors by σ²"] = at_instances(wrong, variance)
    return metrics


def _labels(cell: "Cell", out: Path) -> np.ndarray:
    """Return the labels of all bags, sorted by name."""
    from ready_bags import pooled

    folds = [replace(cell, fold=k) for k in range(5)]
    predictions, y, _ = pooled(folds, out)
    return y[np.argsort([p.name for p in predictions])]


def _instances(predictions: Sequence[Prediction], y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return columns for the instances of positive bags.

    These are the label, μ, s = μ − logsumexp(μ) + log N, σ², degree and index of the bag.
    """
    columns: list[list[np.ndarray]] = [[] for _ in range(6)]
    for k, q in enumerate(predictions):
        if not y[k]:
            continue
        mu = q.attention_mean.astype(float)
        top = mu.max()
        s = mu - (top + np.log(np.exp(mu - top).sum())) + np.log(len(mu))
        assert q.instance_labels is not None
        bag = np.full(len(mu), k)
        values = (q.instance_labels > 0, mu, s, q.attention_variance, q.degree, bag)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return tuple(np.concatenate(c) for c in columns)


def _weights(n: int, y: np.ndarray) -> np.ndarray:
    """Return how often each bag is drawn in each resample, stratified by class."""
    draw = np.random.default_rng(0)
    w = np.zeros((RESAMPLES, n))
    for c in (0, 1):
        rows = np.flatnonzero(y == c)
        for r in range(RESAMPLES):
            np.add.at(w[r], draw.choice(rows, len(rows)), 1)
    return w


def _print(data: str, metrics: dict[str, list[dict[str, Scores]]], *, y: np.ndarray) -> None:
    ones, w = np.ones(len(y)), _weights(len(y), y)
    names = ["bag AUROC", "bag F1", "instance AUROC", "errors by σ²", "errors by −abs(s)",
             "errors by 1/degree"]  # fmt: skip
    print(f"\n### {data} ({len(y)} bags, {int(y.sum())} positive)\n")
    print("| method | seeds | " + " | ".join(names) + " | Δ bag AUROC | Δ instance AUROC |")
    print("|---|---|" + "---|" * (len(names) + 2))
    plain: dict[str, np.ndarray] = {}
    for method, seeds in metrics.items():
        row = [method, str(len(seeds))]
        for name in names:
            if name not in seeds[0]:
                row.append("no variance")
                continue
            values = np.array([s[name](ones) for s in seeds])
            drawn = np.array([np.mean([s[name](x) for s in seeds]) for x in w])
            low, high = np.quantile(drawn, [0.025, 0.975])
            std = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
            row.append(f"{values.mean():.3f}{std} [{low:.2f}, {high:.2f}]")
            if name in ("bag AUROC", "instance AUROC"):
                if "probsa" not in method:
                    plain[name] = drawn
                    plain[f"{name} value"] = values.mean()
                else:
                    d = np.quantile(drawn - plain[name], [0.025, 0.975])
                    change = values.mean() - plain[f"{name} value"]
                    row.append(f"Δ{change:+.3f} [{d[0]:+.2f}, {d[1]:+.2f}]")
        cells = [c for c in row if not c.startswith("Δ")]
        deltas = [c[1:] for c in row if c.startswith("Δ")] or ["", ""]
        print("| " + " | ".join([*cells, *deltas]) + " |", flush=True)
