"""What a training step of each model of a grid costs (the paper's table 4), on its own batches.

A step is forward, loss, backward and the optimiser; reading is not in it. Models take turns on the
same batches of the training part, so that whatever else the machine does meets all of them alike;
a time is the median over rounds, a ratio the median of paired ratios.
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

from ...core import Bags, read_csv, seed_of, stream, write_csv
from ...errors import InputError
from ...models import Model, build
from ...training import (
    BagReader,
    Prepared,
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
from .torchmil import their_batch, their_loss, their_model

FILE = "timing.csv"
ROUNDS, BATCHES = 15, 4
KL_WEIGHT = 1.0
"""λ of a timed step: any that is not 0 costs the same."""
Step = Callable[[int], None]
"""A training step on the k-th batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """One method on one data set; times in milliseconds."""

    data: str
    method: str
    """Its label."""
    model: str
    bags: int
    """In a step, at most."""
    instances: float
    """In a step, on average over the timed batches."""
    milliseconds: float
    lower: float
    """First quartile over rounds."""
    upper: float
    overhead: float | None
    """Over the plain model of the family; None where the grid has none."""
    torchmil: float | None
    """torchmil's milliseconds; None where it has no such model, or is not installed."""
    torchmil_ratio: float | None
    """torchmil's over ours."""
    threads: int
    device: str
    torch: str


def write_timing(
    cells: Sequence[Cell], out: Path, *, rounds: int = ROUNDS, threads: int = 1
) -> Path:
    """Times every method of a grid on each of its data sets and writes `out`/timing.csv.

    Args:
        cells: of a grid; the first of each method and data set is timed, whatever its λ.
        out: the experiment's folder.
        rounds: timed steps of each model.
        threads: of the CPU, for all models.
    """
    times: list[StepTime] = []
    for data in dict.fromkeys(cell.data for cell in cells):
        own = {c.method.label: c for c in reversed(cells) if c.data == data}
        times += time_steps(list(own.values()), rounds=rounds, threads=threads)
    path = out / FILE
    write_csv(path, [f.name for f in fields(StepTime)], [asdict(t) for t in times])
    return path


