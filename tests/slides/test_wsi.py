"""Slides through OpenSlide, and what is said of files that are none."""

import gzip
import os
import subprocess
import sys

import numpy as np
import openslide
import pydicom
import pytest
from PIL import Image
from support.made_dicom import write_dicom_slide
from support.refusals import refused
from support.written_slides import damage, texture, write_pyramid, write_svs

from probsa.errors import InputError, RegionError, SlideError
from probsa.slides import SLIDE_SUFFIXES, list_scans, open_slide, resolution_advice, slide_files
from probsa.slides.resolution import from_openslide
from probsa.slides.wsi import WsiSlide

CMU = "CMU-1-Small-Region.svs"
PYRAMID = "CMU-1-Small-Region_derived_pyramid.tiff"
TCGA = "TCGA-CR-7395-01A-01-TS1.svs"


def write_level(path, image, *, series="1.2.3.4"):
    """Write a level of a DICOM slide; levels of one series are one slide."""
    d = pydicom.dcmread(write_dicom_slide(path, image))
    d.SeriesInstanceUID = d.FrameOfReferenceUID = series
    d.save_as(path)


def on_white(rgba):
    """By Pillow, not by our code."""
    white = Image.new("RGBA", rgba.size, "white")
    return np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))


@pytest.mark.parametrize(
    ("name", "kind", "levels", "mpp", "source", "images"),
    [
        (CMU, "aperio", [(2220, 2967, 1.0)], 0.499, "openslide.mpp-x", "label, macro, thumbnail"),
        (
            TCGA,
            "aperio",
            [(4443, 3567, 1.0), (2221, 1783, 2.0005055500659967)],
            None,
            None,
            "thumbnail",
        ),
        (
            PYRAMID,
            "generic-tiff",
            [(2220, 2967, 1.0), (1110, 1483, 2.000337154416723), (555, 741, 4.0020242914979756)],
            0.499,
            "TIFF resolution tags",
            None,
        ),
    ],
)
def test_what_is_known_of_the_real_slides(shared_data, name, kind, levels, mpp, source, images):
    with open_slide(shared_data / "wsi" / name) as slide:
        assert slide.name == name.rpartition(".")[0] and slide.format == kind
        assert [(v.width, v.height, v.downsample) for v in slide.levels] == levels
        assert slide.size == levels[0][:2]
        assert slide.mpp == (pytest.approx(mpp, abs=1e-6) if mpp else None)
        assert slide.mpp_source == source
        assert slide.properties.get("associated images") == images
        assert all(isinstance(v, str) for v in slide.properties.values())


@pytest.mark.parametrize("name", [CMU, TCGA])
def test_regions_of_real_slides_are_openslides_own_on_white(shared_data, name):
    path = shared_data / "wsi" / name
    direct = openslide.OpenSlide(path)
    with open_slide(path) as slide:
        width, height = slide.size
        for x, y, w, h in [
            (1000, 1200, 300, 200),
            (-40, -30, 100, 90),
            (width - 50, height - 20, 200, 100),
            (width + 10, 0, 30, 20),
            (5, -500, 40, 30),
        ]:
            level = len(slide.levels) - 1
            got = slide.read(x=x, y=y, level=level, width=w, height=h)
            assert got.shape == (h, w, 3) and got.dtype == np.uint8
            assert np.array_equal(got, on_white(direct.read_region((x, y), level, (w, h))))
        assert slide.read(x=width + 10, y=0, level=0, width=30, height=20).min() == 255
        # real tissue, not a white sheet
        assert slide.read(x=1000, y=1200, level=0, width=300, height=200).std() > 10


def test_a_region_of_many_blocks_is_what_openslide_reads_at_once(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 9001, 3), dtype=np.uint8)
    path = write_pyramid(tmp_path / "wide.tif", noise, factors=(1, 2))
    direct = openslide.OpenSlide(path)
    assert direct.level_downsamples[1] != 2  # so that a block's corner is no pixel's
    with WsiSlide(path, name="wide") as slide:
        for level, (w, h) in enumerate(direct.level_dimensions):
            region = direct.read_region((0, 0), level, (w, h))
            got = slide.read(x=0, y=0, level=level, width=w, height=h)
            assert np.array_equal(got, on_white(region))


