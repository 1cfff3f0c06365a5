"""Record what models predict after every epoch, so that rules can be compared afterwards.

    python benchmarks/real/trace.py simulate COHORTS
    python benchmarks/real/trace.py record --data BAGS --out TRACES [--sets ct_ich] [--folds 0 1]

Every folder of --data with features/ and labels.csv (with folds) is a set. Fold k is for testing,
fold k + 1 for validation. All runs of a fold that can share their batches train in one loop, the
others alone. Each run has one file (`trace_file`); runs that have one are skipped.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trace_file import Trace, load, path_of, save
from trace_recorder import Recorder

from probsa import models
from probsa.core import Bags, GraphOptions, pack
from probsa.datasets.simulated import Layout, write_simulated
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.devices import choose_device, keep_memory
from probsa.training.joint_rules import joint_key, why_not_jointly
from probsa.training.keepers import TrainingState
from probsa.training.loop import TrainingLoop
from probsa.training.model_groups import ModelGroup, SingleModel, build_model
from probsa.training.model_stack import StackedModels
from probsa.training.optimizers import WHOLE, make_optimizer, optimizer_of
from probsa.training.preparation import PreparedData, open_data, prepare
from probsa.training.progress import Run
from probsa.training.reporting import Reporter
from probsa.training.run_folder import RunFolder

LARGE = 200
"""Sets with more bags than this take batches of 16 bags instead of 4."""
FEW = 3000
"""With more validation and test instances than this, a trace stores the instances of positive test
bags only; with more of these than this, those of every second epoch."""
BATCH = 4096
"""Largest number of instances that are predicted at once."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A model and how it is trained; the defaults are those of recipes/standins.yaml."""

    name: str
    model: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    kl_weight: float | str = 0.0
    learning_rate: float = 3e-4
    epochs: int | None = None
    """None: 40, or 20 for sets with more than `LARGE` bags."""
    batch_size: int | None = None
    """None: 4, or 16 for sets with more than `LARGE` bags."""
    precision: str = "float32"


def _methods() -> list[Method]:
    methods = [Method(name="abmil", model="abmil")]
    for kind in ("dirac", "diag"):
        model = f"abmil-probsa-{kind}"
        methods += [
            Method(name=model, model=model, kl_weight="cyclical"),
            Method(name=f"{model}-kl0.1", model=model, kl_weight=0.1),
        ]
    # with the paper's learning rate
    methods += [
        replace(m, name=f"{m.name}-lr1e-4", learning_rate=1e-4)
        for m in methods
        if m.kl_weight != 0.1
    ]
    methods += [
        Method(name="clam-sb", model="clam-sb"),
        Method(name="smabmil", model="smabmil"),
        Method(name="tabmil", model="tabmil", epochs=20, precision="bf16"),
    ]
    for kl in (0.1, 1.0):
        methods.append(
            Method(name=f"abmil-probsa-field-kl{kl:g}", model="abmil-probsa-field", kl_weight=kl)
        )
    methods += [
        Method(name="clam-sb-probsa-field-kl0.1", model="clam-sb-probsa-field", kl_weight=0.1),
        Method(
            name="tabmil-probsa-field-kl0.1",
            model="tabmil-probsa-field",
            kl_weight=0.1,
            epochs=20,
            precision="bf16",
        ),
        Method(
            name="transmil-probsa-field-kl0.1",
            model="transmil-probsa-field",
            kl_weight=0.1,
            epochs=20,
        ),
        Method(name="evidence-dirac", model="evidence-dirac"),
    ]
    for kl in (0.01, 0.1):
        for kind in ("diag", "field"):
            name = f"evidence-{kind}"
            methods.append(Method(name=f"{name}-kl{kl:g}", model=name, kl_weight=kl))
    return methods


METHODS = {m.name: m for m in _methods()}
"""All methods; one line adds another. Models that are not registered are left out."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A run to trace."""

    data: str
    method: Method
    fold: int
    config: RunConfig
    path: Path


def config_of(
    method: Method, folder: Path, *, fold: int, seed: int, bags: int, device: str, threads: int
) -> RunConfig:
    """Return the configuration of a run on a set with this number of bags."""
    arguments = dict(method.arguments)
    if "predict_samples" in models.arguments(method.model):
        arguments.setdefault("predict_samples", 32)
    return RunConfig(
        data=DataConfig(
            graph=GraphOptions(weight_scale="median"),
            features=folder / "features",
            labels=folder / "labels.csv",
            test_fold=fold,
            standardize=True,
        ),
        model=method.model,
        model_arguments=arguments,
        training=TrainingConfig(
            epochs=method.epochs or (20 if bags > LARGE else 40),
            batch_size=method.batch_size or (16 if bags > LARGE else 4),
            learning_rate=method.learning_rate,
            kl_weight=method.kl_weight,  # pyright: ignore[reportArgumentType]
            precision=method.precision,  # pyright: ignore[reportArgumentType]
            device=device,  # pyright: ignore[reportArgumentType]
            threads=threads,
            tensorboard=False,
        ),
        seed=seed,
        data_seed=0,
    )


