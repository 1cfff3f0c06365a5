"""Stage 10: the colours of the page: those of `maps`, as look-up tables of 256 entries."""

from typing import Literal

import numpy as np
from jaxtyping import UInt8
from matplotlib import colormaps
from matplotlib.colors import Colormap

from ..maps import PALETTE

Colours = Literal["mean", "deviation", "probability", "signed", "difference", "labels"]

TABLES: dict[Colours, Colormap] = {
    "mean": PALETTE["mean"],
    "deviation": PALETTE["deviation"],
    "probability": PALETTE["probability"],
    "signed": PALETTE["contribution"],
    # brown and teal: a difference must not look like evidence for and against a class, and of the
    # diverging maps of matplotlib this one has the most equal lightness on both sides, for readers
    # with any colour vision (at most 6 of 100 apart; PuOr 24)
    "difference": colormaps["BrBG"],
    "labels": PALETTE["labels"],
}


def look_up_table(name: Colours) -> UInt8[np.ndarray, "256 3"]:
    """Return the red, green and blue of 256 equal steps from the lowest to the highest value."""
    rgba = np.asarray(TABLES[name](np.linspace(0, 1, 256)))
    return np.rint(rgba[:, :3] * 255).astype(np.uint8)
