"""A cohort from slides to bags: results that are kept, made anew or refused, and the reports."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch
from support import forks
from support.crashing import CrashingPatching, CrashingReader
from support.leftovers import temporary_of
from support.made_slides import tissue, write_cohort, write_slide
from support.processes import fork_workers
from support.refusals import refused

from probsa.cohorts import (
    ExtractOptions,
    Record,
    RunOptions,
    WorkFolder,
    extract_cohort,
    flow,
    patch_cohort,
    reading,
)
from probsa.core import TextTable, foreign_files, read_bag
from probsa.errors import InputError
from probsa.features import build
from probsa.jobs import Share
from probsa.patches import settings
from probsa.slides import open_slide

SMALL = settings(size=128, mpp=0.5)
NAME = "20x_128px_0px_overlap"
"""The set of patches of `SMALL`."""
COMMAND = "import sys; from probsa.cli import main; sys.exit(main(sys.argv[1:]))"


class Content(NamedTuple):
    """What is compared of a dataset, or of a whole file, which has attributes alone."""

    attributes: dict[str, str]
    dtype: str = ""
    data: bytes = b""


def contents(folder: Path) -> dict[str, Content]:
    """Return the contents of the HDF5 files below a folder, by file and by file:dataset."""
    contents_by_name = {}
    for path in sorted(folder.rglob("*.h5")):
        file = str(path.relative_to(folder))
        with h5py.File(path) as f:
            contents_by_name[file] = Content(texts(f.attrs))
            for name, dataset in f.items():
                contents_by_name[f"{file}:{name}"] = Content(
                    texts(dataset.attrs), str(dataset.dtype), dataset[...].tobytes()
                )
    return contents_by_name


def texts(attributes: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in attributes.items()}


def files_of(work: Path) -> set[Path]:
    """Return the relative paths of all that is in a work folder, but for the ledger."""
    return {path.relative_to(work) for path in work.rglob("*") if ".probsa" not in path.parts}


def rows_of(table: Path) -> list[dict[str, str]]:
    """Return the rows of a report without the times that they took."""
    return [row | {"seconds": ""} for row in TextTable.read(table).rows]


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("slides"))


@pytest.fixture(scope="module")
def finished(slides, tmp_path_factory):
    """Return a work folder with patches and features."""
    out = tmp_path_factory.mktemp("finished") / "work"
    patch_cohort(slides, out, settings=SMALL)
    extract_cohort(out, ExtractOptions(batch=7))
    return out


@pytest.fixture
def work(finished, tmp_path):
    """Return a copy of the finished work folder, which a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "work"))


def test_features_are_those_of_the_pixels_at_the_coordinates(slides, finished):
    encoder = build("handcrafted")
    path = finished / NAME / "features_handcrafted" / "slide1.h5"
    bag = read_bag(path)
    assert bag.coords is not None and bag.stride == 128 and bag.kind == "slide"
    with open_slide(slides / "slide1.tiff") as slide:
        patches_file = WorkFolder(finished).choose().patches_file("slide1")
        with h5py.File(patches_file) as f:
            assert (f["coords"][...] == bag.coords).all()
        for i in (0, 5, len(bag.coords) - 1):
            x, y = bag.coords[i]
            pixels = slide.read(x=int(x), y=int(y), level=0, width=128, height=128)
            features = encoder.encode(torch.from_numpy(pixels)[None])[0].numpy()
            np.testing.assert_allclose(bag.features[i], features, rtol=1e-5, atol=1e-6)
            assert bag.intensity[i] == pytest.approx(pixels.astype(np.float64).mean(), rel=1e-6)


def test_attributes_are_tridents(finished):
    with h5py.File(finished / NAME / "features_handcrafted" / "slide0.h5") as f:
        a = dict(f["coords"].attrs)
        assert f["features"].dtype == np.float32 and f.attrs["probsa_kind"] == "slide"
        assert f["features"].chunks is None
    assert (a["patch_size"], a["patch_size_level0"], a["overlap"]) == (128, 128, 0)
    assert (a["level0_magnification"], a["target_magnification"]) == (20, 20)
    assert (a["level0_width"], a["level0_height"], a["name"]) == (1024, 1024, "slide0")


