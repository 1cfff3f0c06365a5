"""Encoders by name: the registry, `encode`, and how weights are found, read and refused."""

import json
import pickle
import re
import sys
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from support.paths import ROOT
from torch import nn

from probsa import features
from probsa.cli import entry as cli
from probsa.core import plugins
from probsa.errors import InputError, MissingExtra, UnknownName, WeightsError
from probsa.features import (
    Card,
    Encoder,
    Origin,
    Preprocessing,
    Readiness,
    _network,
    _registry,
    _weights,
)
from probsa.features._base import preprocess

REQUESTS = [("someone/small", "model.safetensors"), ("someone/small", "pytorch_model.bin")]
"""What the hub and its cache are asked for, one after another."""
PLAIN = Preprocessing(size=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5), resampling="bilinear")


class Small(Encoder):
    """A convolution and a normalisation: enough for every rule about weights."""

    heads = ("fc.",)

    def __init__(self, *, channels: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3)
        self.bn = nn.BatchNorm2d(channels)

    def features(self, x):
        return self.bn(self.conv(x)).mean(dim=(2, 3))


@pytest.fixture
def small(monkeypatch, tmp_path):
    """`small` is registered for this test, and the caches are empty ones."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    card = Card(
        width=4,
        licence="For tests.",
        source="here",
        gated=True,
        weights=Origin(url="https://example.invalid/small-v1.pth", repository="someone/small"),
    )
    features.names()
    monkeypatch.setattr(_registry, "_registered", dict(_registry._registered))
    features.register("small", card=card, preprocessing=PLAIN)(Small)
    return card


def state_of(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    encoder = Small()
    encoder.bn.running_mean.normal_()
    encoder.bn.running_var.uniform_(0.5, 2)
    return {k: v.detach().clone() for k, v in encoder.state_dict().items()}


def identity(weights=None, name: str = "small") -> str:
    return features.build(name, weights=weights).identity


def tiles(n: int = 3, side: int = 8) -> torch.Tensor:
    return torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8)


# the registry


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnet5", "resnet50"),
        ("resnet50:layer3", ""),
        ("UNI2-H", "uni2-h"),
        ("timm:resnet5o", "resnet50"),
    ],
)
def test_an_unknown_name_is_answered_with_the_likely_one(name, suggestion):
    with pytest.raises(UnknownName, match=name.removeprefix("timm:")) as caught:
        features.build(name)
    assert f"'{suggestion}'" in str(caught.value) or not suggestion


def test_names_and_arguments_that_cannot_be_registered_or_built(small, tmp_path):
    with pytest.raises(InputError, match="timm:MODEL"):
        features.build("timm:MODEL")
    with pytest.raises(InputError, match="handcrafted"):
        features.build("handcrafted", weights="x.pt")
    with pytest.raises(ValueError, match="small"):
        features.register("small", card=small)(Small)
    with pytest.raises(ValueError, match="depth"):
        features.register("wide", card=small, depth=3)(Small)
    wide = replace(small, width=6)
    features.register("wide", card=wide, preprocessing=PLAIN, channels=6)(Small)
    save_file(Small(channels=6).state_dict(), tmp_path / "w.safetensors")
    built = features.build("wide", weights=tmp_path / "w.safetensors")
    assert built.encode(tiles()).shape == (3, 6)
    assert built.name == "wide"
    assert built.preprocessing == PLAIN


def test_other_packages_join_through_an_entry_point(small, monkeypatch, tmp_path):
    (tmp_path / "their_encoder.py").write_text(
        "from probsa.features import Card, Encoder, register\n"
        "@register('theirs', card=Card(width=1, licence='MIT', source='there'))\n"
        "class Theirs(Encoder):\n"
        "    def features(self, x):\n"
        "        return x.mean(dim=(1, 2, 3))[:, None]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint(name="theirs", value="their_encoder", group="probsa.encoders")
    groups = []

    def points(*, group):
        groups.append(group)
        return [point]

    monkeypatch.setattr(plugins, "entry_points", points)
    monkeypatch.setattr(_registry, "_discover", _registry._discover.__wrapped__)
    assert "theirs" in features.names()
    assert groups == ["probsa.encoders"]
    white = torch.full((1, 5, 9, 3), 255, dtype=torch.uint8)
    assert features.build("theirs").encode(white).tolist() == [[1.0]]


def test_readiness_says_what_is_missing(small, monkeypatch, tmp_path):
    assert features.readiness("handcrafted") == Readiness("ready")
    assert features.readiness("small") == Readiness("needs weights", "--weights FILE")
    cache_file = _weights._cache_file(small.weights.url)
    cache_file.parent.mkdir(parents=True)
    torch.save(state_of(), cache_file)
    assert features.readiness("small") == Readiness("ready", str(cache_file))
    monkeypatch.setattr(_registry, "find_spec", lambda package: None)
    advice = str(MissingExtra("timm", "encoders"))
    assert features.readiness("uni2-h") == Readiness("needs package", advice)


# encode


@pytest.fixture
def built(small, tmp_path):
    save_file(state_of(), tmp_path / "w.safetensors")
    return features.build("small", weights=tmp_path / "w.safetensors")


def test_encode_is_the_network_on_normalised_pixels_and_leaves_nothing_to_train(built):
    x = tiles()
    mean = torch.tensor(PLAIN.mean).view(3, 1, 1)
    std = torch.tensor(PLAIN.std).view(3, 1, 1)
    plain = Small()
    plain.load_state_dict(state_of())
    with torch.no_grad():
        expected = plain.eval().features((x.permute(0, 3, 1, 2) / 255 - mean) / std)
    before = {k: v.clone() for k, v in built.state_dict().items()}
    actual = built.encode(x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert actual.dtype == torch.float32 and actual.device.type == "cpu"
    assert not actual.requires_grad
    assert not built.training and not any(p.requires_grad for p in built.parameters())
    actual[0] = 0  # the caller may change it
    assert all(torch.equal(v, before[k]) for k, v in built.state_dict().items())
    assert built.encode(tiles(0)).shape == (0, 4)


@pytest.mark.parametrize(
    "pixels",
    [
        torch.rand(2, 8, 8, 3),
        torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(8, 8, 3, dtype=torch.uint8),
    ],
)
def test_pixels_of_another_type_or_shape_are_refused(built, pixels):
    with pytest.raises(InputError, match=re.escape(str(tuple(pixels.shape)))):
        built.encode(pixels)


@pytest.mark.parametrize("resampling", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), [(50, 50), (64, 50), (20, 31)])
def test_pixels_of_another_size_are_resized_as_image_libraries_do(resampling, height, width):
    options = Preprocessing(
        size=24, resize=28, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), resampling=resampling
    )
    # away from black and white, where those libraries cut off after each of their two passes
    image = np.random.default_rng(3).integers(60, 196, (height, width, 3), dtype=np.uint8)
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    actual = preprocess(x, options)
    scale = 28 / min(height, width)
    size = (28, int(height * scale)) if width <= height else (int(width * scale), 28)
    resized = Image.fromarray(image).resize(size, Image.Resampling[resampling.upper()])
    left = round((size[0] - 24) / 2)
    top = round((size[1] - 24) / 2)
    expected = np.asarray(resized.crop((left, top, left + 24, top + 24))) / 255
    assert actual.shape == (1, 3, 24, 24)
    # bytes are rounded after each of the two passes there, and not here
    np.testing.assert_allclose(actual[0].permute(1, 2, 0).numpy(), expected, atol=1.6 / 255)


def test_cubic_weights_do_not_leave_the_range_of_pixels():
    zero = (0.0, 0.0, 0.0)
    one = (1.0, 1.0, 1.0)
    edge = torch.zeros(1, 3, 12, 12)
    edge[..., 6:] = 1
    x = preprocess(edge, Preprocessing(size=24, mean=zero, std=one, resampling="bicubic"))
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)


# the identity


def test_the_identity_differs_with_anything_that_changes_the_features(small, tmp_path):
    other = state_of()
    other["bn.running_mean"][1] += 1e-3
    for name, state in (("a", state_of()), ("b", state_of(1)), ("c", other)):
        save_file(state, tmp_path / f"{name}.safetensors")
    resampled = replace(PLAIN, resampling="bicubic")
    features.register("twin", card=small, preprocessing=resampled)(Small)
    digests = [identity(tmp_path / f"{n}.safetensors").removeprefix("small@") for n in "abc"]
    twin = identity(tmp_path / "a.safetensors", name="twin").removeprefix("twin@")
    assert len({*digests, twin}) == 4


def test_the_identity_is_the_one_that_stored_features_state(small, monkeypatch, tmp_path):
    """It depends on values, and not on how Python shows the class that has them."""
    save_file(state_of(), tmp_path / "w.safetensors")
    encoder = features.build("small", weights=tmp_path / "w.safetensors")
    properties = (
        "1 Preprocessing(size=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5), "
        "resampling='bilinear', resize=None)"
    )
    assert encoder.identity == f"small@{_weights.digest(encoder.core, also=properties)}"
    monkeypatch.setattr(Preprocessing, "__repr__", lambda self: "another text")
    assert identity(tmp_path / "w.safetensors") == encoder.identity
    plain = features.build("handcrafted")
    assert plain.identity == f"handcrafted@{_weights.digest(plain.core, also='1 None')}"


def test_advice_names_the_extra_that_holds_the_weights(small):
    """A package that no extra of probsa installs is not advised as one."""
    for name, extra in (("packed", ""), ("brought", "slides")):
        weights = Origin(package="no_such_package", extra=extra)
        features.register(name, card=replace(small, weights=weights))(Small)
    assert features.readiness("packed") == Readiness("needs weights", "--weights FILE")
    assert "[slides]" in features.readiness("brought").detail


# where weights come from


def test_a_folder_of_the_hub_will_do(small, tmp_path):
    with pytest.raises(WeightsError, match=re.escape(str(tmp_path))):
        identity(tmp_path)
    with pytest.raises(WeightsError, match=r"gone\.pt"):
        identity(tmp_path / "gone.pt")
    save_file(state_of(), tmp_path / "model.safetensors")
    torch.save(state_of(), tmp_path / "w.pt")
    assert identity(tmp_path) == identity(tmp_path / "w.pt")


def test_what_the_local_caches_hold_is_used(small, monkeypatch, tmp_path):
    cache_file = _weights._cache_file(small.weights.url)
    cache_file.parent.mkdir(parents=True)
    torch.save(state_of(5), cache_file)
    save_file(state_of(5), tmp_path / "w.safetensors")
    expected = identity(tmp_path / "w.safetensors")
    assert identity() == expected
    cache_file.unlink()
    requests = []

    def look(repository, file):
        requests.append((repository, file))
        return str(tmp_path / "w.safetensors") if file == "pytorch_model.bin" else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
    assert identity() == expected
    assert requests == REQUESTS


@pytest.fixture
def server(tmp_path):
    """A folder behind an address on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_addresses_are_fetched_once_and_leave_nothing_where_they_fail(small, server, tmp_path):
    folder, address = server
    for name, seed in (("a", 0), ("b", 1)):
        (folder / name).mkdir()
        torch.save(state_of(seed), folder / name / "model.bin")
    first = identity(f"{address}/a/model.bin")
    assert identity(f"{address}/b/model.bin") != first
    (folder / "a" / "model.bin").unlink()
    assert identity(f"{address}/a/model.bin") == first
    torch.save(state_of(), tmp_path / "w.pt")
    assert identity(tmp_path / "w.pt") == first


