"""The tutorials run: every executed block of a page, in order, as the site's builders run them.

They train models, which takes a minute of a core, so most wait for `PROBSA_TEST_TUTORIALS=1`;
`.ci/docs` executes all of them, because a block that fails stops its strict builds.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from probsa.cli import main
from probsa.features import _registry as encoder_registry
from probsa.models import _registry as model_registry

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FENCE = re.compile(r"^```(\w+) ([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STORED = re.compile(r"\n+```{\.text \.in-file}\n(.*?)^```", re.MULTILINE | re.DOTALL)
ALWAYS = {"extending"}
MORE = {"patch": ["--workers", "1"], "train": ["--device", "cpu", "--tensorboard", "false"]}


def blocks(page):
    """The (language, folder, code, stored output) of the executed blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        language, options, code = found.groups()
        if 'exec="on"' in options:
            folder = re.search(r'workdir="([^"]+)"', options)
            stored = STORED.match(text, found.end())
            yield language, folder and folder.group(1), code, stored.group(1) if stored else ""


def without_numbers(text):
    """Remove numbers and white space, which vary with the machine."""
    return re.sub(r"[−+-]?\d[\d.]*(e-\d+)?|\s", "", text)


def run_commands(code):
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r" \| (head|tail|grep) .*", "", line), comments=True)
        assert words[0] == "probsa" and main([*words[1:], *MORE.get(words[1], [])]) == 0, line


@pytest.fixture
def as_before(monkeypatch):
    """What a tutorial registers and imports is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    model_registry.names(), encoder_registry.names()
    registries = (model_registry._registrations, encoder_registry._registered)
    known = [dict(registry) for registry in registries]
    yield
    for registry, before in zip(registries, known, strict=True):
        registry.clear()
        registry.update(before)
    for name in [n for n in sys.modules if n.partition(".")[0] == "mypackage"]:
        del sys.modules[name]
    model_registry._discover.cache_clear()
    encoder_registry._discover.cache_clear()


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_block_runs(page, tmp_path, monkeypatch, capsys):
    if page.stem not in ALWAYS and not os.environ.get("PROBSA_TEST_TUTORIALS"):
        pytest.skip("it trains for some seconds: set PROBSA_TEST_TUTORIALS=1, or run .ci/docs")
    shown = []
    names = {}
    names["print"] = lambda *texts, **_: shown.append(" ".join(map(str, texts)))
    found = list(blocks(page))
    assert len(found) > 4
    for language, folder, code, stored in found:
        printed = len(shown)
        monkeypatch.chdir(tmp_path)
        if folder:
            os.chdir(tmp_path / folder)
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
        else:
            assert language == "bash", language
            run_commands(code)
        output = without_numbers(" ".join(shown[printed:]) + capsys.readouterr().out)
        for line in stored.splitlines():
            assert without_numbers(line.strip("…")) in output, (page.name, line)
    pictures = [text for text in shown if "](data:image" in text]
    assert all(len(re.match(r"!\[([^]]*)\]", p).group(1)) > 20 for p in pictures)
    wanted = {"extending": 0}
    assert len(pictures) >= wanted.get(page.stem, 1)


def test_a_page_shows_no_picture_that_its_code_does_not_make():
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        assert "![" not in text and "<img" not in text, page


def test_there_are_the_five_pages():
    assert {p.stem for p in PAGES} == {"slides", "ct", "maps", "comparing", "extending"}
    assert Path(ROOT / "mkdocs.yml").read_text().count("tutorials/") == 5
