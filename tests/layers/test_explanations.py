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
    samples = f.shape[1]
    f = f.expand(len(bias), -1, -1)[..., keep]
    v = v.expand(-1, samples, -1)[..., keep]
    return likelihood.probability((f.softmax(-1) * v).sum(-1).T + bias).mean(0)


def by_removal(f, v, bias, likelihood):
    """Return what p(Y = c) loses without each instance."""
    whole = pooled(f, v, bias, likelihood)
    instances = torch.arange(f.shape[-1])
    rest = [pooled(f, v, bias, likelihood, keep=instances != n) for n in instances]
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
    bias = drawn(classes, seed=1, dtype=dtype)
    likelihood = likelihood_of(classes)
    for n in SIZES:
        f_shape = [classes, samples, n] if own else [samples, n]
        v_shape = [classes, samples, n] if values == "per sample" else [classes, n]
        f = spread * drawn(*f_shape, seed=2, dtype=dtype)
        v = 2 * drawn(*v_shape, seed=3, dtype=dtype)
        actual = explained(f, v, bias=bias, likelihood=likelihood)
        f_csn = f.double().expand(classes, -1, -1)
        v_csn = (v if v.ndim == 3 else v[:, None]).double()
        leave_one_out = by_removal(f_csn, v_csn, bias.double(), likelihood)
        assert (actual.leave_one_out.double() - leave_one_out).abs().max() < tolerance
        contributions = (f_csn.softmax(-1) * v_csn).mean(1).T
        assert (actual.contributions.double() - contributions).abs().max() < 10 * tolerance


@pytest.mark.parametrize("kind", ["independent", 1, 2, 3])
def test_the_shift_of_the_classes_is_part_of_the_probability(kind):
    if kind == "independent":
        classes = 3
        likelihood = Independent()
    else:
        classes = kind
        likelihood = likelihood_of(classes)
        likelihood.prior_shift = torch.tensor([2.0, 0.0, -1.0], dtype=F64)[:classes]
    f = drawn(4, 5, seed=1)
    v = drawn(classes, 5, seed=2)
    bias = drawn(classes, seed=3)
    actual = explained(f, v, bias=bias, likelihood=likelihood)
    want = by_removal(f[None], v[:, None], bias, likelihood)
    assert (actual.leave_one_out - want).abs().max() < 1e-12


def test_many_samples_in_float32_keep_small_effects():
    """One of 3,000 instances changes the probability by 1e-4: float32 sums must not drown it."""
    f = drawn(400, 3000, seed=1).float()
    v = drawn(1, 3000, seed=2).float()
    bias = torch.zeros(1)
    options = {"likelihood": likelihood_of(1), "block": 40}
    actual = explained(f, v, bias=bias, **options).leave_one_out
    expected = explained(f.double(), v.double(), bias=bias.double(), **options).leave_one_out
    assert (actual - expected).abs().max() < 0.002 * expected.abs().max()


@SPREADS
@OWN
@pytest.mark.parametrize(
    ("classes", "likelihood"),
    [(3, Independent()), *((classes, likelihood_of(classes)) for classes in (1, 2, 4))],
    ids=["independent", "1", "2", "4"],
)
def test_every_step_of_a_deletion_is_pooling_what_is_left(classes, likelihood, own, spread):
    n = 9
    samples = 7
    bias = drawn(classes, seed=1)
    g = 2 * drawn(classes, n, seed=3)
    f_shape = [classes, samples, n] if own else [samples, n]
    f = spread * drawn(*f_shape, seed=2)
    orders = torch.stack([drawn(n, seed=k).argsort() for k in range(3)])
    with recorded_pooling(samples=samples) as records:
        explained(f, g, bias=bias, likelihood=likelihood)
    steps = list(range(n + 1))
    actual = records[0].after_removal(orders, steps)
    assert actual.shape == (2, 3, n + 1, classes)
    f_csn = f if own else f[None]
    for k, order in enumerate(orders):
        for j in steps:
            for end, keep in enumerate((order[j:], order[: n - j])):
                want = pooled(f_csn, g[:, None], bias, likelihood, keep=keep)
                torch.testing.assert_close(actual[end, k, j], want, atol=1e-12, rtol=0)


def test_values_of_each_sample_come_in_blocks_up_to_the_number_that_is_recorded():
    f = drawn(3, 6, 9, seed=1)
    v = drawn(3, 6, 9, seed=2)
    bias = drawn(3, seed=3)
    with recorded_pooling(samples=5) as records:
        explained(f, v, bias=bias, likelihood=likelihood_of(3))
    order = torch.arange(9).flip(0)
    actual = records[0].after_removal(order[None], [0, 2, 8])
    for j, count in enumerate((0, 2, 8)):  # the sixth sample is not recorded
        want = pooled(f[:, :5], v[:, :5], bias, likelihood_of(3), keep=order[count:])
        torch.testing.assert_close(actual[0, 0, j], want, atol=1e-12, rtol=0)


def test_there_is_one_record_a_bag_none_outside_and_impossible_counts_are_refused():
    f = drawn(2, 9, seed=1)
    g = drawn(1, 9, seed=2)
    options = {"bias": torch.zeros(1, dtype=F64), "likelihood": likelihood_of(1)}
    with recorded_pooling(samples=2) as records:
        explained(f, g, **options)
        explained(f[:, :4], g[:, :4], **options)
    explained(f, g, **options)
    assert len(records) == 2
    for counts in ([], [-1, 2], [3, 2], [0, 10]):
        with pytest.raises(InputError, match="counts"):
            records[0].after_removal(torch.arange(9)[None], counts)
