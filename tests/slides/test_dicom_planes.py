"""DICOM slides with several focal planes or channels: what they hold is named, nothing is read."""

import copy

import numpy as np
import pydicom
import pytest
from support.made_dicom import write_dicom_slide
from support.written_slides import texture

from probsa.cohorts import patch_cohort
from probsa.errors import SlideError
from probsa.patches import settings
from probsa.slides import open_slide, slide_files

IMAGE = texture(100, 150)


def focal_planes(dataset, *, stated=True):
    """Add two planes; TILED_FULL has the frames of one after those of the other."""
    dataset.NumberOfFrames *= 3
    dataset.PixelData = dataset.PixelData * 3
    if stated:
        dataset.TotalPixelMatrixFocalPlanes = 3
    else:
        del dataset.TotalPixelMatrixFocalPlanes


def optical_paths(dataset, *, stated=True):
    second = copy.deepcopy(dataset.OpticalPathSequence[0])
    second.OpticalPathIdentifier = "2"
    dataset.OpticalPathSequence.append(second)
    dataset.NumberOfFrames *= 2
    dataset.PixelData = bytes(len(dataset.PixelData)) + dataset.PixelData
    if stated:
        dataset.NumberOfOpticalPaths = 2
    else:
        del dataset.NumberOfOpticalPaths


def fluorescence(dataset):
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    del dataset.PlanarConfiguration
    dataset.PixelData = dataset.PixelData[: len(dataset.PixelData) // 3]


def sixteen_bits(dataset):
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit = 15
    dataset.PixelData = dataset.PixelData * 2


def write(path, change):
    dataset = pydicom.dcmread(write_dicom_slide(path, IMAGE))
    change(dataset)
    dataset.save_as(path)
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (focal_planes, "3 focal planes"),
        (lambda d: focal_planes(d, stated=False), "18 frames for 6 tiles"),
        (optical_paths, "2 optical paths"),
        (lambda d: optical_paths(d, stated=False), "2 optical paths"),
        (fluorescence, "1 channel.* of 8 bits"),
        (sixteen_bits, "3 channel.* of 16 bits"),
    ],
)
def test_several_planes_are_named(tmp_path, change, named):
    path = write(tmp_path / "a.dcm", change)
    with pytest.raises(SlideError, match=named) as caught:
        open_slide(path)
    said = str(caught.value)
    assert said.startswith(str(path)) and "damaged" not in said and "copy it again" not in said


def test_a_slide_of_one_plane_is_read(tmp_path):
    with open_slide(write_dicom_slide(tmp_path / "a.dcm", IMAGE)) as slide:
        whole = slide.read(x=0, y=0, level=0, width=150, height=100)
    assert np.array_equal(whole, IMAGE)


def test_a_slide_of_several_planes_is_one_failure_beside_a_good_slide(tmp_path):
    (tmp_path / "s" / "z").mkdir(parents=True)
    (tmp_path / "s" / "good").mkdir()
    for name in ("L0", "L1"):
        path = write(tmp_path / "s" / "z" / f"{name}.dcm", focal_planes)
        dataset = pydicom.dcmread(path)
        dataset.SeriesInstanceUID = "1.2.3.4"
        dataset.save_as(path)
    write_dicom_slide(tmp_path / "s" / "good" / "L.dcm", IMAGE)
    assert len(slide_files(tmp_path / "s")) == 2
    chosen = settings("clam-biopsy", size=32, min_area=0.0)
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=chosen)
    reasons = {o.name: o.reason for o in report.outcomes}
    assert "3 focal planes" in reasons["L0"] and "focal" not in reasons["L"]
