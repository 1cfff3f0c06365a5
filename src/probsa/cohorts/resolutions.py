"""Slides whose resolution is unknown: one hint for all of them, and a table to fill in."""

from collections.abc import Sequence
from pathlib import Path

from ..core import counted, write_csv
from ..patches import PatchSettings
from ..slides import open_slide
from .inputs import Input
from .reading import BROKEN

ADVICE = "give --slide-mpp"
"""Words in the reason of every slide that failed because its resolution is unknown."""
SHOWN = 3


def without_resolution(items: Sequence[Input], settings: PatchSettings) -> list[str]:
    """Return the slides that neither the file nor the user states a resolution of, if needed.

    Every slide is opened, without reading its pixels; those that cannot be opened are left out.
    """
    if settings.mpp is None and not settings.tissue.needs_mpp:
        return []
    names = []
    for item in items:
        if item.kind != "slide" or item.reason or item.mpp or item.fallback:
            continue
        try:
            with open_slide(item.source) as slide:
                unknown = slide.mpp is None
        except BROKEN:
            continue
        if unknown:
            names.append(item.name)
    return names


def resolution_hint(names: Sequence[str]) -> str:
    """Return one hint for all slides of unknown resolution."""
    shown = ", ".join(repr(n) for n in names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"{counted(len(names), 'slide')} of unknown resolution ({shown}): give --slide-mpp with "
        "one number for all of them, or with a table slide,mpp, which --dry-run --mpp-table FILE "
        "writes for you to fill in"
    )


def write_mpp_table(path: Path, names: Sequence[str]) -> None:
    """Write a table with the columns slide and mpp whose resolutions are to be filled in."""
    write_csv(path, ["slide", "mpp"], [{"slide": name} for name in names])
