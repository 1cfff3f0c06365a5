"""A resolution that the user gave is recorded as given, wherever it is used."""

import csv
import json

import h5py
import pytest
from support.made_exports import export, slide_bag
from support.made_slides import tissue, write_slide

from probsa.cohorts import ExtractOptions, extract_cohort, patch_cohort
from probsa.patches import settings
from probsa.slides import open_slide

PINK = tissue(640, 512, boxes=[(0, 0, 640, 512)])
CHOSEN = settings(size=64, mpp=0.5, min_area=0.0)


@pytest.mark.parametrize(
    ("stated", "given", "source"),
    [
        (None, 0.5, "given"),
        (None, {"a": 0.5}, "given"),
        (0.25, {"a": 0.5}, "given, file says 0.25"),
        (0.5, None, None),
        (0.5, 0.25, None),  # one number for all is for slides that state none
        (0.5, {"a": 0.501}, None),  # the same number, less exactly
    ],
)
def test_patches_and_bags_say_that_it_was_given(tmp_path, stated, given, source):
    write_slide(tmp_path / "s" / "a.tiff", PINK, mpp=stated)
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=CHOSEN, mpp=given)
    (outcome,) = report.outcomes
    assert outcome.status == "done" and outcome.mpp == pytest.approx(0.5)
    with report.table.open(newline="") as f:
        (row,) = csv.DictReader(f)
    assert row["mpp_source"] == (source or "TIFF resolution tags")
    assert ("as given" in row["notes"]) == (source is not None)
    assert ("as given" in outcome.geometry.sentence) == (source is not None)
    extract_cohort(tmp_path / "w", ExtractOptions())
    (bag,) = (tmp_path / "w").glob("*/features_handcrafted/*.h5")
    with h5py.File(bag) as f:
        assert f["coords"].attrs.get("mpp_source") == source


@pytest.mark.parametrize(("mpp", "shown"), [(0.5, "0.5 (as given)"), (None, None)])
def test_a_picture_and_an_export_say_that_it_was_given(tmp_path, mpp, shown):
    path = write_slide(tmp_path / "s" / "a.tiff", PINK, mpp=None if shown else 0.5)
    with open_slide(path, mpp=mpp) as slide:
        assert slide.mpp_is_given == (shown is not None)
        assert slide.region((0, 0, 64, 64), scale=1).mpp_is_given == (shown is not None)
    if shown:  # the work folder knows it
        patch_cohort(tmp_path / "s", tmp_path / "w", settings=CHOSEN, mpp=mpp)
    out, failures = export(
        tmp_path, tmp_path / ("w" if shown else "s"), slide_bag(), geojson="tiles"
    )
    assert failures == []
    stated = json.loads(next(out.glob("*.geojson")).read_text())["probsa"]
    assert stated["micrometres_per_pixel"] == (shown or "0.5 (TIFF resolution tags)")
