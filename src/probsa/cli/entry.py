"""The command line.

Exit status: 0 success, 1 some of many items failed, 2 wrong usage or input, 70 an unforeseen error
(see `unforeseen`), 130 stopped by ctrl-C or SIGTERM.
"""

import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

from jsonargparse import ArgumentParser

from ..core import printable, remove_unfinished, stoppable
from ..errors import ProbSAError, UnknownName
from .commands._shared import command_parser, parse_arguments, write
from .unforeseen import STATUS, describe, show_traceback

DESCRIPTION = """\
Probabilistic attention for whole-slide images and CT scans.

The flow of the data, with the commands of each stage:

   1 slide              slides, DICOM, NIfTI     probsa info
   2 patches            tissue, coordinates      probsa patch
   3 features           one bag per slide        probsa extract, probsa convert
   4 graph, 5 bags      stored bags, labels      read by every command below
   6 model              bags to probabilities    probsa models
   7 objective, 8 training                       probsa train
   9 evaluation         predictions, metrics     probsa predict, probsa evaluate, probsa sets
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
    "verify",
    "dataset",
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
    "convert-checkpoint",
    "demo",
)
"""In the order of the flow. Each is a module of `commands` with `DESCRIPTION`, `parser` and `run`:
`convert_checkpoint.py` is `probsa convert-checkpoint`."""
SHELLS = ("bash", "zsh")
DEBUG = "--debug"


class _Messages(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


if logging.lastResort is not None:  # writes the notes of the library to standard error
    logging.lastResort.setFormatter(_Messages())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    # A process of its own is also ended by ctrl-C, and by a signal while Python shuts down.
    own = arguments is None
    signals = (signal.SIGTERM, signal.SIGINT) if own else (signal.SIGTERM,)
    stopped = ("\x1b[?25h" if sys.stderr.isatty() else "") + "probsa: stopped\n"  # with the cursor
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in arguments
    arguments = [a for a in arguments if a != DEBUG]
    try:
        with stoppable(*signals, message=stopped, restore=not own):
            return _dispatch(arguments)
    except (ProbSAError, OSError) as e:
        if debug:
            show_traceback(e)
        message = str(e)
        if isinstance(e, OSError) and not isinstance(e, ProbSAError) and e.filename:
            message = f"cannot read or write {e.filename}: {e.strerror}"
        return _fail(message, e, arguments, status=2)
    except SystemExit as e:  # --help and --version
        return int(e.code or 0)
    except KeyboardInterrupt:
        remove_unfinished()
        write("probsa: stopped", error=True)
        return 130
    except Exception as e:  # noqa: BLE001 - the last line of defence
        if debug:
            show_traceback(e)
        return _fail(describe(e, arguments), e, arguments, status=STATUS)


def _fail(message: str, error: Exception, arguments: Sequence[str], *, status: int) -> int:
    if "--json" in arguments:
        write(json.dumps({"error": message, "kind": type(error).__name__}))
    write(f"probsa: error: {message}", error=True)
    return status


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] == "help":
        write(help_parser().format_help())
        return 0
    if arguments[0].startswith("-"):
        asked = parse_arguments(help_parser(), arguments)
        if asked.print_shtab is not None:
            write(whole_parser().get_completion_script(f"shtab-{asked.print_shtab}"))
        return 0
    if arguments[0] not in COMMANDS:
        raise UnknownName("command", arguments[0], COMMANDS)
    return _module(arguments[0]).run(arguments[1:])


def help_parser() -> ArgumentParser:
    """Return a parser that knows the commands, but not their arguments."""
    return _parser_of({name: command_parser(name, _module(name).DESCRIPTION) for name in COMMANDS})


def whole_parser() -> ArgumentParser:
    """Return the parser of all commands with all their arguments, for shell completion."""
    return _parser_of({name: _module(name).parser() for name in COMMANDS})


def _parser_of(commands: Mapping[str, ArgumentParser]) -> ArgumentParser:
    from .. import __version__

    parser = command_parser("", DESCRIPTION)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--print-shtab", choices=SHELLS, metavar="SHELL",
        help="Print a completion script for a shell (bash or zsh).",
    )  # fmt: skip
    subcommands = parser.add_subcommands(
        required=False, dest="command", title="commands", metavar="COMMAND"
    )
    for name, of_command in commands.items():
        summary = (of_command.description or "").partition("\n")[0]
        subcommands.add_subcommand(name, of_command, help=summary)
    return parser


def _module(command: str) -> ModuleType:
    return import_module(f".commands.{command.replace('-', '_')}", __package__)
