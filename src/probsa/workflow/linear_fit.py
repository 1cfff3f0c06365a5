"""Linear rivals of a model: its likelihood, with logits that are linear in a vector of each bag."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..variational import Cox, Likelihood

STEPS = 200
"""Largest number of steps of a fit."""


def fit_linear(
    likelihood: Likelihood, x: Float[Tensor, "bags d"], y: Tensor, *, columns: int, decay: float
) -> nn.Linear:
    """Minimise the mean negative log-likelihood with a ridge penalty on the coefficients.

    The parameters of the likelihood are fitted too, and the baseline of Cox is set.

    Args:
        likelihood: a likelihood in float64, which is changed.
        x: a vector for each training bag, in float64.
        y: their targets.
        columns: number of logits.
        decay: the penalty is decay / 2 times the sum of the squared coefficients.
    """
    linear = nn.Linear(x.shape[1], columns).double()
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    parameters = [*linear.parameters(), *(p for p in likelihood.parameters() if p.requires_grad)]
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=STEPS,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = likelihood.nll(linear(x)[:, None], y).mean()
        value = value + decay / 2 * linear.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    if isinstance(likelihood, Cox):
        with torch.no_grad():
            likelihood.set_baseline(linear(x)[:, 0].exp(), y)
    return linear
