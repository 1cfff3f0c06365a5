"""Results on a GPU equal those on a CPU. Skipped on machines without a GPU."""

import pytest
import torch
from support.made_runs import make_config, with_training
from support.random_bags import random_bag

from probsa import models, pack
from probsa.core import segments
from probsa.layers.transformer import bag_attention
from probsa.training import train
from probsa.training.checkpoints import load_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
SIZES = [1, 7, 300]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "argmax", "softmax", "logsumexp"])
def test_segments(reduce):
    v = torch.randn(sum(SIZES), 3, dtype=torch.float64)
    function = getattr(segments, f"segment_{reduce}")
    torch.testing.assert_close(function(v.cuda(), SIZES).cpu(), function(v, SIZES))


@pytest.mark.parametrize("name", models.names())
def test_models_and_gradients(name):
    bags = pack([random_bag(n, seed=n, features=6, dtype=torch.float32, y=n % 2) for n in SIZES])
    noise = torch.randn(sum(SIZES), 16)
    torch.manual_seed(0)
    cpu_model = models.build(name, in_dim=6, embed=16)
    gpu_model = models.build(name, in_dim=6, embed=16).cuda()
    gpu_model.load_state_dict(cpu_model.state_dict())
    for model, b, eps in ((cpu_model, bags, noise), (gpu_model, bags.to("cuda"), noise.cuda())):
        out = model(b, noise=eps)
        sum(model.losses(out, b).values()).backward()
    for (key, a), b in zip(cpu_model.named_parameters(), gpu_model.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-5, msg=key)


def test_variable_length_attention_is_the_loop():
    qkv = torch.randn(sum(SIZES), 3, 4, 64)
    fast = bag_attention(qkv.cuda().bfloat16(), SIZES).float().cpu()
    torch.testing.assert_close(fast, bag_attention(qkv, SIZES), rtol=0.02, atol=0.02)


def test_a_run_resumes_and_predicts_on_the_gpu(tmp_path):
    config = make_config(tmp_path / "data", device="cuda", epochs=2, select="ema-nll")
    run = train(config, tmp_path / "a")
    train(with_training(config, precision="bf16"), tmp_path / "b")
    assert load_checkpoint(run.last).metadata["progress"]["epoch"] == 2
    assert load_checkpoint(run.last).part("model")["classifier.weight"].isfinite().all()
