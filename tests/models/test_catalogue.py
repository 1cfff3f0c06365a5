"""The list of models and its page follow from the registry, and the page is up to date."""

import json
from pathlib import Path

import pytest

from probsa.cli.entry import main
from probsa.models import _catalogue, look_up, names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_page_is_what_the_registry_says():
    """If this fails, run `probsa models --markdown > docs/models.md`."""
    assert PAGE.read_text(encoding="utf-8") == _catalogue.catalogue_page()


def test_every_name_is_listed_once():
    entries = list(_catalogue.catalogue())
    listed = [name for entry in entries for name in entry.names]
    assert sorted(listed) == names()
    assert len({look_up(e.names[0]).model for e in entries}) == len(entries)


def test_the_command_lists_paper_licence_and_needs(capsys):
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted(rows) == names()
    for row in rows.values():
        assert all(row[k] for k in ("summary", "paper", "licence", "needs", "score"))
    assert rows["abmil-probsa-diag"]["needs"] == "a graph"
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "arXiv:1802.04712" in shown and "licence: MIT" in shown and "needs: a graph" in shown


def test_the_command_writes_the_page(capsys):
    assert main(["models", "--markdown"]) == 0
    assert capsys.readouterr().out == _catalogue.catalogue_page()


@pytest.mark.parametrize("name", ["abmil", "tabmil"])
def test_an_entry_tells_where_it_follows_what(name):
    section = _catalogue.catalogue_page().partition(f"`{name}`")[2].partition("\n## ")[0]
    for heading in ("Paper", "Code", "Needs", "As in its paper", "As in its code", "Changed by"):
        assert f"**{heading}" in section
