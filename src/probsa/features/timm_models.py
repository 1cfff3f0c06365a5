"""Any model of timm (`timm:vit_small_patch14_dinov2`), with its own pooling and preprocessing."""

import math
from typing import Any

import torch
from torch import nn

from ..errors import UnknownName, WeightsError
from ._base import Card, Origin, Preprocessing
from ._network import Network, optional
from ._registry import register

HUB_PREFIXES = ("hf-hub:", "hf_hub:")
"""Beginnings of the names of models that are on the Hugging Face Hub."""


@register(
    "timm:MODEL",
    card=Card(
        width=0,
        summary="Any model of timm by its name: pooled features, with its own input size and "
        "normalisation.",
        licence="The model's own; timm itself is Apache-2.0.",
        source="https://huggingface.co/timm",
        weights=Origin(),
        packages=("timm",),
    ),
)
class TimmModel(Network):
    """A model of timm without its classifier.

    Args:
        model: The name in timm, with or without the tag of its weights, or
            `hf-hub:OWNER/REPOSITORY` for a model on the hub.
    """

    def __init__(self, *, model: str) -> None:
        # some networks compute tables during construction, so they cannot use the meta device
        with torch.device("cpu"):
            super().__init__(_create(model))
        network: Any = self.network
        config = optional("timm.data").resolve_model_data_config(network)
        size = config["input_size"][-1]
        # timm resizes a tile to `size` / `crop_pct`, and crops its centre to `size`
        cropped_share = config["crop_pct"]
        self.preprocessing = Preprocessing(
            size=size,
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            resampling="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
            resize=None if cropped_share == 1 else math.floor(size / cropped_share),
        )
        card: dict[str, Any] = network.pretrained_cfg
        repository = card.get("hf_hub_id") or ""
        file_name = card.get("hf_hub_filename")
        self.card = Card(
            width=int(getattr(network, "head_hidden_size", None) or network.num_features),
            summary=f"{model} of timm; pooled features.",
            licence=f"{card.get('license') or 'see its page'}.",
            source=f"https://huggingface.co/{repository or 'timm'}",
            weights=Origin(
                url=card.get("url") or "",
                repository=repository,
                files=(file_name,) if file_name else Origin().files,
            ),
            packages=("timm",),
        )
        classifiers = card.get("classifier") or ()
        if isinstance(classifiers, str):
            classifiers = (classifiers,)
        self.heads = tuple(f"{name}." for name in classifiers)


def _create(model: str) -> nn.Module:
    """Return a network of timm without its classifier, with random weights.

    Raises:
        UnknownName: timm has no such model.
        WeightsError: The description of a model on the hub cannot be read.
    """
    timm = optional("timm")
    if not model.startswith(HUB_PREFIXES):
        # a name may end in a dot and the tag of its weights
        if not timm.is_model(model):
            raise UnknownName("model of timm", model, timm.list_models())
        return timm.create_model(model, num_classes=0)
    errors = optional("huggingface_hub.errors")
    try:
        return timm.create_model(model, num_classes=0)
    except (errors.EntryNotFoundError, OSError) as e:
        raise WeightsError(f"timm:{model}: its description cannot be read from the hub: {e}") from e
