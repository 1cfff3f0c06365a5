"""Train an epoch on a synthetic cohort that is read from disk.

    python benchmarks/bench_cohort.py DIR --bags 2000 --patches 20000 --features 1536

Writes as many of the slides as the disk has room for, and says how many. Files are taken out of
the page cache before each epoch, so that they are read from the disk where the system allows it.
Prints the rate of reading, the share of the time for which steps wait for bags, and the peak of
memory; for whole bags, and with `--window 4096` for windows of that size too.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from probsa.core import write_bag
from probsa.training import DataConfig, Reporter, RunConfig, RunFolder, TrainingConfig, prepare
from probsa.training.devices import World, choose_device
from probsa.training.loop import TrainingLoop

FREE = 0.1
"""Share of the free disk that is left."""
STRIDE = 512
BYTES = 2
"""Bytes of a feature: half precision."""


def write_cohort(folder: Path, *, bags: int, patches: int, features: int) -> int:
    """Write slides with labels, as many as the disk has room for; return how many there are.

    Slides of an earlier call stay if they have the same size. All have the same features in another
    order, as drawing them takes longer than writing them.
    """
    files = folder / "features"
    files.mkdir(parents=True, exist_ok=True)
    bag_bytes = patches * features * BYTES
    present = len(list(files.glob("*.h5")))
    room = int((1 - FREE) * shutil.disk_usage(folder).free / bag_bytes)
    count = min(bags, present + room)
    source = np.random.default_rng(0)
    x = source.standard_normal((patches, features), dtype=np.float32).astype(np.float16)
    columns = int(np.ceil(np.sqrt(patches)))
    cell = np.arange(patches)
    corners = np.stack([cell % columns, cell // columns], 1) * STRIDE
    for k in range(count):
        file = files / f"{k:05d}.h5"
        if file.is_file() and file.stat().st_size >= bag_bytes:
            continue
        write_bag(file, features=np.roll(x, 97 * k, axis=0), coords=corners, kind="slide")
    parts = ["val" if k % 10 == 9 else "train" for k in range(count)]
    rows = [f"{k:05d},{k // 2 % 2},{part}" for k, part in enumerate(parts)]
    (folder / "labels.csv").write_text("\n".join(["bag,label,split", *rows]) + "\n")
    return count


def forget(folder: Path) -> None:
    """Take the files out of the page cache, where the system has a call for that."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in (folder / "features").glob("*.h5"):
        with file.open("rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def train_epochs(args: argparse.Namespace) -> list[dict[str, float]]:
    """Train some epochs; return the measures of each."""
    folder = Path(args.folder)
    settings = {"batch_size": args.batch_size, "epochs": args.epochs, "workers": args.workers}
    if args.window:
        settings["window"] = args.window
    config = RunConfig(
        data=DataConfig(
            features=folder / "features", labels=folder / "labels.csv", cache_gb=args.cache_gb
        ),
        model=args.model,
        training=TrainingConfig(device=args.device, tensorboard=False, **settings),
    )
    device = choose_device(args.device)
    prepared = prepare(config)
    loop = TrainingLoop(
        config,
        RunFolder(folder / "run"),
        prepared,
        device=device,
        reporter=Reporter(),
        world=World(),
    )
    loop._keep_features()
    names = prepared.split.train
    gigabytes = sum(prepared.bags.size(n) for n in names) * prepared.bags.in_dim * BYTES / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    rows: list[dict[str, float]] = []
    for _ in range(args.epochs):
        forget(folder)
        waited = loop.loader.waited
        start = time.perf_counter()
        loop.train_epoch()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        loop.progress.epoch += 1
        row = {
            "seconds": seconds,
            "gb_per_second": gigabytes / seconds,
            "waiting": (loop.loader.waited - waited) / seconds,
            "host_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9,
        }
        if device.type == "cuda":
            row["device_gb"] = torch.cuda.max_memory_allocated() / 1e9
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bags", type=int, default=2000)
    parser.add_argument("--patches", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=1536)
    parser.add_argument("--window", type=int, default=0, help="also train on windows of this size")
    parser.add_argument("--model", default="abmil")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--cache-gb", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--measure", action="store_true", help="train on the cohort that is there")
    args = parser.parse_args()
    if args.window and "window" not in TrainingConfig.__dataclass_fields__:
        parser.error("this version cannot train on windows")
    if args.measure:
        print(json.dumps(train_epochs(args)))
        return
    count = write_cohort(args.folder, bags=args.bags, patches=args.patches, features=args.features)
    size = count * args.patches * args.features * BYTES / 1e9
    print(
        f"{count} of {args.bags} slides of {args.patches} x {args.features} in half precision, "
        f"{size:.1f} GB; nine tenths of them are trained on, {args.batch_size} in a step; "
        f"{args.model}, device {args.device}, cache_gb {args.cache_gb:g}, workers {args.workers}"
    )
    for window in dict.fromkeys((0, args.window)):
        # a process of its own, whose peak of memory is that of this case
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", "--window", str(window)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for epoch, row in enumerate(json.loads(done.stdout)):
            what = f"windows of {window}" if window else "whole bags"
            device = f", {row['device_gb']:.2f} GB of the GPU" if "device_gb" in row else ""
            print(
                f"{what}, epoch {epoch + 1}: {row['seconds']:.1f} s, "
                f"{row['gb_per_second']:.2f} GB/s, waiting {row['waiting']:.0%} of the time, peak "
                f"{row['host_gb']:.2f} GB of the host{device}",
                flush=True,
            )


if __name__ == "__main__":
    main()
