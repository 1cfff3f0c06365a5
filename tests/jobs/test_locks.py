"""A lock has one owner: living owners keep it, and only one process takes over a dead one's."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from support.toy_stage import wait_for

from probsa.core.files import replacing, temporary_files
from probsa.jobs import locks
from probsa.jobs.locks import claim, lock_file
from probsa.jobs.records import RecordFile


@pytest.fixture
def target(tmp_path):
    return tmp_path / "made" / "a [1].h5"


def files(target):
    return sorted(p.name for p in target.parent.iterdir())


def leave(target, *, age=0.0, **owner):
    """Write a lock of this process, changed by `owner`, that was touched `age` seconds ago."""
    target.parent.mkdir(exist_ok=True)
    path = lock_file(target)
    mine = asdict(locks._myself())
    path.write_text(json.dumps(mine | owner))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def holder(target):
    """The owner that the lock of `target` names; None without a lock."""
    content = locks._read(lock_file(target))
    return content and content[0]


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lock_has_one_owner_and_leaves_nothing(target):
    with claim(target) as lock:
        assert files(target) == [".a [1].h5.lock"]
        assert lock.still_mine() and not lock.taken_over
        assert claim(target) is None
        owner = holder(target)
        assert owner == lock.owner and owner.pid == os.getpid()
        other = claim(target.with_name("b.h5"))
        other.release()
    assert files(target) == []
    assert holder(target) is None and not lock.still_mine()
    again = claim(target)
    assert not again.taken_over
    assert again.owner.token != lock.owner.token
    lock.release()  # a second release does nothing
    assert again.still_mine()
    again.release()


def test_a_dead_process_is_succeeded_at_once(target):
    leave(target, pid=dead_pid(), token="dead")
    lock = claim(target, stale_after=1e9)
    assert lock.taken_over and lock.still_mine()
    assert files(target) == [".a [1].h5.lock"]
    lock.release()
    assert files(target) == []


def test_a_dead_process_that_nobody_waited_for_is_dead(target):
    child = subprocess.Popen([sys.executable, "-c", ""])
    state = Path(f"/proc/{child.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
    leave(target, pid=child.pid, started=state.read_text().rpartition(")")[2].split()[19])
    assert claim(target, stale_after=1e9).taken_over
    child.wait()


def test_a_later_process_of_the_same_number_is_not_the_owner(target):
    leave(target, started="1", token="before")
    assert claim(target, stale_after=1e9).taken_over


@pytest.mark.parametrize("age", [0, 1e6])
def test_a_living_process_of_this_machine_is_respected_however_long_it_sleeps(target, age):
    path = leave(target, age=age)
    before = path.read_text()
    assert claim(target) is None
    assert path.read_text() == before
    assert files(target) == [path.name]


@pytest.mark.parametrize(("age", "free"), [(100, False), (140, True)])
@pytest.mark.parametrize("pid", [1, 2**22 - 7])
def test_another_machine_is_judged_by_its_heartbeat(target, age, free, pid):
    """A process with the same number on this machine does not matter."""
    path = leave(target, age=age, place="elsewhere", pid=pid)
    assert (claim(target) is not None) is free
    assert files(target) == [path.name]


def test_age_is_told_by_the_clock_of_the_file_server(target, monkeypatch):
    leave(target, age=100, place="elsewhere")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert claim(target) is None
    monkeypatch.setattr(
        locks, "_server_time", lambda folder: lock_file(target).stat().st_mtime + 121
    )
    assert claim(target).taken_over


@pytest.mark.parametrize("text", ["", "{", "[]", '{"later": 1}'])
def test_an_unreadable_lock_is_somebody_s_until_it_is_old(target, text):
    """Its owner may be writing it, may have died before that, or may be a later version."""
    path = leave(target)
    path.write_text(text)
    assert claim(target) is None
    then = time.time() - 130
    os.utime(path, (then, then))
    lock = claim(target)
    assert lock.taken_over
    lock.release()
    assert files(target) == []


DAMAGED = {
    "pid is text": {"pid": "many"},
    "pid is a list": {"pid": [1]},
    "pid is 0": {"pid": 0},
    "pid is negative": {"pid": -1},
    "pid is too large": {"pid": 10**12},
    "started is a number": {"started": 3},
    "place is null": {"place": None},
    "token with a slash": {"token": "../../x"},
    "token with NUL": {"token": "a\0b"},
    "long token": {"token": "a" * 300},
    "token is a number": {"token": 3},
    "empty token": {"token": ""},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_lock_is_that_of_an_unknown_owner(target, damage, caplog):
    """It is somebody's until it is old; then it is taken over, and the log says so."""
    other = {"place": "elsewhere"} if damage in ("pid is 0", "empty token") else {}
    leave(target, **other, **DAMAGED[damage])
    assert claim(target) is None
    leave(target, age=130, **other, **DAMAGED[damage])
    with claim(target) as lock:
        assert lock.taken_over
    assert "from an unknown owner" in caplog.text and ".a [1].h5.lock" in caplog.text
    assert files(target) == []


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"[" * 100_000, b"1" * 5000, b"nu" + b"l" * 9])
def test_a_lock_with_any_content_is_read(target, content):
    path = leave(target)
    path.write_bytes(content)
    assert claim(target) is None
    then = time.time() - 130
    os.utime(path, (then, then))
    with claim(target) as lock:
        assert lock.taken_over


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_in_place_of_a_lock_is_not_waited_for(target):
    target.parent.mkdir()
    os.mkfifo(lock_file(target))
    assert claim(target) is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted(RecordFile):
    name: str
    count: int = 0
    files: tuple[str, ...] = ()


