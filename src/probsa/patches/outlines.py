"""Tissue that was outlined before: a folder with one file for each slide."""

from pathlib import Path

from ..core import named_file
from ..errors import SlideError
from ..slides import Slide
from .geojson import read_geojson
from .polygons import Tissue


def outline_file(folder: Path, name: str) -> Path:
    """Return the file with the tissue of a slide, which need not exist."""
    return named_file(folder, name, ".geojson")


def outlined_tissue(folder: Path, name: str, slide: Slide) -> Tissue:
    """Read the tissue of a slide from its file in a folder.

    Raises:
        SlideError: there is no such file.
        InputError: it is damaged, or belongs to another slide.
    """
    path = outline_file(folder, name)
    if not path.is_file():
        raise SlideError(
            f"there are no contours {path}: --contours needs a GeoJSON file for each slide"
        )
    return read_geojson(path, slide.size)
