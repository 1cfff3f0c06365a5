"""Which encoder `probsa extract` uses where none is given, and what it says of it."""

import shutil

import h5py
import pytest
from support.made_slides import write_cohort

from probsa.cli import main
from probsa.features import Readiness

EXTRACT = ("--readers", "0", "--threads", "1")


@pytest.fixture
def extract(tmp_path, capsys, monkeypatch):
    """Runs the command in a new work folder; returns its exit status, first line and errors."""
    write_cohort(tmp_path / "slides", slides=1)
    cut = ["patch", str(tmp_path / "slides"), "--out", str(tmp_path / "work"), "--mpp", "0.5"]
    assert main([*cut, "--patch-size", "128", "--workers", "1"]) == 0

    # whose weights no test has, unlike those of a package that may be installed
    monkeypatch.setattr("probsa.features._registry.PREFERRED", "resnet18")

    def run(*words, state):
        monkeypatch.setattr("probsa.features._registry.readiness", lambda name: Readiness(state))
        capsys.readouterr()
        status = main(["extract", str(tmp_path / "work"), *EXTRACT, *words])
        printed = capsys.readouterr()
        return status, printed.out.partition("\n")[0], printed.err

    return run


def test_the_default_is_what_is_installed_or_made_the_features(extract, tmp_path):
    status, encoder, _ = extract(state="ready")
    assert status == 2 and encoder.startswith("Encoder: resnet18 ")
    status, encoder, _ = extract(state="needs weights")
    assert status == 0 and encoder.startswith("Encoder: handcrafted ")
    status, encoder, _ = extract("--dry-run", state="ready")
    assert status == 0 and encoder.startswith("Encoder: handcrafted ")
    (folder,) = tmp_path.glob("work/*/features_handcrafted")
    shutil.copytree(folder, folder.with_name("features_other"))
    for path in folder.with_name("features_other").glob("*.h5"):
        with h5py.File(path, "r+") as f:
            key = next(k for k in f.attrs if k.endswith("made_with"))
            f.attrs[key] = f.attrs[key].replace("handcrafted@", "other@")
    status, _, errors = extract(state="ready")
    assert status == 2 and "handcrafted, other" in errors
