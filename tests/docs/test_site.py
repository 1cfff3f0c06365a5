"""The documentation site: built without a warning, no dead link, nothing left out."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from support.paths import ROOT

import probsa
from probsa.cli.command import Command
from probsa.cli.entry import COMMANDS

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
EXTERNAL = re.compile(r"(?:src|href)=\"?https?://[^\"\s>]+", re.IGNORECASE)


class _Page(HTMLParser):
    """The links and anchors of a page, and what its browser would load."""

    def __init__(self):
        super().__init__()
        self.links = []
        self.anchors = set()
        self.loaded = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[k] for k in ("id", "name") if given.get(k)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly. `.ci/docs` also executes tutorials and pages of commands."""
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "src").symlink_to(ROOT / "src")
    for page in (folder / "docs").glob("[ct]*s/*.md"):  # commands and tutorials
        page.write_text(page.read_text("utf-8").replace('exec="on" ', ""), encoding="utf-8")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "griffe:" not in built.stdout + built.stderr, "a docstring, which stops MkDocs"
    parsed = {}
    for path in (folder / "site").rglob("*.html"):
        parsed[path] = _Page()
        parsed[path].feed(path.read_text(encoding="utf-8"))
    return folder / "site", parsed


def test_every_link_leads_to_a_page_and_an_anchor(site):
    _, pages = site
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = {"", "__skip"} | (pages[target].anchors if target in pages else set())
            if not target.exists() or unquote(parts.fragment) not in anchors:
                dead.append((path.name, link))
    assert not dead and len(pages) > 50, dead


def test_nothing_is_loaded_from_the_network(site):
    loaded = {src for page in site[1].values() for src in page.loaded}
    assert loaded and not [src for src in loaded if src.startswith(("http:", "https:", "//"))]
    for sheet in site[0].rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8"), sheet


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = set(re.findall(r"[\w/.-]+\.md$", text.partition("nav:")[2], re.MULTILINE))
    assert nav == {page.relative_to(DOCS).as_posix() for page in PAGES}


def test_every_public_name_has_an_entry():
    entries = set(re.findall(r"^::: (\S+)", (DOCS / "reference" / "index.md").read_text(), re.M))
    assert {f"probsa.{name}" for name in probsa.__all__ if name != "models"} <= entries


def test_the_reference_shows_signature_arguments_and_errors(site):
    text = (site[0] / "reference" / "index.html").read_text(encoding="utf-8")
    section = text.partition('id="probsa.predict_folder"')[2].partition("<h2")[0]
    for shown in ("other_features", "Parameters", "Raises", "OutputExists"):
        assert shown in section, shown


def test_every_command_has_a_page_with_its_help():
    pages = {page.stem: page.read_text("utf-8") for page in (DOCS / "commands").glob("*.md")}
    assert set(pages) == {*COMMANDS, "index"}
    for name in COMMANDS:
        own, _, command = pages[name].partition('```bash exec="on" ')
        assert len(own.split()) > 30 and f"probsa {name}" in own, name
        whole = "--help-all" if name == "train" else "--help"
        assert command == f'source="above" result="text"\nprobsa {name} {whole}\n```\n', name


def shown_commands():
    """The command lines in the blocks of all pages, without those with dots in place of words."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```(?:bash|console|sh)[^\n]*\n(.*?)^ *```", text, re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                line = re.sub(r" (\||2?>|&&).*", "", line.strip().removeprefix("$ "))
                if line.startswith("probsa ") and "…" not in line:
                    yield page, line


def test_every_command_line_parses():
    lines = list(shown_commands())
    assert len(lines) > 60
    for page, line in lines:
        line = line.replace("probsa dataset NAME", "probsa dataset table")
        command, *arguments = shlex.split(line, comments=True)[1:]
        if command in ("help", "--help", "--version", "--print-shtab") or arguments in (
            ["--help"],
            ["--help-all"],
        ):
            continue
        assert command in COMMANDS, (page.name, line)
        Command(command).parse(arguments)


def test_the_configuration_is_what_both_builders_read():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    assert config["theme"]["font"] is False and not config["use_directory_urls"]
    plugins = {p if isinstance(p, str) else next(iter(p)) for p in config["plugins"]}
    assert plugins == {"search", "markdown-exec", "mkdocstrings"}
