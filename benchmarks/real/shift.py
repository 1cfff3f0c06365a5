"""Measure whether the distance from training tells shifted bags and instances from usual ones.

    python benchmarks/real/shift.py --data ../shared/data [--splits 5]

Training, validation and usual test bags are images of one cohort, split at random: the 100 images
of colon cancer (tiles of 50 pixels) and the head scans of CT-ICH (slices). The shifted bags are
REAL where they come from elsewhere (fields of two slides of other organs and scanners; tiles of
NCT-CRC; a head scan of another scanner), and SIMULATED where the usual test bags are changed
(light, gamma, stain, blur, JPEG; a fixed rotation of the features and numbers of another kind in
their place, for encoders of equal width). Fields of one slide are not independent of each other.
The AUROC is that of telling shifted from usual test bags; beside it stands the mean distance to
the 5 nearest training items. No label is used.
"""

import argparse
import io
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pydicom
import torch
from PIL import Image, ImageFilter
from scipy.fft import dctn
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from probsa import Bag
from probsa.evaluation import TrainingDistance
from probsa.features import build
from probsa.slides import open_slide

TILE, FIELD, FIELDS = 50, 500, 40
"""Sides of a tile and of a field of a slide in pixels, and the largest number of fields."""
SLICES = 12
"""Number of slices taken from each scan, evenly spaced."""
NEIGHBOURS, CORESET = 5, 2000

Pixels = np.ndarray
"""uint8 (n, side, side, 3): the instances of a bag."""
Change = Callable[[Image.Image], Image.Image]


