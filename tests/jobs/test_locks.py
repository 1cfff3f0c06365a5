"""A lock has one owner: living owners keep it, and only one process takes over a dead one's."""

import errno
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from support.refusals import refused
from support.toy_stage import wait_for

from probsa.core import writers
from probsa.core.files import replacing, temporary_files
from probsa.jobs import leftovers, locks
from probsa.jobs.leftovers import sweep, write_lock
from probsa.jobs.locks import claim, lock_file

LATER = 130
"""Seconds after which a lock that nobody touches may be taken over."""


@pytest.fixture
def target(tmp_path):
    return tmp_path / "made" / "a [1].h5"


def files(target):
    return sorted(p.name for p in target.parent.iterdir())


def owner_of(path):
    return json.loads(path.read_text())


def leave(target, *, age=0.0, text=None, **owner):
    """Write a lock of this process, changed by `owner`, that was touched `age` seconds ago."""
    with claim(target) as lock:
        mine = owner_of(lock.path)
    content = json.dumps(mine | owner) if text is None else text
    lock.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    then = time.time() - age
    os.utime(lock.path, (then, then))
    return lock.path


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lock_has_one_owner_and_leaves_nothing(target):
    with claim(target) as lock:
        assert files(target) == [".a [1].h5.lock"]
        assert lock.still_mine() and not lock.taken_over
        assert claim(target) is None
        assert owner_of(lock.path)["pid"] == os.getpid()
        claim(target.with_name("b.h5")).release()
    assert files(target) == [] and not lock.still_mine()
    again = claim(target)
    assert not again.taken_over and again.content != lock.content
    lock.release()  # a second release does nothing
    assert again.still_mine()
    child = os.fork()
    if child == 0:
        again.release()  # a forked process releases nothing
        os._exit(0)
    os.waitpid(child, 0)
    assert again.still_mine()
    again.release()
    assert files(target) == []


@pytest.mark.parametrize("died", ["waited for", "a zombie", "its number is another's"])
def test_a_dead_process_is_succeeded_at_once(target, died):
    child = subprocess.Popen([sys.executable, "-c", ""])
    stat = f"/proc/{child.pid}/stat"

    def fields():
        with pathlib.Path(stat).open() as f:
            return f.read().rpartition(")")[2].split()

    wait_for(lambda: fields()[0] == "Z")
    owner = {"pid": child.pid, "started": fields()[19]}
    if died != "a zombie":
        child.wait()
    leave(target, **({"started": "1"} if died == "its number is another's" else owner))
    with claim(target) as lock:
        assert lock.taken_over and lock.still_mine()
        assert files(target) == [".a [1].h5.lock"]
    assert files(target) == []
    child.wait()


@pytest.mark.parametrize("age", [0, 1e6])
def test_a_living_process_of_this_machine_is_respected_however_long_it_sleeps(target, age):
    path = leave(target, age=age)
    before = path.read_text()
    assert claim(target) is None
    assert path.read_text() == before and files(target) == [path.name]


@pytest.mark.parametrize(("age", "free"), [(100, False), (140, True)])
@pytest.mark.parametrize("pid", [1, 2**22 - 7])
def test_another_machine_is_judged_by_its_heartbeat(target, monkeypatch, age, free, pid):
    """A process with the same number on this machine does not matter, nor does our clock."""
    path = leave(target, age=age, place="elsewhere", pid=pid)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert (claim(target) is not None) is free
    assert files(target) == [path.name]


