"""Write the generated pages of the manual: commands from their parsers, rooms from their names.

    python .ci/pages.py            # write docs/commands and docs/reference
    python .ci/pages.py --check    # print the pages that are out of date, and exit with status 1

A command's page has a part written by hand above the line MARK; only what follows is replaced.
"""

import argparse
import ast
import sys
from argparse import _HelpAction, _StoreTrueAction
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "probsa"
MARK = "<!-- Below this line, the page is generated from the command: python .ci/pages.py -->"
ROOMS = {
    "core": "Bags, graphs, the store of bags",
    "variational": "Priors, posteriors, likelihoods, the objective",
    "tasks": "Tasks: what a bag is labelled with",
    "slides": "Slides and scans",
    "patches": "Tissue and patches",
    "features": "Encoders",
    "cohorts": "Whole cohorts: patches and features",
    "datasets": "Data sets, labels, splits",
    "layers": "Building blocks of models",
    "models": "Models",
    "training": "Training",
    "statistics": "Statistics",
    "evaluation": "Predictions and metrics",
    "maps": "Maps",
    "workflow": "Whole runs",
    "benchmark": "Experiments",
}
"""Rooms with a page of reference, each with its title, in the order of docs/architecture.md."""


def pages() -> dict[Path, str]:
    """Return the contents of every generated page by its path."""
    from probsa.cli.entry import COMMANDS

    found = {}
    for name in COMMANDS:
        path = DOCS / "commands" / f"{name}.md"
        found[path] = f"{_written_by_hand(path, name)}{MARK}\n\n{command_reference(name)}"
    for room, title in ROOMS.items():
        found[DOCS / "reference" / f"{room}.md"] = room_reference(room, title)
    return found


def _written_by_hand(path: Path, name: str) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text.partition(MARK)[0] if MARK in text else f"# probsa {name}\n\n"


def command_reference(name: str) -> str:
    """Return the reference of a command as Markdown: synopsis, description and arguments."""
    from probsa.cli.command import Command

    parser = Command(name).parser(keys={})
    parts = ["## Reference", f"```text\n{_synopsis(parser)}\n```", _text(parser.description or "")]
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if not isinstance(a, _HelpAction) and _shown(a)]
        if not actions:
            continue
        title = {"positional arguments": "Arguments"}.get(group.title, group.title.capitalize())
        rows = "\n".join(f"| {_names(a)} | {_meaning(a)} |" for a in actions)
        parts.append(f"### {title}\n\n| argument | meaning |\n|---|---|\n{rows}")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not any(
        s.startswith("--print_") for s in action.option_strings
    )


def _synopsis(parser: argparse.ArgumentParser) -> str:
    if parser.usage is not None:
        return "\n".join(line.strip() for line in parser.usage.splitlines())
    actions = [a for group in parser._action_groups for a in group._group_actions if _shown(a)]
    words = [parser.prog]
    for action in actions:
        if not action.option_strings:
            words.append(f"[{_value(action)}]" if action.nargs in ("?", "*") else _value(action))
    words += [
        f"{a.option_strings[0]} {_value(a)}" for a in actions if a.option_strings and a.required
    ]
    return " ".join([*words, "[OPTIONS]"])


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None and action.option_strings:
        return "|".join(str(c) for c in action.choices)
    return action.dest.replace("_", "-").upper()


def _names(action: argparse.Action) -> str:
    takes_value = not isinstance(action, _StoreTrueAction) and action.nargs != 0
    if not action.option_strings:
        return f"`{_value(action)}`"
    value = f" {_value(action)}" if takes_value else ""
    return ", ".join(f"`{s}{value}`" for s in action.option_strings).replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    return _escape(" ".join((action.help or "").replace("%%", "%").split()))


def _text(description: str) -> str:
    """Return a description as Markdown: what is indented stays as it is."""
    lines = description.replace("%%", "%").splitlines()
    return "\n".join(f"  {line}" if line.startswith("  ") else _escape(line) for line in lines)


def _escape(text: str) -> str:
    parts = text.split("`")  # what stands in backticks stays as it is
    for k in range(0, len(parts), 2):
        for sign in "*|[]":
            parts[k] = parts[k].replace(sign, f"\\{sign}")
        parts[k] = parts[k].replace("<", "&lt;").replace(">", "&gt;")
    return "`".join(parts)


def room_reference(room: str, title: str) -> str:
    """Return the page of a room: the functions and classes that it offers, from docstrings."""
    names = _offered(SOURCE / room / "__init__.pyi")
    lines = [
        f"# {title}",
        f"What other code may import from `probsa.{room}`. This page is generated from the "
        "docstrings (`python .ci/pages.py`).",
        *(f"::: probsa.{room}.{module}.{name}" for module, name in names),
    ]
    return "\n\n".join(lines) + "\n"


def _offered(stub: Path) -> list[tuple[str, str]]:
    """Return (module, name) of the functions and classes that a room's stub lists."""
    found = []
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        defined = _definitions(stub.parent / f"{node.module.replace('.', '/')}.py")
        found += [(node.module, a.name) for a in node.names if a.name in defined]
    return found


def _definitions(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else []
    return {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def main() -> int:
    """Write or check the pages."""
    stale = []
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    sys.stdout.writelines(f"{path}\n" for path in stale)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
