"""`verify` finds every planted fault, gives advice, and changes nothing."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.leftovers import temporary_of
from support.made_slides import write_cohort
from support.refusals import refused

from probsa.cohorts.extraction import ExtractOptions
from probsa.cohorts.flow import RunOptions, extract_cohort, patch_cohort
from probsa.cohorts.verification import verify
from probsa.errors import InputError
from probsa.patches import settings

SET = "20x_128px_0px_overlap"
SMALL = settings(size=128, mpp=0.5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    write_cohort(folder / "slides")
    patch_cohort(folder / "slides", folder / "work", settings=SMALL)
    extract_cohort(folder / "work", ExtractOptions(batch=16))
    return folder


@pytest.fixture
def work(finished, tmp_path):
    shutil.copytree(finished / "work", tmp_path / "work")
    return tmp_path / "work"


def found(work: Path) -> dict[str, str]:
    return {f.file: f"{f.problem} | {f.advice}" for f in verify(work).findings}


def test_a_whole_folder_has_no_findings(finished):
    result = verify(finished / "work")
    assert result.findings == () and result.files == 6


def test_every_planted_fault_is_found(finished, work):
    patches, features = work / SET / "patches", work / SET / "features_handcrafted"
    with (patches / "slide0_patches.h5").open("r+b") as f:
        f.truncate(500)
    with h5py.File(features / "slide1.h5", "r+") as f:
        f["features"][2, 3] = np.inf
    (features / "slide2.h5").unlink()
    half = temporary_of(features / "slide2.h5")
    half.write_bytes(b"half")
    before = {p: p.stat().st_mtime_ns for p in work.rglob("*")}
    said = found(work)
    assert "is damaged" in said[f"{SET}/slide0"] and "probsa patch again" in said[f"{SET}/slide0"]
    assert "row 2" in said["features_handcrafted/slide1.h5"]
    assert "no features yet" in said["features_handcrafted/slide2.h5"]
    where = f"{SET}/features_handcrafted"
    assert "half-written" in said[f"{where}/{half.name}"]
    assert len(said) == 4
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*")} == before
    # following the advice repairs everything
    (patches / "slide0_patches.h5").unlink()
    patch_cohort(finished / "slides", work, settings=SMALL)
    (features / "slide1.h5").unlink()
    extract_cohort(work, ExtractOptions(batch=16))
    assert found(work) == {}


def test_features_of_other_patches(finished, work):
    strict = settings(size=128, mpp=0.5, min_tissue=0.9)
    patch_cohort(finished / "slides", work, settings=strict, run=RunOptions(overwrite=True))
    said = found(work)
    assert len(said) == 3
    assert all("different patches" in v and "--overwrite" in v for v in said.values())


def test_slides_that_are_gone_and_failures_of_patching(finished, work):
    path = work / SET / "records" / "patch" / "slide1.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"source": "/nowhere/slide1.tiff"}))
    said = found(work)
    assert said == {
        f"{SET}/slide1": "its slide is no longer at /nowhere/slide1.tiff | "
        "give --slides FOLDER to extract and map"
    }
    path.write_text(json.dumps(record | {"status": "failed", "reason": "torn"}))
    assert found(work)[f"{SET}/slide1"].startswith("torn | repair")


def test_a_folder_of_features_alone(work, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(work / SET / "features_handcrafted", alone)
    assert verify(alone).findings == ()
    with h5py.File(alone / "slide1.h5", "r+") as f:
        del f["coords"]
        f["coords"] = np.zeros((3, 2))
    assert "rows, coords 3" in found(alone)["slide1.h5"]
    (tmp_path / "none").mkdir()
    refused(InputError, "nothing to do", verify, tmp_path / "none")
    refused(InputError, "there is no folder", verify, tmp_path / "nothing")
