"""How a command's signature and docstring become flags, help, checks and JSON."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest

from probsa.cli import command
from probsa.cli.command import Answer, Command, Flag
from probsa.cli.terminal import summary_of_epoch
from probsa.core import PositiveInt
from probsa.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some flags.

    A group:
        level: How many
            of them.
    """

    level: Annotated[PositiveInt, Flag("N")] = 3
    undescribed: Annotated[bool, Flag(help="Shared help.", needs="--bag NAME")] = False


@pytest.fixture
def made(monkeypatch):
    """The command `made`, and the values that it was called with."""
    calls = []

    def run(
        files: list[Path],
        *,
        from_: Literal["a", "b"] = "a",
        bag: Annotated[list[str], Flag("NAME", repeated=True)] | None = None,
        classes: list[str] | None = None,
        kind: Annotated[Literal["x", "y"], Flag(alone="x")] | None = None,
        group: Group,
        json: bool = False,
    ) -> Answer:
        """Do it.

        More words, 100 % of them:
          not a section

        Args:
            files: Files.
            from_: Where from.
            bag: Bags.
            classes: Classes.
            kind: Kind.
        """
        calls.append({k: v for k, v in locals().items() if k != "calls"})
        return Answer({"n": len(files)}, "text\x1b", [("b", "torn")] if kind else ())

    module = ModuleType("made")
    module.run = run
    monkeypatch.setitem(sys.modules, "probsa.cli.commands.made", module)
    return Command("made"), calls


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["f", "g"], {"files": [Path("f"), Path("g")], "from_": "a", "group": Group()}),
        (["f", "--from", "b", "--bag", "1", "--bag", "2"], {"from_": "b", "bag": ["1", "2"]}),
        (
            ["f", "--classes", "a", "b", "--level=4"],
            {"classes": ["a", "b"], "group": Group(level=4)},
        ),
        (["f,g", "--classes", "a,b"], {"files": [Path("f,g")], "classes": ["a", "b"]}),
        (["f", "--bag", "1", "--undescribed"], {"group": Group(undescribed=True)}),
        (["f", "--kind"], {"kind": "x"}),
        (["f", "--kind", "y", "--json"], {"kind": "y", "json": True}),
    ],
)
def test_values_have_the_types_of_the_signature(made, arguments, values):
    built, calls = made
    assert built.run(arguments) == (1 if "kind" in values else 0)
    assert {name: calls[0][name] for name in values} == values


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["FILES"]),
        (["f", "--from", "c"], ["--from", "'c'", "'a'", "'b'"]),
        (["f", "--level", "0"], ["--level", "0", "1"]),
        (["f", "--level", "inf"], ["--level", "'inf'"]),
        (["f", "--level"], ["--level"]),
        (["f", "--undescribed=1"], ["--undescribed"]),
        (["f", "--undescribed"], ["--undescribed", "--bag NAME"]),
        (["f", "--lvel", "1"], ["'--lvel'", "'--level'"]),
        (["f", "--max-bag-gb", "1"], ["'--max-bag-gb'"]),
    ],
)
def test_wrong_values_are_named_with_what_is_expected(made, arguments, names):
    built, calls = made
    with pytest.raises(InputError) as caught:
        built.run(arguments)
    assert all(name in str(caught.value) for name in names) and calls == []


def test_help_is_the_docstring(made):
    text = made[0].parser().format_help()
    assert "Do it.\n\nMore words, 100 % of them:\n  not a section\n" in text
    first, title, group = text.partition("a group:\n")
    assert "Where from. Default: a." in first and title
    words = "--level N How many of them. Default: 3. --undescribed Shared help."
    assert " ".join(group.split()) == words


def test_an_answer_is_text_or_json_and_names_what_failed(made, capsys):
    built, _ = made
    assert built.run(["f", "--kind"]) == 1
    out, err = capsys.readouterr()
    assert out == "text\\x1b\n" and "b: torn" in err
    assert built.run(["f", "--kind", "--json"]) == 1
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"n": 1}, "")


def test_the_largest_bag_is_limited_in_commands_that_read_bags(made, monkeypatch):
    from probsa.core import max_bag_gb

    monkeypatch.setattr(command, "LIMITED", {"made"})
    limited = Command("made")
    seen = []
    limited.module.run = lambda files, **given: seen.append(max_bag_gb())
    assert limited.run(["f", "--max-bag-gb", "2.5"]) == 0 and seen == [2.5]


def test_a_reason_that_all_bags_share_is_one_line(capsys):
    failures = [*((f"b{k}", "no reader") for k in range(5)), ("c", "torn")]
    assert Answer(None, "", failures).write(as_json=False) == 1
    shared, torn = capsys.readouterr().err.splitlines()
    assert "b0" in shared and "b4" not in shared and shared.endswith("no reader")
    assert torn.endswith("c: torn")


def test_the_line_of_an_epoch_has_no_symbol_of_the_paper():
    row = {"epoch": 3, "nll": 0.5, "kl": 2.0, "kl_weight": 0.1, "kappa": 4.0, "val_auroc": None}
    line = summary_of_epoch(row)
    assert "0.500" in line and "kl" not in line and "kappa" not in line
