"""Pictures without content: to lay out and to draw a map takes half a second."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from probsa.maps import picture, strips


def _finish(figure: Figure, *_: Any, title: str, **__: Any) -> Figure:
    """Give a page its title, without a layout."""
    figure.set_layout_engine("none")
    figure.suptitle(title)
    return figure


def _print_png(canvas: FigureCanvasAgg, file: Path, **_: Any) -> None:
    Image.new("RGB", canvas.get_width_height()).save(file, format="png", compress_level=1)


def _savefig(figure: Figure, file: Path, **_: Any) -> None:
    _print_png(FigureCanvasAgg(figure), file)


def use_blank_pictures(patch: pytest.MonkeyPatch) -> None:
    """Write every picture of this process blank, in its size."""
    for module in (picture, strips):
        patch.setattr(module, "finish", _finish)
    patch.setattr(FigureCanvasAgg, "print_png", _print_png)
    patch.setattr(Figure, "savefig", _savefig)
