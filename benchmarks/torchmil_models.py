"""Models and batches of torchmil, if it is installed, for timing them beside ours.

Our models get the packed batch, torchmil's the padded batch of its own collate function. The first
layer and the widths of its models are set to ours; `UNLIKE` lists the networks that still differ.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from probsa.core import Bags

WIDTH = 512
"""Width of the first layer of every method."""
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
"""For each of our models: torchmil's class and the arguments that match its shape to ours."""
UNLIKE = ("patchgcn", "dtfdmil", "tabmil", "transmil", "gtp", "iibmil", "camil")
"""Models whose networks differ: a part is missing in one of them, or has another size."""
SAMPLES = "n_samples_train"


def torchmil_model(name: str, *, in_dim: int, samples: int | None) -> nn.Module | None:
    """Return torchmil's counterpart of one of our models, or None if there is none.

    Args:
        name: Name of our registered model.
        in_dim: Width of the features.
        samples: Number of posterior samples per training step; None for models without.
    """
    try:
        models = import_module("torchmil.models")
    except ImportError:
        return None
    if name not in MODELS:
        return None
    cls, arguments = MODELS[name]
    first = nn.Linear(in_dim, WIDTH)
    # before a transformer, the first layer has no ReLU
    layer = first if name in ("transmil", "tabmil", "tabmil-probsa-diag") else _relu(first)
    model_class = getattr(models, cls)
    if samples is not None and SAMPLES in inspect.signature(model_class).parameters:
        arguments = {**arguments, SAMPLES: samples}
    return model_class((in_dim,), feat_ext=layer, **arguments)


def torchmil_loss(model: nn.Module, batch: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
    """Return a function that computes the sum of a torchmil model's losses on a padded batch."""
    compute: Callable[..., Any] = model.compute_loss  # pyright: ignore[reportAssignmentType]
    parameters = inspect.signature(compute).parameters
    inputs = {k: batch[k] for k in parameters if k in batch}

    def loss() -> torch.Tensor:
        _, terms = compute(**inputs)
        return torch.stack([t.reshape(()) for t in terms.values()]).sum()

    return loss


def torchmil_batch(bags: Bags) -> dict[str, Any]:
    """Return bags as torchmil trains on them: padded, with masks and normalised adjacencies."""
    collate = import_module("torchmil.data").collate_fn
    assert bags.y is not None, "a training batch is labelled"
    degree = bags.degrees
    items = []
    for b, (start, stop) in enumerate(zip(bags.offsets[:-1], bags.offsets[1:], strict=True)):
        in_bag = (bags.edges[0] >= start) & (bags.edges[0] < stop)
        i, j = bags.edges[:, in_bag]
        w = bags.weights[in_bag] * (degree[i] * degree[j]).rsqrt()
        indices = torch.stack([torch.cat([i, j]), torch.cat([j, i])]) - start
        n = int(stop - start)
        values = torch.cat([w, w])
        adj = torch.sparse_coo_tensor(indices, values, (n, n), check_invariants=False).coalesce()
        items.append({"X": bags.x[start:stop], "adj": adj, "Y": bags.y[b]})
    with warnings.catch_warnings():
        # torch warns about sparse tensors that torchmil makes without checks
        warnings.simplefilter("ignore", UserWarning)
        batch = collate(items)
    return {k: batch[k] for k in ("X", "Y", "adj", "mask")}


def _relu(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU())