def test_what_cannot_be_read_is_refused(shared_data, tmp_path):
    with open_slide(shared_data / "wsi" / TCGA) as slide:
        for level, width in ((2, 1), (-1, 1), (0, 0)):
            with pytest.raises(
                InputError, match=f"2 levels, so .* {width} x 5 pixels of level {level}"
            ):
                slide.read(x=0, y=0, level=level, width=width, height=5)
    for name in (CMU, PYRAMID):
        slide = open_slide(shared_data / "wsi" / name)
        slide.close()
        slide.close()
        refused(SlideError, slide.path.name, slide.read, x=0, y=0, level=0, width=1, height=1)
    refused(SlideError, tmp_path.name, open_slide, tmp_path)
    refused(SlideError, r"gone\.svs", open_slide, tmp_path / "gone.svs")
    # its preamble is that of a TIFF
    with pytest.raises(SlideError, match=r"pydicom_CT_small\.dcm.* CT slice, not a slide"):
        open_slide(shared_data / "ct_volumes" / "pydicom_CT_small.dcm")


def test_a_given_resolution_fills_the_gap_or_wins_and_says_so(shared_data):
    folder = shared_data / "wsi"
    with open_slide(folder / TCGA, mpp=0.25) as slide:
        assert (slide.mpp, slide.mpp_source) == (0.25, "given")
    with open_slide(folder / CMU, mpp=0.25) as slide:
        assert (slide.mpp, slide.mpp_source) == (0.25, "given, file says 0.499")
    with open_slide(folder / CMU, mpp=0.5) as slide:  # 0.2 % apart: the file's is more exact
        assert (slide.mpp, slide.mpp_source) == (0.499, "openslide.mpp-x")
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        refused(SlideError, f"{bad:g}", open_slide, folder / CMU, mpp=bad)


@pytest.mark.parametrize(
    ("said", "mpp", "source", "advice"),
    [
        ("AppMag = 40|MPP = 0.2520", 0.252, "openslide.mpp-x", None),
        # the objective's power is a hint, never a resolution
        ("AppMag = 20", None, None, "objective power 20: probably 0.5; give --slide-mpp 0.5"),
        ("AppMag = 40|MPP = 352.7", None, None, "probably 0.25; give --slide-mpp 0.25"),
        ("", None, None, "give --slide-mpp"),
    ],
)
def test_what_an_aperio_description_says_of_resolution(tmp_path, said, mpp, source, advice):
    path = write_svs(tmp_path / "a.svs", texture(300, 400), said=said)
    with open_slide(path) as slide:
        assert slide.format == "aperio" and len(slide.levels) == 2
        assert (slide.mpp, slide.mpp_source) == (mpp, source)
        assert (advice or "") in (resolution_advice(slide) or "")
        assert (resolution_advice(slide) is None) == (mpp is not None)