def curve(function: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Return a change of pixels from 0 to 1."""

    def change(image: Image.Image) -> Image.Image:
        x = function(np.asarray(image) / 255)
        return Image.fromarray((x.clip(0, 1) * 255).round().astype(np.uint8))

    return change


def jpeg(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=20)
    return Image.open(buffer).convert("RGB")


CHANGES: dict[str, Change] = {
    "unchanged (control)": lambda image: image,
    "brightness x 1.1": curve(lambda x: 1.1 * x),
    "gamma 0.8": curve(lambda x: x**0.8),
    "red x 1.08, blue x 0.92": curve(lambda x: x * np.array([1.08, 1, 0.92])),
    "blur, sigma 1": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "JPEG, quality 20": jpeg,
}


def tiles(image: Image.Image) -> Pixels:
    """Cut an image into whole tiles, without those that are nearly empty glass."""
    x = np.asarray(image.convert("RGB"))
    rows, columns = x.shape[0] // TILE, x.shape[1] // TILE
    x = x[: rows * TILE, : columns * TILE].reshape(rows, TILE, columns, TILE, 3)
    x = x.transpose(0, 2, 1, 3, 4).reshape(-1, TILE, TILE, 3)
    tissue = x.mean((1, 2, 3)) < 235
    return x[tissue] if tissue.any() else x[:1]


def fields(path: Path) -> dict[str, Pixels]:
    """Return fields of a slide that are mostly tissue, at its highest resolution."""
    found: dict[str, Pixels] = {}
    with open_slide(path) as slide:
        width, height = slide.size
        left, top = range(0, width - FIELD, FIELD), range(0, height - FIELD, FIELD)
        places = [(x, y) for y in top for x in left]
        for k in np.random.default_rng(0).permutation(len(places)).tolist():
            x, y = places[k]
            region = slide.read(x=x, y=y, level=0, width=FIELD, height=FIELD)
            image = Image.fromarray(region)
            kept = tiles(image)
            if len(kept) > 50:
                found[f"{path.stem}-{k}"] = kept
            if len(found) == FIELDS:
                break
    return found


def scans(data: Path) -> dict[str, list[Image.Image]]:
    """Return some slices of each scan of CT-ICH."""
    images: dict[str, dict[str, Image.Image]] = defaultdict(dict)
    with zipfile.ZipFile(data / "ct_ich" / "slices_224.zip") as z:
        for name in z.namelist():
            if name.endswith(".jpg"):
                image = Image.open(io.BytesIO(z.read(name))).convert("RGB")
                images[name.split("/")[-2]][name] = image
    return {scan: spaced([of[n] for n in sorted(of)]) for scan, of in images.items()}


def ge_head(data: Path) -> list[Image.Image]:
    """Return slices of the GE head series in CT-ICH's window, 0 to 80 HU, at 224 pixels."""
    slices: list[tuple[float, Image.Image]] = []
    with zipfile.ZipFile(data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        for name in z.namelist():
            if name.endswith(".dcm"):
                d = pydicom.dcmread(io.BytesIO(z.read(name)))
                hu = d.pixel_array * float(d.RescaleSlope) + float(d.RescaleIntercept)
                grey = Image.fromarray((hu.clip(0, 80) / 80 * 255).astype(np.uint8))
                slices.append((float(d.ImagePositionPatient[2]), grey.resize((224, 224))))
    return spaced([image.convert("RGB") for _, image in sorted(slices, key=lambda s: s[0])])


def spaced(images: list[Image.Image]) -> list[Image.Image]:
    chosen = np.unique(np.linspace(0, len(images) - 1, SLICES).round().astype(int))
    return [images[k] for k in chosen]


def other_encoder(pixels: Pixels, *, width: int) -> np.ndarray:
    """Return the lowest frequencies of the grey image: real features of another kind."""
    grey = pixels.mean(-1) / 255
    spectrum = dctn(grey, axes=(1, 2), norm="ortho")[:, :16, :16].reshape(len(pixels), -1)
    return spectrum[:, :width]


def bag(name: str, x: np.ndarray) -> Bag:
    return Bag(
        name=name,
        x=torch.from_numpy(np.ascontiguousarray(x)).float(),
        edges=torch.zeros(2, 0, dtype=torch.int64),
        weights=torch.zeros(0),
    )


class Neighbours:
    """The rival: the mean distance to the nearest training items, of standardised features."""

    def __init__(self, x: np.ndarray) -> None:
        self.mean, self.deviation = x.mean(0), np.maximum(x.std(0), 1e-6)
        chosen = np.random.default_rng(0).permutation(len(x))[:CORESET]
        self.index = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(self._scaled(x[chosen]))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.index.kneighbors(self._scaled(x))[0].mean(1)

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        return (x - self.mean) / self.deviation


def aurocs(
    train: Mapping[str, Bag], val: Mapping[str, Bag], test: Mapping[str, Bag],
    shifted: Mapping[str, Mapping[str, Bag]],
) -> dict[str, list[float]]:  # fmt: skip
    """Return AUROC of bags and instances by either distance, and the mean percentile, by shift."""
    every = {**train, **val}
    fitted = TrainingDistance.fit(every.__getitem__, training=[*train], validation=[*val])
    assert fitted is not None
    stack = [b.x.numpy() for b in train.values()]
    rivals = Neighbours(np.stack([x.mean(0) for x in stack])), Neighbours(np.concatenate(stack))

    def measure(bags: Mapping[str, Bag]) -> tuple[np.ndarray, ...]:
        of = [fitted.of(b) for b in bags.values()]
        x = [b.x.numpy() for b in bags.values()]
        return (
            np.array([v["bag_ood_distance"] for v in of]),
            np.concatenate([v["ood_distance"] for v in of]),
            rivals[0](np.stack([v.mean(0) for v in x])),
            rivals[1](np.concatenate(x)),
            np.array([v["bag_ood"] for v in of]),
        )

    usual = measure(test)
    results = {}
    for name, bags in shifted.items():
        values = measure(bags)
        row = []
        for a, b in zip(usual[:4], values[:4], strict=True):
            y = np.repeat([0, 1], [len(a), len(b)])
            row.append(float(roc_auc_score(y, np.concatenate([a, b]))))
        results[name] = [*row, float(values[4].mean()), len(bags)]
    return results


def study(
    images: Mapping[str, Callable[[Change], Pixels]], elsewhere: Mapping[str, Mapping[str, Pixels]],
    *, splits: int,
) -> None:  # fmt: skip
    """Print the mean AUROCs over random splits of a cohort in 60, 20 and 20 % of its bags."""
    encoder = build("handcrafted")

    def encode(pixels: Pixels) -> np.ndarray:
        return encoder.encode(torch.from_numpy(np.ascontiguousarray(pixels))).numpy()

    changed = {
        change: {n: bag(n, encode(make(function))) for n, make in images.items()}
        for change, function in CHANGES.items()
    }
    usual = changed["unchanged (control)"]
    width = len(next(iter(usual.values())).x[0])
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))[0]
    changed["other encoder: rotated features"] = {
        n: bag(n, b.x.numpy() @ rotation) for n, b in usual.items()
    }
    changed["other encoder: cosine transform"] = {
        n: bag(n, other_encoder(make(CHANGES["unchanged (control)"]), width=width))
        for n, make in images.items()
    }
    real = {
        name: {n: bag(n, encode(x)) for n, x in bags.items()} for name, bags in elsewhere.items()
    }
    found: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(splits):
        names = np.random.default_rng(seed).permutation([*usual]).tolist()
        a, b = round(0.6 * len(names)), round(0.8 * len(names))
        parts = (names[:a], names[a:b], names[b:])
        train, val, test = ({n: usual[n] for n in part} for part in parts)
        # The control has other bags than the usual ones: half of the test part each.
        half = len(test) // 2
        control = {n: usual[n] for n in [*test][half:]}
        usual_test = {n: usual[n] for n in [*test][:half]}
        shifts = {k: {n: of[n] for n in test} for k, of in changed.items()}
        shifts = {f"SIMULATED {k}": v for k, v in shifts.items()}
        shifts["SIMULATED unchanged (control)"] = control
        shifts |= {f"REAL {k}": v for k, v in real.items()}
        for name, row in aurocs(train, val, usual_test, shifts).items():
            found[name].append(row)
    print("| shift | bags | instances | bags, 5-NN | instances, 5-NN | percentile | bags (n) |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in found.items():
        mean = np.mean(rows, axis=0)
        cells = " | ".join(f"{v:.3f}" for v in mean[:5])
        print(f"| {name} | {cells} | {mean[5]:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", choices=("slides", "scans"))
    a = parser.parse_args()
    if a.only != "scans":
        print("\nColon images; bags are images, instances tiles\n", flush=True)
        opened = {
            p.stem: Image.open(p).convert("RGB")
            for p in sorted((a.data / "colon_cancer" / "images").glob("*.webp"))
        }
        wsi = a.data / "wsi"
        elsewhere = {
            "skin, another scanner (CMU-1)": fields(wsi / "CMU-1-Small-Region.svs"),
            "head and neck, another scanner (TCGA)": fields(wsi / "TCGA-CR-7395-01A-01-TS1.svs"),
            "colon, another laboratory (NCT-CRC)": {
                p.stem: tiles(Image.open(p)) for p in (a.data / "nct_crc_sample").glob("*.tif")
            },
        }
        study(
            {n: lambda f, image=image: tiles(f(image)) for n, image in opened.items()},
            elsewhere,
            splits=a.splits,
        )
    if a.only != "slides":
        print("\nHead CT; bags are scans, instances slices\n", flush=True)
        study(
            {
                n: lambda f, of=of: np.stack([np.asarray(f(image)) for image in of])
                for n, of in scans(a.data).items()
            },
            {
                "head, another scanner (GE)": {
                    "ge": np.stack([np.asarray(image) for image in ge_head(a.data)])
                }
            },
            splits=a.splits,
        )


if __name__ == "__main__":
    main()