def test_a_second_run_keeps_everything(slides, work):
    before = {p: p.stat().st_mtime_ns for p in work.rglob("*.h5")}
    (patched,) = patch_cohort(slides, work, settings=SMALL)
    extracted = extract_cohort(work, ExtractOptions(batch=7))
    assert all(o.kept for o in (*patched.outcomes, *extracted.outcomes))
    assert patched.counts == extracted.counts == {"done": 3, "kept": 3}
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*.h5")} == before


def test_batches_and_readers_change_nothing(work, finished):
    extract_cohort(work, ExtractOptions(batch=5, readers=1), run=RunOptions(overwrite=True))
    for k in range(3):
        there = read_bag(finished / NAME / "features_handcrafted" / f"slide{k}.h5")
        here = read_bag(work / NAME / "features_handcrafted" / f"slide{k}.h5")
        np.testing.assert_allclose(here.features, there.features, rtol=1e-5, atol=1e-6)


def test_several_workers_make_the_same(slides, finished, tmp_path, monkeypatch):
    fork_workers(monkeypatch)
    out = tmp_path / "work"
    run = RunOptions(workers=2)
    (patched,) = patch_cohort(slides, out, settings=SMALL, run=run)
    report = extract_cohort(out, ExtractOptions(batch=7, threads=1), run=run)
    assert patched.counts == report.counts == {"done": 3}
    assert contents(out) == contents(finished)


def test_two_runs_of_one_command_give_the_files_of_one(slides, finished, tmp_path):
    """Both have one process and begin with the same slide."""
    out = tmp_path / "work"
    patch = ["patch", slides, "--out", out, "--patch-size", "128", "--mpp", "0.5", "--workers", "1"]
    extract = ["extract", out, "--encoder", "handcrafted", "--batch", "7", "--readers", "0"]
    for arguments in (patch, extract):
        both = [forks.begin(COMMAND, *arguments) for _ in range(2)]
        for process in both:
            assert process.wait() == 0, process.errors()
    assert contents(out) == contents(finished)
    assert files_of(out) == files_of(finished)
    for table in ("patch.csv", "features_handcrafted.csv"):
        assert rows_of(out / NAME / table) == rows_of(finished / NAME / table)
    assert list(foreign_files(out)) == []


def test_a_damaged_or_lost_file_is_made_anew(slides, work, finished):
    damaged_patches = work / NAME / "patches" / "slide0_patches.h5"
    lost_patches = work / NAME / "patches" / "slide1_patches.h5"
    damaged_bags = [
        work / NAME / "features_handcrafted" / f"{name}.h5" for name in ("slide1", "slide2")
    ]
    os.truncate(damaged_patches, 100)
    lost_patches.unlink()
    os.truncate(damaged_bags[0], 2000)
    os.truncate(damaged_bags[1], 3000)
    # a damaged file is not what probsa wrote: it stays until the user has removed it
    (patched,) = patch_cohort(slides, work, settings=SMALL)
    assert [o.status for o in patched.outcomes] == ["failed", "done", "done"]
    assert damaged_patches.stat().st_size == 100
    damaged_patches.unlink()
    (patched,) = patch_cohort(slides, work, settings=SMALL)
    assert [o.kept for o in patched.outcomes] == [False, True, True]
    extracted = extract_cohort(work, ExtractOptions(batch=7))
    assert [o.status for o in extracted.outcomes] == ["done", "failed", "failed"]
    for path in damaged_bags:
        path.unlink()
    extracted = extract_cohort(work, ExtractOptions(batch=7))
    assert [o.kept for o in extracted.outcomes] == [True, False, False]
    assert contents(work) == contents(finished)


def test_other_patch_settings_are_refused_before_anything_is_done(slides, work):
    other = settings(size=128, mpp=0.5, threshold=20)
    with pytest.raises(InputError, match="threshold: 8 there, 20 requested"):
        patch_cohort(slides, work, settings=other)
    with pytest.raises(InputError, match=r"min_tissue: 0.25 there, 0.9 requested.*--overwrite"):
        patch_cohort(slides, work, settings=settings(size=128, mpp=0.5, min_tissue=0.9))
    # another size or scale makes another set beside the first
    (report,) = patch_cohort(slides, work, settings=settings(size=256, mpp=0.5))
    assert report.counts == {"done": 3}
    assert sorted(WorkFolder(work).sets()) == [NAME, "20x_256px_0px_overlap"]
    refused(InputError, "--set", extract_cohort, work, ExtractOptions())
    assert extract_cohort(work, ExtractOptions(batch=7), patch_set=NAME).counts["kept"] == 3


