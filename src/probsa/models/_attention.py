"""The base class of ABMIL, T-ABMIL and ProbSA: instance vectors, q(f | X), pooling and ψ."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags
from ..layers import (
    AttentionPosterior,
    BagExplainer,
    Embed,
    Readout,
    SoftMaximum,
    WeightMoments,
    cached_blocks,
    pool,
    pool_vectors,
    weigh,
    weight_moments,
    without_autocast,
)
from ..variational import (
    POINTS,
    PREDICT_POINTS,
    Dirichlet,
    GivenNoise,
    Posterior,
    Streams,
    pool_normal,
    sample_blocks,
)
from ._base import Model, Output
from ._explanation import Explanation, explain


class AttentionModel(Model):
    """Attention pooling: p(Y | X, f) = ψ(Hᵀ softmax(f)) with f ~ q(f | X).

    Subclasses build the parts in `__init__`.
    """

    embed: Embed
    encoder: nn.Module | None
    """Contextualises the packed instance vectors, given the sizes of the bags."""
    attention: AttentionPosterior
    classifier: nn.Module
    pooling: SoftMaximum
    prior: Dirichlet | None = None
    kl_reduction: Literal["mean", "sum"] = "mean"
    samples: int = 1
    predict_samples: int = 1
    closed_form: bool = False
    """Whether bags are pooled without samples, where the posterior has independent instances."""
    _pooled = _sampled = 0
    """Bags that were pooled in this epoch, and how many of them were sampled all the same."""

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll`, −E_q[log p(Y | X, f)], and with a prior `kl`, eq. (5): means over bags."""
        terms = super().losses(out, bags)
        if self.prior is None:
            return terms
        return {**terms, "kl": self._reduced(self.kl(out, bags), bags).mean()}

    def kl(self, out: Output, bags: Bags) -> Float[Tensor, " bags"]:
        """Return KL(q ‖ p) of each bag, for a model with a prior."""
        learned = self.attention.prior
        prior = self.prior if learned is None else learned.prior(bags)
        assert prior is not None
        return out.attention.kl(prior, bags)

    def batch_statistics(self, out: Output, bags: Bags) -> Float[Tensor, "2"] | None:
        """Return Σ N_b and Σ E_q[fᵀ(L + εI) f], each reduced like the KL, to learn κ from."""
        energy = out.attention.expected_energy
        if energy is None:
            return None
        classes = out.attention.mean.shape[1:].numel()
        sizes = classes * bags.offsets.diff().to(energy)
        return torch.stack([self._reduced(v.detach(), bags).sum() for v in (sizes, energy)])

    def _reduced(self, value: Float[Tensor, " bags"], bags: Bags) -> Float[Tensor, " bags"]:
        return value / bags.offsets.diff() if self.kl_reduction == "mean" else value

    def monitored(self) -> dict[str, float]:
        learned = self.attention.prior
        values = {} if learned is None else {"kappa": float(learned.kappa)}
        if self.closed_form and self._pooled:
            values["sampled_share"] = self._sampled / self._pooled
        return values

    def start_epoch(self, epoch: int, epochs: int) -> None:
        del epoch, epochs
        self._pooled = self._sampled = 0

    def update_statistics(self, total: Float[Tensor, "2"]) -> None:
        """Move κ towards its estimate."""
        if self.attention.prior is not None:
            self.attention.prior.update(total)

    def instances(self, bags: Bags) -> Float[Tensor, "n d"]:
        """Return the instance vectors H(X), contextualised if there is an encoder."""
        h = self.embed(bags.x)
        return h if self.encoder is None else self.encoder(h, bags.sizes)

    def readout(self, h: Float[Tensor, "n d"], like: Tensor) -> Readout | None:
        """Return how samples of f become logits, in the dtype of `like`; None if ψ is not linear.

        A linear ψ is applied to the instances, g_n = uᵀh_n.
        """
        psi = self.classifier
        if not isinstance(psi, nn.Linear):
            return None
        return Readout(psi.bias, g=nn.functional.linear(h, psi.weight).to(like.dtype).T)

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        return self.attend(self.instances(bags), bags, noise=noise, generator=generator)

    def attend(
        self,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Output:
        """Return the output given the instance vectors: q(f | X), pooling and the classifier ψ.

        Without gradients, `extras` hold the mean and the variance over samples of each instance's
        weight, and a linear ψ gives an `explanation`.
        """
        q = self.attention(h, bags)
        readout = self.readout(h, q.mean)
        if noise is not None:
            streams: Streams = GivenNoise(bags.sizes, noise)
        else:
            streams = Streams(bags.sizes, self.streams(bags, generator) if q.stochastic else [])
        if readout is None:
            return self._by_vectors(q, h, streams)
        with without_autocast(h):
            if self.closed_form and noise is None:
                return self._in_closed_form(q, readout, streams)
            if not torch.is_grad_enabled():
                return self._predicted(q, readout, streams)
            f = q.sample(self._drawn, streams)
            return self._output(q, pool(*readout(f), bags.sizes) + readout.bias)

    def _output(
        self,
        q: Posterior,
        logits: Float[Tensor, "bags samples classes"],
        weights: tuple[Tensor, Tensor] | None = None,
        explanation: Explanation | None = None,
    ) -> Output:
        names = () if weights is None else ("weight_mean", "weight_variance")
        return Output(
            logits=logits,
            attention=q,
            likelihood=self.likelihood,
            extras={k: v.view(q.mean.shape) for k, v in zip(names, weights or (), strict=True)},
            explanation=explanation,
        )

    def _by_vectors(self, q: Posterior, h: Float[Tensor, "n d"], streams: Streams) -> Output:
        """Pool the instance vectors, for a ψ that is not linear."""
        with without_autocast(h):
            f = q.sample(self._drawn, streams).T
            z = pool_vectors(f, h, streams.sizes)
        weights = None if torch.is_grad_enabled() else weight_moments(f, streams.sizes)
        return self._output(q, self.classifier(z), weights)

    def _predicted(self, q: Posterior, readout: Readout, streams: Streams) -> Output:
        """Predict without storing anything of size n x samples."""
        sizes = streams.sizes
        logits: list[list[Tensor]] = [[] for _ in sizes]
        moments: list[WeightMoments] = []
        explainers = self._explainers(readout, bags=len(sizes))
        for f in sample_blocks(q, self._drawn, streams):
            of_bags = (v.split(sizes, -1) for v in readout(f))
            for b, of_bag in enumerate(zip(*of_bags, strict=True)):
                for scores, values in cached_blocks(*of_bag):
                    a = scores.softmax(-1)
                    logits[b].append(weigh(a, values))
                    if b == len(moments):
                        moments.append(WeightMoments(a))
                    moments[b].add(a)
                    if explainers:
                        explainers[b].add(scores, values, weights=a)
        mean, variance = zip(*(own.result() for own in moments), strict=True)
        return self._output(
            q,
            torch.stack([torch.cat(own) for own in logits]) + readout.bias,
            (torch.cat(mean), torch.cat(variance)),
            self.explained(q, readout, explainers) if explainers else None,
        )

    def _in_closed_form(self, q: Posterior, readout: Readout, streams: Streams) -> Output:
        """Pool at a few points of the posterior."""
        sizes, g = streams.sizes, readout.g
        mean, variance, bags, scale = q.mean, q.variance, len(sizes), None
        classes = 1
        if readout.alpha is not None and readout.beta is not None:  # scores βf, class after class
            classes, scale = len(readout.beta), readout.alpha / readout.beta
            beta = readout.beta.repeat_interleave(len(mean))
            mean = beta * mean.movedim(0, -1).reshape(-1)
            variance = beta.square() * variance.movedim(0, -1).reshape(-1)
        pooled = pool_normal(
            mean,
            variance,
            sizes * classes,
            g=None if g is None else g.T,
            points=POINTS if self.training else PREDICT_POINTS,
            generators=streams.repeated(classes).generators,
            series=classes,
        )
        if self.training:
            self._pooled += bags * classes
            self._sampled += len(pooled.sampled)
        y = pooled.y
        if scale is not None:
            y = scale * y.view(classes, bags, -1).permute(1, 2, 0)
        if torch.is_grad_enabled():
            return self._output(q, y + readout.bias)
        explainers = self._explainers(readout, bags=bags)
        for b, explainer in enumerate(explainers):
            of_classes = [pooled.blocks(b + c * bags) for c in range(classes)]
            for blocks in zip(*of_classes, strict=True):
                if scale is None:
                    assert g is not None
                    (block,) = blocks
                    values = g.split(sizes, -1)[b]
                    explainer.add(block.scores, values, offset=block.offset)
                    continue
                scores = torch.stack([block.scores for block in blocks])
                values = scale[:, None, None] * torch.stack([block.values for block in blocks])
                offset = scale * torch.cat([block.offset for block in blocks], 1)
                explainer.add(scores, values, offset=offset)
        mean, variance = (v.view(classes, -1).T.contiguous() for v in pooled.weights())
        explanation = self.explained(q, readout, explainers) if explainers else None
        out = self._output(q, y + readout.bias, (mean, variance), explanation)
        sampled = [any(b + c * bags in pooled.sampled for c in range(classes)) for b in range(bags)]
        out.extras["sampled"] = torch.tensor(sampled)
        return out

    def _explainers(self, readout: Readout, *, bags: int) -> list[BagExplainer]:
        """Return an explainer for each bag of a prediction; none in validation."""
        if self.training or not self.explains:
            return []
        bias = readout.bias.detach()
        return [BagExplainer(bias=bias, likelihood=self.likelihood) for _ in range(bags)]

    def explained(
        self, q: Posterior, readout: Readout, explainers: Sequence[BagExplainer]
    ) -> Explanation:
        """Return what the explainers of all bags found."""
        del q
        assert readout.g is not None
        return explain(readout.g.T, explainers)

    @property
    def _drawn(self) -> int:
        return self.samples if self.training else self.predict_samples
