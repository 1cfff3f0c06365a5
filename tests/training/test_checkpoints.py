"""Checkpoints keep every bit, and errors name the unusable file and the reason."""

import json

import pytest
import torch
from safetensors.torch import save_file

from probsa import removed
from probsa.errors import CheckpointError, MissingExtra
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
    monkeypatch.setattr(config, "LEFT", {"model.init": "default"})
    monkeypatch.setattr(removed, "REMOVED", {"init": "the only one that is left"})
    path, _ = saved
    altered(path, arguments={"in_dim": 4, "embed": [8, 4], "init": "default"})
    assert "init" not in restore_model(load_checkpoint(path)).arguments
    altered(path, arguments={"in_dim": 4, "embed": [8, 4], "init": "another"})
    with pytest.raises(CheckpointError, match=r"'init'.* Instead: the only one"):
        restore_model(load_checkpoint(path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": 99, "version": "9.0"}, r"a\.safetensors has checkpoint format 99 .*9\.0"),
        ({"model": "theirs"}, "'theirs', which is not installed here"),
        ({"model": "clam-sb"}, "holds a 'clam-sb', not a 'abmil'"),
        ({"model": 3}, "model is 3"),
        ({"arguments": {"in_dim": 5, "embed": [8, 4]}}, "does not fit the model .*size mis"),
        ({"arguments": {"in_dim": 4, "embd": 3}}, "does not fit the model 'abmil': no argument"),
        ({"arguments": {"in_dim": 60_000, "embed": 60_000}}, "a larger model than its"),
    ],
)
def test_what_does_not_fit_is_named(saved, changed, said):
    altered(saved[0], **changed)
    with pytest.raises(CheckpointError, match=said):
        restore_model(load_checkpoint(saved[0]), expect=None if "theirs" in said else "abmil")


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_arguments_that_are_unknown_missing_or_of_another_kind_are_named(saved, arguments, said):
    altered(saved[0], arguments=arguments)
    with pytest.raises(CheckpointError, match=rf"a\.safetensors does not fit .*{said}"):
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
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.safetensors")
    (tmp_path / "a.pt").write_bytes(b"not a tensor in sight, but long enough to have a header")
    with pytest.raises(CheckpointError, match=r"a\.pt is damaged or not a safetensors file"):
        load_checkpoint(tmp_path / "a.pt")
    save_file({"w": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="not one that probsa wrote"):
        load_checkpoint(tmp_path / "b.safetensors")
