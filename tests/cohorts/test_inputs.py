"""The slides and series found at a path, with names, resolutions and reasons of failures."""

import shutil
import zipfile

import pytest
from PIL import Image
from support.made_slides import tissue, write_slide
from support.refusals import refused

from probsa.cohorts import find_inputs, patch_cohort
from probsa.cohorts.inputs import resolve_mpp
from probsa.errors import InputError
from probsa.patches import settings
from probsa.slides import read_resolutions

PINK = tissue(300, 300, boxes=[(0, 0, 300, 300)])


@pytest.fixture
def head(shared_data, tmp_path):
    """Return a folder with a real CT series of a head."""
    folder = tmp_path / "in" / "head"
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(folder)
    return folder


def test_slides_and_series_of_one_folder(head):
    root = head.parent
    write_slide(root / "a.ome.tiff", PINK)
    write_slide(head / "b.tiff", PINK)
    Image.fromarray(PINK).save(head / "preview.png")
    Image.fromarray(PINK).save(root / "plain.png")
    (root / "empty.dcm").write_bytes(b"")
    found = {i.name: i for i in find_inputs(root)}
    assert {n: i.kind for n, i in found.items()} == {
        "a": "slide",
        "b": "slide",
        "plain": "slide",
        "head": "ct",
        "empty": "ct",
    }
    assert len(found["head"].files) == 28 and found["head"].reason == ""
    assert "empty.dcm" in found["empty"].reason
    chosen = settings("clam-biopsy", size=128, min_area=0.0)
    reports = patch_cohort(root, root.parent / "w", settings=chosen)
    slides, scans = reports
    assert {o.name: o.status for o in scans.outcomes} == {"head": "done", "empty": "failed"}
    assert {o.name: o.status for o in slides.outcomes} == dict.fromkeys(("a", "b", "plain"), "done")
    assert scans.table.parent.name == "slices"
    assert slides.table.parent.name == "level0_128px_0px_overlap"


def test_a_single_file(head, tmp_path):
    path = write_slide(tmp_path / "x.tiff", PINK)
    assert [i.name for i in find_inputs(path)] == ["x"]
    refused(InputError, r"y\.tiff", find_inputs, tmp_path / "y.tiff")


def test_resolutions_by_number_and_by_table(tmp_path):
    for name in ("x", "y", "z"):
        write_slide(tmp_path / "s" / f"{name}.tiff", PINK, mpp=None)
    write_slide(tmp_path / "known" / "k.tiff", PINK)
    assert [resolve_mpp(r, 0.25).mpp for r in find_inputs(tmp_path / "s")] == [0.25, 0.25, 0.25]
    assert [resolve_mpp(r, 0.25).mpp for r in find_inputs(tmp_path / "known")] == [None]
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\nx,0.25\ny.tiff,0.5\n")
    found = find_inputs(tmp_path / "s", mpp=read_resolutions(str(table)))
    assert [i.mpp for i in found] == [0.25, 0.5, None]
    # a slide whose resolution is needed but unknown fails, and the message says how to give it
    (report,) = patch_cohort(
        tmp_path / "s",
        tmp_path / "w",
        settings=settings(size=64, mpp=0.5, min_area=0.0),
        mpp=read_resolutions(str(table)),
    )
    assert [o.status for o in report.outcomes] == ["done", "done", "failed"]
    assert "--slide-mpp" in report.failures[0][1]
    assert read_resolutions("0.5") == 0.5
    table.write_text("slide,mpp\nelse,0.25\n")
    with pytest.raises(InputError, match=r"3 slides.* 'else'.* 'x'"):
        find_inputs(tmp_path / "s", mpp=read_resolutions(str(table)))


def test_a_resolution_for_all_fills_gaps_and_changes_nothing_else(tmp_path):
    write_slide(tmp_path / "s" / "known.tiff", PINK)
    write_slide(tmp_path / "s" / "unknown.tiff", PINK, mpp=None)
    chosen = settings(size=64, mpp=0.5, min_area=0.0)
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=chosen)
    assert [o.status for o in report.outcomes] == ["done", "failed"]
    (again,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=chosen, mpp=0.5)
    assert [(o.status, o.kept) for o in again.outcomes] == [("done", True), ("done", False)]
    counts = [o.count for o in again.outcomes]
    assert counts[0] == counts[1] > 0


def test_two_series_in_one_folder_and_names_that_files_refuse(head, tmp_path):
    import pydicom

    other = head.parent / "other"
    shutil.copytree(head, other)
    for path in sorted(other.glob("*.dcm")):
        d = pydicom.dcmread(path)
        d.SeriesInstanceUID = "1.2.3.4"
        d.SeriesNumber = 77
        d.save_as(head / f"zz{path.name}")
    shutil.rmtree(other)
    found = find_inputs(head)
    assert len(found) == 2 and {len(i.files) for i in found} == {28}
    assert any(i.name.endswith("_77") for i in found)
    write_slide(tmp_path / "odd" / "a\tb.tiff", PINK)
    assert [i.name for i in find_inputs(tmp_path / "odd")] == ["a_b"]
