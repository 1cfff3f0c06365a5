"""Stage 8: the scores of the validation bags after an epoch, by which the best epoch is chosen."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ..core import CLASS_TASKS, Bags, TaskName
from ..models import Output
from ..statistics import Draws, cohen_kappa, confusion, harrell_c, median_call
from ..variational import Likelihood
from .targets import Target

Scores = dict[str, int | float | None]


def with_nll(out: Output, likelihood: Likelihood, bags: Bags) -> Tensor:
    """Return the prediction of labelled bags for `validation_scores`: (bags, outputs [+ 1]).

    For other tasks than classes, the last column is the negative log-likelihood of each bag.
    """
    if likelihood.task in CLASS_TASKS:
        return out.probability
    assert bags.y is not None
    nll = likelihood.predictive_nll(out.logits, bags.y)
    return torch.cat([out.probability, nll[:, None].to(out.probability.dtype)], 1)


def validation_scores(
    targets: Sequence[Target], predicted: Sequence[Sequence[float]], *, task: TaskName = "binary"
) -> Scores:
    """Return the main metric of a task and the NLL of the validation bags; None where undefined.

    The main metric is AUROC for classes (one-vs-rest for three or more), quadratic kappa for
    grades, the mean AUROC of the findings that have both labels, and Harrell's c for survival. For
    regression it is the NLL itself.

    Args:
        targets: what each bag is labelled with.
        predicted: what `with_nll` returned for each bag.
        task: the task of the run.
    """
    if task in CLASS_TASKS:
        return _of_classes(targets, predicted)
    column = _MAIN[task]
    if not targets:
        return {**({} if column is None else {column: None}), "val_nll": None}
    values = np.array(predicted, dtype=np.float64)
    scores: Scores = {}
    if column is not None:
        scores[column] = _METRICS[task](np.array(targets, dtype=np.float64), values[:, :-1])
    return {**scores, "val_nll": float(values[:, -1].mean())}


def _of_classes(labels: Sequence[Target], probability: Sequence[Sequence[float]]) -> Scores:
    if not labels:
        return {"val_auroc": None, "val_nll": None}
    p = torch.tensor(probability, dtype=torch.float64)
    y = torch.tensor(labels)
    full = torch.cat([1 - p, p], 1) if p.shape[1] == 1 else p
    chosen = full[torch.arange(len(y)), y].clamp_min(1e-12)
    auroc = None
    if len(set(labels)) == full.shape[1]:
        scores = full[:, 1] if full.shape[1] == 2 else full / full.sum(1, keepdim=True)
        auroc = float(roc_auc_score(y.numpy(), scores.numpy(), multi_class="ovr"))
    return {"val_auroc": auroc, "val_nll": float(-chosen.log().mean())}


def _kappa(y: np.ndarray, p: np.ndarray) -> float | None:
    grades, draws = y.astype(np.int64), Draws.of_data(len(y))
    matrix = confusion(grades, median_call(p), classes=p.shape[1], draws=draws)
    return cohen_kappa(matrix, weighting="quadratic").value


def _mean_auroc(y: np.ndarray, p: np.ndarray) -> float | None:
    of_findings = []
    for finding, score in zip(y.T, p.T, strict=True):
        known = np.isfinite(finding)
        if len(np.unique(finding[known])) == 2:
            of_findings.append(roc_auc_score(finding[known], score[known]))
    return float(np.mean(of_findings)) if of_findings else None


def _c_index(y: np.ndarray, p: np.ndarray) -> float | None:
    return harrell_c(y[:, 0], y[:, 1] > 0, risk=p[:, 0]).value


_MAIN: dict[str, str | None] = {
    "ordinal": "val_kappa",
    "multilabel": "val_auroc",
    "regression": None,
    "survival": "val_c_index",
}
_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "ordinal": _kappa,
    "multilabel": _mean_auroc,
    "survival": _c_index,
}
