"""What counts as a slide or a scan in a folder of other files, links and special files."""

import os
import socket
import struct
import sys
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from support.made_dicom import write_ct_series, write_dicom_slide
from support.written_slides import texture

from probsa.slides import files_below, is_scan, list_scans, open_slide, slide_files

IMAGE = texture(100, 150)
NUMBERS = np.arange(2000)
BINARY = {
    "uint32 from 2": (NUMBERS + 2).astype("<u4").tobytes(),
    "uint32 from 8": (NUMBERS + 8).astype("<u4").tobytes(),
    "all 2": np.full(2000, 2, "<u4").tobytes(),
    "all 8 in 16 bits": np.full(4000, 8, "<u2").tobytes(),
    "int16 from 8": (NUMBERS + 8).astype("<i2").tobytes(),
    "int64": (NUMBERS + 2).astype("<i8").tobytes(),
    "a count and floats": struct.pack("<I", 2) + np.linspace(0, 1, 500, dtype="<f4").tobytes(),
    "a count and zeros": struct.pack("<I", 8) + bytes(4000),
    "a count, a length and zeros": struct.pack("<III", 2, 4, 0) + bytes(4000),
    "a count and text": struct.pack("<I", 8) + b"hello world " * 100,
    "a length and a name": struct.pack("<HH", 8, 5) + b"CS" + b"word " * 200,
    "a half-open group": struct.pack("<HHI", 8, 0, 4) + b"\xff" * 500,
    "small": struct.pack("<I", 2),
}


@pytest.mark.parametrize("content", BINARY)
@pytest.mark.parametrize("suffix", ["", ".bin", ".dat", ".idx"])
def test_a_binary_file_is_no_scan(tmp_path, content, suffix):
    path = tmp_path / f"data{suffix}"
    path.write_bytes(BINARY[content])
    assert not is_scan(path)
    listing = list_scans(tmp_path)
    assert listing.failures == () and listing.skipped == {"other file": 1}


@pytest.mark.parametrize("implicit", [True, False])
@pytest.mark.parametrize("first", [0x0008_0005, 0x0008_0008, 0x0008_0016])
@pytest.mark.parametrize("group_length", [True, False])
def test_a_series_without_preamble_is_a_scan(tmp_path, implicit, first, group_length):
    folder = write_ct_series(tmp_path / "ct", np.arange(3.0))
    for path in folder.iterdir():
        dataset = pydicom.dcmread(path)
        if first == 0x0008_0005:
            dataset.SpecificCharacterSet = "ISO_IR 100"
        elif first == 0x0008_0016:
            del dataset.ImageType
        with path.open("wb") as f:
            if group_length:
                f.write(struct.pack("<HH", 8, 0) + (b"" if implicit else b"UL"))
                f.write(struct.pack("<II" if implicit else "<HI", 4, 1000))
            body = pydicom.Dataset({e.tag: e for e in dataset if e.tag.group >= 8})
            pydicom.dcmwrite(f, body, implicit_vr=implicit, little_endian=True)
        path.rename(path.with_suffix(""))
    (source,) = list_scans(folder).sources
    assert len(source.files) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_slides_and_scans_behind_links_are_found_once(tmp_path):
    outside = tmp_path / "elsewhere"
    write_ct_series(outside / "head", np.arange(3.0))
    Image.fromarray(IMAGE).save(outside / "slide.png")
    root = tmp_path / "in"
    root.mkdir()
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "again").symlink_to(outside, target_is_directory=True)
    (root / "back").symlink_to(root, target_is_directory=True)  # a loop of folders
    (root / "self").symlink_to(root / "self")
    write_ct_series(root / "z" / "body", np.arange(4.0))
    (root / "a_link_to_z").symlink_to(root / "z", target_is_directory=True)
    listing = list_scans(root)
    assert sorted((s.name, len(s.files)) for s in listing.sources) == [
        ("again_head", 3),
        ("z_body", 4),
    ]
    assert listing.failures == ()
    assert [p.relative_to(root).as_posix() for p in slide_files(root)] == ["again/slide.png"]
    assert len(files_below(root)) == 3 + 1 + 4


VMS = "[Virtual Microscope Specimen]\nImageFile={0}_00.jpg\nMapFile={0}_map2.jpg\n"


@pytest.mark.parametrize("suffix", [".vms", ".vmu"])
def test_an_index_hides_its_own_images_only(tmp_path, suffix):
    (tmp_path / f"slide1{suffix}").write_text(VMS.format("slide1"))
    (tmp_path / f"bare{suffix}").write_text("")  # names nothing: by the names of the files
    names = [
        "slide1_00.jpg",
        "slide1_map2.jpg",
        "slide10.jpg",
        "slide1b.png",
        "slide12_00.jpg",
        "slide1_other.jpg",
        "bare-1.jpg",
        "bare.jpg",
        "bare2.jpg",
        "barely.png",
    ]
    for name in names:
        Image.fromarray(IMAGE).save(tmp_path / name)
    found = {p.name for p in slide_files(tmp_path)}
    assert found == {
        f"slide1{suffix}",
        f"bare{suffix}",
        "slide10.jpg",
        "slide1b.png",
        "slide12_00.jpg",
        "slide1_other.jpg",
        "bare2.jpg",
        "barely.png",
    }


def special(kind, path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no special files")
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop", "gone"])
@pytest.mark.parametrize("name", ["zero", "zero.dcm"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_special_files_beside_a_dicom_slide_are_not_opened(tmp_path, kind, name):
    from probsa.cohorts import patch_cohort
    from probsa.patches import settings

    folder = tmp_path / "s"
    folder.mkdir()
    path = write_dicom_slide(folder / "good.dcm", IMAGE)
    special(kind, folder / name)
    with open_slide(path) as slide:
        read = slide.read(x=0, y=0, level=0, width=150, height=100)
        assert any(name in note for note in slide.notes) == (kind in ("fifo", "socket", "device"))
    assert np.array_equal(read, IMAGE)
    chosen = settings("clam-biopsy", size=32, min_area=0.0, threshold=1)
    reports = patch_cohort(folder, tmp_path / "w", settings=chosen)
    outcomes = {o.name: o for report in reports for o in report.outcomes}
    assert outcomes["good"].status != "failed"
    if name == "zero.dcm":
        assert outcomes["zero"].status == "failed" and "zero.dcm" in outcomes["zero"].reason
    else:
        assert set(outcomes) == {"good"}
