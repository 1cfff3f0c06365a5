"""A baseline without attention: a linear model of the mean of a bag's features.

It has the likelihood of the run, for whatever target. The validation bags choose its ridge penalty.
`probsa train` fits it, and stores its predictions with those of the run.
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
    trained = [p for p in likelihood.parameters() if p.requires_grad]
    optimizer = torch.optim.LBFGS(
        [*linear.parameters(), *trained],
        max_iter=200,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = linear(x)[:, None]  # with an axis of one sample, as likelihoods expect
        nll = likelihood.nll(logits, y).mean()
        penalised = nll + decay / 2 * linear.weight.square().sum()
        penalised.backward()
        return penalised

    optimizer.step(loss)
    return linear


def weigh_classes(likelihood: Likelihood, y: Tensor, *, columns: int) -> None:
    """Set the class weights of a likelihood so that every class counts equally in a fit.

    It is for runs with balanced sampling. Their likelihood corrects the probabilities for the class
    shares of the training bags; it then does so for the fit, too.
    """
    if isinstance(likelihood, Bernoulli | Categorical):
        likelihood.class_weights = torch.tensor(balanced_weights(y, columns)).double()


@dataclass(frozen=True, kw_only=True)
class MeanFeatures:
    """The fitted baseline; features are standardised over the means of the training bags."""

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
        """Write the predictions for bags with these mean features, by the name of the bag."""
        values = self.predict(torch.stack(list(means.values())))
        # two classes with one logit have a single column, the probability of the last class
        columns = self.likelihood.outputs(classes).names[-values.shape[1] :]
        rows = []
        for bag, bag_values in zip(means, values.tolist(), strict=True):
            rows.append({"bag": bag, **dict(zip(columns, bag_values, strict=True))})
        write_csv(predictions / MEAN_FEATURES, ["bag", *columns], rows)

    def save(self, path: Path) -> None:
        """Write the baseline, atomically."""
        tensors = {"mean": self.mean, "std": self.std}
        for name, part in (("linear", self.linear), ("likelihood", self.likelihood)):
            for key, value in part.state_dict().items():
                tensors[f"{name}.{key}"] = value
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
        fitted = _copy_of(likelihood)
        with damaged_state(path):
            for tensor in ("mean", "std", "linear.weight"):
                if tensor not in stored.tensors:
                    raise ValueError(f"there is no tensor {tensor!r}")
            weights = stored.part("linear")
            columns, width = weights["weight"].shape
            linear = nn.Linear(width, columns).double()
            linear.load_state_dict(weights)
            state = stored.part("likelihood")
            # with balanced sampling, only the fit has weights of classes, not the run's likelihood
            if "class_weights" not in fitted.state_dict():
                state.pop("class_weights", None)
            fitted.load_state_dict(state)
            mean = stored.tensors["mean"]
            std = stored.tensors["std"]
        return cls(mean=mean, std=std, linear=linear, likelihood=fitted)


def fit_mean_features(
    likelihood: Likelihood,
    *,
    train: tuple[Float[Tensor, "bags d"], Tensor],
    validation: tuple[Float[Tensor, "validated d"], Tensor] | None,
    columns: int,
) -> MeanFeatures:
    """Fit the baseline for each penalty, and return that with the lowest validation NLL.

    Args:
        likelihood: the likelihood of the run, which is not changed.
        train: mean features and targets of the training bags.
        validation: those of the validation bags; None if there are none.
        columns: number of logits.
    """
    x, y = train
    mean = x.mean(0)
    std = x.std(0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))

    def fit(ridge: float) -> MeanFeatures:
        fitted_likelihood = _copy_of(likelihood)
        z = (x - mean) / std
        linear = fit_linear(fitted_likelihood, z, y, columns=columns, decay=ridge)
        return MeanFeatures(mean=mean, std=std, linear=linear, likelihood=fitted_likelihood)

    if validation is None:
        return fit(RIDGES[len(RIDGES) // 2])
    x_val, y_val = validation
    best = None
    least = torch.inf
    for ridge in RIDGES:
        fitted = fit(ridge)
        with torch.no_grad():
            logits = fitted.linear((x_val - mean) / std)[:, None]
            nll = float(fitted.likelihood.nll(logits, y_val).mean())
        if best is None or nll < least:
            best = fitted
            least = nll
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
    """Fit the baseline of a run on its training part, and store it in the run folder."""

    def means_and_targets(names: Sequence[str]) -> tuple[Tensor, Tensor]:
        means = [np.asarray(read(name).features, np.float64).mean(0) for name in names]
        return torch.from_numpy(np.stack(means)), stack_targets(targets, names)

    model = predictor.model
    likelihood = _copy_of(model.likelihood)
    train = means_and_targets(split.train)
    if run.config().training.sampling == "balanced":
        weigh_classes(likelihood, train[1], columns=model.n_classes)
    fitted = fit_mean_features(
        likelihood,
        train=train,
        validation=means_and_targets(split.val) if split.val else None,
        columns=model.n_classes,
    )
    fitted.save(run.path / FILE)
    return fitted


def _copy_of(likelihood: Likelihood) -> Likelihood:
    return copy.deepcopy(likelihood).cpu().double()
