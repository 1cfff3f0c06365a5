"""A plug-in that fails to import is named, and every command goes on without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import probsa

SOURCE = str(Path(probsa.__file__).parents[1])
GOOD = """
from probsa.models import register
from probsa.models.attention_mil import ABMIL

register("mine")(type("Mine", (ABMIL,), {"__module__": __name__}))
"""


@pytest.fixture
def site(tmp_path):
    """A folder of installed packages: one plug-in that works and several that do not."""
    contents = {
        "good": GOOD,
        "syntax": "def (",
        "missing": "import no_such_module",
        "leaves": "import sys\nsys.exit(3)",
        "raises": "raise RuntimeError('first line\\nsecond line')",
    }
    for name, text in contents.items():
        (tmp_path / f"plugin_{name}.py").write_text(text)
        info = tmp_path / f"plugin_{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1\n")
        groups = [("probsa.models", "")] + [("probsa.encoders", "-encoder")] * (name != "good")
        lines = [f"[{group}]\n{name}{end} = plugin_{name}\n" for group, end in groups]
        (info / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def command(site, *arguments):
    path = os.pathsep.join([SOURCE, str(site)])
    return subprocess.run(
        [sys.executable, "-m", "probsa", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_commands_go_on_without_broken_plugins_and_name_them(site):
    done = command(site, "models")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "mine" in done.stdout and "abmil" in done.stdout
    for name in ("syntax", "missing", "leaves", "raises"):
        line = next(line for line in done.stderr.splitlines() if f"plug-in '{name}'" in line)
        assert f"of the package plugin-{name}" in line
    assert "second line" not in done.stderr
    done = command(site, "doctor", "--json")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for name in ("syntax-encoder", "missing-encoder", "syntax", "raises"):
        assert f'"name": "{name}", "status": "broken"' in " ".join(done.stdout.split())
