"""Temperature scaling: one number that makes the probabilities of a run more or less extreme.

Guo et al., On calibration of modern neural networks, ICML 2017. Here the temperature divides the
logit of the predicted probability, which may be a mean over posterior samples and members, so that
it is fitted to the probability that users see. It leaves the order of bags of two classes as it is.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from ..core import PositiveFloat
from ..statistics import SMALLEST
from .prediction import Prediction

LOWEST = 0.05
HIGHEST = 20.0
"""Limits of the search. A minimum at a limit means that the bags do not determine it."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """A fitted temperature; 1 with the reason where the bags do not determine one."""

    temperature: PositiveFloat
    bags: int
    """Number of validation bags."""
    nll_before: float | None = None
    nll_after: float | None = None
    reason: str | None = None


def fit_temperature(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags columns"]
) -> Temperature:
    """Return the temperature with the lowest negative log-likelihood on these (validation) bags.

    Args:
        y: class index of each bag.
        p: probabilities; one column, p(Y = 1), or one per class.
    """
    n = len(y)
    if len(set(y.tolist())) < 2:
        return Temperature(1.0, bags=n, reason=f"{n} validation bags of a single class")
    logits = _logits(p)

    def nll(log_temperature: float) -> float:
        log_p = log_softmax(logits / np.exp(log_temperature), axis=1)
        return float(-log_p[np.arange(n), y].mean())

    # over log T, so that T and 1 / T are searched alike
    limits = (np.log(LOWEST), np.log(HIGHEST))
    minimum = minimize_scalar(nll, bounds=limits, method="bounded", options={"xatol": 1e-7})
    before = nll(0.0)
    if min(abs(minimum.x - limit) for limit in limits) < 1e-3:
        reason = f"the likelihood of {n} validation bags has no minimum over temperatures"
        return Temperature(1.0, bags=n, nll_before=before, nll_after=before, reason=reason)
    best = float(np.exp(minimum.x))
    return Temperature(best, bags=n, nll_before=before, nll_after=float(minimum.fun))


def scale_probabilities(
    p: Float[np.ndarray, "*bags columns"], *, temperature: float
) -> Float[np.ndarray, "*bags columns"]:
    """Return softmax(log p / T), or for one column p(Y = 1) the sigmoid of its logit over T.

    Probabilities are kept a float32 step away from 0 and 1, so that their logits are finite.
    """
    scaled = softmax(_logits(p) / temperature, axis=-1)
    return scaled[..., 1:] if p.shape[-1] == 1 else scaled


def scale_prediction(p: Prediction, *, temperature: float) -> Prediction:
    """Return a prediction whose probabilities of the bag are scaled.

    The standard deviations are multiplied by the derivative of the scaling, and limited to
    √(p (1 - p)), which no probability exceeds. Leave-one-out remains the difference of two (scaled)
    probabilities. What belongs to instances, or adds up to the logit, stays as it is.
    """
    if temperature == 1:
        return p
    old = p.probability.astype(np.float64)
    new = scale_probabilities(old, temperature=temperature)
    # dq/dp = q (1 - q) / (T p (1 - p)) for logit q = logit p / T
    inner = np.clip(old, SMALLEST, 1 - SMALLEST)
    std = new * (1 - new) / (temperature * inner * (1 - inner)) * p.std
    limited = np.minimum(std, np.sqrt(new * (1 - new)))
    # the parts shrink as the whole does, so that their squares still add up
    factor = np.divide(limited, p.std, out=np.zeros_like(std), where=p.std > 0)
    values = {"probability": new, "std": limited}
    if p.std_within is not None:
        values["std_within"] = factor * p.std_within
    if p.std_between is not None:
        values["std_between"] = factor * p.std_between
    if p.leave_one_out is not None:
        rows = p.leave_one_out.reshape(len(p.leave_one_out), -1).astype(np.float64)
        without = scale_probabilities(np.clip(old - rows, 0, 1), temperature=temperature)
        values["leave_one_out"] = (new - without).reshape(p.leave_one_out.shape)
    return replace(p, **{name: value.astype(np.float32) for name, value in values.items()})


def _logits(p: Float[np.ndarray, "*bags columns"]) -> Float[np.ndarray, "*bags classes"]:
    """Return log p of every class, whose softmax is p."""
    inner = np.clip(p.astype(np.float64), SMALLEST, 1 - SMALLEST)
    if p.shape[-1] == 1:
        inner = np.concatenate([1 - inner, inner], axis=-1)
    return np.log(inner)
