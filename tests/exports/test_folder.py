"""`probsa map` with other formats: flags, files, messages and what a killed run left."""

import json
import re
import sys
from pathlib import Path

import pytest
from support.leftovers import temporary_of
from support.made_dicom import write_dicom_slide
from support.made_exports import predictions, slide_bag
from support.made_maps import bag, lattice, pink
from support.refusals import refused

from probsa.cli import main
from probsa.cohorts import find_inputs
from probsa.core import open_output
from probsa.errors import MissingExtra, SlideError, UnknownName
from probsa.exports import ExportSettings, export_folder
from probsa.maps import CohortSources
from probsa.slides import open_slide


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    write_dicom_slide(folder / "a.dcm", pink())
    return folder


def run(capsys, *arguments):
    status = main(["map", *map(str, arguments)])
    output = capsys.readouterr()
    return status, output.out, output.err


def names(folder):
    return (
        sorted(f.name for f in folder.iterdir() if f.name != ".probsa") if folder.exists() else []
    )


def test_every_format_at_once(tmp_path, slides, capsys):
    preds = predictions(tmp_path / "p", slide_bag())
    out = tmp_path / "out"
    status, text, _ = run(
        capsys,
        preds,
        "--out",
        out,
        "--slides",
        slides,
        "--no-png",
        "--ome-tiff",
        "--geojson",
        "--dicom",
        "--anndata",
        "--no-features",
        "--json",
    )
    assert status == 0
    found = json.loads(text)
    dicom = [f"a_{name}.dcm" for name in ("mean", "probability", "segmentation", "std")]
    assert names(out) == ["a.geojson", "a.h5ad", "a.ome.tiff", *dicom]
    assert sorted(found["files"]) == sorted(str(out / name) for name in names(out))
    assert found["failed"] == [] and found["absent"] == {}
    measured = json.loads((out / "a.geojson").read_text())["features"][0]["properties"]
    assert measured["measurements"]["area mm²"] == pytest.approx(15 * 0.032**2)  # by the slide


def test_pictures_stay_the_default_and_tiles_are_on_request(tmp_path, capsys):
    preds = predictions(tmp_path / "p", slide_bag())
    out = tmp_path / "out"
    assert run(capsys, preds, "--out", out)[0] == 0
    assert names(out) == ["a.png"]
    assert run(capsys, preds, "--out", out, "--geojson")[0] == 0
    held = json.loads((out / "a.geojson").read_text())
    assert {f["properties"]["objectType"] for f in held["features"]} == {"annotation"}
    assert run(capsys, preds, "--out", out, "--geojson", "tiles", "--no-png")[0] == 0
    held = json.loads((out / "a.geojson").read_text())
    assert {f["properties"]["objectType"] for f in held["features"]} == {"tile"}
    assert len(held["features"]) == 30 and "Research use" in held["probsa"]["statement"]


def test_a_model_without_probability_or_variance(tmp_path, slides, capsys):
    preds = predictions(tmp_path / "p", bag(lattice(), name="a"))
    out = tmp_path / "out"
    base = (preds, "--out", out, "--slides", slides, "--no-png", "--dicom")
    status, _, said = run(capsys, *base, "--geojson")
    assert status == 2 and names(out) == []
    for part in ("bag 'a' has no probability", "logit", "--geojson tiles"):
        assert part in said
    status, _, said = run(capsys, *base)
    assert status == 0
    assert "not exported: probability: " in said and "logit" in said
    assert names(out) == ["a_mean.dcm", "a_std.dcm"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ome-tiff"], "--ome-tiff places"),
        (["--nifti"], "--nifti places"),
        (["--no-png"], "--no-png leaves nothing"),
        (["--no-features"], "--no-features .* --anndata"),
        (["--anndata"], "--anndata .* --features DIR"),
        (["--anndata", "all"], "--anndata is 'all'; expected 'per-bag' or 'one-file'"),
        (["--anndata", "--features", "nowhere"], "no folder nowhere"),
        (["--geojson", "--bag", "b"], "no predicted bag named 'b'"),
    ],
)
def test_wrong_requests_write_nothing(tmp_path, capsys, flags, words):
    preds = predictions(tmp_path / "p", slide_bag())
    status, _, said = run(capsys, preds, "--out", tmp_path / "out", *flags)
    assert status == 2 and re.search(words, said)
    assert names(tmp_path / "out") == []


def test_what_fails_leaves_no_part_and_the_other_formats_are_written(tmp_path, slides, monkeypatch):
    preds = predictions(tmp_path / "p", slide_bag())
    out = tmp_path / "out"
    out.mkdir()
    temporary_of(out / "a.ome.tiff").write_text("left by a process that was killed")
    foreign = temporary_of(out / "other.ome.tiff")
    foreign.write_text("of nobody")
    (out / "a.ome.tiff").write_text("before")
    open_output(out, earlier=lambda folder: [folder / "a.ome.tiff"])
    settings = ExportSettings(ome_tiff=True, geojson="contours")
    sources = CohortSources(slides)
    with monkeypatch.context() as patch:
        patch.setattr("tifffile.TiffWriter.write", _full)
        ((name, reason),) = export_folder(preds, out, settings, sources=sources).failures
    assert name == "a" and "the OME-TIFF file was not written" in reason and "No space" in reason
    assert names(out) == [foreign.name, "a.geojson", "a.ome.tiff"]
    assert (out / "a.ome.tiff").read_text() == "before"
    with pytest.raises(UnknownName):
        export_folder(preds, out, settings, bags=["b"], sources=sources)
    monkeypatch.setitem(sys.modules, "shapely", None)
    with pytest.raises(MissingExtra, match=r"shapely.*'\.\[slid"):
        export_folder(preds, out, settings, sources=sources)


def _full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_map_in_the_folder_of_slides_is_no_slide(tmp_path, slides, capsys):
    preds = predictions(tmp_path / "p", slide_bag())
    run(capsys, preds, "--out", tmp_path / "out", "--slides", slides, "--no-png", "--ome-tiff")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for file in (slides / "a.dcm", tmp_path / "out" / "a.ome.tiff"):
        (mixed / file.name).write_bytes(file.read_bytes())
    kept, left_out = find_inputs(mixed)
    assert (kept.name, Path(kept.source).name, kept.reason) == ("a", "a.dcm", "")
    assert left_out.name == "a.ome.tiff"
    assert "float32" in left_out.reason and "`probsa map`" in left_out.reason
    refused(SlideError, r"a\.ome\.tiff", open_slide, mixed / "a.ome.tiff")
    assert main(["info", str(mixed)]) == 1
    output = capsys.readouterr()
    assert "a.dcm" in output.out and "a.ome.tiff holds float32 values" in output.err
