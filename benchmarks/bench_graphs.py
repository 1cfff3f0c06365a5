"""Measure the time to build a slide's graph (8 neighbours on one or several lattices) and weights.

python benchmarks/bench_graphs.py [--out graphs.json]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from probsa.core.graphs import edge_weights, grid, knn
from probsa.core.randomness import random_stream

SIZES = (1_000, 5_000, 20_000, 50_000)
GOAL = (20_000, 50.0)
"""Number of patches, and the goal in milliseconds for finding their edges, without weights."""


def slide(n: int, *, contours: int) -> Tensor:
    """Return n patch corners, 256 apart; each of the `contours` pieces has its own lattice."""
    source = random_stream("graphs", n)
    pieces = []
    for k in range(contours):
        count = n // contours
        width = int(count**0.5)
        cell = torch.randperm(int(1.1 * count), generator=source)[:count].sort().values
        offset = torch.randint(0, 256, (2,), generator=source) if contours > 1 else 0
        corner = torch.stack([cell % width, cell // width], 1) * 256 + offset
        pieces.append(corner + torch.tensor([(width + 3) * 256 * k, 0]))
    return torch.cat(pieces)


def milliseconds(call: Callable[[], object], *, rounds: int = 7) -> float:
    """Return the median time of the calls that follow a warm-up call."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(
        "| patches | edges | lattice, ms | 4 contours, ms | 8 nearest, ms | weights, P=1024, ms |"
    )
    print("|" + "---|" * 6)
    for n in SIZES:
        whole = slide(n, contours=1)
        shifted = slide(n, contours=4)
        edges = grid(whole, stride=256.0)
        x = torch.randn(n, 1024, generator=random_stream("features", n)).half()
        row = {
            "patches": n,
            "edges": edges.shape[1],
            "lattice": milliseconds(lambda c=whole: grid(c, stride=256.0)),
            "contours": milliseconds(lambda c=shifted: grid(c, stride=256.0)),
            "nearest": milliseconds(lambda c=whole: knn(c, k=8), rounds=2),
            "weights": milliseconds(lambda x=x, e=edges: edge_weights(x, e), rounds=2),
        }
        rows.append(row)
        times = " | ".join(f"{row[k]:.1f}" for k in ("lattice", "contours", "nearest", "weights"))
        print(f"| {n:,} | {row['edges']:,} | {times} |")
    reached = next(r["lattice"] for r in rows if r["patches"] == GOAL[0])
    verdict = "met" if reached < GOAL[1] else "missed"
    print(f"{GOAL[0]:,} patches: {reached:.1f} ms (goal: < {GOAL[1]:g} ms, {verdict})")
    if arguments.out:
        arguments.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
