"""The base class of ABMIL, T-ABMIL and ProbSA: instance vectors, q(f | X), pooling and ψ."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags
from ..layers import (
    Activation,
    AttentionPosterior,
    Embed,
    PosteriorKind,
    Trunk,
    Widths,
    pool_linear,
    pool_streamed,
    pool_vectors,
    weight_moments,
)
from ..variational import (
    POINTS,
    PREDICT_POINTS,
    Diagonal,
    Dirichlet,
    Field,
    FieldOptions,
    LearnedPrior,
    Noise,
    PerClass,
    Posterior,
    PosteriorOptions,
    PriorOptions,
    block_samples,
    draw_noise,
    noise_sizes,
    pool_normal,
    sample_instances,
    sample_major,
)
from ._base import Model, Output
from ._explanation import Explainer, Explanation

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
    prior: Dirichlet | None = None
    field_options: FieldOptions | None = None
    """Options of a field posterior; with one, the attention holds the prior, with a learned κ."""
    kl_reduction: Literal["mean", "sum"] = "mean"
    samples: int = 1
    predict_samples: int = 1
    closed_form: bool = False
    """Whether bags are pooled without samples, where the posterior has independent instances."""

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

        With `columns`, each class is pooled by its own attention. `activation` and `dropout` are
        those of the trunk.
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
        if hidden is None:
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
        return getattr(self.attention, "prior", None)

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
        q = out.attention.joint if isinstance(out.attention, PerClass) else out.attention
        if not isinstance(q, Field):
            return None
        energy = q.expected_energy.detach().view(-1, len(bags))
        sizes = bags.offsets.diff().to(energy).expand_as(energy)
        return torch.stack([self._reduced(v, bags).sum() for v in (sizes, energy)])

    def _reduced(self, value: Float[Tensor, "*k bags"], bags: Bags) -> Float[Tensor, "*k bags"]:
        return value / bags.offsets.diff() if self.kl_reduction == "mean" else value

    def monitored(self) -> dict[str, float]:
        prior = self.learned_prior
        return {} if prior is None else {"kappa": float(prior.kappa)}

    def update_statistics(self, total: Float[Tensor, "2"]) -> None:
        """Move κ towards its estimate."""
        if self.learned_prior is not None:
            self.learned_prior.update(total)

    def instances(self, bags: Bags) -> Float[Tensor, "n d"]:
        """Return the instance vectors H(X), contextualised if there is an encoder."""
        h = self.embed(bags.x)
        return h if self.encoder is None else self.encoder(h, bags.sizes)

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
        weight softmax(f)_n, and a linear ψ gives an `explanation`.
        """
        q = self.attention(h, bags)
        predicting = not torch.is_grad_enabled()
        psi = self.classifier
        linear = psi if isinstance(psi, nn.Linear) else None
        if self.closed_form and linear is not None and noise is None and isinstance(q, Diagonal):
            return self._in_closed_form(q, linear, h, bags, generator=generator)
        if linear is not None and predicting and q.stochastic and noise is None:
            return self._streamed(q, linear, h, bags, generator=generator)
        eps = self._noise(q, bags, noise=noise, generator=generator)
        f = None if linear is not None and not predicting else sample_instances(q, eps, bags.sizes)
        explanation: Explanation | None = None
        if linear is not None:
            g = _project(linear, h, q)
            logits = pool_linear(q, g, bags.sizes, eps=eps)
            if predicting and (explainer := self._explainer(linear, g, bags)) is not None:
                assert f is not None
                explanation = explainer.of_samples(f)
            logits = logits + linear.bias
        else:
            assert f is not None
            logits = self.classifier(pool_vectors(f, h.to(f.dtype), bags.sizes))
        extras: dict[str, Tensor] = {}
        if predicting:
            assert f is not None
            mean, variance = weight_moments(f, bags.sizes)
            extras = {"weight_mean": mean, "weight_variance": variance}
        return Output(
            logits=logits,
            attention=q,
            likelihood=self.likelihood,
            extras=extras,
            explanation=explanation,
        )

    def _explainer(
        self, linear: nn.Linear, g: Float[Tensor, "n classes"], bags: Bags
    ) -> Explainer | None:
        """Return the explainer of a prediction; None in validation."""
        if self.training or not self.explains:
            return None
        return Explainer(g, bags.sizes, bias=linear.bias, likelihood=self.likelihood)

    def _noise(
        self, q: Posterior, bags: Bags, *, noise: Tensor | None, generator: torch.Generator | None
    ) -> Noise | None:
        if not q.stochastic:
            return None
        if noise is not None:
            return sample_major(noise.to(q.mean.dtype), noise_sizes(q, bags.sizes))
        generators = self.streams(bags, generator)
        counts = noise_sizes(q, bags.sizes)
        return draw_noise(
            counts,
            self._drawn,
            like=q.mean.detach(),
            generators=generators,
            least=block_samples(q),
        )

    def _streamed(
        self,
        q: Posterior,
        linear: nn.Linear,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        generator: torch.Generator | None,
    ) -> Output:
        """Predict without storing anything of size n x samples."""
        g = _project(linear, h, q)
        explainer = self._explainer(linear, g, bags)
        pooled = pool_streamed(
            q,
            g,
            bags.sizes,
            samples=self._drawn,
            generators=self.streams(bags, generator),
            watch=None if explainer is None else explainer.watch,
        )
        return Output(
            logits=pooled.logits + linear.bias,
            attention=q,
            likelihood=self.likelihood,
            extras={"weight_mean": pooled.weight_mean, "weight_variance": pooled.weight_variance},
            explanation=None if explainer is None else explainer.result(),
        )

    def _in_closed_form(
        self,
        q: Diagonal,
        linear: nn.Linear,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        generator: torch.Generator | None,
    ) -> Output:
        """Pool at a few points of the posterior."""
        g = _project(linear, h, q)
        with torch.autocast(h.device.type, enabled=False):
            pooled = pool_normal(
                q.mean,
                q.variance,
                bags.sizes,
                g=g,
                points=POINTS if self.training else PREDICT_POINTS,
                generators=self.streams(bags, generator),
            )
        out = Output(logits=pooled.y + linear.bias, attention=q, likelihood=self.likelihood)
        if torch.is_grad_enabled():
            return out
        mean, variance = pooled.weights()
        explainer = self._explainer(linear, g, bags)
        return replace(
            out,
            extras={"weight_mean": mean, "weight_variance": variance},
            explanation=None if explainer is None else explainer.of_points(pooled),
        )

    @property
    def _drawn(self) -> int:
        return self.samples if self.training else self.predict_samples


def _project(linear: nn.Linear, h: Tensor, q: Posterior) -> Float[Tensor, "n classes"]:
    """Return g_n = uᵀh_n, the classifier without its bias applied to every instance."""
    return nn.functional.linear(h, linear.weight).to(q.mean.dtype)
