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

PROBSA_FOLDER = Path(__file__).parents[1]
LIBRARY_FOLDERS = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
"""Folders of Python's own modules and of this interpreter's packages."""
PACKAGE_FOLDER_NAMES = {"site-packages", "dist-packages"}
"""Names of folders of installed packages, wherever they are."""
AMBIGUOUS = (AttributeError, KeyError, TypeError, NameError, AssertionError)
"""Errors that a decoder raises on damaged data, and that a mistake in a program raises as well."""
UNKNOWN_KEYWORD = "unexpected keyword argument"
"""Python's words for a call that the installed version of a function does not accept."""


def is_fault(error: BaseException) -> bool:
    """Return whether an error is of this program or of what is installed, not of a file.

    - An error that probsa raises on purpose (`ProbSAError`) is not.
    - A failed import, a function that a module lacks, and an unknown keyword are: the installation
      does not fit the program.
    - An ambiguous error, such as a wrong key, is if a line of probsa raised it. It is not if a line
      of a library did, which did not expect the data. For a line of neither, such as that of a
      plug-in, the line that called it decides.
    - Any other error is not.
    """
    if isinstance(error, ProbSAError):
        return False
    if isinstance(error, ImportError):
        return True
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return True
    if isinstance(error, TypeError) and UNKNOWN_KEYWORD in str(error):
        return True
    if not isinstance(error, AMBIGUOUS):
        return False
    # from the line that raised the error outwards
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PROBSA_FOLDER):
            return True
        if _is_of_a_library(file):
            return False
    return True


def _is_of_a_library(file: Path) -> bool:
    """Return whether a line of code is of Python itself, or of an installed package."""
    if PACKAGE_FOLDER_NAMES & {*file.parts}:
        return True
    if any(file.is_relative_to(folder) for folder in LIBRARY_FOLDERS):
        return True
    return not file.is_file()  # compiled, or made while it runs
