"""Digests of patches and features: every change is noticed, and its cause named."""

import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
from support.made_slides import tissue, write_slide

from probsa.cohorts import (
    ExtractOptions,
    WorkFolder,
    extract_cohort,
    patch_cohort,
    read_coordinates,
)
from probsa.cohorts.coordinates import write_coordinates
from probsa.cohorts.work import content_of
from probsa.core import read_bag
from probsa.core.ownership import SAMPLE_BYTES
from probsa.patches import settings
from probsa.slides import Windows

SMALL = settings(size=128, mpp=0.5)
FEW = ExtractOptions(batch=8)


@pytest.fixture
def slide(tmp_path) -> tuple[Path, Path]:
    """Return the folder of one slide, and its work folder."""
    write_slide(tmp_path / "s" / "x.tiff", tissue(512, 512, boxes=[(0, 0, 512, 512)]))
    patch_cohort(tmp_path / "s", tmp_path / "w", settings=SMALL)
    extract_cohort(tmp_path / "w", FEW)
    return tmp_path / "s", tmp_path / "w"


@pytest.mark.parametrize("at", [0, 5 * SAMPLE_BYTES // 2, 5 * SAMPLE_BYTES - 1])
def test_a_byte_at_the_start_in_the_middle_or_at_the_end(tmp_path, at):
    path = tmp_path / "x"
    with path.open("wb") as f:
        f.truncate(5 * SAMPLE_BYTES)
    before = content_of((path,))
    with path.open("r+b") as f:
        f.seek(at)
        f.write(b"1")
    assert content_of((path,)) != before


def test_other_windows_or_another_type_are_noticed(tmp_path):
    (tmp_path / "s").mkdir()
    volume = np.random.default_rng(0).integers(-100, 200, (40, 40, 5)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "s" / "x.nii")
    patch_cohort(tmp_path / "s", tmp_path / "w", settings=SMALL)
    assert extract_cohort(tmp_path / "w", FEW).counts == {"done": 1}
    other = extract_cohort(tmp_path / "w", replace(FEW, windows=Windows.parse("bone,bone,bone")))
    assert "another windows." in other.failures[0][1]
    other = extract_cohort(tmp_path / "w", replace(FEW, dtype="float16"))
    assert "another dtype." in other.failures[0][1]
    assert extract_cohort(tmp_path / "w", FEW).counts == {"done": 1, "kept": 1}


def test_coordinates_that_the_record_does_not_speak_of(slide):
    """A run with other settings was killed between writing the coordinates and the record."""
    slides, work = slide
    path = WorkFolder(work).choose().patches_file("x")
    held = read_coordinates(path)
    write_coordinates(path, replace(held, made_with="0" * 16, coords=held.coords + 1))
    (report,) = patch_cohort(slides, work, settings=SMALL)
    assert [o.kept for o in report.outcomes] == [False]
    assert (read_coordinates(path).coords == held.coords).all()
    write_coordinates(path, replace(held, coords=held.coords[1:]))
    (report,) = patch_cohort(slides, work, settings=SMALL)
    assert [o.kept for o in report.outcomes] == [False]
    assert (read_coordinates(path).coords == held.coords).all()


def test_features_of_fewer_rows_than_patches_are_made_anew(slide):
    _, work = slide
    path = WorkFolder(work).choose().features("handcrafted") / "x.h5"
    whole = Path(shutil.copy(path, work.parent / "whole.h5"))
    with h5py.File(path, "r+") as f:
        for name in ("features", "coords"):
            kept = f[name][1:]
            attributes = dict(f[name].attrs)
            del f[name]
            f.create_dataset(name, data=kept).attrs.update(attributes)
    assert [o.status for o in extract_cohort(work, FEW).outcomes] == ["failed"]
    path.unlink()
    assert [o.kept for o in extract_cohort(work, FEW).outcomes] == [False]
    assert (read_bag(path).features == read_bag(whole).features).all()
