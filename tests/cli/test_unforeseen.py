"""No command shows a traceback without --debug: an unforeseen error is one line and status 70."""

import json
import signal

import pytest
from support import forks

from probsa.cli import main, unforeseen
from probsa.cli.commands import models


def broken(error):
    def run(*, markdown: bool = False):
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [RuntimeError("two\nlines"), KeyError("k"), MemoryError(), RecursionError(), TypeError()],
)
def test_an_unforeseen_error_is_one_line(monkeypatch, capsys, error):
    monkeypatch.setattr(models, "run", broken(error))
    before = len(unforeseen.uses())
    assert main(["models"]) == unforeseen.STATUS == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "`probsa models`" in line and "--debug" in line
    assert unforeseen.uses()[before:] == [line.removeprefix("probsa: error: ")]
    assert main(["models", "--json"]) == 70
    assert json.loads(capsys.readouterr().out)["kind"] == type(error).__name__


def test_debug_shows_the_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(models, "run", broken(RuntimeError("deep inside")))
    assert main(["models", "--debug"]) == 70
    printed = capsys.readouterr().err
    assert "Traceback" in printed and "deep inside" in printed
    assert main(["--debug", "evaluate", str(tmp_path / "none")]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "none")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_innermost_path_of_the_package_is_named(tmp_path, monkeypatch):
    from probsa.core import TextTable, tables

    def fails(*texts):
        raise ZeroDivisionError("odd")

    (tmp_path / "t.csv").write_text("a\n1\n")
    monkeypatch.setattr(tables, "_parse", fails)
    with pytest.raises(ZeroDivisionError) as caught:
        TextTable.read(tmp_path / "t.csv")
    line = unforeseen.describe(caught.value, ["--json", "evaluate", "x"])
    for fact in ("`probsa evaluate`", str(tmp_path / "t.csv"), "ZeroDivisionError", "tables.read"):
        assert fact in line


PROGRAM = """
import os, signal, sys
from pathlib import Path
from probsa.cli import main
from probsa.cli.commands import models
from probsa.core import replacing

def run():
    with replacing(Path({target!r})) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.{signal})

models.run = run
sys.exit(main(["models"]))
"""


@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_leaves_nothing_and_has_the_status_of_shells(tmp_path, number, status):
    program = PROGRAM.format(target=str(tmp_path / "x.json"), signal=number)
    done = forks.run(program)
    assert done.returncode == status
    assert done.errors().count("\n") == 1
    assert list(tmp_path.iterdir()) == []


ORDERLY = """
import os, signal, sys
from probsa.cli import main
from probsa.cli.commands import models
from probsa.core import orderly_stop

def run():
    with orderly_stop():
        os.kill(os.getpid(), signal.{signal})

models.run = run
sys.exit(main(["models"]))
"""
LOADING = """
import os, signal, sys
import probsa.__main__

class Hook:
    def find_spec(self, name, *_):
        if name == "probsa.cli":
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Hook())
for name in [n for n in sys.modules if n.startswith("probsa.cli")]:
    del sys.modules[name]
sys.exit(probsa.__main__.main())
"""


@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize("program", [ORDERLY, LOADING])
def test_the_status_of_a_signal_is_that_everywhere(program, number, status):
    """Also in work that cleans up by itself, and while modules load."""
    assert forks.run(program.format(signal=number)).returncode == status


def test_the_handler_of_sigterm_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
