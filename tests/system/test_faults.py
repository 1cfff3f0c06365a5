"""A mistake of ours, or of the installation, is told apart from a damaged file, wherever it occurs.

A damaged file has a reason, and the other files go on. A package that cannot be imported, a wrong
key or a wrong type in our own code ends the command as an unforeseen error, with its traceback:
no file is blamed for it.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.made_dicom import write_ct_series, write_dicom_slide
from support.made_exports import predictions, slide_bag
from support.made_maps import pink, scan_bag
from support.made_slides import write_cohort
from support.subjects import SUBJECTS, command

from probsa.cli.unforeseen import STATUS
from probsa.cohorts import ExtractOptions, extract_cohort, flow, patch_cohort
from probsa.errors import ProbSAError
from probsa.features import _weights
from probsa.patches import settings
from probsa.training import Checkpoint
from probsa.training.checkpoints import restore_optimizer


def no_import() -> None:
    raise ImportError("libtiff.so.6: cannot open shared object file")


def no_function() -> None:
    np.a_function_that_this_version_lacks()  # pyright: ignore[reportAttributeAccessIssue]


def no_key() -> None:
    raise KeyError("x")


def wrong_type() -> None:
    len(5)  # pyright: ignore[reportArgumentType]


def wrong_keyword() -> None:
    json.dumps(1, a_keyword_that_this_version_lacks=1)


PLANTS = (no_import, no_function, no_key, wrong_type, wrong_keyword)

SMALL = settings(size=128, mpp=0.5)
H5 = ("h5py.is_hdf5", "probsa.core.hdf5.check_size")
NUMPY = ("numpy.load", "probsa.core.arrays.check_size")
TORCH = ("torch.load", "probsa.datasets.formats.tensors.check_size")
FUZZED: dict[str, tuple[str, ...]] = {
    "bags, probsa": (*H5, "probsa.core.hdf5._read_attribute"),
    "bags, clam h5": (*H5, "probsa.datasets.formats.clam.at_level_0"),
    "bags, clam pt": (*TORCH, *H5),
    "bags, trident": (*H5, "probsa.core.hdf5._read_attribute"),
    "bags, stamp": (*H5, "probsa.datasets.formats.stamp._tile_um"),
    "bags, slideflow": (*TORCH, "probsa.core.arrays._stated_size", "numpy.lib.format.read_magic"),
    "bags, torchmil": NUMPY,
    "labels and splits": ("probsa.core.tables._parse", "probsa.core.tables._text"),
    "run": (
        "probsa.training.checkpoints.safe_open",
        "probsa.training.checkpoints.tuples",
        "probsa.training.config.unusual",
        "yaml.load",
    ),
    "predictions": (*H5, "probsa.core.tables._parse"),
    "maps": (*H5, "probsa.maps.folder.draw_map"),
    "scans": ("probsa.slides.nifti._check_volume", "nibabel.nifti1.Nifti1Image.from_filename"),
    "slides": (
        "probsa.slides.images._rgb",
        "probsa.slides.tiff._check_pages",
        "PIL.Image.open",
        "tifffile.TiffFile",
    ),
    "work folder": H5,
}
"""What is replaced by a fault, for each kind of input: library calls, and functions of ours."""


def reached(monkeypatch: pytest.MonkeyPatch, target: str, fault: Callable[[], None]) -> list[str]:
    """Put a fault in place of a function; return a list that has an entry for each call."""
    calls: list[str] = []

    def planted(*_: Any, **__: Any) -> Any:
        calls.append(target)
        fault()

    monkeypatch.setattr(target, planted)
    return calls


def is_told(status: int, text: str, fault: Callable[[], None]) -> None:
    """Check that a command ended as after an unforeseen error, and showed where it arose."""
    assert status == STATUS, text
    assert f"in {fault.__name__}" in text  # a line of the traceback


def debugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all commands of this process print tracebacks."""
    import support.subjects as module

    monkeypatch.setattr(module, "command", lambda *a: command(*a, "--debug"))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Callable[[str], Path]:
    """Return the folder of a subject, which is built once."""
    home = tmp_path_factory.mktemp("subjects")
    folders = {}

    def of(name: str) -> Path:
        if name not in folders:
            folders[name] = home / str(len(folders))
            folders[name].mkdir()
            next(s for s in SUBJECTS if s.name == name).build(folders[name])
        return folders[name]

    return of


