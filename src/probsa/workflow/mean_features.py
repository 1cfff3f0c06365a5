"""The rival of every target that looks at images without attention: the mean of the features.

Its logits are linear in the mean features of a bag, with the likelihood of the run. The validation
bags choose its ridge penalty. `probsa train` fits it, and stores its predictions with the run's.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import StoredBag, write_csv
from ..datasets import Split
from ..evaluation import MEAN_FEATURES, Predictor
from ..tasks import Target
from ..training import RunFolder, damaged_state, load_checkpoint, save_checkpoint, stack_targets
from ..variational import Bernoulli, Categorical, Likelihood, balanced_weights

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""The penalties among which the validation bags choose; without them it is the middle one."""
FILE = "mean_features.safetensors"


def fit_linear(
    likelihood: Likelihood, x: Float[Tensor, "bags d"], y: Tensor, *, columns: int, decay: float
) -> nn.Linear:
    """Minimise the mean negative log-likelihood with a ridge penalty on the coefficients.

    The parameters of the likelihood are fitted too.

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
        max_iter=200,
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
    return linear


def weigh_classes(likelihood: Likelihood, y: Tensor, *, columns: int) -> None:
    """Weigh the classes as balanced sampling does, so that a fit sees every class equally often.

    The likelihood of the run moves the probabilities back to the prior, those of the fit as well.
    """
    if isinstance(likelihood, Bernoulli | Categorical):
        likelihood.class_weights = torch.tensor(balanced_weights(y, columns)).double()


@dataclass(frozen=True, kw_only=True)
class MeanFeatures:
    """The fitted rival; features are standardised over the means of the training bags."""

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    linear: nn.Linear
    likelihood: Likelihood

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "bags d"]) -> Float[np.ndarray, "bags outputs"]:
        """Return the predicted columns of bags with these mean features."""
        logits = self.linear((x - self.mean) / self.std)
        return self.likelihood.predict(logits[:, None]).values.numpy()

    def write(
        self, predictions: Path, means: Mapping[str, Float[Tensor, " d"]], *, classes: Sequence[str]
    ) -> None:
        """Write what it predicts for bags with these mean features."""
        values = self.predict(torch.stack(list(means.values())))
        # one logit: the last class
        columns = self.likelihood.outputs(classes).names[-values.shape[1] :]
        rows = [
            {"bag": bag, **dict(zip(columns, row, strict=True))}
            for bag, row in zip(means, values.tolist(), strict=True)
        ]
        write_csv(predictions / MEAN_FEATURES, ["bag", *columns], rows)

    def save(self, path: Path) -> None:
        """Write the rival, atomically."""
        tensors = {"mean": self.mean, "std": self.std}
        tensors |= {f"linear.{k}": v for k, v in self.linear.state_dict().items()}
        tensors |= {f"likelihood.{k}": v for k, v in self.likelihood.state_dict().items()}
        save_checkpoint(path, tensors, metadata={})

    @classmethod
    def load(cls, path: Path, *, likelihood: Likelihood) -> "MeanFeatures":
        """Read what `save` wrote.

        Args:
            path: the file.
            likelihood: a likelihood of the same run, which is not changed.

        Raises:
            CheckpointError: the file is damaged.
        """
        stored = load_checkpoint(path)
        own = _copy_of(likelihood)
        with damaged_state(path):
            for tensor in ("mean", "std", "linear.weight"):
                if tensor not in stored.tensors:
                    raise ValueError(f"there is no tensor {tensor!r}")
            weights = stored.part("linear")
            columns, width = weights["weight"].shape
            linear = nn.Linear(width, columns).double()
            linear.load_state_dict(weights)
            state = stored.part("likelihood")
            if "class_weights" not in own.state_dict():  # balanced sampling weighs only the fit
                state.pop("class_weights", None)
            own.load_state_dict(state)
            mean, std = stored.tensors["mean"], stored.tensors["std"]
        return cls(mean=mean, std=std, linear=linear, likelihood=own)


def fit_mean_features(
    likelihood: Likelihood,
    *,
    train: tuple[Float[Tensor, "bags d"], Tensor],
    validation: tuple[Float[Tensor, "validated d"], Tensor] | None,
    columns: int,
) -> MeanFeatures:
    """Fit the rival for each penalty, and return that with the lowest validation NLL.

    Args:
        likelihood: the likelihood of the run, which is not changed.
        train: mean features and targets of the training bags.
        validation: those of the validation bags; None if there are none.
        columns: number of logits.
    """
    mean, std = train[0].mean(0), train[0].std(0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    best, least = None, torch.inf
    for ridge in RIDGES if validation is not None else (RIDGES[len(RIDGES) // 2],):
        own = _copy_of(likelihood)
        linear = fit_linear(own, (train[0] - mean) / std, train[1], columns=columns, decay=ridge)
        value = 0.0
        if validation is not None:
            with torch.no_grad():
                logits = linear((validation[0] - mean) / std)[:, None]
                value = float(own.nll(logits, validation[1]).mean())
        if best is None or value < least:
            best, least = MeanFeatures(mean=mean, std=std, linear=linear, likelihood=own), value
    assert best is not None
    return best


def fit_run_means(
    run: RunFolder,
    predictor: Predictor,
    *,
    read: Callable[[str], StoredBag],
    split: Split,
    targets: Mapping[str, Target],
) -> MeanFeatures:
    """Fit the rival of a run on its training part, and store it in the run folder."""

    def of(names: Sequence[str]) -> tuple[Tensor, Tensor]:
        means = [np.asarray(read(name).features, np.float64).mean(0) for name in names]
        return torch.from_numpy(np.stack(means)), stack_targets(targets, names)

    model = predictor.model
    likelihood, train = _copy_of(model.likelihood), of(split.train)
    if run.config().training.sampling == "balanced":
        weigh_classes(likelihood, train[1], columns=model.n_classes)
    fitted = fit_mean_features(
        likelihood,
        train=train,
        validation=of(split.val) if split.val else None,
        columns=model.n_classes,
    )
    fitted.save(run.path / FILE)
    return fitted


def _copy_of(likelihood: Likelihood) -> Likelihood:
    return copy.deepcopy(likelihood).cpu().double()
