"""Slurm itself, two nodes of this machine: its jobs make the files that one process makes."""

import subprocess
import time
from contextlib import ExitStack

import pytest
import yaml
from support.forks import PATHS
from support.made_slides import write_cohort
from support.slurm_cluster import NoCluster, slurm_cluster
from support.stored import write_folder

from probsa.benchmark.execution.running import count_states, run_grid
from probsa.benchmark.execution.training import Watch
from probsa.benchmark.grid.grid import read_grid
from probsa.cli.entry import main
from probsa.core import read_bag
from probsa.jobs import SlurmJobs, slurm
from probsa.jobs.slurm import run_jobs

JOBS = ("--engine", "slurm", "--workers", "2", "--slurm", "partition=main,timeout_min=5")
FEATURES = "20x_128px_0px_overlap/features_handcrafted"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    pytest.importorskip("submitit")
    with ExitStack() as stack:
        try:
            settings = stack.enter_context(slurm_cluster())
        except NoCluster as e:
            pytest.skip(f"no Slurm: {e}")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SLURM_CONF", str(settings))
        patch.setenv("PYTHONPATH", PATHS)
        patch.setattr(slurm, "POLL", 0.2)
        yield


def test_jobs_cut_and_encode_slides(tmp_path, capsys):
    slides = write_cohort(tmp_path / "slides", slides=3)
    for work, how in (("jobs", JOBS), ("here", ())):
        out = str(tmp_path / work)
        assert main(["patch", str(slides), "--out", out, "--patch-size", "128", *how]) == 0
        assert main(["extract", out, "--encoder", "handcrafted", "--threads", "1", *how]) == 0
    said = capsys.readouterr()
    assert said.err.count("2 jobs are submitted") == 2 and "failed" not in said.err
    assert "3 done" in said.out
    for k in range(3):
        ours, theirs = (
            read_bag(tmp_path / work / FEATURES / f"slide{k}.h5") for work in ("here", "jobs")
        )
        assert (ours.coords == theirs.coords).all()
        assert (ours.features == theirs.features).all()
    assert not [p for p in (tmp_path / "jobs").rglob(".*") if p.suffix == ".tmp"]


def test_jobs_share_a_grid(tmp_path):
    write_folder(tmp_path / "toy")
    notes = []

    class Noting(Watch):
        def note(self, text):
            notes.append(text)

    given = {
        "data": {
            "features": str(tmp_path / "toy" / "features"),
            "labels": str(tmp_path / "toy" / "labels.csv"),
        },
        "models": [{"name": "abmil", "embed": 4, "attention_dim": 4}, {"name": "mean-pool"}],
        "splits": [0],
        "epochs": 1,
        "device": "cpu",
        "slurm": {"partition": "main", "timeout_min": 5},
    }
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump(given))
    states = run_grid(read_grid(file), tmp_path / "out", engine="slurm", workers=2, watch=Noting())
    assert count_states(states) == {"done": 2, "failed": 0, "waiting": 0}, states
    assert [n for n in notes if "jobs are submitted" in n] and not [n for n in notes if "fail" in n]


def test_a_job_that_was_killed_is_not_waited_for(tmp_path, monkeypatch):
    """This cluster has no accounting, which submitit would ask, and lists new jobs late."""
    notes, killed, queued = [], [], slurm._queued
    answers = [set()]
    monkeypatch.setattr(slurm, "_queued", lambda: answers.pop() if answers else queued())

    def states():  # of these jobs: those of other tests may not have left yet
        ids = notes[0].partition(": ")[2].split(", ")
        asked = ["squeue", "--array", "-ho%i %t"]
        listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        rows = map(str.split, listed.splitlines())
        return {job: state for job, state in rows if job in ids}

    def kill():  # at the first check; the jobs have ended at the last one
        if killed:
            return
        assert len(notes) == 1  # none is called failed before
        until = time.monotonic() + 30
        while list(states().values()) != ["R", "R"]:
            assert time.monotonic() < until, f"the jobs do not start: {states()}"
            time.sleep(0.1)
        killed.extend(states())
        subprocess.run(["scancel", *killed], check=True)

    settings = SlurmJobs(
        folder=tmp_path, options={"partition": "main", "timeout_min": 5}, note=notes.append
    )
    run_jobs([sleep] * 2, settings=settings, on_poll=kill)
    assert len(killed) == 2 and not {"R", "PD"} & {*states().values()}
    assert len(notes) == 3 and all("failed: see " in note for note in notes[1:])


def sleep():
    time.sleep(60)
