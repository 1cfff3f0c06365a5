"""Checkpoints keep every bit, and errors name the unusable file and the reason."""

import json

import pytest
import torch
from safetensors.torch import save_file

from probsa import removed
from probsa.errors import CheckpointError
from probsa.models import build
from probsa.training import config
from probsa.training.checkpoints import load_checkpoint, restore_model, save_checkpoint


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
        ({"arguments": {"in_dim": 10**9, "embed": 10**9}}, "a larger model than its"),
    ],
)
def test_what_does_not_fit_is_named(saved, changed, said):
    altered(saved[0], **changed)
    with pytest.raises(CheckpointError, match=said):
        restore_model(load_checkpoint(saved[0]), expect=None if "theirs" in said else "abmil")


def test_files_that_are_no_checkpoints(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.safetensors")
    (tmp_path / "a.pt").write_bytes(b"not a tensor in sight, but long enough to have a header")
    with pytest.raises(CheckpointError, match=r"a\.pt is damaged or not a safetensors file"):
        load_checkpoint(tmp_path / "a.pt")
    save_file({"w": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="not one that probsa wrote"):
        load_checkpoint(tmp_path / "b.safetensors")
