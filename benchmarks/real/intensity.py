"""The null maps `brightness` and `darkness` on ct_ich and colon_tiles, from the images themselves.

    python benchmarks/real/intensity.py --data DATA --out FOLDER

The ready-made bags have no pixels. This script copies them and adds the dataset `intensity` as
`probsa extract` does: the mean grey value of each tile, and of each slice, whose 8-bit images have
a brain window, so that the mean is that of the window and not of Hounsfield units. The copies can
be given to `probsa dataset localmil` and `probsa benchmark`. Printed are means over positive bags
with instances of both labels, with intervals over bags, beside the distance from the centre.
"""

import argparse
import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float
from PIL import Image

from probsa.evaluation.null_maps import centre
from probsa.evaluation.within_bags import is_mixed, within_bag
from probsa.statistics import mean_interval

TILE = 50
Reader = Callable[[str, np.ndarray], Float[np.ndarray, " n"]]
"""Returns the mean grey values of a bag's instances from its name and coordinates."""


def slices_of(data: Path) -> Reader:
    """Return the reader of the slices of ct_ich, whose coordinate is the number of the slice."""
    archive = zipfile.ZipFile(data / "ct_ich" / "slices_224.zip")

    def read(name: str, coords: np.ndarray) -> Float[np.ndarray, " n"]:
        files = (archive.read(f"{name}/{int(k):02d}.jpg") for k in coords[:, 0])
        return np.array([np.asarray(Image.open(io.BytesIO(f)).convert("L")).mean() for f in files])

    return read


def tiles_of(data: Path) -> Reader:
    """Return the reader of the tiles of the H&E images."""

    def read(name: str, coords: np.ndarray) -> Float[np.ndarray, " n"]:
        with Image.open(data / "colon_cancer" / "images" / f"{name}.webp") as image:
            grey = np.asarray(image.convert("L"), np.float64)
        return np.array([grey[y : y + TILE, x : x + TILE].mean() for x, y in coords])

    return read


def add_intensity(source: Path, target: Path, read: Reader) -> None:
    """Copy a set of bags, with the intensity of its instances."""
    shutil.copytree(source, target)
    for path in sorted((target / "features").glob("*.h5")):
        with h5py.File(path, "a") as f:
            f["intensity"] = read(path.stem, f["coords"][...]).astype(np.float32)


def measured(folder: Path, *, sign: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the measures within each mixed bag, of the intensity and of nearness to the centre."""
    for path in sorted((folder / "features").glob("*.h5")):
        with h5py.File(path) as f:
            y = f["instance_labels"][...] > 0
            scores = {"intensity": sign * f["intensity"][...], "centre": centre(f["coords"][...])}
        for name, score in scores.items():
            if is_mixed(y) and not isinstance(score, str):
                yield name, within_bag(y, score)


def main() -> None:
    """Write the copies and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    sets = {
        "ct_ich": ("brightness", 1, slices_of(a.data)),
        "colon_tiles": ("darkness", -1, tiles_of(a.data)),
    }
    print("| set | null map | AUROC within bags | AP within bags |\n|---|---|---|---|")
    for name, (title, sign, read) in sets.items():
        add_intensity(a.data / "bags" / name, a.out / name, read)
        found: dict[str, list[np.ndarray]] = {}
        for score, values in measured(a.out / name, sign=sign):
            found.setdefault(title if score == "intensity" else score, []).append(values)
        for null_map, values in found.items():
            cells = []
            for column in np.stack(values).T[:2]:
                d = mean_interval(column[None], groups=range(len(column)))
                cells.append(f"{d.difference:.3f} [{d.low:.3f}, {d.high:.3f}]")
            print(f"| {name} | {null_map} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
