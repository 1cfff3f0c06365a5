"""The attention posterior as a layer, against the model of the paper with the same weights."""

import pytest
import torch
from support.made_bags import made_bags

from probsa import Bag, models, pack
from probsa.errors import InputError
from probsa.layers import ProbSAPooling
from probsa.variational import PosteriorOptions, PriorOptions

X, LABELS = made_bags(5)
BAGS = pack([Bag.from_arrays(x, c, k % 2, name=f"b{k}") for k, (x, c) in enumerate(X)])
OPTIONS = PosteriorOptions(samples=3, predict_samples=7)


@pytest.mark.parametrize("kind", ["dirac", "diag", "field"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_is_the_pooling_of_the_model(kind, reduction):
    model = models.build(
        f"abmil-probsa-{kind}",
        in_dim=6,
        embed=None,
        attention_dim=4,
        samples=3,
        predict_samples=7,
        kappa=2.0,
        ridge=0.1,
        kl_reduction=reduction,
        seed=3,
    )
    layer = ProbSAPooling(
        6,
        attention_dim=4,
        posterior=kind,
        options=OPTIONS,
        seed=3,
        prior=PriorOptions(kappa=2.0, ridge=0.1, kl_reduction=reduction),
    )
    layer.attention.load_state_dict(model.attention.state_dict())
    h = BAGS.x
    for train in (True, False):
        model.train(train), layer.train(train)
        draws = [torch.Generator().manual_seed(1) if train else None for _ in range(2)]
        with torch.set_grad_enabled(train):
            out = model(BAGS, generator=draws[0])
            pooled = layer(h, BAGS, generator=draws[1])
        logits = pooled.vectors @ model.classifier.weight.T + model.classifier.bias
        torch.testing.assert_close(logits, out.logits)
        torch.testing.assert_close(pooled.kl.mean(), model.losses(out, BAGS)["kl"])
        torch.testing.assert_close(pooled.attention.variance, out.attention.variance)
    torch.testing.assert_close(pooled.weight_mean, out.extras["weight_mean"])
    torch.testing.assert_close(pooled.weight_variance, out.extras["weight_variance"])


def test_the_prior_of_the_paper_has_no_ridge():
    layer = ProbSAPooling(6, attention_dim=4, prior=PriorOptions(ridge=0.0), options=OPTIONS)
    assert bool(layer(BAGS.x, BAGS).kl.isfinite().all())
    with pytest.raises(InputError, match="ridge"):
        ProbSAPooling(6, attention_dim=4, posterior="field", prior=PriorOptions(ridge=0.0))


def test_gradients_reach_instances_and_posterior():
    layer = ProbSAPooling(6, attention_dim=4, options=OPTIONS)
    h = BAGS.x.clone().requires_grad_()
    pooled = layer(h, BAGS)
    assert pooled.vectors.shape == (5, 3, 6)
    (pooled.vectors.square().sum() + pooled.kl.sum()).backward()
    for tensor in (h, *layer.parameters()):
        assert tensor.grad is not None and bool((tensor.grad != 0).any())
