"""Stage 6: the prior p(f | A) of the attention logits, and its precision by empirical Bayes."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from ..core import Bags, degrees, segment_max, segment_sum
from ..errors import InputError
from .gmrf import GMRF
from .options import FieldOptions, PriorOptions

TIE = 1e-12
"""Weights and ridges up to this share of the bag's largest degree are lost in sums of float64."""


def full_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64 (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


class Prior(ABC):
    """N(0, Q⁻¹) for the attention logits of a bag, with Q = 2κ M for a matrix M of its graph."""

    kappa: float | Float[Tensor, " bags"]
    """The precision κ > 0; a tensor gives each bag of a batch its own."""

    @property
    @abstractmethod
    def is_proper(self) -> bool:
        """Whether Q is positive definite whatever the graph, so that a field can be made of it."""

    @abstractmethod
    def precision(
        self, bags: Bags, *, dtype: torch.dtype
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " e"]]:
        """Return the diagonal of Q, and its entry for each stored pair."""

    @abstractmethod
    def energies(self, f: Float[Tensor, "n *classes"], bags: Bags) -> Float[Tensor, " n"]:
        """Return the share of each instance in `energy`; that of an edge is its first end's."""

    @abstractmethod
    def log_determinant(self, bags: Bags) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag, without gradients.

        Raises:
            InputError: The determinant is 0, or is lost by rounding.
        """

    @abstractmethod
    def with_kappa(self, kappa: float | Float[Tensor, " bags"]) -> "Prior":
        """Return the same prior with another precision."""

    @abstractmethod
    def has_form_of(self, other: "Prior") -> bool:
        """Return whether another prior differs in κ at most."""

    def energy(self, f: Float[Tensor, "n *classes"], bags: Bags) -> Float[Tensor, " bags"]:
        """Return ½ fᵀQf of each bag, summed over classes: log p(f | A) = −energy(f) + const."""
        return segment_sum(self.energies(f, bags), bags.sizes)

    def kappa_of(self, bags: Bags, *, dtype: torch.dtype) -> Float[Tensor, " bags"]:
        """Return κ of each bag."""
        if isinstance(self.kappa, Tensor):
            return self.kappa.to(dtype)
        return torch.full((len(bags),), self.kappa, dtype=dtype, device=bags.x.device)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dirichlet(Prior):
    """p(f | A) ∝ exp(−κ fᵀ(L + εI) f): the paper's prior (κ = 1, ε = 0) with a ridge term.

    fᵀLf = Σ_edges A_ij (f_i − f_j)² is the Dirichlet energy, eq. (1) of docs/paper.md. The prior is
    N(0, Q⁻¹) with Q = 2κ(L + εI).
    """

    kappa: float | Float[Tensor, " bags"] = PriorOptions.kappa
    """The precision κ > 0; a tensor gives each bag of a batch its own."""
    ridge: float = PriorOptions.ridge
    """ε ≥ 0. With 0, the prior is improper along the constant vector of every connected component,
    and an instance without neighbours has no finite optimal variance."""
    laplacian: Literal["combinatorial", "normalized"] = PriorOptions.laplacian
    """`combinatorial`, L = D − A, or `normalized`, L = I − D^-½ A D^-½, where L_nn = 1 also for an
    isolated instance."""

    def __post_init__(self) -> None:
        kappa = PriorOptions.kappa if isinstance(self.kappa, Tensor) else self.kappa
        # the options check the values
        PriorOptions(kappa=kappa, ridge=self.ridge, laplacian=self.laplacian)

    def precision(
        self, bags: Bags, *, dtype: torch.dtype
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " e"]]:
        """Return the diagonal of Q, and its entry for each stored pair."""
        w = bags.weights.to(dtype)
        degree = degrees(bags.edges, w, len(bags.x))
        i, j = bags.edges
        diagonal = degree + self.ridge
        pairs = -w
        if self.laplacian == "normalized":
            scale = _root_inverse(degree)
            diagonal = torch.ones_like(degree) + self.ridge
            pairs = -w * scale[i] * scale[j]
        if not isinstance(self.kappa, Tensor):
            return 2 * self.kappa * diagonal, 2 * self.kappa * pairs
        factor = bags.segments.spread(2 * self.kappa.to(dtype))
        return factor * diagonal, factor[i] * pairs

    def energies(self, f: Float[Tensor, "n *classes"], bags: Bags) -> Float[Tensor, " n"]:
        """Return the share of each instance in `energy`; that of an edge is its first end's.

        The energy is κ fᵀ(L + εI) f, κ times eq. (1) with the ridge of eq. (5).
        """
        i, j = bags.edges
        w = bags.weights.to(f.dtype)
        at_instance = self.ridge * f.square()
        if self.laplacian == "normalized":
            degree = degrees(bags.edges, w, len(f))
            column = (-1, *[1] * (f.ndim - 1))
            # L_nn = 1 also for an isolated instance, which no edge counts
            at_instance = at_instance + f.square() * (degree == 0).view(column)
            f = f * _root_inverse(degree).view(column)
        # The gradient of index_select is a plain index_add; that of f[i] sorts the indices first.
        squares = (f.index_select(0, i) - f.index_select(0, j)).square()
        if f.ndim == 2:
            squares = squares.sum(1)
            at_instance = at_instance.sum(1)
        kappa = self.kappa
        if isinstance(kappa, Tensor):
            kappa = bags.segments.spread(kappa.to(f.dtype))
        return kappa * at_instance.index_add(0, i, w * squares)

    @property
    def is_proper(self) -> bool:
        return self.ridge > 0

    def with_kappa(self, kappa: float | Float[Tensor, " bags"]) -> "Dirichlet":
        return replace(self, kappa=kappa)

    def has_form_of(self, other: Prior) -> bool:
        if not isinstance(other, Dirichlet):
            return False
        return self.ridge == other.ridge and self.laplacian == other.laplacian

    def log_determinant(self, bags: Bags) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag, without gradients.

        With ε = 0, this is the log of the product of the non-zero eigenvalues, for bags of one
        connected component.

        Raises:
            InputError: If ε = 0 and a bag has several connected components, or the Laplacian is
                normalised (its null vector is not the constant that softmax ignores); or if ε is
                too small beside the degrees for the precision of the linear algebra.
        """
        diagonal, pairs = self.precision(bags, dtype=full_dtype(bags.x.device))
        if self.ridge:
            self._check_ridge(bags)
            return GMRF(diagonal, pairs, bags=bags).log_determinants()
        if self.laplacian == "normalized":
            raise InputError("an exact KL with ridge = 0 needs the combinatorial Laplacian")
        self._check_connected(bags)
        # Matrix-tree theorem: the product is n times any cofactor; |Q + s e₁e₁ᵀ| is s times one.
        starts = bags.offsets[:-1]
        added = torch.where(diagonal[starts] > 0, diagonal[starts], 1)
        field = GMRF(diagonal.index_add(0, starts, added), pairs, bags=bags)
        return field.log_determinants() + (bags.segments.counts / added).log()

    def _check_connected(self, bags: Bags) -> None:
        """Refuse a bag whose prior without a ridge leaves the level of a component open."""
        largest = self._largest_degrees(bags)
        connects = bags.weights > TIE * largest[bags.bag[bags.edges[0]]]
        edges = bags.edges[:, connects].cpu().numpy()
        n = len(bags.x)
        graph = coo_matrix((np.ones(edges.shape[1]), tuple(edges)), shape=(n, n))
        _, component = connected_components(graph, directed=False)
        # the first instance of each component says which bag the component is of
        _, first = np.unique(component, return_index=True)
        counts = bags.bag.cpu()[first].bincount()
        if bool((counts > 1).any()):
            worst = int(counts.argmax())
            raise InputError(
                f"bag {bags.names[worst]!r} has {counts[worst]} connected components (edges of "
                "weight 0 connect nothing) and ridge is 0: the prior does not determine their "
                "relative level, so the KL is undefined; give ridge > 0"
            )

    def _check_ridge(self, bags: Bags) -> None:
        """Refuse a bag beside whose degrees the ridge is lost by rounding."""
        lost = self.ridge <= TIE * self._largest_degrees(bags)
        if bool(lost.any()):
            raise InputError(
                f"bag {bags.names[int(lost.nonzero()[0])]!r}: ridge is {self.ridge:g}, which "
                "cannot be told from 0 beside the degrees of its graph, so the KL is undefined; "
                "give a larger ridge"
            )

    def _largest_degrees(self, bags: Bags) -> Float[Tensor, " bags"]:
        """Return the largest degree of each bag; 1 with edges for the normalised Laplacian."""
        weights = bags.weights.to(full_dtype(bags.x.device))
        largest = segment_max(degrees(bags.edges, weights, len(bags.x)), bags.sizes)
        return (largest > 0).to(largest) if self.laplacian == "normalized" else largest


