"""Resolutions that files state: in ImageJ's unit, implausible ones, and pixels that are no squares.

Whatever is not used is named with its numbers, and the user's own number helps.
"""

import numpy as np
import pydicom
import pytest
import tifffile
from PIL import Image
from support.made_dicom import write_dicom_slide
from support.made_slides import tissue
from support.written_slides import texture, write_ome, write_svs

from probsa.cohorts import patch_cohort
from probsa.patches import settings
from probsa.slides import open_slide, resolution_advice

IMAGE = texture(96, 128)


def tiff(path, resolution, unit="CENTIMETER", **more):
    how = {"photometric": "rgb", "tile": (64, 64), "compression": "deflate"} | more
    tifffile.imwrite(path, IMAGE, resolution=resolution, resolutionunit=unit, **how)
    return path


def striped(path, resolution):
    return tiff(path, resolution, tile=None, rowsperstrip=16)


def ome(path, x, y):
    return write_ome(path, IMAGE, metadata={"PhysicalSizeX": x, "PhysicalSizeY": y}, factors=(1, 2))


def dicom(path, x, y):
    d = pydicom.dcmread(write_dicom_slide(path, IMAGE))
    # rows first: the distance of rows is that of the y axis
    d.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing = [y / 1e3, x / 1e3]
    d.save_as(path)
    return path


def imagej(path, unit, density, *, escaped=False, **more):
    """Write what ImageJ writes: a unit in the description, and pixels per unit in the tags."""
    lines = [f"unit={unit}", *(f"{key}={value}" for key, value in more.items())]
    description = "\n".join(["ImageJ=1.54f", *lines, "loop=false", ""])
    if escaped:
        description = description.replace("µ", "\\u00B5")
    tifffile.imwrite(
        path,
        IMAGE,
        photometric="rgb",
        metadata=None,
        description=description.encode(),
        resolution=density,
        resolutionunit="NONE",
    )
    return path


def per_cm(um):
    return 1e4 / um


AXES = {
    "tiff": lambda p, x, y: tiff(p / "a.tif", (per_cm(x), per_cm(y))),
    "tiff in inches": lambda p, x, y: tiff(p / "a.tif", (25400 / x, 25400 / y), "INCH"),
    "striped tiff": lambda p, x, y: striped(p / "a.tif", (per_cm(x), per_cm(y))),
    "imagej": lambda p, x, y: imagej(p / "a.tif", "um", (1 / x, 1 / y)),
    "ome": lambda p, x, y: ome(p / "a.ome.tif", x, y),
    "dicom": lambda p, x, y: dicom(p / "a.dcm", x, y),
}


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize(("x", "y"), [(0.5, 1.0), (1.0, 0.5), (0.5, 0.56), (0.25, 40.0)])
def test_pixels_that_are_no_squares_are_refused(tmp_path, kind, x, y):
    path = AXES[kind](tmp_path, x, y)
    with open_slide(path) as slide:
        assert slide.mpp is None and slide.mpp_source is None
        advice = resolution_advice(slide)
        assert f"x {x:g} and y {y:g}" in advice and "--slide-mpp" in advice
    with open_slide(path, mpp=0.5) as slide:  # the way out
        assert (slide.mpp, slide.mpp_source) == (0.5, "given")
        assert f"x {x:g} and y {y:g}" in "".join(slide.mpp_rejected)


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize(("x", "y", "mpp"), [(0.5, 0.54, 0.52), (0.25, 0.2505, 0.25025)])
def test_small_differences_are_averaged(tmp_path, kind, x, y, mpp):
    with open_slide(AXES[kind](tmp_path, x, y)) as slide:
        assert slide.mpp == pytest.approx(mpp, rel=1e-3)
        assert ("mean of" in slide.mpp_source) == (y - x > 0.01)


def test_no_patches_are_cut_of_pixels_that_are_no_squares(tmp_path):
    image = tissue(600, 600, boxes=[(50, 50, 500, 500)])
    (tmp_path / "s").mkdir()
    how = {"photometric": "rgb", "tile": (64, 64), "resolutionunit": "CENTIMETER"}
    for name, y in (("a", 10_000), ("b", 20_000)):
        path = tmp_path / "s" / f"{name}.tif"
        tifffile.imwrite(path, image, resolution=(20_000, y), **how)
    chosen = settings(size=64, mpp=0.5, min_area=0.0)
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=chosen)
    a, b = report.outcomes
    assert (a.status, b.status) == ("failed", "done")
    assert "x 0.5 and y 1" in a.reason and "--slide-mpp" in a.reason
    assert "x 0.5 and y 1" in a.geometry.sentence
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=chosen, mpp=0.5)
    a, b = report.outcomes
    assert a.status == "done" and a.count == b.count and "x 0.5 and y 1" in " ".join(a.notes)