def planned(a: argparse.Namespace, *, data: str, fold: int) -> list[Traced]:
    """Return the runs of a fold that have no file yet."""
    folder = a.data / data
    bags = sum(1 for _ in (folder / "labels.csv").open(encoding="utf-8")) - 1
    runs = []
    for name in a.methods:
        method = METHODS[name]
        if a.epochs is not None:
            method = replace(method, epochs=a.epochs)
        if a.batch_size is not None:
            method = replace(method, batch_size=a.batch_size)
        for seed in a.seeds:
            config = config_of(
                method, folder, fold=fold, seed=seed, bags=bags, device=a.device, threads=a.threads
            )
            path = path_of(a.out, data=data, method=name, fold=fold, seed=seed)
            if path.is_file():
                _check_same(path, config)
            else:
                runs.append(Traced(data=data, method=method, fold=fold, config=config, path=path))
    return runs


def _check_same(path: Path, config: RunConfig) -> None:
    """Stop if a trace was made with other settings."""
    earlier, now = load(path).header["config"], config.to_dict()
    for section in ("model", "training"):
        for key in now[section].keys() - {"device", "threads"}:
            if earlier[section].get(key) != now[section][key]:
                raise SystemExit(
                    f"{path} was made with {key}={earlier[section].get(key)}, not "
                    f"{now[section][key]}: remove it, or give another --out"
                )


def together(runs: Sequence[Traced]) -> list[list[Traced]]:
    """Divide the runs of a fold into those that train in one loop."""
    loops: dict[str, list[Traced]] = {}
    for k, run in enumerate(runs):
        alone = why_not_jointly(run.config) is not None
        loops.setdefault(str(k) if alone else joint_key(run.config), []).append(run)
    return list(loops.values())


