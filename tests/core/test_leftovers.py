"""Temporary files of killed processes of this machine are removed, and no others."""

import os
import subprocess
import sys

import pytest

from probsa.core import remove_leftovers, remove_leftovers_of, replacing
from probsa.core.leftovers import temporary_files
from probsa.core.writers import TEMPORARY_NAME, is_abandoned


@pytest.fixture(scope="module")
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def name_of(tmp_path, dead_pid):
    """Return a function that gives the name of a temporary file by kind of writer."""
    with replacing(tmp_path / "probe") as temporary:
        match = TEMPORARY_NAME.fullmatch(temporary.name)
        temporary.write_text("")
    (tmp_path / "probe").unlink()
    place, pid, started = match.groups()
    tokens = {
        "dead": f"01234567_{place}_{dead_pid:x}_{started}",
        "successor": f"01234567_{place}_{pid}_1",  # a later process has its number
        "living": f"01234567_{place}_{pid}_{started}",
        "elsewhere": f"01234567_{'0' * 8}_{dead_pid:x}_{started}",
        "earlier version": "abcd1234",
    }
    return lambda name, writer: f".{name}.{tokens[writer]}.tmp"


ABANDONED = {
    "dead": True,
    "successor": True,
    "living": False,
    "elsewhere": False,
    "earlier version": False,
}


@pytest.mark.parametrize("old", [False, True], ids=["new", "days old"])
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("writer", ABANDONED)
def test_only_what_a_killed_process_of_this_machine_wrote_is_removed(
    tmp_path, name_of, writer, kind, old
):
    path = tmp_path / "deep" / name_of("a.h5", writer)
    path.parent.mkdir()
    if kind == "file":
        path.write_text("half")
    else:
        path.mkdir()
        (path / "x").write_text("half")
    if old:
        os.utime(path, (0, 0))
    assert is_abandoned(path) is ABANDONED[writer]
    remove_leftovers(tmp_path)
    assert path.exists() is not ABANDONED[writer]


def test_a_command_removes_only_files_of_its_own_names(tmp_path, name_of):
    mine = tmp_path / name_of("a.h5", "dead")
    other = tmp_path / name_of("b.h5", "dead")
    for path in (mine, other):
        path.write_text("half")
    remove_leftovers(tmp_path, own=lambda path: path == tmp_path / "a.h5")
    assert not mine.exists() and other.exists()
    remove_leftovers_of(tmp_path / "a.h5")
    assert other.exists()
    remove_leftovers_of(tmp_path / "b.h5")
    assert list(tmp_path.iterdir()) == []
    remove_leftovers(tmp_path / "no folder")
    remove_leftovers_of(tmp_path / "no folder" / "x")


@pytest.mark.parametrize("name", ["notes.tmp", ".notes.tmp", ".a.h5.tmp", ".a.h5.01234567.lock"])
def test_files_of_the_user_stay(tmp_path, name):
    (tmp_path / name).write_text("mine")
    remove_leftovers(tmp_path)
    remove_leftovers_of(tmp_path / "a.h5")
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("stem", ["L" * 252, "é" * 126, "n" * 245, "n" * 200])
def test_temporary_files_of_long_names_are_told_apart(tmp_path, stem):
    path = tmp_path / f"{stem}.h5"
    with replacing(path) as temporary:
        temporary.write_text("x")
        assert temporary_files(path) == [temporary]
        # another file whose name begins alike has another temporary file
        assert temporary_files(path.with_name(f"{stem[:-1]}z.h5")) == []
    assert path.read_text() == "x" and list(tmp_path.iterdir()) == [path]
