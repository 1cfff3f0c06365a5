"""Stored values of another type, shape or size are refused by name."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from pydicom.uid import ExplicitVRLittleEndian
from safetensors import safe_open
from safetensors.torch import save_file
from support.made_dicom import write_ct_series
from support.stored import write_folder

from probsa.cli import main
from probsa.core import note_written


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    features, labels = write_folder(folder / "data", kind="slide")
    assert main(_train(features, labels, folder / "r")) == 0
    return folder


@pytest.fixture
def work(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "work"))


def _train(features, labels, out, *more):
    return [
        *(
            f"train --features {features} --labels {labels} --out {out} --model "
            "abmil-probsa-diag --model.embed 8 --test-fold 0 --epochs 1 --device cpu "
            "--tensorboard false"
        ).split(),
        *more,
    ]


def _labels(work, text):
    table = work / "data" / "labels.csv"
    table.write_text(table.read_text().replace("003,1,", f"003,{text},"))
    return _train(work / "data" / "features", table, work / "new")


def _cache(work, value):
    more = ("--cache-gb", value)
    return _train(work / "data" / "features", work / "data" / "labels.csv", work / "new", *more)


def _predict(work, classes):
    path = next((work / "r" / "checkpoints").glob("best*"))
    with safe_open(path, framework="pt") as f:
        header = json.loads(f.metadata()["probsa"]) | {"classes": classes}
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - not a dict
    save_file(tensors, path, metadata={"probsa": json.dumps(header)})
    features = work / "data" / "features"
    return ["predict", str(work / "r"), "--features", str(features), "--out", str(work / "p")]


def _altered(command, name, value):
    def make(work):
        path = next((work / "r" / "predictions" / "instances").glob("*.h5"))
        with h5py.File(path, "a") as f:
            f.pop(name, None)
            f[name] = value(len(f["attention_mean"]))
        out = ("--out", str(work / "out")) if command == "map" else ()
        bag = ("--bag", path.stem) if command == "map" else ()
        return [command, str(work / "r" / "predictions"), *out, *bag]

    return make


def _slideflow(work, centres):
    folder = work / "slideflow"
    folder.mkdir()
    torch.save(torch.zeros(4, 6), folder / "a.pt")
    np.savez(folder / "a.index.npz", centres)
    return f"convert {folder} --from slideflow --slide-mpp 0.5 --out {work / 'out'}".split()


def _torchmil(work, features):
    root = work / "patches_512"
    for kind, values in {"features": features, "coords": np.arange(8).reshape(4, 2) * 512}.items():
        (root / kind).mkdir(parents=True)
        np.save(root / kind / "a.npy", values)
    return ["convert", str(root / "features"), "--from", "torchmil", "--out", str(work / "out")]


def _clam(work, coords, **attributes):
    """CLAM's first script stored pixels, and coordinates at another level."""
    for kind in ("patches", "pt_files"):
        (work / "clam" / kind).mkdir(parents=True)
    torch.save(torch.zeros(4, 6), work / "clam" / "pt_files" / "a.pt")
    with h5py.File(work / "clam" / "patches" / "a.h5", "w") as f:
        f["imgs"] = np.zeros((4, 64, 64, 3), np.uint8)
        f.create_dataset("coords", (len(coords), 2), "i8", chunks=(1, 2))[:4] = coords[:4]
        f["coords"].attrs.update(attributes)
    return ["convert", str(work / "clam"), "--from", "clam", "--out", str(work / "out")]


def _null_map(work):
    path = next((work / "r" / "predictions" / "null_maps").glob("*.h5"))
    with h5py.File(path, "a") as f:
        f.attrs["position"] = np.arange(2)
    return ["evaluate", str(work / "r" / "predictions"), "--part", "all"]


