"""Print one table of the times and the memory of training steps, by batch and by model.

    python benchmarks/step_table.py [--device cuda] [--features 1024,1536] [--rounds 15]
        [--batches "32 of 24-120,1 of 10,000" ...]

The contestants take turns, so that other work on the machine affects all of them equally. A step is
forward pass, losses, backward pass and optimiser; what depends on the graphs alone is made once, as
training does. "by hand" is ABMIL in plain PyTorch, without a library; "default" the three members
of `probsa train`, one after another; torchmil's models get the same bags by its own collate
function, if `torchmil` is installed. Memory is the peak of the device above what the bags take, and
is known on a GPU only.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bench_step
import torch
from bench_step import Step, race, theirs
from torch import nn

import probsa
from probsa.core import Bag, Bags, pack, random_stream
from probsa.training import TrainingConfig
from probsa.training.optimizers import make_optimizer
from probsa.variational import objective

BATCHES: Mapping[str, tuple[int, int, int]] = {
    "32 of 24-120": (24, 121, 32),
    "32 of 2,000": (2000, 2001, 32),
    "1 of 10,000": (10_000, 10_001, 1),
    "1 of 50,000": (50_000, 50_001, 1),
    "1 of 200,000": (200_000, 200_001, 1),
}
"""The smallest and the largest number of patches (exclusive), and the number of bags."""
DEFAULT_MEMBERS: Sequence[Mapping[str, Any]] = ({}, {"guidance": "normal"}, {"negatives": 1.0})
SAMPLES = 16


class HandWritten(nn.Module):
    """ABMIL: one linear layer with ReLU, tanh attention and a linear classifier."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, 512)
        self.v = nn.Linear(512, 128)
        self.w = nn.Linear(128, 1, bias=False)
        self.classifier = nn.Linear(512, 1)

    def loss(self, bags: Bags) -> torch.Tensor:
        h = self.embed(bags.x).relu()
        f = self.w(self.v(h).tanh())[:, 0]
        index = bags.segments.bag
        count = len(bags)
        top = f.new_full((count,), -torch.inf).scatter_reduce(0, index, f.detach(), "amax")
        e = (f - top[index]).exp()
        total = e.new_zeros(count).index_add(0, index, e)
        weighted = e * self.classifier(h)[:, 0]
        pooled = weighted.new_zeros(count).index_add(0, index, weighted)
        logits = pooled / total
        return nn.functional.binary_cross_entropy_with_logits(logits, bags.y.to(logits))


def hand_written(bags: Bags) -> Step:
    """Return the step of the model without a library."""
    torch.manual_seed(0)
    model = HandWritten(bags.x.shape[1]).to(bags.x.device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.loss(bags).backward()
        optimizer.step()

    return step


def trained(name: str, bags: Bags, members: Sequence[Mapping[str, Any]] = ({},)) -> Step:
    """Return a step of each of some models, one after another."""
    steps: list[Step] = []
    for arguments in members:
        torch.manual_seed(0)
        model = probsa.models.build(name, in_dim=bags.x.shape[1], **arguments)
        model = model.train().to(bags.x.device)
        steps.append(_step(model, make_optimizer(model, TrainingConfig()), bags))

    def all_steps() -> None:
        for step in steps:
            step()

    return all_steps


def _step(model: Any, optimizer: Any, bags: Bags) -> Step:
    generator = random_stream("table", model.name)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        out = model(bags, generator=generator)
        terms = model.losses(out, bags)
        objective(terms, weights=model.loss_weights, kl_weight=1.0).backward()
        optimizer.step()

    return step


def torchmil_steps(bags: Bags) -> dict[str, Callable[[], Step]]:
    """Return torchmil's ABMIL and ProbSmoothABMIL; none if it is not installed."""
    if bench_step.collate_fn is None:
        return {}
    from torchmil.models import ABMIL, ProbSmoothABMIL

    width = bags.x.shape[1]

    def first_layer() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 512), nn.ReLU())

    return {
        "torchmil ABMIL": lambda: theirs(
            ABMIL((width,), att_dim=128, feat_ext=first_layer()), bags, has_graph=False
        ),
        "torchmil ProbSmoothABMIL": lambda: theirs(
            ProbSmoothABMIL((width,), att_dim=128, feat_ext=first_layer()), bags
        ),
    }


def contestants(bags: Bags) -> dict[str, Callable[[], Step]]:
    """Return what makes the step of each contestant."""
    return {
        "by hand": lambda: hand_written(bags),
        "abmil": lambda: trained("abmil", bags),
        "dirac": lambda: trained("abmil-probsa-dirac", bags),
        "diag": lambda: trained("abmil-probsa-diag", bags, [{"samples": SAMPLES}]),
        "evidence-field": lambda: trained("evidence-field", bags),
        "default": lambda: trained("evidence-field", bags, DEFAULT_MEMBERS),
        **torchmil_steps(bags),
    }


def batch_of(name: str, features: int, device: torch.device) -> Bags:
    """Return slides on lattices, or scans as chains, of standard normal features."""
    low, high, count = BATCHES[name]
    source = random_stream("table", name)
    sizes = torch.randint(low, high, (count,), generator=source).tolist()
    bags: list[Bag] = []
    for k, n in enumerate(sizes):
        row = torch.arange(n)
        side = int(n**0.5)
        coords = row[:, None] if n < 200 else torch.stack([row % side, row // side], 1)
        x = torch.randn(n, features, generator=source)
        bags.append(Bag.from_arrays(x, coords, label=k % 2, name=f"bag {k}", stride=1.0))
    return pack(bags).to(device)


def peak_gb(step: Step, device: torch.device) -> float | None:
    """Return the largest memory of a step beyond what was there before; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return (torch.cuda.max_memory_allocated(device) - before) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="Times and memory of training steps.")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--features", default="1024,1536", help="widths, comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--threads", type=int, help="threads of torch; default: torch's own choice")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    bench_step.DEVICE = device
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(bench_step.machine())
    print("\n| batch | features | model | ms | range | / abmil | GB |\n" + "|---" * 7 + "|")
    for name in arguments.batches:
        for features in map(int, arguments.features.split(",")):
            bags = batch_of(name, features, device)
            steps = {model: make() for model, make in contestants(bags).items()}
            peaks = {model: peak_gb(step, device) for model, step in steps.items()}
            times = race(steps, rounds=arguments.rounds)
            for model, seconds in times.items():
                ratios = [a / b for a, b in zip(seconds, times["abmil"], strict=True)]
                gb = peaks[model]
                print(
                    f"| {name} | {features:,} | {model} | {1e3 * statistics.median(seconds):.3g} "
                    f"| {1e3 * min(seconds):.3g}-{1e3 * max(seconds):.3g} "
                    f"| {statistics.median(ratios):.2f} | {'' if gb is None else f'{gb:.2f}'} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
