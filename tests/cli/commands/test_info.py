"""probsa info on slides, on scans, and on files that are neither."""

import json
import zipfile

import numpy as np
import openslide
import pytest
import tifffile
from support.written_slides import texture, write_pyramid, write_svs

from probsa.cli import main

TCGA = "TCGA-CR-7395-01A-01-TS1.svs"


def lines(capsys):
    """Parse the two printed columns to {key: values}."""
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("  "):
            found.setdefault(line[2:20].strip(), []).append(line[21:])
    return found


def as_json(capsys, *arguments, exit_status=0):
    assert main(["info", *map(str, arguments), "--json"]) == exit_status
    return json.loads(capsys.readouterr().out)


def test_a_slide_is_told_line_by_line(shared_data, capsys):
    assert main(["info", str(shared_data / "wsi" / "CMU-1-Small-Region.svs")]) == 0
    assert lines(capsys) == {
        "format": [f"aperio, read by OpenSlide {openslide.__library_version__}"],
        "size": ["2220 x 2967 pixels"],
        "level 0": ["2220 x 2967, downsample 1"],
        "µm per pixel": ["0.499 (openslide.mpp-x)"],
        "objective power": ["20"],
        "tile size": ["240 x 240"],
        "associated images": ["label, macro, thumbnail"],
    }


def test_what_is_missing_is_said_with_what_to_do(shared_data, tmp_path, capsys):
    assert main(["info", str(shared_data / "wsi" / TCGA)]) == 0
    found = lines(capsys)
    assert found["level 1"] == ["2221 x 1783, downsample 2.00051"]
    assert found["µm per pixel"] == ["unknown"] and found["objective power"] == ["not stated"]
    assert len(found["missing"]) == 1
    path = write_svs(tmp_path / "a.svs", texture(200, 300), said="AppMag = 40")
    [slide] = as_json(capsys, path)["files"]
    [missing] = slide["missing"]
    assert "--slide-mpp 0.25" in missing
    [slide] = as_json(capsys, path, "--slide-mpp", "0.26")["files"]
    assert (slide["mpp"], slide["mpp_source"], slide["missing"]) == (0.26, "given", [])


def test_a_large_slide_of_one_level_is_noted(tmp_path, capsys):
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path,
        iter([b""] * 900),
        shape=(15_000, 15_000, 3),
        dtype="u1",
        tile=(512, 512),
        photometric="rgb",
        compression="deflate",
    )
    [slide] = as_json(capsys, path)["files"]
    assert len(slide["levels"]) == 1 and len(slide["notes"]) == 1


def test_a_slide_as_json(shared_data, capsys):
    found = as_json(capsys, shared_data / "wsi" / TCGA)
    assert found["failed"] == []
    [slide] = found["files"]
    assert slide["kind"] == "slide" and slide["name"] == TCGA.removesuffix(".svs")
    assert [v["width"] for v in slide["levels"]] == [4443, 2221]
    assert slide["levels"][1]["downsample"] == 2.0005055500659967
    assert slide["mpp"] is None and slide["associated_images"] == ["thumbnail"]
    assert slide["properties"]["openslide.vendor"] == "aperio"


def test_the_name_of_another_picture_may_contain_a_comma(tmp_path, capsys):
    path = tmp_path / "two.ome.tif"
    options = {"photometric": "rgb", "compression": "deflate"}
    with tifffile.TiffWriter(path, ome=True) as f:
        f.write(texture(300, 400), tile=(64, 64), metadata={"axes": "YXS"}, **options)
        f.write(texture(60, 80), metadata={"axes": "YXS", "Name": "label, back"}, **options)
    [slide] = as_json(capsys, path)["files"]
    assert slide["associated_images"] == ["label, back"]


def test_one_file_that_fails_is_wrong_input_and_one_of_many_is_left_out(tmp_path, capsys):
    good = write_pyramid(tmp_path / "good.tif", texture(200, 300))
    bad = tmp_path / "bad.svs"
    bad.write_text("not a slide")
    gone = tmp_path / "gone.svs"
    assert main(["info", str(bad), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "SlideError"
    assert main(["info", str(gone), "--json"]) == 2
    assert "gone.svs" in json.loads(capsys.readouterr().out)["error"]
    assert main(["info", str(bad), str(good), str(gone)]) == 1
    said = capsys.readouterr()
    assert str(good) in said.out and "level 2" in said.out
    assert "bad.svs" in said.err and "gone.svs" in said.err
    found = as_json(capsys, bad, good, exit_status=1)
    assert [f["path"] for f in found["files"]] == [str(good)]
    assert [f["path"] for f in found["failed"]] == [str(bad)]


def test_a_folder_of_slides_is_told_slide_by_slide(tmp_path, capsys):
    write_pyramid(tmp_path / "b.tif", texture(200, 300))
    write_svs(tmp_path / "a.svs", texture(200, 300))
    assert [f["name"] for f in as_json(capsys, tmp_path)["files"]] == ["a", "b"]
    (tmp_path / "empty").mkdir()
    assert main(["info", str(tmp_path / "empty"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "SlideError"


@pytest.fixture(scope="session")
def head(shared_data, tmp_path_factory):
    """Unpack the GE head series."""
    folder = tmp_path_factory.mktemp("head")
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as f:
        f.extractall(folder)
    return folder


def test_a_series_is_told_with_its_spacing_and_tilt(head, capsys):
    [scan] = as_json(capsys, head)["files"]
    assert scan["kind"] == "scan" and scan["format"] == "dicom"
    assert scan["slices"] == 28
    assert scan["positions"][0] < scan["positions"][1]
    assert any("tilt" in note for note in scan["notes"])
    assert main(["info", str(head)]) == 0
    found = lines(capsys)
    assert found["format"] == ["dicom"]
    assert found["slices"] == [f"28 of {scan['columns']} x {scan['rows']} pixels"]
    assert len(found["note"]) == len(scan["notes"])


def test_a_single_ct_file_and_a_nifti_file_are_scans(shared_data, tmp_path, capsys):
    import nibabel

    [scan] = as_json(capsys, shared_data / "ct_volumes" / "pydicom_CT_small.dcm")["files"]
    assert (scan["kind"], scan["slices"], scan["rows"], scan["columns"]) == ("scan", 1, 128, 128)
    path = tmp_path / "v.nii.gz"
    volume = np.zeros((6, 8, 5), np.int16)
    nibabel.save(nibabel.Nifti1Image(volume, np.diag([0.5, 0.5, 3.0, 1.0])), path)
    [scan] = as_json(capsys, path)["files"]
    assert (scan["kind"], scan["format"], scan["slices"]) == ("scan", "nifti", 5)
