"""ResNets against torchvision's and timm's, with the same weights."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from probsa import features
from probsa.errors import MissingExtra, WeightsError

NAMES = {"resnet18": "resnet18", "resnet50": "resnet50", "resnet50-bt": "resnet50"}


def reference(name: str):
    """torchvision's network with random weights and statistics, its classifier included."""
    models = features.optional("torchvision.models")
    torch.manual_seed(1)
    network = getattr(models, name)(weights=None)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.1)
    return network.eval()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Weights of both depths, as torchvision saves them."""
    folder = tmp_path_factory.mktemp("weights")
    for name in ("resnet18", "resnet50"):
        torch.save(reference(name).state_dict(), folder / f"{name}.pth")
    yield folder
    for file in folder.iterdir():
        file.unlink()


@pytest.fixture(scope="module")
def built(files):
    """`resnet50` with those weights."""
    return features.build("resnet50", weights=files / "resnet50.pth")


def tiles(n: int = 3, side: int = 224) -> torch.Tensor:
    return torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8)


def normalised(x: torch.Tensor, encoder) -> torch.Tensor:
    mean = torch.tensor(encoder.preprocessing.mean).view(3, 1, 1)
    std = torch.tensor(encoder.preprocessing.std).view(3, 1, 1)
    return (x.permute(0, 3, 1, 2) / 255 - mean) / std


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_features_are_what_network_hands_to_its_classifier(name, files):
    encoder = features.build(name, weights=files / f"{NAMES[name]}.pth")
    network = reference(NAMES[name])
    network.fc = torch.nn.Identity()
    x = tiles()
    with torch.no_grad():
        expected = network(normalised(x, encoder))
    assert encoder.width == expected.shape[1]
    assert_close(encoder.encode(x), expected)


def test_cut_after_the_third_stage_it_gives_1024_numbers(files):
    encoder = features.build("resnet50-1024", weights=files / "resnet50.pth")
    network = reference("resnet50")
    x = normalised(tiles(), encoder)
    torch.manual_seed(0)
    with torch.no_grad():
        h = network.maxpool(network.relu(network.bn1(network.conv1(x))))
        expected = network.layer3(network.layer2(network.layer1(h))).mean(dim=(2, 3))
    assert encoder.width == expected.shape[1] == 1024
    assert_close(encoder.features(x), expected)


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("resnet50", "resnet50@04bb765f0c57eeab"),
        ("resnet50-1024", "resnet50-1024@d1168a1500134c3b"),
        ("resnet50-bt", "resnet50-bt@ae9703ab99491bee"),
    ],
)
def test_features_of_earlier_versions_are_of_the_same_weights(tmp_path, name, identity):
    """Version 0.2 gave weights of 0.5 these digests, which its stored features carry."""
    state = features.optional("torchvision.models").resnet50(weights=None).state_dict()
    torch.save({k: torch.full_like(v, 0.5) for k, v in state.items()}, tmp_path / "w.pth")
    assert features.build(name, weights=tmp_path / "w.pth").identity == identity


@pytest.mark.parametrize("name", [*NAMES, "resnet50-1024"])
def test_without_timm_the_extra_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match="timm"):
        features.build(name)


def test_any_model_of_timm_by_its_name(files, built):
    through_timm = features.build("timm:resnet50.tv_in1k", weights=files / "resnet50.pth")
    preprocessing = through_timm.preprocessing
    assert (preprocessing.size, preprocessing.resize) == (224, 256)
    assert preprocessing.resampling == "bilinear"
    assert through_timm.width == 2048
    assert through_timm.card.licence == "bsd-3-clause."
    x = normalised(tiles(2), built)
    assert_close(through_timm.features(x), built.features(x))


def test_timm_models_of_other_kinds_are_saved_loaded_and_pooled(tmp_path):
    """One whose pooled features are wider than its maps, and one that computes tables at birth."""
    timm = features.optional("timm")
    for model, width in (("mobilenetv3_small_050", 1024), ("swin_tiny_patch4_window7_224", 768)):
        torch.manual_seed(2)
        whole = timm.create_model(model).eval()
        torch.save(whole.state_dict(), tmp_path / "w.pt")
        encoder = features.build(f"timm:{model}", weights=tmp_path / "w.pt")
        x = torch.randn(2, 3, 224, 224)
        with torch.no_grad():
            expected = whole.forward_head(whole.forward_features(x), pre_logits=True)
            actual = encoder.features(x)
        assert expected.shape == (2, width) == (2, encoder.width)
        assert_close(actual, expected)
        assert encoder.encode(tiles(1, 100)).shape == (1, width)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_close(built, precision):
    x = tiles(3, 160)
    full = built.encode(x)
    lower = built.encode(x, precision=precision)
    assert lower.dtype == torch.float32
    difference = (full - lower).norm(dim=1) / full.norm(dim=1)
    assert 0 < float(difference.max()) < 0.02


@pytest.mark.parametrize("side", [100, 512])
def test_patches_of_any_size_are_resized_and_not_cut(built, side):
    """A bright frame around a patch is seen; a recipe that cuts a border off would see none."""
    plain = torch.full((1, side, side, 3), 120, dtype=torch.uint8)
    framed = plain.clone()
    edge = max(2, side // 40)
    for part in (framed[:, :edge], framed[:, -edge:], framed[:, :, :edge], framed[:, :, -edge:]):
        part.fill_(250)
    without, with_frame = built.encode(torch.cat((plain, framed)))
    assert float((without - with_frame).norm() / without.norm()) > 0.01


def test_layouts_of_files_of_weights(files, built, tmp_path):
    """As torchvision's resnet50-19c8e357.pth, which CLAM used."""
    state = torch.load(files / "resnet50.pth", weights_only=True)
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert features.build("resnet50", weights=tmp_path / "old.pth").identity == built.identity
    (tmp_path / "old.pth").unlink()
    release = {k: v for k, v in state.items() if not k.startswith("fc.")}
    torch.save(release, tmp_path / "bt_rn50_ep200.torch")
    encoder = features.build("resnet50-bt", weights=tmp_path / "bt_rn50_ep200.torch")
    # https://github.com/lunit-io/benchmark-ssl-pathology/releases/tag/pretrained-weights
    assert encoder.preprocessing.mean == (0.70322989, 0.53606487, 0.66096631)
    assert encoder.preprocessing.std == (0.21716536, 0.26081574, 0.20723464)
    plain = features.build("resnet50", weights=files / "resnet50.pth")
    x = tiles(1)
    assert not torch.allclose(encoder.encode(x), plain.encode(x))
    assert encoder.identity != plain.identity.replace("resnet50@", "resnet50-bt@")
    (tmp_path / "bt_rn50_ep200.torch").unlink()