def test_an_address_that_fails_leaves_nothing(small, server, tmp_path):
    folder, address = server
    with pytest.raises(WeightsError, match=f"{address}/none.bin: .* 404"):
        features.build("small", weights=f"{address}/none.bin")
    torch.save(state_of(), folder / "small-01234567.pth")
    with pytest.raises(WeightsError, match="hash"):
        features.build("small", weights=f"{address}/small-01234567.pth")
    assert [f for f in (tmp_path / "hub").rglob("*") if f.is_file()] == []


def test_the_hub_is_asked_only_by_its_word(small, monkeypatch, tmp_path):
    from huggingface_hub import errors

    save_file(state_of(), tmp_path / "w.safetensors")
    requests = []

    def download(repository, file):
        requests.append((repository, file))
        if file == "model.safetensors":
            raise errors.EntryNotFoundError("no such file")
        return str(tmp_path / "w.safetensors")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(WeightsError):
        features.build("small")
    assert requests == []
    assert identity("hub") == identity(tmp_path / "w.safetensors")
    assert requests == REQUESTS


def test_what_the_hub_refuses_is_explained(small, monkeypatch):
    from huggingface_hub import errors

    answer = SimpleNamespace(headers={}, request=None)
    for error, reason in (
        (errors.GatedRepoError("gated", response=answer), "licence"),
        (errors.LocalEntryNotFoundError("offline"), "offline"),
        (errors.EntryNotFoundError("none"), "model.safetensors, pytorch_model.bin"),
        (errors.RepositoryNotFoundError("absent", response=answer), "absent"),
        (OSError("the disk is full"), "the disk is full"),
    ):

        def fail(repository, file, error=error):
            raise error

        monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
        with pytest.raises(WeightsError, match=r"https://huggingface\.co/someone/small") as caught:
            identity("hub")
        assert reason in str(caught.value)


