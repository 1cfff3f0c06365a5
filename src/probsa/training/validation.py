"""Stage 8: the scores of the validation bags after an epoch, by which the best epoch is chosen."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core import Bags, TaskName
from ..models import Output
from ..tasks import TASKS, Target
from ..variational import Likelihood

SMALLEST = 1e-12
"""Lower limit of the probabilities in the NLL."""
Scores = dict[str, int | float | None]


def with_nll(out: Output, likelihood: Likelihood, bags: Bags) -> Tensor:
    """Return the prediction of labelled bags for `validation_scores`: (bags, outputs [+ 1]).

    For other tasks than classes, the last column is the negative log-likelihood of each bag. Where
    that depends on the other bags, the last columns are the logits, for `nll_of_all`.
    """
    p = out.probability
    if likelihood.of_classes:
        return p
    if likelihood.couples_bags:
        return torch.cat([p, out.logits[..., 0].to(p.dtype)], 1)
    assert bags.y is not None
    return torch.cat([p, likelihood.predictive_nll(out.logits, bags.y)[:, None].to(p.dtype)], 1)


def nll_of_all(
    targets: Sequence[Target], predicted: Sequence[Sequence[float]], likelihood: Likelihood
) -> list[list[float]]:
    """Put the NLL of each bag among all bags in the place of its logits.

    Args:
        targets: what each bag is labelled with.
        predicted: what `with_nll` returned for each bag, of a likelihood that couples bags.
        likelihood: the likelihood, of one logit.
    """
    rows = torch.tensor(predicted, dtype=torch.float64)
    p, logits = rows.tensor_split([len(likelihood.outputs(()))], 1)
    y = torch.tensor(targets, dtype=torch.float64)
    nll = likelihood.predictive_nll(logits[..., None], y)
    return torch.cat([p, nll[:, None]], 1).tolist()


def validation_scores(
    targets: Sequence[Target], predicted: Sequence[Sequence[float]], *, task: TaskName = "binary"
) -> Scores:
    """Return the metric of a task by which epochs are chosen, and the NLL; None where undefined.

    It is AUROC for classes (one-vs-rest for three or more), quadratic kappa for grades, the mean
    AUROC of the findings that have both labels, and Harrell's c for survival. For regression it is
    the NLL itself.

    Args:
        targets: what each bag is labelled with.
        predicted: what `with_nll` returned for each bag.
        task: the task of the run.
    """
    kind = TASKS[task]
    columns = [kind.validation_metric] if kind.validation_metric else []
    if not targets:
        return dict.fromkeys([*columns, "val_nll"])
    p = np.array(predicted, dtype=np.float64)
    y = np.array(targets, dtype=np.float64).reshape(len(p), -1)
    if kind.unordered_classes:
        full = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
        of_label = np.take_along_axis(full, y.astype(np.int64), axis=1)
        nll = -np.log(np.maximum(of_label, SMALLEST))
    else:
        p, nll = p[:, :-1], p[:, -1]
    return {**{c: kind.validation_score(y, p) for c in columns}, "val_nll": float(nll.mean())}
