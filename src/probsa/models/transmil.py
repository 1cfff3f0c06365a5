"""TransMIL: a class token and Nyström attention over instances folded into a square.

Shao et al., NeurIPS 2021, arXiv:2106.00908. The square is filled in the order in which instances
are stored, not by their positions. By default, unlike in the original, there is no ReLU after the
first layer, no dropout, and no attention to the zeros that pad the landmarks; each is an argument.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    FeatureCount,
    StepCount,
    without_autocast,
)
from ..layers import BagAttention, Embed, NystromLayer, NystromOptions, Widths
from ..variational import Dirac
from ._base import Model, Output, Provenance, ScoreKind
from ._registry import register
from .attention_mil import PARTS, TRUNK, ProbSA

OWN: dict[str, object] = {"activation": "relu", "dropout": 0.1, "mask_padding": False}
"""The original's setting, for its 1024 features; its training settings belong in a run file."""
PROVENANCE = Provenance(
    paper="Shao et al., TransMIL, NeurIPS 2021, arXiv:2106.00908",
    code="szc19990412/TransMIL",
    licence="none (the README says GPLv3 and non-commercial)",
    follows_paper="A class token and a square of tokens, two Nyström layers of 8 heads with 256 "
    "landmarks, three depthwise convolutions between them.",
    follows_code="A convolution of 33 taps over the values, no MLP in the layers. The pinned "
    "attention package (0.0.9) crops its padding at the wrong end; this follows 0.0.14. Its "
    "training, in a run file and without its Lookahead: `optimizer: radam`, `learning_rate: 2e-4`, "
    "`warmup_epochs: 0`, `weight_decay: 1e-5`, `decay_vectors: false`.",
    fair="One linear layer to 512 without activation, one linear classifier, no dropout.",
)


class PPEG(nn.Module):
    """G + DW₇(G) + DW₅(G) + DW₃(G) on the square of each bag; the class token is unchanged.

    The three depthwise kernels and the identity are first added up to a single kernel.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.middle = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.narrow = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Float[Tensor, "t d"], counts: Sequence[int]) -> Float[Tensor, "t d"]:
        # the sum of three convolutions and the identity is one convolution
        identity = torch.zeros_like(self.wide.weight)
        identity[:, :, 3, 3] = 1
        middle = F.pad(self.middle.weight, [1] * 4)
        narrow = F.pad(self.narrow.weight, [2] * 4)
        kernel = self.wide.weight + middle + narrow + identity
        convolutions = (self.wide, self.middle, self.narrow)
        biases = [conv.bias for conv in convolutions if conv.bias is not None]
        bias = torch.stack(biases).sum(0)
        parts = []
        for tokens in x.split(list(counts)):
            side = math.isqrt(len(tokens) - 1)
            g = tokens[1:].T.unflatten(1, (side, side))[None]
            g = F.conv2d(g, kernel, bias, padding=3, groups=len(bias))
            parts += [tokens[:1], g[0].flatten(1).T]
        return torch.cat(parts)


@dataclass(frozen=True, kw_only=True)
class SquareOptions(NystromOptions):
    """Nyström layers, with the convolutions of the square after the first."""

    layers: StepCount = 2
    """Number of Nyström layers; the convolutions come after the first."""


class SquareEncoder(nn.Module):
    """Layers over each bag's class token and its square of instances, with PPEG after the first.

    `options` are those of `SquareOptions`.
    """

    def __init__(self, dim: int, *, layers: int, **options: Any) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        nystrom = NystromOptions(**options)
        self.blocks = nn.ModuleList(NystromLayer(dim, nystrom) for _ in range(layers))
        self.ppeg = PPEG(dim)
        self.norm = nn.LayerNorm(dim)

    def tokens(self, h: Float[Tensor, "n d"], sizes: Sequence[int]) -> list[Tensor]:
        """Return the tokens [class token; h; h_1..a] of each bag.

        The first a = M² − N instances are repeated to fill the M = ⌈√N⌉ rows of the square.
        """
        tokens: list[Tensor] = []
        for h_bag in h.split(list(sizes)):
            n = len(h_bag)
            m = math.isqrt(n - 1) + 1
            tokens.append(torch.cat([self.cls_token[0], h_bag, h_bag[: m**2 - n]]))
        return tokens

    def encode(
        self, h: Float[Tensor, "n d"], sizes: Sequence[int]
    ) -> tuple[Sequence[Tensor], list[BagAttention]]:
        """Return each bag's tokens after the last layer, before the norm, and its attention."""
        parts = self.tokens(h, sizes)
        counts = [len(tokens) for tokens in parts]
        x = torch.cat(parts)
        attention: list[BagAttention] = []
        for k, block in enumerate(self.blocks):
            assert isinstance(block, NystromLayer)
            attention = block.look(x, counts)
            x = x + block.attend(attention, counts)
            if k == 0:
                x = self.ppeg(x, counts)
        return x.split(counts), attention

    def forward(self, h: Float[Tensor, "n d"], sizes: Sequence[int]) -> Float[Tensor, "n d"]:
        """Return the normalised instances, without class tokens and repeated instances."""
        bags, _ = self.encode(h, sizes)
        return self.norm(torch.cat([x[1 : n + 1] for x, n in zip(bags, sizes, strict=True)]))


@register("transmil", original=OWN)
class TransMIL(Model):
    """A class token attends to every instance by Nyström attention.

    Args:
        activation: activation after each first layer (the original: `relu`).
    """

    family = "global"
    score_kind: ClassVar[ScoreKind] = "weight"
    order_matters = True
    provenance = PROVENANCE

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "identity",
        network: SquareOptions,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.embed = Embed(in_dim, embed, activation=activation)
        self.encoder = SquareEncoder(self.embed.out_dim, **asdict(network))
        self.classifier = nn.Linear(self.embed.out_dim, self.n_classes)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        tokens, attention = self.encoder.encode(self.embed(bags.x), bags.sizes)
        with without_autocast(bags.x):
            classes = torch.stack([x[0] for x in tokens])
            logits = self.classifier(self.encoder.norm(classes))
        scores: list[Tensor] = []
        for a, x, n in zip(attention, tokens, bags.sizes, strict=True):
            # the row of the class token, which is behind the padding of Nyström attention
            row = a.row(-len(x))[-len(x) :]
            # the attention to the instances, without that to the class token and to copies
            scores.append(row[1 : n + 1].mean(1))
        attention_scores = Dirac(torch.cat(scores))
        return Output(
            logits=logits[:, None], attention=attention_scores, likelihood=self.likelihood
        )


HIDDEN = (*PARTS, *TRUNK, "classifier_hidden")


@register("transmil-probsa-diag", original=OWN, posterior="diag", without=[*HIDDEN, "field"])
@register("transmil-probsa-field", original=OWN, posterior="field", without=[*HIDDEN])
class TransMILProbSA(ProbSA):
    """TransMIL's instance tokens, pooled by ProbSA instead of a class token."""

    family = "global"
    baseline = "transmil"
    order_matters = True
    encoder_type = SquareEncoder
    provenance = replace(
        PROVENANCE,
        paper=f"{PROVENANCE.paper}; with the pooling of arXiv:2507.14932",
        fair="Not part of it.",
    )

    def __init__(self, *, network: SquareOptions, **attention: Any) -> None:
        attention |= {"encoder": "transformer", "network": network}
        super().__init__(**attention)
