"""Instance classifiers that learn from a bag's attention: CLAM's instance loss.

The k most attended instances of a bag are taken for evidence of its class, the k least attended for
none; only the choice looks at the attention, so gradients reach the instances chosen and no other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import segment_mean, segment_topk
from ..errors import InputError
from .smooth_svm import smooth_top1_svm

InstanceLoss = Literal["ce", "svm"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """m instances of several bags, one bag after another."""

    rows: Int[Tensor, " m"]
    classes: Int[Tensor, " m"]
    """Which classifier is asked."""
    targets: Int[Tensor, " m"]
    """1: evidence of that class."""
    sizes: Sequence[int]
    """How many of each bag."""


def choose(
    score: Float[Tensor, "n *columns"],
    y: Int[Tensor, " bags"],
    sizes: Sequence[int],
    *,
    k: int,
    classes: int,
    others: bool = False,
) -> Iterator[Chosen]:
    """Those at both ends of the attention to a bag's own class, the most attended ones first.

    A bag of N < k instances gives N of each end; one of k ≤ N < 2k has some at both.

    Args:
        score: attention; with a column a class, each class has its own order.
        y: class of each bag.
        sizes: instances in each bag.
        k: instances of each end.
        classes: how many there are.
        others: go on with the k that are most attended to for each other class, as no evidence.
    """
    ks = [min(k, n) for n in sizes]
    for shift in range(classes if others else 1):
        c = (y + shift) % classes
        s = _column(score.detach(), c, sizes)
        parts = segment_topk(s, sizes, k=k)
        if shift == 0:
            low = segment_topk(s, sizes, k=k, largest=False)
            parts = [torch.cat(pair) for pair in zip(parts, low, strict=True)]
            targets = [t for kept in ks for t in [1] * kept + [0] * kept]
        else:
            targets = [0] * sum(ks)
        lengths = [len(p) for p in parts]
        yield Chosen(
            rows=torch.cat(parts),
            classes=_repeat(c, lengths),
            targets=torch.tensor(targets, device=c.device),
            sizes=lengths,
        )


def _column(score: Tensor, c: Int[Tensor, " bags"], sizes: Sequence[int]) -> Float[Tensor, " n"]:
    """The attention to class c_b in each bag; the only one where there is one."""
    if score.ndim == 1 or score.shape[1] == 1:
        return score.view(-1)
    return score.gather(1, _repeat(c, sizes)[:, None])[:, 0]


def _repeat(v: Int[Tensor, " bags"], sizes: Sequence[int]) -> Int[Tensor, " m"]:
    return v.repeat_interleave(torch.tensor(sizes, device=v.device))


class InstanceEvidence(nn.Module):
    """A two-class classifier of instances for each class of bags, and its loss.

    Args:
        dim: width of the instance vectors.
        classes: of bags.
        k: instances of each end of a bag's attention.
        others: the most attended are no evidence of the other classes; the loss is a mean over
            classes then.
        loss: `ce`, or `svm`, the smooth top-1 SVM.
    """

    def __init__(self, dim: int, *, classes: int, k: int, others: bool, loss: InstanceLoss) -> None:
        super().__init__()
        if k < 1:
            raise InputError(f"k_sample is {k}: at least 1 instance")
        if loss not in ("ce", "svm"):
            raise InputError(f"instance_loss is {loss!r}: 'ce' or 'svm'")
        self.k, self.others, self.kind = k, others, loss
        self.classifiers = nn.ModuleList(nn.Linear(dim, 2) for _ in range(classes))

    def forward(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "n classes 2"]:
        """Every classifier on every instance, in one product."""
        layers = [m for m in self.classifiers if isinstance(m, nn.Linear)]
        weight = torch.cat([m.weight for m in layers])
        bias = torch.cat([m.bias for m in layers])
        return nn.functional.linear(h, weight, bias).view(len(h), -1, 2)

    def loss(
        self,
        logits: Float[Tensor, "n classes 2"],
        score: Float[Tensor, "n *columns"],
        y: Int[Tensor, " bags"],
        sizes: Sequence[int],
    ) -> Float[Tensor, " bags"]:
        """Of each bag: the mean over its 2k instances, and over its k for each other class."""
        total = logits.new_zeros(len(sizes))
        for chosen in self.choose(score, y, sizes):
            of = logits[chosen.rows, chosen.classes]
            if self.kind == "svm":
                each = smooth_top1_svm(of, chosen.targets)
            else:
                each = nn.functional.cross_entropy(of, chosen.targets, reduction="none")
            total = total + segment_mean(each, chosen.sizes)
        return total / len(self.classifiers) if self.others else total

    def choose(
        self, score: Float[Tensor, "n *columns"], y: Int[Tensor, " bags"], sizes: Sequence[int]
    ) -> Iterator[Chosen]:
        """What the loss is made of: the function `choose` with this module's settings."""
        return choose(score, y, sizes, k=self.k, classes=len(self.classifiers), others=self.others)
