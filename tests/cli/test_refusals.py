"""Wrong paths, tables, names of models and keys are refused before PyTorch is imported.

Each command is started with each kind of wrong input in a fresh process, which reports what was
imported.
"""

import json
import re
import subprocess
import sys

import pytest
from support.refused_commands import CASES, TRAIN, write_place

from probsa.cli import main
from probsa.cli.entry import COMMANDS
from probsa.features import known_names as known_encoders
from probsa.features import names as encoders
from probsa.models import (
    arguments,
    catalogue_rows,
    known_arguments,
    known_names,
    listed_models,
    look_up,
    names,
)

HEAVY = ("torch", "sklearn", "matplotlib", "scipy.stats", "timm", "transformers")
PROGRAM = """
import contextlib, io, json, sys
from probsa.cli.entry import main
report = []
for arguments in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        status = main(arguments)
    heavy = [name for name in sys.argv[2:] if name in sys.modules]
    report.append([arguments, status, err.getvalue(), heavy])
print(json.dumps(report))
"""


def outcomes(cases, cwd, heavy=HEAVY):
    """Run commands one after another in one new process; tell which heavy modules it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cases), *heavy],
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    write_place(folder)
    return folder


def test_every_command_is_among_the_cases():
    assert {*CASES} == {*COMMANDS, "other"}


@pytest.mark.parametrize("command", CASES)
def test_wrong_inputs_are_refused_without_pytorch(place, command):
    before = sorted(place.rglob("*"))
    for line, status, errors, heavy in outcomes([c.split() for c in CASES[command]], place):
        assert (status, heavy) == (2, []), (line, errors)
        assert "Traceback" not in errors, line
    assert sorted(place.rglob("*")) == before


def test_help_and_the_list_of_models_need_no_pytorch(place):
    cases = [["--help"], ["models"], ["models", "--json"], *([c, "--help"] for c in COMMANDS)]
    for line, status, errors, heavy in outcomes(cases, place, (*HEAVY, "h5py", "scipy")):
        assert (status, heavy) == (0, []), (line, errors)


@pytest.fixture(scope="module")
def pandas_seconds():
    """Measure the processor time of a process that only imports pandas."""
    code = "import time, numpy, pandas; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


TIMED = """
import sys, time
from probsa.cli.entry import main
main(sys.argv[1:])
print()
print(time.process_time())
"""
QUICK = ("--help", "models", CASES["train"][7], "benchmark grid.yaml")
LIKEWISE = (
    CASES["train"][0],
    f"{TRAIN} --epoch 3",
    "evaluate no_table",
    "run empty --model run --out new",
)


@pytest.mark.parametrize(
    "command", [*QUICK, *(pytest.param(line, marks=pytest.mark.nightly) for line in LIKEWISE)]
)
def test_a_refusal_takes_less_of_a_processor_than_pandas_twice(place, pandas_seconds, command):
    """Seconds differ between machines: the measure is another process."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED, *command.split()], capture_output=True, text=True, cwd=place
    )
    assert float(done.stdout.split()[-1]) < 2 * pandas_seconds + 0.5


def test_names_and_arguments_in_the_source_are_those_of_the_registry(monkeypatch):
    """What is read from the source is compared with what the imported classes say."""
    registered = {name: frozenset(arguments(name)) for name in names()}
    described = catalogue_rows()
    known = encoders()
    listed = listed_models()
    monkeypatch.delitem(sys.modules, "probsa.models._registry")
    monkeypatch.delitem(sys.modules, "probsa.features._registry")
    assert {name: known_arguments(name) for name in known_names()} == registered
    assert catalogue_rows() == described
    assert listed_models() == listed
    assert known_encoders() == known
    assert "probsa.models._registry" not in sys.modules  # the source told it all
    assert "probsa.features._registry" not in sys.modules


def test_models_lists_the_summaries_of_the_classes(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out
    for name in names():
        assert re.search(rf"^{re.escape(name)} +{re.escape(look_up(name).summary)}$", lines, re.M)