def test_features_of_other_patches_weights_or_precision_are_noticed(slides, work):
    patch_cohort(
        slides,
        work,
        settings=settings(size=128, mpp=0.5, min_tissue=0.9),
        run=RunOptions(overwrite=True),
    )
    report = extract_cohort(work, ExtractOptions(batch=7))
    assert report.counts == {"failed": 3}
    reason = report.failures[0][1]
    assert "slide0.h5" in reason and "another patches" in reason and "--overwrite" in reason
    report = extract_cohort(work, ExtractOptions(batch=7), run=RunOptions(overwrite=True))
    assert report.counts == {"done": 3}
    report = extract_cohort(work, ExtractOptions(batch=7, precision="bf16"))
    assert "another precision" in report.failures[0][1]
    assert extract_cohort(work, ExtractOptions(batch=7)).counts == {"done": 3, "kept": 3}


def test_a_slide_that_changed_is_noticed(slides, work, tmp_path):
    copies = Path(shutil.copytree(slides, tmp_path / "copies"))
    write_slide(copies / "slide1.tiff", tissue(1024, 1024, boxes=[(0, 0, 512, 512)], seed=9))
    (report,) = patch_cohort(copies, work, settings=SMALL)
    assert [o.status for o in report.outcomes] == ["done", "failed", "done"]
    assert "have changed since" in report.failures[0][1]
    moved = extract_cohort(work, ExtractOptions(batch=7), slides=copies)
    assert [o.status for o in moved.outcomes] == ["done", "failed", "done"]
    assert "made with another slide" in moved.failures[0][1]


