"""Stage 8: the scores of the validation bags, and the epoch whose weights a run keeps by them.

Every rule is a function of the rows of metrics.csv, so a resumed run chooses as if it had not been
interrupted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ..core import TaskName
from ..errors import InputError
from ..models import Model
from ..tasks import TASKS, Target
from .config import Select, TrainingConfig

SMALLEST = 1e-12
"""Lower limit of the probabilities in the NLL."""
SCORES = ("val_auroc", "val_kappa", "val_c_index")
"""The columns of metrics.csv by which `auroc` compares epochs: every task has at most one."""

Row = Mapping[str, Any]


def validation_scores(
    targets: Sequence[Target],
    predicted: ArrayLike = (),
    *,
    nll: NDArray[np.float64] | None = None,
    task: TaskName = "binary",
) -> dict[str, float | None]:
    """Return the metric of a task by which epochs are chosen, and the NLL; None where undefined.

    It is AUROC for classes (one-vs-rest for three or more), quadratic kappa for grades, the mean
    AUROC of the findings that have both labels, and Harrell's c for survival. For regression it is
    the NLL itself.

    Args:
        targets: what each bag is labelled with.
        predicted: the prediction of each bag, (bags, outputs).
        nll: the negative log-likelihood of each bag; None for that of predicted probabilities.
        task: the task of the run.
    """
    kind = TASKS[task]
    columns = [kind.validation_metric] if kind.validation_metric else []
    if not targets:
        return dict.fromkeys([*columns, "val_nll"])
    p = np.asarray(predicted, dtype=np.float64)
    y = np.array(targets, dtype=np.float64).reshape(len(p), -1)
    if nll is None:
        # one column is p(Y = 1)
        p_classes = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
        p_label = np.take_along_axis(p_classes, y.astype(np.int64), axis=1)
        nll = -np.log(np.maximum(p_label, SMALLEST))
    scores = {column: kind.validation_score(y, p) for column in columns}
    return {**scores, "val_nll": float(nll.mean())}


def chosen_row(rule: Select, history: Sequence[Row]) -> Row:
    """Return the row of the epoch that a rule chooses among those so far.

    Each row has `epoch`, at most one of `SCORES`, and `val_nll`. Ties in the score, and undefined
    scores, go to the lower NLL, and then to the earlier epoch; without validation bags, to the
    last epoch.
    """
    if rule == "last" or history[-1]["val_nll"] is None:
        return history[-1]

    def rank(row: Row) -> tuple[float, float]:
        score = next((row[name] for name in SCORES if name in row and rule == "auroc"), None)
        return (-math.inf if score is None else score, -row["val_nll"])

    return max(history, key=rank)


def check_selection(settings: TrainingConfig, model: Model, *, validation: bool) -> None:
    """Refuse settings that make no sense for a model, or without validation bags.

    Raises:
        InputError: the weights of the model cannot be averaged, epochs are compared without
            validation bags, or `patience` ends what the rule counts on.
    """
    rule = settings.select
    patience = settings.patience
    reason = why_not_averaged(model) if rule == "ema-nll" else None
    if reason is not None:
        raise InputError(
            f"select is {rule!r}, which averages weights, but {model.name} {reason}. "
            "Choose auroc, nll or last"
        )
    if rule == "last" and patience is not None:
        raise InputError(
            f"select is {rule!r}, which keeps the weights at the end of all epochs, but patience "
            f"is {patience}, which ends training early: leave one of the two out"
        )
    if validation:
        return
    if settings.schedule == "plateau":
        setting = "schedule is 'plateau'"
    elif rule in ("nll", "ema-nll"):
        setting = f"select is {rule!r}"
    else:
        return
    raise InputError(
        f"{setting}, which compares epochs on validation bags, but there are no validation "
        "bags: choose another (select: last, schedule: constant), or give some"
    )


def why_not_averaged(model: Model) -> str | None:
    """Return why the average of a model's weights is not a sound model, or None if it is."""
    if type(model).memory is not Model.memory:
        return "keeps a memory of bags beside its weights, which belongs to one epoch's weights"
    if model.couples_bags:
        return "couples the bags of a batch: its batch statistics belong to one epoch's weights"
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return "has batch norms, whose statistics belong to one epoch's weights"
    if any(is_parametrized(m) for m in model.modules()):
        return "normalises its weights (spectral norm) with vectors that belong to single weights"
    return None
