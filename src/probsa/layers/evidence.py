"""Instance classifiers that are trained with pseudo-labels from the attention (CLAM).

The k most attended instances of a bag count as evidence of its class, the k least attended as no
evidence. The attention only selects instances and gets no gradient from this loss.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import PositiveInt, Segments, as_segments, check_value, segment_mean, segment_topk
from .smooth_svm import smooth_top1_svm

InstanceLoss = Literal["ce", "svm"]


class Chosen(NamedTuple):
    """Selected instances of several bags, one bag after another."""

    rows: Int[Tensor, " m"]
    classes: Int[Tensor, " m"]
    """The classifier that each instance is given to."""
    targets: Int[Tensor, " m"]
    """1 if the instance counts as evidence of that class, else 0."""
    sizes: Segments
    """Number of selected instances of each bag."""


class InstanceEvidence(nn.Module):
    """A binary classifier of instances for each class of bags, and its loss.

    Args:
        dim: Width of the instance vectors.
        classes: Number of classes of bags.
        k: Number of most attended, and of least attended, instances in the loss.
        others: Also train the other classes' classifiers, on their most attended instances as no
            evidence; the loss is then a mean over classes.
        loss: `ce` for cross-entropy, `svm` for the smooth top-1 SVM.
    """

    def __init__(self, dim: int, *, classes: int, k: int, others: bool, loss: InstanceLoss) -> None:
        super().__init__()
        check_value("k_sample", k, PositiveInt)
        check_value("instance_loss", loss, InstanceLoss)
        self.k = k
        self.others = others
        self.kind = loss
        self.classifiers = nn.ModuleList(nn.Linear(dim, 2) for _ in range(classes))

    def forward(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "n classes 2"]:
        """Return the logits of every classifier for every instance."""
        layers = [layer for layer in self.classifiers if isinstance(layer, nn.Linear)]
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        return nn.functional.linear(h, weight, bias).view(len(h), -1, 2)

    def loss(
        self,
        logits: Float[Tensor, "n classes 2"],
        score: Float[Tensor, "n *columns"],
        y: Int[Tensor, " bags"],
        sizes: Sequence[int],
    ) -> Float[Tensor, " bags"]:
        """Return the loss of each bag: a sum over classes of means over the selected instances."""
        total = logits.new_zeros(len(sizes))
        for chosen in self.choose(score, y, sizes):
            scores = logits[chosen.rows, chosen.classes]
            if self.kind == "svm":
                losses = smooth_top1_svm(scores, chosen.targets)
            else:
                losses = nn.functional.cross_entropy(scores, chosen.targets, reduction="none")
            total = total + segment_mean(losses, chosen.sizes)
        return total / len(self.classifiers) if self.others else total

    def choose(
        self, score: Float[Tensor, "n *columns"], y: Int[Tensor, " bags"], sizes: Sequence[int]
    ) -> Iterator[Chosen]:
        """Yield the most and the least attended instances of each bag, for the bag's own class.

        With `others`, also yield the most attended instances for each other class. A bag of N < k
        instances gives N of each; in one of k ≤ N < 2k some instances are in both.

        Args:
            score: Attention of each instance, with an optional column per class.
            y: Class of each bag.
            sizes: Number of instances of each bag.
        """
        segments = as_segments(sizes, y.device)
        score = score.detach().view(len(score), -1)
        # a shift of 0 is the bag's own class
        for shift in range(len(self.classifiers) if self.others else 1):
            c = (y + shift) % len(self.classifiers)
            column = c if score.shape[1] > 1 else torch.zeros_like(c)
            s = score.gather(1, segments.spread(column)[:, None])[:, 0]
            bag_rows = segment_topk(s, sizes, k=self.k)
            targets = [torch.full_like(rows, int(shift == 0)) for rows in bag_rows]
            if shift == 0:
                least = segment_topk(s, sizes, k=self.k, largest=False)
                bag_rows = [torch.cat(pair) for pair in zip(bag_rows, least, strict=True)]
                targets = [torch.cat([ones, torch.zeros_like(ones)]) for ones in targets]
            chosen = Segments.of([len(rows) for rows in bag_rows], c.device)
            yield Chosen(torch.cat(bag_rows), chosen.spread(c), torch.cat(targets), chosen)