def test_the_addresses_are_networks_own():
    models = features.optional("torchvision.models")
    for name, theirs in (
        ("resnet18", models.ResNet18_Weights.IMAGENET1K_V1),
        ("resnet50", models.ResNet50_Weights.IMAGENET1K_V1),
        ("resnet50-1024", models.ResNet50_Weights.IMAGENET1K_V1),
    ):
        assert features.describe(name)["weights"] == f"timm/{name.removesuffix('-1024')}.tv_in1k"
        with pytest.raises(WeightsError, match=theirs.url):
            features.build(name, weights="nowhere.pth")
    with pytest.raises(WeightsError, match="lunit-io/benchmark-ssl-pathology/releases"):
        features.build("resnet50-bt")


def test_weights_of_another_depth_are_refused(files, tmp_path):
    with pytest.raises(WeightsError, match=r"layer1\.0\.conv3\.weight \(256, 64, 1, 1\)"):
        features.build("resnet50", weights=files / "resnet18.pth")
    with pytest.raises(WeightsError, match=r"layer1\.0\.conv3"):
        features.build("resnet18", weights=files / "resnet50.pth")
    # a deeper network holds every key of this one, in the same shapes
    deeper = torch.load(files / "resnet50.pth", weights_only=True)
    for key in [key for key in deeper if "layer3.5." in key]:
        deeper[key.replace("layer3.5.", "layer3.6.")] = deeper[key]
    save_file({k: v.clone() for k, v in deeper.items()}, tmp_path / "w.safetensors")
    for name in ("resnet50", "resnet50-1024"):
        with pytest.raises(WeightsError, match=r"layer3\.6\."):
            features.build(name, weights=tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").unlink()
