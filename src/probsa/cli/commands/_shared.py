"""What all commands share: their parser, its errors in plain words, and how results are written."""

import json
import math
import re
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from ...core import MAX_BAG_GB, printable
from ...errors import InputError, hint

TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def command_parser(name: str, description: str) -> ArgumentParser:
    """Return a parser for a command, to which the command adds its arguments.

    Args:
        name: the name of the command.
        description: what the command does; `probsa --help` shows its first line.
    """
    return ArgumentParser(
        prog=f"probsa {name}".rstrip(),
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
        default_env=False,
    )


def add_json_flag(parser: ArgumentParser) -> None:
    """Add `--json`, which every command has."""
    words = "Print the result as one JSON document on standard output."
    parser.add_argument("--json", action="store_true", help=words)


def add_limit_flag(parser: ArgumentParser) -> None:
    """Add `--max-bag-gb`, for commands that read bags or scans without being training."""
    parser.add_argument(
        "--max-bag-gb", type=float, metavar="GB",
        help="Gigabytes that one bag or scan may take in memory. Files that state more are refused "
        f"before they are read. Default: {MAX_BAG_GB:g}, or for a run its own setting.",
    )  # fmt: skip


def stated_limit(args: Namespace) -> AbstractContextManager[None]:
    """Return the context in which files are read with the given `--max-bag-gb`.

    Raises:
        InputError: it is not a positive number.
    """
    from ...core import bag_limit

    if args.max_bag_gb is not None and not 0 < args.max_bag_gb < math.inf:
        raise InputError(f"--max-bag-gb is {args.max_bag_gb:g}; expected a number above 0")
    return bag_limit(args.max_bag_gb)


def parse_arguments(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Parse the arguments of a command.

    Raises:
        InputError: an argument is unknown, missing or wrong; says what is expected.
    """
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as e:
        raise InputError(_explain(parser, str(e))) from e


def _explain(parser: ArgumentParser, message: str) -> str:
    text = " ".join(message.split())
    if match := re.match(r"unrecognized arguments: (\S+)", text):
        argument = match.group(1).partition("=")[0]
        if not argument.startswith("-"):
            return f"{parser.prog} got an unexpected value {argument!r}: expected --FLAG VALUE"
        flags = re.findall(r"--[\w.-]+", parser.format_usage())
        return f"{parser.prog} has no argument {argument!r}.{hint(argument, flags)}"
    if match := re.match(r"argument ([\w.-]+): expected (?:one|at least one) argument", text):
        return f"{match.group(1)} needs a value"
    if match := re.match(r"argument ([\w.-]+): ignored explicit argument", text):
        return f"{match.group(1)} takes no value"
    if match := re.match(r"argument ([\w.-]+): invalid choice: (.+) \(choose from (.+)\)", text):
        flag, value, choices = match.groups()
        choices = [choice.strip("'") for choice in choices.split(", ")]
        expected = " or ".join(part for part in (", ".join(choices[:-1]), choices[-1]) if part)
        guess = hint(value.strip("'"), choices)
        return f"{flag} is {value}; expected {expected}{guess and '.' + guess}"
    if match := re.match(r'Parser key "([\w.]+)": Expected a <class \'(\w+)\'>.*value: (.*)', text):
        key, kind, value = match.groups()
        flag = f"--{key.replace('_', '-')}"
        return f"{flag} is {value!r}; expected {TYPES.get(kind, kind)}"
    if match := re.match(r"the following arguments are required: (.+)", text):
        usage = parser.format_usage()
        keys = [key.replace("_", "-") for key in match.group(1).split(", ")]
        missing = [f"--{k}" if re.search(rf"--{k}\s", usage) else k.upper() for k in keys]
        return f"{parser.prog} needs {' and '.join(missing)}. See {parser.prog} --help"
    return text


def write(text: str, *, error: bool = False) -> None:
    """Write text to standard output, or to standard error, without anything a terminal obeys."""
    stream = sys.stderr if error else sys.stdout
    stream.write(printable(text.rstrip("\n")) + "\n")


def write_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    write(json.dumps(value, indent=2, default=str, allow_nan=False))


def exit_status(failures: list[tuple[str, str]], *, as_json: bool) -> int:
    """Return the exit status of a command over many bags: 1 if any (bag, reason) failed.

    The failures are written to standard error, unless the JSON document has them.
    """
    if failures and not as_json:
        for bag, reason in failures:
            write(f"probsa: left out {bag}: {reason}", error=True)
    return 1 if failures else 0
