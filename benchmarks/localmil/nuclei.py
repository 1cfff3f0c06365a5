"""Make the set colon_nuclei of LocalMIL: bags are images, instances are nuclei.

    python benchmarks/localmil/nuclei.py IMAGES labels.csv OUT
    python benchmarks/localmil/run.py OUT --out EXPERIMENT

IMAGES contains `images/imgNNN.webp` and `nuclei.csv` (image,x,y,type) of CRCHistoPhenotypes
(Sirinukunwattana et al., 2016); labels.csv has the folds (bag,fold). A nucleus is described by the
encoder `handcrafted` on the 27 × 27 pixels around it, and is positive if it is epithelial.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import torch
from PIL import Image

from probsa.features import build

HALF = 13
DESCRIPTION = """title: Nuclei of colorectal H&E images, epithelial or not
source: CRCHistoPhenotypes (Sirinukunwattana et al., IEEE TMI 2016)
licence: for research, with citation
commit: github olgafour1/Multiple-instance-learning-with-graphs, 5da0dc4
graph: knn
"""


def main() -> None:
    """Write the features, the labels and the description."""
    parser = argparse.ArgumentParser(description="Make the set colon_nuclei of LocalMIL.")
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path, help="table with the columns bag and fold")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    folder = given.out / "colon_nuclei"
    (folder / "features").mkdir(parents=True)
    fold = pd.read_csv(given.labels).set_index("bag")["fold"]
    encoder = build("handcrafted")
    rows = ["bag,label,fold"]
    for image, nuclei in pd.read_csv(given.images / "nuclei.csv").groupby("image"):
        bag = f"img{image:03d}"
        with Image.open(given.images / "images" / f"{bag}.webp") as picture:
            pixels = np.asarray(picture.convert("RGB"))
        places = nuclei[["x", "y"]].to_numpy() - 1  # stated from 1
        columns, lines = np.rint(places).astype(int).clip(0, len(pixels) - 1).T
        around = np.pad(pixels, ((HALF, HALF), (HALF, HALF), (0, 0)), mode="reflect")
        size = 2 * HALF + 1
        patches = [around[y : y + size, x : x + size] for x, y in zip(columns, lines, strict=True)]
        positive = (nuclei["type"] == "epithelial").to_numpy()
        with h5py.File(folder / "features" / f"{bag}.h5", "w") as f:
            f["features"] = encoder.encode(torch.from_numpy(np.stack(patches))).numpy()
            f["coords"], f["instance_labels"] = places, positive.astype(np.int8)
        rows.append(f"{bag},{int(positive.any())},{fold[bag]}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    (folder / "set.yaml").write_text(DESCRIPTION)


if __name__ == "__main__":
    main()