DAMAGED = {
    "empty": {"text": ""},
    "half": {"text": "{"},
    "a list": {"text": "[]"},
    "a later version": {"text": '{"later": 1}'},
    "no text": {"text": b"\xff\xfe\0"},
    "deep": {"text": b"[" * 100_000},
    "a long number": {"text": b"1" * 5000},
    "pid is text": {"pid": "many"},
    "pid is 0": {"pid": 0},
    "pid is negative": {"pid": -1},
    "pid is too large": {"pid": 10**12},
    "started is a number": {"started": 3},
    "place is null": {"place": None},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_lock_is_that_of_an_unknown_owner(target, damage, caplog):
    """It is somebody's until it is old; then it is taken over, and the log says so."""
    path = leave(target, **DAMAGED[damage])
    assert claim(target) is None
    os.utime(path, (0, time.time() - LATER))
    with claim(target) as lock:
        assert lock.taken_over
    assert "from an unknown owner" in caplog.text and ".a [1].h5.lock" in caplog.text
    assert files(target) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_in_place_of_a_lock_is_not_waited_for(target):
    target.parent.mkdir()
    os.mkfifo(lock_file(target))
    assert claim(target) is None


def guard_of(path):
    """Return the guard of a dead lock, which one process after another may hold."""
    name = locks.hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return path.with_name(f"{path.name}.{name}")


def test_a_taker_that_died_is_succeeded_and_a_living_one_left_alone(target):
    path = leave(target, pid=dead_pid())
    guard = guard_of(path)
    guard.write_text(path.read_text().replace('"since"', '"since_when"'))
    guard_of(guard).write_text(guard.read_text().replace("since_when", "when"))
    with claim(target) as lock:
        assert lock.taken_over and lock.still_mine()
        assert files(target) == [path.name]
        living = lock.path.read_text()
    guard = guard_of(leave(target, pid=dead_pid()))
    guard.write_text(living)
    assert claim(target) is None
    assert files(target) == [path.name, guard.name]


def test_of_twenty_takers_one_wins(tmp_path, monkeypatch):
    """Twenty processes compete for thirty stale locks, with a pause at the critical point."""
    pid, look = dead_pid(), locks._dead_content

    def dwell(path):
        found = look(path)
        time.sleep(0.002)
        return found

    monkeypatch.setattr(locks, "_dead_content", dwell)
    for i in range(30):
        leave(tmp_path / f"t{i}.h5", pid=pid)
    # fork, because importing everything in twenty processes would take a minute
    takers = []
    go = tmp_path / "go"
    for i in range(20):
        child = os.fork()
        if child == 0:
            try:
                (tmp_path / f"here-{i}").touch()
                while not go.exists():
                    time.sleep(0.001)
                for k in range(30):
                    lock = claim(tmp_path / f"t{k}.h5")
                    if lock is not None:
                        with (tmp_path / "log").open("a") as f:
                            f.write(f"t{k} {lock.taken_over} {lock.still_mine()}\n")
                (tmp_path / f"done-{i}").touch()
                threading.Event().wait(60)
            finally:
                os._exit(0)
        takers.append(child)
    try:
        wait_for(lambda: len(list(tmp_path.glob("here-*"))) == 20)
        go.touch()
        wait_for(lambda: len(list(tmp_path.glob("done-*"))) == 20)
        lines = (tmp_path / "log").read_text().splitlines()
        assert sorted(lines) == sorted(f"t{k} True True" for k in range(30))
        assert len(list(tmp_path.glob(".*"))) == 30
        owners = {owner_of(lock_file(tmp_path / f"t{k}.h5"))["pid"] for k in range(30)}
        assert owners <= set(takers)
    finally:
        for child in takers:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_the_heart_beats_while_the_lock_is_held(target, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT", 0.02)
    locks._start_heartbeats.cache_clear()  # a thread of this pace
    lock, other = claim(target), claim(target.with_name("b.h5"))

    def beats(path):
        os.utime(path, (0, 0))
        wait_for(lambda: path.stat().st_mtime_ns > 0)

    beats(lock.path)
    # a lock that another process now holds is neither touched nor removed
    lock.path.write_text(lock.path.read_text() + " ")
    os.utime(lock.path, (0, 0))
    for _ in range(3):
        beats(other.path)
    assert lock.path.stat().st_mtime_ns == 0
    assert not lock.still_mine()
    lock.release()
    assert lock.path.exists()
    other.release()


def test_what_a_dead_owner_left_half_written_goes(target):
    target.parent.mkdir()
    other = target.with_name("a [1].h5.json")  # a similar name, of another file
    halves = []
    for path in (target, target, other):
        with replacing(path) as temporary:
            half = temporary.with_name(temporary.name.replace(".tmp", "x.tmp"))
            half.write_text("half")
            halves.append(half)
        path.unlink()
    assert temporary_files(target) == sorted(halves[:2])
    with claim(target) as lock:
        assert files(target) == sorted([halves[2].name, lock.path.name])
    assert temporary_files(target / "no folder" / "x") == []


@pytest.mark.parametrize("hidden", [False, True])
def test_without_proc_a_process_is_signalled(monkeypatch, hidden):
    """A process that is there may be a later one: then the lock's age decides."""

    def refuse(pid, number):
        raise PermissionError

    dead = dead_pid()
    monkeypatch.setattr(writers, "Path", _NoProc)
    assert writers.start_time(dead) == ""
    if hidden:
        monkeypatch.setattr(os, "kill", refuse)
    assert writers.start_time(os.getpid()) is None


class _NoProc:
    def __init__(self, path):
        pass

    def read_text(self):
        raise FileNotFoundError


def test_a_full_disk_leaves_no_lock(target, monkeypatch):
    real = os.fdopen

    def full(handle, mode):
        real(handle, mode).close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locks.os, "fdopen", full)
    with pytest.raises(OSError, match="No space left") as caught:
        claim(target)
    assert caught.value.filename == str(lock_file(target))
    assert files(target) == []


def test_a_folder_that_cannot_be_written_to_says_so(tmp_path):
    (tmp_path / "file").touch()
    refused(OSError, "file", claim, tmp_path / "file" / "a.h5")


def test_the_temporary_file_of_a_living_writer_without_the_lock_stays(target, monkeypatch):
    """A writer that waited in vain goes on without the lock; the next owner removes nothing of it.

    Sweeping, and other files of the same lock, leave it as well.
    """
    monkeypatch.setattr(leftovers, "PATIENCE", 0.0)
    owner = claim(target)
    dead = target.with_name(f".{target.name}.0123abcd.tmp")
    dead.write_text("left by a process that was killed")
    with write_lock(target), replacing(target) as temporary:
        temporary.write_text("whole")
        owner.release()
        with claim(target):
            assert temporary.is_file() and not dead.exists()
        with write_lock(target.with_name("other"), target, target.parent):
            assert temporary.is_file()
        sweep(target.parent, guard=lambda path: path)
        assert temporary.is_file()
    assert target.read_text() == "whole"
    assert files(target) == [target.name]


def test_a_temporary_file_goes_with_its_writer(target):
    target.parent.mkdir()
    with replacing(target) as temporary:
        assert writers.is_in_use(temporary)
        mine = writers.TOKEN.fullmatch(temporary.name).groups()
        for place, pid, started in (
            (mine[0], f"{dead_pid():x}", mine[2]),  # it has ended
            (mine[0], mine[1], "1"),  # a later process has its number
        ):
            name = f".{target.name}.01234567_{place}_{pid}_{started}.tmp"
            left = target.with_name(name)
            left.write_text("half")
            assert not writers.is_in_use(left)
        other_place = "0" * 8
        elsewhere = target.with_name(f".{target.name}.01234567_{other_place}_1_1.tmp")
        for seconds, expected in ((100, True), (140, False)):
            elsewhere.write_text("half")
            os.utime(elsewhere, (time.time() - seconds,) * 2)
            assert writers.is_in_use(elsewhere) is expected
        temporary.write_text("whole")