def by_structure(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by model and its arguments except for the seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = {k: v for k, v in run.model.arguments.items() if k != "seed"}
        groups.setdefault(f"{run.config.model} {sorted(values.items(), key=str)}", []).append(run)
    return list(groups.values())


def state_of(runs: Sequence[Run], prepared: PreparedData, *, device: torch.device) -> TrainingState:
    """Return the state of a loop over all runs, stacked where they can be."""
    groups: list[ModelGroup]
    if why_not_jointly(runs[0].config) is None:
        groups = [StackedModels(alike, device=device) for alike in by_structure(runs)]
        parameters = [p for group in groups for p in group.module.parameters()]
        settings = runs[0].config.training
        optimizer = optimizer_of([{"params": parameters, WHOLE: 0}], settings)
    else:
        (run,) = runs
        model = run.model.to(device)
        groups = [SingleModel(run, model)]
        optimizer = make_optimizer(model, run.config.training)
    # the recorder predicts the validation bags: the loop need not do it as well
    unvalidated = replace(prepared, split=replace(prepared.split, val=()))
    return TrainingState(
        groups=groups,
        optimizer=optimizer,
        prepared=unvalidated,
        standardizer=prepared.standardizer.to(device),
    )


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The validation and test bags of a fold, and which of their instances a trace stores."""

    batches: list[Bags]
    header: dict[str, Any]
    kept: np.ndarray
    """Whether each instance is stored, over all bags in order."""
    instance_labels: np.ndarray
    every: int


def watched(prepared: PreparedData, config: RunConfig, *, device: torch.device) -> Watched:
    """Read the bags that are predicted, standardised and in batches."""
    source = open_data(config.data)
    split, labels = prepared.split, prepared.labels
    bags = [source.bag(name) for name in (*split.val, *split.test)]
    sizes = [len(bag) for bag in bags]
    positive_test = [
        k >= len(split.val) and labels[bag.name] > 0 and bag.instance_labels is not None
        for k, bag in enumerate(bags)
    ]
    flags = [True] * len(bags) if sum(sizes) <= FEW else positive_test
    kept = np.repeat(flags, sizes)
    truth = [
        np.full(len(b), -1) if b.instance_labels is None else b.instance_labels.numpy()
        for b in bags
    ]
    standardizer = prepared.standardizer.to(device)
    chunks, total = [[]], 0
    for bag in bags:
        if chunks[-1] and total + len(bag) > BATCH:
            chunks.append([])
            total = 0
        chunks[-1].append(replace(bag, x=bag.x.float(), y=None))
        total += len(bag)
    header = {
        part: {
            "names": list(names),
            "labels": [labels[n] for n in names],
            "sizes": [source.size(n) for n in names],
        }
        for part, names in (("val", split.val), ("test", split.test))
    }
    return Watched(
        batches=[standardizer(pack(c).to(device, torch.float32)) for c in chunks],
        header={**header, "kept": [k for k, flag in enumerate(flags) if flag]},
        kept=kept,
        instance_labels=np.concatenate(truth)[kept].astype(np.int8),
        every=1 if kept.sum() <= FEW else 2,
    )


def record(traced: Sequence[Traced]) -> None:
    """Train runs in one loop and write their files."""
    started = time.perf_counter()
    configs = [t.config for t in traced]
    keep_memory()
    device = choose_device(configs[0].training.device)
    with torch.random.fork_rng(devices=[]):
        # a model that needs edges makes `prepare` check that there are some
        prepared = prepare(max(configs, key=lambda c: len(models.fixed(c.model)[0].needs)))
        watch = watched(prepared, configs[0], device=device)
        runs = [
            Run(config=c, folder=RunFolder(t.path), model=build_model(c, prepared))
            for c, t in zip(configs, traced, strict=True)
        ]
        state = state_of(runs, prepared, device=device)
        epochs = configs[0].training.epochs
        recorder = Recorder(
            state.groups, watch.batches, kept=watch.kept, every=watch.every, epochs=epochs
        )
        TrainingLoop(state, keeper=recorder, device=device, reporter=Reporter()).run()
    place_of = {id(run): t for run, t in zip(runs, traced, strict=True)}
    for k, group in enumerate(state.groups):
        for place, run in enumerate(group.runs):
            t = place_of[id(run)]
            if run.error is not None:
                print(f"    {t.path} is not written: {run.error}", flush=True)
                continue
            arrays = recorder.arrays(k, place) | {
                "instance_labels": watch.instance_labels,
                "instance_epochs": np.array(recorder.stored_epochs()),
            }
            save(t.path, Trace(_header(t, run, watch, seconds=recorder.seconds(k)), arrays))
        print(f"    {group.runs[0].config.model}: {recorder.seconds(k)} s per run", flush=True)
    print(f"  {len(runs)} runs: {time.perf_counter() - started:.0f} s", flush=True)


def _header(t: Traced, run: Run, watch: Watched, *, seconds: Mapping[str, float]) -> dict[str, Any]:
    history = [{k: v for k, v in row.items() if v is not None} for row in run.progress.history]
    return {
        "data": t.data,
        "method": asdict(t.method),
        "fold": t.fold,
        "seed": t.config.seed,
        "score_kind": run.model.score_kind,
        "config": t.config.to_dict(),
        "seconds": dict(seconds),
        "history": history,
        **watch.header,
    }


COHORTS: list[tuple[Layout, int, float]] = [
    *(("contiguous", seed, 0.0) for seed in range(4)),
    *(("scattered", seed, 0.0) for seed in range(4)),
    *(("null", seed, 0.0) for seed in range(2)),
    *(("contiguous", seed, 2.0) for seed in range(2)),
]
"""Layout, seed and strength of the decoy of each simulated cohort."""
SIDES = (10, 12, 16, 20)
"""Instances along a side of a bag, by seed."""


def simulate(out: Path) -> None:
    """Write the simulated cohorts: lesions of 10 to 20 % of the instances, signal 2."""
    for layout, seed, decoy in COHORTS:
        side = SIDES[seed]
        name = f"{'decoy' if decoy else layout}_{seed}"
        write_simulated(
            out / name, bags=100, layout=layout, seed=seed, size=(side, side),
            lesion=(side * side // 10, side * side // 5), features=16, signal=2.0, decoy=decoy,
        )  # fmt: skip
        print(out / name, flush=True)
    write_simulated(
        out / "large" / "contiguous_0", bags=10, layout="contiguous", seed=0, size=(100, 100),
        lesion=(1000, 2000), features=16, signal=2.0,
    )  # fmt: skip


def _sets(data: Path) -> list[str]:
    return sorted(p.parent.name for p in data.glob("*/labels.csv"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(required=True, dest="task")
    s = parts.add_parser("simulate")
    s.add_argument("folder", type=Path)
    r = parts.add_parser("record")
    r.add_argument("--data", type=Path, required=True)
    r.add_argument("--out", type=Path, required=True)
    r.add_argument("--sets", nargs="+", help="folders of --data; all by default")
    r.add_argument("--folds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    r.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    r.add_argument("--methods", nargs="+", choices=METHODS, help="all by default")
    r.add_argument("--epochs", type=int, help="instead of those of each method")
    r.add_argument("--batch-size", type=int, help="instead of that of each method")
    r.add_argument("--device", default="cpu")
    r.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    if a.task == "simulate":
        simulate(a.folder)
        return
    torch.set_num_threads(a.threads)
    known = set(models.names())
    unknown = {METHODS[m].model for m in a.methods or METHODS} - known
    if unknown:
        print(f"not registered, left out: {', '.join(sorted(unknown))}", flush=True)
    a.methods = [m for m in a.methods or METHODS if METHODS[m].model in known]
    for data in a.sets or _sets(a.data):
        for fold in a.folds:
            for runs in together(planned(a, data=data, fold=fold)):
                names = ", ".join(dict.fromkeys(t.method.name for t in runs))
                print(f"{data}, fold {fold}: {names}", flush=True)
                record(runs)


if __name__ == "__main__":
    main()
