"""Encoders by name: the registry, `encode`, and how weights are found, read and refused."""

import json
import pickle
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
from support.refusals import refused
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
    _catalogue,
    _network,
    _registry,
    _weights,
)
from probsa.features._base import preprocess

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
    made = Small()
    made.bn.running_mean.normal_()
    made.bn.running_var.uniform_(0.5, 2)
    return {k: v.detach().clone() for k, v in made.state_dict().items()}


def identity(weights=None, name: str = "small") -> str:
    return features.build(name, weights=weights).identity


def tiles(n: int = 3, side: int = 8) -> torch.Tensor:
    return torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8)


# the registry


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet5", "no encoder named 'resnet5'. Did you mean 'resnet50'?"),
        ("resnet50:layer3", "no encoder named 'resnet50:layer3'"),
        ("UNI2-H", "no encoder named 'UNI2-H'. Did you mean 'uni2-h'?"),
        ("timm:resnet5o", "no model of timm named 'resnet5o'. Did you mean 'resnet50'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_likely_one(name, said):
    with pytest.raises(UnknownName) as caught:
        features.build(name)
    assert said in str(caught.value)


def test_names_and_arguments_that_cannot_be_registered_or_built(small, tmp_path):
    refused(InputError, "put the name of one after the colon", features.build, "timm:MODEL")
    refused(InputError, "handcrafted has no weights", features.build, weights="x.pt")
    with pytest.raises(ValueError, match="two encoders are named 'small'"):
        features.register("small", card=small)(Small)
    with pytest.raises(ValueError, match="wide: Small has no depth"):
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
    asked = []

    def points(*, group):
        asked.append(group)
        return [point]

    monkeypatch.setattr(plugins, "entry_points", points)
    monkeypatch.setattr(_registry, "_discover", _registry._discover.__wrapped__)
    assert "theirs" in features.names()
    assert asked == ["probsa.encoders"]
    white = torch.full((1, 5, 9, 3), 255, dtype=torch.uint8)
    assert features.build("theirs").encode(white).tolist() == [[1.0]]


def test_readiness_says_what_is_missing(small, monkeypatch, tmp_path):
    assert features.readiness("handcrafted") == "ready"
    assert features.readiness("small") == "needs weights: --weights FILE"
    kept = _weights._cache_file(small.weights.url)
    kept.parent.mkdir(parents=True)
    torch.save(state_of(), kept)
    assert features.readiness("small") == f"ready: {kept}"
    monkeypatch.setattr(_registry, "find_spec", lambda package: None)
    assert "timm is not installed: pip install '.[encoders]'" in features.readiness("uni2-h")


# encode


@pytest.fixture
def built(small, tmp_path):
    save_file(state_of(), tmp_path / "w.safetensors")
    return features.build("small", weights=tmp_path / "w.safetensors")


def test_encode_is_the_network_on_normalised_pixels_and_leaves_nothing_to_train(built):
    x = tiles()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (PLAIN.mean, PLAIN.std))
    plain = Small()
    plain.load_state_dict(state_of())
    with torch.no_grad():
        wanted = plain.eval().features((x.permute(0, 3, 1, 2) / 255 - mean) / std)
    before = {k: v.clone() for k, v in built.state_dict().items()}
    found = built.encode(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert (found.dtype, found.device.type, found.requires_grad) == (torch.float32, "cpu", False)
    assert not built.training and not any(p.requires_grad for p in built.parameters())
    found[0] = 0  # the caller's to change
    assert all(torch.equal(v, before[k]) for k, v in built.state_dict().items())
    assert built.encode(tiles(0)).shape == (0, 4)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (torch.rand(2, 8, 8, 3), "float32 of shape (2, 8, 8, 3)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "uint8 of shape (2, 3, 8, 8)"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), "uint8 of shape (8, 8, 3)"),
    ],
)
def test_pixels_of_another_type_or_shape_are_refused(built, pixels, said):
    with pytest.raises(InputError) as caught:
        built.encode(pixels)
    assert said in str(caught.value)


@pytest.mark.parametrize("resampling", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), [(50, 50), (64, 50), (20, 31)])
def test_pixels_of_another_size_are_resized_as_image_libraries_do(resampling, height, width):
    how = Preprocessing(
        size=24, resize=28, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), resampling=resampling
    )
    # away from black and white, where those libraries cut off after each of their two passes
    image = np.random.default_rng(3).integers(60, 196, (height, width, 3), dtype=np.uint8)
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    found = preprocess(x, how)
    scale = 28 / min(height, width)
    size = (28, int(height * scale)) if width <= height else (int(width * scale), 28)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    resized = Image.fromarray(image).resize(size, method[resampling])
    left, top = round((size[0] - 24) / 2), round((size[1] - 24) / 2)
    wanted = np.asarray(resized.crop((left, top, left + 24, top + 24))) / 255
    assert found.shape == (1, 3, 24, 24)
    # bytes are rounded after each of the two passes there, and not here
    np.testing.assert_allclose(found[0].permute(1, 2, 0).numpy(), wanted, atol=1.6 / 255)


