"""What is known of one bag after prediction."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Probabilities of one bag, and what the attention says of each of its n instances.

    All arrays are numpy, float32 but `coords`. `attention_*` describe the score f (what it is says
    `score_kind`), `weight_*` the normalised weight softmax(f)_n over posterior samples.
    Per-instance arrays are (n,), or (n, classes) where a method has one attention per class.
    """

    name: str
    probability: np.ndarray
    """(classes,); for one logit (1,): p(Y = 1)."""
    std: np.ndarray
    """(classes,): standard deviation of the probability over posterior samples."""
    coords: np.ndarray | None
    attention_mean: np.ndarray
    attention_variance: np.ndarray
    weight_mean: np.ndarray
    weight_variance: np.ndarray
    degree: np.ndarray
    """(n,): D_n of the bag's graph; 1/degree is the null rival of a variance map."""
    score_kind: str = "logit"
    kind: str = "slide"
    """`slide` or `ct`: how to draw it."""
    stride: float | None = None
    """Distance between neighbouring patches in the unit of `coords`."""
    instance_labels: np.ndarray | None = None
