"""What version 0.2.0 wrote is read and continued; a new option that changes nothing keeps it."""

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from support.paths import TESTS

from probsa.cli import main
from probsa.cli.flags import WorkFlags
from probsa.cohorts import (
    ExtractOptions,
    RunOptions,
    WorkFolder,
    comparable,
    extract_cohort,
    extraction,
    patch_cohort,
)
from probsa.cohorts.comparable import PATCHES, TISSUE, KnownOptions
from probsa.cohorts.extraction import FEATURES, WITHOUT_EFFECT
from probsa.core import foreign_files, read_bag
from probsa.errors import InputError
from probsa.evaluation import load, read_predictions
from probsa.patches import PatchSettings, settings
from probsa.training import RunFolder

AS_THEN = settings(size=64, min_area=100.0)
MPP = 0.5
PATCH = "--slide-mpp 0.5 --patch-size 64 --min-tissue-area 100 --workers 1"
TRAIN = (
    "train --features data/features --labels data/labels.csv --model abmil --test_fold 0 "
    "--epochs 1 --embed 4 --attention_dim 2 --device cpu --threads 1 --tensorboard false "
    "--maps none"
)
EXTRACT = "--encoder handcrafted --device cpu --readers 0 --threads 1 --workers 1"


@pytest.fixture
def then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folders that 0.2.0 made, in the working directory: their paths are relative."""
    with ZipFile(TESTS / "data" / "release_0_2_0" / "folders.zip") as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    options = WorkFlags.options
    monkeypatch.setattr(
        WorkFlags, "options", lambda self, **how: replace(options(self, **how), isolated=False)
    )


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return time and content of every file that holds a result."""
    files = [
        p for p in folder.rglob("*") if p.suffix in (".h5", ".jpg", ".geojson", ".safetensors")
    ]
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as f:
        return list(csv.DictReader(f))


