"""GraphCAM: how much each token raises a class's logit (Zheng et al., TMI 2022, arXiv:2205.09671).

Relevance propagates back through the transformer by the rules of Chefer, Gur & Wolf (CVPR 2021,
arXiv:2012.09838) with α = 1 and without biases; in each block it is multiplied by the gradient at
the attention matrix. The rules divide by sums that nearly cancel, so tokens and weights must be
float64: in float32 a map may be wrong by a third.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import TransformerLayer

TINY = 1e-9
Back = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps a block's relevance (c, t, d) to that of its attention (c, heads, t, t) and input."""


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Return a ⊘ b = a / (b + 10⁻⁹), and 0 where b = 0."""
    shifted = b + TINY
    quotient = a / torch.where(shifted == 0, TINY, shifted)
    return torch.where(b == 0, 0.0, quotient)


def through_linear(r: Tensor, x: Float[Tensor, "*t i"], layer: nn.Module) -> Tensor:
    """Propagate through y = W x: each input receives its share of the products above 0."""
    if not isinstance(layer, nn.Linear):
        return r
    w_up = layer.weight.clamp_min(0)
    w_down = layer.weight.clamp_max(0)
    x_up = x.clamp_min(0)
    x_down = x.clamp_max(0)
    # a product is above 0 where both factors have the same sign
    s = divide(r, x_up @ w_up.T + x_down @ w_down.T)
    return x_up * (s @ w_up) + x_down * (s @ w_down)


def through_sum(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Propagate through a + b, element by element, then rescale each side to its share."""
    s = divide(r, a + b)
    r_a = a * s
    r_b = b * s
    all_a = r_a.sum((-2, -1), keepdim=True)
    all_b = r_b.sum((-2, -1), keepdim=True)
    total = r.sum((-2, -1), keepdim=True)
    # both sides keep their signs, and their sizes add up to the whole relevance
    size = all_a.abs() + all_b.abs()
    r_a = r_a * divide(divide(all_a.abs(), size) * total, all_a)
    r_b = r_b * divide(divide(all_b.abs(), size) * total, all_b)
    return r_a, r_b


def through_branch(x: Tensor, r_1: Tensor, r_2: Tensor) -> Tensor:
    """Propagate through the branching of x into two paths."""
    return x * (divide(r_1, x) + divide(r_2, x))


def joined(heads: Tensor) -> Tensor:
    """Concatenate the heads: (…, heads, t, e) to (…, t, d)."""
    return heads.transpose(-3, -2).flatten(-2)


def traced(block: TransformerLayer, x: Float[Tensor, "t d"]) -> tuple[Tensor, Tensor, Back]:
    """Return the block's result in `eval()` mode, its attention, and how relevance goes back.

    The relevance of a product is divided equally between its factors.
    """
    normed = block.norm1(x)
    q, k, v = block.qkv(normed).unflatten(-1, (3, block.heads, -1)).movedim(-3, 0).transpose(-3, -2)
    attention = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    mixed = joined(attention @ v)
    attended = block.out(mixed)
    z = x + attended
    normed_z = block.norm2(z)
    active = block.mlp[1](block.mlp[0](normed_z))
    mlp = block.mlp[3](active)

    def back(r: Tensor) -> tuple[Tensor, Tensor]:
        r_skip, r_mlp = through_sum(r, z, mlp)
        r_mlp = through_linear(through_linear(r_mlp, active, block.mlp[3]), normed_z, block.mlp[0])
        r_skip, r = through_sum(through_branch(z, r_skip, r_mlp), x, attended)
        r = through_linear(r, mixed, block.out).unflatten(-1, (block.heads, -1)).transpose(-3, -2)
        s = divide(r, attention @ v)
        r_attention = attention * (s @ v.mT) / 2
        r_v = v * (attention.mT @ s) / 2
        s = divide(r_attention, q @ k.mT)
        r_q = q * (s @ k) / 2
        r_k = k * (s.mT @ q) / 2
        r_qkv = torch.cat([joined(part) for part in (r_q, r_k, r_v)], -1)
        return r_attention, through_branch(x, r_skip, through_linear(r_qkv, normed, block.qkv))

    return z + mlp, attention, back


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
    C_l = mean over heads of max(0, ∂ℓ_c/∂A_l ⊙ R_A_l). Relevance starts at 1 (`unit_init`) or, as
    in the original, at the logit ℓ_c, which also multiplies the gradient.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        x = tokens.detach().clone().requires_grad_()
        matrices: list[Tensor] = []
        backs: list[Back] = []
        for block in blocks:
            x, attention, back = traced(block, x)
            matrices.append(attention)
            backs.append(back)
        last = norm(x)[0]
        logits = classifier(last)
        gradients = [torch.autograd.grad(logit, matrices, retain_graph=True) for logit in logits]
    with torch.no_grad():
        start = torch.ones_like(logits) if unit_init else logits
        r = tokens.new_zeros(len(logits), *tokens.shape)
        r[:, 0] = last * divide(through_linear(start.diag(), last, classifier), last)
        u = tokens.new_zeros(len(logits), 1, len(tokens))
        u[..., 0] = 1
        for layer in range(len(blocks) - 1, -1, -1):
            r_attention, r = backs[layer](r)
            g = torch.stack([class_gradients[layer] for class_gradients in gradients])
            g = g * start[:, None, None, None]
            # row of the class token in J (I + C_l)
            u = u + u @ (g * r_attention).clamp_min(0).mean(1)
        return u[:, 0, 1:]
