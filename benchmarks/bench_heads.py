"""Measure how much faster runs train jointly than one after another.

    python benchmarks/bench_heads.py [--heads 20] [--repeats 9]

Steps of both kinds alternate, with four bags per step, in the sizes of the two ready bag sets and,
on a GPU, of slides. The time is the CPU time of the process, so that other work on the machine does
not count; on a GPU it is the wall-clock time.
"""

import argparse
import time
from collections.abc import Callable

import torch
from probsa.training.model_stack import Stack, objectives

from probsa import models, pack
from probsa.core.bags import Bag, Bags
from probsa.core.randomness import random_stream
from probsa.training.devices import keep_memory, precision_context
from probsa.variational.objectives import objective

CASES = [
    ("abmil-probsa-diag", 30, 254, "float32"),
    ("abmil-probsa-diag", 100, 102, "float32"),
    ("abmil-probsa-dirac", 30, 254, "float32"),
    ("tabmil-probsa-diag", 30, 254, "bf16"),
    ("tabmil-probsa-diag", 100, 102, "bf16"),
]
GPU_CASES = [
    ("abmil-probsa-diag", 1000, 2048, "float32"),
    ("tabmil-probsa-diag", 1000, 2048, "bf16"),
]


def bags_of(n: int, width: int, *, device: torch.device) -> Bags:
    """Return four bags, each a chain of n instances."""
    g = torch.Generator().manual_seed(0)
    chain = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    bags = [
        Bag(name=f"b{k}", x=torch.randn(n, width, generator=g), edges=chain,
            weights=torch.rand(n - 1, generator=g), y=k % 2)
        for k in range(4)
    ]  # fmt: skip
    return pack(bags).to(device)


def steps(
    name: str, n: int, width: int, precision: str, *, runs: int, device: torch.device
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Return a joint step of all runs, and a step of a single model."""
    bags = bags_of(n, width, device=device)
    members = [models.build(name, in_dim=width, seed=s).to(device) for s in range(runs)]
    stack = Stack(members).to(device)
    joint_optimizer = torch.optim.Adam(stack.parameters(), lr=1e-4, fused=True)
    single_optimizer = torch.optim.Adam(members[0].parameters(), lr=1e-4, fused=True)

    def joint(k: int) -> None:
        noise = [random_stream(s, k, device=device) for s in range(runs)]
        with precision_context(precision, device):
            out, copies = stack(bags, generators=noise)
            terms = stack.losses(out, copies)
        joint_optimizer.zero_grad(set_to_none=True)
        objectives(terms, weights={}, kl_weights=[1.0] * runs).sum().backward()
        joint_optimizer.step()

    def single(k: int) -> None:
        with precision_context(precision, device):
            out = members[0](bags, generator=random_stream(0, k, device=device))
            terms = members[0].losses(out, bags)
        single_optimizer.zero_grad(set_to_none=True)
        objective(terms, weights={}, kl_weight=1.0).backward()
        single_optimizer.step()

    return joint, single


def seconds(step: Callable[[int], None], k: int, *, device: torch.device) -> float:
    """Return the duration of step k."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    step(k)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    """Print one row per case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=20, help="number of jointly trained runs")
    parser.add_argument("--repeats", type=int, default=9)
    a = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        "| model | patches per bag | features | precision | runs | ms per run, joint training "
        "| ms per run, alone | gain |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, n, width, precision in [*CASES, *(GPU_CASES if device.type == "cuda" else [])]:
        runs = a.heads if name.startswith("abmil") else min(a.heads, 6)
        joint, single = steps(name, n, width, precision, runs=runs, device=device)
        times: dict[str, list[float]] = {"joint": [], "alone": []}
        for k in range(a.repeats + 1):
            # several single steps, so that all but the first find the caches of such a step
            single_times = sorted(seconds(single, k, device=device) for _ in range(9))
            time_per_run = seconds(joint, k, device=device) / runs
            if k:  # the first round is a warm-up
                times["joint"].append(time_per_run)
                times["alone"].append(single_times[len(single_times) // 2])
        medians = {k: 1e3 * sorted(v)[len(v) // 2] for k, v in times.items()}
        gain = medians["alone"] / medians["joint"]
        print(
            f"| `{name}` | {n} | {width} | {precision} | {runs} | {medians['joint']:.2f} | "
            f"{medians['alone']:.2f} | {gain:.2f} × |",
            flush=True,
        )


if __name__ == "__main__":
    main()