# what is in a file


class Intruder:
    """Unpickling it would write a file."""

    def __reduce__(self):
        return Path.touch, (MARK,)


MARK = Path("intruded")


def damaged(path):
    whole = path.with_stem("whole")
    (save_file if path.suffix == ".safetensors" else torch.save)(state_of(), whole)
    path.write_bytes(whole.read_bytes()[:-600])


@pytest.mark.parametrize(
    ("file", "write"),
    [
        ("w.pt", lambda path: torch.save({**state_of(), "more": Intruder()}, path)),
        ("w.bin", lambda path: path.write_bytes(pickle.dumps(Intruder()))),
        ("w.pt", lambda path: torch.save(nn.Linear(2, 2), path)),
        ("w.safetensors", damaged),
        ("w.pt", damaged),
        ("w.safetensors", lambda path: path.write_bytes(b"")),
        ("w.pt", lambda path: path.write_bytes(b"")),
        ("w.safetensors", lambda path: path.write_text("<html>log in first</html>")),
        ("w.pt", lambda path: path.write_text("<html>log in first</html>")),
        ("w.pt", lambda path: torch.save({"epoch": 3, "loss": 0.5}, path)),
        ("w.pt", lambda path: torch.save([1, 2], path)),
    ],
)
def test_what_is_no_file_of_weights_is_named_and_runs_no_code(
    small, tmp_path, monkeypatch, file, write
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / file)
    with pytest.raises(WeightsError, match=file) as caught:
        features.build("small", weights=tmp_path / file)
    # PyTorch's own message proposes to trust the file
    assert "weights_only=False" not in str(caught.value)
    assert not MARK.exists()


