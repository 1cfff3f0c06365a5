"""Evidence models: f_n is what instance n says for the class, and a bag's logit pools f itself.

In attention pooling nothing makes the attention point at the lesion, nor up rather than down. Here
one quantity is both: f_n > 0 speaks for the class and f_n < 0 against it, the logit is a soft
maximum of f, and the map is the posterior of f: its mean, its standard deviation and P(f_n > 0).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn

from ..core import Bags, PositiveInt, Rate, draw_key, random_stream, repeat_bags
from ..layers import (
    AttentionPosterior,
    BagExplainer,
    Block,
    EvidencePooling,
    PooledExplanation,
    PosteriorKind,
    SoftMaximum,
    Transformer,
    Trunk,
    Widths,
    joined,
)
from ..variational import (
    POINTS,
    PREDICT_POINTS,
    Diagonal,
    Dirac,
    FieldOptions,
    LearnedPrior,
    PerClass,
    Posterior,
    PosteriorOptions,
    PriorOptions,
    block_samples,
    draw_noise,
    noise_sizes,
    pool_normal,
    probability_positive,
    sample_instances,
    sample_major,
    stream_samples,
)
from ._attention import POOLING, AttentionModel
from ._base import Output, Provenance, ScoreKind
from ._explanation import Explanation
from ._registry import register

FIELD = "field_options"
QUADRATURE = 20
"""Nodes of the Gauss-Hermite quadrature over one instance's f."""


