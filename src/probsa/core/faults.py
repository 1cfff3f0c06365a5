"""Tell faults of the program and of its installation from damage of a user's file.

Decoders raise errors of any kind on damaged data, and a reader turns these into "this file cannot
be read". A package that cannot be imported, a function that an installed version lacks, and a wrong
key or type in our own code are not the file's: they are raised as they are.
"""

from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[1]


def is_fault(error: BaseException) -> bool:
    """Return whether an error is of this program or of what is installed, not of a file.

    Errors of wrong keys, types and names count where a line of this package raised them: those from
    within a decoder say that it did not expect the data.
    """
    if isinstance(error, ImportError):
        return True
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return True
    if not isinstance(error, AttributeError | KeyError | TypeError | NameError | AssertionError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(PACKAGE)
