"""Tell faults of the program and of its installation from damage of a user's file.

Decoders raise errors of any kind on damaged data, and a reader turns these into "this file cannot
be read". A package that cannot be imported, a function that an installed version lacks, and a wrong
key or type in our own code are not the file's: they are raised as they are.
"""

import sysconfig
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from ..errors import ProbSAError

PACKAGE = Path(__file__).parents[1]
INSTALLED = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
"""Folders of Python's own modules and of installed packages."""
PACKAGES = {"site-packages", "dist-packages"}
"""Names of folders of installed packages, wherever they are."""
OF_THE_PROGRAM = (AttributeError, KeyError, TypeError, NameError, AssertionError)
"""Errors that a decoder may raise on damaged data, and a mistake in a program as well."""
MISMATCH = "unexpected keyword argument"
"""Python's words for a call that the installed version of a function does not accept."""


def is_fault(error: BaseException) -> bool:
    """Return whether an error is of this program or of what is installed, not of a file.

    Errors of wrong keys, types and names count where a line of this package raised them: those from
    within a decoder say that it did not expect the data. A line of neither, such as a plug-in's,
    is judged by the line that called it. Errors that probsa raises on purpose never count.
    """
    if isinstance(error, ProbSAError):
        return False
    if isinstance(error, ImportError):
        return True
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return True
    if isinstance(error, TypeError) and MISMATCH in str(error):
        return True
    if not isinstance(error, OF_THE_PROGRAM):
        return False
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PACKAGE):
            return True
        if _is_of_a_library(file):
            return False
    return True


def _is_of_a_library(file: Path) -> bool:
    """Return whether a line of code is of Python itself, or of an installed package."""
    if PACKAGES & {*file.parts} or any(file.is_relative_to(folder) for folder in INSTALLED):
        return True
    return not file.is_file()  # compiled, or made while it runs
