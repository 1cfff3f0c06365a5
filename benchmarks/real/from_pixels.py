"""Go from pixels to maps with the command line, on real slides and a real head CT.

    python benchmarks/real/from_pixels.py --data ../shared/data --out FOLDER

Slides: the 100 images of colon cancer are the training cohort (patches of 50 pixels at 0.55 µm);
the model is then applied to whole slides, two of skin and one of head and neck. CT: a model is
trained on the 82 scans of CT-ICH, written as NIfTI (their brain-window pictures are converted back
to 0 to 80 HU), and applied to the GE head series. The script shows that every stage runs on the
output of the previous one. The slides and the series come from other organs and scanners than the
training data, so nothing is claimed about the maps.
"""

import argparse
import csv
import io
import subprocess
import sys
import time
import zipfile
from collections import defaultdict
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image


def probsa(*arguments: object, status: int = 0) -> None:
    """Run a command and print its duration; exit if its status is not the expected one."""
    words = [str(a) for a in arguments]
    print("$ probsa", " ".join(words), flush=True)
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "probsa", *words], check=False)
    print(f"  exit status {done.returncode}, {time.perf_counter() - began:.1f} s\n", flush=True)
    if done.returncode != status:
        sys.exit(f"expected exit status {status}")


def labels(rows: list[tuple[str, str]], path: Path) -> Path:
    with path.open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["bag", "label"])
        writer.writerows(rows)
    return path


def slides(data: Path, out: Path) -> None:
    """Train on the colon images, predict and draw the three whole slides."""
    cut = ("--mpp", 0.55, "--patch-size", 50, "--slide-mpp")
    images = data / "colon_cancer" / "images"
    # The images have a side of 275 µm and some show fat, so their tissue can be smaller than the
    # default of 16,384 µm². One is almost empty, which gives exit status 1.
    min_area = ("--min-tissue-area", 500)
    probsa("patch", images, "--out", out / "colon", *cut, 0.55, *min_area, status=1)
    probsa("extract", out / "colon")
    with (data / "colon_cancer" / "bags.csv").open() as f:
        rows = [(f"img{int(r['image']):03}", r["label"]) for r in csv.DictReader(f)]
    job = "18.1818x_50px_0px_overlap"
    extracted = {p.stem for p in (out / "colon" / job / "features_handcrafted").glob("*.h5")}
    table = labels([r for r in rows if r[0] in extracted], out / "colon.csv")
    probsa(
        "train", "--features", out / "colon" / job / "features_handcrafted", "--labels", table,
        "--model", "abmil-probsa-diag", "--epochs", 40, "--batch-size", 4, "--out", out / "run",
    )  # fmt: skip
    mpp = out / "mpp.csv"
    mpp.write_text("slide,mpp\nTCGA-CR-7395-01A-01-TS1,0.5\n")
    probsa("info", *sorted(p for p in (data / "wsi").iterdir() if p.suffix in (".svs", ".tiff")))
    probsa("patch", data / "wsi", "--out", out / "wsi", *cut, mpp)
    probsa("extract", out / "wsi")
    probsa("verify", out / "wsi")
    probsa(
        "predict", out / "run", "--features", out / "wsi" / job / "features_handcrafted",
        "--out", out / "preds",
    )  # fmt: skip
    probsa("map", out / "preds", "--slides", out / "wsi", "--out", out / "maps", "--geojson")


def scans(data: Path, out: Path) -> None:
    """Train on CT-ICH, predict and draw the GE series."""
    folder = out / "nifti"
    folder.mkdir(parents=True)
    slices: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    with zipfile.ZipFile(data / "ct_ich" / "slices_224.zip") as z:
        for name in z.namelist():
            if name.endswith(".jpg"):
                patient, number = name.removesuffix(".jpg").split("/")[-2:]
                image = Image.open(io.BytesIO(z.read(name))).convert("L")
                slices[patient][int(number)] = np.asarray(image)
    for patient, images in slices.items():
        volume = np.stack([images[k] for k in sorted(images)], axis=2) / 255 * 80
        # rows run to posterior, columns to the patient's left; 5 mm slices
        affine = np.diag([-1.0, -1.0, 5.0, 1.0])
        transposed = volume.transpose(1, 0, 2).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(transposed, affine), folder / f"{patient}.nii.gz")
    with (data / "ct_ich" / "scan_labels.csv").open() as f:
        rows = [(f"{int(r['patient']):03}", r["ich"]) for r in csv.DictReader(f)]
    probsa("patch", folder, "--out", out / "ct")
    probsa("extract", out / "ct")
    probsa(
        "train", "--features", out / "ct" / "slices" / "features_handcrafted", "--labels",
        labels(rows, out / "ct.csv"), "--model", "abmil-probsa-diag", "--epochs", 40,
        "--batch-size", 4, "--out", out / "run_ct",
    )  # fmt: skip
    ge = out / "ge" / "head"
    with zipfile.ZipFile(data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(ge)
    probsa("info", ge)
    probsa("patch", out / "ge", "--out", out / "ge_work")
    probsa("extract", out / "ge_work")
    probsa(
        "predict", out / "run_ct", "--features",
        out / "ge_work" / "slices" / "features_handcrafted", "--out", out / "preds_ct",
    )  # fmt: skip
    probsa("map", out / "preds_ct", "--slides", out / "ge_work", "--out", out / "maps_ct")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    a.out.mkdir(parents=True)
    slides(a.data, a.out)
    scans(a.data, a.out)


if __name__ == "__main__":
    main()