def _dicom(work, syntax):
    write_ct_series(work / "ct", np.arange(3) * 5.0)
    old = ExplicitVRLittleEndian.encode()
    for path in (work / "ct").rglob("*.dcm"):
        path.write_bytes(path.read_bytes().replace(old, syntax.encode().ljust(len(old), b"\0"), 1))
    return ["info", str(work / "ct")]


DIGITS = "9" * 5000
KINDS = {"", "BagError", "InputError", "TableError", "CheckpointError", "SlideError"}
CASES = {
    "digits": (lambda w: _labels(w, DIGITS), 2, "labels.csv"),
    "superscript": (lambda w: _labels(w, "²"), 2, "'²'"),
    "huge class": (lambda w: _labels(w, 20 * "9"), 2, "'003'"),
    "cache": (lambda w: _cache(w, "1e300"), 2, "cache_gb"),
    "classes twice": (lambda w: _predict(w, ["a", "a"]), 2, "a, a"),
    "a class too many": (lambda w: _predict(w, list("abc")), 2, "a, b, c"),
    "longdouble": (
        lambda w: _slideflow(w, np.arange(8).reshape(4, 2) * np.longdouble(64)),
        1,
        "a.index.npz",
    ),
    "overflow": (lambda w: _clam(w, np.full((4, 2), 2**40), downsample=1e9), 1, "a.h5: coords"),
    "chunks": (lambda w: _clam(w, np.zeros((20_000, 2)), downsample=1.0), 1, "'coords'"),
    "null map": (_null_map, 2, "'position'"),
    "torchmil": (lambda w: _torchmil(w, np.zeros(4)), 1, "a.npy: features"),
    "syntax": (lambda w: _dicom(w, "1.2.3.4.5"), 2, "'1.2.3.4.5'"),
    **{
        f"{name} {command}": (_altered(command, name, value), status, f".h5: {name}")
        for command, status in (("map", 1), ("evaluate", 2))
        for name, value in {
            "instance_labels": lambda n: np.zeros((n, 1), int),
            "degree": lambda n: np.ones((n, 2)),
            "ood_distance": lambda n: np.ones((n, 1)),
        }.items()
    },
}


@pytest.mark.parametrize(("make", "status", "named"), CASES.values(), ids=CASES)
def test_the_file_the_key_or_the_value_is_named(work, capsys, make, status, named):
    arguments = make(work)
    assert main([*arguments, "--json"]) == status
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer.get("kind", "") in KINDS
    assert named in printed.err + printed.out


def test_a_stride_of_nothing_does_not_overflow(work):
    path = next((work / "r" / "predictions" / "instances").glob("*.h5"))
    with h5py.File(path, "a") as f:
        f.attrs["pitch"] = 1e-300
    arguments = ["map", str(work / "r" / "predictions"), "--bag", path.stem]
    assert main([*arguments, "--out", str(work / "out")]) in (0, 1)


def test_predictions_without_their_null_maps_name_the_folder(work, capsys):
    shutil.rmtree(work / "r" / "predictions" / "null_maps")
    assert main(["evaluate", str(work / "r" / "predictions"), "--part", "all", "--json"]) == 0
    assert "null_maps" in capsys.readouterr().out


def test_predictions_are_replaced_behind_a_link(work):
    arguments = ["predict", str(work / "r"), "--features", str(work / "data" / "features")]
    assert main([*arguments, "--out", str(work / "p")]) == 0
    (work / "link").symlink_to(work / "p")
    before = sorted(work.iterdir())
    (work / "p" / "slides.csv").write_text("old")
    assert main([*arguments, "--out", str(work / "link"), "--overwrite"]) == 2  # it is the user's
    assert (work / "p" / "slides.csv").read_text() == "old"
    note_written(work / "p" / "slides.csv")
    assert main([*arguments, "--out", str(work / "link"), "--overwrite"]) == 0
    assert sorted(work.iterdir()) == before and (work / "link").is_symlink()
    assert (work / "p" / "null_maps").is_dir() and not (work / "p" / "slides.csv").exists()
