"""torchmil's models and batches, where torchmil is installed: what ours are timed beside.

Ours gets the packed batch, theirs the padded one of its own collate function. Their first layer and
widths are set to ours; `UNLIKE` says where the networks still differ.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ...core import Bags

WIDTH = 512
"""Of the first layer of every method."""
_HEADS = {"att_dim": WIDTH, "n_heads": 8}
_ENCODER = {"transf_n_layers": 2, "transf_n_heads": 8, "transf_att_dim": WIDTH}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "abmil": ("ABMIL", {}),
    "abmil-probsa-dirac": ("SmoothABMIL", {}),
    "abmil-probsa-diag": ("ProbSmoothABMIL", {}),
    "clam-sb": ("CLAM_SB", {"gated": True, "k_sample": 8}),
    "dsmil": ("DSMIL", {"nonlinear_q": True}),
    "patchgcn": ("PatchGCN", {}),
    "dtfdmil": ("DTFDMIL", {"n_groups": 4, "distill_mode": "afs"}),
    "smabmil": ("SmABMIL", {"sm_where": "mid"}),
    "tabmil": ("TransformerABMIL", {**_ENCODER, "transf_add_self": False}),
    "tabmil-probsa-diag": (
        "TransformerProbSmoothABMIL",
        {**_ENCODER, "transf_add_self": False},
    ),
    "transmil": ("TransMIL", {**_HEADS, "n_landmarks": 256}),
    "gtp": ("GTP", {**_HEADS, "n_layers": 2}),
    "iibmil": ("IIBMIL", {**_HEADS, "n_layers_encoder": 2, "n_layers_decoder": 2}),
    "camil": (
        "CAMIL",
        {"nystrom_att_dim": WIDTH, "n_heads": 8, "n_landmarks": 256, "gated_pool": True},
    ),
}
"""Our name, torchmil's class, and what brings its shape to ours."""
UNLIKE = ("patchgcn", "dtfdmil", "tabmil", "transmil", "gtp", "iibmil", "camil")
"""Models whose network is not the same in both: a part is missing, or has another size."""
SAMPLES = "n_samples_train"


def their_model(name: str, *, in_dim: int, samples: int | None) -> nn.Module | None:
    """torchmil's counterpart of one of our models, with as many samples; None without one.

    Args:
        name: our registered model.
        in_dim: width of the features.
        samples: posterior samples a training step.
    """
    try:
        models = import_module("torchmil.models")
    except ImportError:
        return None
    if name not in MODELS:
        return None
    cls, arguments = MODELS[name]
    first = nn.Linear(in_dim, WIDTH)
    # before a transformer the first layer is linear alone
    layer = first if name in ("transmil", "tabmil", "tabmil-probsa-diag") else _relu(first)
    made = getattr(models, cls)
    if samples is not None and SAMPLES in inspect.signature(made).parameters:
        arguments = {**arguments, SAMPLES: samples}
    return made((in_dim,), feat_ext=layer, **arguments)


def their_loss(model: nn.Module, batch: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
    """Forward and the sum of the losses of one of torchmil's models on its padded batch."""
    compute: Callable[..., Any] = model.compute_loss  # pyright: ignore[reportAssignmentType]
    wanted = inspect.signature(compute).parameters
    inputs = {k: batch[k] for k in wanted if k in batch}

    def loss() -> torch.Tensor:
        _, terms = compute(**inputs)
        return torch.stack([t.reshape(()) for t in terms.values()]).sum()

    return loss


def their_batch(bags: Bags) -> dict[str, Any]:
    """Bags as torchmil trains on them: padded, masked, with normalised sparse adjacencies."""
    collate = import_module("torchmil.data").collate_fn
    assert bags.y is not None, "a training batch is labelled"
    degree, items = bags.degrees, []
    for b, (start, stop) in enumerate(zip(bags.offsets[:-1], bags.offsets[1:], strict=True)):
        own = (bags.edges[0] >= start) & (bags.edges[0] < stop)
        i, j = bags.edges[:, own]
        w = bags.weights[own] * (degree[i] * degree[j]).rsqrt()
        rows = torch.stack([torch.cat([i, j]), torch.cat([j, i])]) - start
        n = int(stop - start)
        both = torch.cat([w, w])
        adj = torch.sparse_coo_tensor(rows, both, (n, n), check_invariants=False).coalesce()
        items.append({"X": bags.x[start:stop], "adj": adj, "Y": bags.y[b]})
    with warnings.catch_warnings():
        # torch's, about sparse tensors that torchmil makes without checks
        warnings.simplefilter("ignore", UserWarning)
        batch = collate(items)
    return {k: batch[k] for k in ("X", "Y", "adj", "mask")}


def _relu(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU())
