"""Time a training step of each model of a grid (the paper's table 4), on the grid's own batches.

    python benchmarks/timing.py recipes/comparison.yaml --data rsna=DIR --data panda=DIR
        --data camelyon16=DIR [--rounds 15] [--threads 1] [--models abmil,dsmil] [--out times.csv]

`python benchmarks/paper.py --times times.csv` prints the paper's table 4 with these times beside.

A step is forward pass, loss, backward pass and optimiser; reading is not included. The models take
turns on the same batches of the training part, so that other load on the machine affects all of
them alike. A time is the median over rounds, with quartiles; a ratio is the median of paired
ratios: to the plain model of the family (`abmil` or `tabmil`), and of torchmil's model, where it is
installed, to ours. * marks networks of torchmil that differ from ours in a part or its size.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchmil_models import UNLIKE, torchmil_batch, torchmil_loss, torchmil_model

from probsa.benchmark import check_grid, read_grid
from probsa.benchmark.grid.checks import store_checked
from probsa.core import Bags, random_stream, seed_of, write_csv
from probsa.models import Model, build
from probsa.training import (
    BagReader,
    PreparedData,
    RunConfig,
    Shard,
    choose_device,
    clip_gradients,
    make_optimizer,
    plan_epoch,
    precision_context,
    prepare,
)
from probsa.variational import objective

BATCHES = 4
"""Number of batches of the first epoch, which are used in turn."""
KL_WEIGHT = 1.0
"""The coefficient λ of a timed step; all values except 0 take the same time."""
BASELINES = {"local": "abmil", "global": "tabmil"}
COLUMNS = (
    *("data", "method", "model", "bags", "instances", "milliseconds", "lower", "upper"),
    *("overhead", "torchmil", "torchmil_ratio"),
)
Step = Callable[[int], None]
"""Performs a training step on the k-th batch."""


def main() -> None:
    """Time the steps and print a table."""
    parser = argparse.ArgumentParser(description="Time of a training step of each model.")
    parser.add_argument("grid", type=Path, help="grid, as of `probsa benchmark`")
    parser.add_argument("--data", action="append", default=[], help="data set, or NAME=DIR")
    parser.add_argument("--models", help="models instead of those of the grid")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each model")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--out", type=Path, help="CSV file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    overrides = {"models": given.models} if given.models else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        grid = read_grid(given.grid, data=given.data, overrides=overrides, out=out)
        store_checked(check_grid(grid, out, read_all=False), out)  # the splits of a fixed test part
        cells = grid.cells(out)
        for data in dict.fromkeys(cell.data for cell in cells):
            methods = {c.method.label: c for c in reversed(cells) if c.data == data}
            for row in timed(dict(reversed(methods.items())), rounds=given.rounds):
                rows.append({"data": data, **row})
    if given.out is not None:
        write_csv(given.out, COLUMNS, rows)
    print(markdown(rows))
    print(f"\n{given.threads} CPU threads, torch {torch.__version__}")


def timed(cells: Mapping[str, Any], *, rounds: int) -> list[dict[str, Any]]:
    """Return a row of `COLUMNS` for each method of one data set, given a cell of the grid each."""
    steps: dict[str, Step] = {}
    sizes: dict[str, tuple[int, float]] = {}
    prepared: dict[Any, PreparedData] = {}
    for label, cell in cells.items():
        config: RunConfig = cell.config
        key = (config.data, config.training.balanced, config.order_seed)
        if key not in prepared:
            prepared[key] = prepare(config)
        batches = first_batches(config, prepared[key])
        sizes[label] = max(map(len, batches)), statistics.fmean(len(b.x) for b in batches)
        torch.manual_seed(seed_of(config.seed, "weights"))
        own = {**prepared[key].model_arguments, **config.model_arguments}
        model = build(config.model, **own).to(batches[0].x.device).train()
        steps[label] = our_step(model, config, batches)
        if not set(cell.method.arguments) - {"samples", "predict_samples"}:
            samples = getattr(model, "samples", None)
            theirs = torchmil_model(config.model, in_dim=batches[0].x.shape[1], samples=samples)
            if theirs is not None:
                steps[f"torchmil {label}"] = torchmil_step(theirs, config, batches)
    seconds = race(steps, rounds=rounds)
    rows = []
    for label, cell in cells.items():
        lower, upper = 1e3 * np.quantile(seconds[label], [0.25, 0.75])
        baseline = BASELINES[cell.method.family]
        plain = next((k for k, c in cells.items() if c.method.model == baseline), None)
        row: dict[str, Any] = {
            "method": label,
            "model": cell.method.model,
            "bags": sizes[label][0],
            "instances": round(sizes[label][1], 1),
            "milliseconds": round(1e3 * statistics.median(seconds[label]), 4),
            "lower": round(lower, 4),
            "upper": round(upper, 4),
            "overhead": ratio(seconds[label], seconds[plain]) if plain else "",
        }
        theirs = seconds.get(f"torchmil {label}")
        if theirs is not None:
            row["torchmil"] = round(1e3 * statistics.median(theirs), 4)
            row["torchmil_ratio"] = ratio(theirs, seconds[label])
        rows.append(row)
    return rows


def race(steps: Mapping[str, Step], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each step in every round.

    A different step begins each round. The first round warms up and is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for k in range(rounds + 1):
        first = k % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            steps[name](k)
            times[name].append(time.perf_counter() - start)
    return {name: seconds[1:] for name, seconds in times.items()}


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the median of paired ratios."""
    return round(statistics.median(x / y for x, y in zip(a, b, strict=True)), 4)


