"""probsa doctor tries what it reports as working, and tells broken from absent parts."""

import json

import numpy as np
import pytest

from probsa import features
from probsa.cli import doctor, main


@pytest.fixture(scope="module")
def checks():
    return {f"{c.area} {c.name}": c for c in doctor.examine()}


def test_here_every_reader_works(checks):
    readers = [c for c in checks.values() if c.area == "reader"]
    assert len(readers) == 6
    assert {c.status for c in readers} == {"works"}, readers
    assert checks["device cpu"].status == "works"
    assert {f"package {name}" for name in ("starlette", "uvicorn")} <= set(checks)


def test_every_encoder_has_a_row(checks):
    rows = {c.name: c for c in checks.values() if c.area == "encoder"}
    assert set(rows) == set(features.names())
    assert rows["handcrafted"].status == "works"
    assert rows["resnet50-bt"].status == "absent"


def test_what_is_broken_absent_or_wrong_is_told(monkeypatch):
    class TornError(Exception):
        """An error as a library may raise it."""

    def torn(path):
        raise TornError("torn")

    class Wrong:
        """A slide whose pixels are not those of its file."""

        __enter__ = __exit__ = lambda self, *_: self

        def read(self, **_):
            return np.full((64, 64, 3), 60)

    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    for opened, detail in ((torn, "TornError"), (lambda path: Wrong(), "160")):
        monkeypatch.setattr(doctor, "open_slide", opened)
        checks = {c.name: c for c in doctor.examine()}
        png = checks["PNG, JPEG (Pillow)"]
        assert png.status == "broken" and detail in png.detail
        assert checks["NIfTI (nibabel)"].status == "absent"


def test_the_command(capsys, monkeypatch):
    few = [doctor.Check(area="core", name="a", status="works", detail="1")]
    monkeypatch.setattr("probsa.cli.doctor.examine", lambda: iter(few))
    assert main(["doctor"]) == 0
    capsys.readouterr()
    few.append(doctor.Check(area="reader", name="b", status="broken", detail="torn"))
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][1]["detail"] == "torn"
