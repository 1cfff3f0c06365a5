"""The last line of defence: an exception that nobody foresaw becomes one line, without a traceback.

It is no excuse for missing checks: `uses()` counts, so that a test can require that there are none.
"""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ..core import printable

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
    file, place = _file(error.__traceback__), _place(error.__traceback__)
    words = " ".join(str(error).split())[:LONGEST]
    what = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if isinstance(error, MemoryError):
        what = "there is not enough memory" + (f" ({words})" if words else "")
    line = (
        f"unforeseen error in `probsa {command}`"
        f"{f' while using {file}' if file else ''}: {what}{f' ({place})' if place else ''}. "
        "Nothing half-written is left. This is a fault of probsa: please report it, with the "
        "output of the same command with --debug"
    )
    _uses.append(line)
    return line


def show_traceback(error: BaseException) -> None:
    """Print the traceback to stderr, for `--debug`."""
    sys.stderr.write(printable("".join(traceback.format_exception(error))))


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    """Return the frames of this package, innermost first."""
    package = str(Path(__file__).parents[1])
    found = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(package):
            found.append(trace)
        trace = trace.tb_next
    return found[::-1]


def _file(trace: TracebackType | None) -> str:
    """Return the path that the innermost function with one was called with, or has."""
    for level in _frames(trace):
        code, values = level.tb_frame.f_code, level.tb_frame.f_locals
        for name in (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *values):
            if isinstance(values.get(name), Path):
                return str(values[name])
    return ""


def _place(trace: TracebackType | None) -> str:
    frames = _frames(trace)
    if not frames:
        return ""
    code = frames[0].tb_frame.f_code
    return f"{Path(code.co_filename).stem}.{code.co_name}, line {frames[0].tb_lineno}"
