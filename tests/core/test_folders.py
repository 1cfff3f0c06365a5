"""A folder appears as a whole or not at all, also if two processes write it at the same time."""

import os
import subprocess
import sys

import pytest

from probsa.core import folders, open_output, replacing_folder, write_text
from probsa.core.writers import TEMPORARY_NAME
from probsa.errors import OutputExists


def write(folder, text):
    with replacing_folder(folder) as new:
        (new / "a").write_text(text)


def content(folder):
    return {p.name: p.read_text() for p in folder.iterdir() if p.is_file()}


@pytest.fixture(params=[False, True], ids=["new", "replaced"])
def folder(tmp_path, request):
    """The path of a folder, which is there already or not."""
    path = tmp_path / "x"
    if request.param:
        write(path, "old")
    return path


def test_the_same_files_of_two_writers_are_kept_once(folder):
    with replacing_folder(folder) as ours:
        (ours / "a").write_text("new")
        write(folder, "new")
        theirs = folder.stat().st_ino
    assert content(folder) == {"a": "new"}
    assert folder.stat().st_ino == theirs
    assert [p.name for p in folder.parent.iterdir()] == ["x"]


def test_what_the_other_writer_adds_later_makes_no_difference(folder):
    with replacing_folder(folder) as ours:
        (ours / "a").write_text("new")
        write(folder, "new")
        write_text(folder / "a", "new, and evaluated")
        write_text(folder / "b", "more")
    assert content(folder) == {"a": "new, and evaluated", "b": "more"}


def test_other_files_of_another_writer_are_not_replaced(folder):
    with pytest.raises(OutputExists), replacing_folder(folder) as ours:
        (ours / "a").write_text("ours")
        write(folder, "theirs")
    assert content(folder) == {"a": "theirs"}
    assert [p.name for p in folder.parent.iterdir()] == ["x"]


def test_files_of_the_user_that_appear_meanwhile_stay(folder):
    with pytest.raises(OutputExists, match="notes"), replacing_folder(folder) as ours:
        (ours / "a").write_text("ours")
        folder.mkdir(exist_ok=True)
        (folder / "notes").write_text("mine")
    assert (folder / "notes").read_text() == "mine"


def late(monkeypatch, name):
    """Let somebody add a file to an earlier folder in the last moment before it is put aside."""

    def swap(new, folder, aside):
        (folder / name).write_text("mine")
        return swapped(new, folder, aside)

    swapped = folders._swap
    monkeypatch.setattr(folders, "_swap", swap)


def test_a_file_that_comes_in_the_last_moment_stays(tmp_path, monkeypatch):
    write(tmp_path / "x", "old")
    late(monkeypatch, "notes")
    write(tmp_path / "x", "new")
    assert content(tmp_path / "x") == {"a": "new", "notes": "mine"}
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_file_of_the_same_name_that_comes_in_the_last_moment_is_kept_aside(tmp_path, monkeypatch):
    write(tmp_path / "x", "old")
    late(monkeypatch, "a")
    with pytest.raises(OutputExists, match="x/a"):
        write(tmp_path / "x", "new")
    assert content(tmp_path / "x") == {"a": "new"}
    (aside,) = (path for path in tmp_path.iterdir() if path.name != "x")
    assert (aside / "a").read_text() == "mine"
    monkeypatch.undo()
    write(tmp_path / "x", "newer")
    assert (aside / "a").read_text() == "mine"


PROGRAM = """
import sys, time
from pathlib import Path
from probsa.core import replacing_folder
folder, number = Path(sys.argv[1]), int(sys.argv[2])
(folder.parent / f"ready{number}").touch()
while len(list(folder.parent.glob("ready*"))) < 2:
    time.sleep(0.001)
for k in range(100):
    with replacing_folder(folder) as new:
        for name in "abc":
            (new / name).write_text(name)
    for name in "abc":
        for _ in range(50):  # the folder may be about to be replaced
            if (folder / name).exists():
                break
            time.sleep(0.002)
        else:
            raise SystemExit(f"{name} is lost")
"""


def test_two_processes_replace_one_folder_many_times(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path / "x", str(k)], stderr=-1)
        for k in range(2)
    ]
    ends = [(p.communicate(timeout=120)[1].decode(), p.returncode) for p in processes]
    assert ends == [("", 0), ("", 0)]
    assert content(tmp_path / "x") == {name: name for name in "abc"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ready0", "ready1", "x"]


def aside_of(folder, *, pid):
    """Return the name under which a process puts a folder aside."""
    open_output(folder.parent)
    with replacing_folder(folder.parent / "probe") as new:
        machine, _, started = TEMPORARY_NAME.fullmatch(new.name).groups()
    return folder.with_name(f".{folder.name}.01234567_{machine}_{pid:x}_{started}.old")


def test_what_a_killed_process_put_aside_comes_back(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    folder = tmp_path / "x"
    write(folder, "old")
    aside = aside_of(folder, pid=process.pid)
    folder.rename(aside)
    with pytest.raises(ZeroDivisionError), replacing_folder(folder) as new:
        assert content(folder) == {"a": "old"}
        raise ZeroDivisionError(new)
    assert content(folder) == {"a": "old"} and not aside.exists()
    # if it had put the new one in place before it was killed, the earlier one goes
    write(aside, "older")
    write(folder, "new")
    assert content(folder) == {"a": "new"} and not aside.exists()


def test_what_others_put_aside_stays(tmp_path):
    folder = tmp_path / "x"
    for aside in (aside_of(folder, pid=os.getpid()), tmp_path / ".x.abcdefgh.old"):
        write(aside, "theirs")
        write(folder, "new")
        assert content(aside) == {"a": "theirs"}
