"""The neighbourhoods of CAMIL's authors (Fourkioti, De Vries & Bakal, ICLR 2024)."""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from scipy.spatial import KDTree
from torch import Tensor

from ..core import check_value
from ..errors import GraphError, InputError
from ..layers import full_precision

Distance = Literal["euclidean", "cosine"]
CROWDED = 100
"""Mean number of surplus candidates per neighbourhood above which coordinates are implausible."""


def nearest_arcs(
    coords: Shaped[Tensor, "n axes"],
    x: Float[Tensor, "n features"],
    *,
    nearest: int = 7,
    compared: int = 7,
    distance: Distance = "euclidean",
) -> tuple[Int[Tensor, "2 a"], Float[Tensor, " a"]]:
    """Return the authors' directed neighbourhoods (target, source) and their similarities.

    They connect each instance to itself and to its `nearest` closest ones by coordinates (the first
    ones in a tie). s_ik = exp(−d_ik / ‖d_i‖), with the norm over the `compared` nearest; an
    instance's similarity to itself is the largest of these (1 if it is alone). Pass both results to
    `Bag` as `arcs` and `arc_weights`.

    Args:
        coords: positions.
        x: features, as stored.
        nearest: number of arcs per instance, besides the one to itself.
        compared: number of neighbours whose distances are normalised (the authors' loader: 15).
        distance: distance between features (the authors' preparation: `cosine`).

    Raises:
        InputError: fewer neighbours are compared than connected.
        GraphError: too many instances share a position to determine the nearest.
    """
    if not 1 <= nearest <= compared:
        raise InputError(
            f"nearest is {nearest} and compared is {compared}: expected 1 <= nearest <= compared"
        )
    check_value("distance", distance, Distance)
    n = len(x)
    v = full_precision(x)
    if n == 1:
        return torch.zeros(2, 1, dtype=torch.long), v.new_ones(1)
    near = torch.from_numpy(_nearest(coords.double().numpy(), min(compared, n - 1)))
    # neighbour by neighbour, so that no (n, compared, features) array is made
    if distance == "cosine":
        distances = [(1 - F.cosine_similarity(v, v[j])).clamp_min(0) for j in near.T]
    else:
        distances = [(v - v[j]).norm(dim=1) for j in near.T]
    d = torch.stack(distances, 1)
    norm = d.norm(dim=1, keepdim=True)
    s = (-d / norm.where(norm > 0, 1)).exp()
    targets = torch.arange(n)[:, None]
    sources = torch.cat([targets, near[:, :nearest]], 1)
    arcs = torch.stack([targets.expand_as(sources), sources]).flatten(1)
    similarities = torch.cat([s.amax(1, keepdim=True), s[:, :nearest]], 1)
    return arcs, similarities.flatten()


def _nearest(c: np.ndarray, k: int) -> np.ndarray:
    """Return the k other rows nearest to each row, in order of storage if equally near."""
    tree = KDTree(c)
    reach = tree.query(c, k=k + 1)[0][:, -1] * (1 + 1e-9)
    counts = np.asarray(tree.query_ball_point(c, reach, return_length=True))
    if counts.mean() > CROWDED + k:
        raise GraphError(
            f"on average, {counts.mean():.3g} of {len(c)} patches tie for the {k} nearest of a "
            "patch: are the coordinates placeholders?"
        )
    columns = np.concatenate([np.array(near) for near in tree.query_ball_point(c, reach)])
    rows = np.repeat(np.arange(len(c)), counts)
    far = np.square(c[rows] - c[columns]).sum(1)
    far[rows == columns] = -1  # sorts each row before others at the same position
    order = np.lexsort((columns, far, rows))
    starts = np.cumsum(counts) - counts
    return columns[order][starts[:, None] + np.arange(1, k + 1)]
