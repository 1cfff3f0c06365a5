"""All steps of a deletion in closed form equal pooling the kept instances again."""

import pytest
import torch
from support.random_bags import F64

from probsa.errors import InputError
from probsa.layers import BagExplainer, recorded_pooling
from probsa.variational import Categorical, Independent, likelihood_of

N, SAMPLES = 9, 7


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def explained(f, g, *, likelihood, bias):
    """Explain one bag; f (samples, n) or per class (classes, samples, n), g (classes, n)."""
    explainer = BagExplainer(bias=bias, likelihood=likelihood)
    explainer.add(f, g)


def pooled_again(f, v, bias, likelihood, *, keep):
    """Pool some instances; f (samples, n) or per class (classes, samples, n), v like f."""
    if len(keep) == 0:
        return likelihood.probability(bias)
    f = f.expand(len(bias), -1, -1)[:, :, keep]
    return likelihood.probability((f.softmax(2) * v[:, :, keep]).sum(2).T + bias).mean(0)


@pytest.mark.parametrize("spread", [1.0, 30.0, 900.0])
@pytest.mark.parametrize("own", [False, True], ids=["shared attention", "attention per class"])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_every_step_is_pooling_what_is_left(classes, own, spread):
    bias, likelihood = drawn(classes, seed=1), likelihood_of(classes)
    f = spread * drawn(*([classes] if own else []), SAMPLES, N, seed=2)
    g = 2 * drawn(classes, N, seed=3)
    orders = torch.stack([torch.randperm(N, generator=torch.Generator().manual_seed(k))
                          for k in range(3)])  # fmt: skip
    with recorded_pooling(samples=SAMPLES) as records:
        explained(f, g, bias=bias, likelihood=likelihood)
    (record,) = records
    steps = list(range(N + 1))
    got = record.after_removal(orders, steps)
    assert got.shape == (2, 3, N + 1, classes)
    f_csn = f if own else f[None]
    v_csn = g[:, None].expand(-1, SAMPLES, -1)
    for k, order in enumerate(orders):
        for j in steps:
            for end, keep in enumerate((order[j:], order[: N - j])):
                want = pooled_again(f_csn, v_csn, bias, likelihood, keep=keep)
                torch.testing.assert_close(got[end, k, j], want, atol=1e-12, rtol=0)


def test_values_may_differ_between_samples_and_come_in_blocks():
    f, v, bias = drawn(3, 6, N, seed=1), drawn(3, 6, N, seed=2), drawn(3, seed=3)
    likelihood = Categorical()
    with recorded_pooling(samples=5) as records:
        explainer = BagExplainer(bias=bias, likelihood=likelihood)
        for rows in (slice(0, 4), slice(4, 6)):
            explainer.add(f[:, rows], v[:, rows])
    order = torch.arange(N).flip(0)
    got = records[0].after_removal(order[None], [0, 2, 8])
    for j, count in enumerate((0, 2, 8)):  # the sixth sample is not recorded
        want = pooled_again(f[:, :5], v[:, :5], bias, likelihood, keep=order[count:])
        torch.testing.assert_close(got[0, 0, j], want, atol=1e-12, rtol=0)


def test_labels_may_be_independent():
    f, g, bias = drawn(1, N, seed=1), drawn(3, N, seed=2), drawn(3, seed=3)
    with recorded_pooling(samples=1) as records:
        explained(f, g, bias=bias, likelihood=Independent())
    got = records[0].after_removal(torch.arange(N)[None], [4])[0, 0, 0]
    want = ((f[:, 4:].softmax(1) * g[:, 4:]).sum(1) + bias).sigmoid()
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


def test_there_is_one_record_a_bag_none_outside_and_impossible_counts_are_refused():
    f, g = drawn(2, N, seed=1), drawn(1, N, seed=2)
    one = {"bias": torch.zeros(1, dtype=F64), "likelihood": likelihood_of(1)}
    with recorded_pooling(samples=2) as records:
        explained(f, g, **one)
        explained(f[:, :4], g[:, :4], **one)
    explained(f, g, **one)
    assert len(records) == 2
    for counts in ([], [-1, 2], [3, 2], [0, N + 1]):
        with pytest.raises(InputError, match="expected ascending numbers from 0 to 9"):
            records[0].after_removal(torch.arange(N)[None], counts)
