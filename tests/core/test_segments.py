"""Each reduction equals an explicit loop over bags, in value and in gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.as_on_a_gpu import GpuLike, as_on_a_gpu

from probsa.core import (
    Segments,
    segment_argmax,
    segment_max,
    segment_mean,
    segment_softmax,
    segment_sum,
    segment_topk,
)

F64 = torch.float64
REDUCTIONS = {
    "sum": (segment_sum, lambda v: v.sum(0)),
    "mean": (segment_mean, lambda v: v.mean(0)),
    "max": (segment_max, lambda v: v.max(0).values),
}
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=7)


def values(n, *trailing, seed=0):
    return torch.randn(n, *trailing, generator=torch.Generator().manual_seed(seed), dtype=F64)


def by_loop(reduce, v, sizes):
    return torch.stack([reduce(part) for part in v.split(list(sizes))])


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
@settings(deadline=None, derandomize=True, max_examples=25)
@given(sizes=SIZES, seed=st.integers(0, 99))
def test_a_reduction_is_the_loop_over_bags(name, trailing, sizes, seed):
    ours, plain = REDUCTIONS[name]
    v = values(sum(sizes), *trailing, seed=seed)
    torch.testing.assert_close(ours(v, sizes), by_loop(plain, v, sizes), rtol=1e-13, atol=1e-13)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(sizes=SIZES, columns=st.integers(1, 3), seed=st.integers(0, 99))
def test_softmax_is_the_loop_over_bags(sizes, columns, seed):
    v = values(sum(sizes), columns, seed=seed)
    parts = [part.exp() / part.exp().sum(0) for part in v.split(sizes)]
    torch.testing.assert_close(segment_softmax(v, sizes), torch.cat(parts), rtol=1e-13, atol=1e-15)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(sizes=SIZES, k=st.integers(1, 12), largest=st.booleans(), seed=st.integers(0, 99))
def test_topk_names_rows_of_the_packed_tensor_best_first(sizes, k, largest, seed):
    v = values(sum(sizes), seed=seed)
    start = 0
    for size, rows in zip(sizes, segment_topk(v, sizes, k=k, largest=largest), strict=True):
        ranked = sorted(range(start, start + size), key=lambda r: float(v[r]), reverse=largest)
        assert rows.tolist() == ranked[:k]
        start += size


@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
@settings(deadline=None, derandomize=True, max_examples=25)
@given(sizes=SIZES, seed=st.integers(0, 99))
def test_argmax_names_the_row_of_the_packed_tensor(trailing, sizes, seed):
    v = values(sum(sizes), *trailing, seed=seed).round()  # so that there are ties
    argmax = segment_argmax(v, sizes)
    start = 0
    for bag, rows in zip(v.split(sizes), argmax, strict=True):
        assert torch.equal(rows, bag.argmax(0) + start)
        start += len(bag)


@pytest.mark.parametrize("name", [*REDUCTIONS, "softmax"])
def test_gradients_agree_with_finite_differences(name):
    ours = segment_softmax if name == "softmax" else REDUCTIONS[name][0]
    v = values(11, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ours(t, (1, 7, 3)), (v,))
    assert torch.autograd.gradgradcheck(lambda t: ours(t, (1, 7, 3)), (v,))


def test_empty_batches_and_segments_and_ties():
    v = torch.zeros(0, 3, requires_grad=True)
    for ours in (segment_sum, segment_mean, segment_max, segment_softmax):
        result = ours(v, ())
        assert result.shape == (0, 3)
        result.sum().backward()
    assert segment_topk(v[:, 0], (), k=2) == []
    assert segment_argmax(v, ()).shape[0] == 0
    assert Segments.of(()).bag.tolist() == []
    v = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    result = segment_sum(v, (0, 2, 0, 1))
    assert result.tolist() == [0, 3, 0, 4]
    (result * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert v.grad.tolist() == [2, 2, 4]
    v = torch.tensor([2.0, 1.0, 2.0, 5.0], requires_grad=True)
    segment_max(v, (3, 1)).sum().backward()
    assert v.grad.tolist() == [0.5, 0.0, 0.5, 1.0]
    assert Segments.of((2, 1, 3)).bag.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("name", [*REDUCTIONS, "softmax", "argmax"])
@pytest.mark.parametrize("trailing", [(), (3,)])
@pytest.mark.parametrize("shift", [0, 1e4, -1e4])  # whose exponentials overflow or vanish
def test_the_code_for_gpus_is_the_same_function(name, trailing, shift):
    ours = {"softmax": segment_softmax, "argmax": segment_argmax}.get(name)
    ours = ours or REDUCTIONS[name][0]
    sizes = (1, 7, 3, 1)
    v = values(12, *trailing) + shift
    if name == "argmax":
        v = v.round()  # so that there are ties
    on_cpu, on_gpu = (v.clone().requires_grad_() for _ in range(2))
    want = ours(on_cpu, sizes)
    actual = ours(as_on_a_gpu(on_gpu), sizes)
    assert isinstance(actual, GpuLike)
    torch.testing.assert_close(actual.as_subclass(torch.Tensor), want, rtol=1e-13, atol=1e-15)
    if name != "argmax":
        weights = values(*want.shape, seed=1)
        (want * weights).sum().backward()
        (actual * weights).sum().backward()
        torch.testing.assert_close(on_gpu.grad, on_cpu.grad, rtol=1e-12, atol=1e-14)
