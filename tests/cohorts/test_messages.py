"""Messages of a run over a folder with good and bad files."""

import io
import signal
import subprocess
import sys

import pytest
from rich.console import Console
from support.made_slides import tissue, write_slide
from support.refusals import refused

from probsa.cli.terminal import OutcomeBar
from probsa.cohorts import (
    CohortReport,
    ExtractOptions,
    Record,
    WorkFolder,
    extract_cohort,
    patch_cohort,
)
from probsa.errors import InputError, UnknownName
from probsa.jobs import TaskOutcome
from probsa.patches import settings

SMALL = settings(size=128, mpp=0.5)
LONG = "a_slide_with_a_name_that_is_longer_than_its_column_would_like_to_be_in_80_columns"


@pytest.fixture
def mixed(tmp_path):
    """A good slide, a text file and an empty DICOM, with the reports and outcomes of patching."""
    folder = tmp_path / "slides"
    told = []
    folder.mkdir()
    write_slide(folder / "good.tiff", tissue(512, 512, boxes=[(0, 0, 512, 512)]))
    (folder / f"{LONG}.svs").write_text("hello")
    (folder / "empty.dcm").touch()
    work = tmp_path / "work"
    reports = patch_cohort(
        folder, work, settings=SMALL, on_outcome=lambda o, total: told.append((o.name, total))
    )
    return folder, work, reports, told


def test_names_are_told_whole(mixed):
    *_, reports, told = mixed
    assert sorted(told) == [(LONG, 3), ("empty", 3), ("good", 3)]
    console = Console(width=80, file=io.StringIO(), record=True)
    reports[0].render(console)
    rows = console.export_text().splitlines()
    # the folded cells of the first column, joined, contain the whole name
    column = "".join(row.partition("  ")[0] for row in rows[1:-1])
    assert LONG in column


def test_a_set_of_failures_alone_is_not_one_to_choose_from(mixed):
    _, path, *_ = mixed
    work = WorkFolder(path)
    assert set(work.sets()) == {"20x_128px_0px_overlap", "slices"}
    assert work.choose().path.name == "20x_128px_0px_overlap"
    assert work.choose("slices").path.name == "slices"
    report = extract_cohort(path, ExtractOptions(batch=8))
    assert [(o.name, o.status) for o in report.outcomes] == [("good", "done")]
    # with patches in two sets, the user has to choose one
    patch_cohort(mixed[0], path, settings=settings(size=64, mpp=0.5))
    refused(InputError, "20x_128px.*20x_64px", work.choose)


def test_a_resolution_that_overrules_the_files_is_noted(tmp_path):
    write_slide(tmp_path / "s.tiff", tissue(1024, 1024, boxes=[(0, 0, 1024, 1024)]))
    noted = []
    for given in (None, {"s": 0.25}):
        out = tmp_path / ("given" if given else "none")
        patch_cohort(tmp_path / "s.tiff", out, settings=SMALL, mpp=given)
        record = Record.read(WorkFolder(out).choose().record("patch", "s"))
        assert record is not None
        noted.append(record.notes)
    assert noted[0] == ()
    (note,) = noted[1]
    assert "0.25 (as given" in note and "file says 0.5" in note


def test_a_wall_of_names_is_cut():
    names = [f"{i:04d}" for i in range(1000)]
    said = str(UnknownName("model", "zzz", names))
    assert said.startswith("no model named 'zzz'. Known: 0000, 0001, ")
    assert said.endswith(", 0059 and 940 more.")
    assert str(UnknownName("model", "zzz", names[:60])).endswith(", 0059.")


ENDED = """
import atexit, os, signal, sys
from probsa.jobs import processes

class Pipe:
    def send(self, message): print("sent", type(message).__name__, flush=True)

def at_exit():
    os.kill(os.getpid(), signal.SIGTERM)
    print("left in peace", flush=True)

processes.end_with_parent = lambda: None
atexit.register(at_exit)
processes._serve(Pipe(), b"no pickle", None)
"""


def test_a_worker_on_its_way_out_is_not_torn_by_being_ended():
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "left in peace"
    assert "Traceback" not in done.stderr
    assert signal.SIGTERM.name not in done.stderr


def test_what_is_wrong_with_many_slides_is_said_once(tmp_path, capsys):
    reasons = {**{f"s{k}": f"s{k}.svs is no slide" for k in range(5)}, "t": "torn"}
    records = [
        Record(name=name, kind="slide", status="failed", source=name, reason=reason)
        for name, reason in reasons.items()
    ]
    console = Console(width=80, file=io.StringIO())
    CohortReport(what="patches", outcomes=tuple(records), table=tmp_path / "t.csv").render(console)
    text = console.file.getvalue()
    assert "5: s0, s1, s2, …" in text and text.count("is no slide") == 1 and "torn" in text
    with OutcomeBar("patching") as bar:
        for record in records:
            bar(TaskOutcome(name=record.name, status="failed", reason=record.reason), 6)
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("patch")]
    assert said[:2] == ["s0: s0.svs is no slide", "t: torn"]
    assert len(said) == 3 and "s0: 4 more (s1, s2, s3, …)" in said[2]
