"""Rivals without attention for every target, and the metrics that compare them with models.

A linear rival has the likelihood of the package and logits that are linear in one vector per bag,
such as the mean of its features. Its ridge is the one with the lowest NLL of the validation bags. A
regression is fitted by least squares, and its noise is the error of the validation bags: with more
features than bags, a noise that is learned with the weights falls to 0.
`constant_columns` is a rival that looks at nothing: each prediction is that of the training bags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from probsa.core import TaskName
from probsa.evaluation.target_section import target_metrics
from probsa.statistics import KaplanMeier, Metric
from probsa.tasks import TargetData
from probsa.variational import (
    Cox,
    LikelihoodOptions,
    LikelihoodSpec,
    build_likelihood,
    fit_spec,
    logits_of,
)

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
NORMAL = (-1.6448536, -0.6744898, 0.0, 0.6744898, 1.6448536)
"""The quantiles of a standard normal at these levels."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Predictions of some bags, by the name of each column."""

    values: np.ndarray
    names: tuple[str, ...]


def linear_columns(
    task: TaskName,
    *,
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    test: np.ndarray,
    classes: Sequence[str] = (),
    options: LikelihoodOptions | None = None,
) -> Columns:
    """Return the predictions of the linear rival.

    Args:
        task: the task.
        train: the vector and the target of each training bag.
        validation: those of the validation bags, which choose the ridge.
        test: the vectors of the bags to predict.
        classes: names of classes, grades or findings.
        options: the likelihood of grades, numbers or times.
    """
    mean, sd = train[0].mean(0), train[0].std(0) + 1e-9
    z_train, z_val, z_test = (
        torch.from_numpy((x - mean) / sd) for x in (train[0], validation[0], test)
    )
    y, y_val = _targets(train[1], task), _targets(validation[1], task)
    n_classes = max(len(classes), 2) if task != "binary" else 2
    given = options or LikelihoodOptions()
    if task == "regression":
        given = LikelihoodOptions(noise=float(y.std(correction=0)))
    if task in ("binary", "multiclass"):
        spec = LikelihoodSpec(task=task, n_classes=n_classes)
    else:
        spec = fit_spec(task, y, n_classes=n_classes, options=given)
    best, least = None, np.inf
    for ridge in RIDGES:
        likelihood = build_likelihood(spec).double()
        linear = nn.Linear(z_train.shape[1], logits_of(spec)).double()
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        parameters = [*linear.parameters(), *likelihood.parameters()]
        optimizer = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe")

        def loss(
            likelihood: nn.Module = likelihood, linear: nn.Module = linear, ridge: float = ridge
        ) -> torch.Tensor:
            penalty = ridge * linear.weight.square().sum()
            return likelihood.nll(linear(z_train)[:, None], y).mean() + penalty

        def step(optimizer: torch.optim.Optimizer = optimizer, loss=loss) -> torch.Tensor:  # noqa: ANN001
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        optimizer.step(step)
        with torch.no_grad():
            if isinstance(likelihood, Cox):
                likelihood.set_baseline(linear(z_train)[:, 0].exp(), y)
            found = float(likelihood.nll(linear(z_val)[:, None], y_val).mean())
            if best is None or found < least:
                least = found
                predicted = likelihood.predict(linear(z_test)[:, None])
                values = predicted.values.numpy()
                if task == "regression":
                    error = likelihood.predict(linear(z_val)[:, None]).values[:, 0] - y_val
                    sd = float(error.square().mean().sqrt())
                    values = values[:, :1] + sd * np.array([0.0, 0.0, *NORMAL])
                    values[:, 1] = sd
                best = Columns(values=values, names=likelihood.outputs(list(classes)))
    assert best is not None
    return best


def _targets(y: np.ndarray, task: TaskName) -> torch.Tensor:
    one_column = y[:, 0] if task not in ("multilabel", "survival") else y
    value = torch.from_numpy(np.ascontiguousarray(one_column, dtype=np.float64))
    return value.long() if task in ("binary", "multiclass", "ordinal") else value


def constant_columns(
    task: TaskName, y: np.ndarray, *, bags: int, classes: Sequence[str]
) -> Columns:
    """Return the same prediction for each bag, from the training targets alone."""
    if task == "survival":
        times = event_grid(y)
        curve = KaplanMeier.fit(y[:, 0], y[:, 1] > 0).at(times)[0]
        row, names = [0.0, *curve], ("risk", *(f"s_{t:g}" for t in times))
    elif task == "regression":
        mean, sd = float(y.mean()), float(y.std())
        row = [mean, sd, *(mean + q * sd for q in NORMAL)]
        names = ("mean", "sd", *(f"q{round(100 * level):02d}" for level in LEVELS))
    elif task == "multilabel":
        row, names = np.nanmean(y, 0).tolist(), tuple(classes)
    else:
        counts = np.bincount(y[:, 0].astype(int), minlength=max(2, len(classes)))
        row, names = (counts / counts.sum()).tolist(), tuple(classes)
    return Columns(values=np.tile(np.array(row), (bags, 1)), names=names)


def event_grid(y: np.ndarray) -> np.ndarray:
    """Return the times at which survival is compared: deciles 1 to 8 of the training events."""
    return np.quantile(y[y[:, 1] > 0, 0], np.arange(1, 9) / 10)


def on_grid(columns: Columns, times: np.ndarray, *, steps: bool) -> Columns:
    """Return survival at other times: constant between times (Cox) or of constant hazard.

    Args:
        columns: `risk` and `s_<t>`.
        times: where survival is wanted.
        steps: whether the curve is a step function.
    """
    known = np.array([float(n[2:]) for n in columns.names[1:]])
    curve = np.concatenate([np.ones((len(columns.values), 1)), columns.values[:, 1:]], 1)
    before = np.concatenate([[0.0], known])
    if steps:
        found = curve[:, np.searchsorted(before, times, side="right") - 1]
    else:
        logs = np.log(curve.clip(1e-12))
        found = np.exp(np.stack([np.interp(times, before, row) for row in logs]))
    names = ("risk", *(f"s_{t:g}" for t in times))
    return Columns(values=np.concatenate([columns.values[:, :1], found], 1), names=names)


def metrics_of(
    task: TaskName,
    columns: Columns,
    *,
    y: np.ndarray,
    training: np.ndarray,
    classes: Sequence[str] = (),
    groups: Sequence[str] | None = None,
    bootstrap: int = 0,
) -> tuple[dict[str, Metric], Mapping[str, Mapping[str, Metric]]]:
    """Return the package's metrics of predictions: over all bags, and by part."""
    data = TargetData(
        task=task,
        y=y,
        predicted=columns.values,
        outputs=columns.names,
        names=tuple(classes),
        training=training,
    )
    own = groups or [str(i) for i in range(len(y))]
    metrics, section = target_metrics(data, groups=own, bootstrap=bootstrap, seed=0)
    return metrics, section.by_part
