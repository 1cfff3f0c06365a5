"""Small slides with tissue at known places on white glass, written as tiled generic TIFF."""

from pathlib import Path

import numpy as np
import tifffile

MPP = 0.5


def tissue(width: int, height: int, *, boxes, seed: int = 0) -> np.ndarray:
    """Return a white image with boxes (x, y, width, height) of noisy pink."""
    rng = np.random.default_rng(seed)
    image = np.full((height, width, 3), 243, np.uint8)
    for x, y, w, h in boxes:
        noise = rng.integers(-20, 20, (min(h, height - y), min(w, width - x), 3))
        image[y : y + h, x : x + w] = np.clip(np.array([200, 110, 160]) + noise, 0, 255)
    return image


def write_slide(
    path: Path, image: np.ndarray, *, mpp: float | None = MPP, levels: int = 1, jpeg: bool = False
) -> Path:
    """Write a tiled TIFF; each level is half the size of the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path) as tif:
        for k in range(levels):
            scale = 2**k
            resolution = {}
            if mpp is not None:
                per_cm = 1e4 / (mpp * scale)
                resolution = {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}
            tif.write(
                image[::scale, ::scale],
                tile=(256, 256),
                photometric="rgb",
                compression="jpeg" if jpeg else "zlib",
                subfiletype=1 if k else 0,
                metadata=None,
                **resolution,
            )
    return path


def write_cohort(folder: Path, *, slides: int = 3, side: int = 1024) -> Path:
    """Write slides with one box of tissue each, of different sizes."""
    for k in range(slides):
        box = (64 * k, 128, side // 2 + 128 * k, side // 2)
        write_slide(folder / f"slide{k}.tiff", tissue(side, side, boxes=[box], seed=k))
    return folder
