"""Checkpoints keep every bit, and errors name the unusable file and the reason."""

import json

import pytest
import torch
from safetensors.torch import save_file

from probsa import removed
from probsa.errors import CheckpointError, MissingExtra, UnknownName
from probsa.models import build
from probsa.training import config, load_checkpoint, restore_model, save_checkpoint


@pytest.fixture
def saved(tmp_path):
    model = build("abmil", in_dim=4, embed=(8, 4))
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    metadata = {"model": model.name, "arguments": model.arguments}
    save_checkpoint(tmp_path / "a.safetensors", tensors, metadata=metadata)
    return tmp_path / "a.safetensors", model


def altered(path, **changed):
    checkpoint = load_checkpoint(path)
    header = json.dumps({**checkpoint.metadata, **changed})
    save_file(checkpoint.tensors, path, metadata={"probsa": header})


def test_a_round_trip_keeps_every_bit(saved):
    path, model = saved
    again = restore_model(load_checkpoint(path), expect="abmil")
    assert again.arguments["embed"] == (8, 4)
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


def test_removed_arguments_with_the_values_of_today_are_read(saved, monkeypatch):
    monkeypatch.setattr(config, "FORMER_VALUES", {"model.init": "default"})
    monkeypatch.setattr(removed, "REMOVED", {"init": "the only one that is left"})
    path, _ = saved
    altered(path, arguments={"in_dim": 4, "embed": [8, 4], "init": "default"})
    assert "init" not in restore_model(load_checkpoint(path)).arguments
    altered(path, arguments={"in_dim": 4, "embed": [8, 4], "init": "another"})
    with pytest.raises(CheckpointError) as refused:
        restore_model(load_checkpoint(path))
    cause = refused.value.__cause__
    assert isinstance(cause, UnknownName) and cause.removed and cause.name == "init"


@pytest.mark.parametrize(
    ("changed", "expect", "fact"),
    [
        ({"format": 99, "version": "9.0"}, "abmil", "99"),
        ({"model": "theirs"}, None, "theirs"),
        ({"model": "clam-sb"}, "abmil", "clam-sb"),
        ({"model": 3}, "abmil", "model"),
        ({"arguments": {"in_dim": 5, "embed": [8, 4]}}, "abmil", "embed"),
        ({"arguments": {"in_dim": 4, "embd": 3}}, "abmil", "embd"),
        ({"arguments": {"in_dim": 60_000, "embed": 60_000}}, "abmil", "abmil"),
    ],
)
def test_what_does_not_fit_is_named(saved, changed, expect, fact):
    path, _ = saved
    altered(path, **changed)
    with pytest.raises(CheckpointError) as refused:
        restore_model(load_checkpoint(path), expect=expect)
    assert fact in str(refused.value) and str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "in_dim"),
        ({"in_dim": 4, "name": "x"}, "'name'"),
        ({"in_dim": 4, "self": 1}, "'self'"),
        ({"in_dim": 4, "model_arguments": {}}, "'model_arguments'"),
        ({"in_dim": 4, "": 1}, "''"),
        ({"in_dim": 4, "likelihood": "x"}, "likelihood"),
        ({"in_dim": 4, "likelihood": 3}, "likelihood"),
        ({"in_dim": 4, "likelihood": []}, "likelihood"),
        ({"in_dim": 4, "likelihood": {"task": "regression", "scale": float("nan")}}, "scale"),
        ({"in_dim": 4, "likelihood": {"task": "ordinal", "n_classes": 10**9}}, "n_classes"),
        ({"in_dim": 4, "covariates": -1}, "covariates"),
        ({"in_dim": 4, "covariates": "x"}, "covariates"),
        ({"in_dim": 4, "covariates": 10**9}, "covariates"),
        ({"in_dim": None}, "in_dim"),
        ({"in_dim": [4]}, "in_dim"),
        ({"in_dim": 4, "embed": {"a": 1}}, "embed"),
    ],
)
def test_arguments_that_are_unknown_missing_or_of_another_kind_are_named(saved, arguments, name):
    altered(saved[0], arguments=arguments)
    with pytest.raises(CheckpointError, match=rf"a\.safetensors.*{name}"):
        restore_model(load_checkpoint(saved[0]))


def no_key(*_, **__):
    raise KeyError("x")


def wrong_type(*_, **__):
    raise TypeError("__init__() missing 1 required keyword-only argument: 'x'")


def no_attribute(*_, **__):
    torch.a_function_that_this_version_lacks()


def no_import(*_, **__):
    raise ImportError("libtiff.so.6: cannot open shared object file")


def no_extra(*_, **__):
    raise MissingExtra("timm", "encoders")


FAULTS = (no_key, wrong_type, no_attribute, no_import, no_extra)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_inside_a_constructor_is_not_the_files(saved, monkeypatch, fault):
    monkeypatch.setattr("probsa.models._attention.Embed", fault)
    with pytest.raises((LookupError, TypeError, AttributeError, ImportError)) as caught:
        restore_model(load_checkpoint(saved[0]))
    assert not isinstance(caught.value, CheckpointError)
    assert fault.__name__ in [entry.name for entry in caught.traceback]


def test_files_that_are_no_checkpoints(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"not a tensor in sight, but long enough to have a header")
    save_file({"w": torch.zeros(1)}, tmp_path / "b.safetensors")
    for name in ("none.safetensors", "a.pt", "b.safetensors"):
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(tmp_path / name)