def read_timing(out: Path) -> list[StepTime]:
    """What `write_timing` wrote; empty without the file.

    Raises:
        InputError: the file is damaged.
    """
    path = out / FILE
    if not path.is_file():
        return []
    found = []
    for row in read_csv(path):
        try:
            found.append(
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
    return found


def time_steps(
    cells: Sequence[Cell], *, rounds: int = ROUNDS, batches: int = BATCHES, threads: int = 1
) -> list[StepTime]:
    """Times a training step of each cell, all on one data set, in turns.

    Args:
        cells: one a method.
        rounds: timed steps of each.
        batches: of the first epoch, taken in turn.
        threads: of the CPU.

    Returns: in the order of the paper's tables.

    Raises:
        InputError: fewer than one round or batch.
    """
    if rounds < 1 or batches < 1:
        raise InputError(f"{rounds} rounds of {batches} batches: give at least one of each")
    cells = sorted(cells, key=lambda c: position(c.method))
    with _threads(threads), torch.random.fork_rng(devices=[]):
        contestants = _contestants(cells, batches=batches)
        steps = {name: c.step for name, c in contestants.items()}
        seconds = race(steps, rounds=rounds)
    plain = {family: _plain(cells, family) for family in BASELINES}
    return [
        _time(cell, contestants, seconds, baseline=plain[cell.method.family], threads=threads)
        for cell in cells
    ]


def race(steps: Mapping[str, Step], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of each in every round; who starts changes each time; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for k in range(rounds + 1):
        turn = k % len(names)
        for name in names[turn:] + names[:turn]:
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
    """Ours by label, torchmil's by `torchmil LABEL`."""
    found: dict[str, _Contestant] = {}
    data: dict[Any, Prepared] = {}
    packed: dict[Any, list[Bags]] = {}
    for cell in cells:
        config, name = cell.config, cell.method.label
        key = (config.data, config.training.balanced, config.order_seed)
        if key not in data:
            data[key] = prepare(config)
        sizes = (*key, config.training.batch_size, config.training.max_instances)
        device = choose_device(config.training.device)
        if sizes not in packed:
            packed[sizes] = _batches(config, data[key], count=batches, device=device)
        held = packed[sizes]
        model = _model(config, data[key]).to(device)
        metadata = {
            "bags": max(len(b) for b in held),
            "instances": statistics.fmean(len(b.x) for b in held),
            "device": str(device),
        }
        found[name] = _Contestant(step=_ours(model, config, held), **metadata)
        samples = getattr(model, "samples", None)
        theirs = _theirs(cell.method, config, held, samples=samples)
        if theirs is not None:
            found[f"torchmil {name}"] = _Contestant(step=theirs, **metadata)
    return found


def _batches(
    config: RunConfig, prepared: Prepared, *, count: int, device: torch.device
) -> list[Bags]:
    """The first of the first epoch, as a step gets them."""
    plan = plan_epoch(
        prepared.split.train,
        seed=config.order_seed,
        epoch=0,
        batch_size=config.training.batch_size,
        max_instances=config.training.max_instances,
        size=prepared.bags.size,
    )
    reader = BagReader(prepared.bags, prepared.labels)
    standardizer = prepared.standardizer.to(device)
    return [
        standardizer(reader[Shard(names, len(names))].to(device, torch.float32))
        for names in plan[:count]
    ]


def _model(config: RunConfig, prepared: Prepared) -> Model:
    """As a run starts with it."""
    torch.manual_seed(seed_of(config.seed, "weights"))
    return build(config.model, **{**prepared.model_arguments, **config.model_arguments}).train()


def _ours(model: Model, config: RunConfig, held: Sequence[Bags]) -> Step:
    settings = config.training
    optimizer = make_optimizer(model, settings)
    device = held[0].x.device
    model.start_epoch(0, settings.epochs)

    def step(k: int) -> None:
        bags = held[k % len(held)]
        generator = stream("timing", k, device=device)
        optimizer.zero_grad(set_to_none=True)
        with precision_context(settings.precision, device):
            out = model(bags, generator=generator)
            terms = model.losses(out, bags)
        objective(terms, weights=model.loss_weights, kl_weight=KL_WEIGHT).backward()
        clip_gradients(optimizer, settings.clip_norm)
        optimizer.step()
        model.after_step(out, bags)
        _wait(device)

    return step


def _theirs(
    method: Method, config: RunConfig, held: Sequence[Bags], *, samples: int | None
) -> Step | None:
    """torchmil's model in the same place; None where it has none, or ours is no longer like it."""
    if set(method.arguments) - {"samples", "predict_samples"}:
        return None
    model = their_model(method.model, in_dim=held[0].x.shape[1], samples=samples)
    if model is None:
        return None
    device = held[0].x.device
    model = model.to(device).train()
    losses = [their_loss(model, their_batch(bags)) for bags in held]
    optimizer = torch.optim.Adam(model.parameters(), lr=config.training.learning_rate)

    def step(k: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        losses[k % len(losses)]().backward()
        optimizer.step()
        _wait(device)

    return step


def _wait(device: torch.device) -> None:
    """Until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _plain(cells: Sequence[Cell], family: Family) -> str | None:
    """The label of a family's plain model."""
    found = family_baseline([c.method for c in cells], family)
    return None if found is None else found.label


def _time(
    cell: Cell,
    contestants: Mapping[str, _Contestant],
    seconds: Mapping[str, Sequence[float]],
    *,
    baseline: str | None,
    threads: int,
) -> StepTime:
    name = cell.method.label
    own, theirs = seconds[name], seconds.get(f"torchmil {name}")
    lower, upper = np.quantile(own, [0.25, 0.75])
    return StepTime(
        data=cell.data,
        method=name,
        model=cell.method.model,
        bags=contestants[name].bags,
        instances=round(contestants[name].instances, 1),
        milliseconds=_ms(statistics.median(own)),
        lower=_ms(lower),
        upper=_ms(upper),
        overhead=None if baseline is None else _ratio(own, seconds[baseline]),
        torchmil=None if theirs is None else _ms(statistics.median(theirs)),
        torchmil_ratio=None if theirs is None else _ratio(theirs, own),
        threads=threads,
        device=contestants[name].device,
        torch=torch.__version__,
    )


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return round(statistics.median(x / y for x, y in zip(a, b, strict=True)), 4)


def _ms(seconds: float | np.floating) -> float:
    return round(1e3 * float(seconds), 4)


def _optional(text: str) -> float | None:
    return float(text) if text else None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
