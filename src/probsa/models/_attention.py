"""The base class of ABMIL, T-ABMIL and ProbSA: instance vectors, q(f | X), pooling and ψ."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags
from ..layers import (
    Activation,
    AttentionPosterior,
    BagExplainer,
    Embed,
    PosteriorKind,
    Readout,
    SoftMaximum,
    Trunk,
    WeightMoments,
    Widths,
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
    ClosedForm,
    Dirichlet,
    FieldOptions,
    LearnedPrior,
    Posterior,
    PosteriorOptions,
    PriorOptions,
    Streams,
    sample_blocks,
)
from ._base import Model, Output
from ._explanation import Explanation, explain

POOLING = "pooling"
"""The argument that posteriors other than diagonal ones do not have."""


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
    field_options: FieldOptions | None = None
    """Options of a field posterior; with one, the attention holds the prior, with a learned κ."""
    kl_reduction: Literal["mean", "sum"] = "mean"
    samples: int = 1
    predict_samples: int = 1
    closed_form: bool = False
    """Whether bags are pooled without samples, where the posterior has independent instances."""
    _pooled = _sampled = 0
    """Bags that were pooled in this epoch, and how many of them were sampled all the same."""

    def build_embed(
        self,
        in_dim: int,
        widths: Widths,
        *,
        activation: Literal["relu", "identity"],
        dropout: float,
    ) -> None:
        """Build the first layers (P → D); a subclass that has an encoder sets it afterwards."""
        self.embed = Embed(in_dim, widths, activation=activation, dropout=dropout)
        self.encoder = None

    def build_attention(
        self,
        *,
        attention_dim: int,
        trunk: Trunk,
        score_bias: bool | None = None,
        posterior: PosteriorKind = "dirac",
        options: PosteriorOptions | None = None,
        hidden: int | None = None,
        hidden_dropout: float = 0.0,
        columns: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
    ) -> None:
        """Build q(f | X) on the instance vectors, and ψ: linear, or with a `hidden` layer.

        A model of evidence has a soft maximum in place of ψ. With `columns`, each class is pooled
        by its own attention. `activation` and `dropout` are those of the trunk.
        """
        d = self.embed.out_dim
        options = options or PosteriorOptions()
        self.attention = AttentionPosterior(
            d,
            attention_dim,
            kind=posterior,
            trunk=trunk,
            mean_bias=score_bias,
            log_variance_bounds=options.log_variance_bounds,
            initial_log_variance=options.initial_log_variance,
            columns=columns,
            activation=activation,
            dropout=dropout,
            prior=self._new_learned_prior() if posterior == "field" else None,
        )
        if self.score_kind == "evidence":
            self.pooling = SoftMaximum(self.n_classes)
        elif hidden is None:
            self.classifier = nn.Linear(d, self.n_classes)
        else:
            between = nn.Sequential(nn.ReLU(), nn.Dropout(hidden_dropout))
            self.classifier = nn.Sequential(
                nn.Linear(d, hidden), between, nn.Linear(hidden, self.n_classes)
            )

    def build_prior(
        self,
        prior: PriorOptions,
        posterior: PosteriorOptions,
        *,
        field: FieldOptions | None = None,
    ) -> None:
        """Build p(f | A) on the bag's graph, so that the losses include `kl`.

        With options of a field, the posterior that is built afterwards is a `Field`.
        """
        self.samples, self.predict_samples = posterior.samples, posterior.predict_samples
        self.closed_form = posterior.pooling == "closed_form"
        self.kl_reduction = prior.kl_reduction
        self.prior = Dirichlet(kappa=prior.kappa, ridge=prior.ridge, laplacian=prior.laplacian)
        self._prior_options, self.field_options = prior, field

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll`, −E_q[log p(Y | X, f)], and with a prior `kl`, eq. (5): means over bags."""
        terms = super().losses(out, bags)
        if self.prior is None:
            return terms
        return {**terms, "kl": self._reduced(self.kl(out, bags), bags).mean()}

    def kl(self, out: Output, bags: Bags) -> Float[Tensor, " bags"]:
        """Return KL(q ‖ p) of each bag, for a model with a prior."""
        return out.attention.kl(self.prior_of(bags), bags)

    @property
    def learned_prior(self) -> LearnedPrior | None:
        """The prior of a field posterior; None for other posteriors."""
        return None if self.field_options is None else self.attention.prior

    def prior_of(self, bags: Bags) -> Dirichlet:
        """Return the prior of a batch, of a model that has one."""
        assert self.prior is not None
        learned = self.learned_prior
        return self.prior if learned is None else learned.prior(bags)

    def _new_learned_prior(self) -> LearnedPrior:
        assert self.field_options is not None, "`build_prior` comes before `build_attention`"
        return LearnedPrior(self._prior_options, self.field_options)

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
        values = {} if self.learned_prior is None else {"kappa": float(self.learned_prior.kappa)}
        if self.closed_form and self._pooled:
            values["sampled_share"] = self._sampled / self._pooled
        return values

    def start_epoch(self, epoch: int, epochs: int) -> None:
        del epoch, epochs
        self._pooled = self._sampled = 0

    def update_statistics(self, total: Float[Tensor, "2"]) -> None:
        """Move κ towards its estimate."""
        if self.learned_prior is not None:
            self.learned_prior.update(total)

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
        drawn = q.stochastic and noise is None
        own = self.streams(bags, generator) if drawn else ()
        streams = Streams(bags.sizes, own, noise=noise)
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
        mean, variance, scale = q.mean, q.variance, None
        if readout.alpha is not None and readout.beta is not None:  # of scores s = βf, αf = α/β s
            scale = readout.alpha / readout.beta
            mean, variance = readout.beta * mean, readout.beta.square() * variance
        g = None if readout.g is None else readout.g.T
        points = POINTS if self.training else PREDICT_POINTS
        pooled = ClosedForm(mean, variance, streams, g=g, points=points)
        if self.training:
            self._pooled += pooled.sampled.numel()
            self._sampled += int(pooled.sampled.sum())
        logits = (pooled.y if scale is None else scale * pooled.y) + readout.bias
        if torch.is_grad_enabled():
            return self._output(q, logits)
        explainers = self._explainers(readout, bags=len(streams.sizes))
        for b, explainer in enumerate(explainers):
            for scores, values, offset in pooled.blocks(b):
                if scale is not None:
                    values, offset = scale[:, None, None] * values, scale * offset
                explainer.add(scores, values, offset=offset)
        explanation = self.explained(q, readout, explainers) if explainers else None
        out = self._output(q, logits, pooled.weights(), explanation)
        out.extras["sampled"] = pooled.sampled.any(0).cpu()
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