@pytest.mark.parametrize(
    ("properties", "mpp", "source"),
    [
        ({"openslide.mpp-x": "0.5", "openslide.mpp-y": "0.5"}, 0.5, "openslide.mpp-x"),
        ({"openslide.mpp-x": "0.5", "openslide.mpp-y": "0.503"}, 0.5015, "openslide.mpp-x"),
        (
            {"openslide.mpp-x": "0.5", "openslide.mpp-y": "0.54"},
            0.52,
            "openslide.mpp-x, mean of x 0.5 and y 0.54",
        ),
        ({"openslide.mpp-y": "0.5"}, 0.5, "openslide.mpp-x"),
        ({"openslide.mpp-x": "352.7", "openslide.mpp-y": "352.7"}, None, None),
        ({"openslide.mpp-x": "0.01"}, None, None),
        ({"openslide.mpp-x": "none"}, None, None),
        (
            {
                "tiff.XResolution": "40000",
                "tiff.YResolution": "40000",
                "tiff.ResolutionUnit": "centimeter",
            },
            0.25,
            "TIFF resolution tags",
        ),
        (
            {
                "tiff.XResolution": "50800",
                "tiff.YResolution": "50800",
                "tiff.ResolutionUnit": "inch",
            },
            0.5,
            "TIFF resolution tags",
        ),
        (
            {"tiff.XResolution": "300", "tiff.YResolution": "300", "tiff.ResolutionUnit": "inch"},
            None,
            None,
        ),
        ({"tiff.XResolution": "118.11", "tiff.ResolutionUnit": "centimeter"}, None, None),
        ({"tiff.XResolution": "20000", "tiff.ResolutionUnit": ""}, None, None),
    ],
)
def test_which_statements_of_resolution_count(properties, mpp, source):
    found = from_openslide(properties)
    assert found.mpp == (pytest.approx(mpp) if mpp else None) and found.source == source


@pytest.mark.parametrize("kind", ["hole", "ones", "noise", "cut", "text"])
def test_a_damaged_tile_of_an_svs_costs_its_own_regions_only(tmp_path, kind):
    image = texture(400, 600)
    whole = write_svs(tmp_path / "whole.svs", image)
    path = tmp_path / "damaged.svs"
    path.write_bytes(whole.read_bytes())
    damage(path, tile=7, kind=kind)  # 5 tiles a row: row 1, column 2
    with open_slide(path) as slide, open_slide(whole) as intact:
        for _ in range(2):  # OpenSlide's handle is dead after an error; ours is not
            with pytest.raises(RegionError, match=r"damaged\.svs: level 0 .*\(300, 200\)"):
                slide.read(x=300, y=200, level=0, width=50, height=50)
            for x, y, w, h in [(0, 0, 600, 128), (0, 128, 256, 128), (384, 128, 216, 272)]:
                where = {"x": x, "y": y, "level": 0, "width": w, "height": h}
                assert np.array_equal(slide.read(**where), intact.read(**where))
        whole_level = {"x": 0, "y": 0, "level": 1, "width": 150, "height": 100}
        assert np.array_equal(slide.read(**whole_level), intact.read(**whole_level))


