"""The list of models and its page follow from the registry, and the page is up to date."""

import json
from pathlib import Path

from probsa.cli import main
from probsa.models import catalogue_page, look_up, names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_page_is_what_the_registry_says(capsys):
    """If this fails, run `probsa models --markdown > docs/models.md`."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == catalogue_page()
    assert main(["models", "--markdown"]) == 0
    assert capsys.readouterr().out == page
    sections = page.split("\n## ")[1:]
    assert len(sections) == len({look_up(name).model for name in names()})
    titles = [title.strip("`") for s in sections for title in s.partition("\n")[0].split(", ")]
    assert sorted(titles) == names()
    for section in sections:
        for heading in ("Paper", "Code", "Comparison", "Needs"):
            assert f"**{heading}**: " in section


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
