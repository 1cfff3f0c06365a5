"""probsa doctor tries what it reports as working, and tells broken from absent parts."""

import json

import pytest

from probsa import features
from probsa.cli import doctor
from probsa.cli.entry import main


@pytest.fixture(scope="module")
def checks():
    return {f"{c.area} {c.name}": c for c in doctor.examine()}


def test_here_every_reader_works(checks):
    readers = [c for c in checks.values() if c.area == "reader"]
    assert len(readers) == 6
    assert {c.status for c in readers} == {"works"}, readers
    assert "JPEG 2000" in checks["reader compressed DICOM"].detail
    assert checks["device cpu"].status == "works"


def test_every_encoder_has_a_row(checks):
    rows = {c.name: c for c in checks.values() if c.area == "encoder"}
    assert set(rows) == set(features.names())
    assert rows["handcrafted"].status == "works"
    assert rows["resnet50-bt"].status == "absent" and "--weights" in rows["resnet50-bt"].detail


def test_a_reader_that_is_broken_or_absent_is_told(monkeypatch):
    class TornError(Exception):
        """An error as a library may raise it."""

    def torn(*args, **kwargs):
        raise TornError("torn")

    monkeypatch.setattr("probsa.cli.doctor.open_slide", torn)
    found = {c.name: c for c in doctor._readers()}
    assert found["PNG, JPEG (Pillow)"].status == "broken"
    assert found["PNG, JPEG (Pillow)"].detail == "TornError: torn"
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    found = {c.name: c for c in doctor._readers()}
    assert found["NIfTI (nibabel)"].status == "absent"


def test_wrong_pixels_are_not_called_right(monkeypatch, tmp_path):
    from PIL import Image

    whole = doctor._pattern()
    Image.fromarray(whole + 9).save(tmp_path / "y.png")
    real = doctor.open_slide
    monkeypatch.setattr("probsa.cli.doctor.open_slide", lambda path: real(tmp_path / "y.png"))
    check = doctor._tried("reader", "x", lambda: doctor._read_png(tmp_path))
    assert check.status == "broken" and "up to 9 of 255" in check.detail


def test_the_command(capsys, monkeypatch):
    few = [doctor.Check(area="core", name="a", status="works", detail="1")]
    monkeypatch.setattr("probsa.cli.doctor.examine", lambda: iter(few))
    assert main(["doctor"]) == 0
    assert "works" in capsys.readouterr().out
    few.append(doctor.Check(area="reader", name="b", status="broken", detail="torn"))
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][1]["detail"] == "torn"
