"""Draw the picture at the top of the README: a head CT scan, its labels, and two models' maps.

    python docs/images/head_ct.py SETS SLICES

SETS is the folder of the sets of LocalMIL, with ct_ich in it, and SLICES the folder or
zip file of its pictures (`<scan>/<slice>.jpg`). The default recipe and ABMIL are trained on the
labels of scans, with fold 0 left out. A rule chooses the scan: of the positive scans of fold 0, in
the order of the default's average precision, the one just above the middle.

Data: Hssayeni et al., Computed Tomography Images for Intracranial Hemorrhage Detection and
Segmentation, PhysioNet ct-ich 1.0.0 (Data 2020, 5(1):14), CC BY 4.0. Slices are made smaller.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from PIL import Image
from sklearn.metrics import average_precision_score

from probsa.evaluation import Prediction, Predictions, doubt, read_predictions

EVERY = 3
"""Every third slice is shown."""
TEXT = 11
BLEEDING = "#c0392b"


def train(sets: Path, run: Path, *words: str) -> Predictions:
    """Train on the labels of scans, with fold 0 left out, and return the predictions."""
    data = ["--features", sets / "ct_ich/features", "--labels", sets / "ct_ich/labels.csv"]
    command = [sys.executable, "-m", "probsa", "train", *data, "--out", run, *words]
    subprocess.run([*map(str, command), "--test-fold", "0", "--maps", "none"], check=True)
    return read_predictions(run / "predictions")


def choose_scan(predictions: Predictions) -> str:
    """Return the positive test scan just above the middle by average precision."""
    precision: dict[str, float] = {}
    rows = zip(predictions.bags, predictions.labels, predictions.parts, strict=True)
    for name, label, part in rows:
        if part == "test" and label == 1:
            scan = predictions.instances(name)
            probability = np.ravel(scan.instance_probability)
            precision[name] = average_precision_score(scan.instance_labels, probability)
    ordered = sorted(precision, key=lambda name: precision[name])
    return ordered[len(ordered) // 2]


def read_slices(pictures: Path, scan: str, positions: np.ndarray) -> list[Image.Image]:
    """Read some slices of a scan; the slices of a scan are in the order of their names."""
    root = zipfile.Path(pictures) if pictures.suffix == ".zip" else pictures
    files = sorted((f for f in (root / scan).iterdir()), key=lambda f: f.name)
    images = []
    for position in positions:
        with files[position].open("rb") as file:
            images.append(Image.open(file).convert("L").copy())
    return images


def draw_strip(axis: Axes, values: np.ndarray, title: str, *, top: float, colours: str) -> None:
    """Draw one coloured cell a slice, with the title at the left and the scale at the right."""
    picture = axis.imshow(values[None], aspect="auto", cmap=colours, vmin=0, vmax=top)
    bar = axis.inset_axes((1.015, 0, 0.012, 1))
    scale = axis.figure.colorbar(picture, cax=bar, ticks=[0, top])
    scale.ax.tick_params(labelsize=TEXT - 2)
    name_strip(axis, title)


def name_strip(axis: Axes, title: str) -> None:
    axis.set_xticks([])
    axis.set_yticks([0], [title], fontsize=TEXT)
    axis.tick_params(length=0)


def draw(scan: Prediction, rival: Prediction, pictures: Path, file: Path) -> None:
    """Draw slices, labels and the maps of both models, one below the other."""
    truth = np.asarray(scan.instance_labels)
    count = len(truth)
    positions = np.arange(EVERY // 2, count, EVERY)
    heights = [1.75, 0.42, 0.42, 0.42, 0.42]
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(11.5, 3.0), height_ratios=heights, layout="constrained"
    )
    slices, labels, probability, p_wrong, attention = axes
    for position, image in zip(positions, read_slices(pictures, scan.name, positions), strict=True):
        inner = slices.inset_axes(
            ((position - EVERY / 2 + 0.5) / count, 0, EVERY / count * 0.97, 1)
        )
        inner.imshow(image, cmap="gray")
        inner.set_xticks([])
        inner.set_yticks([])
        for side in inner.spines.values():
            side.set_color(BLEEDING if truth[position] else "#cccccc")
            side.set_linewidth(3 if truth[position] else 1)
    slices.axis("off")
    labels.imshow(truth[None], aspect="auto", cmap=ListedColormap(["#eeeeee", BLEEDING]))
    name_strip(labels, "bleeding, by radiologists")
    draw_strip(
        probability,
        np.ravel(scan.instance_probability),
        "default: probability",
        top=1,
        colours="Reds",
    )
    draw_strip(p_wrong, doubt(scan), "default: P(wrong)", top=0.5, colours="Purples")
    weights = np.ravel(rival.weight_mean)
    top = float(np.ceil(weights.max() * 100) / 100)
    draw_strip(attention, weights, "ABMIL: attention", top=top, colours="Reds")
    figure.get_layout_engine().set(hspace=0.01, h_pad=0.02)
    figure.savefig(file, dpi=110)


def main() -> None:
    sets, pictures = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        default = train(sets, home / "default")
        abmil = train(sets, home / "abmil", "--model", "abmil")
        chosen = choose_scan(default)
        file = Path(__file__).with_suffix(".png")
        draw(default.instances(chosen), abmil.instances(chosen), pictures, file)


if __name__ == "__main__":
    main()
