"""Stages 7 and 8: from a run file to a run folder.

A run with several members has one run folder for each, with a seed of its own. They train one
after another.
"""

import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from ..core import counted
from ..errors import InputError, ProbSAError
from ..variational import Cox
from .batching import BagReader, Shard
from .checkpoints import load_checkpoint, prefixed, progress_of, restore_model, save_checkpoint
from .config import RunConfig
from .devices import World, choose_device, thread_count, world
from .loop import TrainingLoop, fits_directly
from .preparation import PreparedData, prepare
from .reporting import Reporter
from .run_folder import RunFolder, open_run
from .targets import stack_targets
from .trackers import tracked

STORED = "baseline"
"""Key in the metadata of checkpoints whose baseline hazard is that of their weights."""


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    prepared: PreparedData | None = None,
    reporter: Reporter | None = None,
) -> RunFolder:
    """Train a model or its members, or continue their training, and return the run folder.

    Args:
        config: the run.
        out: the run folder to create. One that exists is refused without `resume` or `overwrite`.
        resume: continue after the last complete epoch; a finished run is left as it is.
        overwrite: first remove the run that is there.
        prepared: its data, for bags in memory; None to open those that `config` names.
        reporter: receives the progress.

    Raises:
        OutputExists: `out` exists, and neither `resume` nor `overwrite` is set.
        InputError: `out` holds another run, labels, bags, split or model do not fit one another
            (`TableError`, `GraphError`, `BagError`), or the run diverged.
        CheckpointError: the checkpoint to resume from cannot be used.
    """
    reporter = reporter or Reporter()
    device = choose_device(config.training.device)
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with thread_count(config.training.threads), forked, world(device) as w:
        if prepared is None:
            prepared = prepare(config, previous=out if resume else None)
        folder = RunFolder(out)
        if w.first:
            open_run(out, config, resume=resume, overwrite=overwrite)
            prepared.write(folder)
            _remark_on_table(prepared, folder, reporter)
        w.wait()
        try:
            with tracked(config, folder) if w.first else nullcontext() as tracker:
                for own, member in zip(folder.members(), member_configs(config), strict=True):
                    alone = own == folder  # a run without members is its only one
                    if w.first and not alone:
                        open_run(own.path, member, resume=True, overwrite=False)
                        prepared.write(own)
                    w.wait()
                    # one process fits a model that is fitted in one go
                    together = World() if fits_directly(member) else w
                    try:
                        if w.first or together.size > 1:
                            TrainingLoop(
                                member, own, prepared, device=device, world=together,
                                reporter=reporter, tracker=tracker if alone else None,
                            ).run()  # fmt: skip
                    except InputError as e:
                        if alone:
                            raise
                        raise InputError(f"{own.path}: {e}") from e
                    if w.first:
                        _store_baseline(own, prepared, device=device)
                    w.wait()
                if w.first and config.training.members > 1:
                    folder.write_metrics(_mean_history(folder))
                if tracker is not None:
                    tracker.update(_mean_history(folder))
        except ProbSAError:
            if w.first and not any(out.rglob("*.safetensors")):
                shutil.rmtree(out)  # it failed before an epoch ended: there is nothing to resume
            raise
        if w.first:
            prepared.write(folder)  # again, as training may have added remarks on bags
            if prepared.bags.notes:
                remarks = counted(len(prepared.bags.notes), "bag")
                reporter.remark(f"{remarks} with remarks: {folder.notes_file}")
    return folder


def _remark_on_table(prepared: PreparedData, folder: RunFolder, reporter: Reporter) -> None:
    """Say what the table was taken for, and which of its bags are left out."""
    table, left_out = prepared.table, prepared.left_out
    if not table.of_task.unordered_classes or table.notes:
        reporter.note(table.describe())
    for note in table.notes:
        reporter.note(f"note: {note}")
    if left_out:
        named = ", ".join(map(repr, left_out[:5])) + (", …" if len(left_out) > 5 else "")
        reporter.remark(
            f"left out {counted(len(left_out), 'labelled bag')} without features "
            f"or instances ({named}): see {folder.notes_file}"
        )


@torch.no_grad()
def _store_baseline(folder: RunFolder, prepared: PreparedData, *, device: torch.device) -> None:
    """Put the baseline hazard into the checkpoints of a run with a Cox likelihood.

    It is Breslow's estimator on the training bags, each predicted with the noise of predictions.
    """
    for path in (folder.best, folder.last):
        checkpoint = load_checkpoint(path)
        model = restore_model(checkpoint).to(device).eval()
        if checkpoint.metadata.get(STORED) or not isinstance(model.likelihood, Cox):
            continue
        model.explains = False
        standardizer = prepared.standardizer.to(device)
        reader = BagReader(prepared.bags, prepared.targets, model=model.name)
        relative = [
            model(standardizer(reader[Shard((n,), 1)].to(device, torch.float32)))
            .logits[0, :, 0]
            .double()
            .exp()
            .mean()
            for n in prepared.split.train
        ]
        y = stack_targets(prepared.targets, prepared.split.train).to(device)
        model.likelihood.set_baseline(torch.stack(relative), y)
        state = prefixed("model.likelihood", model.likelihood.state_dict())
        metadata = {**checkpoint.metadata, STORED: True}
        save_checkpoint(path, {**checkpoint.tensors, **state}, metadata=metadata)


def member_configs(config: RunConfig) -> list[RunConfig]:
    """Return the run of each member: seeds seed, seed + 1, …, and the batches of the whole run."""
    if config.training.members == 1:
        return [config]
    training = replace(config.training, members=1)
    return [
        replace(config, seed=config.seed + k, data_seed=config.order_seed, training=training)
        for k in range(config.training.members)
    ]


def _mean_history(run: RunFolder) -> list[dict[str, Any]]:
    """Return one row per epoch: means over the members that trained that long, summed seconds."""
    members = [progress_of(load_checkpoint(f.last)).history for f in run.members()]
    rows = []
    for here in zip_longest(*members):
        trained = [row for row in here if row is not None]
        row: dict[str, Any] = {"epoch": len(rows) + 1}
        for key in [k for k in trained[0] if k != "epoch"]:
            values = [v for r in trained if (v := r[key]) is not None]
            total = math.fsum(values)
            row[key] = None if not values else total if key == "seconds" else total / len(values)
        rows.append(row)
    return rows