def test_every_kind_of_input_has_faults() -> None:
    assert {subject.name for subject in SUBJECTS} == {*FUZZED}


@pytest.mark.parametrize("fault", PLANTS)
@pytest.mark.parametrize(("name", "target"), [(n, t) for n, ts in FUZZED.items() for t in ts])
def test_a_fault_of_ours_is_no_damage(built, tmp_path, monkeypatch, name, target, fault):
    subject = next(s for s in SUBJECTS if s.name == name)
    folder = built(name)
    debugged(monkeypatch)
    calls = reached(monkeypatch, target, fault)
    try:
        said = subject.drive(folder, tmp_path / "out")
    except (ImportError, AttributeError, KeyError, TypeError) as error:  # of the library
        assert type(error) in (ImportError, AttributeError, KeyError, TypeError)
        assert calls
        return
    assert calls, "the fault was not reached"
    is_told(said.status, said.text, fault)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """A folder with slides and scans, their work folders with features, and maps to export."""
    home = tmp_path_factory.mktemp("cohort")
    write_cohort(home / "slides", slides=2, side=768)
    (home / "dicom").mkdir()
    write_dicom_slide(home / "dicom" / "a.dcm", pink())
    write_ct_series(home / "scans" / "b", np.arange(3.0))
    for kind, work in (("slides", "work"), ("dicom", "dicom_work"), ("scans", "scans_work")):
        patch_cohort(home / kind, home / work, settings=SMALL)
        extract_cohort(home / work, ExtractOptions(batch=8))
    predictions(home / "of_slides", slide_bag())
    predictions(home / "of_scans", scan_bag(np.arange(3.0), name="b"))
    return home


SLIDES = ("info", "{home}/slides")
DICOM = ("info", "{home}/dicom")
SCANS = ("info", "{home}/scans")
CUT = ("--patch-size", "128", "--workers", "1")
PATCH = ("patch", "{home}/slides", "--out", "{out}", *CUT)
PATCH_DICOM = ("patch", "{home}/dicom", "--out", "{out}", *CUT)
PATCH_SCANS = ("patch", "{home}/scans", "--out", "{out}", "--workers", "1")
AGAIN = ("--device", "cpu", "--readers", "0", "--encoder", "handcrafted", "--overwrite")
EXTRACT = ("extract", "{work}", *AGAIN)
EXTRACT_DICOM = ("extract", "{dicom_work}", *AGAIN)
EXTRACT_SCANS = ("extract", "{scans_work}", *AGAIN)
RESUME = ("extract", "{work}", "--device", "cpu", "--readers", "0")
ESTIMATE = ("patch", "{home}/slides", "--out", "{out}", "--patch-size", "128", "--dry-run")
MAP = ("map", "{home}/of_slides", "--slides", "{home}/dicom_work", "--out", "{out}", "--no-png")
MAP_SCANS = (
    "map",
    "{home}/of_scans",
    "--slides",
    "{home}/scans_work",
    "--out",
    "{out}",
    "--no-png",
)
COMMANDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (SLIDES, "tifffile.TiffFile"),
    (SLIDES, "probsa.slides.tiff._stored_level"),
    (DICOM, "openslide.OpenSlide.detect_format"),
    (DICOM, "openslide.OpenSlide.__init__"),
    (DICOM, "probsa.slides.wsi._tile_size"),
    (SCANS, "pydicom.dcmread"),
    (SCANS, "probsa.slides.dicom_headers._plane"),
    (PATCH, "probsa.slides.tiff.TiffSlide._pixels"),
    (PATCH, "probsa.cohorts.patching.write_coordinates"),
    (PATCH, "probsa.cohorts.patching.open_slide"),
    (PATCH_DICOM, "probsa.slides.wsi.on_white"),
    (PATCH_SCANS, "pydicom.pixels.utils.pixel_array"),
    (PATCH_SCANS, "probsa.slides.dicom._rescale"),
    (ESTIMATE, "probsa.cohorts.estimates.find_tissue"),
    (EXTRACT, "probsa.cohorts.reading.read_patch"),
    (EXTRACT, "probsa.cohorts.extraction.write_bag"),
    (EXTRACT, "probsa.cohorts.extraction.read_coordinates"),
    (EXTRACT_DICOM, "openslide.OpenSlide.read_region"),
    (EXTRACT_SCANS, "probsa.cohorts.reading.slice_image"),
    (RESUME, "probsa.cohorts.extraction.bag_size"),
    (RESUME, "probsa.cohorts.extraction.read_stamp"),
    ((*MAP, "--geojson", "tiles"), "probsa.exports.geojson._tiles"),
    ((*MAP, "--ome-tiff"), "probsa.exports.ome_tiff._metadata"),
    ((*MAP, "--ome-tiff"), "tifffile.TiffWriter"),
    ((*MAP, "--dicom"), "probsa.exports.dicom._concept"),
    ((*MAP, "--dicom"), "highdicom.pm.ParametricMap"),
    ((*MAP_SCANS, "--nifti"), "probsa.exports.nifti._of_series"),
    ((*MAP_SCANS, "--dicom"), "probsa.exports.dicom._uid"),
)
"""Commands on slides, scans and maps, and the function in whose place a fault is put."""


