"""Detections from the scores of patches: points with a confidence, the input of FROC.

The score map is smoothed by a Gaussian over the existing patches. Detections are then found by
non-maximum suppression: the highest patch is a detection and suppresses its neighbourhood, and so
on in descending order.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Num
from scipy.spatial import KDTree

from ..core import check_stride
from ..errors import BagError, InputError
from .prediction import Prediction
from .scores import instance_evidence, instance_scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """Points in the unit of the coordinates (level-0 pixels), the most confident first."""

    x: Num[np.ndarray, " detections"]
    y: Num[np.ndarray, " detections"]
    confidence: Num[np.ndarray, " detections"]


def detect_lesions(
    prediction: Prediction, *, smoothing: float = 1.0, radius: float = 2.0
) -> Detections:
    """Return the detections of one slide: centres of patches, with the smoothed confidence.

    The confidence lies between 0 and 1 and is comparable between slides. It is p(Y = 1) times the
    instance's score if scores are probabilities. Otherwise, it is p(Y = 1) N w / (1 + N w) for an
    attention weight w among N instances; the fraction is 1/2 for uniform attention.

    Args:
        prediction: prediction of a slide with coordinates (top-left corners).
        smoothing: standard deviation of the Gaussian, in patches; 0 for no smoothing. The Gaussian
            is truncated at three standard deviations.
        radius: distance in patches up to which (inclusive) a detection suppresses others.

    Raises:
        InputError: an argument is negative, or the scores are relevances.
        BagError: the prediction has no 2-D coordinates, or its attention is nan.
        GraphError: the stride contradicts the coordinates.
    """
    if smoothing < 0 or radius < 0:
        raise InputError(f"smoothing is {smoothing} and radius {radius}: expected 0 or more")
    corners, stride = places(prediction)
    value = _smooth(_confidence(prediction), corners / stride, std=smoothing)
    tree = KDTree(corners / stride)
    free = np.ones(len(value), dtype=bool)
    chosen: list[int] = []
    for i in np.argsort(-value, kind="stable").tolist():
        if free[i]:
            chosen.append(i)
            # The tolerance covers rounding; distances on a lattice are exact otherwise.
            free[tree.query_ball_point(corners[i] / stride, radius + 1e-6)] = False
    centres = corners[chosen] + stride / 2
    return Detections(x=centres[:, 0], y=centres[:, 1], confidence=value[chosen])


def places(p: Prediction) -> tuple[Float[np.ndarray, "n 2"], float]:
    """Return the top-left corners of the patches, and their stride.

    Raises:
        BagError: there are no 2-D coordinates.
        GraphError: the stride contradicts the coordinates.
    """
    if p.coords is None or p.coords.ndim != 2 or p.coords.shape[1] != 2:
        raise BagError(
            f"bag {p.name!r} has no 2-D coordinates, but detections are points on a slide"
        )
    coords = p.coords.astype(np.float64)
    return coords, check_stride(torch.from_numpy(coords), stride=p.stride, name=p.name)


def _confidence(p: Prediction) -> Float[np.ndarray, " n"]:
    if p.score_kind == "relevance":
        raise InputError(
            f"bag {p.name!r}: relevance has no common scale across slides, so detections have no "
            "confidence"
        )
    if p.score_kind == "probability":
        instance_probability = instance_scores(p)
    else:
        instance_probability = 1 / (1 + np.exp(-instance_evidence(p)))
    # With several classes, the probability of any class but the first.
    positive = p.probability[0] if len(p.probability) == 1 else 1 - p.probability[0]
    return float(positive) * instance_probability


def _smooth(
    value: Float[np.ndarray, " n"], positions: Float[np.ndarray, "n 2"], *, std: float
) -> Float[np.ndarray, " n"]:
    """Average each patch with those around it, weighted by a Gaussian of their distance."""
    if std == 0:
        return value
    pairs = KDTree(positions).query_pairs(3 * std + 1e-6, output_type="ndarray")
    squared = ((positions[pairs[:, 0]] - positions[pairs[:, 1]]) ** 2).sum(1)
    weight = np.exp(-squared / (2 * std**2))
    total, sums = np.ones(len(value)), value.copy()
    for a, b in ((pairs[:, 0], pairs[:, 1]), (pairs[:, 1], pairs[:, 0])):
        total += np.bincount(a, weights=weight, minlength=len(value))
        sums += np.bincount(a, weights=weight * value[b], minlength=len(value))
    return sums / total