def prior_of(
    options: PriorOptions, *, kappa: float | Float[Tensor, " bags"] | None = None
) -> Prior:
    """Return the prior of these options, with another precision if `kappa` is given."""
    return Dirichlet(
        kappa=options.kappa if kappa is None else kappa,
        ridge=options.ridge,
        laplacian=options.laplacian,
    )


def _root_inverse(degree: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return D^-½, with 0 for isolated instances."""
    return degree.clamp_min(torch.finfo(degree.dtype).tiny).rsqrt() * (degree > 0)


class LearnedPrior(nn.Module):
    """p(f | A) with a running estimate of κ, in a buffer like the statistics of a batch norm.

    With E_b = E_q[fᵀ(L + εI) f], the KL of a bag is κE_b − (N_b / 2) log κ + const. Its mean over
    the bags, each divided by N_b, is smallest at κ* = B / (2 Σ_b E_b / N_b), and their sum at
    Σ_b N_b / (2 Σ_b E_b). After every training step log κ moves towards log κ* of the step's bags,
    by `kappa_rate` of the way.

    Only instances that have neighbours are counted, in N_b above the line and in E_b. Others have
    the prior N(0, 1/(2κε)): with ε = 0.01 they would ask for κ = 50 / E[f²], whatever neighbours
    say. A larger κ shrinks f, which asks for a larger κ still, without bound if λ is large. If no
    instance of a step has neighbours, κ stays.

    Args:
        prior: Start value of κ, ε, and the Laplacian.
        field: Whether κ is learned, and how fast.

    Raises:
        InputError: The ridge is 0, so that the prior is improper.
    """

    log_kappa: Tensor

    def __init__(self, prior: PriorOptions, field: FieldOptions) -> None:
        super().__init__()
        if prior.ridge == 0:
            raise InputError(
                "ridge is 0: the prior of a field must be proper, so give ridge > 0, as 0.01"
            )
        self.options = prior
        self.field = field
        self.register_buffer("log_kappa", torch.tensor(math.log(prior.kappa)))
        self._latest: tuple[Tensor, int, int, Prior] | None = None

    @property
    def kappa(self) -> Float[Tensor, ""]:
        """The precision κ, in full precision."""
        return self.log_kappa.to(full_dtype(self.log_kappa.device)).exp()

    def prior(self, bags: Bags) -> Prior:
        """Return the prior of a batch: the same object until κ or the number of bags changes."""
        made_of = (self.log_kappa, self.log_kappa._version, len(bags))
        if self._latest is not None:
            *latest, prior = self._latest
            if latest[0] is made_of[0] and tuple(latest[1:]) == made_of[1:]:
                return prior
        prior = prior_of(self.options, kappa=self.kappa.expand(len(bags)))
        self._latest = (*made_of, prior)
        return prior

    def update(self, total: Float[Tensor, "2"]) -> None:
        """Move κ towards its estimate; `total` is Σ N_b and Σ E_b, each reduced like the KL."""
        if not self.field.learn_kappa:
            return
        estimate = (total[0] / (2 * total[1])).log().to(self.log_kappa)
        step = (estimate - self.log_kappa) * self.field.kappa_rate
        # a diverged model is reported by the training loop; its κ stays as it was
        self.log_kappa += step.where(step.isfinite(), 0.0)
