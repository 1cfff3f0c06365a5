"""The prediction of one bag."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Probabilities of one bag, and attention outputs of its n instances.

    All arrays are NumPy arrays of float32, except `coords` and `instance_labels`. `attention_*`
    describe the score f, whose meaning `score_kind` gives, and `weight_*` the normalised weight
    softmax(f)_n over posterior samples. Per-instance arrays are (n,), or (n, classes) if a method
    has one attention per class.
    """

    name: str
    probability: np.ndarray
    """(classes,); with a single logit (1,), p(Y = 1)."""
    std: np.ndarray
    """(classes,): standard deviation of the probability over posterior samples."""
    coords: np.ndarray | None
    attention_mean: np.ndarray
    attention_variance: np.ndarray
    weight_mean: np.ndarray
    weight_variance: np.ndarray
    degree: np.ndarray
    """(n,): D_n of the bag's graph; 1/degree is a null rival of a variance map."""
    score_kind: str = "logit"
    """`logit`, `weight`, `probability` or `relevance`; see `scores.evidence`."""
    kind: str = "slide"
    """`slide` or `ct`, which determines how the bag is drawn."""
    stride: float | None = None
    """Distance between neighbouring patches in the unit of `coords`."""
    instance_labels: np.ndarray | None = None
    """(n,): above 0 positive, 0 negative, below 0 unknown."""
    score_has_level: bool = False
    """Whether `attention_mean` is evidence: its zero has a meaning, f > 0 speaks for the class."""
    class_score: np.ndarray | None = None
    """The classifier's score of each instance without its bias; this and the following are None
    where the model has no closed form for them."""
    contribution: np.ndarray | None = None
    """What the instance adds to the bag's logit; the sum over the bag is the logit without bias."""
    leave_one_out: np.ndarray | None = None
    """The bag's probability minus its probability without the instance."""
    probability_positive: np.ndarray | None = None
    """P(f > 0) of each instance."""
