"""Detections from the scores of patches: points with a confidence, as FROC judges them.

The map is smoothed (a Gaussian over the patches that are there), then its highest patch is a
detection and silences its surroundings, and so on downwards (non-maximum suppression).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Num
from scipy.spatial import KDTree

from ..core import check_stride
from ..errors import BagError, InputError
from .prediction import Prediction
from .scores import instance_evidence, instance_scores

Confidence = Literal["calibrated", "score"]
"""`score`: μ as the model gives it. `calibrated`: from 0 to 1 and comparable between slides:
p(Y = 1) times what the instance has of it (a probability as it is; attention as N w / (1 + N w),
which is 1/2 where it is uniform)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """Points in the unit of the coordinates (level-0 pixels), the most confident first."""

    x: Num[np.ndarray, " detections"]
    y: Num[np.ndarray, " detections"]
    confidence: Num[np.ndarray, " detections"]

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Iterator[Num[np.ndarray, " detections"]]:
        """x, y, confidence: `x, y, confidence = detections(...)`."""
        return iter((self.x, self.y, self.confidence))


def detections(
    prediction: Prediction,
    *,
    confidence: Confidence = "calibrated",
    smoothing: float = 1.0,
    radius: float = 2.0,
    least: float = 0.0,
    most: int | None = None,
) -> Detections:
    """The detections of one slide: middles of patches, with the smoothed score there.

    Args:
        prediction: of a slide with coordinates (top-left corners).
        confidence: what the map shows.
        smoothing: s.d. of the Gaussian in patches; 0: none. It is cut at 3 s.d.
        radius: in patches: within this distance of a detection (inclusive) is no other.
        least: no detection has a confidence below this.
        most: no more detections than this.

    Raises:
        InputError: an argument is out of range, or a relevance is to be calibrated.
        BagError: the prediction has no coordinates in the plane, or its attention is nan.
        GraphError: the stride contradicts the coordinates.
    """
    if smoothing < 0 or radius < 0 or (most is not None and most < 0):
        raise InputError(
            f"smoothing is {smoothing}, radius {radius}, most {most}: 0 or more is expected"
        )
    corners, stride = places(prediction)
    value = _smoothed(_map(prediction, kind=confidence), corners / stride, deviation=smoothing)
    tree = KDTree(corners / stride)
    free = np.ones(len(value), dtype=bool)
    chosen: list[int] = []
    for i in np.argsort(-value, kind="stable").tolist():
        if value[i] < least or (most is not None and len(chosen) == most):
            break
        if free[i]:
            chosen.append(i)
            # Distances on a lattice are exact but for rounding.
            free[tree.query_ball_point(corners[i] / stride, radius + 1e-6)] = False
    middle = corners[chosen] + stride / 2
    return Detections(x=middle[:, 0], y=middle[:, 1], confidence=value[chosen])


def places(p: Prediction) -> tuple[Float[np.ndarray, "n 2"], float]:
    """Top-left corners of the patches, and the distance between neighbours.

    Raises:
        BagError: there are no coordinates in the plane.
        GraphError: the stride contradicts them.
    """
    if p.coords is None or p.coords.ndim != 2 or p.coords.shape[1] != 2:
        raise BagError(
            f"bag {p.name!r} has no coordinates in the plane: detections are points on a slide"
        )
    coords = p.coords.astype(np.float64)
    return coords, check_stride(torch.from_numpy(coords), stride=p.stride, name=p.name)


def _map(p: Prediction, *, kind: Confidence) -> Float[np.ndarray, " n"]:
    if kind == "score":
        return instance_scores(p)
    if p.score_kind == "relevance":
        raise InputError(
            f"bag {p.name!r}: relevance has no scale that slides share: give confidence='score'"
        )
    if p.score_kind == "probability":
        share = instance_scores(p)
    else:
        share = 1 / (1 + np.exp(-instance_evidence(p)))
    # Of several classes: of any but the first.
    called = p.probability[0] if len(p.probability) == 1 else 1 - p.probability[0]
    return float(called) * share


def _smoothed(
    value: Float[np.ndarray, " n"], places: Float[np.ndarray, "n 2"], *, deviation: float
) -> Float[np.ndarray, " n"]:
    """The mean of the patches around each, weighed by a Gaussian of their distance."""
    if deviation == 0:
        return value
    pairs = KDTree(places).query_pairs(3 * deviation + 1e-6, output_type="ndarray")
    square = ((places[pairs[:, 0]] - places[pairs[:, 1]]) ** 2).sum(1)
    weight = np.exp(-square / (2 * deviation**2))
    total, sums = np.ones(len(value)), value.copy()
    for a, b in ((pairs[:, 0], pairs[:, 1]), (pairs[:, 1], pairs[:, 0])):
        total += np.bincount(a, weights=weight, minlength=len(value))
        sums += np.bincount(a, weights=weight * value[b], minlength=len(value))
    return sums / total
