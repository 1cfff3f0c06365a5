"""Files of original weights become models that predict; files with pickled code are refused."""

import json
import pickle

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import probsa
from probsa.cli.entry import main
from probsa.errors import CheckpointError, OutputExists, UnknownName
from probsa.models import from_original
from probsa.training.checkpoints import convert_checkpoint, read_state

REFERENCE = "dsmil"


@pytest.fixture(scope="module")
def state(shared_golden):
    """The published weights, under their original names."""
    tensors = load_file(shared_golden / "ckpt_dsmil_c16.safetensors")
    return {k.removeprefix("state."): v for k, v in tensors.items() if k.startswith("state.")}


@pytest.fixture
def bags(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for k in range(3):
        with h5py.File(folder / f"{k}.h5", "w") as f:
            f["features"] = np.random.default_rng(k).random((9, 512), dtype=np.float32)
            f["coords"] = np.stack([np.arange(9) % 3, np.arange(9) // 3], 1) * 64
            f["coords"].attrs["patch_size_level0"] = 64
    return folder


WRAPPED = {
    "lightning": lambda state: {"state_dict": {f"model.{k}": v for k, v in state.items()}},
    "script": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "parts": lambda state: {
        part: {k.partition(".")[2]: v for k, v in state.items() if k.startswith(f"{part}.")}
        for part in {k.partition(".")[0] for k in state}
    },
}


@pytest.mark.parametrize("how", WRAPPED)
def test_a_torch_file_as_training_scripts_write_it(state, how, tmp_path):
    source, out = tmp_path / "their.pth", tmp_path / "ours.safetensors"
    torch.save(WRAPPED[how](state), source)
    model = convert_checkpoint(source, out, reference=REFERENCE)
    expected = from_original(REFERENCE, state)
    predictor = probsa.load(out, device="cpu")
    assert predictor.classes == ("0", "1") and predictor.metadata["from"] == REFERENCE
    assert model.name == predictor.model.name == "dsmil"
    converted = predictor.model.state_dict()
    assert all(torch.equal(v, converted[k]) for k, v in expected.state_dict().items())


def test_the_commands_convert_predict_evaluate_map(state, tmp_path, bags, capsys):
    source, out = tmp_path / "their.safetensors", tmp_path / "ours.safetensors"
    save_file(state, source)
    given = ["convert-checkpoint", str(source), "--reference", REFERENCE, "--out", str(out)]
    assert main([*given, "--classes", "normal", "tumour", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "dsmil"
    labels = tmp_path / "labels.csv"
    labels.write_text("bag,label\n0,normal\n1,tumour\n2,tumour\n")
    preds = tmp_path / "preds"
    options = ["--features", str(bags), "--labels", str(labels), "--out", str(preds)]
    assert main(["predict", str(out), *options]) == 0
    header, *rows = (preds / "predictions.csv").read_text().splitlines()
    assert "p_tumour" in header and len(rows) == 3
    capsys.readouterr()
    evaluate = ["evaluate", str(preds), "--labels", str(labels), "--bootstrap", "0", "--json"]
    assert main([*evaluate, "--classes", "normal", "tumour"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["map", str(preds), "--out", str(tmp_path / "maps")]) == 0
    assert len(list((tmp_path / "maps").glob("*.png"))) == 3


class Code:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self):
        return (print, ("run",))


def test_a_file_with_code_in_it_is_not_opened(tmp_path, capsys):
    file = tmp_path / "bad.pt"
    torch.save({"a": nn.Linear(1, 1)}, file)
    with pytest.raises(CheckpointError, match=r"cannot be read as plain tensors.*state_dict"):
        read_state(file)
    file.write_bytes(pickle.dumps(Code(), protocol=2))
    with pytest.raises(CheckpointError, match="cannot be read as plain tensors"):
        read_state(file)
    assert "run" not in capsys.readouterr().out
    torch.save(torch.zeros(3), file)
    with pytest.raises(CheckpointError, match="holds a Tensor, not a state dict"):
        read_state(file)
    with pytest.raises(CheckpointError, match="there is no file"):
        read_state(tmp_path / "nowhere.pt")


def test_what_is_wrong_says_so_and_what_is_there_is_kept(state, tmp_path, capsys):
    source, out = tmp_path / "their.safetensors", tmp_path / "ours.safetensors"
    save_file(state, source)
    with pytest.raises(UnknownName, match=r"no reference named 'dsmill'.*'dsmil'"):
        convert_checkpoint(source, out, reference="dsmill")
    with pytest.raises(CheckpointError, match=r"3 names of classes .* of 2 classes"):
        convert_checkpoint(source, out, reference=REFERENCE, classes=("a", "b", "c"))
    given = ["convert-checkpoint", str(source), "--reference", REFERENCE, "--out", str(out)]
    assert main([*given, "--argument", "K"]) == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(OutputExists, match="exists"):
        convert_checkpoint(source, out, reference=REFERENCE)
    assert out.read_text() == "mine"
    with pytest.raises(OutputExists, match="not a model"):
        convert_checkpoint(source, out, reference=REFERENCE, overwrite=True)
    assert out.read_text() == "mine"
    out.unlink()
    for overwrite in (False, True):
        convert_checkpoint(source, out, reference=REFERENCE, overwrite=overwrite)
    assert probsa.load(out, device="cpu").model.name == "dsmil"
