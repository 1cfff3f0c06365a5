"""What ABMIL, T-ABMIL and ProbSA share: H(X), q(f | X), pooling, ψ. Each has its own arguments."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags
from ..errors import InputError
from ..layers import (
    Activation,
    AttentionPosterior,
    Embed,
    PosteriorKind,
    StackedLinear,
    Trunk,
    Widths,
    bias_of,
    pool_linear,
    pool_streamed,
    pool_vectors,
    weight_moments,
    without_bias,
)
from ..variational import (
    Dirichlet,
    Noise,
    Posterior,
    draw_noise,
    sample_instances,
    sample_major,
)
from ._base import Model, Output


class AttentionModel(Model):
    """p(Y | X, f) = ψ(Hᵀ softmax(f)), f ~ q(f | X). Subclasses build the parts in `__init__`."""

    embed: Embed
    encoder: nn.Module | None
    """Takes the packed instance vectors and the sizes of the bags."""
    attention: AttentionPosterior
    classifier: nn.Module
    prior: Dirichlet | None = None
    kl_reduction: Literal["mean", "sum"] = "mean"
    samples: int = 1
    predict_samples: int = 1

    def build_embed(
        self,
        in_dim: int,
        widths: Widths,
        *,
        activation: Literal["relu", "identity"],
        dropout: float,
    ) -> None:
        """The first layers (P → D); no encoder unless the subclass sets one."""
        self.embed = Embed(in_dim, widths, activation=activation, dropout=dropout)
        self.encoder = None

    def build_attention(
        self,
        *,
        attention_dim: int,
        trunk: Trunk,
        score_bias: bool | None = None,
        posterior: PosteriorKind = "dirac",
        bounds: tuple[float, float] | None = (-10.0, 4.0),
        initial_log_variance: float = -2.0,
        hidden: int | None = None,
        hidden_dropout: float = 0.0,
        columns: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
    ) -> None:
        """q(f | X) on the instance vectors, and ψ: linear, or with a `hidden` layer.

        With `columns` each class is pooled by an attention of its own. `activation` and `dropout`
        are the trunk's.
        """
        d = self.embed.out_dim
        self.attention = AttentionPosterior(
            d,
            attention_dim,
            kind=posterior,
            trunk=trunk,
            mean_bias=score_bias,
            log_variance_bounds=bounds,
            initial_log_variance=initial_log_variance,
            columns=columns,
            activation=activation,
            dropout=dropout,
        )
        if hidden is None:
            self.classifier = nn.Linear(d, self.n_classes)
        else:
            if hidden < 1:
                raise InputError(f"classifier_hidden is {hidden}: at least 1, or None")
            between = nn.Sequential(nn.ReLU(), nn.Dropout(hidden_dropout))
            self.classifier = nn.Sequential(
                nn.Linear(d, hidden), between, nn.Linear(hidden, self.n_classes)
            )

    def build_prior(
        self,
        *,
        kappa: float,
        ridge: float,
        laplacian: Literal["combinatorial", "normalized"],
        kl_reduction: Literal["mean", "sum"],
        samples: int,
        predict_samples: int,
    ) -> None:
        """p(f | A) on the bag's graph: from here on the losses have a `kl`."""
        if kl_reduction not in ("mean", "sum"):
            raise InputError(f"kl_reduction is {kl_reduction!r}: 'mean' or 'sum'")
        if min(samples, predict_samples) < 1:
            raise InputError(f"samples are {samples} and {predict_samples}: at least 1 each")
        self.samples, self.predict_samples = samples, predict_samples
        self.kl_reduction = kl_reduction
        self.prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return the terms of `bag_losses` as means over the bags."""
        return {name: each.mean() for name, each in self.bag_losses(out, bags).items()}

    def bag_losses(self, out: Output, bags: Bags) -> dict[str, Float[Tensor, " bags"]]:
        """Return `nll`, −E_q[log p(Y | X, f)], and with a prior `kl`, eq. (5), of each bag."""
        terms = {"nll": self.likelihood.nll(out.logits, self.labels(bags))}
        if self.prior is None:
            return terms
        kl = out.attention.kl(self.prior, bags)
        if self.kl_reduction == "mean":
            kl = kl / bags.offsets.diff()
        return {**terms, "kl": kl}

    def instances(self, bags: Bags) -> Float[Tensor, "n d"]:
        """Return the instance vectors H(X); with an encoder, they depend on their whole bag."""
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
        weight softmax(f)_n.
        """
        q = self.attention(h, bags)
        predicting = not torch.is_grad_enabled()
        psi = self.classifier
        linear = psi if isinstance(psi, nn.Linear | StackedLinear) else None
        if linear is not None and predicting and q.stochastic and noise is None:
            return self._streamed(q, linear, h, bags, generator=generator)
        eps = self._noise(q, bags, noise=noise, generator=generator)
        f = None if linear is not None and not predicting else sample_instances(q, eps, bags.sizes)
        if linear is not None:
            logits = pool_linear(q, _project(linear, h, q), bags.sizes, eps=eps)
            logits = logits + bias_of(linear, bags=len(bags))
        else:
            assert f is not None
            logits = self.classifier(pool_vectors(f, h.to(f.dtype), bags.sizes))
        extras: dict[str, Tensor] = {}
        if predicting:
            assert f is not None
            mean, variance = weight_moments(f, bags.sizes)
            extras = {"weight_mean": mean, "weight_variance": variance}
        return Output(logits=logits, attention=q, likelihood=self.likelihood, extras=extras)

    def _noise(
        self, q: Posterior, bags: Bags, *, noise: Tensor | None, generator: torch.Generator | None
    ) -> Noise | None:
        if not q.stochastic:
            return None
        if noise is not None:
            return sample_major(noise.to(q.mean.dtype), bags.sizes)
        generators = self.streams(bags, generator)
        return draw_noise(bags.sizes, self._drawn, like=q.mean.detach(), generators=generators)

    def _streamed(
        self,
        q: Posterior,
        linear: nn.Linear | StackedLinear,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        generator: torch.Generator | None,
    ) -> Output:
        """Predict without storing anything of size n x samples."""
        pooled = pool_streamed(
            q,
            _project(linear, h, q),
            bags.sizes,
            samples=self._drawn,
            generators=self.streams(bags, generator),
        )
        return Output(
            logits=pooled.logits + bias_of(linear, bags=len(bags)),
            attention=q,
            likelihood=self.likelihood,
            extras={"weight_mean": pooled.weight_mean, "weight_variance": pooled.weight_variance},
        )

    @property
    def _drawn(self) -> int:
        return self.samples if self.training else self.predict_samples


def _project(
    linear: nn.Linear | StackedLinear, h: Tensor, q: Posterior
) -> Float[Tensor, "n classes"]:
    """Return g_n = uᵀh_n, the classifier without its bias applied to every instance."""
    return without_bias(linear, h).to(q.mean.dtype)
