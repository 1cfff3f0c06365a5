"""Small runs on made bags: their configuration, interruptions, and what makes two runs the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.stored import write_folder

from probsa.tasks import TargetOptions
from probsa.training import (
    DataConfig,
    Reporter,
    RunConfig,
    RunFolder,
    TrainingConfig,
    load_checkpoint,
    prepare,
)
from probsa.training.devices import World
from probsa.training.loop import TrainingLoop

ARGUMENTS = {"embed": 8, "attention_dim": 4}
PROBSA = {**ARGUMENTS, "samples": 3, "predict_samples": 20}
"""Arguments of the models with a posterior."""


def make_config(
    folder: Path,
    *,
    bags: int = 12,
    signal: float = 3.0,
    model: str = "abmil-probsa-diag",
    model_arguments: dict[str, Any] | None = None,
    seed: int = 0,
    **training: Any,
) -> RunConfig:
    """Write bags into a folder that does not exist yet, and return a run on them."""
    if not folder.exists():
        write_folder(folder, bags=bags, signal=signal)
    if model_arguments is None:
        has_samples = model.endswith(("-diag", "-field"))
        model_arguments = PROBSA if has_samples else ARGUMENTS if model == "abmil" else {}
    settings = {
        "epochs": 3,
        "batch_size": 2,
        "device": "cpu",
        "threads": 1,
        "tensorboard": False,
        "learning_rate": 1e-2,
        **training,
    }
    return RunConfig(
        data=DataConfig(features=folder / "features", labels=folder / "labels.csv", test_fold=0),
        model=model,
        model_arguments=model_arguments,
        training=TrainingConfig(**settings),
        seed=seed,
    )


def make_survival(folder: Path) -> RunConfig:
    """Return a run on the bags of a folder with times to an event."""
    config = make_config(folder, bags=36, model="abmil", batch_size=8)
    times = "".join(f"{k:03d},{1 + k * 7 % 11},{k % 2},{k % 3}\n" for k in range(36))
    config.data.labels.write_text("bag,time,event,fold\n" + times)
    return with_data(config, targets=TargetOptions(task="survival"))


def with_training(config: RunConfig, **changed: Any) -> RunConfig:
    return replace(config, training=replace(config.training, **changed))


def with_data(config: RunConfig, **changed: Any) -> RunConfig:
    return replace(config, data=replace(config.data, **changed))


def loop_of(config: RunConfig, out: Path, *, world: World | None = None) -> TrainingLoop:
    return TrainingLoop(
        config,
        RunFolder(out),
        prepare(config),
        device=torch.device("cpu"),
        world=world or World(),
        reporter=Reporter(),
    )


class Stopped(Exception):
    """Raised by a reporter to interrupt training."""


class Breaker(Reporter):
    """Interrupts training after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step(self, *, epoch: int, share: float) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Stopped


def history_of(run: RunFolder) -> list[dict[str, Any]]:
    return load_checkpoint(run.last).metadata["progress"]["history"]


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Check that two runs, or their members, are equal bit for bit, but for their time."""
    for a, b in zip(one.members(), other.members(), strict=True):
        for x, y in ((a.best, b.best), (a.last, b.last)):
            files = load_checkpoint(x), load_checkpoint(y)
            for file in files:
                for row in file.metadata["progress"]["history"]:
                    del row["seconds"]
            assert files[0].metadata == files[1].metadata
            assert files[0].tensors.keys() == files[1].tensors.keys()
            for key, value in files[0].tensors.items():
                assert torch.equal(value, files[1].tensors[key]), key
