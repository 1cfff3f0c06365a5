"""Results on a GPU equal those on a CPU. Skipped on machines without a GPU."""

from dataclasses import replace

import pytest
import torch
from support.random_bags import random_bag
from support.stored import write_folder

from probsa import models, pack
from probsa.core import segments
from probsa.layers.transformer import bag_attention
from probsa.training import train
from probsa.training.checkpoints import load_checkpoint
from probsa.training.config import DataConfig, RunConfig, TrainingConfig

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
    features, labels = write_folder(tmp_path / "data")
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil-probsa-diag",
        model_arguments={"embed": 8},
        training=TrainingConfig(epochs=2, batch_size=2, device="cuda", tensorboard=False),
    )
    run = train(config, tmp_path / "a")
    half = replace(config, training=replace(config.training, precision="bf16"))
    train(half, tmp_path / "b")
    assert load_checkpoint(run.last).metadata["progress"]["epoch"] == 2
    assert load_checkpoint(run.last).part("model")["classifier.weight"].isfinite().all()