def test_cubic_weights_do_not_leave_the_range_of_pixels():
    how = Preprocessing(size=24, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), resampling="bicubic")
    edge = torch.zeros(1, 3, 12, 12)
    edge[..., 6:] = 1
    found = preprocess(edge, how)
    assert (float(found.min()), float(found.max())) == (0.0, 1.0)


# the identity


def test_the_identity_differs_with_anything_that_changes_the_features(small, tmp_path):
    other = state_of()
    other["bn.running_mean"][1] += 1e-3
    for name, state in (("a", state_of()), ("b", state_of(1)), ("c", other)):
        save_file(state, tmp_path / f"{name}.safetensors")
    resampled = replace(PLAIN, resampling="bicubic")
    features.register("twin", card=small, preprocessing=resampled)(Small)
    found = [identity(tmp_path / f"{n}.safetensors") for n in "abc"]
    twin = features.build("twin", weights=tmp_path / "a.safetensors").identity
    assert len({*found, twin, "small" + twin.removeprefix("twin")}) == 5


# where weights come from


def test_a_folder_of_the_hub_will_do(small, tmp_path):
    refused(WeightsError, r"no weights of small in it; looked for model\.", identity, tmp_path)
    with pytest.raises(WeightsError, match=r"gone\.pt: no such file of weights for small"):
        identity(tmp_path / "gone.pt")
    save_file(state_of(), tmp_path / "model.safetensors")
    torch.save(state_of(), tmp_path / "w.pt")
    assert identity(tmp_path) == identity(tmp_path / "w.pt")


def test_what_the_local_caches_hold_is_used(small, monkeypatch, tmp_path):
    kept = _weights._cache_file(small.weights.url)
    kept.parent.mkdir(parents=True)
    torch.save(state_of(5), kept)
    save_file(state_of(5), tmp_path / "w.safetensors")
    by_file = identity(tmp_path / "w.safetensors")
    assert identity() == by_file
    kept.unlink()
    asked = []

    def look(repository, file):
        asked.append((repository, file))
        return str(tmp_path / "w.safetensors") if file == "pytorch_model.bin" else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
    assert identity() == by_file
    assert asked == [("someone/small", "model.safetensors"), ("someone/small", "pytorch_model.bin")]


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
    found = [identity(f"{address}/{n}/model.bin") for n in "ab"]
    assert found[0] != found[1]
    (folder / "a" / "model.bin").unlink()
    assert identity(f"{address}/a/model.bin") == found[0]
    torch.save(state_of(), tmp_path / "w.pt")
    assert identity(tmp_path / "w.pt") == found[0]


def test_an_address_that_fails_leaves_nothing_and_says_why(small, server, tmp_path):
    folder, address = server
    with pytest.raises(WeightsError, match="could not be downloaded: HTTP Error 404"):
        features.build("small", weights=f"{address}/none.bin")
    torch.save(state_of(), folder / "small-01234567.pth")
    with pytest.raises(WeightsError, match="could not be downloaded: invalid hash value"):
        features.build("small", weights=f"{address}/small-01234567.pth")
    assert [f for f in (tmp_path / "hub").rglob("*") if f.is_file()] == []


def test_the_hub_is_asked_only_by_its_word(small, monkeypatch, tmp_path):
    from huggingface_hub import errors

    save_file(state_of(), tmp_path / "w.safetensors")
    asked = []

    def download(repository, file):
        asked.append((repository, file))
        if file == "model.safetensors":
            raise errors.EntryNotFoundError("no such file")
        return str(tmp_path / "w.safetensors")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    refused(WeightsError, "the local caches do not contain them", features.build, "small")
    assert asked == []
    assert identity("hub") == identity(tmp_path / "w.safetensors")
    assert asked == [("someone/small", "model.safetensors"), ("someone/small", "pytorch_model.bin")]


