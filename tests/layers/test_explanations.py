"""The closed form equals pooling again without the instance, and contributions sum to the logit."""

import pytest
import torch
from support.random_bags import F64

from probsa.layers import BagExplainer
from probsa.variational import Independent, likelihood_of

SIZES = (1, 2, 9)


def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def explained(f, v, *, bias, likelihood, offset=None, block=4):
    """Explain one bag in blocks; f and v are (*classes, samples, n), v also (classes, n)."""
    explainer = BagExplainer(bias=bias, likelihood=likelihood)
    for k in range(0, f.shape[-2], block):
        rows = slice(k, k + block)
        explainer.add(
            f[..., rows, :],
            v if v.ndim == 2 else v[:, rows],
            offset=None if offset is None else offset[rows],
        )
    return explainer


def by_removal(f, v, bias, likelihood, offset=0.0):
    """Pool a bag, and the bag without each instance; f and v are (classes, samples, n)."""

    def probability(keep):
        logits = (f[..., keep].softmax(-1) * v[..., keep]).sum(-1).T + bias + offset
        return likelihood.probability(logits).mean(0)

    n = f.shape[-1]
    whole = probability(torch.ones(n, dtype=torch.bool))
    return torch.stack([whole - probability(torch.arange(n) != k) for k in range(n)])


@pytest.mark.parametrize("spread", [1.0, 30.0, 900.0], ids="spread{}".format)
@pytest.mark.parametrize("own", [False, True], ids=["shared attention", "attention per class"])
@pytest.mark.parametrize("values", ["fixed", "per sample"])
@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 2e-6)])
def test_leaving_one_out_is_pooling_without_it(
    dtype, tolerance, samples, classes, values, own, spread
):
    bias, likelihood = drawn(classes, seed=1, dtype=dtype), likelihood_of(classes)
    for n in SIZES:
        f = spread * drawn(*([classes] if own else []), samples, n, seed=2, dtype=dtype)
        v = 2 * drawn(
            classes, *([samples] if values == "per sample" else []), n, seed=3, dtype=dtype
        )
        got = explained(f, v, bias=bias, likelihood=likelihood)
        full = f.double().expand(classes, -1, -1)
        each = (v if v.ndim == 3 else v[:, None]).double().expand(-1, samples, -1)
        want = by_removal(full, each, bias.double(), likelihood)
        assert (got.leave_one_out.double() - want).abs().max() < tolerance
        parts = (full.softmax(-1) * each).mean(1).T
        assert (got.contributions.double() - parts).abs().max() < 10 * tolerance


@pytest.mark.parametrize("kind", ["independent", 1, 2, 3])
def test_the_shift_of_the_classes_and_of_each_sample_are_part_of_the_probability(kind):
    classes = 3 if kind == "independent" else kind
    likelihood = Independent() if kind == "independent" else likelihood_of(classes)
    if kind != "independent":
        likelihood.prior_shift = torch.tensor([2.0, 0.0, -1.0], dtype=F64)[:classes]
    f, v, bias = drawn(4, 5, seed=1), drawn(classes, 5, seed=2), drawn(classes, seed=3)
    offset = drawn(4, classes, seed=4)
    got = explained(f, v, bias=bias, likelihood=likelihood, offset=offset)
    want = by_removal(f[None].expand(classes, -1, -1), v[:, None], bias, likelihood, offset)
    assert (got.leave_one_out - want).abs().max() < 1e-12


def test_many_samples_in_float32_keep_small_effects():
    """One of 3,000 instances changes the probability by 1e-4: float32 sums must not drown it."""
    f, v = drawn(400, 3000, seed=1), drawn(1, 3000, seed=2)
    one = {"likelihood": likelihood_of(1), "block": 40}
    got = explained(f.float(), v.float(), bias=torch.zeros(1), **one).leave_one_out
    want = explained(f.float().double(), v.float().double(), bias=torch.zeros(1).double(), **one)
    assert (got - want.leave_one_out).abs().max() < 0.002 * want.leave_one_out.abs().max()
