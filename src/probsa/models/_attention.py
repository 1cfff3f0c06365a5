"""The base class of ABMIL, T-ABMIL and ProbSA: instance vectors, q(f | X), pooling and ψ."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    FeatureCount,
    Rate,
    Width,
    without_autocast,
)
from ..layers import (
    Activation,
    AttentionPosterior,
    BagExplainer,
    Embed,
    NystromOptions,
    PosteriorKind,
    Readout,
    SampledWeights,
    SoftMaximum,
    Transformer,
    TransformerOptions,
    Trunk,
    WeightSums,
    Widths,
    cached_blocks,
    pool,
    pool_vectors,
    sampled_weights,
    weigh,
)
from ..variational import (
    FieldOptions,
    MapOptions,
    Posterior,
    PosteriorOptions,
    Prior,
    PriorOptions,
    Streams,
    normal_guidance,
    prior_of,
    sample_blocks,
)
from ._base import Model, Output
from ._explanation import Explanation, explain

NETWORK = TransformerOptions()
SAMPLING = PosteriorOptions()
PRIOR = PriorOptions()
FIELD = FieldOptions()
MAP = MapOptions()
WEIGHTS = ("weight_mean", "weight_variance", "weight_above_uniform")
"""The entries of `Output.extras` that hold the fields of `SampledWeights`, in this order."""


class AttentionModel(Model):
    """Attention pooling: p(Y | X, f) = ψ(Hᵀ softmax(f)) with f ~ q(f | X).

    Args:
        encoder: network H(X): `mlp` (ABMIL), or `transformer` (T-ABMIL).
        posterior: kind of q(f | X): `dirac` (Σ = 0), `diag` (diagonal Σ) or `field` (smooth on the
            bag's graph).
        branches: `single`: one attention map; `multi`: one per class, which pools for that class.
        activation: activation after each first layer; None: none before an encoder of attention
            models, ReLU elsewhere.
        dropout: dropout rate after each first layer, in the transformer, and after the classifier's
            hidden layer.
        attention_dim: width D_f of the network that computes f.
        trunk: form of the network that computes f, and log σ² or the precision with it.
        attention_activation: activation that replaces tanh in the plain and the gated trunk.
        attention_dropout: dropout rate after each activation of the attention network.
        score_bias: whether w has a bias (the original's does), which has no effect on the softmax;
            None: only with the `mlp` trunk.
        classifier_hidden: width of a hidden layer with ReLU in the classifier ψ; None: ψ is linear,
            which makes samples cheap.
        network: the encoder.
        sampling: number of samples, and range of log σ².
        prior: parameters of the prior, and reduction of the KL divergence.
        field: whether κ is learned, with a field.
        terms: a further term of the objective, which moves the map.
    """

    encoder: nn.Module | None
    """Contextualises the packed instance vectors, given the sizes of the bags."""
    classifier: nn.Module
    prior: Prior | None = None
    kl_reduction: Literal["mean", "sum"] = "mean"
    samples: int = 1
    predict_samples: int = 1
    terms: MapOptions = MAP

    encoder_type: ClassVar[Callable[..., nn.Module]] = Transformer
    """Makes an encoder from the width of the instance vectors and the options of `network`."""

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        encoder: Literal["mlp", "transformer"] = "mlp",
        posterior: PosteriorKind = "dirac",
        branches: Literal["single", "multi"] = "single",
        embed: Widths = 512,
        activation: Literal["relu", "identity"] | None = None,
        dropout: Rate = 0.0,
        network: TransformerOptions | NystromOptions = NETWORK,
        attention_dim: Width = 128,
        trunk: Trunk = "tanh",
        attention_activation: Activation = "tanh",
        attention_dropout: Rate = 0.0,
        score_bias: bool | None = None,
        classifier_hidden: Width | None = None,
        sampling: PosteriorOptions = SAMPLING,
        prior: PriorOptions = PRIOR,
        field: FieldOptions = FIELD,
        terms: MapOptions = MAP,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.terms = terms
        if self.has_kl:
            self.samples = sampling.samples
            self.predict_samples = sampling.predict_samples
            self.kl_reduction = prior.kl_reduction
            self.prior = prior_of(prior)
        evidence = self.score_kind == "evidence"
        if activation is None:
            activation = "identity" if encoder == "transformer" and not evidence else "relu"
        self.embed = Embed(in_dim, embed, activation=activation, dropout=dropout)
        d = self.embed.out_dim
        self.encoder = None
        if encoder == "transformer":
            self.encoder = self.encoder_type(d, **{"dropout": dropout, **asdict(network)})
        by_class = self.n_classes > 1 if evidence else branches == "multi"
        self.attention = AttentionPosterior(
            d,
            attention_dim,
            kind=posterior,
            trunk=trunk,
            mean_bias=evidence or score_bias,
            sampling=sampling,
            columns=self.n_classes if by_class else None,
            activation=attention_activation,
            dropout=attention_dropout,
            prior=prior,
            field=field,
        )
        if evidence:
            self.pooling = SoftMaximum(self.n_classes)
        elif classifier_hidden is None:
            self.classifier = nn.Linear(d, self.n_classes)
        else:
            self.classifier = nn.Sequential(
                nn.Linear(d, classifier_hidden),
                nn.Sequential(nn.ReLU(), nn.Dropout(dropout)),
                nn.Linear(classifier_hidden, self.n_classes),
            )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll`, −E_q[log p(Y | X, f)], and with a prior `kl`, eq. (5): means over bags.

        Also `guidance`, if it is asked for.
        """
        terms = super().losses(out, bags)
        if self.prior is not None:
            terms["kl"] = self._reduced(self.kl(out, bags), bags).mean()
        if self.terms.guidance == "normal":
            self.check_coords(bags)
            scores = self.pooled_scores(out.attention)
            terms["guidance"] = normal_guidance(scores, bags).mean()
        return terms

    @property
    def loss_weights(self) -> dict[str, float]:
        if self.terms.guidance == "none":
            return {}
        return {"guidance": self.terms.guidance_weight}

    def pooled_scores(self, q: Posterior) -> Float[Tensor, "n *classes"]:
        """Return the logits of the pooling's weights at the posterior mean."""
        return q.mean

    def kl(self, out: Output, bags: Bags) -> Float[Tensor, " bags"]:
        """Return KL(q ‖ p) of each bag, for a model with a prior."""
        learned = self.attention.prior
        prior = self.prior if learned is None else learned.prior(bags)
        assert prior is not None
        return out.attention.kl(prior, bags)

    def batch_statistics(self, out: Output, bags: Bags) -> Float[Tensor, "2"] | None:
        """Return Σ N_b and Σ E_q[fᵀ(L + εI) f], each reduced like the KL, to learn κ from.

        Both are sums over instances that have neighbours.
        """
        with torch.enable_grad():  # for the values that the KL has just used
            expected = out.attention.expected_energy
        if expected is None:
            return None
        parts = (expected.instances, expected.energy)
        return torch.stack([self._reduced(v.detach(), bags).sum() for v in parts])

    def _reduced(self, value: Float[Tensor, " bags"], bags: Bags) -> Float[Tensor, " bags"]:
        return value / bags.segments.counts if self.kl_reduction == "mean" else value

    def monitored(self) -> dict[str, float]:
        learned = self.attention.prior
        return {} if learned is None else {"kappa": float(learned.kappa)}

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
        h = self.instances(bags)
        return self.attend(h, bags, noise=noise, generator=generator)

    def attend(
        self,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Output:
        """Return the output given the instance vectors: q(f | X), pooling and the classifier ψ.

        Without gradients, `extras` hold what the samples say about each instance's weight
        (`WEIGHTS`), and a linear ψ gives an `explanation`.
        """
        q = self.attention(h, bags)
        readout = self.readout(h, q.like)
        # a deterministic model draws no key, which would change the numbers of later draws
        is_drawn = q.stochastic and noise is None
        generators = self.streams(bags, generator) if is_drawn else ()
        streams = Streams(bags.sizes, generators, noise=noise)
        samples = self.samples if self.training else self.predict_samples
        has_gradients = torch.is_grad_enabled()
        if readout is None:  # ψ is not linear: the instance vectors are pooled
            with without_autocast(h):
                f = q.sample(samples, streams).T
                z = pool_vectors(f, h, streams.sizes)
            weights = None if has_gradients else sampled_weights(f, streams.sizes)
            return self._output(q, self.classifier(z), weights)
        with without_autocast(h):
            if not has_gradients:
                return self._predicted(q, readout, streams, samples)
            f = q.sample(samples, streams)
            return self._output(q, pool(*readout(f), bags.sizes) + readout.bias)

    def _output(
        self,
        q: Posterior,
        logits: Float[Tensor, "bags samples classes"],
        weights: SampledWeights | None = None,
        explanation: Explanation | None = None,
    ) -> Output:
        extras = {}
        if weights is not None:
            for name, moment in zip(WEIGHTS, weights, strict=True):
                extras[name] = moment.view(q.mean.shape)
        return Output(
            logits=logits,
            attention=q,
            likelihood=self.likelihood,
            extras=extras,
            explanation=explanation,
        )

    def _predicted(self, q: Posterior, readout: Readout, streams: Streams, samples: int) -> Output:
        """Predict without storing anything of size n x samples."""
        sizes = streams.sizes
        logits: list[list[Tensor]] = [[] for _ in sizes]
        sums: list[WeightSums] = []
        explainers = self._explainers(readout, bags=len(sizes))
        for f in sample_blocks(q, samples, streams):
            scores, values = readout(f)
            bags = zip(scores.split(sizes, -1), values.split(sizes, -1), strict=True)
            for b, (bag_scores, bag_values) in enumerate(bags):
                for block_scores, block_values in cached_blocks(bag_scores, bag_values):
                    a = block_scores.softmax(-1)
                    logits[b].append(weigh(a, block_values))
                    if b == len(sums):
                        sums.append(WeightSums(a))
                    sums[b].add(a)
                    if explainers:
                        explainers[b].add(block_scores, block_values, weights=a)
        moments = zip(*(bag_sums.result() for bag_sums in sums), strict=True)
        bag_logits = [torch.cat(blocks) for blocks in logits]
        return self._output(
            q,
            torch.stack(bag_logits) + readout.bias,
            SampledWeights(*map(torch.cat, moments)),
            self.explained(q, readout, explainers) if explainers else None,
        )

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
