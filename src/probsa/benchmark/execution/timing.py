"""Time a training step of each model of a grid (table 4 of the paper), on the grid's own batches.

A step consists of forward pass, loss, backward pass and optimiser; reading is not included. The
models take turns on the same batches of the training part, so that other load on the machine
affects all of them alike. A time is the median over rounds, a ratio the median of paired ratios.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import Bags, TextTable, random_stream, seed_of, write_csv
from ...errors import InputError
from ...models import Model, build
from ...training import (
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
from ...variational import objective
from ..grid.methods_and_cells import Cell, Family, Method
from ..grid.variants import family_baseline
from ..results.paper import BASELINES, position
from .torchmil import torchmil_batch, torchmil_loss, torchmil_model

FILE = "timing.csv"
ROUNDS, BATCHES = 15, 4
KL_WEIGHT = 1.0
"""The coefficient λ of a timed step; all values except 0 take the same time."""
Step = Callable[[int], None]
"""Performs a training step on the k-th batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """The step time of one method on one data set; times in milliseconds."""

    data: str
    method: str
    """Label of the method."""
    model: str
    bags: int
    """Largest number of bags per step."""
    instances: float
    """Number of instances per step, averaged over the timed batches."""
    milliseconds: float
    lower: float
    """First quartile over rounds."""
    upper: float
    """Third quartile over rounds."""
    overhead: float | None
    """Ratio to the plain model of the family; None if the grid does not contain it."""
    torchmil: float | None
    """Time of torchmil's model; None if torchmil has no such model or is not installed."""
    torchmil_ratio: float | None
    """Ratio of torchmil's time to ours."""
    threads: int
    device: str
    torch: str


def write_timing(
    cells: Sequence[Cell], out: Path, *, rounds: int = ROUNDS, threads: int = 1
) -> Path:
    """Time every method of a grid on each of its data sets and write `out`/timing.csv.

    Args:
        cells: Cells of a grid; the first cell of each method and data set is timed, whatever its
            λ.
        out: Folder of the experiment.
        rounds: Number of timed steps per model.
        threads: Number of CPU threads for all models.
    """
    times: list[StepTime] = []
    for data in dict.fromkeys(cell.data for cell in cells):
        by_method = {c.method.label: c for c in reversed(cells) if c.data == data}
        times += time_steps(list(by_method.values()), rounds=rounds, threads=threads)
    path = out / FILE
    write_csv(path, [f.name for f in fields(StepTime)], [asdict(t) for t in times])
    return path


def read_timing(out: Path) -> list[StepTime]:
    """Read the file written by `write_timing`; return an empty list if it does not exist.

    Raises:
        InputError: The file is damaged.
    """
    path = out / FILE
    if not path.is_file():
        return []
    times = []
    for row in TextTable.read(path).rows:
        try:
            times.append(
                StepTime(
                    data=row["data"],
                    method=row["method"],
                    model=row["model"],
                    bags=int(row["bags"]),
                    threads=int(row["threads"]),
                    device=row["device"],
                    torch=row["torch"],
                    instances=float(row["instances"]),
                    milliseconds=float(row["milliseconds"]),
                    lower=float(row["lower"]),
                    upper=float(row["upper"]),
                    overhead=_optional(row["overhead"]),
                    torchmil=_optional(row["torchmil"]),
                    torchmil_ratio=_optional(row["torchmil_ratio"]),
                )
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path} cannot be used ({error}): make it again with probsa benchmark --timing"
            ) from error
    return times


def time_steps(
    cells: Sequence[Cell], *, rounds: int = ROUNDS, batches: int = BATCHES, threads: int = 1
) -> list[StepTime]:
    """Time a training step of each cell, in turns; all cells use one data set.

    Args:
        cells: One cell per method.
        rounds: Number of timed steps per cell.
        batches: Number of batches of the first epoch, which are used in turn.
        threads: Number of CPU threads.

    Returns: The times in the order of the paper's tables.

    Raises:
        InputError: `rounds` or `batches` is less than 1.
    """
    if rounds < 1 or batches < 1:
        raise InputError(f"{rounds} rounds of {batches} batches: give at least one of each")
    cells = sorted(cells, key=lambda c: position(c.method))
    with _torch_threads(threads), torch.random.fork_rng(devices=[]):
        contestants = _contestants(cells, batches=batches)
        steps = {name: c.step for name, c in contestants.items()}
        seconds = race(steps, rounds=rounds)
    plain = {family: _plain_label(cells, family) for family in BASELINES}
    return [
        _step_time(cell, contestants, seconds, baseline=plain[cell.method.family], threads=threads)
        for cell in cells
    ]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contestant:
    step: Step
    bags: int
    instances: float
    device: str


