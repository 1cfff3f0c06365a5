"""Commands that were killed leave nothing that the next run does not remove, and repeat exactly."""

import hashlib
import signal
from pathlib import Path

import pytest
from support import forks
from support.leftovers import temporary_of
from support.stored import write_folder
from support.toy_stage import wait_for

from probsa.cli import main
from probsa.evaluation import read_predictions

# A process that sends itself a signal in the middle of the n-th file that it writes.
PROGRAM = """
import os, signal, sys
from probsa.core import files
original, count = os.fsync, [0]

def fsync(handle):
    count[0] += 1
    if count[0] == {n}:
        os.kill(os.getpid(), signal.{number})
    original(handle)

files.os.fsync = fsync
from probsa.cli import main
sys.exit(main({arguments!r}))
"""


def killed(arguments, *, n, number="SIGKILL"):
    program = PROGRAM.format(n=n, number=number, arguments=[str(a) for a in arguments])
    done = forks.run(program)
    expected = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "SIGINT": 130}[number]
    assert done.returncode == expected, done.errors()


def hidden(folder: Path) -> list[str]:
    hidden = (p for p in folder.rglob(".*") if p.name != ".probsa")
    return sorted(p.relative_to(folder).as_posix() for p in hidden)


def digests(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    features, labels = write_folder(folder / "data")
    flags = (
        f"train --features {features} --labels {labels} --out {folder / 'r'} "
        "--model abmil-probsa-diag --model.embed 8 --test-fold 0 --epochs 1 "
        "--device cpu --tensorboard false"
    ).split()
    assert main(flags) == 0
    assert hidden(folder) == []
    return features, labels, folder / "r"


def commands(trained, out):
    features, labels, run = trained
    return {
        "predict": ["predict", str(run), "--features", str(features), "--out", str(out / "p")],
        "map": ["map", str(run / "predictions"), "--out", str(out / "m")],
        "convert": (
            f"convert {features} --from probsa --slide-mpp 0.5 --labels {labels} --out {out / 'c'}"
        ).split(),
    }


@pytest.mark.parametrize(
    ("name", "number"), [("predict", "SIGTERM"), ("map", "SIGINT"), ("convert", "SIGTERM")]
)
def test_a_stopped_command_leaves_nothing_half_written(trained, tmp_path, name, number):
    killed(commands(trained, tmp_path)[name], n=3, number=number)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["predict", "map", "convert"])
def test_the_next_run_removes_what_a_killed_one_left_and_gives_equal_files(trained, tmp_path, name):
    arguments = commands(trained, tmp_path)[name]
    if name == "convert":
        arguments.append("--overwrite")
    assert main(arguments) == 0
    wanted = digests(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}-whole")
    killed(arguments, n=4)
    assert any(p.endswith(".tmp") for p in hidden(tmp_path))
    foreign = tmp_path / ("." if name == "predict" else name[0]) / ".notes.abcdefgh.tmp"
    foreign.write_text("not ours")
    assert main(arguments) == 0
    assert hidden(tmp_path) == [foreign.relative_to(tmp_path).as_posix()]
    foreign.unlink()
    assert digests(tmp_path) == wanted


def test_leftovers_of_other_maps_go_too_but_not_those_of_a_living_process(trained, tmp_path):
    arguments = commands(trained, tmp_path)["map"]
    bags = read_predictions(trained[2] / "predictions").bags
    out = tmp_path / "m"
    out.mkdir()
    left = temporary_of(out / f"{bags[0]}_mean.png")
    left.write_text("half")
    living = "import time; from pathlib import Path; from probsa.core import replacing; "
    living += "import sys; p = Path(sys.argv[1])\n"
    living += "with replacing(p) as t: print(t, flush=True); time.sleep(60)"
    process = forks.begin(living, out / f"{bags[1]}.png")
    try:
        wait_for(lambda: "\n" in process.output() or process.poll() is not None)
        theirs = Path(process.output().strip())
        assert theirs.name, process.errors()
        assert main([*arguments, "--bag", bags[2]]) == 0
        assert not left.exists() and theirs.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert main([*arguments, "--bag", bags[2]]) == 0
    assert hidden(out) == []


def test_two_runs_of_one_command_give_the_files_of_one(trained, tmp_path):
    for name in ("predict", "map", "convert"):
        assert main(commands(trained, tmp_path / "one")[name]) == 0
        program = "import sys; from probsa.cli import main; sys.exit(main(sys.argv[1:]))"
        arguments = commands(trained, tmp_path / "two")[name]
        if name != "map":
            arguments.append("--overwrite")  # the other run may have begun
        both = [forks.begin(program, *arguments) for _ in range(2)]
        for process in both:
            assert process.wait() == 0, process.errors()
    assert digests(tmp_path / "two") == digests(tmp_path / "one")
    assert hidden(tmp_path) == []


def test_predictions_that_were_put_aside_come_back(trained, tmp_path):
    arguments = commands(trained, tmp_path)["predict"]
    assert main(arguments) == 0
    wanted = digests(tmp_path / "p")
    # killed between two renames
    (tmp_path / "p").rename(temporary_of(tmp_path / "p").with_suffix(".old"))
    assert main(arguments) == 2  # they are there again, and are not overwritten
    assert main([*arguments, "--overwrite"]) == 0
    assert digests(tmp_path / "p") == wanted and hidden(tmp_path) == []


def test_a_conversion_gives_the_same_bytes_each_time(trained, tmp_path):
    features, labels, _ = trained
    found = []
    for _ in range(2):
        out = tmp_path / "out"
        flags = (
            f"convert {features} --from probsa --slide-mpp 0.5 --labels {labels} --out {out}"
        ).split()
        assert main(flags) == 0
        found.append(digests(out))
        out.rename(tmp_path / f"out{len(found)}")
    assert found[0] == found[1] and len(found[0]) > 12