def with_prefix(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {prefix + key: tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: with_prefix("module.", state),
        lambda state: {"state_dict": with_prefix("model.backbone.", state), "epoch": 1},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {**with_prefix("backbone.", state), "projector.weight": state["bn.bias"]},
        lambda state: {**state, "fc.weight": state["bn.bias"], "fc.bias": state["bn.bias"]},
        lambda state: {k: v for k, v in state.items() if "num_batches" not in k},
        lambda state: {k: v.double() if v.is_floating_point() else v for k, v in state.items()},
    ],
)
def test_the_layouts_that_scripts_write_are_read(small, tmp_path, wrap):
    save_file(state_of(), tmp_path / "plain.safetensors")
    torch.save(wrap(state_of()), tmp_path / "w.pt")
    assert identity(tmp_path / "w.pt") == identity(tmp_path / "plain.safetensors")


def of_two_networks(state):
    return with_prefix("student.", state) | with_prefix("teacher.", state)


def of_a_similar_network(state):
    del state["bn.weight"]
    return {**state, "conv.weight": torch.zeros(4, 3, 5, 5), "layer9.weight": torch.zeros(1)}


def of_an_unlike_network(state):
    return {"a.b": torch.zeros(2), "a.c": torch.zeros(3)}


def of_a_network_with_one_name_in_common(state):
    return {"net.conv.weight": torch.zeros(2), "net.other.weight": torch.zeros(3)}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (of_two_networks, ("student., teacher.",)),
        (
            of_a_similar_network,
            (
                "bn.weight (4,)",
                "layer9.weight",
                "conv.weight (4, 3, 5, 5) instead of (4, 3, 3, 3)",
            ),
        ),
        (of_an_unlike_network, ("conv.weight", "3 more", "a.b")),
        (of_a_network_with_one_name_in_common, ("conv.weight (4, 3, 3, 3)", "net.conv.weight")),
    ],
)
def test_another_networks_weights_are_named_with_keys_and_shapes(small, tmp_path, change, facts):
    torch.save(change(state_of()), tmp_path / "w.pt")
    with pytest.raises(WeightsError) as caught:
        features.build("small", weights=tmp_path / "w.pt")
    for fact in facts:
        assert fact in str(caught.value)


# torchvision beside a PyTorch without CUDA


def test_a_package_that_is_missing_names_the_extra():
    with pytest.raises(MissingExtra, match=r"no_such_thing .*encoders"):
        features.optional("no_such_thing.inside")


def test_the_guard_steps_in_for_that_one_failure_only(monkeypatch, tmp_path):
    (tmp_path / "torchvision").mkdir()
    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('another trouble')")
    definitions = len(_network._defined)
    with pytest.raises(RuntimeError, match="another trouble"):
        _network._guard.__wrapped__()
    assert len(_network._defined) == definitions


# the list and the page


def test_the_page_of_encoders_and_the_command(capsys):
    """`probsa encoders --markdown` prints what docs/encoders.md ends with."""
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n{features.catalogue_page()}")
    default = f"the default is `{_registry.PREFERRED}`"
    assert default in page and f"otherwise `{_registry.FALLBACK}`" in page

    def run(*words):
        assert cli.main(["encoders", *words]) == 0
        return capsys.readouterr().out

    assert run("--markdown") == features.catalogue_page()
    assert [row["name"] for row in json.loads(run("--json"))] == features.names()
    row = json.loads(run("virchow2", "--json"))
    assert (row["width"], row["gated"], row["input"]) == (2560, True, 224)
    assert cli.main(["encoders", "virchow", "--json"]) == 2
    assert "virchow2" in json.loads(capsys.readouterr().out)["error"]
