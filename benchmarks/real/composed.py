"""Measure time and peak memory on a slide of 20,480 × 20,480 pixels composed of real H&E images.

    python benchmarks/real/composed.py --data ../shared/data --out SLIDE.tiff
    python benchmarks/real/composed.py --measure SLIDE.tiff [--patch-size 512]

The 100 images of colon cancer (500 × 500 at 0.55 µm per pixel) are arranged as several pieces of
tissue on white glass and written as a pyramidal tiled JPEG TIFF. `--measure` segments the tissue,
cuts the patches, and prints the seconds and the peak memory above that of the imports.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

MPP, TILE, SIDE = 0.55, 500, 20_480
PIECES = ((1, 2, 16, 14), (20, 3, 14, 20), (3, 21, 12, 16), (22, 27, 15, 9))
"""(column, row, columns, rows) of each piece of tissue, in images; corners are left out."""


def canvas(images: list[np.ndarray], side: int) -> np.ndarray:
    """Return level 0: pieces of randomly chosen and rotated images on white glass."""
    rng = np.random.default_rng(0)
    image = np.full((side, side, 3), 242, np.uint8)
    for column, row, columns, rows in PIECES:
        for r in range(rows):
            for c in range(columns):
                u, v = 2 * (c + 0.5) / columns - 1, 2 * (r + 0.5) / rows - 1
                if u**4 + v**4 > 1:
                    continue
                picture = np.rot90(images[rng.integers(len(images))], rng.integers(4))
                y, x = (row + r) * TILE, (column + c) * TILE
                if y + TILE <= side and x + TILE <= side:
                    image[y : y + TILE, x : x + TILE] = picture
    return image


def tiles(image: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the tiles in the order of a TIFF; incomplete ones are padded with white."""
    height, width = image.shape[:2]
    for y in range(0, height, size):
        for x in range(0, width, size):
            tile = image[y : y + size, x : x + size]
            if tile.shape[:2] == (size, size):
                yield tile
            else:
                padded = np.full((size, size, 3), 242, np.uint8)
                padded[: tile.shape[0], : tile.shape[1]] = tile
                yield padded


def compose(data: Path, out: Path) -> None:
    """Write the slide with five levels, each half the size of the previous one."""
    paths = sorted((data / "colon_cancer" / "images").glob("*.webp"))
    image = canvas([np.asarray(Image.open(p).convert("RGB")) for p in paths], SIDE)
    with tifffile.TiffWriter(out, bigtiff=True) as tif:
        for k in range(5):
            per_cm = 1e4 / (MPP * 2**k)
            tif.write(
                tiles(image, 256),
                shape=image.shape,
                dtype=np.uint8,
                tile=(256, 256),
                photometric="rgb",
                compression="jpeg",
                subfiletype=1 if k else 0,
                resolution=(per_cm, per_cm),
                resolutionunit="CENTIMETER",
                metadata=None,
            )
            h, w = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
            quarters = image[:h, :w].reshape(h // 2, 2, w // 2, 2, 3)
            image = quarters.mean(axis=(1, 3), dtype=np.float32).astype(np.uint8)
    print(f"{out}: {SIDE} x {SIDE}, {out.stat().st_size / 1e6:.0f} MB")


def peak() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(path: Path, size: int, preset: str | None) -> None:
    """Print the time and memory of segmentation and patching."""
    from probsa.patches import cut, find_tissue, settings
    from probsa.slides import open_slide

    patch_settings = settings(preset, size=size)
    # a first read loads the libraries, so that only the work on the slide is measured
    with open_slide(path) as slide:
        slide.read(x=0, y=0, level=len(slide.levels) - 1, width=16, height=16)
        import cv2  # noqa: F401

        before, began = peak(), time.perf_counter()
        tissue = find_tissue(slide, patch_settings.tissue)
        segmented = time.perf_counter()
        patches = cut(slide, tissue, patch_settings)
        done = time.perf_counter()
        levels = ", ".join(f"{v.width}x{v.height}" for v in slide.levels)
    print(
        f"{path.name} ({levels}): {len(tissue.polygons)} pieces, {len(patches)} patches of {size}; "
        f"tissue {segmented - began:.2f} s, patches {done - segmented:.2f} s, "
        f"peak {peak() - before:.0f} MB above {before:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--patch-size", type=int, default=512)
    parser.add_argument("--preset")
    a = parser.parse_args()
    if a.out is not None:
        compose(a.data, a.out)
    if a.measure is not None:
        measure(a.measure, a.patch_size, a.preset)


if __name__ == "__main__":
    main()
