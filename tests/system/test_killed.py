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

# Draws no pictures: what a process leaves behind does not depend on what they show.
BLANK = """
import pytest
from support.blank_pictures import use_blank_pictures

use_blank_pictures(pytest.MonkeyPatch())
"""
# A process that sends itself a signal in the middle of the n-th file that it writes, before the
# file is flushed and renamed.
PROGRAM = """
import os, signal, sys
from probsa.core import files
original, count = os.fsync, [0]

def fsync(handle):
    count[0] += 1
    if count[0] == {n}:
        os.kill(os.getpid(), signal.{signal_name})
    original(handle)

files.os.fsync = fsync
from probsa.cli import main
sys.exit(main({arguments!r}))
"""


STATUS = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "SIGINT": 130}
"""Status of a process that was ended by a signal; it handles all but SIGKILL itself."""
MAIN = f"{BLANK}import sys; from probsa.cli import main; sys.exit(main(sys.argv[1:]))"


def kill(arguments, *, n, signal_name="SIGKILL"):
    """Run a command that is ended by a signal while it writes its n-th file."""
    program = BLANK + PROGRAM.format(
        n=n, signal_name=signal_name, arguments=[str(argument) for argument in arguments]
    )
    process = forks.run(program)
    assert process.returncode == STATUS[signal_name], process.errors()


def hidden(folder: Path) -> list[str]:
    """Return the hidden files below a folder but the ledger, which are temporary ones."""
    files = (p for p in folder.rglob(".*") if p.name != ".probsa")
    return sorted(p.relative_to(folder).as_posix() for p in files)


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
    ("name", "signal_name"), [("predict", "SIGTERM"), ("map", "SIGINT"), ("convert", "SIGTERM")]
)
def test_a_stopped_command_leaves_nothing_half_written(trained, tmp_path, name, signal_name):
    kill(commands(trained, tmp_path)[name], n=3, signal_name=signal_name)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["predict", "map", "convert"])
def test_the_next_run_removes_what_a_killed_one_left_and_gives_equal_files(trained, tmp_path, name):
    arguments = commands(trained, tmp_path)[name]
    if name == "convert":
        arguments.append("--overwrite")
    assert main(arguments) == 0
    expected = digests(tmp_path)
    # the command begins in an empty folder again
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}-whole")
    kill(arguments, n=4)
    assert any(p.endswith(".tmp") for p in hidden(tmp_path))
    # the temporary folder of predictions lies beside them, temporary maps and bags in their folder
    folders = {"predict": tmp_path, "map": tmp_path / "m", "convert": tmp_path / "c"}
    foreign = folders[name] / ".notes.abcdefgh.tmp"
    foreign.write_text("not ours")
    assert main(arguments) == 0
    assert hidden(tmp_path) == [foreign.relative_to(tmp_path).as_posix()]
    foreign.unlink()
    assert digests(tmp_path) == expected


LIVING = """
import sys, time
from pathlib import Path
from probsa.core import replacing

with replacing(Path(sys.argv[1])) as temporary:
    print(temporary, flush=True)
    time.sleep(60)
"""


def test_leftovers_of_other_maps_go_too_but_not_those_of_a_living_process(trained, tmp_path):
    arguments = commands(trained, tmp_path)["map"]
    bags = read_predictions(trained[2] / "predictions").bags
    out = tmp_path / "m"
    out.mkdir()
    leftover = temporary_of(out / f"{bags[0]}_mean.png")
    leftover.write_text("half")
    process = forks.begin(LIVING, out / f"{bags[1]}.png")
    try:
        wait_for(lambda: "\n" in process.output() or process.poll() is not None)
        in_use = Path(process.output().strip())
        assert in_use.name, process.errors()
        assert main([*arguments, "--bag", bags[2]]) == 0
        assert not leftover.exists() and in_use.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert main([*arguments, "--bag", bags[2]]) == 0
    assert hidden(out) == []


def test_two_runs_of_one_command_give_the_files_of_one(trained, tmp_path):
    for name in ("predict", "map", "convert"):
        assert main(commands(trained, tmp_path / "one")[name]) == 0
        arguments = commands(trained, tmp_path / "two")[name]
        if name != "map":
            arguments.append("--overwrite")  # the other run may have begun
        both = [forks.begin(MAIN, *arguments) for _ in range(2)]
        for process in both:
            assert process.wait() == 0, process.errors()
    assert digests(tmp_path / "two") == digests(tmp_path / "one")
    assert hidden(tmp_path) == []


def test_predictions_that_were_put_aside_come_back(trained, tmp_path):
    arguments = commands(trained, tmp_path)["predict"]
    assert main(arguments) == 0
    expected = digests(tmp_path / "p")
    # killed between two renames
    (tmp_path / "p").rename(temporary_of(tmp_path / "p").with_suffix(".old"))
    assert main(arguments) == 2  # they are there again, and are not overwritten
    assert main([*arguments, "--overwrite"]) == 0
    assert digests(tmp_path / "p") == expected and hidden(tmp_path) == []


def test_a_conversion_gives_the_same_bytes_each_time(trained, tmp_path):
    arguments = commands(trained, tmp_path)["convert"]
    out = tmp_path / "c"
    assert main(arguments) == 0
    first = digests(out)
    out.rename(tmp_path / "first")
    assert main(arguments) == 0
    assert digests(out) == first and len(first) > 12