@pytest.mark.parametrize("fault", PLANTS)
@pytest.mark.parametrize(("arguments", "target"), COMMANDS)
def test_a_fault_in_a_cohort_is_no_damage(
    cohort, tmp_path, monkeypatch, capsys, arguments, target, fault
):
    places = {"home": cohort, "out": tmp_path / "out"}
    for work in ("work", "dicom_work", "scans_work"):
        places[work] = tmp_path / work
        if f"{{{work}}}" in arguments:
            shutil.copytree(cohort / work, tmp_path / work)
    # in this process, where the fault is: see the next test
    run = flow.run_tasks
    monkeypatch.setattr(flow, "run_tasks", lambda *a, **k: run(*a, **{**k, "isolated": False}))
    calls = reached(monkeypatch, target, fault)
    said = command(*(a.format_map(places) for a in arguments), "--debug")
    assert calls, said.text
    is_told(said.status, said.text, fault)


PROGRAM = """
import importlib, sys
import probsa
place, _, name = {target!r}.rpartition(".")
def planted(*_, **__):
    {{}}["x"]
setattr(importlib.import_module(place), name, planted)
"""
"""Run at the start of every process of a command: those of its workers and readers too."""


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ((*PATCH[:-1], "2"), "probsa.slides.tiff._stored_level"),
        (("extract", "{work}", *AGAIN, "--readers", "1"), "probsa.cohorts.reading.read_patch"),
        (("extract", "{work}", *AGAIN, "--workers", "2"), "probsa.cohorts.reading.read_patch"),
    ],
)
def test_a_fault_in_another_process_is_no_damage(cohort, tmp_path, arguments, target):
    shutil.copytree(cohort / "work", tmp_path / "work")
    places = {"home": cohort, "out": tmp_path / "out", "work": tmp_path / "work"}
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(PROGRAM.format(target=target))
    paths = os.pathsep.join([str(tmp_path / "start"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "probsa", *(a.format_map(places) for a in arguments), "--debug"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == STATUS, done.stderr
    assert "in planted" in done.stderr
    assert "KeyError" in done.stderr


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scrambled(path: Path) -> None:
    """Keep the first bytes, by which the format is known."""
    data = path.read_bytes()
    path.write_bytes(data[:16] + random.Random(0).randbytes(max(1, len(data) - 16)))


def other_format(path: Path) -> None:
    path.write_bytes(b"%PDF-1.7 " + bytes(range(256)) * 8)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = (cut, scrambled, other_format, emptied)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("bags, probsa", "few/*.h5"),
        ("bags, clam h5", "**/h5_files/*.h5"),
        ("bags, clam pt", "**/pt_files/*.pt"),
        ("bags, trident", "**/features_*/*.h5"),
        ("bags, stamp", "**/*.h5"),
        ("bags, slideflow", "*.pt"),
        ("bags, torchmil", "**/features/**/*.npy"),
        ("scans", "*.nii"),
        ("slides", "*.png"),
        ("slides", "*.tif"),
    ],
)
def test_a_damaged_file_has_a_reason_and_the_others_go_on(built, tmp_path, name, pattern, damage):
    folder = tmp_path / "in"
    shutil.copytree(built(name), folder)
    subject = next(s for s in SUBJECTS if s.name == name)
    whole = subject.drive(folder, tmp_path / "whole")
    path = sorted(folder.glob(pattern))[0]
    damage(path)
    said = subject.drive(folder, tmp_path / "out")
    assert said.status in (1, 2), said.text
    assert path.name in said.text
    if said.status == 1:
        assert len(said.results) == len(whole.results) - 1
    else:  # a mistake that cannot be of one file alone
        assert (name, damage) in REFUSED, said.text


REFUSED: set[tuple[str, Callable[[Path], None]]] = set()
"""Damages of the first file after which a folder is not read as that tool's."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["slides", "dicom", "scans"])
def test_a_damaged_slide_or_scan_of_a_cohort_has_a_reason(cohort, tmp_path, kind, damage):
    source = Path(shutil.copytree(cohort / kind, tmp_path / kind))
    path = min(p for p in source.rglob("*") if p.is_file())
    good = "a_good_one"
    beside = path if kind != "scans" else path.parent
    other = beside.with_name(good + beside.suffix)
    if kind == "scans":
        write_ct_series(other, np.arange(4.0))
        for each in beside.iterdir():
            damage(each)
    elif kind == "dicom":
        write_dicom_slide(other, pink())
        damage(path)
    else:
        damage(path)
    size = ("--patch-size", "128", "--mpp", "0.5") if kind != "scans" else ()
    said = command("patch", source, "--out", tmp_path / "out", *size, "--json", "--debug")
    assert said.status == 1, said.text
    assert path.stem in said.text or path.parent.name in said.text
    assert list((tmp_path / "out").rglob("*.h5")), said.text


def read_weights(path: Path) -> object:
    return _weights.read(path)


def restore(path: Path) -> object:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], momentum=0.9)
    checkpoint = Checkpoint(
        tensors={"optimizer.0.momentum_buffer": torch.zeros(2)},
        metadata={"groups": optimizer.state_dict()["param_groups"]},
        path=path,
    )
    return restore_optimizer(optimizer, checkpoint)


@pytest.mark.parametrize("fault", PLANTS)
@pytest.mark.parametrize(
    ("call", "suffix", "target"),
    [
        (read_weights, ".pth", "torch.load"),
        (read_weights, ".safetensors", "safetensors.torch.load_file"),
        (restore, ".safetensors", "torch.optim.SGD.load_state_dict"),
    ],
)
def test_a_fault_while_weights_are_read_is_no_damage(
    tmp_path, monkeypatch, call, suffix, target, fault
):
    path = tmp_path / f"a{suffix}"
    torch.save({"w": torch.zeros(2)}, path)
    calls = reached(monkeypatch, target, fault)
    with pytest.raises((ImportError, AttributeError, KeyError, TypeError)) as caught:
        call(path)
    assert calls
    assert not isinstance(caught.value, ProbSAError)
    assert fault.__name__ in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_damaged_weights_have_a_reason(tmp_path, suffix, damage):
    path = tmp_path / f"a{suffix}"
    if suffix == ".pth":
        torch.save({"w": torch.zeros(2)}, path)
    else:
        save_file({"w": torch.zeros(2)}, path)
    damage(path)
    with pytest.raises(ProbSAError) as caught:
        read_weights(path)
    assert path.name in str(caught.value)
