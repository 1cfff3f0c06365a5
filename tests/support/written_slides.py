"""Slides written with tifffile, and ways to damage them."""

from pathlib import Path

import numpy as np
import tifffile
from scipy.ndimage import gaussian_filter


def texture(height: int, width: int, channels: int = 3, *, seed: int = 0) -> np.ndarray:
    """Return smooth colours over the whole range, which JPEG preserves well."""
    noise = np.random.default_rng(seed).random((height, width, channels))
    smooth = gaussian_filter(noise, (3, 3, 0))
    smooth = (smooth - smooth.min()) / np.ptp(smooth)
    return (smooth * 255).astype(np.uint8)


def write_pyramid(path: Path, image: np.ndarray, *, factors=(1, 2, 4), tile=128, **more) -> Path:
    """Write a generic pyramid with one page per level; lower levels are marked as reduced."""
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
    """Write an OME-TIFF whose lower levels are SubIFDs of the first."""
    options = {"tile": (128, 128), "photometric": "rgb", "compression": "deflate"} | more
    with tifffile.TiffWriter(path, ome=True) as f:
        f.write(
            image, subifds=len(factors) - 1, metadata={"axes": "YXS"} | (metadata or {}), **options
        )
        for factor in factors[1:]:
            f.write(np.ascontiguousarray(image[::factor, ::factor]), subfiletype=1, **options)
    return path


def write_svs(path: Path, image: np.ndarray, *, said="AppMag = 20|MPP = 0.5", tile=128) -> Path:
    """Write a slide like Aperio's: a tiled image, a striped thumbnail and a tiled level."""
    height, width = image.shape[:2]
    head = f"Aperio Image Library v11.2.1 \r\n{width}x{height} [0,0 {width}x{height}] JPEG/RGB Q=90"
    how = {"photometric": "rgb", "compression": "jpeg", "metadata": None, "software": False}
    with tifffile.TiffWriter(path) as f:
        f.write(image, tile=(tile, tile), description=f"{head}|{said}", **how)
        f.write(np.ascontiguousarray(image[::8, ::8]), description=head, **how)
        f.write(np.ascontiguousarray(image[::4, ::4]), tile=(tile, tile), description=head, **how)
    return path


def damage(path: Path, *, tile: int, page: int = 0, kind: str = "hole") -> Path:
    """Overwrite bytes inside a tile without changing the length of the file."""
    with tifffile.TiffFile(path) as f:
        tiff_page = f.pages[page]
        offset = tiff_page.dataoffsets[tile]
        length = tiff_page.databytecounts[tile]
    data = bytearray(path.read_bytes())
    a, b = offset + length // 2, offset + 3 * length // 4
    if kind == "hole":
        data[a:b] = bytes(b - a)
    elif kind == "ones":
        data[a:b] = b"\xff" * (b - a)
    elif kind == "noise":
        data[a:b] = np.random.default_rng(0).bytes(b - a)
    elif kind == "cut":
        data[a : offset + length] = bytes(offset + length - a)
    else:
        data[offset : offset + 64] = b"corrupt!" * 8
    path.write_bytes(data)
    return path
