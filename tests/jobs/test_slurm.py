"""Jobs are submitted, waited for, and reported if they fail; bad options are refused.

The local executor of submitit replaces Slurm.
"""

import os
from functools import partial

import pytest

from probsa.errors import InputError
from probsa.jobs import SlurmJobs, slurm
from probsa.jobs.slurm import run_jobs

pytest.importorskip("submitit")


def run(function, folder, notes, *, on_poll=lambda: None, **options):
    options = {"cluster": "local", "timeout_min": 5, **options}
    settings = SlurmJobs(folder=folder / "logs", options=options, note=notes.append)
    run_jobs([function] * 2, settings=settings, on_poll=on_poll)


def test_jobs_are_waited_for_and_failures_reported(tmp_path, monkeypatch):
    """Both jobs create the same folder, so one of them fails."""
    monkeypatch.setattr(slurm, "POLL", 0.05)
    folder = tmp_path / "made"
    notes = []
    polls = []
    run(partial(os.mkdir, folder), tmp_path, notes, on_poll=lambda: polls.append(folder.is_dir()))
    assert len(notes) == 2 and str(tmp_path / "logs") in notes[1]
    assert polls[-1]


def test_options_that_no_job_has_are_refused(tmp_path):
    notes = []
    with pytest.raises(InputError, match="partitin"):
        run(os.getpid, tmp_path, notes, partitin="gpu")
    assert notes == []
