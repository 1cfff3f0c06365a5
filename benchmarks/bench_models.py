"""Compare a training step of every model with that of torchmil 1.0.2 on the same bags.

Our models get the packed batch, torchmil's the padded one of its own collate function. They
alternate in one run; a ratio is the median of paired ratios. Peak memory is measured in a separate
process.

    python benchmarks/bench_models.py [--only gtp,camil] [--rounds 5] [--out results.json]
    python benchmarks/bench_models.py --large          (one bag of 50,000, our models only)
"""

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_step import Step, batch_of, first_layer, machine, padded, race
from torch import nn

import probsa
from probsa.core.bags import Bags, pack
from probsa.core.graphs import grid
from probsa.core.randomness import random_stream
from probsa.models import build
from probsa.variational.objectives import objective

try:
    from torchmil import models as torchmil
except ImportError:
    torchmil = None

P = 2048
BATCHES = ("32 of 24-57", "32 of 10-120", "1 of 4,000")
SHAPE = {"att_dim": 512, "n_heads": 8}
# model → our arguments, torchmil's class and its arguments, and how the architectures differ
PAIRS: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    "abmil": ({}, "ABMIL", {}, "same"),
    "clam-sb": ({}, "CLAM_SB", {"gated": True, "k_sample": 8}, "same"),
    "dsmil": ({}, "DSMIL", {"nonlinear_q": True}, "same"),
    "dtfdmil": (
        {"trunk": "tanh"},
        "DTFDMIL",
        {"n_groups": 4, "distill_mode": "afs"},
        "same (plain attention)",
    ),
    "patchgcn": (
        {"conv": "gcn", "block": "plain", "layers": 4, "trunk": "tanh", "score_bias": False},
        "PatchGCN",
        {},
        "same (4 GCNConv)",
    ),
    "smabmil": ({}, "SmABMIL", {"sm_where": "mid"}, "same"),
    "tabmil": (
        {"out_proj": False},
        "TransformerABMIL",
        {"transf_n_layers": 2, "transf_add_self": False},
        "same (no map after the heads)",
    ),
    "transmil": (
        {},
        "TransMIL",
        {**SHAPE, "n_landmarks": 256},
        "theirs: no map after the heads, no convolution of the values",
    ),
    "setmil": (
        {},
        "SETMIL",
        {"use_pmf": True, "set_n_layers": 2, "set_n_heads": 8},
        "theirs: pyramid of width 512 (101 M parameters)",
    ),
    "gtp": ({}, "GTP", {**SHAPE, "n_layers": 2}, "theirs: MLP of four times the width"),
    "iibmil": (
        {},
        "IIBMIL",
        {**SHAPE, "n_layers_encoder": 2, "n_layers_decoder": 2},
        "theirs: a plain encoder, no queries, prototypes never updated",
    ),
    "camil": (
        {"layers": 1},
        "CAMIL",
        {"nystrom_att_dim": 512, "n_heads": 8, "n_landmarks": 256, "gated_pool": True},
        "one layer each; theirs: no convolution of the values",
    ),
}
DENSE = ("gtp", "camil")
"""torchmil's models build N×N matrices; here ours should be three times as fast at 4,000."""


def our_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build(name, in_dim=P, **PAIRS[name][0]).train()


def our_step(name: str, bags: Bags, *, bf16: bool = False) -> Step:
    model = our_model(name)
    generator = random_stream("bench", name)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            out = model(bags, generator=generator)
            terms = model.losses(out, bags)
        objective(terms, weights=model.loss_weights, kl_weight=1.0).backward()

    return step


def their_model(name: str) -> nn.Module:
    assert torchmil is not None
    _, cls, arguments, _ = PAIRS[name]
    torch.manual_seed(0)

    return getattr(torchmil, cls)((P,), feat_ext=first_layer(relu=True), **arguments).train()


def their_step(name: str, bags: Bags) -> Step:
    """Return a step of torchmil's model; inputs of its `compute_loss` are passed by name."""
    model, batch = their_model(name), padded(bags)
    assert bags.coords is not None
    cells = bags.coords.split(list(bags.sizes))
    coords = nn.utils.rnn.pad_sequence(cells, batch_first=True)
    available = {**{k: batch[k] for k in ("Y", "X", "adj", "mask")}, "coords": coords}
    parameters = inspect.signature(model.compute_loss).parameters
    inputs = {k: available[k] for k in parameters if k in available}

    def step() -> None:
        model.zero_grad(set_to_none=True)
        _, terms = model.compute_loss(**inputs)
        torch.stack([t.reshape(()) for t in terms.values()]).sum().backward()

    return step