def test_a_damaged_record_counts_as_missing(tmp_path):
    path = tmp_path / "r.json"
    noted = Noted(name="a", count=3, files=("x",))
    noted.write(path)
    assert Noted.read(path) == noted
    stored = json.loads(path.read_text())
    for key, value in (
        ("count", "3"),
        ("count", None),
        ("files", "x"),
        ("files", [1]),
        ("name", 1),
    ):
        path.write_text(json.dumps(stored | {key: value}))
        assert Noted.read(path) is None
    for content in (b"", b"null", b"[]", b"\xff", b"[" * 100_000, b"{}"):
        path.write_bytes(content)
        assert Noted.read(path) is None


def test_a_taker_that_died_is_succeeded_too(target):
    """Two processes died one after the other while they held the guard."""
    path = leave(target, pid=dead_pid(), token="one")
    for name in (f"{path.name}.one", f"{path.name}.one.two"):
        token = {"one": "two", "two": "three"}[name.rpartition(".")[2]]
        path.with_name(name).write_text(path.read_text().replace('"one"', f'"{token}"'))
    lock = claim(target)
    assert lock.taken_over and lock.still_mine()
    assert files(target) == [path.name]


def test_a_living_taker_is_left_alone(target):
    path = leave(target, pid=dead_pid(), token="one")
    guard = path.with_name(f"{path.name}.one")
    guard.write_text(json.dumps(asdict(locks._myself())))
    assert claim(target) is None
    assert files(target) == [path.name, guard.name]


def test_a_late_taker_finds_another_owner(target, monkeypatch):
    """It saw the dead owner; before it could act, another took over."""
    path = leave(target, pid=dead_pid(), token="one")
    real, looks = locks._dead_owner, []

    def dead(at, stale):
        found = real(at, stale)
        if not looks:
            looks.append(found)
            assert claim(target).taken_over
        return found

    monkeypatch.setattr(locks, "_dead_owner", dead)
    assert claim(target) is None
    assert looks[0].token == "one"
    assert files(target) == [path.name]
    assert holder(target).pid == os.getpid()


def test_of_twenty_takers_one_wins(tmp_path, monkeypatch):
    """Twenty processes compete for thirty stale locks, with a pause at the critical point."""
    pid, look = dead_pid(), locks._dead_owner

    def dwell(path, stale):
        found = look(path, stale)
        time.sleep(0.002)
        return found

    monkeypatch.setattr(locks, "_dead_owner", dwell)
    for i in range(30):
        leave(tmp_path / f"t{i}.h5", pid=pid, token=f"dead{i}")
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
        assert {holder(tmp_path / f"t{k}.h5").pid for k in range(30)} <= set(takers)
    finally:
        for child in takers:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_the_heart_beats_while_the_lock_is_held(target):
    lock = claim(target, heartbeat=0.02)

    def touched():
        return lock.path.stat().st_mtime_ns

    os.utime(lock.path, (0, 0))
    wait_for(lambda: touched() > 0)
    # a lock that another process now holds is not touched
    lock.path.write_text(json.dumps(asdict(replace(lock.owner, token="other"))))
    os.utime(lock.path, (0, 0))
    other = claim(target.with_name("b.h5"), heartbeat=0.02)
    os.utime(other.path, (0, 0))
    wait_for(lambda: other.path.stat().st_mtime_ns > 0)
    os.utime(other.path, (0, 0))
    wait_for(lambda: other.path.stat().st_mtime_ns > 0)
    assert touched() == 0
    assert not lock.still_mine()
    lock.release()
    assert holder(target).token == "other"
    other.release()


def test_a_process_that_was_forked_off_releases_nothing(target):
    lock = claim(target)
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert lock.still_mine()
    lock.release()


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
    lock = claim(target)
    assert files(target) == sorted([halves[2].name, lock.path.name])
    lock.release()
    assert temporary_files(target / "no folder" / "x") == []


def test_without_proc_the_system_is_asked(monkeypatch):
    assert locks._start_time_from_ps(dead_pid()) == ""
    if os.getuid() == 0:
        monkeypatch.setattr(os, "kill", _refuse)
    assert locks._start_time_from_ps(1) is None
    monkeypatch.undo()
    # with /proc present, a hidden process may be alive or not
    assert locks._start_time_from_ps(os.getpid()) is None
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert locks._start_time_from_ps(os.getpid()) == locks._start_time_from_ps(os.getpid()) != ""


def _refuse(pid, number):
    raise PermissionError


def test_a_full_disk_leaves_no_lock(target, monkeypatch):
    def full(value, file):
        file.write("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locks.json, "dump", full)
    with pytest.raises(OSError, match="No space left") as caught:
        claim(target)
    assert caught.value.filename == str(lock_file(target))
    assert files(target) == []


def test_a_folder_that_cannot_be_written_to_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        claim(tmp_path / "file" / "a.h5")