@pytest.mark.parametrize(
    ("name", "share"),
    [(CMU, 0.0005), (TCGA, 0.1), (PYRAMID, 0.5), (CMU, 0.9), (TCGA, 0.995), (PYRAMID, 0.99999)],
)
def test_a_slide_that_was_cut_short_is_refused_with_its_lengths(shared_data, tmp_path, name, share):
    data = (shared_data / "wsi" / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(data[: int(len(data) * share)])
    words = rf"truncated: it has {int(len(data) * share):,} bytes"
    refused(SlideError, words, open_slide, path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.svs", b"", "is empty"),
        ("zeros.svs", bytes(5000), "starts with zero bytes"),
        ("text.svs", b"slide_id,label\nA,1\n", "text file .* 'slide_id,label'"),
        ("page.svs", b"<!DOCTYPE html><html>403", "a web page"),
        ("lfs.svs", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        ("zip.svs", b"PK\x03\x04" + bytes(100), "is a ZIP archive"),
        ("gz.tiff", gzip.compress(b"x" * 100, mtime=0), "is a gzip archive"),
        ("h5.svs", b"\x89HDF\r\n\x1a\n" + bytes(100), "is an HDF5 file"),
        ("odd.svs", b"\x01\x02\xfe\xca\x00\x99\x98\x97", "the bytes 01 02 fe ca 00 99 98 97"),
        ("magic.tif", b"II*\0", r"truncated \(.*\): it has 4 bytes"),
        ("big.tif", b"II+\0\x08\0\0\0\xff\0\0\0\0\0\0\0", "truncated: it has 16 bytes"),
        ("alone.mrxs", b"\xff\xd8\xff" + bytes(100), "folder alone/ is missing beside it"),
        ("none.dcm", bytes(128) + b"DICM" + bytes(64), "contains no image"),
    ],
)
def test_a_file_that_is_no_slide_is_named_for_what_it_is(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SlideError, match=said) as e:
        open_slide(path)
    assert str(path) in str(e.value)


def test_importing_the_stage_imports_no_reader():
    readers = "('openslide', 'tifffile', 'imagecodecs', 'PIL', 'pydicom', 'nibabel', 'cv2')"
    code = f"import sys, probsa.slides; print([m for m in {readers} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_dicom_slide_is_read_and_stands_once_in_a_folder(tmp_path):
    image = texture(256, 320)
    write_level(tmp_path / "a.dcm", image)
    write_level(tmp_path / "b.dcm", image[::2, ::2])
    write_level(tmp_path / "other.dcm", image, series="1.2.3.5")
    assert [p.name for p in slide_files(tmp_path)] == ["a.dcm", "other.dcm"]
    with open_slide(tmp_path / "a.dcm") as slide:
        assert slide.format == "dicom" and slide.mpp == pytest.approx(0.5)
        assert [(v.width, v.height) for v in slide.levels] == [(320, 256), (160, 128)]
        got = slide.read(x=0, y=0, level=0, width=320, height=256)
        np.testing.assert_array_equal(got, image)


@pytest.mark.parametrize("name", ["x.dcm", "notes"])
def test_a_fifo_among_the_files_of_a_slide_is_named_and_not_opened(tmp_path, name):
    """OpenSlide opens whatever lies beside a DICOM slide, and would wait for a writer."""
    image = texture(128, 128)
    for k in (1, 2):
        write_level(tmp_path / f"{k}.dcm", image, series=f"1.2.3.{k}")
    os.mkfifo(tmp_path / name)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "alone.svs").symlink_to(tmp_path / name)
    found = slide_files(tmp_path)
    assert {p.name for p in found} == {"1.dcm", "2.dcm", "alone.svs"} | ({name} & {"x.dcm"})
    for path in found:
        if path.name in ("1.dcm", "2.dcm"):
            with open_slide(path) as slide:
                assert name in slide.notes[0]
                got = slide.read(x=0, y=0, level=0, width=128, height=128)
            np.testing.assert_array_equal(got, image)
        else:
            refused(SlideError, path.name, open_slide, path)
    assert list_scans(tmp_path).skipped["SM"] == 2


def test_slide_files_are_found_by_ending_and_parts_of_slides_are_not(tmp_path, shared_data):
    wanted = ["a.SVS", "b/c.ome.tiff", "b/d.png", "case.mrxs", "h.vms", "z/y/x.ndpi"]
    other = [
        "notes.txt",
        "labels.csv",
        ".hidden.svs",
        ".cache/e.svs",
        "case/Data0001.dat",
        "case/Index.png",
        "h_macro.jpg",
        "h(1,0).jpg",
        "b/c.h5",
    ]
    for name in wanted + other:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "z" / "back").symlink_to(tmp_path)
    (tmp_path / "folder.svs").mkdir()
    (tmp_path / "gone.svs").symlink_to(tmp_path / "nowhere")  # opening it says what is wrong
    wanted.insert(4, "gone.svs")
    assert slide_files(tmp_path) == [tmp_path / name for name in wanted]
    assert slide_files(str(tmp_path / "b")) == [tmp_path / name for name in wanted[1:3]]
    assert slide_files(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]  # named, so meant
    refused(SlideError, "gone", slide_files, tmp_path / "gone")
    assert {".svs", ".ndpi", ".dcm", ".png"} <= set(SLIDE_SUFFIXES)
    source = shared_data / "ct_volumes" / "pydicom_CT_small.dcm"
    (tmp_path / "ct").mkdir()
    (tmp_path / "ct" / "slice.dcm").write_bytes(source.read_bytes())
    (tmp_path / "ct" / "a.nii.gz").write_bytes(b"")
    for scan in ("", "slice.dcm", "a.nii.gz"):
        assert slide_files(tmp_path / "ct" / scan) == []