def _contestants(cells: Sequence[Cell], *, batches: int) -> dict[str, _Contestant]:
    """Return our models by label, and torchmil's as `torchmil LABEL`."""
    contestants: dict[str, _Contestant] = {}
    data: dict[Any, PreparedData] = {}
    packed: dict[Any, list[Bags]] = {}
    for cell in cells:
        config, name = cell.config, cell.method.label
        data_key = (config.data, config.training.balanced, config.order_seed)
        if data_key not in data:
            data[data_key] = prepare(config)
        batch_key = (*data_key, config.training.batch_size, config.training.max_instances)
        device = choose_device(config.training.device)
        if batch_key not in packed:
            packed[batch_key] = _batches(config, data[data_key], count=batches, device=device)
        bags = packed[batch_key]
        model = _model(config, data[data_key]).to(device)
        metadata = {
            "bags": max(len(b) for b in bags),
            "instances": statistics.fmean(len(b.x) for b in bags),
            "device": str(device),
        }
        contestants[name] = _Contestant(step=_our_step(model, config, bags), **metadata)
        samples = getattr(model, "samples", None)
        rival = _torchmil_step(cell.method, config, bags, samples=samples)
        if rival is not None:
            contestants[f"torchmil {name}"] = _Contestant(step=rival, **metadata)
    return contestants


def _batches(
    config: RunConfig, prepared: PreparedData, *, count: int, device: torch.device
) -> list[Bags]:
    """Return the first batches of the first epoch, as a training step receives them."""
    plan = plan_epoch(
        prepared.split.train,
        seed=config.order_seed,
        epoch=0,
        batch_size=config.training.batch_size,
        max_instances=config.training.max_instances,
        size=prepared.bags.size,
    )
    reader = BagReader(prepared.bags, prepared.targets)
    standardizer = prepared.standardizer.to(device)
    return [
        standardizer(reader[Shard(names, len(names))].to(device, torch.float32))
        for names in plan[:count]
    ]


def _model(config: RunConfig, prepared: PreparedData) -> Model:
    """Return the model with its initial weights, as in a run."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    return build(config.model, **{**prepared.model_arguments, **config.model_arguments}).train()


def _our_step(model: Model, config: RunConfig, batches: Sequence[Bags]) -> Step:
    settings = config.training
    optimizer = make_optimizer(model, settings)
    device = batches[0].x.device
    model.start_epoch(0, settings.epochs)

    def step(k: int) -> None:
        bags = batches[k % len(batches)]
        generator = random_stream("timing", k, device=device)
        optimizer.zero_grad(set_to_none=True)
        with precision_context(settings.precision, device):
            out = model(bags, generator=generator)
            terms = model.losses(out, bags)
        objective(terms, weights=model.loss_weights, kl_weight=KL_WEIGHT).backward()
        clip_gradients(optimizer, settings.clip_norm)
        optimizer.step()
        model.after_step(out, bags)
        _synchronize(device)

    return step


def _torchmil_step(
    method: Method, config: RunConfig, batches: Sequence[Bags], *, samples: int | None
) -> Step | None:
    """Return the step of torchmil's model; None if it has none or if the arguments change ours."""
    if set(method.arguments) - {"samples", "predict_samples"}:
        return None
    model = torchmil_model(method.model, in_dim=batches[0].x.shape[1], samples=samples)
    if model is None:
        return None
    device = batches[0].x.device
    model = model.to(device).train()
    losses = [torchmil_loss(model, torchmil_batch(bags)) for bags in batches]
    optimizer = torch.optim.Adam(model.parameters(), lr=config.training.learning_rate)

    def step(k: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        losses[k % len(losses)]().backward()
        optimizer.step()
        _synchronize(device)

    return step


def _synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _plain_label(cells: Sequence[Cell], family: Family) -> str | None:
    """Return the label of a family's plain model."""
    baseline = family_baseline([c.method for c in cells], family)
    return None if baseline is None else baseline.label


def _step_time(
    cell: Cell,
    contestants: Mapping[str, _Contestant],
    seconds: Mapping[str, Sequence[float]],
    *,
    baseline: str | None,
    threads: int,
) -> StepTime:
    name = cell.method.label
    ours, theirs = seconds[name], seconds.get(f"torchmil {name}")
    lower, upper = np.quantile(ours, [0.25, 0.75])
    return StepTime(
        data=cell.data,
        method=name,
        model=cell.method.model,
        bags=contestants[name].bags,
        instances=round(contestants[name].instances, 1),
        milliseconds=_ms(statistics.median(ours)),
        lower=_ms(lower),
        upper=_ms(upper),
        overhead=None if baseline is None else _median_ratio(ours, seconds[baseline]),
        torchmil=None if theirs is None else _ms(statistics.median(theirs)),
        torchmil_ratio=None if theirs is None else _median_ratio(theirs, ours),
        threads=threads,
        device=contestants[name].device,
        torch=torch.__version__,
    )


def _median_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return round(statistics.median(x / y for x, y in zip(a, b, strict=True)), 4)


def _ms(seconds: float | np.floating) -> float:
    return round(1e3 * float(seconds), 4)


def _optional(text: str) -> float | None:
    return float(text) if text else None


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
