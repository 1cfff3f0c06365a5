"""Peak memory of one training step, from 10,000 to 200,000 patches (P = 1024, float16 on disk).

Each size runs in a process of its own, whose largest resident set is what is reported: the imports,
the features as read from HDF5 and as computed with, the model, its gradients and the step.

    python benchmarks/bench_memory.py [--model abmil-probsa-diag] [--out memory.json]
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
"""GB at 200,000 patches."""


def write_bag(path: Path, n: int) -> None:
    """A slide's features on a square grid, a block at a time: this process stays small."""
    source = np.random.default_rng(n)
    width = int(n**0.5)
    cell = np.arange(n)
    with h5py.File(path, "w") as f:
        f["coords"] = np.stack([cell % width, cell // width], 1) * 256
        features = f.create_dataset("features", (n, P), dtype="float16", chunks=(256, P))
        for start in range(0, n, 8192):
            stop = min(n, start + 8192)
            features[start:stop] = source.standard_normal((stop - start, P), dtype=np.float32)


def one_step(path: Path, name: str) -> dict[str, float]:
    """Reads the bag, builds its graph, and takes one step of Adam; GB (1e9 bytes) and seconds."""
    with h5py.File(path) as f:
        x = torch.from_numpy(np.asarray(f["features"]))
        coords = torch.from_numpy(np.asarray(f["coords"]))
    edges = grid(coords, stride=256.0)
    bag = Bag(name="slide", x=x, edges=edges, weights=edge_weights(x, edges), y=1.0, coords=coords)
    del x  # the half-precision copy may go as soon as the bags hold floats
    loaded = peak()
    bags = pack([bag]).to("cpu", torch.float32)
    del bag
    model = probsa.models.build(name, in_dim=P).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    start = time.perf_counter()
    out = model(bags, generator=torch.Generator().manual_seed(0))
    terms = model.losses(out, bags)
    objective(terms, weights=model.loss_weights, kl_weight=1.0).backward()
    optimizer.step()
    return {"loaded": loaded, "peak": peak(), "seconds": time.perf_counter() - start}


def peak() -> float:
    """Largest resident set so far, GB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("BAG", "MODEL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(one_step(Path(given.child[0]), given.child[1])))
        return
    sizes = [int(s) for s in given.sizes.split(",")]
    rows = []
    print(
        "| model | patches | GB after loading | peak GB | kB a patch | s a step |\n"
        + "|---" * 6
        + "|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            path = Path(folder) / f"{n}.h5"
            write_bag(path, n)
            for name in given.model or MODELS:
                command = [sys.executable, __file__, "--child", str(path), name]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = {"model": name, "patches": n, **json.loads(done.stdout)}
                rows.append(row)
                print(
                    f"| {name} | {n:,} | {row['loaded']:.2f} | {row['peak']:.2f} "
                    f"| {1e6 * row['peak'] / n:.1f} | {row['seconds']:.2f} |"
                )
            path.unlink()
    for name in given.model or MODELS:
        print(verdict(name, [r for r in rows if r["model"] == name]))
    if given.out:
        given.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


def verdict(name: str, rows: list[dict]) -> str:
    """How straight the line is: the largest departure of the peak from the least-squares line."""
    n = np.array([r["patches"] for r in rows], dtype=float)
    gb = np.array([r["peak"] for r in rows])
    text = f"{name}: {gb[-1]:.2f} GB at {int(n[-1]):,} (goal at 200,000: < {GOAL:g} GB)"
    if len(rows) > 2:
        slope, level = np.polyfit(n, gb, 1)
        off = np.abs(gb - slope * n - level).max()
        text += f"; {1e6 * slope:.2f} kB a patch, at most {off:.2f} GB off that line"
    return text


if __name__ == "__main__":
    main()
