"""The last line of defence: an exception that nobody foresaw becomes one line, without a traceback.

It is no excuse for missing checks: `uses()` counts, so that a test can require that there are none.
"""

import traceback
from collections.abc import Sequence
from pathlib import Path

from .command import write

STATUS = 70
"""Exit status of an unforeseen error (EX_SOFTWARE of sysexits.h)."""
LONGEST = 400
"""Largest number of characters of the exception's own words."""

_uses: list[str] = []


def uses() -> list[str]:
    """Return the lines of all unforeseen errors of this process, in order."""
    return list(_uses)


def describe(error: BaseException, arguments: Sequence[str]) -> str:
    """Return what was being done, with which file, what happened where, and how to report it.

    Args:
        error: the exception.
        arguments: those of the command line.
    """
    command = next((a for a in arguments if not a.startswith("-")), "")
    words = " ".join(str(error).split())[:LONGEST]
    event = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if isinstance(error, MemoryError):
        event = f"there is not enough memory ({words})" if words else "there is not enough memory"
    package = str(Path(__file__).parents[1])
    place = file = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        values = frame.f_locals
        if not code.co_filename.startswith(package):
            continue
        place = f" ({Path(code.co_filename).stem}.{code.co_name}, line {number})"
        # the path that the innermost function with one was called with, or has
        names = (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *values)
        paths = [values[name] for name in names if isinstance(values.get(name), Path)]
        if paths:
            file = f" while using {paths[0]}"
    fault = (
        "This is a fault of probsa: please report it, with the output of the same command with "
        "--debug"
    )
    if _is_of_the_installation(error):
        fault = (
            "The installation is broken: an installed package cannot be imported. Install probsa "
            "and its extras again; `probsa doctor` names what is broken, and --debug shows where"
        )
    line = (
        f"unforeseen error in `probsa {command}`{file}: {event}{place}. Nothing half-written is "
        f"left. {fault}"
    )
    _uses.append(line)
    return line


def _is_of_the_installation(error: BaseException) -> bool:
    """Return whether another package than this one cannot be imported."""
    ours = __name__.partition(".")[0]
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] != ours


def show_traceback(error: BaseException) -> None:
    """Print the traceback to stderr, for `--debug`."""
    write("".join(traceback.format_exception(error)), error=True)