@pytest.mark.parametrize(
    ("unit", "density", "mpp"),
    [
        ("um", 2.0, 0.5),
        ("µm", 2.0, 0.5),
        ("micron", 4.0, 0.25),
        ("microns", 4.0, 0.25),
        ("micrometer", 4.0, 0.25),
        ("Micron", 4.0, 0.25),
        ("mm", 2000.0, 0.5),
        ("cm", 20_000.0, 0.5),
        ("inch", 50_800.0, 0.5),
        ("nm", 0.002, 0.5),
        ("m", 2e6, 0.5),
    ],
)
@pytest.mark.parametrize("escaped", [False, True])
def test_the_unit_of_imagej_is_read(tmp_path, unit, density, mpp, escaped):
    path = imagej(tmp_path / "a.tif", unit, (density, density), escaped=escaped)
    with open_slide(path) as slide:
        assert slide.mpp == pytest.approx(mpp, rel=1e-3) and "ImageJ" in slide.mpp_source


def test_what_imagej_writes_by_tifffile_is_read(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, IMAGE, imagej=True, resolution=(2, 2), metadata={"unit": "um"})
    with open_slide(path) as slide:
        assert slide.mpp == pytest.approx(0.5)
    # another unit of the vertical axis
    path = imagej(tmp_path / "b.tif", "um", (2.0, 2000.0), yunit="mm")
    with open_slide(path) as slide:
        assert slide.mpp == pytest.approx(0.5)


@pytest.mark.parametrize("unit", ["pixel", "pixels", "", "furlong"])
def test_a_unit_that_is_no_length_gives_no_resolution(tmp_path, unit):
    with open_slide(imagej(tmp_path / "a.tif", unit, (2.0, 2.0))) as slide:
        assert slide.mpp is None
        assert (repr(unit) in resolution_advice(slide)) == bool(unit)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda p: tiff(p / "a.tif", (400_000, 400_000)), "0.025 µm"),
        (lambda p: tiff(p / "a.tif", (50, 50)), "200 µm"),
        (lambda p: tiff(p / "a.tif", (72, 72), "INCH"), "72 pixels per inch"),
        (lambda p: imagej(p / "a.tif", "um", (40, 40)), "0.025 µm"),
        (lambda p: imagej(p / "a.tif", "inch", (300, 300)), "300 pixels per inch"),
        (lambda p: ome(p / "a.ome.tif", 0.025, 0.025), "0.025 µm"),
        (lambda p: dicom(p / "a.dcm", 0.025, 0.025), "0.025 µm"),
        (lambda p: write_svs(p / "a.svs", texture(300, 400), said="MPP = 352.7"), "352.7 µm"),
        (lambda p: png(p / "a.png", 300), "300 pixels per inch"),
    ],
)
def test_what_is_rejected_is_named(tmp_path, write, named):
    path = write(tmp_path)
    with open_slide(path) as slide:
        assert slide.mpp is None
        assert named in resolution_advice(slide) and "--slide-mpp" in resolution_advice(slide)
    with open_slide(path, mpp=0.5) as slide:
        assert slide.mpp == 0.5 and named in "".join(slide.mpp_rejected)


def png(path, dpi):
    Image.fromarray(np.ascontiguousarray(IMAGE)).save(path, dpi=(dpi, dpi))
    return path


def test_another_source_fills_the_gap_and_the_rejected_one_is_named(tmp_path):
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as f:
        f.write(
            IMAGE,
            photometric="rgb",
            resolution=(20_000, 20_000),
            resolutionunit="CENTIMETER",
            metadata={"axes": "YXS", "PhysicalSizeX": 500.0, "PhysicalSizeY": 500.0},
        )
    with open_slide(path) as slide:
        assert (slide.mpp, slide.mpp_source) == (pytest.approx(0.5), "TIFF resolution tags")
        assert "500 µm" in "".join(slide.mpp_rejected)


@pytest.mark.parametrize(
    ("tag", "mpp"),
    [("XResolution", 0.25), ("ResolutionUnit", None)],  # YResolution is left
)
def test_a_resolution_of_another_type_is_passed_over(tmp_path, tag, mpp):
    path = tmp_path / "a.tif"
    image = texture(96, 64)
    tifffile.imwrite(path, image, tile=(32, 32), resolution=(40000, 40000), resolutionunit=3)
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages.first.tags[tag].overwrite("a text", dtype="s")
    with open_slide(path) as slide:
        assert slide.mpp == mpp
