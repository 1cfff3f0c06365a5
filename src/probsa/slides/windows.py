"""Hounsfield windows: three of them form the channels of the image that an encoder receives.

The defaults are the brain, subdural and bone windows that are common in RSNA's haemorrhage
challenge: 40:80, 80:200 and 600:2800 (level:width), after its "see like a radiologist" notebook.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from ..errors import InputError, UnknownName
from ._base import Scan

WINDOWS: dict[str, tuple[float, float]] = {
    "brain": (40.0, 80.0),
    "subdural": (80.0, 200.0),
    "bone": (600.0, 2800.0),
    "stroke": (40.0, 40.0),
    "soft-tissue": (40.0, 380.0),
    "lung": (-600.0, 1500.0),
    "abdomen": (50.0, 400.0),
}
"""The centre (level) and width of each window in Hounsfield units."""
_FORM = (
    "expected three windows, separated by commas, each a name or LEVEL:WIDTH in Hounsfield units: "
    "brain,subdural,bone or 40:80,80:200,600:2800"
)


@dataclass(frozen=True, slots=True)
class Windows:
    """Three (level, width) pairs, for the red, green and blue channels."""

    channels: tuple[tuple[float, float], tuple[float, float], tuple[float, float]] = (
        WINDOWS["brain"],
        WINDOWS["subdural"],
        WINDOWS["bone"],
    )

    def __post_init__(self) -> None:
        for level, width in self.channels:
            if not (np.isfinite(level) and np.isfinite(width) and width > 0):
                raise InputError(
                    f"the window {level:g}:{width:g} is not valid: expected a finite level and "
                    "a width above 0"
                )

    @classmethod
    def parse(cls, text: str) -> "Windows":
        """Parse `brain,subdural,bone`, `40:80,80:200,600:2800`, or a mixture of both.

        Raises:
            InputError: there are not three windows, or one is not a pair of numbers.
            UnknownName: a window has an unknown name.
        """
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 3:
            raise InputError(f"{text!r} is {len(parts)} window(s): {_FORM}")
        one, two, three = (_window(part) for part in parts)
        return cls((one, two, three))

    def __str__(self) -> str:
        """Return the windows in the form that `parse` reads."""
        return ",".join(f"{level:g}:{width:g}" for level, width in self.channels)


def windowed(hounsfield: Float[np.ndarray, "h w"], windows: Windows) -> UInt8[np.ndarray, "h w 3"]:
    """Return a slice as seen through each window: 0 to 255 from level − width/2 to level + width/2.

    v = 255 · clip((x − level) / width + 1/2, 0, 1), rounded (DICOM's LINEAR_EXACT).
    """
    # multiply before dividing, so that integers stay exact in float32
    image = np.empty((*hounsfield.shape, 3), np.uint8)
    for channel, (level, width) in enumerate(windows.channels):
        above = np.clip(hounsfield - (level - width / 2), 0.0, width)
        image[..., channel] = np.rint(255.0 * above / width)
    return image


def slice_image(scan: Scan, i: int, windows: Windows) -> UInt8[np.ndarray, "h w 3"]:
    """Return slice `i` of a scan as the image that an encoder receives."""
    return windowed(scan.volume[i], windows)


def displayed_slice(scan: Scan, i: int) -> UInt8[np.ndarray, "h w 3"]:
    """Return slice `i` of a scan in grey, in the window in which people look at it first."""
    brain = WINDOWS["brain"]
    return slice_image(scan, i, Windows((brain, brain, brain)))


def window_presets(scan: Scan) -> dict[str, tuple[float, float]]:
    """Return the windows, (level, width), in which people may look at a scan, by their names."""
    del scan  # every scan is in Hounsfield units
    return dict(WINDOWS)


def _window(text: str) -> tuple[float, float]:
    """Return the level and width of a window, given as a name or as LEVEL:WIDTH."""
    if ":" not in text:
        if text not in WINDOWS:
            raise UnknownName("window", text, WINDOWS)
        return WINDOWS[text]
    level, _, width = text.partition(":")
    try:
        return float(level), float(width)
    except ValueError as error:
        raise InputError(f"{text!r} is not a window: {_FORM}") from error
