"""Faults around a run over a cohort: moved or damaged files, changed settings, dying readers."""

import json
import multiprocessing
import pickle
import shutil
import signal
import struct
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.made_slides import tissue, write_cohort, write_slide
from support.processes import fork_workers
from support.refusals import refused

from probsa.cohorts import (
    ExtractOptions,
    RunOptions,
    WorkFolder,
    extract_cohort,
    find_inputs,
    flow,
    patch_cohort,
    read_coordinates,
)
from probsa.cohorts import reading as module
from probsa.cohorts.coordinates import Coordinates, write_coordinates
from probsa.cohorts.work import MAX_NAME_BYTES, file_name
from probsa.core import note_written, peek_bag, read_bag, read_stamp, write_bag
from probsa.errors import BagError, InputError
from probsa.features import build
from probsa.jobs import run_tasks
from probsa.patches import settings

SMALL = settings(size=128, mpp=0.5)
NAME = "20x_128px_0px_overlap"
FEW = ExtractOptions(batch=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with two slides and their work folder."""
    folder = tmp_path_factory.mktemp("review")
    write_cohort(folder / "slides", slides=2, side=768)
    patch_cohort(folder / "slides", folder / "work", settings=SMALL)
    extract_cohort(folder / "work", FEW)
    return folder


@pytest.fixture
def both(made, tmp_path):
    """A copy that a test may change, as (slides, work)."""
    shutil.copytree(made, tmp_path / "both")
    slides = tmp_path / "both" / "slides"
    work = tmp_path / "both" / "work"
    for path in work.rglob("records/*/*.json"):
        path.write_text(path.read_text().replace(str(made), str(tmp_path / "both")))
        note_written(path)
    return slides, work


def again(work: Path) -> Path:
    """Remove the features and their records; return the features folder."""
    folder = work / NAME / "features_handcrafted"
    shutil.rmtree(folder)
    shutil.rmtree(work / NAME / "records" / folder.name)
    return folder


def test_relative_paths_hold_in_workers_that_run_elsewhere(made, tmp_path, monkeypatch):
    shutil.copytree(made / "slides", tmp_path / "slides")
    (tmp_path / "elsewhere").mkdir()

    def from_elsewhere(stage, tasks, **options):
        monkeypatch.chdir(tmp_path / "elsewhere")
        stage, tasks = pickle.loads(pickle.dumps((stage, tasks)))
        found = run_tasks(stage, tasks, engine=options["engine"], workers=1)
        monkeypatch.chdir(tmp_path)
        return found

    monkeypatch.setattr(flow, "run_tasks", from_elsewhere)
    monkeypatch.chdir(tmp_path)
    (patched,) = patch_cohort(Path("slides"), Path("work"), settings=SMALL)
    assert patched.counts == {"done": 2}
    assert extract_cohort(Path("work"), FEW, slides=Path("slides")).counts == {"done": 2}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (tmp_path / "w.pth").touch()
    assert ExtractOptions(weights="w.pth").absolute().weights == str(tmp_path / "w.pth")
    assert ExtractOptions(weights="hub").absolute().weights == "hub"


def test_pictures_of_a_work_folder_beside_the_slides_are_no_slides(made, tmp_path):
    slides = Path(shutil.copytree(made / "slides", tmp_path / "slides"))
    for _ in range(2):
        (report,) = patch_cohort(slides, slides / "work", settings=SMALL)
        assert [(o.name, o.status) for o in report.outcomes] == [
            ("slide0", "done"),
            ("slide1", "done"),
        ]
    # a folder of that name outside a work folder is a folder of slides
    shutil.copytree(slides / "work" / "thumbnails", tmp_path / "own" / "thumbnails")
    assert [i.name for i in find_inputs(tmp_path / "own")] == ["slide0", "slide1"]


def test_long_names_are_cut_and_stay_apart(tmp_path):
    long = "\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 120
    write_slide(tmp_path / "s" / f"{long}1.tiff", tissue(300, 300, boxes=[(0, 0, 300, 300)]))
    write_slide(tmp_path / "s" / f"{long}2.tiff", tissue(300, 300, boxes=[(0, 0, 300, 300)]))
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=SMALL)
    assert report.counts == {"done": 2}
    assert extract_cohort(tmp_path / "w", FEW).counts == {"done": 2}
    assert all(len(o.name.encode()) <= MAX_NAME_BYTES for o in report.outcomes)
    assert file_name("x" * MAX_NAME_BYTES) == "x" * MAX_NAME_BYTES


def test_contours_edited_in_place_do_not_make_their_patches_out_of_date(both):
    slides, work = both
    own = work / "contours_geojson"
    for path in own.glob("*.geojson"):  # reformatted, as another program would do
        path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    before = {p: p.read_text() for p in own.iterdir()}
    run = RunOptions(overwrite=True)
    (report,) = patch_cohort(slides, work, settings=SMALL, contours=own, run=run)
    assert report.counts == {"done": 2}
    assert {p: p.read_text() for p in own.iterdir()} == before
    (report,) = patch_cohort(slides, work, settings=SMALL, contours=own)
    assert report.counts == {"done": 2, "kept": 2}


def test_a_slide_that_changed_between_the_stages_is_not_read_at_old_coordinates(both):
    slides, work = both
    again(work)
    write_slide(slides / "slide1.tiff", tissue(768, 768, boxes=[(0, 0, 512, 512)], seed=7))
    report = extract_cohort(work, FEW)
    assert [o.status for o in report.outcomes] == ["done", "failed"]
    name, reason = report.failures[0]
    assert name == "slide1" and "slide1.tiff has changed" in reason


def test_a_series_with_other_slices_than_were_listed(shared_data, tmp_path):
    head = tmp_path / "in" / "head"
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(head)
    work = tmp_path / "w"
    patch_cohort(head.parent, work, settings=SMALL)
    sorted(head.glob("*.dcm"))[3].unlink()
    moved = extract_cohort(work, FEW, slides=head.parent)
    assert "has changed since" in moved.failures[0][1]
    record = work / "slices" / "records" / "patch" / "head.json"
    held = json.loads(record.read_text())
    kept = [f for f in held["files"] if Path(f).exists()]
    record.write_text(json.dumps(held | {"files": kept, "content": ""}))
    report = extract_cohort(work, FEW)
    assert "27 slices" in report.failures[0][1] and "28 were listed" in report.failures[0][1]


def test_patches_of_other_settings_than_the_folders_are_not_mixed_in(both, tmp_path):
    slides, work = both
    one = tmp_path / "one"
    one.mkdir()
    shutil.copy(slides / "slide0.tiff", one)
    strict = settings(size=128, mpp=0.5, min_tissue=0.9)
    patch_cohort(one, work, settings=strict, run=RunOptions(overwrite=True))
    report = extract_cohort(work, FEW, run=RunOptions(overwrite=True))
    assert [o.status for o in report.outcomes] == ["done", "failed"]
    assert "made with settings" in report.failures[0][1]
    assert "--overwrite" in report.failures[0][1]
    patch_cohort(slides, work, settings=strict, run=RunOptions(overwrite=True))
    assert extract_cohort(work, FEW, run=RunOptions(overwrite=True)).counts == {"done": 2}


def test_features_of_a_slide_that_was_put_away_are_kept(both):
    slides, work = both
    (slides / "slide0.tiff").unlink()
    assert extract_cohort(work, FEW).counts == {"done": 2, "kept": 2}
    again(work)
    report = extract_cohort(work, FEW)
    assert [o.status for o in report.outcomes] == ["failed", "done"]


def test_what_could_not_be_read_is_known_without_the_record(both):
    _, work = both
    path = work / NAME / "features_handcrafted" / "slide1.h5"
    with h5py.File(path, "r+") as f:
        lost = np.zeros(len(f["features"]), np.int8)
        lost[2] = 1
        f["unreadable"] = lost
    (work / NAME / "records" / "features_handcrafted" / "slide1.json").unlink()
    outcome = extract_cohort(work, FEW).outcomes[1]
    assert outcome.kept and outcome.unreadable == 1
    assert f"1 of {outcome.count} instances" in outcome.reason


@pytest.mark.parametrize("error", [struct.error, EOFError, SyntaxError, LookupError])
def test_whatever_a_damaged_file_raises_is_that_slides_failure(both, monkeypatch, error):
    slides, work = both
    again(work)
    real = module.read_patch

    def torn(slide, patches, i):
        if slide.name == "slide0" and i == 2:
            raise error("torn")
        return real(slide, patches, i)

    monkeypatch.setattr(module, "read_patch", torn)
    report = extract_cohort(work, FEW)
    assert [o.status for o in report.outcomes] == ["failed", "done"]

    def no_slide(path, *, mpp):
        raise error("torn")

    monkeypatch.setattr("probsa.cohorts.patching.open_slide", no_slide)
    (report,) = patch_cohort(slides, work, settings=SMALL, run=RunOptions(overwrite=True))
    assert report.counts == {"failed": 2}


def test_a_damaged_dicom_header_is_that_files_failure(tmp_path):
    """The length of the first element is no multiple of its type's: pydicom's error is unusual."""
    slide = write_slide(tmp_path / "s" / "x.tiff", tissue(300, 300, boxes=[(0, 0, 300, 300)]))
    first = struct.pack("<HH2sH", 2, 0, b"UL", 6) + bytes(6)
    (slide.parent / "torn.dcm").write_bytes(bytes(128) + b"DICM" + first + bytes(200))
    assert {i.name: bool(i.reason) for i in find_inputs(slide.parent)} == {"x": False, "torn": True}


def test_a_fault_of_ours_is_not_taken_for_a_damaged_file(both, monkeypatch):
    _, work = both
    again(work)

    def wrong(slide, patches, i):
        raise TypeError("a fault")

    monkeypatch.setattr(module, "read_patch", wrong)
    refused(TypeError, "a fault", extract_cohort, work, FEW)


def test_attributes_without_what_patches_need_are_one_slides_failure(both):
    _, work = both
    again(work)
    with h5py.File(work / NAME / "patches" / "slide0_patches.h5", "r+") as f:
        del f["coords"].attrs["size_level0"]
    report = extract_cohort(work, FEW)
    assert [o.status for o in report.outcomes] == ["failed", "done"]
    assert "no attribute 'size_level0'" in report.failures[0][1]


@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_types_that_do_not_exist_are_a_damaged_file(tmp_path, monkeypatch, error):
    """A flipped bit in the description of an attribute makes h5py raise this error."""
    path = tmp_path / "x.h5"
    coords = np.zeros((2, 2), int)
    write_bag(path, features=np.ones((2, 3), np.float32), kind="slide", stamps={"a": "b"})
    write_coordinates(tmp_path / "y.h5", Coordinates(coords=coords, attributes={}, made_with="z"))

    def get(*args):
        raise error("Insufficient precision in available types")

    monkeypatch.setattr(h5py.AttributeManager, "get", get)
    monkeypatch.setattr(h5py.AttributeManager, "__getitem__", get)
    for read in (read_bag, peek_bag, lambda p: read_stamp(p, "a")):
        refused(BagError, r"x\.h5", read, path)
    refused(BagError, r"y\.h5", read_coordinates, tmp_path / "y.h5")


def test_coordinates_that_are_no_numbers(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["coords"] = [["a", "b"]]
        f.attrs["probsa_made_with"] = "z"
    refused(BagError, "'coords'", read_coordinates, tmp_path / "x.h5")


def test_features_that_float16_cannot_hold(both, monkeypatch):
    _, work = both
    again(work)
    encoder = build("handcrafted")
    monkeypatch.setattr(ExtractOptions, "build", lambda self: encoder)
    real = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda x, precision: real(x) + 1e6)
    report = extract_cohort(work, ExtractOptions(batch=8, dtype="float16"))
    assert report.counts == {"failed": 2}
    assert "float16" in report.failures[0][1] and "--dtype float32" in report.failures[0][1]


@pytest.mark.parametrize("loaded_before", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_reader_killed_while_the_encoder_works_costs_nothing(both, monkeypatch, loaded_before):
    """The reader is replaced, and the slide in the encoder does not fail.

    This holds even if another loader in this process has installed torch's handler, which raises
    at once.
    """
    _, work = both
    told = []

    def at_once(number, frame):
        if killed and not told:
            told.append(number)
            raise RuntimeError(f"{module.TORCH_REPORT} (pid 1) is killed by signal: Killed. ")

    handler = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, at_once if loaded_before else signal.SIG_DFL)
    folder = again(work)
    encoder = build("handcrafted")
    monkeypatch.setattr(ExtractOptions, "build", lambda self: encoder)
    real = encoder.encode
    killed = []
    others = {p.pid for p in multiprocessing.active_children()}  # left by earlier tests

    def encode(pixels, *, precision):
        if not killed:
            (reader,) = [p for p in multiprocessing.active_children() if p.pid not in others]
            killed.append(reader.pid)
            reader.kill()
            while reader.is_alive():
                time.sleep(0.01)
        return real(pixels, precision=precision)

    monkeypatch.setattr(encoder, "encode", encode)
    report = extract_cohort(work, ExtractOptions(batch=2, readers=1))
    signal.signal(signal.SIGCHLD, handler)
    assert killed and bool(told) == loaded_before and report.failures == []
    assert {p.name for p in folder.iterdir()} == {"slide0.h5", "slide1.h5"}


def test_the_pixels_of_a_slide_that_is_given_up_are_not_read(both, monkeypatch):
    _, work = both
    again(work)
    encoder = build("handcrafted")
    monkeypatch.setattr(ExtractOptions, "build", lambda self: encoder)
    seen = []

    def encode(pixels, *, precision):
        seen.append(len(pixels))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(encoder, "encode", encode)
    reads = []
    real = module.read_patch
    monkeypatch.setattr(module, "read_patch", lambda s, p, i: reads.append(i) or real(s, p, i))
    report = extract_cohort(work, ExtractOptions(batch=2))
    assert report.counts == {"failed": 2} and len(seen) == 2 and len(reads) == 4


@pytest.mark.parametrize("nth", [1, 2])
def test_a_dying_reader_that_is_not_heard_any_more_costs_nothing(both, monkeypatch, nth):
    """What it had sent cannot be received: torch raises the error of the socket."""
    fork_workers(monkeypatch)
    _, work = both
    again(work)
    real = module.DataLoader.__iter__
    begun = []

    def dying(loader):
        begun.append(loader)
        for k, chunk in enumerate(real(loader)):
            if k == nth and len(begun) == 1:
                raise ConnectionResetError("Connection reset by peer")
            yield chunk

    monkeypatch.setattr(module.DataLoader, "__iter__", dying)
    report = extract_cohort(work, ExtractOptions(batch=8, readers=1))
    assert report.counts == {"done": 2} and len(begun) > 1


def test_features_of_patches_that_another_slide_gave(both):
    """The coordinates are equal, but the fingerprint of the patches differs."""
    _, work = both
    path = work / NAME / "features_handcrafted" / "slide1.h5"
    with h5py.File(path, "r+") as f:
        held = json.loads(f.attrs["probsa_made_with"])
        f.attrs["probsa_made_with"] = json.dumps(held | {"patches": "0" * 16})
    report = extract_cohort(work, FEW)
    assert [o.status for o in report.outcomes] == ["done", "failed"]
    reason = report.failures[0][1]
    assert "slide1.h5" in reason and "another patches" in reason and "--overwrite" in reason


def test_a_damaged_settings_file_is_no_crash(both):
    slides, work = both
    WorkFolder(work).choose().settings_file.write_text("[1]")
    refused(InputError, "there, .* requested", patch_cohort, slides, work, settings=SMALL)


@pytest.mark.parametrize("where", ["{outside}/victim", "../../../victim", "other"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_record_of_another_name_writes_and_deletes_nothing(both, where, overwrite):
    slides, work = both
    victim = work.parent / "victim.h5"
    victim.write_text("mine")
    shutil.copy(next((work / NAME / "patches").iterdir()), work.parent / "victim_patches.h5")
    first, second = sorted((work / NAME / "records" / "patch").iterdir())
    name = where.format(outside=work.parent).replace("other", second.stem)
    first.write_text(first.read_text().replace(f'"name": "{first.stem}"', f'"name": "{name}"'))
    before = {p: p.read_bytes() for p in work.parent.rglob("*") if p.is_file()}
    for command in (
        lambda: extract_cohort(work, FEW, run=RunOptions(overwrite=overwrite)),
        lambda: patch_cohort(slides, work, settings=SMALL),
    ):
        refused(InputError, f"{first.name}.*{name!r}", command)
    assert {p: p.read_bytes() for p in work.parent.rglob("*") if p.is_file()} == before
