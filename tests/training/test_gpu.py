"""Results on a GPU equal those on a CPU. Skipped on machines without a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.made_runs import PROBSA, Breaker, Stopped, history_of, make_config, with_training
from support.random_bags import random_bag

from probsa import load, models, pack
from probsa.core import Bag, segments
from probsa.datasets import open_bags
from probsa.errors import InputError
from probsa.features import build
from probsa.features.resnet import ResNet
from probsa.layers.transformer import bag_attention
from probsa.training import load_checkpoint, residency, train
from probsa.training.loop import TrainingLoop

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
SIZES = [1, 7, 300]
SAMPLES = 32
"""Two blocks of 16, in which a GPU draws."""
TERMS = {"guidance": "normal"}
VARIANTS = [
    *((name, {}) for name in models.names() if "embed" in models.arguments(name)),
    ("abmil", TERMS),
    ("evidence-field", {**TERMS, "negatives": 1.0, "level": 0.3}),
    ("evidence-diag", {"n_classes": 3, "level": (0.1, 0.0, 0.2)}),
]


@pytest.fixture
def drawn_on_the_cpu(monkeypatch):
    """Let all devices draw the same numbers; otherwise, each has a stream of its own.

    A generator of a GPU has a twin on the CPU, so that further draws continue. Draws of several
    blocks are those of one where each block has 16 rows.
    """
    normal = torch.Tensor.normal_
    twins: dict[int, tuple[torch.Generator, torch.Generator]] = {}

    def same_signs(z, p):
        stream = torch.Generator().manual_seed(0)
        return z.copy_(torch.bernoulli(torch.full(z.shape, p), generator=stream))

    def same_noise(z, mean=0.0, std=1.0, *, generator=None):
        stream = generator
        if generator is not None and generator.device.type != "cpu":
            twin = torch.Generator().manual_seed(generator.initial_seed())
            stream = twins.setdefault(id(generator), (generator, twin))[1]
        return z.copy_(normal(torch.empty(z.shape, dtype=z.dtype), mean, std, generator=stream))

    def same_counted(seeds, sizes, samples, *, first, like):
        parts = []
        for seed, n in zip(seeds, sizes, strict=True):
            stream = torch.Generator().manual_seed(seed)
            drawn = normal(torch.empty(first + samples, n, dtype=like.dtype), generator=stream)
            parts.append(drawn[first:])
        return torch.cat(parts, 1).to(like.device)

    monkeypatch.setattr(torch.Tensor, "bernoulli_", same_signs)
    monkeypatch.setattr(torch.Tensor, "normal_", same_noise)
    monkeypatch.setattr("probsa.variational.posteriors.counted_normal", same_counted)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "argmax", "softmax"])
def test_segments(reduce):
    v = torch.randn(sum(SIZES), 3, dtype=torch.float64)
    function = getattr(segments, f"segment_{reduce}")
    torch.testing.assert_close(function(v.cuda(), SIZES).cpu(), function(v, SIZES))


@pytest.mark.usefixtures("drawn_on_the_cpu")
@pytest.mark.parametrize(
    ("name", "arguments"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v)
)
def test_models_and_gradients(name, arguments):
    bag_list = []
    for n in SIZES:
        bag = random_bag(n, seed=n, features=6, dtype=torch.float32, y=n % 2)
        bag_list.append(replace(bag, coords=torch.arange(n, dtype=torch.float32)[:, None]))
    bags = pack(bag_list)
    noise = torch.randn(sum(SIZES), 16)
    torch.manual_seed(0)
    cpu_model = models.build(name, in_dim=6, embed=16, **arguments)
    gpu_model = models.build(name, in_dim=6, embed=16, **arguments).cuda()
    gpu_model.load_state_dict(cpu_model.state_dict())
    for model, b, eps in ((cpu_model, bags, noise), (gpu_model, bags.to("cuda"), noise.cuda())):
        out = model(b, noise=eps)
        sum(model.losses(out, b).values()).backward()
    for (key, a), b in zip(cpu_model.named_parameters(), gpu_model.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), key
        if a.grad is not None:
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-5, msg=key)


@pytest.mark.parametrize("width", [32, 64])
def test_variable_length_attention_is_the_loop(width):
    qkv = torch.randn(sum(SIZES), 3, 4, width)
    fast = bag_attention(qkv.cuda().bfloat16(), SIZES).float().cpu()
    torch.testing.assert_close(fast, bag_attention(qkv, SIZES), rtol=0.02, atol=0.02)


def test_variable_length_attention_has_the_gradient_of_the_loop():
    qkv = torch.randn(sum(SIZES), 3, 4, 64)
    weight = torch.randn(sum(SIZES), 4, 64)
    gradients = []
    for moved in (qkv.clone(), qkv.cuda().bfloat16()):
        moved.requires_grad_()
        out = bag_attention(moved, SIZES).view(sum(SIZES), 4, 64)
        (out.float() * weight.to(out.device)).sum().backward()
        gradients.append(moved.grad.float().cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("drawn_on_the_cpu")
@pytest.mark.parametrize("model", ["abmil", "evidence-field", "tabmil-probsa-diag"])
def test_a_run_trains_on_the_gpu_as_on_the_cpu(tmp_path, model):
    config = make_config(tmp_path / "data", model=model, epochs=2)
    losses = []
    for device in ("cpu", "cuda"):
        run = train(with_training(config, device=device), tmp_path / device)
        losses.append([row["loss"] for row in history_of(run)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


def test_an_interrupted_run_goes_on_on_the_gpu(tmp_path):
    config = make_config(
        tmp_path / "data", model="abmil", device="cuda", epochs=4, select="ema-nll"
    )
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(config, tmp_path / "broken", reporter=Breaker(5))
    broken = train(config, tmp_path / "broken", resume=True)
    a, b = (load_checkpoint(run.last).part("model") for run in (whole, broken))
    for key, value in a.items():
        torch.testing.assert_close(b[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_bfloat16_trains_on_the_gpu(tmp_path):
    config = make_config(tmp_path / "data", device="cuda", epochs=2, precision="bf16")
    run = train(config, tmp_path / "run")
    assert load_checkpoint(run.last).metadata["progress"]["epoch"] == 2
    assert all(v.isfinite().all() for v in load_checkpoint(run.last).part("model").values())


def predictions_of_both(folder, model, **arguments):
    arguments = {} if model == "abmil" else {**PROBSA, "predict_samples": SAMPLES, **arguments}
    config = make_config(folder / "data", model=model, model_arguments=arguments, epochs=2)
    run = train(config, folder / "run")
    stored = open_bags(folder / "data" / "features")
    bags = [stored.bag(name) for name in stored.names]
    on_cpu = load(run.path, device="cpu").predict(bags)
    on_gpu = load(run.path, device="cuda").predict(bags)
    return list(zip(on_cpu, on_gpu, strict=True))


def assert_equal_predictions(pairs):
    for cpu, gpu in pairs:
        np.testing.assert_allclose(gpu.probability, cpu.probability, atol=1e-5)
        np.testing.assert_allclose(gpu.std, cpu.std, atol=1e-5)
        np.testing.assert_allclose(gpu.attention_mean, cpu.attention_mean, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("drawn_on_the_cpu")
@pytest.mark.parametrize("model", ["abmil", "evidence-field", "abmil-probsa-diag"])
def test_predictions_from_the_same_draws_are_equal(tmp_path, model):
    assert_equal_predictions(predictions_of_both(tmp_path, model))


def test_draws_of_devices_differ_by_the_error_of_sampling(tmp_path):
    for cpu, gpu in predictions_of_both(tmp_path, "abmil-probsa-diag"):
        error = cpu.std * (2 / SAMPLES) ** 0.5
        assert np.all(np.abs(gpu.probability - cpu.probability) < 5 * error)
        assert np.any(gpu.probability != cpu.probability)


def test_features_do_not_depend_on_the_device(tmp_path):
    torch.manual_seed(0)
    save_file(ResNet().core.state_dict(), tmp_path / "weights.safetensors")
    pixels = torch.randint(0, 256, (5, 64, 64, 3), dtype=torch.uint8)
    weights = str(tmp_path / "weights.safetensors")
    cpu, gpu = (build("resnet50", weights=weights, device=d) for d in ("cpu", "cuda"))
    torch.testing.assert_close(gpu.encode(pixels), cpu.encode(pixels), rtol=1e-3, atol=1e-3)


def test_a_slide_of_many_patches_takes_memory_in_proportion():
    peaks = []
    for n in (10_000, 20_000, 40_000):
        x = np.random.default_rng(0).normal(size=(n, 64))
        at = np.arange(n)
        coords = np.stack([at % 100, at // 100], 1) * 256
        bags = pack([Bag.from_arrays(x, coords, name="slide", graph="grid", label=1)])
        bags = bags.to("cuda", torch.float32)
        model = models.build("evidence-field", in_dim=64).cuda()
        torch.cuda.reset_peak_memory_stats()
        sum(model.losses(model(bags), bags).values()).backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[2] < 4.5 * peaks[0], "memory grows faster than the number of patches"
    assert peaks[2] > peaks[0]


@pytest.mark.parametrize("name", models.names())
def test_neither_a_step_nor_a_prediction_waits_for_the_device(name):
    bag_list = []
    for n in (40, 300, 300):
        bag = random_bag(n, seed=n, features=6, dtype=torch.float32, y=n % 2)
        cells = torch.arange(n)
        bag_list.append(replace(bag, coords=torch.stack([cells % 20, cells // 20], 1).float()))
    bags = pack(bag_list).to("cuda")
    model = models.build(name, in_dim=6).cuda()
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(weights, fused=True) if weights else None

    def step() -> None:
        model.train()
        out = model(bags, generator=torch.Generator().manual_seed(0))
        sum(model.losses(out, bags).values()).backward()
        if optimizer is not None:
            optimizer.step()
        with torch.no_grad():
            model.eval()(bags)

    step()  # makes handles and caches, which waits
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_pinned_bags_arrive_as_they_are():
    bag_list = []
    for n in SIZES:
        bag = random_bag(n, seed=n, features=6, dtype=torch.float32, y=n % 2)
        bag_list.append(replace(bag, x=bag.x.half()))
    bags = pack(bag_list)
    pinned = bags.pin_memory()
    assert pinned.x.is_pinned() and pinned.segments.bag.is_pinned()
    moved = pinned.to("cuda")
    torch.cuda.synchronize()
    assert moved.x.dtype == torch.float16
    assert torch.equal(moved.x.cpu(), bags.x) and torch.equal(moved.edges.cpu(), bags.edges)


def test_a_run_whose_features_stay_learns_what_one_that_copies_them_learns(tmp_path, monkeypatch):
    config = make_config(tmp_path / "data", model="abmil", device="cuda")
    kept = train(config, tmp_path / "kept")
    monkeypatch.setattr(residency, "SHARE", 0.0)
    copied = train(config, tmp_path / "copied")
    for one, other in zip(history_of(kept), history_of(copied), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_a_step_that_is_too_large_is_explained(tmp_path, monkeypatch):
    def greedy(loop, part, bags, weight):
        torch.empty(10**13, dtype=torch.uint8, device=loop.device)

    monkeypatch.setattr(TrainingLoop, "step", greedy)
    config = make_config(tmp_path / "data", model="abmil", device="cuda")
    with pytest.raises(InputError, match=r"cuda.* ran out of memory in a step"):
        train(config, tmp_path / "run")
