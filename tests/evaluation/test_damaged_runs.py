"""Damaged files of a run end in one error that names the file; nothing large is allocated for one.

Each file of a run is altered in many ways, and read as `probsa predict` and `evaluate` read it.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.refusals import refused
from support.stored import write_folder

from probsa.cli import main
from probsa.errors import CheckpointError, InputError
from probsa.evaluation import load
from probsa.models import arguments, build, names
from probsa.training import RunFolder, load_checkpoint, read_split, restore_model, save_checkpoint
from probsa.workflow import predict_folder


def flags(features, labels, run, *more, epochs="1"):
    return [
        "train",
        "--features",
        str(features),
        "--labels",
        str(labels),
        "--out",
        str(run),
        "--model",
        "abmil-probsa-diag",
        "--model.embed",
        "8",
        "--test-fold",
        "0",
        "--epochs",
        epochs,
        "--temperature-scaling",
        "true",
        "--device",
        "cpu",
        "--tensorboard",
        "false",
        *more,
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    features, labels = write_folder(folder / "data")
    assert main(flags(features, labels, folder / "run")) == 0
    return features, labels, folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    return RunFolder(Path(shutil.copytree(trained[2], tmp_path / "run")))


DAMAGE = {
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "null": b"null",
    "a list": b"[]",
    "a number": b"3",
    "deep nesting": b"[" * 50_000,
    "nothing known": b'{"later": 1}',
}
PARTS = ("split", "threshold", "features", "map_score", "temperature")
FILES = (*(f"{part}.json" for part in PARTS), "run.yaml")


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((name, "no JSON") for name in FILES), *(("split.json", damage) for damage in DAMAGE)],
)
def test_a_damaged_file_of_a_run_is_named(trained, run, tmp_path, name, damage):
    (run.path / name).write_bytes(DAMAGE[damage])
    with pytest.raises(InputError, match=name):
        predict_folder(run.path, trained[0], out=tmp_path / "p", device="cpu")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("split.json", "train", "abc"),
        ("split.json", "val", [1]),
        ("threshold.json", "threshold", "0.5"),
        ("threshold.json", "threshold", 7),
        ("features.json", "patch_sizes", [0.0]),
        ("features.json", "encoders", "resnet50"),
        ("map_score.json", "chosen", "beauty"),
        ("temperature.json", "temperature", 0),
        ("temperature.json", "temperature", [1]),
        ("run.yaml", "model", 3),
        ("run.yaml", "data", {"features": 3, "labels": "l"}),
        ("run.yaml", "training", {"epochs": "many"}),
        ("run.yaml", "training", {"epoch": 3}),
        ("run.yaml", "seed", "a"),
    ],
)
def test_a_wrong_type_is_named_with_its_file(trained, run, tmp_path, name, key, value):
    file = run.path / name
    is_config = name == "run.yaml"
    stored = run.config().to_dict() if is_config else json.loads(file.read_text())
    file.write_text(json.dumps(stored | {key: value}))  # JSON is YAML, too
    with pytest.raises(InputError, match=name):
        predict_folder(run.path, trained[0], out=tmp_path / "p", device="cpu")


def test_a_bag_in_two_parts_is_refused(run):
    stored = json.loads(run.split_file.read_text())
    stored["train"].append(stored["test"][0])
    run.split_file.write_text(json.dumps(stored))
    refused(InputError, r"split\.json", read_split, run)


def test_aliases_that_multiply_are_refused(run):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    run.config_file.write_text("\n".join(lines))
    refused(InputError, r"run\.yaml", run.config)


def test_damaged_arrays_of_the_distances_are_named(trained, run, tmp_path):
    def refused():
        with pytest.raises(InputError, match=r"training_distance\.npz"):
            predict_folder(run.path, trained[0], out=tmp_path / "p", device="cpu")

    with np.load(run.distance_file) as stored:
        arrays = dict(stored)
    for change in (
        {"bags_mean": arrays["bags_mean"][:-1]},
        {"bags_mean": arrays["bags_mean"] * np.nan},
        {"instances_whitening": np.array("text")},
        {"instances_reference": np.zeros(0, np.float32)},
    ):
        np.savez(run.distance_file, **(arrays | change))
        refused()
    for content in (b"", b"PK\x03\x04", run.distance_file.read_bytes()[:-100]):
        run.distance_file.write_bytes(content)
        refused()


def rewrite(path, change):
    """Change the metadata of a checkpoint; `change` returns the new text or value."""
    with safe_open(path, framework="pt") as f:
        stored = json.loads(f.metadata()["probsa"])
    tensors = load_file(path)
    new = change(stored)
    text = new if isinstance(new, str) else json.dumps(new)
    save_file(tensors, path, metadata={"probsa": text})


def stating(**values):
    return lambda stored: stored | values


def without(key):
    return lambda stored: {k: v for k, v in stored.items() if k != key}


def changed_arguments(**changed):
    return lambda stored: stored | {"arguments": stored["arguments"] | changed}


CHANGES = {
    "not JSON": lambda stored: "{",
    "a list": lambda stored: [],
    "null": lambda stored: None,
    "deep": lambda stored: "[" * 50_000,
    "nested arguments": changed_arguments(embed=[[[[1]]]]),
    "no model": without("model"),
    "model is a list": stating(model=["abmil"]),
    "no arguments": without("arguments"),
    "arguments are a list": stating(arguments=[1]),
    "empty arguments": stating(arguments={}),
    "unknown argument": changed_arguments(embedding=3),
    "wrong type": changed_arguments(embed="8"),
    "negative": changed_arguments(embed=-8),
    "other width": changed_arguments(embed=16),
    "classes are text": stating(classes="01"),
    "no classes": without("classes"),
    "no progress": without("progress"),
    "progress is text": stating(progress="far"),
    "epoch is text": stating(progress={"epoch": "1"}),
    "format is a list": stating(format=[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_metadata_of_a_checkpoint(run, change):
    rewrite(run.best, CHANGES[change])
    refused(CheckpointError, r"best\.safetensors", load, run.path, device="cpu")


@pytest.mark.parametrize("name", ["standardize.mean", "standardize.deviation"])
def test_a_checkpoint_without_its_standardisation(run, name):
    with safe_open(run.best, framework="pt") as f:
        metadata = f.metadata()
    tensors = load_file(run.best)
    save_file({k: v for k, v in tensors.items() if k != name}, run.best, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"best\.safetensors"):
        load(run.path, device="cpu")


def test_a_damaged_state_of_training_cannot_be_resumed(trained, run, capsys):
    for change, expected in (
        (stating(groups=3), "groups is 3"),
        (stating(groups=[{"params": [0]}]), "cannot be continued from"),
        (without("groups"), "groups is missing"),
    ):
        file = run.path / "again.safetensors"
        shutil.copyfile(run.last, file)
        rewrite(run.last, change)
        config = run.config().to_dict()
        config["training"]["epochs"] = 2
        (run.path / "run.yaml").write_text(json.dumps(config))
        assert main(flags(*trained[:2], run.path, "--resume", epochs="2")) == 2
        assert expected in capsys.readouterr().err
        file.replace(run.last)


@pytest.fixture
def allocated(monkeypatch):
    """Count the elements of the parameters that are made with memory."""
    made = []
    original = torch.nn.Module.register_parameter

    def register(self, name, parameter):
        if parameter is not None and parameter.device.type != "meta":
            made.append(parameter.numel())
        return original(self, name, parameter)

    monkeypatch.setattr(torch.nn.Module, "register_parameter", register)
    return made


TOO_LARGE = "larger model than its [0-9,]+ stored"


@pytest.mark.parametrize(
    "changed",
    [{"embed": 4_000_000}, {"in_dim": 10**12}, {"embed": 60_000}, {"in_dim": 900_000}],
)
def test_no_memory_is_taken_for_sizes_that_are_not_stored(run, allocated, changed):
    rewrite(run.best, changed_arguments(**changed))
    (argument,) = changed
    with pytest.raises(CheckpointError, match=f"{argument} is .* at most|{TOO_LARGE}"):
        load(run.path, device="cpu")
    assert sum(allocated) == 0


def test_a_checkpoint_of_many_layers_is_refused_before_they_are_built(tmp_path, allocated):
    model = build("gtp", in_dim=6, n_classes=1)
    path = tmp_path / "m.safetensors"
    depth = next(k for k in ("layers", "depth", "blocks") if k in arguments("gtp"))
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    metadata = {"model": "gtp", "arguments": model.arguments | {depth: 10**9}}
    save_checkpoint(path, tensors, metadata=metadata)
    allocated.clear()
    refused(CheckpointError, "layers is 1000000000", restore_model, load_checkpoint(path))
    assert sum(allocated) == 0


@pytest.mark.parametrize("name", names())
def test_the_sizes_of_every_model_are_compared_without_memory(tmp_path, allocated, name):
    """A model that reads its tensors while it is built cannot be built without memory."""
    model = build(name, in_dim=6, n_classes=1)
    path = tmp_path / "m.safetensors"
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    save_checkpoint(path, tensors, metadata={"model": name, "arguments": model.arguments})
    count = sum(allocated)
    allocated.clear()
    restored = restore_model(load_checkpoint(path))
    assert sum(allocated) == count  # once, and not for the comparison
    for key, value in model.state_dict().items():
        assert torch.equal(value, restored.state_dict()[key])
    dropped = dict(list(tensors.items())[1:])
    save_checkpoint(path, dropped, metadata={"model": name, "arguments": model.arguments})
    refused(CheckpointError, f"fit the model '{name}'", restore_model, load_checkpoint(path))
