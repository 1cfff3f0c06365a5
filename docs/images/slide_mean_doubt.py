"""Draw the picture at the top of the README: a made-up slide, the mean of its evidence, its doubt.

    python docs/images/slide_mean_doubt.py

It draws 24 slides (half with a region of crowded nuclei), trains the default recipe on their labels
and draws one slide that was not used in training. The picture appears beside this file.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tifffile
from PIL import Image
from scipy import ndimage

SIDE, SLIDES, SHOWN = 1536, 24, "case03"


def draw_slide(file: Path, rng: np.random.Generator, *, lesion: bool) -> None:
    """Write pink tissue with nuclei on white glass, 0.5 µm per pixel."""
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    angle = np.arctan2(y, x)
    border = 0.38 + 0.05 * np.sin(3 * angle + rng.uniform(0, 6)) + 0.03 * np.sin(7 * angle)
    tissue = np.hypot(y, x) < border * SIDE
    stain = ndimage.gaussian_filter(rng.normal(0, 1, (SIDE, SIDE)), 40) * 1200
    colour = np.stack([224 + stain * 0.3, 160 + stain, 196 + stain * 0.5], axis=-1)
    image = np.where(tissue[..., None], colour, 243.0)
    density = np.full((SIDE, SIDE), 0.0009)
    if lesion:
        cy, cx = rng.uniform(-0.15, 0.15, 2) * SIDE
        shape = np.hypot((y - cy) * rng.uniform(0.8, 1.2), x - cx) + 40 * np.sin(x / 60)
        density[shape < rng.uniform(190, 280)] = 0.0024
    nuclei = ndimage.binary_dilation((rng.random((SIDE, SIDE)) < density) & tissue, iterations=4)
    image[nuclei] = (96, 62, 140)
    pixels = np.clip(image + rng.normal(0, 9, image.shape), 0, 255).astype(np.uint8)
    tifffile.imwrite(
        file,
        pixels,
        photometric="rgb",
        tile=(256, 256),
        compression="zlib",
        resolution=(20_000, 20_000),
        resolutionunit="CENTIMETER",
    )


def probsa(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "probsa", *map(str, words)], check=True)


def main() -> None:
    rng = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "slides").mkdir()
        lines = ["bag,label,fold"]
        for k in range(SLIDES):
            draw_slide(home / f"slides/case{k:02}.tiff", rng, lesion=bool(k % 2))
            lines.append(f"case{k:02},{k % 2},{k // 2 % 5}")
        (home / "labels.csv").write_text("\n".join(lines) + "\n")
        work, run = home / "work", home / "run"
        probsa("patch", home / "slides", "--out", work, "--patch-size", 64, "--mpp", 0.5)
        probsa("extract", work, "--readers", 0)
        probsa("train", "--features", work, "--labels", home / "labels.csv", "--out", run,
               "--test-fold", 1, "--maps", "none", "--epochs", 25, "--members", 2)  # fmt: skip
        probsa("map", run / "predictions", "--slides", work, "--out", home / "maps", "--bag", SHOWN,
               "--overlays", "--variances", "--longest", 700, "--score", "evidence")  # fmt: skip
        evidence, doubt = (home / f"maps/{SHOWN}_{k}.png" for k in ("evidence", "variance"))
        with Image.open(home / f"slides/{SHOWN}.tiff") as slide:
            panels = {"slide": slide.convert("RGB").resize((700, 700))}
        panels["mean: where the evidence is"] = Image.open(evidence).convert("RGB")
        panels["variance: where the model is unsure of it"] = Image.open(doubt).convert("RGB")
        figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.8), layout="constrained")
        for axis, (title, picture) in zip(axes, panels.items(), strict=True):
            axis.imshow(picture)
            axis.set_title(title, fontsize=12)
            axis.axis("off")
        figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
