"""Compare the extraction of a slide with the encoder alone on pixels in memory.

    python benchmarks/bench_extract.py [--side 6000] [--rounds 3] [--device cuda --readers 8]

ResNet-50 with random weights runs on one core, or on a GPU; processes on other cores read and
decode JPEG tiles. The ratio is the time of the encoder alone divided by that of the whole
extraction (starting the reader, reading, decoding, encoding, writing), both measured alternately in
one run. The goal is 0.9; at 1, reading adds no time.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import tifffile
import torch
from safetensors.torch import save_file

from probsa.cohorts.coordinates import read_coordinates
from probsa.cohorts.extraction import ExtractOptions
from probsa.cohorts.flow import RunOptions, extract_cohort, patch_cohort
from probsa.cohorts.work import WorkFolder
from probsa.features.resnet import ResNet
from probsa.patches import read_patch, settings
from probsa.slides import open_slide

BATCH = 32


def write_slide(path: Path, side: int) -> None:
    """Write a slide that is full of tissue."""
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    row = np.clip(rng.normal((200, 110, 160), 25, (256, side, 3)), 0, 255).astype(np.uint8)
    image = np.tile(row, (side // 256 + 1, 1, 1))[:side]
    with tifffile.TiffWriter(path) as tif:
        tif.write(
            image,
            tile=(256, 256),
            photometric="rgb",
            compression="jpeg",
            resolution=(20000, 20000),
            resolutionunit="CENTIMETER",
            metadata=None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", type=int, default=6000, help="side of the slide in pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patch-size", type=int, default=256)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--readers", type=int, default=1, help="processes that read")
    a = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_slide(root / "slides" / "x.tiff", a.side)
        torch.manual_seed(0)
        save_file(ResNet().core.state_dict(), root / "weights.safetensors")
        work = root / "work"
        patch_settings = settings(size=a.patch_size, mpp=0.5)
        for patched in patch_cohort(root / "slides", work, settings=patch_settings):
            assert all(o.status == "done" for o in patched.outcomes), patched.outcomes
        options = ExtractOptions(
            encoder="resnet50",
            weights=str(root / "weights.safetensors"),
            batch=BATCH,
            readers=a.readers,
            device=a.device,
            threads=1,
        )
        encoder = options.build()
        patches = read_coordinates(WorkFolder(work).choose().patches_file("x")).patches()
        began = time.perf_counter()
        with open_slide(root / "slides" / "x.tiff") as slide:
            cached = torch.from_numpy(
                np.stack([read_patch(slide, patches, i) for i in range(len(patches))])
            )
        alone = time.perf_counter() - began
        print(f"{len(patches)} patches of {a.patch_size}; reading alone {alone:.1f} s")
        ratios = []
        for _ in range(a.rounds):
            began = time.perf_counter()
            for start in range(0, len(cached), BATCH):
                encoder.encode(cached[start : start + BATCH])
            encoding = time.perf_counter() - began
            report = extract_cohort(work, options, run=RunOptions(overwrite=True))
            extraction = report.outcomes[0].seconds
            ratios.append(encoding / extraction)
            print(
                f"encoder alone {encoding:.1f} s ({len(patches) / encoding:.1f} patches/s), "
                f"extraction {extraction:.1f} s, ratio {ratios[-1]:.3f}",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.3f} (goal 0.9)")


if __name__ == "__main__":  # the reader processes import this file
    main()
