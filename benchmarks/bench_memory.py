"""Measure the peak memory of a training step for 10,000 to 200,000 patches (P = 1024).

Each size runs in a separate process, whose largest resident set is reported. It includes the
imports, the features (float16 as read from HDF5, and float32), the model, its gradients and the
step. On a GPU the peak is that of the GPU's memory.

    python benchmarks/bench_memory.py [--model NAME] [--device cuda] [--out memory.json]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch

import probsa
from probsa.core.bags import Bag, pack
from probsa.core.graphs import edge_weights, grid
from probsa.variational.objectives import objective

P = 1024
SIZES = (10_000, 25_000, 50_000, 100_000, 200_000)
MODELS = ("abmil", "abmil-probsa-dirac", "abmil-probsa-diag")
GOAL = 8.0
"""Upper limit in GB at 200,000 patches."""


def write_bag(path: Path, n: int) -> None:
    """Write a slide's features on a square grid, in blocks so that this process stays small."""
    source = np.random.default_rng(n)
    width = int(n**0.5)
    cell = np.arange(n)
    with h5py.File(path, "w") as f:
        f["coords"] = np.stack([cell % width, cell // width], 1) * 256
        features = f.create_dataset("features", (n, P), dtype="float16", chunks=(256, P))
        for start in range(0, n, 8192):
            stop = min(n, start + 8192)
            features[start:stop] = source.standard_normal((stop - start, P), dtype=np.float32)


def one_step(path: Path, name: str, device: str) -> dict[str, float]:
    """Read the bag, build its graph, take one step of Adam; return GB (1e9 bytes) and seconds."""
    with h5py.File(path) as f:
        x = torch.from_numpy(np.asarray(f["features"]))
        coords = torch.from_numpy(np.asarray(f["coords"]))
    edges = grid(coords, stride=256.0)
    bag = Bag(name="slide", x=x, edges=edges, weights=edge_weights(x, edges), y=1.0, coords=coords)
    del x  # so that the half-precision copy is freed as soon as the bags hold floats
    loaded = peak("cpu")
    bags = pack([bag]).to(device, torch.float32)
    del bag
    model = probsa.models.build(name, in_dim=P).train().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    start = time.perf_counter()
    out = model(bags, generator=torch.Generator(device).manual_seed(0))
    terms = model.losses(out, bags)
    objective(terms, weights=model.loss_weights, kl_weight=1.0).backward()
    optimizer.step()
    highest = peak(device)  # on a GPU, waits until it is ready
    return {"loaded": loaded, "peak": highest, "seconds": time.perf_counter() - start}


def peak(device: str) -> float:
    """Return the largest resident set so far, or the most memory in use on the GPU, in GB."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--child", nargs=2, metavar=("BAG", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(one_step(Path(arguments.child[0]), arguments.child[1], arguments.device)))
        return
    sizes = [int(s) for s in arguments.sizes.split(",")]
    rows = []
    print(
        "| model | patches | GB after loading | peak GB | kB per patch | s per step |\n"
        + "|---" * 6
        + "|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            path = Path(folder) / f"{n}.h5"
            write_bag(path, n)
            for name in arguments.model or MODELS:
                command = [sys.executable, __file__, "--child", str(path), name]
                command += ["--device", arguments.device]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = {"model": name, "patches": n, **json.loads(done.stdout)}
                rows.append(row)
                print(
                    f"| {name} | {n:,} | {row['loaded']:.2f} | {row['peak']:.2f} "
                    f"| {1e6 * row['peak'] / n:.1f} | {row['seconds']:.2f} |"
                )
            path.unlink()
    for name in arguments.model or MODELS:
        print(verdict(name, [r for r in rows if r["model"] == name]))
    if arguments.out:
        arguments.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


def verdict(name: str, rows: list[dict]) -> str:
    """Compare the peak with the goal, and with a line fitted by least squares to all sizes."""
    n = np.array([r["patches"] for r in rows], dtype=float)
    gb = np.array([r["peak"] for r in rows])
    text = f"{name}: {gb[-1]:.2f} GB at {int(n[-1]):,} (goal at 200,000: < {GOAL:g} GB)"
    if len(rows) > 2:
        slope, level = np.polyfit(n, gb, 1)
        residual = np.abs(gb - slope * n - level).max()
        text += f"; {1e6 * slope:.2f} kB per patch, at most {residual:.2f} GB from the fitted line"
    return text


if __name__ == "__main__":
    main()
