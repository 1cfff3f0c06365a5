"""Stage 10: the folder of an exported page."""

from pathlib import Path

from ..core import check_folder_place, is_empty
from ..errors import OutputExists

MARK = "probsa-view.json"
"""File of every exported page."""


def check_export(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that an exported page may not replace.

    Raises:
        OutputExists: it holds something else, or an export and `overwrite` is not set.
    """
    check_folder_place(out)
    if not out.exists() or is_empty(out):
        return
    if not (out / MARK).is_file():
        raise OutputExists(f"{out} exists and is not an export of probsa view: give a new folder")
    if not overwrite:
        raise OutputExists(f"{out} exists: give a new folder or --overwrite")
