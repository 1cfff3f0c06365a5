"""The geometry that is stated before slides are cut, and slides of unknown resolution."""

import json
import re

import h5py
import pytest
from PIL import Image
from support.made_slides import tissue, write_slide
from support.refusals import refused

from probsa.cli import main
from probsa.cohorts import ExtractOptions, WorkFolder, extract_cohort, read_coordinates
from probsa.core import TextTable
from probsa.errors import BagError
from probsa.slides import read_resolutions

NAMES = [f"s{k:02d}" for k in range(12)]


@pytest.fixture
def slides(tmp_path):
    """A folder of pictures that state no resolution."""
    folder = tmp_path / "slides"
    folder.mkdir()
    for name in NAMES:
        Image.fromarray(tissue(256, 256, boxes=[(16, 16, 240, 240)])).save(folder / f"{name}.png")
    return folder


def patch(*arguments):
    return main(["patch", *map(str, arguments), "--patch-size", "64"])


def test_a_dry_run_counts_them_all_and_offers_the_table(slides, tmp_path, capsys):
    table = tmp_path / "mpp.csv"
    work = tmp_path / "work"
    assert patch(slides, "--out", work, "--dry-run", "--mpp-table", table) == 1
    said = capsys.readouterr().out
    assert said.count("12 slides of unknown resolution ('s00', 's01', 's02', …)") == 1
    assert "cannot be cut" not in said and not work.exists()
    assert TextTable.read(table).rows == [{"slide": name, "mpp": ""} for name in NAMES]
    assert patch(slides, "--out", work, "--dry-run", "--mpp-table", table) == 2
    assert "exists" in capsys.readouterr().err
    table.write_text("slide,mpp\n" + "".join(f"{name},0.5\n" for name in NAMES[:-1]))
    assert set(read_resolutions(table)) == set(NAMES[:-1])
    assert patch(slides, "--out", work, "--dry-run", "--slide-mpp", table) == 0
    assert "1 slide of unknown resolution ('s11')" in capsys.readouterr().out
    assert patch(slides, "--out", work, "--mpp-table", tmp_path / "b.csv") == 2
    assert "--mpp-table has no effect without --dry-run" in capsys.readouterr().err


def test_nothing_is_said_where_no_resolution_is_needed(slides, tmp_path, capsys):
    assert patch(slides, "--out", tmp_path / "work", "--dry-run", "--preset", "clam") == 0
    assert "unknown resolution" not in capsys.readouterr().out


def test_a_run_gives_one_hint_instead_of_a_paragraph_each(slides, tmp_path, capsys):
    assert patch(slides, "--out", tmp_path / "work", "--workers", 1) != 0
    captured = capsys.readouterr()
    assert captured.out.count("12 slides of unknown resolution") == 1
    assert "cannot be cut" not in captured.out


@pytest.mark.parametrize("dry", [True, False])
def test_a_line_states_the_geometry_of_slides_before_they_are_cut(tmp_path, capsys, dry):
    """Two levels of 0.5 and 1 µm per pixel: patches of 64 pixels of 1 µm, 16 of which overlap."""
    for name in ("a", "b"):
        image = tissue(768, 768, boxes=[(64, 64, 700, 700)])
        write_slide(tmp_path / "slides" / f"{name}.tif", image, levels=2)
    flags = [
        "--out",
        tmp_path / "work",
        "--mpp",
        1,
        "--overlap",
        16,
        *(["--dry-run"] if dry else []),
    ]
    assert patch(tmp_path / "slides", *flags) == 0
    said = capsys.readouterr().out
    assert said.count("2 slides (") == 1
    assert "µm per pixel 0.5 (" in said and "); patch 64 px = 64 µm, read as " in said
    assert patch(tmp_path / "slides", *flags, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["geometry"]
    assert {**first, "name": ""} == {**second, "name": ""}
    assert (first["mpp"], first["side"], first["side_um"]) == (0.5, 64, 64.0)
    assert (first["side_level0"], first["stride_level0"]) == (128.0, 96.0)
    assert (first["level"], first["factor"], first["side_level"]) == (1, 2.0, 64.0)


def test_geometry_says_why_a_slide_gives_no_patches(slides, tmp_path, capsys):
    assert patch(slides, "--out", tmp_path / "work", "--dry-run", "--json") == 1
    found = json.loads(capsys.readouterr().out)["geometry"]
    assert {g["name"] for g in found} == set(NAMES)
    assert all(g["level"] is None and "give --slide-mpp" in g["reason"] for g in found)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("patch_size", 128, "64 pixels of level 0 .* 128 pixels of 0.5 µm .* 128"),
        ("size_level0", 128.0, "128 pixels of level 0 .* 64 pixels of 0.5 µm .* 64"),
        ("overlap", 32, "64 pixels of level 0 .* 32 apart.* 64 apart"),
        ("level0_width", 100, r"\[64, 64\].* 100 × 768 pixels"),
    ],
)
def test_a_stated_size_that_the_coordinates_contradict_is_refused(tmp_path, key, value, words):
    write_slide(tmp_path / "s.tif", tissue(768, 768, boxes=[(64, 64, 640, 640)]))
    assert patch(tmp_path / "s.tif", "--out", tmp_path / "work", "--mpp", "0.5") == 0
    patch_set = WorkFolder(tmp_path / "work").choose()
    path = patch_set.patches_file("s")
    assert len(read_coordinates(path).patches()) >= 100
    with h5py.File(path, "r+") as f:
        f["coords"].attrs[key] = value
    refused(BagError, words, read_coordinates(path).patches)
    failed = extract_cohort(tmp_path / "work", ExtractOptions())
    assert failed.counts == {"failed": 1} and re.search(words, failed.failures[0][1])


@pytest.mark.parametrize("kind", ["u2", "u8"])
def test_coordinates_of_unsigned_numbers_are_read(tmp_path, kind):
    write_slide(tmp_path / "s.tif", tissue(768, 768, boxes=[(64, 64, 640, 640)]))
    assert patch(tmp_path / "s.tif", "--out", tmp_path / "work", "--mpp", "0.5") == 0
    path = WorkFolder(tmp_path / "work").choose().patches_file("s")
    with h5py.File(path, "r+") as f:
        coords = f["coords"][:]
        attributes = dict(f["coords"].attrs)
        del f["coords"]
        f.create_dataset("coords", data=coords.astype(kind)).attrs.update(attributes)
    assert len(read_coordinates(path).patches()) == len(coords)


def test_the_line_of_a_slide_without_patches_gives_the_reason(tmp_path, capsys):
    write_slide(tmp_path / "s.tif", tissue(300, 300, boxes=[(0, 0, 300, 300)]))
    assert patch(tmp_path / "s.tif", "--out", tmp_path / "work", "--level", "3") == 1
    assert "no patches: " in (said := capsys.readouterr()).out
    assert "no level 3 " in said.out.partition("no patches: ")[2]
