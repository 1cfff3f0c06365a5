"""Logistic regressions as models of bags: on mean features, and on single instances.

They are the simplest rivals of any pooling network. Scikit-learn fits them in one go (`fit_bags`),
with C chosen by the NLL of the validation bags; no gradient step is taken.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core import (
    Bag,
    Bags,
    ClassCount,
    FeatureCount,
    NonNegativeFloat,
    Seed,
    segment_mean,
    without_autocast,
)
from ..errors import InputError
from ..variational import Dirac
from ._base import Model, Output, Provenance, ScoreKind
from ._explanation import explain_pooling
from ._logistic import BagFeatures, FeatureSums, FitOn, fit_logistic, sample_size
from ._registry import register


class LinearModel(Model):
    """A linear score of standardised features; a bag's logit is the mean of its instances' scores.

    The score of instance n for class c is f_nc = w_cᵀ (x_n - mean) / deviation + b_c.
    """

    score_kind: ClassVar[ScoreKind] = "evidence"
    fits_directly = True
    needs_classes = True
    fit_on: ClassVar[FitOn]
    """What the regression is fitted on."""

    mean: Tensor
    deviation: Tensor
    c: Tensor

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.linear = nn.Linear(in_dim, n_classes)
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("deviation", torch.ones(in_dim))
        self.register_buffer("c", torch.ones(1))

    @torch.no_grad()
    def fit_bags(self, train: Collection[Bag], validation: Collection[Bag]) -> None:
        """Fit the weights; each bag is read once."""
        per_bag = sample_size(len(train)) if self.fit_on == "instances" else 0
        features = _collect_features(train, per_bag=per_bag, seed=self.seed)
        weights = self.likelihood.class_weights
        fit = fit_logistic(
            features,
            _collect_features(validation) if len(validation) else None,
            on=self.fit_on,
            classes=max(2, self.n_classes),
            class_weights=None if weights is None else weights.double().numpy(),
        )
        weight = fit.weight
        bias = fit.bias
        if self.n_classes == 2:  # two logits whose difference is that of the regression
            weight = np.concatenate([-weight, weight]) / 2
            bias = np.concatenate([-bias, bias]) / 2
        self.linear.weight.copy_(torch.from_numpy(weight))
        self.linear.bias.copy_(torch.from_numpy(bias))
        self.mean.copy_(torch.from_numpy(features.mean))
        self.deviation.copy_(torch.from_numpy(features.deviation))
        self.c.fill_(fit.c)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        with without_autocast(bags.x):
            z = (bags.x - self.mean) / self.deviation
            g = nn.functional.linear(z, self.linear.weight)
            scores = g + self.linear.bias
            logits = segment_mean(scores, bags.sizes)[:, None]
        explanation = None
        likelihood = self.likelihood
        if self.explains and not self.training and not torch.is_grad_enabled():
            # the mean is attention pooling with equal logits
            f = g.new_zeros(1, len(g))
            bias = self.linear.bias
            explanation = explain_pooling(f, g, bags.sizes, bias=bias, likelihood=likelihood)
            explanation = replace(explanation, probability=likelihood.probability(scores))
        instance_scores = scores[:, 0] if self.n_classes == 1 else scores
        weight = torch.ones_like(scores) / bags.segments.counts[bags.bag, None]
        weight = weight.view_as(instance_scores)
        return Output(
            logits=logits,
            attention=Dirac(instance_scores),
            likelihood=likelihood,
            extras={"weight_mean": weight, "weight_variance": torch.zeros_like(weight)},
            explanation=explanation,
        )

    def monitored(self) -> dict[str, float]:
        # a power of ten, without the digits that float32 adds
        return {"C": round(float(self.c), 6)}


@register("mean-pool")
class MeanPool(LinearModel):
    """Logistic regression on the mean features of a bag."""

    fit_on = "means"
    provenance = Provenance(
        paper="none; a plain rival, `embedding level, mean` in Ilse, Tomczak & Welling, ICML 2018, "
        "arXiv:1802.04712, without their network",
        follows_paper="The mean of the instances, classified.",
        follows_code="Written for this package.",
        fair="Not part of it. C is the one of 10⁻⁴, …, 10² with the lowest NLL of the "
        "validation bags (1 without any).",
    )


@register("instance-lr")
class InstanceRegression(LinearModel):
    """Logistic regression on single instances with their bag's label; each bag has weight 1.

    At most 200 instances of a training bag, and 20,000 of all of them, are used for the fit.

    Args:
        seed: seed of the sample of instances.
    """

    fit_on = "instances"
    provenance = Provenance(
        paper="none; a plain rival, known as single-instance learning: Ray & Craven, Supervised "
        "versus multiple instance learning, ICML 2005, https://doi.org/10.1145/1102351.1102439",
        follows_paper="Each instance has the label of its bag; here a bag has the mean of its "
        "instances' logits.",
        follows_code="Written for this package.",
        fair="Not part of it. C as for `mean-pool`.",
    )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        scores = out.attention.mean.view(len(bags.x), 1, -1)
        nll = self.likelihood.nll(scores, self.labels(bags)[bags.bag])
        return {"nll": segment_mean(nll, bags.sizes).mean()}


def _collect_features(bags: Collection[Bag], *, per_bag: int = 0, seed: int = 0) -> BagFeatures:
    """Return what a fit needs of some bags, which are read one after another."""
    sums = FeatureSums(per_bag=per_bag, seed=seed)
    for bag in bags:
        if bag.y is None:
            raise InputError(f"bag {bag.name!r} has no label: it can be predicted, not trained on")
        sums.add(bag.name, bag.x.numpy(), y=int(bag.y))
    return sums.result()