def test_slides_may_be_moved(slides, work, tmp_path, finished):
    shutil.rmtree(work / NAME / "features_handcrafted")
    for path in (work / NAME / "records" / "patch").glob("*.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"source": str(tmp_path / "gone" / path.stem)}))
    report = extract_cohort(work, ExtractOptions(batch=7))
    assert report.counts == {"failed": 3} and "gone" in report.failures[0][1]
    report = extract_cohort(work, ExtractOptions(batch=7), slides=slides)
    assert report.counts == {"done": 3}


def test_what_failed_is_tried_again_and_what_has_no_tissue_is_not(tmp_path):
    folder = tmp_path / "slides"
    write_slide(folder / "empty.tiff", np.full((600, 600, 3), 245, np.uint8))
    write_slide(folder / "good.tiff", tissue(600, 600, boxes=[(0, 0, 500, 500)]))
    (folder / "bad.svs").write_text("no slide at all\n" * 100)
    out = tmp_path / "work"
    (report,) = patch_cohort(folder, out, settings=SMALL)
    assert report.counts == {"failed": 1, "done": 1, "no_tissue": 1}
    reasons = dict(report.failures)
    assert "thumbnails/empty.jpg" in reasons["empty"]
    assert (out / "thumbnails" / "empty.jpg").is_file()
    assert not (out / NAME / "patches" / "empty_patches.h5").exists()
    rows = {r["name"]: r for r in TextTable.read(out / NAME / "patch.csv").rows}
    assert {n: r["status"] for n, r in rows.items()} == {
        "bad": "failed",
        "empty": "no_tissue",
        "good": "done",
    }
    assert rows["bad"]["reason"] and float(rows["good"]["mpp"]) == 0.5
    write_slide(folder / "bad.tiff", tissue(600, 600, boxes=[(0, 0, 300, 300)]))
    (folder / "bad.svs").unlink()
    (again,) = patch_cohort(folder, out, settings=SMALL)
    assert {o.name: (o.status, o.kept) for o in again.outcomes} == {
        "bad": ("done", False),
        "empty": ("no_tissue", True),
        "good": ("done", True),
    }
    # slides that failed in patching do not count as failures of extraction
    report = extract_cohort(out, ExtractOptions())
    assert report.counts == {"done": 2} and "1 without patches" in report.metadata[1]


def test_a_patch_that_cannot_be_decoded_is_flagged_and_left_out(tmp_path):
    image = tissue(768, 768, boxes=[(0, 0, 768, 768)])
    path = write_slide(tmp_path / "slides" / "torn.tiff", image, jpeg=True, levels=4)
    out = tmp_path / "work"
    blank_tile(path, tile=4)  # a tile of level 0; tissue is detected on the last level
    (report,) = patch_cohort(path.parent, out, settings=settings(size=256, mpp=0.5))
    assert report.outcomes[0].count == 9
    record = out / "20x_256px_0px_overlap" / "records" / "patch" / "torn.json"
    extracted = extract_cohort(out, ExtractOptions(batch=2))
    (outcome,) = extracted.outcomes
    assert (outcome.status, outcome.count, outcome.unreadable) == ("done", 9, 1)
    assert "1 of 9 instances" in outcome.reason
    stored = out / "20x_256px_0px_overlap" / "features_handcrafted" / "torn.h5"
    bag = read_bag(stored)
    kept = read_bag(stored, keep_unreadable=True)
    assert len(bag.features) == 8 and len(kept.features) == 9
    assert [256, 256] not in bag.coords.tolist() and kept.coords.tolist()[4] == [256, 256]
    assert (kept.features[4] == 0).all() and (bag.features != 0).any(axis=1).all()
    assert Record.read(record) is not None
    # a second run keeps the bag and the reason
    again = extract_cohort(out, ExtractOptions(batch=2)).outcomes[0]
    assert again.kept and again.unreadable == 1 and again.reason == outcome.reason


def blank_tile(path: Path, *, tile: int) -> None:
    """Overwrite the data of a tile of level 0 with zeros, which no decoder of JPEG accepts."""
    import tifffile

    with tifffile.TiffFile(path) as tif:
        page = tif.pages[0]
        offset = page.dataoffsets[tile]
        length = page.databytecounts[tile]
    with path.open("r+b") as f:
        f.seek(offset)
        f.write(b"\0" * length)


def test_a_full_disk_ends_the_run_and_leaves_nothing_half_written(slides, work, monkeypatch):
    shutil.rmtree(work / NAME / "features_handcrafted")
    shutil.rmtree(work / NAME / "records" / "features_handcrafted")
    real = os.fsync
    calls = []

    def fsync(number):
        calls.append(number)
        if len(calls) == 3:  # the first two calls are for slide0's bag and record
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    monkeypatch.setattr("os.fsync", fsync)
    refused(OSError, os.strerror(errno.ENOSPC), extract_cohort, work, ExtractOptions(batch=7))
    monkeypatch.undo()
    bags = sorted(p.name for p in (work / NAME / "features_handcrafted").iterdir())
    assert bags == ["slide0.h5"]
    assert extract_cohort(work, ExtractOptions(batch=7)).counts == {"done": 3, "kept": 1}


def test_shards_part_the_work_and_make_the_whole(slides, finished, tmp_path):
    out = tmp_path / "work"
    for i in range(2):
        patch_cohort(slides, out, settings=SMALL, run=RunOptions(share=Share(i, 2)))
    for i in range(2):
        extract_cohort(out, ExtractOptions(batch=7), run=RunOptions(share=Share(i, 2)))
    assert contents(out) == contents(finished)
    assert (out / NAME / "patch_0of2.csv").is_file() and (out / NAME / "patch_1of2.csv").is_file()


def test_edited_contours_take_the_place_of_tissue(slides, work, tmp_path):
    contours = tmp_path / "edited"
    contours.mkdir()
    square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    feature = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [square]}}
    for k in range(2):
        (contours / f"slide{k}.geojson").write_text(
            json.dumps({"type": "FeatureCollection", "features": [feature]})
        )
    out = tmp_path / "new"
    (report,) = patch_cohort(slides, out, settings=SMALL, contours=contours)
    assert [(o.status, o.count) for o in report.outcomes] == [
        ("done", 4),
        ("done", 4),
        ("failed", 0),
    ]
    assert "slide2.geojson" in report.failures[0][1]


def test_two_slides_of_one_name_and_an_empty_folder(tmp_path):
    write_slide(tmp_path / "s" / "a" / "x.tiff", tissue(600, 600, boxes=[(0, 0, 500, 500)]))
    write_slide(tmp_path / "s" / "a" / "x.tif", tissue(600, 600, boxes=[(0, 0, 300, 300)]))
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "work", settings=SMALL)
    assert report.counts == {"done": 1, "failed": 1}
    assert "is named 'a_x' as well" in report.failures[0][1]
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "read.me").write_text("hello")
    with pytest.raises(InputError, match=r"\.me"):
        patch_cohort(tmp_path / "none", tmp_path / "w", settings=SMALL)
    with pytest.raises(InputError, match="probsa patch"):
        extract_cohort(tmp_path / "none", ExtractOptions())