def with_coords(bags: Bags) -> Bags:
    """Return the bags with coordinates: one row for a chain, √n columns for a grid."""
    cells = []
    for n in bags.sizes:
        width = int(n**0.5) if n >= 1000 else n
        cells.append(torch.stack([torch.arange(n) % width, torch.arange(n) // width], 1))
    return replace(bags, coords=torch.cat(cells), stride=(1.0,) * len(bags))


def peak(name: str, side: str, batch: str) -> float:
    """Return the GB that a step needs beyond its batch, measured in a separate process."""
    command = [sys.executable, __file__, "--child", name, side, batch]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else float("nan")


def child(name: str, side: str, batch: str) -> None:
    """Print the growth of the largest resident size over two steps, in GB."""
    bags = large_bag() if batch == "large" else with_coords(batch_of(batch))
    step = our_step(name, bags) if side == "ours" else their_step(name, bags)
    before = high_water()
    step()
    step()
    print(high_water() - before)


def high_water() -> float:
    """Return the largest resident size of this process in GB, without that of its parent.

    `getrusage` would include the parent's.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def large_bag() -> Bags:
    """Return a slide of 50,000 patches."""
    n, width = 50_000, 250
    cells = torch.stack([torch.arange(n) % width, torch.arange(n) // width], 1)
    edges = grid(cells, stride=1.0)
    bag = probsa.Bag(
        name="large",
        x=torch.randn(n, P, generator=random_stream("bench", "large")),
        edges=edges,
        weights=torch.ones(edges.shape[1]),
        y=1.0,
        coords=cells,
        stride=1.0,
    )
    return pack([bag])


def compare(name: str, batch: str, rounds: int) -> dict[str, Any]:
    """Return one row with the times, their ratio and the memory peaks."""
    bags = with_coords(batch_of(batch))
    steps: dict[str, Step] = {"ours": our_step(name, bags)}
    row: dict[str, Any] = {"model": name, "batch": batch, "alike": PAIRS[name][3]}
    if torchmil is not None:
        steps["theirs"] = their_step(name, bags)
        if name in DENSE:
            steps["bf16"] = our_step(name, bags, bf16=True)
    times = race(steps, rounds=affordable(steps, rounds))
    row["ours_ms"] = 1e3 * statistics.median(times["ours"])
    row["ours_gb"] = peak(name, "ours", batch)
    if "theirs" in times:
        ratios = [b / a for a, b in zip(times["ours"], times["theirs"], strict=True)]
        row["theirs_ms"] = 1e3 * statistics.median(times["theirs"])
        row |= {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        row["theirs_gb"] = peak(name, "theirs", batch)
        if "bf16" in times:
            halves = [b / a for a, b in zip(times["bf16"], times["theirs"], strict=True)]
            row["ratio_bf16"] = statistics.median(halves)
        goal = 3.0 if name in DENSE and batch == BATCHES[2] else 1.0
        row |= {"goal": goal, "met": row["ratio"] >= goal}
    return row


def affordable(steps: dict[str, Step], rounds: int, *, seconds: float = 8.0) -> int:
    """Reduce the number of rounds if a round is slow: a step of torchmil may take 30 s."""
    start = time.perf_counter()
    for step in steps.values():
        step()
    return max(1, min(rounds, int(seconds / (time.perf_counter() - start))))


def show(row: dict[str, Any]) -> str:
    text = f"| {row['model']} | {row['batch']} | {row['ours_ms']:.0f} ms, {row['ours_gb']:.2f} GB |"
    if "theirs_ms" not in row:
        return text
    met = "" if row["met"] else " **missed**"
    ratio = f"{row['ratio']:.2f} ({row['low']:.2f}-{row['high']:.2f})"
    if "ratio_bf16" in row:
        ratio += f", our bf16 {row['ratio_bf16']:.2f}"
    theirs = f"{row['theirs_ms']:.0f} ms, {row['theirs_gb']:.2f} GB"
    return f"{text} {theirs} | {ratio}{met} | {row['alike']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PAIRS), help="models, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--large", action="store_true", help="one bag of 50,000 patches, our models only"
    )
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.child:
        child(*a.child)
        return
    print(json.dumps(machine()))
    rows = []
    measure: Callable[[str], list[dict[str, Any]]] = large if a.large else all_batches(a.rounds)
    for name in a.only.split(","):
        for row in measure(name):
            rows.append(row)
            print(show(row), flush=True)
            if a.out is not None:
                a.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


def all_batches(rounds: int) -> Callable[[str], list[dict[str, Any]]]:
    return lambda name: [compare(name, batch, rounds) for batch in BATCHES]


def large(name: str) -> list[dict[str, Any]]:
    bags = large_bag()
    times = race({"ours": our_step(name, bags)}, rounds=1)
    return [
        {
            "model": name,
            "batch": "1 of 50,000",
            "ours_ms": 1e3 * times["ours"][0],
            "ours_gb": peak(name, "ours", "large"),
        }
    ]


if __name__ == "__main__":
    main()
