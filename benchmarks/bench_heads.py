"""How much faster runs train side by side than one after another: steps in turns, CPU seconds.

    python benchmarks/bench_heads.py [--heads 20] [--repeats 9]

Four bags a step; the sizes of the two ready bag sets and, for a GPU, of slides. CPU time is of the
process, so that other work on the machine does not count; on a GPU it is the wall clock's.
"""

import argparse
import time
from collections.abc import Callable

import torch

from probsa import models, pack
from probsa.core.bags import Bag, Bags
from probsa.core.randomness import random_stream
from probsa.training.devices import keep_memory, precision_context
from probsa.training.model_stack import Stack, objectives
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
    """Four chains of n instances."""
    g = torch.Generator().manual_seed(0)
    chain = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    bags = [
        Bag(name=f"b{k}", x=torch.randn(n, width, generator=g), edges=chain,
            weights=torch.rand(n - 1, generator=g), y=k % 2)
        for k in range(4)
    ]  # fmt: skip
    return pack(bags).to(device)


def steps(
    name: str, n: int, width: int, precision: str, *, heads: int, device: torch.device
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """A step of all heads at once, and a step of one model alone."""
    bags = bags_of(n, width, device=device)
    built = [models.build(name, in_dim=width, seed=s).to(device) for s in range(heads)]
    stack = Stack(built).to(device)
    many = torch.optim.Adam(stack.parameters(), lr=1e-4, fused=True)
    alone = torch.optim.Adam(built[0].parameters(), lr=1e-4, fused=True)

    def together(k: int) -> None:
        noise = [random_stream(s, k, device=device) for s in range(heads)]
        with precision_context(precision, device):
            out, copies = stack(bags, generators=noise)
            terms = stack.losses(out, copies)
        many.zero_grad(set_to_none=True)
        objectives(terms, weights={}, kl_weights=[1.0] * heads).sum().backward()
        many.step()

    def single(k: int) -> None:
        with precision_context(precision, device):
            out = built[0](bags, generator=random_stream(0, k, device=device))
            terms = built[0].losses(out, bags)
        alone.zero_grad(set_to_none=True)
        objective(terms, weights={}, kl_weight=1.0).backward()
        alone.step()

    return together, single


def seconds(step: Callable[[int], None], k: int, *, device: torch.device) -> float:
    """Of one step."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    step(k)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    """Prints one row a case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    a = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("| model | patches a bag | features | | heads | ms a head together | ms alone | gain |")
    print("|---|---|---|---|---|---|---|---|")
    for name, n, width, precision in [*CASES, *(GPU_CASES if device.type == "cuda" else [])]:
        heads = a.heads if name.startswith("abmil") else min(a.heads, 6)
        together, single = steps(name, n, width, precision, heads=heads, device=device)
        times: dict[str, list[float]] = {"together": [], "alone": []}
        for k in range(a.repeats + 1):
            # several alone, for each finds the caches as the one before left them
            own = sorted(seconds(single, k, device=device) for _ in range(9))
            each = seconds(together, k, device=device) / heads
            if k:  # the first is to warm up
                times["together"].append(each)
                times["alone"].append(own[len(own) // 2])
        both = {k: 1e3 * sorted(v)[len(v) // 2] for k, v in times.items()}
        gain = both["alone"] / both["together"]
        print(
            f"| `{name}` | {n} | {width} | {precision} | {heads} | {both['together']:.2f} | "
            f"{both['alone']:.2f} | {gain:.2f} × |",
            flush=True,
        )


if __name__ == "__main__":
    main()