def temporary_files(work: Path) -> list[str]:
    return [p.name for p in work.rglob(".*") if p.suffix == ".tmp"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_decoder_that_crashes_costs_one_slide(slides, tmp_path, monkeypatch, workers):
    fork_workers(monkeypatch)
    monkeypatch.setattr(flow, "Patching", CrashingPatching)
    out = tmp_path / "work"
    reported = []
    run = RunOptions(workers=workers, isolated=True)
    (report,) = patch_cohort(
        slides, out, settings=SMALL, run=run, on_outcome=lambda o, total: reported.append(o.name)
    )
    assert [o.status for o in report.outcomes] == ["done", "failed", "done"]
    assert "died twice" in report.failures[0][1] and "signal 11" in report.failures[0][1]
    assert reported[-1] == "slide1" and len(reported) == 3
    rows = TextTable.read(out / NAME / "patch.csv").rows
    assert "signal 11" in rows[1]["reason"] and rows[1]["source"].endswith("slide1.tiff")
    assert temporary_files(out) == []
    # the next run tries it again
    monkeypatch.undo()
    (report,) = patch_cohort(slides, out, settings=SMALL)
    assert report.counts == {"done": 3, "kept": 2}


def test_a_slide_that_kills_readers_fails_alone(work, monkeypatch):
    """Readers read ahead: they die at slide1 while slide0 is still in progress."""
    fork_workers(monkeypatch)
    shutil.rmtree(work / NAME / "features_handcrafted")
    monkeypatch.setattr(reading, "PixelReader", CrashingReader)
    report = extract_cohort(work, ExtractOptions(batch=7, readers=1))
    assert [o.status for o in report.outcomes] == ["done", "failed", "done"]
    name, reason = report.failures[0]
    assert name == "slide1" and "killed twice" in reason and "--readers" in reason
    assert temporary_files(work) == []


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"readers": -1}, {"threads": -1}])
def test_options_that_cannot_be(wrong):
    refused(InputError, "at least", ExtractOptions, **wrong)


def test_what_a_killed_run_left_half_written_goes(slides, work, finished):
    """This applies to every file of a run; what others write or wrote stays."""
    suffixes = (".h5", ".json", ".jpg", ".csv")
    written = [path for path in work.rglob("*") if path.is_file() and path.suffix in suffixes]
    assert len(written) > 20
    for path in written:
        temporary_of(path).write_bytes(b"half")
    foreign = temporary_of(work / "notes.txt")
    foreign.write_bytes(b"not ours")
    living = temporary_of(work / "thumbnails" / "slide0.jpg", pid=os.getpid())
    living.write_bytes(b"half")
    earlier = work / "thumbnails" / ".slide0.jpg.abcd1234.tmp"
    earlier.write_bytes(b"of version 0.2")
    patch_cohort(slides, work, settings=SMALL)
    extract_cohort(work, ExtractOptions(batch=7))
    assert set(work.rglob(".*.tmp")) == {foreign, living, earlier}
    for path in (foreign, living, earlier):
        path.unlink()
    assert sorted(p.relative_to(work) for p in work.rglob("*")) == sorted(
        p.relative_to(finished) for p in finished.rglob("*")
    )


def test_rows_and_records_of_a_done_run_are_kept_or_mended(slides, work):
    (report,) = patch_cohort(slides / "slide1.tiff", work, settings=SMALL)
    assert [o.name for o in report.outcomes] == ["slide1"]
    rows = TextTable.read(work / NAME / "patch.csv").rows
    assert [r["name"] for r in rows] == ["slide0", "slide1", "slide2"]
    assert {r["status"] for r in rows} == {"done"}
    folder = work / NAME / "records" / "features_handcrafted"
    before = {p.name: Record.read(p) for p in folder.glob("*.json")}
    (folder / "slide1.json").unlink()
    report = extract_cohort(work, ExtractOptions(batch=7))
    assert report.counts == {"done": 3, "kept": 3}
    again = Record.read(folder / "slide1.json")
    assert again is not None and again.status == "done"
    assert again.count == before["slide1.json"].count
    assert sorted(p.name for p in folder.iterdir()) == sorted(before)
