"""GraphCAM: how much each token raises a class's logit (Zheng et al., TMI 2022, arXiv:2205.09671).

Relevance propagates back through the transformer by the rules of Chefer, Gur & Wolf (CVPR 2021,
arXiv:2012.09838) with α = 1 and without biases; in each block it is multiplied by the gradient at
the attention matrix. The rules divide by sums that nearly cancel, so tokens and weights must be
float64: in float32 a map may be wrong by a third.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import TransformerLayer

TINY = 1e-9


class BlockTrace(NamedTuple):
    """The intermediate results of a block, in order."""

    x: Float[Tensor, "*bags t d"]
    normed: Float[Tensor, "*bags t d"]
    q: Float[Tensor, "*bags heads t e"]
    k: Float[Tensor, "*bags heads t e"]
    v: Float[Tensor, "*bags heads t e"]
    attention: Float[Tensor, "*bags heads t t"]
    """Attention weights, after the softmax."""
    mixed: Float[Tensor, "*bags t d"]
    """Attention times values, with the heads concatenated."""
    attended: Float[Tensor, "*bags t d"]
    z: Float[Tensor, "*bags t d"]
    normed_z: Float[Tensor, "*bags t d"]
    active: Float[Tensor, "*bags t hidden"]
    """The MLP's hidden layer after its activation."""
    mlp: Float[Tensor, "*bags t d"]

    @property
    def out(self) -> Float[Tensor, "*bags t d"]:
        return self.z + self.mlp


def trace(block: TransformerLayer, x: Float[Tensor, "*bags t d"]) -> BlockTrace:
    """Return the block's result together with all intermediate results, in `eval()` mode."""
    normed = block.norm1(x)
    q, k, v = block.qkv(normed).unflatten(-1, (3, block.heads, -1)).movedim(-3, 0).transpose(-3, -2)
    attention = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    mixed = (attention @ v).transpose(-3, -2).flatten(-2)
    attended = block.out(mixed)
    z = x + attended
    normed_z = block.norm2(z)
    active = block.mlp[1](block.mlp[0](normed_z))
    mlp = block.mlp[3](active)
    return BlockTrace(x, normed, q, k, v, attention, mixed, attended, z, normed_z, active, mlp)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Return a ⊘ b = a / (b + 10⁻⁹), and 0 where b = 0."""
    shifted = b + TINY
    quotient = a / torch.where(shifted == 0, TINY, shifted)
    return torch.where(b == 0, 0.0, quotient)


def through_linear(
    r: Float[Tensor, "*c o"], x: Float[Tensor, "*t i"], weight: Float[Tensor, "o i"]
) -> Float[Tensor, "*ct i"]:
    """Propagate through y = W x: each input receives its share of the products above 0."""
    w_up, w_down = weight.clamp_min(0), weight.clamp_max(0)
    x_up, x_down = x.clamp_min(0), x.clamp_max(0)
    s = divide(r, x_up @ w_up.T + x_down @ w_down.T)
    return x_up * (s @ w_up) + x_down * (s @ w_down)


def through_sum(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Propagate through a + b, element by element, then rescale each side to its share."""
    s = divide(r, a + b)
    r_a, r_b = a * s, b * s
    all_a, all_b, total = (v.sum((-2, -1), keepdim=True) for v in (r_a, r_b, r))
    size = all_a.abs() + all_b.abs()
    return (
        r_a * divide(divide(all_a.abs(), size) * total, all_a),
        r_b * divide(divide(all_b.abs(), size) * total, all_b),
    )


def through_branch(x: Tensor, r_1: Tensor, r_2: Tensor) -> Tensor:
    """Propagate through the branching of x into two paths."""
    return x * (divide(r_1, x) + divide(r_2, x))


def through_attention(r: Tensor, block: TransformerLayer, t: BlockTrace) -> tuple[Tensor, Tensor]:
    """Return the relevance of the attention matrix, and of the input of the heads.

    The relevance of a product is divided equally between its factors.
    """
    if isinstance(block.out, nn.Linear):
        r = through_linear(r, t.mixed, block.out.weight)
    r = r.unflatten(-1, (block.heads, -1)).transpose(-3, -2)
    s = divide(r, t.attention @ t.v)
    r_attention = t.attention * (s @ t.v.mT) / 2
    r_v = t.v * (t.attention.mT @ s) / 2
    s = divide(r_attention, t.q @ t.k.mT)
    r_q = t.q * (s @ t.k) / 2
    r_k = t.k * (s.mT @ t.q) / 2
    r_qkv = torch.cat([v.transpose(-3, -2).flatten(-2) for v in (r_q, r_k, r_v)], -1)
    return r_attention, through_linear(r_qkv, t.normed, block.qkv.weight)


def through_block(r: Tensor, block: TransformerLayer, t: BlockTrace) -> tuple[Tensor, Tensor]:
    """Return the relevance of the attention matrix (c, heads, t, t) and of the input (c, t, d)."""
    r_skip, r_mlp = through_sum(r, t.z, t.mlp)
    first, second = block.mlp[0], block.mlp[3]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    r_mlp = through_linear(r_mlp, t.active, second.weight)
    r_mlp = through_linear(r_mlp, t.normed_z, first.weight)
    r = through_branch(t.z, r_skip, r_mlp)
    r_skip, r_attended = through_sum(r, t.x, t.attended)
    r_attention, r_attended = through_attention(r_attended, block, t)
    return r_attention, through_branch(t.x, r_skip, r_attended)


def graph_cam(
    tokens: Float[Tensor, "t d"],
    blocks: Sequence[TransformerLayer],
    norm: nn.LayerNorm,
    classifier: nn.Linear,
    *,
    unit_init: bool,
) -> Float[Tensor, "classes rest"]:
    """Return the relevance of every token but the first, the class token, for each class.

    u = row of the class token in J = (I + C_L) … (I + C_1), where
    C_l = mean over heads of max(0, ∂ℓ_c/∂A_l ⊙ R_A_l).

    Args:
        tokens: tokens of one bag, the class token first.
        blocks: blocks of the transformer.
        norm: layer norm after the last block.
        classifier: classifier of the class token.
        unit_init: whether relevance starts at 1. Otherwise, as in the original, it starts at the
            logit ℓ_c, which also multiplies the gradient, so that a map scales with ℓ_c².
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        x = tokens.detach().clone().requires_grad_()
        traces: list[BlockTrace] = []
        for block in blocks:
            traces.append(trace(block, x))
            x = traces[-1].out
        last = norm(x)[0]
        logits = classifier(last)
        matrices = [t.attention for t in traces]
        gradients = [torch.autograd.grad(v, matrices, retain_graph=True) for v in logits]
    with torch.no_grad():
        start = torch.ones_like(logits) if unit_init else logits
        r = torch.zeros(len(logits), *tokens.shape, dtype=tokens.dtype, device=tokens.device)
        r[:, 0] = last * divide(through_linear(start.diag(), last, classifier.weight), last)
        u = torch.zeros(len(logits), 1, len(tokens), dtype=tokens.dtype, device=tokens.device)
        u[..., 0] = 1
        for layer in range(len(traces) - 1, -1, -1):
            r_attention, r = through_block(r, blocks[layer], traces[layer])
            g = torch.stack([of_class[layer] for of_class in gradients])
            if not unit_init:
                g = g * logits[:, None, None, None]
            u = u + u @ (g * r_attention).clamp_min(0).mean(1)
        return u[:, 0, 1:]