@register("evidence-dirac", posterior="dirac", without=[FIELD, POOLING])
@register("evidence-diag", posterior="diag", without=[FIELD])
@register("evidence-field", posterior="field", without=[POOLING])
class Evidence(AttentionModel):
    """The bag's logit is ℓ = α Σ_n softmax(β f)_n f_n + b, with f ~ q(f | X) and α, β > 0 learned.

    Instance n contributes α softmax(βf)_n f_n, and the contributions and b add up to ℓ. With
    several classes, each has its own f, with one κ for all.

    Args:
        in_dim: number of features per instance.
        posterior: kind of q(f | X): `dirac` (Σ = 0), `diag` (diagonal Σ) or `field` (smooth on the
            bag's graph).
        encoder: network H(X): `mlp`, or `transformer` as in T-ABMIL.
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer.
        dropout: dropout rate after each first layer and in the transformer.
        layers: number of transformer layers.
        heads: number of attention heads per layer.
        attention_dim: width of the network that computes f.
        trunk: form of the network that computes the mean of f and its precision.
        posterior_options: number of samples, and range of log σ².
        prior_options: parameters of the prior, and reduction of the KL divergence.
        field_options: whether κ is learned, with a field.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
    """

    score_kind: ClassVar[ScoreKind] = "evidence"
    needs = frozenset({"edges"})
    one_field = True
    has_kl = True
    provenance = Provenance(
        paper="none; a method of this package, built on arXiv:2507.14932 (prior and posterior) and "
        "on additive MIL (Javed et al., NeurIPS 2022, arXiv:2206.01794)",
        follows_paper="The prior, the ELBO and the two factorised posteriors of arXiv:2507.14932.",
        follows_code="Nothing.",
        fair="Not part of the comparison.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        posterior: PosteriorKind,
        encoder: Literal["mlp", "transformer"] = "mlp",
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "relu",
        dropout: Rate = 0.0,
        layers: int = 2,
        heads: int = 8,
        attention_dim: PositiveInt = 128,
        trunk: Trunk = "tanh",
        posterior_options: PosteriorOptions,
        prior_options: PriorOptions,
        field_options: FieldOptions,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        field = field_options if posterior == "field" else None
        self.build_prior(prior_options, posterior_options, field=field)
        self.build_embed(in_dim, embed, activation=activation, dropout=dropout)
        if encoder == "transformer":
            self.encoder = Transformer(
                self.embed.out_dim, layers=layers, heads=heads, dropout=dropout
            )
        self.attention = AttentionPosterior(
            self.embed.out_dim,
            attention_dim,
            kind=posterior,
            trunk=trunk,
            mean_bias=True,
            log_variance_bounds=posterior_options.log_variance_bounds,
            initial_log_variance=posterior_options.initial_log_variance,
            columns=None if n_classes == 1 else n_classes,
            prior=None if field is None else LearnedPrior(prior_options, field),
        )
        self.pooling = SoftMaximum(n_classes)

    def pooling_scalars(self) -> Iterator[nn.Parameter]:
        return self.pooling.parameters()

    def joint(self, q: Posterior, bags: Bags) -> tuple[Posterior, Bags]:
        """Return q and the bags of all classes, class after class."""
        if self.n_classes == 1:
            return q, bags
        many = repeat_bags(bags, self.n_classes)
        if isinstance(q, PerClass):
            return q.joint, many
        return Dirac(q.mean.T.reshape(-1)), many  # a Dirac has its classes in columns

    def kl(self, out: Output, bags: Bags) -> Float[Tensor, " bags"]:
        q, many = self.joint(out.attention, bags)
        return q.kl(self.prior_of(many), many).view(self.n_classes, -1).sum(0)

    def attend(
        self,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Output:
        """Return the output given the instance vectors: q(f | X) and its soft maximum."""
        shown = self.attention(h, bags)
        with torch.autocast(h.device.type, enabled=False):
            q, many = self.joint(shown, bags)
            if self.closed_form and noise is None and isinstance(q, Diagonal):
                return self._at_points(shown, q, many, bags, generator=generator)
            if torch.is_grad_enabled():
                eps = self._all_noise(q, many, bags, noise=noise, generator=generator)
                f = sample_instances(q, eps, many.sizes)
                logits = self.pooling(f, many.sizes)
                return Output(logits=logits, attention=shown, likelihood=self.likelihood)
            return self._predicted(shown, q, many, bags, noise=noise, generator=generator)

    def _predicted(
        self,
        shown: Posterior,
        q: Posterior,
        many: Bags,
        bags: Bags,
        *,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Output:
        """Predict without storing anything of size n x samples."""
        if q.stochastic and noise is None:
            samples = self._drawn
            blocks = self._streamed_blocks(q, many, bags, generator=generator)
        else:
            eps = self._all_noise(q, many, bags, noise=noise, generator=generator)
            f = sample_instances(q, eps, many.sizes)
            samples = f.shape[1]
            parts = f.view(self.n_classes, -1, samples).permute(0, 2, 1).split(list(bags.sizes), 2)
            blocks = ([(slice(0, samples), part)] for part in parts)
        explains = self.explains and not self.training
        pool = EvidencePooling(
            self.pooling,
            samples=samples,
            likelihood=self.likelihood if explains else None,
        )
        pooled = pool(blocks, like=q.mean)
        return Output(
            logits=pooled.logits,
            attention=shown,
            likelihood=self.likelihood,
            extras={
                "weight_mean": self._like(pooled.weight_mean, shown),
                "weight_variance": self._like(pooled.weight_variance, shown),
            },
            explanation=self._explanation(shown, pooled.explanation),
        )

    def _explanation(self, q: Posterior, pooled: PooledExplanation | None) -> Explanation | None:
        if pooled is None:
            return None
        return Explanation(
            scores=self._columns(q.mean),
            contributions=pooled.contributions,
            leave_one_out=pooled.leave_one_out,
            probability=self._columns(probability_positive(q)),
            at_least=self._at_least(q) if self.n_classes == 1 else None,
        )

    def _at_points(
        self,
        shown: Posterior,
        q: Diagonal,
        many: Bags,
        bags: Bags,
        *,
        generator: torch.Generator | None,
    ) -> Output:
        """Pool at a few points of the posterior; the scores of the softmax are βf."""
        p, dtype = self.pooling, q.mean.dtype
        alpha, beta, bias = (v.to(dtype) for v in (p.log_alpha.exp(), p.log_beta.exp(), p.bias))
        rates = beta.repeat_interleave(len(bags.x))
        pooled = pool_normal(
            rates * q.mean,
            rates.square() * q.variance,
            many.sizes,
            g=None,
            points=POINTS if self.training else PREDICT_POINTS,
            generators=self._class_streams(bags, generator),
            series=self.n_classes,
        )
        scale = alpha / beta
        logits = scale * pooled.y.view(self.n_classes, len(bags), -1).permute(1, 2, 0) + bias
        out = Output(logits=logits, attention=shown, likelihood=self.likelihood)
        if torch.is_grad_enabled():
            return out
        extras = {
            f"weight_{name}": self._like(value.view(self.n_classes, -1).T, shown)
            for name, value in zip(("mean", "variance"), pooled.weights(), strict=True)
        }
        explained: list[PooledExplanation] = []
        for b, n in enumerate(bags.sizes if self.explains and not self.training else []):
            explainer = BagExplainer(n, bias=bias, likelihood=self.likelihood)
            of_classes = (pooled.blocks(b + c * len(bags)) for c in range(self.n_classes))
            for blocks in zip(*of_classes, strict=True):
                scores = torch.stack([block.scores for block in blocks])
                values = torch.stack([block.values for block in blocks])
                offset = torch.cat([block.offset for block in blocks], 1)
                values = scale[:, None, None] * values
                explainer.add(scores, scores.softmax(2), values, offset=scale * offset)
            explained.append(explainer.result())
        explanation = self._explanation(shown, joined(explained)) if explained else None
        return replace(out, extras=extras, explanation=explanation)

    def _at_least(self, q: Posterior) -> Float[Tensor, "n steps"] | None:
        """Return E_q[P(Y ≥ k | ℓ = α f_n + b)] of each instance, for grades."""
        nodes, weights = hermegauss(QUADRATURE)
        total: Tensor | None = None
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            f = q.mean + node * q.variance.sqrt()
            p = self.likelihood.at_least(
                (self.pooling.log_alpha.exp() * f + self.pooling.bias)[:, None]
            )
            if p is None:
                return None
            total = weight * p if total is None else total + weight * p
        return total

    @staticmethod
    def _columns(value: Float[Tensor, "n *classes"]) -> Float[Tensor, "n classes"]:
        return value[:, None] if value.ndim == 1 else value

    @staticmethod
    def _like(value: Float[Tensor, "n classes"], q: Posterior) -> Float[Tensor, "n *classes"]:
        return value[:, 0] if q.mean.ndim == 1 else value

    def _all_noise(
        self,
        q: Posterior,
        many: Bags,
        bags: Bags,
        *,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor | None:
        """Return the noise of all classes; `noise`, if given, is that of every class alike."""
        if not q.stochastic:
            return None
        counts = noise_sizes(q, many.sizes)
        if noise is not None:
            return sample_major(noise.to(q.mean.dtype).repeat(self.n_classes, 1), counts)
        generators = self._class_streams(bags, generator)
        return draw_noise(
            counts,
            self._drawn,
            like=q.mean.detach(),
            generators=generators,
            least=block_samples(q),
        )

    def _class_streams(
        self, bags: Bags, generator: torch.Generator | None
    ) -> list[torch.Generator]:
        """Return a generator for each bag of each class, class after class."""
        streams = self.streams(bags, generator)
        every = list(streams)
        for _ in range(1, self.n_classes):
            keys = [draw_key(stream) for stream in streams]
            every += [random_stream(key, "class", device=bags.x.device) for key in keys]
        return every

    def _streamed_blocks(
        self, q: Posterior, many: Bags, bags: Bags, *, generator: torch.Generator | None
    ) -> Iterator[Iterator[Block]]:
        generators = self._class_streams(bags, generator)
        streams = list(stream_samples(q, many.sizes, samples=self._drawn, generators=generators))
        for b in range(len(bags)):
            of_classes = streams[b :: len(bags)]
            yield (
                (blocks[0][0], torch.stack([f_sn for _, f_sn in blocks]))
                for blocks in zip(*of_classes, strict=True)
            )