def test_what_the_hub_refuses_is_explained(small, monkeypatch):
    from huggingface_hub import errors

    answer = SimpleNamespace(headers={}, request=None)
    for error, said in (
        (errors.GatedRepoError("gated", response=answer), "the licence must be accepted first"),
        (errors.LocalEntryNotFoundError("offline"), "the hub cannot be reached"),
        (
            errors.EntryNotFoundError("none"),
            "contains none of model.safetensors, pytorch_model.bin",
        ),
        (errors.RepositoryNotFoundError("absent", response=answer), "absent"),
        (OSError("the disk is full"), "the disk is full"),
    ):

        def fail(repository, file, error=error):
            raise error

        monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
        with pytest.raises(WeightsError, match=r"https://huggingface\.co/someone/small") as caught:
            identity("hub")
        assert said in str(caught.value) and "huggingface-cli login" in str(caught.value)


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
    ("file", "write", "says"),
    [
        ("w.pt", lambda p: torch.save({**state_of(), "more": Intruder()}, p), "is not unpickled"),
        ("w.bin", lambda p: p.write_bytes(pickle.dumps(Intruder())), "is not .*save_file"),
        ("w.pt", lambda p: torch.save(nn.Linear(2, 2), p), "contains more than tensors"),
        ("w.safetensors", damaged, "damaged"),
        ("w.pt", damaged, "damaged"),
        ("w.safetensors", lambda p: p.write_bytes(b""), ""),
        ("w.pt", lambda p: p.write_bytes(b""), ""),
        ("w.safetensors", lambda p: p.write_text("<html>log in first</html>"), ""),
        ("w.pt", lambda p: p.write_text("<html>log in first</html>"), ""),
        ("w.pt", lambda p: torch.save({"epoch": 3, "loss": 0.5}, p), "weights, only epoch, loss"),
        ("w.pt", lambda p: torch.save([1, 2], p), r"\(a state dict\), got list"),
    ],
)
def test_what_is_no_file_of_weights_is_named_and_runs_no_code(
    small, tmp_path, monkeypatch, file, write, says
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / file)
    with pytest.raises(WeightsError, match=f"{file}: .*{says}") as caught:
        features.build("small", weights=tmp_path / file)
    assert "weights_only=False" not in str(caught.value)
    assert not MARK.exists()


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s: {"module." + k: v for k, v in s.items()},
        lambda s: {"state_dict": {"model.backbone." + k: v for k, v in s.items()}, "epoch": 1},
        lambda s: {"model": {"state_dict": s}},
        lambda s: {**{"backbone." + k: v for k, v in s.items()}, "projector.weight": s["bn.bias"]},
        lambda s: {**s, "fc.weight": s["bn.bias"], "fc.bias": s["bn.bias"]},
        lambda s: {k: v for k, v in s.items() if "num_batches" not in k},
        lambda s: {k: v.double() if v.is_floating_point() else v for k, v in s.items()},
    ],
)
def test_the_layouts_that_scripts_write_are_read(small, tmp_path, wrapped):
    save_file(state_of(), tmp_path / "plain.safetensors")
    torch.save(wrapped(state_of()), tmp_path / "w.pt")
    assert identity(tmp_path / "w.pt") == identity(tmp_path / "plain.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda s: {f"{of}.{k}": v for of in ("student", "teacher") for k, v in s.items()},
            (r"several networks fit, under student., teacher.",),
        ),
        (
            lambda s: {
                **{k: v for k, v in s.items() if k != "bn.weight"},
                "conv.weight": torch.zeros(4, 3, 5, 5),
                "layer9.weight": torch.zeros(1),
            },
            (
                "these are not the weights of small",
                "missing: bn.weight (4,)",
                "left over: layer9.weight",
                "of another shape: conv.weight (4, 3, 5, 5) instead of (4, 3, 3, 3)",
            ),
        ),
        (
            lambda s: {"a.b": torch.zeros(2), "a.c": torch.zeros(3)},
            ("missing: conv.weight", " and 3 more; left over: a.b"),
        ),
    ],
)
def test_another_networks_weights_are_named_with_keys_and_shapes(small, tmp_path, change, says):
    torch.save(change(state_of()), tmp_path / "w.pt")
    with pytest.raises(WeightsError) as caught:
        features.build("small", weights=tmp_path / "w.pt")
    assert all(part in str(caught.value) for part in says), str(caught.value)


# torchvision beside a PyTorch without CUDA


def test_a_package_that_is_missing_names_the_extra():
    with pytest.raises(MissingExtra, match=r"no_such_thing .*'\.\[encoders\]'"):
        _network.optional("no_such_thing.inside")


def test_the_guard_steps_in_for_that_one_failure_only(monkeypatch, tmp_path):
    (tmp_path / "torchvision").mkdir()
    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('another trouble')")
    defined = len(_network._defined)
    refused(RuntimeError, "another trouble", _network._guard.__wrapped__)
    assert len(_network._defined) == defined


# the list and the page


def test_the_page_of_encoders_and_the_command(capsys):
    """`probsa encoders --markdown` prints what docs/encoders.md ends with."""
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n{_catalogue.catalogue_page()}")
    default = f"the default is `{_registry.PREFERRED}`"
    assert default in page and f"otherwise `{_registry.FALLBACK}`" in page

    def said(*words, status=0):
        assert cli.main(["encoders", *words]) == status
        return capsys.readouterr().out

    assert all(name in said() for name in features.names())
    shown = said("resnet50-bt")
    assert "non-commercial use only" in shown and "bt_rn50_ep200.torch" in shown
    assert said("--markdown") == _catalogue.catalogue_page()
    assert [row["name"] for row in json.loads(said("--json"))] == features.names()
    row = json.loads(said("virchow2", "--json"))
    assert (row["width"], row["gated"], row["input"]) == (2560, True, 224)
    assert "virchow2" in json.loads(said("virchow", "--json", status=2))["error"]
