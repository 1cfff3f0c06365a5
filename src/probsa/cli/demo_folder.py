"""The folder of `probsa demo`."""

from pathlib import Path

from ..core import check_folder_place, is_empty
from ..errors import OutputExists

MARK = "probsa-demo.json"
"""File that marks a folder as written by a demo, so that a later demo may replace it."""


def check_folder(out: Path) -> None:
    """Refuse a folder that contains something that a demo did not write.

    Raises:
        OutputExists: names the folder.
    """
    check_folder_place(out)
    if out.exists() and not (out / MARK).is_file() and not is_empty(out):
        raise OutputExists(f"{out} exists and is not the folder of a demo: give another --out")
