"""Stage 8: the choice of the epoch whose weights a run keeps, from its validation scores so far.

Every rule is a function of the rows of metrics.csv, so a resumed run chooses as if it had not been
interrupted. A rule names the epochs that may still be chosen, and only their weights are kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import InputError
from ..models import Model
from .config import Select

SELECT: tuple[Select, ...] = get_args(Select)
AVERAGED: tuple[Select, ...] = ("ema-nll", "average")
"""Rules that validate and keep an average of weights instead of an epoch's own."""
FIXED: tuple[Select, ...] = ("average", "last")
"""Rules that do not compare epochs: they keep the weights at the end of training."""
SCORES = ("val_auroc", "val_kappa", "val_c_index")
"""The columns of metrics.csv by which `auroc` compares epochs: every task has at most one."""
WINDOW = 5
"""Number of epochs over which `smoothed` takes means."""

Row = Mapping[str, Any]
Weights = dict[str, Tensor]


def candidates(
    rule: Select, history: Sequence[Row], *, epochs: int, counts: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the epochs that may still be chosen; the first one is the choice at present.

    Args:
        rule: how to choose.
        history: a row with `epoch`, one of `SCORES` and `val_nll` for each epoch so far.
        epochs: number of epochs of the whole training.
        counts: number of validation bags of each class, for `one-se`.
    """
    if rule in FIXED:
        return (history[-1]["epoch"],)
    if rule == "smoothed":
        return (_smoothed(history, window=min(WINDOW, epochs)),)
    if rule == "one-se" and history[0].get("val_auroc") is not None:
        return _within_one_error(history, counts=counts)
    better = is_better if rule == "auroc" else has_lower_nll
    best = history[0]
    for row in history[1:]:
        if better(row, best):
            best = row
    return (best["epoch"],)


def is_better(row: Row, best: Row) -> bool:
    """Return whether an epoch is the best: higher score or, if equal or undefined, lower NLL."""
    if not best or row["val_nll"] is None:
        return True

    def rank(r: Row) -> tuple[float, float]:
        score = score_of(r)
        return (-math.inf if score is None else score, -r["val_nll"])

    return rank(row) > rank(best)


def score_of(row: Row) -> float | None:
    """Return the score of an epoch's validation bags, see `SCORES`; None where it is undefined."""
    return next((row[name] for name in SCORES if name in row), None)


def has_lower_nll(row: Row, best: Row) -> bool:
    """Return whether an epoch has a lower validation NLL."""
    return row["val_nll"] < best["val_nll"]


def _smoothed(history: Sequence[Row], *, window: int) -> int:
    """Return the last epoch of the best window: highest mean AUROC, then lowest mean NLL.

    Until one window is complete, it is the latest epoch: a mean over fewer epochs is not smooth.
    """
    best, chosen = None, history[-1]["epoch"]
    for end in range(window, len(history) + 1):
        rows = history[end - window : end]
        auroc = math.fsum(score_of(r) or 0.0 for r in rows) / window
        nll = math.fsum(r["val_nll"] for r in rows) / window
        if best is None or (auroc, -nll) > best:
            best, chosen = (auroc, -nll), rows[-1]["epoch"]
    return chosen


def _within_one_error(history: Sequence[Row], *, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the epochs that set a record of AUROC within one standard error of the last record.

    The earliest epoch within the error is always a record. The bound rises with the record, so an
    epoch that falls below it is never needed again.
    """
    records = [history[0]]
    for row in history[1:]:
        if row["val_auroc"] > records[-1]["val_auroc"]:
            records.append(row)
    highest = records[-1]["val_auroc"]
    bound = highest - standard_error(highest, counts)
    return tuple(r["epoch"] for r in records if r["val_auroc"] >= bound)


def standard_error(auroc: float, counts: Sequence[int]) -> float:
    """Return the standard error of an AUROC, after Hanley and McNeil (1982).

    An AUROC of 1 has no estimated error, as if more bags could not change it: it counts as half a
    wrongly ordered pair less. Below 0.5, the error is that at 0.5. With three or more classes,
    the mean of the classes' errors bounds the error of the mean AUROC from above.

    Args:
        auroc: the AUROC (one-vs-rest for three or more classes).
        counts: number of bags of each class.
    """
    if len(counts) > 2:
        rest = sum(counts)
        return sum(standard_error(auroc, (rest - n, n)) for n in counts) / len(counts)
    negative, positive = counts
    pairs = positive * negative
    a = max(min(auroc, 1 - 0.5 / pairs), 0.5)
    variance = a * (1 - a)
    variance += (positive - 1) * (a / (2 - a) - a * a)
    variance += (negative - 1) * (2 * a * a / (1 + a) - a * a)
    return math.sqrt(variance / pairs)


class Candidates:
    """The weights of the epochs that may still be chosen."""

    def __init__(self) -> None:
        self.weights: dict[int, Weights] = {}
        """By epoch; after a resumption, possibly without those of the choice, which are saved."""
        self.chosen = 0
        """The epoch chosen at present; 0 before the first one."""

    def keep(self, epochs: Sequence[int], *, latest: int, weights: Callable[[], Weights]) -> bool:
        """Keep only the weights of some epochs; return whether the choice changed.

        Args:
            epochs: the epochs that may still be chosen, as `candidates` returns them.
            latest: the epoch that has just ended, the only one whose weights can be new.
            weights: returns a copy of its weights.
        """
        self.weights = {e: w for e, w in self.weights.items() if e in epochs}
        if latest in epochs:
            self.weights[latest] = weights()
        changed = epochs[0] != self.chosen
        self.chosen = epochs[0]
        return changed

    def tensors(self, prefix: str, *, chosen: bool) -> Weights:
        """Return the weights under `prefix.<epoch>.<name>`, with or without those of the choice."""
        return {
            f"{prefix}.{epoch}.{name}": value
            for epoch, weights in self.weights.items()
            if chosen or epoch != self.chosen
            for name, value in weights.items()
        }

    def restore(self, tensors: Mapping[str, Tensor], *, chosen: int) -> None:
        """Take the weights that `tensors` returned, without the prefix, and the choice."""
        self.chosen = chosen
        for key, value in tensors.items():
            epoch, _, name = key.partition(".")
            self.weights.setdefault(int(epoch), {})[name] = value


def check_selection(
    rule: Select, models: Sequence[Model], *, patience: int | None, validation: bool
) -> None:
    """Refuse a rule that makes no sense for a run.

    Args:
        rule: the run's `select`.
        models: the models that are trained.
        patience: the run's `patience`.
        validation: whether there are validation bags.

    Raises:
        InputError: the weights of a model cannot be averaged, the rule compares epochs without
            validation bags, or `patience` ends what the rule counts on.
    """
    for model in models if rule in AVERAGED else ():
        reason = why_not_averaged(model)
        if reason is not None:
            raise InputError(
                f"select is {rule!r}, which averages weights, but {model.name} {reason}. "
                "Choose auroc, nll, smoothed, one-se or last"
            )
    if rule in FIXED and patience is not None:
        raise InputError(
            f"select is {rule!r}, which keeps the weights at the end of all epochs, but patience "
            f"is {patience}, which ends training early: leave one of the two out"
        )
    if not validation and rule not in (*FIXED, "auroc"):
        raise InputError(
            f"select is {rule!r}, which compares epochs on validation bags, but there are none: "
            "choose last or average, or give validation bags"
        )


def why_not_averaged(model: Model) -> str | None:
    """Return why the average of a model's weights is not a sound model, or None if it is."""
    if type(model).memory is not Model.memory:
        return "keeps a memory of bags beside its weights, which belongs to one epoch's weights"
    if model.couples_bags:
        return (
            "couples the bags of a batch: its batch statistics belong to the weights that produced "
            "them"
        )
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return "has batch norms, whose statistics belong to the weights that produced them"
    if any(is_parametrized(m) for m in model.modules()):
        return "normalises its weights (spectral norm) with vectors that belong to single weights"
    return None
