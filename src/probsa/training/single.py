"""Stages 7 and 8 for one run: from a run file to a run folder."""

import shutil
from pathlib import Path

import torch

from ..errors import InputError, ProbSAError
from .checkpoints import load_checkpoint, restore_model
from .config import RunConfig
from .devices import World, choose_device, world
from .keepers import EpochKeeper, Keeper, TrainingState, restore_run
from .loop import TrainingLoop
from .model_groups import SingleModel, build_model
from .optimizers import make_optimizer
from .preparation import PreparedData, prepare
from .progress import Run
from .reporting import Reporter
from .run_folder import RunFolder, open_run


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> RunFolder:
    """Train a model, or continue its training, and return its run folder.

    Args:
        config: the run.
        out: the run folder to create. One that exists is refused without `resume` or `overwrite`.
        resume: continue after the last complete epoch; a finished run is left as it is.
        overwrite: first remove the run that is there.
        reporter: receives the progress.

    Raises:
        OutputExists: `out` exists, and neither `resume` nor `overwrite` is set.
        InputError: `out` holds another run, or the run diverged.
        TableError: labels, bags and split do not fit one another.
        GraphError: the model needs a graph, and no training bag has an edge.
        BagError: a bag cannot be used.
        CheckpointError: the checkpoint to resume from cannot be used.
    """
    reporter = reporter or Reporter()
    device = choose_device(config.training.device)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    with torch.random.fork_rng(devices=[]), world(device) as w:
        prepared = prepare(config, previous=out if resume else None)
        folder = RunFolder(out)
        if w.first:
            open_run(out, config, resume=resume, overwrite=overwrite)
            prepared.write(folder)
            if prepared.left_out:
                reporter.remark(
                    f"{len(prepared.left_out)} labelled bags are left out, without features or "
                    f"instances: see {folder.notes_file}"
                )
        w.wait()
        try:
            loop = single_loop(config, folder, prepared, device=device, world=w, reporter=reporter)
            loop.run()
            (run,) = loop.runs
            if run.error is not None:
                raise InputError(run.error)
        except ProbSAError:
            if w.first and not folder.last.is_file():
                shutil.rmtree(out)  # it failed before an epoch ended: there is nothing to resume
            raise
        if w.first:
            prepared.write(folder)  # again, as training may have added remarks on bags
            if prepared.bags.notes:
                remarks = len(prepared.bags.notes)
                reporter.remark(f"{remarks} bags have remarks: {folder.notes_file}")
    return folder


def single_loop(
    config: RunConfig,
    folder: RunFolder,
    prepared: PreparedData,
    *,
    device: torch.device,
    world: World,
    reporter: Reporter,
) -> TrainingLoop:
    """Return the loop of one run, which continues from the folder's last checkpoint if any."""
    checkpoint = load_checkpoint(folder.last) if folder.last.is_file() else None
    if checkpoint is None:
        model = build_model(config, prepared)
    else:
        model = restore_model(checkpoint, path=folder.last, expect=config.model)
    model = model.to(device)
    if world.size > 1 and model.couples_bags:
        raise InputError(
            f"{config.model} couples the bags of a batch in training: {world.size} processes "
            "would each see a part of it. Train it in one process"
        )
    run = Run(config=config, folder=folder, model=model)
    group = SingleModel(run, model, rank=world.rank)
    state = TrainingState(
        groups=[group],
        optimizer=make_optimizer(model, config.training),
        prepared=prepared,
        standardizer=prepared.standardizer.to(device),
    )
    keeper = EpochKeeper(run) if world.first else Keeper()
    if checkpoint is not None:
        restore_run(state, group, keeper, checkpoint)
    return TrainingLoop(state, keeper=keeper, device=device, reporter=reporter, world=world)
