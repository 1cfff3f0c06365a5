"""EfficientNet-Lite0 against timm's network of the same name, and its weights from a package."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from probsa import features
from probsa.errors import WeightsError
from probsa.features import effnet_lite0

PACKAGE = effnet_lite0.ORIGIN.package


def timm_network(encoder):
    """Return timm's network with the weights of an encoder: its layers have the same order."""
    network = features.optional("timm").create_model("tf_efficientnet_lite0", num_classes=0)
    kinds = (torch.nn.Conv2d, torch.nn.BatchNorm2d)
    theirs = [module for module in network.modules() if isinstance(module, kinds)]
    ours = [module for module in encoder.modules() if isinstance(module, kinds)]
    for their_layer, our_layer in zip(theirs, ours, strict=True):
        their_layer.load_state_dict(our_layer.state_dict())
    return network.eval()


def file_of(encoder, path):
    """Write the weights under the names of the published file; return the path."""
    names = {
        "stem.convolution": "_conv_stem",
        "stem.norm": "_bn0",
        "head.convolution": "_conv_head",
        "head.norm": "_bn1",
    }
    blocks = [(n, m) for n, m in encoder.named_modules() if isinstance(m, effnet_lite0.Block)]
    for k, (name, block) in enumerate(blocks):
        # the first block does not expand
        layers = effnet_lite0.LAYERS[3 - len(block) :]
        for position, (convolution, norm) in enumerate(layers):
            names[f"{name}.{position}.convolution"] = f"_blocks.{k}.{convolution}"
            names[f"{name}.{position}.norm"] = f"_blocks.{k}.{norm}"
    state = {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    for key, tensor in encoder.state_dict().items():
        module, _, leaf = key.rpartition(".")
        state[f"{names[module]}.{leaf}"] = tensor
    torch.save(state, path)
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
    expected = timm_network(random)(x)
    assert expected.shape == (2, 1280)
    atol = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(random.features(x), expected, rtol=1e-5, atol=atol)


@torch.no_grad()
def test_middle_stages_are_the_means_of_their_maps(random):
    middle = effnet_lite0.EffNetLite0(stages=(3, 5)).eval()
    middle.load_state_dict(random.state_dict())
    x = torch.randn(1, 3, 96, 96)
    means = []
    y = random.stem(x)
    for stage in random.blocks:
        y = stage(y)
        means.append(y.mean(dim=(2, 3)))
    torch.testing.assert_close(middle.features(x), torch.cat((means[2], means[4]), dim=1))


@pytest.mark.parametrize("name", ["effnet-lite0", "effnet-lite0-middle"])
def test_the_published_names_of_weights_are_read(random, tmp_path, name):
    encoder = features.build(name, weights=file_of(random, tmp_path / "w.pth"))
    for key, value in random.state_dict().items():
        assert torch.equal(encoder.state_dict()[key], value)
    pixels = torch.randint(0, 256, (2, 50, 50, 3), dtype=torch.uint8)
    assert encoder.encode(pixels).shape == (2, encoder.width)
    assert features.describe(name)["width"] == encoder.width


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(WeightsError, match="effnet"):
        features.build("effnet-lite0")
    readiness = features.readiness("effnet-lite0")
    assert readiness.state == "needs weights" and "[effnet]" in readiness.detail


@torch.no_grad()
def test_real_weights_on_real_tiles(shared_data):
    pytest.importorskip(PACKAGE, reason="needs probsa[effnet]")
    encoder = features.build("effnet-lite0")
    assert features.readiness("effnet-lite0").is_ready
    network = timm_network(encoder)
    for path in sorted((shared_data / "nct_crc_sample").glob("*.tif"))[:3]:
        pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))[None]
        x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
        expected = network(x)
        atol = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(encoder.encode(pixels), expected, rtol=0, atol=atol)
