"""Files are written whole: flushed to disk, and only then renamed."""

import os
import subprocess
import sys

import pytest
from support.refusals import refused

from probsa.core import files, replacing, replacing_hdf5, write_csv, write_json
from probsa.errors import BagError


def text(path):
    write_json(path, {"a": list(range(9))})


def table(path):
    write_csv(path, ["a"], [{"a": 1}])


def hdf5(path):
    with replacing_hdf5(path) as f:
        f["x"] = [1.0, 2.0]


@pytest.mark.parametrize("write", [text, table, hdf5])
def test_all_of_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch, write):
    path = tmp_path / "a"
    flushed: list[tuple[int, int]] = []
    real = os.fsync

    def fsync(descriptor):
        assert not path.exists()
        real(descriptor)
        status = os.fstat(descriptor)
        flushed.append((status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    write(path)
    status = path.stat()
    assert (status.st_ino, status.st_size) in flushed  # this file, with all of its bytes
    assert status.st_size > 0


def test_a_flush_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("precious")

    def fsync(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"), replacing(path) as temporary:
        temporary.write_text("half")
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_flushed_where_only_writable_files_can_be(tmp_path, monkeypatch):
    """Windows refuses to flush a file that was opened for reading."""
    real = os.fsync

    def fsync(descriptor):
        os.write(descriptor, b"")  # EBADF if it is open for reading only
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    text(tmp_path / "a")
    assert (tmp_path / "a").read_bytes().startswith(b"{\n")


@pytest.mark.parametrize("refusals", [2, 9])
def test_a_file_that_is_open_elsewhere_is_replaced_later_on_windows(
    tmp_path, monkeypatch, refusals
):
    left = [refusals]
    real = files.Path.replace

    def replace(self, target):
        left[0] -= 1
        if left[0] >= 0:
            raise PermissionError(13, "used by another process", str(target))
        return real(self, target)

    monkeypatch.setattr(files, "WINDOWS", True)
    monkeypatch.setattr(files, "PAUSES", (0, 0, 0))
    monkeypatch.setattr(files.Path, "replace", replace)
    if refusals > len(files.PAUSES):
        with pytest.raises(PermissionError):
            text(tmp_path / "a")
        assert list(tmp_path.iterdir()) == []
    else:
        text(tmp_path / "a")
        assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "/etc/x", "../x", "a/b", "a\0"])
def test_a_name_that_leads_elsewhere_names_no_file(tmp_path, name):
    refused(BagError, "file name", files.named_file, tmp_path, name, ".h5")
    assert files.named_file(tmp_path, "..a", ".h5") == tmp_path / "..a.h5"


def test_the_umask_of_the_user_holds(tmp_path):
    code = "import sys; from pathlib import Path; from probsa.core import write_json; "
    code += "write_json(Path(sys.argv[1]), 1)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True, umask=0o027)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
