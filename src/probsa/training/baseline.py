"""Stage 8: the baseline hazard of a Cox model, by Breslow's estimator on the training bags."""

import torch

from ..core import pack
from ..variational import Cox
from .batching import BagReader
from .checkpoints import load_checkpoint, restore_model, save_checkpoint
from .preparation import PreparedData
from .run_folder import RunFolder
from .targets import stack_targets

STORED = "baseline"
"""Key in the metadata of checkpoints whose baseline is that of their weights."""


@torch.no_grad()
def store_baseline(folder: RunFolder, prepared: PreparedData, *, device: torch.device) -> None:
    """Put the baseline hazard into the checkpoints of a run with a Cox likelihood.

    The bags are predicted one at a time, with the noise of predictions. Other likelihoods have no
    baseline, and their checkpoints stay as they are.

    Args:
        folder: the run folder, whose training has finished.
        prepared: the data of the run.
        device: where to predict.
    """
    for path in (folder.best, folder.last):
        checkpoint = load_checkpoint(path)
        if checkpoint.metadata.get(STORED):
            continue  # the run had finished before
        model = restore_model(checkpoint, path=path).to(device).eval()
        if not isinstance(model.likelihood, Cox):
            return
        model.explains = False
        standardizer = prepared.standardizer.to(device)
        reader = BagReader(prepared.bags, prepared.targets, models=[model.name])
        relative = [
            model(standardizer(pack([reader.labelled(n)]).to(device, torch.float32)))
            .logits[0, :, 0]
            .double()
            .exp()
            .mean()
            for n in prepared.split.train
        ]
        y = stack_targets(prepared.targets, prepared.split.train).to(device)
        model.likelihood.set_baseline(torch.stack(relative), y)
        state = {f"model.likelihood.{k}": v for k, v in model.likelihood.state_dict().items()}
        metadata = {**checkpoint.metadata, STORED: True}
        save_checkpoint(path, {**checkpoint.tensors, **state}, metadata=metadata)
