"""The names of bags: those of files, of folders where file names repeat, and of earlier runs."""

import csv
import json
import os
import sys
import unicodedata

import nibabel
import numpy as np
import pytest
from support.made_slides import tissue, write_slide

from probsa.cohorts import ExtractOptions, extract_cohort, find_inputs, patch_cohort
from probsa.cohorts.work import bag_name, file_name
from probsa.patches import settings

PINK = tissue(300, 300, boxes=[(0, 0, 300, 300)])
CHOSEN = settings("clam-biopsy", size=128, min_area=0.0)
NAMES = [
    "case #12",
    "50% HE",
    "a;b",
    "a,b",
    "x.y.z",
    "case 1 (2)",
    "[red]bold",
    "it's",
    "a&b",
    "é",
    "標本",
    "a!b~c$d^e{f}",
    "+1",
    "=1+1",
    unicodedata.normalize("NFD", "é"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses some of these names")
@pytest.mark.parametrize("name", [*NAMES, 'a"b', "a:b*c?", "a\\b", "a<b>|c"])
def test_a_bag_has_the_name_of_its_file(tmp_path, name):
    write_slide(tmp_path / "s" / f"{name}.tiff", PINK)
    (record,) = find_inputs(tmp_path / "s")
    assert record.name == name and record.notes == ()
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=CHOSEN)
    assert [(o.name, o.status) for o in report.outcomes] == [(name, "done")]
    features = extract_cohort(tmp_path / "w", ExtractOptions())
    assert [(o.name, o.status) for o in features.outcomes] == [(name, "done")]
    (bag,) = (tmp_path / "w").glob("*/features_handcrafted/*.h5")
    assert bag.stem == name
    (again,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=CHOSEN)
    assert [o.kept for o in again.outcomes] == [True]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses some of these names")
def test_scans_have_the_names_of_their_files_and_folders(tmp_path):
    volume = nibabel.Nifti1Image(np.zeros((8, 8, 3), np.float32) - 700, np.eye(4))
    for path in ("head #1.nii", "100% [b]/x;y.nii.gz"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        nibabel.save(volume, tmp_path / path)
    assert [r.name for r in find_inputs(tmp_path)] == ["100% [b]_x;y", "head #1"]


@pytest.mark.parametrize(
    ("name", "bag"), [(" a ", "a"), ("a\nb", "a_b"), ("a\udce9b", "a_b"), (".a", "_a")]
)
def test_what_no_bag_can_be_called_is_replaced(name, bag):
    assert bag_name(name) == bag
    assert bag_name("x" * 200) != bag_name("x" * 201) and len(bag_name("é" * 200).encode()) <= 160


def test_a_name_that_is_replaced_is_said(tmp_path):
    write_slide(tmp_path / "s" / "a\nb.tiff", PINK)
    (record,) = find_inputs(tmp_path / "s")
    assert record.name == "a_b" and len(record.notes) == 1 and "a_b" in record.notes[0]


def test_slides_of_equal_file_names_are_named_by_their_folders(tmp_path):
    root = tmp_path / "s"
    for folder in ("one", "two/part", "three"):
        write_slide(root / folder / "L0.tiff", PINK)
    write_slide(root / "three" / "other.tiff", PINK)
    write_slide(root / "L0.tiff", PINK)
    found = {record.name: record.source for record in find_inputs(root)}
    assert {name: os.path.relpath(source, root) for name, source in found.items()} == {
        "L0": "L0.tiff",
        "one": "one/L0.tiff",
        "two_part": "two/part/L0.tiff",
        "three_L0": "three/L0.tiff",
        "other": "three/other.tiff",
    }
    assert not any(record.reason for record in find_inputs(root))


def test_a_work_folder_keeps_the_names_that_it_has(tmp_path):
    """Names of 0.2, and of a slide whose file name was unique before."""
    root = tmp_path / "s"
    work = tmp_path / "w"
    write_slide(root / "a" / "L0.tiff", PINK)
    write_slide(root / "case #1.tiff", PINK)
    patch_cohort(root, work, settings=CHOSEN)
    (patch_set,) = work.glob("*/settings.json")
    records = patch_set.parent / "records" / "patch"
    old = file_name("case #1")
    record = json.loads((records / "case #1.json").read_text())
    (records / "case #1.json").unlink()
    (records / f"{old}.json").write_text(json.dumps(record | {"name": old}))
    patches = patch_set.parent / "patches"
    (patches / "case #1_patches.h5").rename(patches / f"{old}_patches.h5")
    write_slide(root / "b" / "L0.tiff", PINK)
    (report,) = patch_cohort(root, work, settings=CHOSEN)
    assert [(o.name, o.status, o.kept) for o in report.outcomes] == [
        ("L0", "done", True),
        ("b", "done", False),
        (old, "done", True),
    ]
    with report.table.open(newline="") as f:
        assert [row["name"] for row in csv.DictReader(f)] == ["L0", "b", old]
