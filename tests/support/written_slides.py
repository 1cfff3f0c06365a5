"""Slides written for tests by tifffile alone, and ways to damage them."""

from pathlib import Path

import numpy as np
import tifffile
from scipy.ndimage import gaussian_filter


def texture(height: int, width: int, channels: int = 3, *, seed: int = 0) -> np.ndarray:
    """Smooth colours over the whole range, so that JPEG keeps them."""
    noise = np.random.default_rng(seed).random((height, width, channels))
    smooth = gaussian_filter(noise, (3, 3, 0))
    smooth = (smooth - smooth.min()) / np.ptp(smooth)
    return (smooth * 255).astype(np.uint8)


def write_pyramid(path: Path, image: np.ndarray, *, factors=(1, 2, 4), tile=128, **more) -> Path:
    """A generic pyramid: every level a page, the lower ones marked as reduced."""
    with tifffile.TiffWriter(path, bigtiff=more.pop("bigtiff", False)) as f:
        for i, factor in enumerate(factors):
            f.write(
                np.ascontiguousarray(image[::factor, ::factor]),
                tile=(tile, tile),
                subfiletype=1 if i else 0,
                **({"photometric": "rgb", "compression": "deflate"} | more),
            )
    return path


def write_ome(path: Path, image: np.ndarray, *, factors=(1, 2, 4), metadata=None, **more) -> Path:
    """An OME-TIFF whose lower levels are SubIFDs of the first."""
    how = {"tile": (128, 128), "photometric": "rgb", "compression": "deflate"} | more
    with tifffile.TiffWriter(path, ome=True) as f:
        f.write(image, subifds=len(factors) - 1, metadata={"axes": "YXS"} | (metadata or {}), **how)
        for factor in factors[1:]:
            f.write(np.ascontiguousarray(image[::factor, ::factor]), subfiletype=1, **how)
    return path


def write_svs(path: Path, image: np.ndarray, *, said="AppMag = 20|MPP = 0.5", tile=128) -> Path:
    """As Aperio's: a tiled image with its description, a striped thumbnail, a tiled level."""
    height, width = image.shape[:2]
    head = f"Aperio Image Library v11.2.1 \r\n{width}x{height} [0,0 {width}x{height}] JPEG/RGB Q=90"
    how = {"photometric": "rgb", "compression": "jpeg", "metadata": None, "software": False}
    with tifffile.TiffWriter(path) as f:
        f.write(image, tile=(tile, tile), description=f"{head}|{said}", **how)
        f.write(np.ascontiguousarray(image[::8, ::8]), description=head, **how)
        f.write(np.ascontiguousarray(image[::4, ::4]), tile=(tile, tile), description=head, **how)
    return path


def damage(path: Path, *, tile: int, page: int = 0, kind: str = "hole") -> Path:
    """Overwrites bytes inside a tile; the file stays as long as it was."""
    with tifffile.TiffFile(path) as f:
        found = f.pages[page]
        at, length = found.dataoffsets[tile], found.databytecounts[tile]
    data = bytearray(path.read_bytes())
    a, b = at + length // 2, at + 3 * length // 4
    if kind == "hole":
        data[a:b] = bytes(b - a)
    elif kind == "ones":
        data[a:b] = b"\xff" * (b - a)
    elif kind == "noise":
        data[a:b] = np.random.default_rng(0).bytes(b - a)
    elif kind == "cut":
        data[a : at + length] = bytes(at + length - a)
    else:
        data[at : at + 64] = b"corrupt!" * 8
    path.write_bytes(data)
    return path
