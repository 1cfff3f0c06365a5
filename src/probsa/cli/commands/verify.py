"""probsa verify."""

from pathlib import Path
from typing import Annotated

from ..command import Answer, Flag


def run(folder: Annotated[Path, Flag(holds="folder")]) -> Answer:
    """Read every file of a work folder or a folder of features, and report what is wrong.

    Reports what to do about each problem and changes nothing. The exit status is 1 if there is
    a problem.

    Args:
        folder: Work folder, or folder of features.
    """
    from ...cohorts import verify

    report = verify(folder)
    return Answer(report.to_dict(), report.render, status=1 if report.findings else 0)
