"""probsa train: the maps it draws, and settings that a resumed run keeps."""

import pytest
from support.stored import write_folder

from probsa.cli import main
from probsa.workflow import runs

FLAGS = ["--model", "abmil", "--embed", "8", "--test-fold", "0", "--epochs", "1"]
FLAGS += ["--tensorboard", "false", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    features, labels = write_folder(folder / "data", bags=48)
    run = folder / "run"
    data = ["--features", str(features), "--labels", str(labels)]
    assert main(["train", *data, "--out", str(run), *FLAGS]) == 0
    return run


def test_a_run_draws_a_dozen_maps(trained):
    assert len(list((trained / "maps").glob("*.png"))) == runs.MOST_MAPS


def test_a_resumed_run_draws_only_maps_that_are_missing(trained, monkeypatch, capsys):
    pictures = sorted((trained / "maps").glob("*.png"))
    times = {p.name: p.stat().st_mtime_ns for p in pictures}
    pictures[0].unlink()
    pictures[1].write_bytes(b"of the user")  # no map of this run: not replaced, and said
    main(["train", "--out", str(trained), "--resume"])
    assert str(pictures[1]) in capsys.readouterr().err
    for picture in pictures[2:]:
        assert picture.stat().st_mtime_ns == times[picture.name]
    assert pictures[0].is_file() and pictures[1].read_bytes() == b"of the user"
    pictures[1].unlink()


@pytest.mark.parametrize(
    "flags",
    [
        "--epochs 2",
        "--model dsmil",
        "--learning-rate 0.5",
        "--embed 16",
        "--seed 3",
        "--test-fold 1",
        "--classes a,b",
        "--labels other.csv",
        "--neighbours 3",
        "--members 4",
    ],
)
def test_settings_of_a_resumed_run_are_those_of_the_run(trained, capsys, flags):
    before = (trained / "run.yaml").read_text()
    assert main(["train", "--out", str(trained), "--resume", *flags.split()]) == 2
    printed = capsys.readouterr().err
    assert "run.yaml" in printed and flags.split()[0].strip("-").replace("-", "_") in printed
    assert (trained / "run.yaml").read_text() == before


def test_settings_that_the_run_has_are_accepted(trained):
    given = ["--epochs", "1", "--embed", "8", "--model", "abmil"]
    assert main(["train", "--out", str(trained), "--resume", "--maps", "none", *given]) == 0