def first_batches(config: RunConfig, prepared: PreparedData) -> list[Bags]:
    """Return the first batches of the first epoch, as a training step receives them."""
    device = choose_device(config.training.device)
    plan = plan_epoch(
        prepared.split.train,
        seed=config.order_seed,
        epoch=0,
        batch_size=config.training.batch_size,
        max_instances=config.training.max_instances,
        size=prepared.bags.size,
    )
    reader = BagReader(prepared.bags, prepared.targets, model=config.model)
    standardizer = prepared.standardizer.to(device)
    return [standardizer(reader[Shard(names, len(names))].to(device)) for names in plan[:BATCHES]]


def our_step(model: Model, config: RunConfig, batches: Sequence[Bags]) -> Step:
    """Return a training step of one of our models."""
    settings = config.training
    device = batches[0].x.device
    optimizer = make_optimizer(model, settings)
    model.start_epoch(0, settings.epochs)

    def step(k: int) -> None:
        bags = batches[k % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        with precision_context(settings.precision, device):
            out = model(bags, generator=random_stream("timing", k, device=device))
            terms = model.losses(out, bags)
        objective(terms, weights=model.loss_weights, kl_weight=KL_WEIGHT).backward()
        clip_gradients(optimizer, settings.clip_norm)
        optimizer.step()
        model.after_step(out, bags)
        synchronize(device)

    return step


def torchmil_step(model: torch.nn.Module, config: RunConfig, batches: Sequence[Bags]) -> Step:
    """Return a training step of torchmil's model on its padded batches."""
    device = batches[0].x.device
    model = model.to(device).train()
    losses = [torchmil_loss(model, torchmil_batch(bags)) for bags in batches]
    optimizer = torch.optim.Adam(model.parameters(), lr=config.training.learning_rate)

    def step(k: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        losses[k % len(losses)]().backward()
        optimizer.step()
        synchronize(device)

    return step


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| data | method | bags | instances | ms [quartiles] | × plain | torchmil / ours |",
        "|---" * 7 + "|",
    ]
    for r in rows:
        ms = f"{r['milliseconds']:.2f} [{r['lower']:.2f}, {r['upper']:.2f}]"
        theirs = f"{r['torchmil_ratio']:.2f}" if "torchmil_ratio" in r else "-"
        theirs += "*" if "torchmil_ratio" in r and r["model"] in UNLIKE else ""
        plain = f"{r['overhead']:.2f}" if r["overhead"] else "-"
        cells = (r["data"], r["method"], r["bags"], r["instances"], ms, plain, theirs)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
