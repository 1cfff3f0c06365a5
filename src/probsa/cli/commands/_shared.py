"""What the commands share: the parser, and how results are said."""

import argparse
import json
import sys
from typing import Any, NoReturn

from ...errors import InputError, hint


class Parser(argparse.ArgumentParser):
    """argparse that raises, suggests, and takes no abbreviation."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        lead = "unrecognized arguments: "
        if message.startswith(lead):
            given = message.removeprefix(lead).split()[0].partition("=")[0]
            known = [o for a in self._actions for o in a.option_strings]
            message = f"{self.prog} has no argument {given!r}.{hint(given, known)}"
        raise InputError(message)


def write(text: str) -> None:
    """One text on standard output."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def write_json(value: Any) -> None:
    """One JSON document on standard output."""
    write(json.dumps(value, indent=2, default=str, allow_nan=False))


def status(failures: list[tuple[str, str]], *, as_json: bool) -> int:
    """Exit status of a command over many bags; what was left out is said on standard error."""
    if failures and not as_json:
        for bag, reason in failures:
            sys.stderr.write(f"probsa: left out {bag}: {reason}\n")
    return 1 if failures else 0
