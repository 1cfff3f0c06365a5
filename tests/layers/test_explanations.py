"""The closed forms equal pooling again without instances, and contributions sum to the logit."""

import pytest
import torch
from support.random_bags import F64

from probsa.errors import InputError
from probsa.layers import BagExplainer, recorded_pooling
from probsa.variational import Independent, likelihood_of

SIZES = (1, 2, 9)
SPREADS = pytest.mark.parametrize("spread", [1.0, 30.0, 900.0], ids="spread{}".format)
OWN = pytest.mark.parametrize("own", [False, True], ids=["shared attention", "per class"])


def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def explained(f, v, *, bias, likelihood, block=4):
    """Explain one bag in blocks; f and v are (*classes, samples, n), v also (classes, n)."""
    explainer = BagExplainer(bias=bias, likelihood=likelihood)
    for k in range(0, f.shape[-2], block):
        rows = slice(k, k + block)
        explainer.add(f[..., rows, :], v if v.ndim == 2 else v[:, rows])
    return explainer


def pooled(f, v, bias, likelihood, *, keep=slice(None)):
    """Return p(Y = c) of the kept instances; f and v are (classes, samples, n)."""
    f, v = f.expand(len(bias), -1, -1)[..., keep], v.expand(-1, f.shape[1], -1)[..., keep]
    return likelihood.probability((f.softmax(-1) * v).sum(-1).T + bias).mean(0)


def by_removal(f, v, bias, likelihood):
    """Return what p(Y = c) loses without each instance."""
    whole = pooled(f, v, bias, likelihood)
    every = torch.arange(f.shape[-1])
    rest = [pooled(f, v, bias, likelihood, keep=every != k) for k in every]
    return whole - torch.stack(rest)


@SPREADS
@OWN
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
        of_values = [classes, samples, n] if values == "per sample" else [classes, n]
        v = 2 * drawn(*of_values, seed=3, dtype=dtype)
        got = explained(f, v, bias=bias, likelihood=likelihood)
        full = f.double().expand(classes, -1, -1)
        each = (v if v.ndim == 3 else v[:, None]).double()
        want = by_removal(full, each, bias.double(), likelihood)
        assert (got.leave_one_out.double() - want).abs().max() < tolerance
        parts = (full.softmax(-1) * each).mean(1).T
        assert (got.contributions.double() - parts).abs().max() < 10 * tolerance


@pytest.mark.parametrize("kind", ["independent", 1, 2, 3])
def test_the_shift_of_the_classes_is_part_of_the_probability(kind):
    classes = 3 if kind == "independent" else kind
    likelihood = Independent() if kind == "independent" else likelihood_of(classes)
    if kind != "independent":
        likelihood.prior_shift = torch.tensor([2.0, 0.0, -1.0], dtype=F64)[:classes]
    f, v, bias = drawn(4, 5, seed=1), drawn(classes, 5, seed=2), drawn(classes, seed=3)
    got = explained(f, v, bias=bias, likelihood=likelihood)
    want = by_removal(f[None], v[:, None], bias, likelihood)
    assert (got.leave_one_out - want).abs().max() < 1e-12


def test_many_samples_in_float32_keep_small_effects():
    """One of 3,000 instances changes the probability by 1e-4: float32 sums must not drown it."""
    f, v = drawn(400, 3000, seed=1), drawn(1, 3000, seed=2)
    one = {"likelihood": likelihood_of(1), "block": 40}
    got = explained(f.float(), v.float(), bias=torch.zeros(1), **one).leave_one_out
    want = explained(f.float().double(), v.float().double(), bias=torch.zeros(1).double(), **one)
    assert (got - want.leave_one_out).abs().max() < 0.002 * want.leave_one_out.abs().max()


@SPREADS
@OWN
@pytest.mark.parametrize("classes", ["independent", 1, 2, 4])
def test_every_step_of_a_deletion_is_pooling_what_is_left(classes, own, spread):
    likelihood = Independent() if classes == "independent" else likelihood_of(classes)
    n, samples, classes = 9, 7, 3 if classes == "independent" else classes
    bias, g = drawn(classes, seed=1), 2 * drawn(classes, n, seed=3)
    f = spread * drawn(*([classes] if own else []), samples, n, seed=2)
    orders = torch.stack([drawn(n, seed=k).argsort() for k in range(3)])
    with recorded_pooling(samples=samples) as records:
        explained(f, g, bias=bias, likelihood=likelihood)
    steps = list(range(n + 1))
    got = records[0].after_removal(orders, steps)
    assert got.shape == (2, 3, n + 1, classes)
    of_classes = f if own else f[None]
    for k, order in enumerate(orders):
        for j in steps:
            for end, keep in enumerate((order[j:], order[: n - j])):
                want = pooled(of_classes, g[:, None], bias, likelihood, keep=keep)
                torch.testing.assert_close(got[end, k, j], want, atol=1e-12, rtol=0)


def test_values_of_each_sample_come_in_blocks_up_to_the_number_that_is_recorded():
    f, v, bias = drawn(3, 6, 9, seed=1), drawn(3, 6, 9, seed=2), drawn(3, seed=3)
    with recorded_pooling(samples=5) as records:
        explained(f, v, bias=bias, likelihood=likelihood_of(3))
    order = torch.arange(9).flip(0)
    got = records[0].after_removal(order[None], [0, 2, 8])
    for j, count in enumerate((0, 2, 8)):  # the sixth sample is not recorded
        want = pooled(f[:, :5], v[:, :5], bias, likelihood_of(3), keep=order[count:])
        torch.testing.assert_close(got[0, 0, j], want, atol=1e-12, rtol=0)


def test_there_is_one_record_a_bag_none_outside_and_impossible_counts_are_refused():
    f, g = drawn(2, 9, seed=1), drawn(1, 9, seed=2)
    one = {"bias": torch.zeros(1, dtype=F64), "likelihood": likelihood_of(1)}
    with recorded_pooling(samples=2) as records:
        explained(f, g, **one)
        explained(f[:, :4], g[:, :4], **one)
    explained(f, g, **one)
    assert len(records) == 2
    for counts in ([], [-1, 2], [3, 2], [0, 10]):
        with pytest.raises(InputError, match="counts"):
            records[0].after_removal(torch.arange(9)[None], counts)
