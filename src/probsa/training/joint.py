"""Stages 7 and 8 for several runs that see the same batches: from run files to run folders.

Models of one structure are stacked. Joint training keeps its own state in a folder and, after an
interruption, continues from there; it writes the run folders at its end.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..errors import InputError
from ..models import fixed
from .config import RunConfig
from .devices import World, choose_device, keep_memory
from .joint_keeper import JointKeeper
from .joint_rules import joint_key, why_not_jointly
from .keepers import Keeper, TrainingState
from .loop import TrainingLoop
from .model_groups import build_model
from .model_stack import StackedModels
from .optimizers import WHOLE, optimizer_of
from .preparation import PreparedData, prepare
from .progress import Run
from .reporting import Reporter
from .run_folder import RunFolder, open_run


class JointTrainingFailed(InputError):
    """Some runs of a joint training failed; the others are complete.

    Attributes:
        failures: the reason of each failure, by run folder.
    """

    def __init__(self, failures: Mapping[Path, str]) -> None:
        self.failures = dict(failures)
        first, reason = next(iter(failures.items()))
        super().__init__(f"{len(failures)} runs of a joint training failed. {first}: {reason}")


def train_jointly(
    configs: Sequence[RunConfig],
    outs: Sequence[Path],
    *,
    state: Path,
    reporter: Reporter | None = None,
    save_every: float = 120.0,
) -> list[RunFolder]:
    """Train runs with equal `joint_key`, and return their run folders.

    Each folder holds what `train` would write, except for TensorBoard's files.

    Args:
        configs: the runs.
        outs: their run folders; a run that began on its own is trained again from its start.
        state: folder for the state from which an interrupted joint training continues; removed at
            the end.
        reporter: receives the progress; the row of an epoch holds means over the runs.
        save_every: seconds between two writes of the state.

    Raises:
        InputError: the runs cannot be trained jointly.
        JointTrainingFailed: some runs diverged; their folders are removed.
    """
    _check(configs)
    threads = configs[0].training.threads
    if threads:
        torch.set_num_threads(threads)
    with torch.random.fork_rng(devices=[]):
        # a model that needs edges makes `prepare` check that there are some
        most_needs = max(configs, key=lambda c: len(fixed(c.model)[0].needs))
        return train_stacked(
            configs, outs, prepare(most_needs), world=World(), state=state,
            reporter=reporter or Reporter(), save_every=save_every,
        )  # fmt: skip


def train_stacked(
    configs: Sequence[RunConfig],
    outs: Sequence[Path],
    prepared: PreparedData,
    *,
    world: World,
    state: Path,
    reporter: Reporter,
    save_every: float = 120.0,
) -> list[RunFolder]:
    """Train runs whose data are prepared; see `train_jointly`, which checks that they can.

    Args:
        configs: the runs.
        outs: their run folders.
        prepared: the data of all runs.
        world: the processes that train together; the first one writes the files.
        state: folder for the state of an interrupted training.
        reporter: receives the progress.
        save_every: seconds between two writes of the state.
    """
    keep_memory()
    runs = [
        Run(config=c, folder=RunFolder(out), model=build_model(c, prepared))
        for c, out in zip(configs, outs, strict=True)
    ]
    for run in runs if world.first else ():
        open_run(run.folder.path, run.config, resume=True, overwrite=False)
        prepared.write(run.folder)
    device = choose_device(configs[0].training.device)
    training = _training_state(runs, prepared, device=device)
    keeper = JointKeeper(runs, state, save_every=save_every)
    keeper.restore(training)
    world.wait()  # no process may replace the state before every other one has read it
    TrainingLoop(
        training,
        keeper=keeper if world.first else Keeper(),
        device=device,
        reporter=reporter,
        world=world,
    ).run()
    failures = {run.folder.path: run.error for run in runs if run.error is not None}
    if world.first:
        for run in runs:
            prepared.write(run.folder)  # again, as training may have added remarks on bags
        shutil.rmtree(state, ignore_errors=True)
        for path in failures:
            shutil.rmtree(path)  # there is nothing to resume
    if failures:
        raise JointTrainingFailed(failures)
    return [run.folder for run in runs]


def _check(configs: Sequence[RunConfig]) -> None:
    for config in configs:
        reason = why_not_jointly(config)
        if reason or joint_key(config) != joint_key(configs[0]):
            raise InputError(
                f"{config.model} cannot train jointly with {configs[0].model}: "
                + (reason or "they do not see the same batches under the same settings")
            )


def _training_state(
    runs: Sequence[Run], prepared: PreparedData, *, device: torch.device
) -> TrainingState:
    groups = [StackedModels(alike, device=device) for alike in _by_structure(runs)]
    parameters = [p for group in groups for p in group.module.parameters()]
    return TrainingState(
        groups=groups,
        optimizer=optimizer_of([{"params": parameters, WHOLE: 0}], runs[0].config.training),
        prepared=prepared,
        standardizer=prepared.standardizer.to(device),
    )


def _by_structure(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by model and its arguments except for the seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = {k: v for k, v in run.model.arguments.items() if k != "seed"}
        key = f"{run.config.model} {sorted(values.items(), key=str)}"
        groups.setdefault(key, []).append(run)
    return list(groups.values())