def test_a_work_folder_is_done(then: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(then / "work")
    assert len(before) == 13
    assert (
        main(["patch", "slides", "--out", "work", *PATCH.split(), "--json"]) == 1
    )  # one has no tissue
    (patched,) = json.loads(capsys.readouterr().out)["sets"]
    assert patched["counts"] == {"done": 2, "kept": 2, "no_tissue": 1}
    assert main(["extract", "work", *EXTRACT.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"done": 2, "kept": 2}
    assert state(then / "work") == before
    assert list(foreign_files(then / "work")) == []


def test_a_work_folder_is_continued(then: Path) -> None:
    """Slides that are added, damaged results and --overwrite: the results are those of then."""
    shutil.copy("slides/s1.png", "slides/s2.png")
    (first,) = WorkFolder(then / "work").sets().values()
    features = first.features("handcrafted")
    before = {k: read_bag(features / f"{k}.h5") for k in ("s0", "s1")}
    (features / "s1.h5").write_bytes((features / "s1.h5").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"min_area: 100\.0 there, 16384\.0"):
        patch_cohort("slides", "work", settings=settings(size=64), mpp=MPP)
    for overwrite in (False, True):
        run = RunOptions(overwrite=overwrite)
        (patched,) = patch_cohort("slides", "work", settings=AS_THEN, mpp=MPP, run=run)
        assert patched.counts["done"] == 3
        assert [name for name, _ in patched.failures] == ["white"]
        if not overwrite:
            # the file that was damaged is no longer what was written
            (features / "s1.h5").unlink()
        report = extract_cohort("work", ExtractOptions(), slides="slides")
        assert report.failures == []
        for name, bag in before.items():
            again = read_bag(features / f"{name}.h5")
            np.testing.assert_array_equal(again.coords, bag.coords)
            np.testing.assert_allclose(again.features, bag.features, rtol=1e-4, atol=1e-4)
    bags = {p.stem for p in features.glob("*.h5")}
    assert bags == {"s0", "s1", "s2"}


def test_a_real_change_is_still_noticed(then: Path) -> None:
    (report,) = patch_cohort("slides", "work", settings=AS_THEN, mpp=1.0)
    assert {name for name, _ in report.failures} == {"s0", "s1", "white"}
    report = extract_cohort("work", ExtractOptions(dtype="float16"))
    assert all("another dtype." in reason for _, reason in report.failures)
    assert len(report.failures) == 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterSettings(PatchSettings):
    """Settings with an option that 0.2 did not have."""

    later: float = 0.0
    later_list: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterOptions(ExtractOptions):
    """The same of an extraction."""

    later: bool = False


@pytest.fixture
def _later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    patches = KnownOptions(kind=LaterSettings, of_0_2=PATCHES.of_0_2)
    for module in ("comparable", "work", "flow"):
        monkeypatch.setattr(f"probsa.cohorts.{module}.PATCHES", patches)
    of_features = KnownOptions(kind=LaterOptions, of_0_2=FEATURES.of_0_2)
    monkeypatch.setattr(extraction, "FEATURES", of_features)
    yield


@pytest.mark.usefixtures("_later")
def test_a_new_option_that_changes_nothing_keeps_everything(then: Path) -> None:
    before = state(then / "work")
    values = {f.name: getattr(AS_THEN, f.name) for f in fields(AS_THEN)}
    same = LaterSettings(**values)
    other = LaterSettings(**values, later=1.0)
    (report,) = patch_cohort("slides", "work", settings=same, mpp=MPP)
    assert report.counts == {"done": 2, "kept": 2, "no_tissue": 1}
    report = extract_cohort("work", LaterOptions())
    assert report.counts == {"done": 2, "kept": 2}
    with pytest.raises(InputError, match=r"later: null there, 1\.0"):
        patch_cohort("slides", "work", settings=other, mpp=MPP)
    report = extract_cohort("work", LaterOptions(later=True))
    assert len(report.failures) == 2
    assert all("another later." in reason for _, reason in report.failures)
    assert state(then / "work") == before


@pytest.mark.parametrize("known", [PATCHES, TISSUE, FEATURES], ids=lambda k: k.kind.__name__)
def test_every_option_has_its_first_default(known: KnownOptions) -> None:
    """Who adds an option states its default in `since`, which stays when the default changes."""
    stated = {*known.of_0_2, *known.since}
    apart = {"tissue", "encoder", "windows", *WITHOUT_EFFECT}
    assert {f.name for f in fields(known.kind)} - apart <= stated


def test_an_option_that_is_gone_counts_with_its_old_default() -> None:
    now = {k: v for k, v in PATCHES.of_0_2.items() if k != "padding"}
    assert PATCHES.compared(now) == PATCHES.of_0_2
    assert comparable.compared_patches(AS_THEN)["tissue"]["min_area"] == 100
    assert PATCHES.compared({"kind": "ct"}) == {"kind": "ct"} and PATCHES.compared({}) == {}


def test_a_finished_run_is_read_and_not_trained_again(then: Path) -> None:
    before = state(then / "run")
    rows = table(Path("run/metrics.csv"))
    was = read_predictions("run/predictions")
    assert main(["train", "--out", "run", "--resume", "--maps", "none"]) == 0
    assert table(Path("run/metrics.csv")) == rows and len(rows) == 3
    checkpoints = [p for p in before if p.suffix == ".safetensors" and "checkpoints" in p.parts]
    after = state(then / "run")
    assert len(checkpoints) == 2 and all(after[p] == before[p] for p in checkpoints)
    again = read_predictions("run/predictions")
    assert again.bags == was.bags
    np.testing.assert_allclose(again.probability, was.probability, rtol=1e-4, atol=1e-5)
    predictor = load("run", device="cpu")
    assert predictor.classes == ("0", "1")
    assert list(foreign_files(then / "run")) == []


def test_an_interrupted_run_is_continued(then: Path) -> None:
    rows = table(Path("interrupted/metrics.csv"))
    assert len(rows) == 2
    assert main(["train", "--out", "interrupted", "--resume", "--maps", "none"]) == 0
    now, whole = (table(Path(run) / "metrics.csv") for run in ("interrupted", "run"))
    assert now[:2] == rows and len(now) == 3
    for key in ("nll", "val_nll", "loss"):
        values = [float(row[2][key]) for row in (now, whole)]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-3)
    assert RunFolder(then / "interrupted").best.is_file()


def test_a_run_is_replaced_only_without_files_of_the_user(then: Path) -> None:
    line = [*TRAIN.split(), "--out", "run", "--overwrite"]
    note = Path("run/checkpoints/note.txt")
    note.write_text("keep")
    before = state(then / "run")
    assert main(line) == 2
    assert note.read_text() == "keep" and state(then / "run") == before
    note.unlink()
    assert main(line) == 0
    assert len(table(Path("run/metrics.csv"))) == 1
