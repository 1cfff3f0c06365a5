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

from probsa.benchmark import Watch, count_states, read_grid, run_grid
from probsa.cli import main
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
    for folder, flags in (("jobs", JOBS), ("here", ())):
        out = str(tmp_path / folder)
        assert main(["patch", str(slides), "--out", out, "--patch-size", "128", *flags]) == 0
        assert main(["extract", out, "--encoder", "handcrafted", "--threads", "1", *flags]) == 0
    assert "failed" not in capsys.readouterr().err
    for k in range(3):
        local_bag = read_bag(tmp_path / "here" / FEATURES / f"slide{k}.h5")
        cluster_bag = read_bag(tmp_path / "jobs" / FEATURES / f"slide{k}.h5")
        assert (local_bag.coords == cluster_bag.coords).all()
        assert (local_bag.features == cluster_bag.features).all()
    assert not [p for p in (tmp_path / "jobs").rglob(".*") if p.suffix == ".tmp"]


def test_jobs_share_a_grid(tmp_path):
    write_folder(tmp_path / "toy")
    notes = []

    class Noting(Watch):
        def note(self, text):
            notes.append(text)

    grid = {
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
    file.write_text(yaml.safe_dump(grid))
    states = run_grid(read_grid(file), tmp_path / "out", engine="slurm", workers=2, watch=Noting())
    assert count_states(states) == {"done": 2, "failed": 0, "waiting": 0}, states
    assert len(notes) == 1  # the jobs are submitted, and none has failed


def test_a_job_that_was_killed_is_not_waited_for(tmp_path, monkeypatch):
    """This cluster has no accounting, which submitit would ask, and lists new jobs late."""
    notes = []
    killed = []
    list_queue = slurm._list_queue
    first_answers = [set()]
    monkeypatch.setattr(
        slurm, "_list_queue", lambda: first_answers.pop() if first_answers else list_queue()
    )

    def states():
        """Return the states of these jobs; those of other tests may not have left yet."""
        command = ["squeue", "--array", "--name=killed", "-ho%i %t"]
        rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict(row.split() for row in rows.splitlines())

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

    options = {"name": "killed", "partition": "main", "timeout_min": 5}
    settings = SlurmJobs(folder=tmp_path, options=options, note=notes.append)
    run_jobs([sleep] * 2, settings=settings, on_poll=kill)
    assert len(killed) == 2 and not {"R", "PD"} & {*states().values()}
    assert len(notes) == 3 and all(str(tmp_path) in note for note in notes[1:])


def sleep():
    time.sleep(60)
