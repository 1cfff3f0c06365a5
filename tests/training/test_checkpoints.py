"""Checkpoints keep every bit, and errors name the unusable file and the reason."""

import json

import pytest
import torch
from safetensors.torch import save_file

from probsa.errors import CheckpointError
from probsa.models import build
from probsa.training.checkpoints import load_checkpoint, restore_model, save_checkpoint


@pytest.fixture
def saved(tmp_path):
    model = build("abmil", in_dim=4, embed=(8, 4))
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    metadata = {"model": model.name, "arguments": model.arguments}
    save_checkpoint(tmp_path / "a.safetensors", tensors, metadata=metadata)
    return tmp_path / "a.safetensors", model


def test_a_round_trip_keeps_every_bit(saved):
    path, model = saved
    again = restore_model(load_checkpoint(path), path=path, expect="abmil")
    assert again.arguments["embed"] == (8, 4)
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


def test_another_model_is_refused(saved):
    path, _ = saved
    with pytest.raises(CheckpointError, match="holds a 'abmil', not a 'tabmil'"):
        restore_model(load_checkpoint(path), path=path, expect="tabmil")


def altered(path, **changed):
    checkpoint = load_checkpoint(path)
    header = json.dumps({**checkpoint.metadata, **changed})
    save_file(checkpoint.tensors, path, metadata={"probsa": header})


def test_another_version_is_refused(saved):
    path, _ = saved
    altered(path, format=99, version="9.0")
    with pytest.raises(CheckpointError, match=r"a\.safetensors has checkpoint format 99 .*9\.0"):
        load_checkpoint(path)


def test_a_model_that_is_not_installed_is_named(saved):
    path, _ = saved
    altered(path, model="theirs")
    with pytest.raises(CheckpointError, match="'theirs', which this installation does not have"):
        restore_model(load_checkpoint(path), path=path)


def test_weights_that_do_not_fit_are_named(saved):
    path, _ = saved
    altered(path, arguments={"in_dim": 5, "embed": [8, 4]})
    with pytest.raises(CheckpointError, match=r"a\.safetensors does not fit the model 'abmil'"):
        restore_model(load_checkpoint(path), path=path)


def test_files_that_are_no_checkpoints(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.safetensors")
    (tmp_path / "a.pt").write_bytes(b"not a tensor in sight, but long enough to have a header")
    with pytest.raises(CheckpointError, match=r"a\.pt is damaged or not a safetensors file"):
        load_checkpoint(tmp_path / "a.pt")
    save_file({"w": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="not one that probsa wrote"):
        load_checkpoint(tmp_path / "b.safetensors")
