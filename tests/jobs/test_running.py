"""Every task is done and nothing stays half written, with any number of workers and kills."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.paths import SOURCE, TESTS
from support.processes import fork_workers
from support.toy_stage import Toy, tasks_of, wait_for

from probsa.core import remove_leftovers, write_json
from probsa.errors import InputError, MissingExtra, ProbSAError
from probsa.jobs import TaskOutcome, processes, run_tasks

NAMES = [f"t{i}" for i in range(10)]


@pytest.fixture
def quick(monkeypatch):
    """Fork workers from a process that has imported torch, which takes two seconds."""
    fork_workers(monkeypatch)


PATHS = os.pathsep.join(map(str, (SOURCE, TESTS)))


@pytest.fixture
def workers(request):
    """Return a number of workers; three are spawned, as outside of the tests."""
    if request.param == 2:
        request.getfixturevalue("quick")
    return request.param


def log(folder, first="at"):
    """Return the words after `first` of the log lines that begin with it: (task,) process."""
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [tuple(line[1:]) for line in lines if line[0] == first]


def times(folder):
    return Counter(name for name, _ in log(folder))


def made(folder):
    """Return all files except the log and the records, including hidden files."""
    return {path.name: path.read_text() for path in (folder / "made").iterdir()}


def made_of(names):
    return {f"{name}.h5": f"made of {name}\n" for name in names}


def check_files_are_whole(folder, *, without):
    """Check that no file is half written, and that the task `without` has written none."""
    files = made(folder)
    assert files == made_of(name.removesuffix(".h5") for name in files)
    assert f"{without}.h5" not in files


@pytest.fixture
def command(tmp_path):
    """Return a function that starts a run in another process."""
    running = []

    def begin(**options):
        file = TESTS / "support" / "toy_stage.py"
        words = [sys.executable, file, tmp_path, json.dumps(options)]
        environment = os.environ | {"PYTHONPATH": PATHS}
        running.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def finish(process):
    """Return the exit status of a process that has printed no error."""
    _, errors = process.communicate(timeout=60)
    assert errors == b""
    return process.returncode


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize(
    ("workers", "ahead"), [(1, 1), (1, 4), (2, 4), (3, 1)], indirect=["workers"]
)
def test_any_number_of_workers_makes_the_same_files_each_once(tmp_path, workers, ahead):
    reported = []
    tasks = tasks_of(tmp_path, t3="fail")
    stage = Toy(tmp_path, ahead=ahead, parties=workers)
    outcomes = run_tasks(stage, tasks, on_outcome=reported.append, workers=workers)
    expected = [TaskOutcome(name=name, status="done", count=2) for name in NAMES]
    expected[3] = TaskOutcome(name="t3", status="failed", reason="it is not readable")
    assert outcomes == expected
    assert sorted(reported, key=lambda o: o.name) == outcomes
    assert times(tmp_path) == dict.fromkeys(NAMES, 1)
    assert made(tmp_path) == made_of(set(NAMES) - {"t3"})
    # every worker has started once, has done tasks, and has ended
    pids = {pid for _, pid in log(tmp_path)}
    assert len(pids) == len(log(tmp_path, "start")) == workers
    child_pids = pids - {str(os.getpid())}
    assert len(child_pids) == (workers if workers > 1 else 0)
    assert not any(alive(pid) for pid in child_pids)

    # another run repeats the failed task, and starts no worker if all is done
    again = run_tasks(Toy(tmp_path), tasks)
    assert again == [replace(o, kept=o.status == "done") for o in outcomes]
    assert times(tmp_path) == dict.fromkeys(NAMES, 1) | {"t3": 2}
    before = (tmp_path / "log").read_text()
    finished_tasks = [task for task in tasks if task.name != "t3"]
    assert all(o.kept for o in run_tasks(stage, finished_tasks, workers=workers))
    assert (tmp_path / "log").read_text() == before


@pytest.mark.parametrize("workers", [(1, 1), (1, 2)])
def test_two_runs_on_one_folder_make_the_same_files(tmp_path, command, workers):
    """Both begin their first task before either goes on; what one has done, the other keeps."""
    runs = [command(stage={"parties": sum(workers)}, workers=n) for n in workers]
    assert [finish(run) for run in runs] == [0, 0]
    assert set(times(tmp_path)) == set(NAMES)
    assert made(tmp_path) == made_of(NAMES)


@pytest.mark.usefixtures("quick")
def test_a_task_that_kills_its_process_fails_alone(tmp_path):
    tasks = tasks_of(tmp_path, t1="die")
    outcomes = run_tasks(Toy(tmp_path, ahead=3), tasks, workers=2)
    assert [o.name for o in outcomes if o.status == "failed"] == ["t1"]
    assert [o.name for o in outcomes if o.status == "done"] == [n for n in NAMES if n != "t1"]
    assert "signal 9" in outcomes[1].reason
    assert times(tmp_path) == dict.fromkeys(NAMES, 1) | {"t1": 2}
    # no half-written file is left, and the failure is recorded
    assert made(tmp_path) == made_of(set(NAMES) - {"t1"})
    assert json.loads((tmp_path / "records/t1.json").read_text())["status"] == "failed"
    # the second worker that tried it had no other task
    _, second_pid = [pid for name, pid in log(tmp_path) if name == "t1"]
    assert [name for name, pid in log(tmp_path) if pid == second_pid] == ["t1"]


@pytest.mark.usefixtures("quick")
def test_a_task_at_which_a_process_dies_once_is_done(tmp_path):
    outcomes = run_tasks(Toy(tmp_path), tasks_of(tmp_path, t6="die once"), workers=2)
    assert outcomes == [TaskOutcome(name=n, status="done", count=2) for n in NAMES]
    assert times(tmp_path) == dict.fromkeys(NAMES, 1) | {"t6": 2}
    assert made(tmp_path) == made_of(NAMES)
    assert len({pid for name, pid in log(tmp_path) if name == "t6"}) == 2


@pytest.mark.usefixtures("quick")
def test_a_failure_does_not_replace_what_another_run_has_done(tmp_path):
    """Workers die at t1; the run of somebody else has finished it meanwhile."""

    def tell(outcome):
        if outcome.name == "t9":
            write_json(tmp_path / "records" / "t1.json", {"name": "t1", "status": "done"})

    tasks = tasks_of(tmp_path, t1="die")
    outcomes = run_tasks(Toy(tmp_path), tasks, workers=2, on_outcome=tell)
    assert outcomes[1] == TaskOutcome(name="t1", status="done", kept=True)
    assert json.loads((tmp_path / "records/t1.json").read_text())["status"] == "done"


def test_a_run_whose_process_is_killed_takes_its_workers_along(tmp_path, command):
    run = command(payloads={"t0": "hang", "t1": "hang"}, workers=2)
    wait_for(lambda: len(list(tmp_path.glob("hangs-*"))) == 2)
    run.kill()
    assert finish(run) == -signal.SIGKILL
    pids = {pid for _, pid in log(tmp_path)}
    wait_for(lambda: not any(alive(pid) for pid in pids))
    assert any(name.endswith(".tmp") for name in made(tmp_path))
    remove_leftovers(tmp_path / "made")  # as every command does
    run_tasks(Toy(tmp_path), tasks_of(tmp_path))
    assert made(tmp_path) == made_of(NAMES)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_an_interrupted_run_leaves_nothing_half_written(tmp_path, command, number, workers):
    payloads = {"t2": "hang", "t3": "hang"}
    run = command(payloads=payloads, workers=workers, stage={"ahead": 3 - workers})
    wait_for(lambda: len(list(tmp_path.glob("hangs-*"))) == workers)
    run.send_signal(number)
    assert finish(run) == 128 + number
    assert not any(alive(pid) for _, pid in log(tmp_path))
    check_files_are_whole(tmp_path, without="t2")


@pytest.mark.usefixtures("quick")
def test_a_worker_that_does_not_listen_is_ended_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.2)

    def tell(outcome):
        if outcome.name != "t0":  # t1 was handed out before
            wait_for(lambda: list(tmp_path.glob("hangs-*")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(Toy(tmp_path), tasks_of(tmp_path, t1="deaf"), workers=2, on_outcome=tell)
    assert not any(alive(pid) for _, pid in log(tmp_path))
    check_files_are_whole(tmp_path, without="t1")


@pytest.mark.parametrize("workers", [1, 2], indirect=True)
def test_a_full_disk_ends_the_run(tmp_path, workers):
    tasks = tasks_of(tmp_path, t4="full")
    with pytest.raises(OSError) as caught:
        run_tasks(Toy(tmp_path, ahead=2), tasks, workers=workers)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "made")
    check_files_are_whole(tmp_path, without="t4")


@pytest.mark.usefixtures("quick")
def test_a_fault_of_the_stage_is_raised_with_its_trace(tmp_path):
    with pytest.raises(RuntimeError, match="of the stage") as caught:
        run_tasks(Toy(tmp_path), tasks_of(tmp_path, t0="fault"), workers=2)
    assert "in act" in caught.value.__notes__[0]
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.usefixtures("quick")
def test_an_error_that_cannot_be_sent_keeps_its_message(tmp_path):
    expected = str(MissingExtra("timm", "encoders"))
    with pytest.raises(MissingExtra):
        run_tasks(Toy(tmp_path, begin="lacking"), tasks_of(tmp_path))
    with pytest.raises(ProbSAError) as caught:
        run_tasks(Toy(tmp_path, begin="lacking"), tasks_of(tmp_path), workers=2)
    assert str(caught.value) == expected


@pytest.mark.usefixtures("quick")
def test_workers_that_die_before_they_begin_are_not_replaced_for_ever(tmp_path):
    with pytest.raises(ProbSAError, match="signal 9"):
        run_tasks(Toy(tmp_path, begin="die"), tasks_of(tmp_path), workers=2)
    assert len(log(tmp_path, "start")) <= 3


def test_what_another_run_finishes_before_its_turn_is_not_done_again(tmp_path):
    class Overtaken(Toy):
        looks = 0

        def known(self, task):
            outcome = super().known(task)
            if task.name == "t4":
                self.looks += 1
                if self.looks == 1:
                    write_json(self.record_file(task), {"name": "t4", "status": "done"})
            return outcome

    outcomes = run_tasks(Overtaken(tmp_path), tasks_of(tmp_path))
    assert outcomes[4] == TaskOutcome(name="t4", status="done", kept=True)
    assert times(tmp_path) == dict.fromkeys(set(NAMES) - {"t4"}, 1)


def test_bad_input(tmp_path):
    stage = Toy(tmp_path)
    tasks = tasks_of(tmp_path)
    assert run_tasks(stage, []) == []
    with pytest.raises(InputError):
        run_tasks(stage, tasks, workers=0)
    with pytest.raises(InputError, match=r"'t1'.*'t1'"):
        run_tasks(stage, [*tasks, tasks[1]])
    with pytest.raises(InputError, match=r"'t2'.*'other'"):
        run_tasks(stage, [*tasks, replace(tasks[2], name="other")])
    assert not (tmp_path / "made").exists()


def test_workers_take_turns_on_the_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-5")
    assert processes.visible_devices() == ["2", "GPU-5"]
    team = processes.Processes(Toy(tmp_path), devices=processes.visible_devices())
    try:
        for _ in range(3):
            team.add()
        assert [worker.device for worker in team.workers.values()] == ["2", "GPU-5", "2"]
    finally:
        team.close()
    assert not team.workers
