"""CAMIL: what a transformer says of an instance is weighed by how alike its neighbours are.

Fourkioti, De Vries & Bakal, ICLR 2024, arXiv:2305.05314: the paper's equations, with layer norm and
two Nyström layers. `variant="tf-code"` is the authors' code, which differs in six places (there).
No N × N: similarities and attention are products over the arcs of the bag's graph.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from scipy.spatial import KDTree
from torch import Tensor, nn

from ..core import Bags, segment_softmax
from ..errors import CheckpointError, GraphError, InputError
from ..layers import (
    AttentionPosterior,
    Embed,
    NystromAttention,
    NystromLayer,
    Widths,
    neighbourhoods,
    pool_vectors,
    propagate,
)
from ..variational import Dirac
from ._base import Model, Output, Provenance, ScoreKind
from ._originals import Rules, State, only, original, part, transplant
from ._registry import build, register

CROWDED = 100
"""Candidates for a patch's nearest ones, on average, from which on coordinates tell nothing."""

EPSILON = 1e-7
"""Keras's fuzz."""
OWN: dict[str, object] = {
    "variant": "tf-code",
    "embed": None,
    "layers": 1,
    "query_dim": 256,
    "mask_padding": False,
}


@register("camil", original=OWN)
class CAMIL(Model):
    """Attention pooling of instances that the likeness of their neighbours has weighed.

    t = h + Nyström(LN(h)), layer by layer;   e_i = Σ_j A_ij q_iᵀk_j / √d,   w = softmax(e),
    l_i = w_i v_i;   m = σ(l) ⊙ l + (1 − σ(l)) ⊙ t;   z = Σ_i a_i m_i with a = softmax(f(t)).

    A is the bag's `arcs` where it has some (`nearest_arcs` makes the authors'), else its edges both
    ways with their weights.

    Args:
        in_dim: features of an instance.
        n_classes: 1 (one logit) or the number of classes.
        variant: `paper`, or `tf-code`: no layer norm, the convolution over the heads axis, v from h
            and with a bias, m = 2 l ⊙ g + 2 t ⊙ (1 − g) with g = σ(−l)², attention from m and
            without biases; Keras's initial values.
        embed: width(s) of the first layer(s), linear; None passes the features on (the original).
        layers: Nyström layers (the original: 1).
        heads: attention heads of each.
        landmarks: the most landmarks that a bag has.
        pinv_iterations: steps of the pseudo-inverse.
        convolution: a convolution of 33 taps over the values.
        out_proj: a linear map after the heads.
        mask_padding: the zeros that fill a bag up to a multiple of the landmarks are not attended
            to (the original does, and gives every bag all its landmarks: False).
        query_dim: width of q and k; None: as wide as the instance vectors (the original: 256).
        attention_dim: D_f of the pooling.
        trunk: how attention is computed.
        dropout: after each Nyström attention, in training.
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction; there is nothing.
    """

    family = "global"
    score_kind: ClassVar[ScoreKind] = "logit"
    needs = frozenset({"edges"})
    order_matters = True  # landmarks and the convolution follow the order of storage
    provenance = Provenance(
        paper="Fourkioti, De Vries & Bakal, CAMIL: context-aware multiple instance learning for "
        "cancer detection and subtyping in whole slide images, ICLR 2024, arXiv:2305.05314",
        code="olgarithmics/ICLR_CAMIL",
        licence="none: written from its description",
        follows_paper="q, k and v from the transformer's output, the fusion by σ(l), gated "
        "attention from t.",
        follows_code="Scores scaled by 1/√d. `variant='tf-code'` and `nearest_arcs` are the rest "
        "of the code, which differs from the paper in its values, fusion, pooling, similarities, "
        "number of neighbours and the axis of a convolution. Its training, in a run file: "
        "`learning_rate: 2e-4`, `warmup_epochs: 0`, `schedule: plateau`, `epochs: 30`.",
        fair="One linear layer to 512, two Nyström layers of 8 heads with layer norm, D_f = 128, "
        "one linear classifier; the weights of the common graph as similarities.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        variant: Literal["paper", "tf-code"] = "paper",
        embed: Widths = 512,
        layers: int = 2,
        heads: int = 8,
        landmarks: int = 256,
        pinv_iterations: int = 6,
        convolution: bool = True,
        out_proj: bool = True,
        mask_padding: bool = True,
        query_dim: int | None = None,
        attention_dim: int = 128,
        trunk: Literal["tanh", "gated"] = "gated",
        dropout: float = 0.0,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        if variant not in ("paper", "tf-code"):
            raise InputError(f"variant is {variant!r}: 'paper' or 'tf-code'")
        if trunk not in ("tanh", "gated"):
            raise InputError(f"trunk is {trunk!r}: 'tanh' or 'gated'")
        if layers < 1 or (query_dim is not None and query_dim < 1):
            raise InputError(f"layers are {layers} and query_dim {query_dim}: at least 1 each")
        self.as_code = variant == "tf-code"
        self.embed = Embed(in_dim, embed, activation="identity")
        dim = self.embed.out_dim
        axis: Literal["heads", "sequence"] = "heads" if self.as_code else "sequence"
        self.layers = nn.ModuleList(
            NystromLayer(
                NystromAttention(
                    dim,
                    heads=heads,
                    landmarks=landmarks,
                    iterations=pinv_iterations,
                    convolution=axis if convolution else "none",
                    out_proj=out_proj,
                    mask_padding=mask_padding,
                    dropout=dropout,
                ),
                norm=not self.as_code,
            )
            for _ in range(layers)
        )
        self.queries = nn.Linear(dim, query_dim or dim, bias=False)
        self.keys = nn.Linear(dim, query_dim or dim, bias=False)
        self.values = nn.Linear(dim, dim, bias=self.as_code)
        self.attention = AttentionPosterior(
            dim, attention_dim, kind="dirac", trunk=trunk, trunk_bias=not self.as_code
        )
        self.classifier = nn.Linear(dim, n_classes)
        if self.as_code:
            _start_as_keras(self)

    def neighbour_scores(self, t: Float[Tensor, "n d"], bags: Bags) -> Float[Tensor, " n"]:
        """e_i = q_iᵀ (A K)_i / √d: 0 for an instance without neighbours."""
        q, k = _full(self.queries(t)), _full(self.keys(t))
        around = propagate(neighbourhoods(bags), k)
        return (q * around).sum(1) * q.shape[1] ** -0.5

    def fused(
        self, w: Float[Tensor, " n"], v: Float[Tensor, "n d"], t: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """m: the weighed values and the transformer's output, each as far as l lets it through."""
        ell = w[:, None] * v
        if self.as_code:
            g = torch.sigmoid(-ell).square()
            return 2 * (ell * g + t * (1 - g))
        return torch.lerp(t, ell, torch.sigmoid(ell))

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        del noise, generator  # nothing is random
        h = self.embed(bags.x)
        t = h
        for layer in self.layers:
            t = layer(t, bags.sizes)
        v = _full(self.values(h if self.as_code else t))
        e = self.neighbour_scores(t, bags)
        t = _full(t)
        m = self.fused(segment_softmax(e, bags.sizes), v, t)
        q = self.attention(m if self.as_code else t)
        assert isinstance(q, Dirac)
        z = pool_vectors(q.mean[:, None], m, bags.sizes)
        with torch.autocast(h.device.type, enabled=False):
            logits = self.classifier(z)
        return Output(
            logits=logits,
            attention=q,
            likelihood=self.likelihood,
            extras={"neighbour_score": e.detach()},
        )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """`nll`; of the code's one logit with what Keras adds to both probabilities."""
        if self.as_code and self.n_classes == 1:
            out = replace(out, logits=_as_keras(out.logits))
        return super().losses(out, bags)


def _as_keras(ell: Tensor) -> Tensor:
    """The logit whose cross-entropy is Keras's: log((p + ε) / (1 − p + ε)), p within ε of [0, 1].

    Up to log(1 + 2 ε) = 2·10⁻⁷, which no gradient sees.
    """
    p, not_p = (v.sigmoid().clamp(EPSILON, 1 - EPSILON) for v in (ell, -ell))
    return ((p + EPSILON) / (not_p + EPSILON)).log()


def _full(v: Tensor) -> Tensor:
    """Half precision ends here: a softmax over a bag of products of sums magnifies its rounding."""
    return v.float() if v.dtype in (torch.float16, torch.bfloat16) else v


def _start_as_keras(model: nn.Module) -> None:
    """Glorot's uniform weights, biases of 0."""
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.xavier_uniform_(p)
        else:
            nn.init.zeros_(p)


def nearest_arcs(
    coords: Shaped[Tensor, "n axes"],
    x: Float[Tensor, "n features"],
    *,
    kept: int = 7,
    compared: int = 7,
    distance: Literal["euclidean", "cosine"] = "euclidean",
) -> tuple[Int[Tensor, "2 a"], Float[Tensor, " a"]]:
    """The authors' directed neighbourhoods, as (target, source), and their similarities.

    Each instance itself and its `kept` nearest by coordinates (of equally near ones the first).
    s_ik = exp(−d_ik / ‖d_i‖), the norm over the `compared` nearest; itself: the largest of those
    (1 where there is nobody else). Give both to `Bag` as `arcs` and `arc_weights`.

    Args:
        coords: positions.
        x: features, as stored.
        kept: arcs an instance, beside its own.
        compared: neighbours among whom distances are normalised (the authors' loader: 15).
        distance: between features (the authors' preparation: `cosine`).

    Raises:
        InputError: fewer compared than kept.
        GraphError: so many instances at one spot that nobody is nearest.
    """
    if not 1 <= kept <= compared:
        raise InputError(f"kept is {kept} and compared {compared}: 1 or more, and no less compared")
    if distance not in ("euclidean", "cosine"):
        raise InputError(f"distance is {distance!r}: 'euclidean' or 'cosine'")
    n, v = len(x), _full(x)
    if n == 1:
        return torch.zeros(2, 1, dtype=torch.long), v.new_ones(1)
    near = torch.from_numpy(_nearest(coords.double().numpy(), min(compared, n - 1)))
    d = torch.stack([_distance(v, v[column], kind=distance) for column in near.T], 1)
    norm = d.norm(dim=1, keepdim=True)
    s = (-d / norm.where(norm > 0, 1)).exp()
    rows = torch.arange(n)[:, None]
    columns = torch.cat([rows, near[:, :kept]], 1)
    arcs = torch.stack([rows.expand_as(columns), columns]).flatten(1)
    return arcs, torch.cat([s.amax(1, keepdim=True), s[:, :kept]], 1).flatten()


def _distance(a: Tensor, b: Tensor, *, kind: Literal["euclidean", "cosine"]) -> Tensor:
    if kind == "cosine":
        return (1 - nn.functional.cosine_similarity(a, b)).clamp_min(0)
    return (a - b).norm(dim=1)


def _nearest(c: np.ndarray, k: int) -> np.ndarray:
    """The k others nearest to each row, the first of equally near ones first."""
    tree = KDTree(c)
    reach = tree.query(c, k=k + 1)[0][:, -1] * (1 + 1e-9)
    counts = np.asarray(tree.query_ball_point(c, reach, return_length=True))
    if counts.mean() > CROWDED + k:
        raise GraphError(
            f"{len(c)} patches have {counts.mean():.3g} others on average as near as their "
            f"{k} nearest: were the coordinates filled in?"
        )
    columns = np.concatenate([np.array(found) for found in tree.query_ball_point(c, reach)])
    rows = np.repeat(np.arange(len(c)), counts)
    far = np.square(c[rows] - c[columns]).sum(1)
    far[rows == columns] = -1  # oneself first, whoever else is at the same spot
    order = np.lexsort((columns, far, rows))
    starts = np.cumsum(counts) - counts
    return columns[order][starts[:, None] + np.arange(1, k + 1)]


@original("camil_tf")
def _from_original(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    of = "the authors' CAMIL (encoder.nyst_att, encoder.custom_att, attcls, class_fc)"
    steps = {"num_landmarks", "pinv_iterations"}
    shapes = [
        part(state, key, of=of).shape
        for key in ("encoder.nyst_att.res_conv.0.kernel", "encoder.custom_att.wq_weight_params",
                    "attcls.v_weight_params", "class_fc.kernel")
    ]  # fmt: skip
    if [len(shape) for shape in shapes] != [4, 2, 2, 2]:
        raise CheckpointError(f"{reference}: kernels of {[tuple(s) for s in shapes]} are not {of}")
    (_, _, inner, width), (dim, query_dim), (_, attention_dim), (_, classes) = shapes
    read = {
        "dim": dim,
        "heads": width // inner,
        "dim_head": width,
        "weight_params_dim_custom_att": query_dim,
        "weight_params_dim_mil": attention_dim,
        "subtyping": classes > 1,
    }
    only(arguments, steps | set(read), reference)
    for key, value in read.items():
        if arguments.get(key, value) != value:
            raise CheckpointError(
                f"{reference}: {key} is {arguments[key]}, but the state dict's shapes say {value}"
            )
    model = build(
        "camil",
        preset="original",
        in_dim=dim,
        n_classes=classes,
        heads=read["heads"],
        landmarks=arguments.get("num_landmarks", 256),
        pinv_iterations=arguments.get("pinv_iterations", 6),
        query_dim=query_dim,
        attention_dim=attention_dim,
    )
    return transplant(model, {k: _turned(v) for k, v in state.items()}, _TF_NAMES)


_TF_NAMES: Rules = [
    (r"encoder\.nyst_att\.to_qkv\.kernel$", "layers.0.attention.qkv.weight"),
    (r"encoder\.nyst_att\.to_out\.0\.kernel$", "layers.0.attention.out.weight"),
    (r"encoder\.nyst_att\.to_out\.0\.", "layers.0.attention.out."),
    (r"encoder\.nyst_att\.res_conv\.0\.kernel$", "layers.0.attention.convolution.weight"),
    (r"encoder\.custom_att\.wq_weight_params$", "queries.weight"),
    (r"encoder\.custom_att\.wk_weight_params$", "keys.weight"),
    (r"encoder\.wv\.kernel$", "values.weight"),
    (r"encoder\.wv\.", "values."),
    (r"attcls\.v_weight_params$", "attention.trunk.first.weight"),
    (r"attcls\.u_weight_params$", "attention.trunk.gate.weight"),
    (r"attcls\.w_weight_params$", "attention.mean.weight"),
    (r"class_fc\.kernel$", "classifier.weight"),
    (r"class_fc\.", "classifier."),
]


def _turned(v: Tensor) -> Tensor:
    """A Keras kernel (in, out), or (33, 1, in, out), as PyTorch has it."""
    if v.ndim == 4:
        return v[:, 0].permute(2, 1, 0).contiguous()
    return v.T.contiguous() if v.ndim == 2 else v


@original("torchmil_camil")
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    of = "torchmil's CAMIL (nystrom_transformer_layer, camil_self_attention, camil_att_pool)"
    known = ("in_shape", "nystrom_att_dim", "pool_att_dim", "gated_pool", "n_heads", "n_landmarks",
             "pinv_iterations", "dropout", "use_mlp")  # fmt: skip
    only(arguments, known, reference)
    if arguments.get("use_mlp"):
        raise CheckpointError(f"{reference}: its layer has an MLP (use_mlp); CAMIL has none")
    qk = part(state, "camil_self_attention.qk_nn.weight", of=of)
    dim, first = qk.shape[1], state.get("fc1.weight")
    model = build(
        "camil",
        in_dim=dim if first is None else first.shape[1],
        embed=None if first is None else dim,
        layers=1,
        heads=arguments.get("n_heads", 4),
        landmarks=arguments.get("n_landmarks") or 256,
        pinv_iterations=arguments.get("pinv_iterations", 6),
        convolution=False,
        out_proj=False,
        mask_padding=False,
        query_dim=len(qk) // 2,
        attention_dim=len(part(state, "camil_att_pool.fc1.weight", of=of)),
        trunk="gated" if "camil_att_pool.fc_gated.weight" in state else "tanh",
    )
    queries, keys = qk.split(len(qk) // 2)[:2]
    given = {k: v for k, v in state.items() if not k.endswith("qk_nn.weight")}
    given |= {"queries.weight": queries, "keys.weight": keys}
    return transplant(model, given, _TORCHMIL_NAMES)


_TORCHMIL_NAMES: Rules = [
    (r"fc1\.", "embed.net.0."),
    (r"nystrom_transformer_layer\.att_module\.qkv_nn\.", "layers.0.attention.qkv."),
    (r"nystrom_transformer_layer\.norm1\.", "layers.0.norm."),
    (r"nystrom_transformer_layer\.norm2\.", None),  # of the MLP that is not there
    (r"camil_self_attention\.v_nn\.", "values."),
    (r"camil_att_pool\.fc1\.", "attention.trunk.first."),
    (r"camil_att_pool\.fc_gated\.", "attention.trunk.gate."),
    (r"camil_att_pool\.fc2\.", "attention.mean."),
]
