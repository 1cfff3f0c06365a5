"""The command line.

Exit status: 0 success, 1 some of many items failed, 2 wrong usage or input, 70 an unforeseen error
(see `unforeseen`), 130 stopped by ctrl-C, 143 stopped by SIGTERM.
"""

import json
import logging
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from ..core import printable, remove_unfinished, status_of, stoppable
from ..errors import ProbSAError, UnknownName
from .command import Command, CommandParser, Flag, Parameter, message_of, write
from .unforeseen import STATUS, describe, show_traceback

DESCRIPTION = """\
Probabilistic attention for whole-slide images and CT scans.

The flow of the data, with the commands of each stage:

   1 slide              slides, DICOM, NIfTI     probsa info
   2 patches            tissue, coordinates      probsa patch
   3 features           one bag per slide        probsa extract, probsa convert
   4 graph, 5 bags      stored bags, labels      probsa folds, all commands below
   6 model              bags to probabilities    probsa models
   7 objective, 8 training                       probsa train
   9 evaluation         predictions, metrics     probsa predict, evaluate, sets
  10 maps               mean and variance        probsa map, probsa view
     many runs          tables and figures       probsa benchmark
     2 to 10 in one go  with a trained run       probsa run

`probsa COMMAND --help` describes a command. Every command has --json, and --debug, which shows the
traceback of an error."""

COMMANDS = (
    "info",
    "run",
    "patch",
    "extract",
    "convert",
    "dataset",
    "folds",
    "train",
    "predict",
    "evaluate",
    "sets",
    "map",
    "view",
    "benchmark",
    "models",
    "encoders",
    "doctor",
    "demo",
)
"""In the order of the flow. Each is the function `run` of a module of `commands`."""
DEBUG = "--debug"
SHOW_CURSOR = "\x1b[?25h"
SHELL = Parameter(
    name="print_shtab",
    annotation=Annotated[Literal["bash", "zsh"], Flag("SHELL")],
    default=None,
    help="Print a completion script for a shell (bash or zsh).",
)


CONTINUED = ("run", "patch", "extract", "benchmark")
"""Commands that keep finished work when they are given again."""


def advice_after_stop(arguments: Sequence[str]) -> str:
    """Return how the work of a command goes on after it was stopped."""
    command = next((a for a in arguments if not a.startswith("-")), "")
    if command == "train":
        out = "RUN"
        for k, word in enumerate(arguments):
            if word.startswith("--out="):
                out = word.removeprefix("--out=")
            elif word == "--out":
                out = next(iter(arguments[k + 1 :]), out)
        return (
            f"Go on after the last finished epoch with: probsa train --out {shlex.quote(out)} "
            "--resume"
        )
    if command in CONTINUED:
        return "The same command goes on where it was stopped: finished work is kept"
    return "Nothing half-written is left: the same command starts again"


class _Messages(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


if logging.lastResort is not None:  # writes the notes of the library to standard error
    logging.lastResort.setFormatter(_Messages())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    # A process of its own is also ended by ctrl-C, and by a signal while Python shuts down.
    is_process = arguments is None
    signals = (signal.SIGTERM, signal.SIGINT) if is_process else (signal.SIGTERM,)
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    arguments = [a for a in command_line if a != DEBUG]
    how_to_go_on = printable(f"probsa: stopped. {advice_after_stop(arguments)}")
    message_after_stop = f"{how_to_go_on}\n"
    if sys.stderr.isatty():  # a bar hides the cursor
        message_after_stop = f"{SHOW_CURSOR}{message_after_stop}"
    try:
        with stoppable(
            *signals, message=message_after_stop, restore=not is_process, watched=is_process
        ):
            return _dispatch(arguments)
    except SystemExit as e:  # --help and --version
        return int(e.code or 0)
    except KeyboardInterrupt as e:
        remove_unfinished()
        write(how_to_go_on, error=True)
        return status_of(e)
    except Exception as e:  # noqa: BLE001 - the last line of defence
        expected = isinstance(e, ProbSAError | OSError)
        message = message_of(e) if expected else describe(e, arguments)
        if DEBUG in command_line:
            show_traceback(e)
        if "--json" in arguments:
            write(json.dumps({"error": message, "kind": type(e).__name__}))
        write(f"probsa: error: {message}", error=True)
        return 2 if expected else STATUS


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] == "help":
        arguments = ["--help"]
    if arguments[0].startswith("-"):
        shell = SHELL.read(_parser(whole=False).parse_args(arguments).print_shtab)
        if shell is not None:
            import shtab

            write(shtab.complete(_parser(whole=True), shell=shell))
        return 0
    if arguments[0] not in COMMANDS:
        raise UnknownName("command", arguments[0], COMMANDS)
    return Command(arguments[0]).run(arguments[1:])


def _parser(*, whole: bool) -> CommandParser:
    """Return a parser that knows the commands; if `whole`, with all their arguments."""
    from .. import __version__

    parser = CommandParser(prog="probsa", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=__version__)
    SHELL.add(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        summary = Command(name).description.partition("\n")[0]
        added = commands.add_parser(name, help=summary, description=summary)
        if whole:
            Command(name).add_to(added, keys={})
    return parser
