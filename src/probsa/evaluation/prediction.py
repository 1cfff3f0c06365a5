"""The prediction of one bag."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core import (
    NO_OUTPUTS,
    NUMBERS,
    ONE_INDEX,
    ONE_NUMBER,
    POSITIONS,
    ArrayForm,
    Outputs,
    TaskName,
    counted,
)
from ..tasks import TASKS, Stated, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any  # importing Matplotlib takes longer than the refusal of a folder may

EXPLANATIONS = {
    "class_score": "scores",
    "contribution": "contributions",
    "leave_one_out": "leave_one_out",
    "instance_probability": "probability",
    "probability_positive": "positive_mass",
    "at_least": "at_least",
}
"""The fields of `Prediction` that explain it, which only models with a closed form have, and the
fields of `Explanation` that hold them."""
OF_EVERY_INSTANCE = (
    "attention_mean",
    "attention_variance",
    "weight_mean",
    "weight_variance",
    "degree",
)
"""The fields of `Prediction` with a value per instance that every prediction has."""
PER_INSTANCE: dict[str, ArrayForm] = {
    "coords": POSITIONS,
    **dict.fromkeys(OF_EVERY_INSTANCE, NUMBERS),
    "degree": ONE_NUMBER,
    "variance_within": NUMBERS,
    "variance_between": NUMBERS,
    "weight_above_uniform": NUMBERS,
    "instance_labels": ONE_NUMBER,
    **dict.fromkeys(EXPLANATIONS, NUMBERS),
    "ood": ONE_NUMBER,
    "ood_distance": ONE_NUMBER,
    "slide": ONE_INDEX,
}
"""All fields of `Prediction` with a value per instance, which a file of predictions stores."""
LIKE_ATTENTION = (
    "attention_variance",
    "weight_mean",
    "weight_variance",
    "variance_within",
    "variance_between",
    "weight_above_uniform",
)
"""Those that have no other columns than `attention_mean`."""
SIGNED_COLOURS = "RdBu_r"
SCORE_COLOURS = "YlOrRd"
"""Matplotlib's colours of scores with and without a sign, in all pictures."""


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
    """(classes,); with a single logit (1,), p(Y = 1); for tasks without classes (outputs,)."""
    std: np.ndarray
    """(classes,): standard deviation of the probability over posterior samples."""
    coords: np.ndarray | None
    attention_mean: np.ndarray
    attention_variance: np.ndarray
    weight_mean: np.ndarray
    weight_variance: np.ndarray
    degree: np.ndarray
    """(n,): D_n of the bag's graph."""
    score_kind: str = "logit"
    """`logit`, `weight`, `probability` or `relevance`; see `scores.evidence`."""
    kind: str = "slide"
    """`slide` or `ct`, which determines how the bag is drawn."""
    stride: float | None = None
    """Distance between neighbouring patches in the unit of `coords`."""
    instance_labels: np.ndarray | None = None
    """(n,): above 0 positive, 0 negative, below 0 unknown."""
    class_score: np.ndarray | None = None
    """The classifier's score of each instance without its bias; this and the following are None
    where the model has no closed form for them."""
    contribution: np.ndarray | None = None
    """What the instance adds to the bag's logit; the sum over the bag is the logit without bias."""
    leave_one_out: np.ndarray | None = None
    """The bag's probability minus its probability without the instance."""
    instance_probability: np.ndarray | None = None
    """The probability of each instance: what the model predicts of a bag that consists of this
    instance alone, E[σ(αf + b)] over the posterior; see `predicted_alone`. In an ensemble, the mean
    over members."""
    probability_positive: np.ndarray | None = None
    """P(f > 0), the mass of the posterior above 0; it is not the probability of the instance."""
    at_least: np.ndarray | None = None
    """(n, K): the probability of each grade or a higher one of a bag that is the instance alone."""
    weight_above_uniform: np.ndarray | None = None
    """P(w > 1/n), the share of the posterior samples in which the weight of the instance is above
    the uniform one; None unless attention logits were sampled."""
    std_within: np.ndarray | None = None
    """(classes,): the part of `std` within members, whose squares add up; None for one model."""
    std_between: np.ndarray | None = None
    """(classes,): standard deviation of the members' probabilities; None for one model."""
    variance_within: np.ndarray | None = None
    """The part of `attention_variance` within members, E[σ²]; None for one model."""
    variance_between: np.ndarray | None = None
    """The variance of the members' attention means, Var[μ]; None for one model."""
    bag_ood: float | None = None
    """How far the bag's mean features are from training: the share of validation bags that are
    nearer (`training_distance`). This and the following are None where a run has no distances."""
    bag_ood_distance: float | None = None
    ood: np.ndarray | None = None
    """The same share for each instance, among instances of validation bags."""
    ood_distance: np.ndarray | None = None

    slide: np.ndarray | None = None
    """(n,): index into `slides` of each instance, where a bag has the slides of a patient."""
    slides: tuple[str, ...] = ()
    """Names of the slides of a patient that the prediction used; empty where a bag is a slide."""
    slides_expected: int | None = None
    """How many slides the table names for the patient; in the table of predictions only."""
    group: str = ""
    """The group (patient) that a table of labels gives; in the table of predictions only."""

    task: TaskName = "binary"
    """What is predicted; for a task without classes, `outputs` names what `probability` holds."""
    outputs: Outputs = NO_OUTPUTS
    stated: Stated = field(default_factory=Stated)
    """The names of the classes and the thresholds, with which the bag is called; not stored."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores of a labelled bag that need its whole predictive distribution (`nll`, `crps`), for
    tasks without classes; in the table of bags."""
    neighbour_weight: float | None = None
    """Under a field, the mean weight of the neighbours in the value of an instance; not stored."""

    @property
    def of_task(self) -> Task:
        """What depends on the task."""
        return TASKS[self.task]

    @property
    def score_name(self) -> str:
        """What `attention_mean` holds: `attention`, or another kind of score."""
        return "attention" if self.score_kind in ("logit", "weight") else self.score_kind

    def __repr__(self) -> str:
        """Return the name, the call, the probability with its deviation, and the size."""
        facts = []
        if self.probability.size:  # a file of instances does not hold it
            verdict = self.of_task.verdict(self, self.stated)
            if verdict.call not in verdict.text:
                facts.append(verdict.call)
            facts.append(verdict.text)
        facts.append(counted(len(self.attention_mean), "instance"))
        return f"<Prediction of {self.name!r}: {', '.join(facts)}>"

    @property
    def call(self) -> str:
        """What the bag is called by the run's threshold; see `Verdict.call`."""
        return self.of_task.verdict(self, self.stated).call

    @property
    def score_has_level(self) -> bool:
        """Whether `attention_mean` is evidence: its zero has a meaning, f > 0 speaks for it."""
        return self.score_kind == "evidence"

    def per_instance(self) -> dict[str, np.ndarray]:
        """Return the fields `PER_INSTANCE` that the prediction has."""
        arrays = {name: getattr(self, name) for name in PER_INSTANCE}
        return {name: array for name, array in arrays.items() if array is not None}

    def slide_shares(self) -> dict[str, float]:
        """Return the share of each slide of a patient in the attention, the highest first.

        The shares add up to 1. Empty where the bag is not a patient.
        """
        if self.slide is None:
            return {}
        weight = self.weight_mean if self.weight_mean.ndim == 1 else self.weight_mean.mean(1)
        shares = np.bincount(self.slide, weight, minlength=len(self.slides))
        order = np.argsort(-shares, kind="stable")
        return {self.slides[k]: float(shares[k]) for k in order}

    def of_slide(self, name: str) -> "Prediction":
        """Return the instances of one slide of a patient, as a prediction named after the slide.

        The probability stays that of the patient.
        """
        assert self.slide is not None, "the bag is a patient"
        rows = self.slide == self.slides.index(name)
        arrays = {key: values[rows] for key, values in self.per_instance().items()}
        return replace(self, **arrays | {"name": name, "slide": None, "slides": ()})

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the mean score of each instance: patches as squares, else a curve with ± 1 sd.

        Of several classes, it is that of `Task.column`. Figures of whole folders are drawn by
        `probsa.maps.render_folder`.

        Args:
            ax: the axes to draw on; None for pyplot's current ones.

        Returns:
            The axes.
        """
        import matplotlib.pyplot as plt

        ax = plt.gca() if ax is None else ax
        if self.coords is not None and self.coords.shape[1] == 2:
            self._plot_squares(ax, self.coords)
        else:
            self._plot_curve(ax)
        return ax

    def _plot_squares(self, ax: Axes, coords: np.ndarray) -> None:
        """Draw patches as squares with the colour of their mean score."""
        from matplotlib.collections import PolyCollection

        mean = self._shown_column(self.attention_mean)
        side = self.stride or float(np.ptp(coords, axis=0).max()) or 1.0
        corners = coords[:, None] + side * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
        limits = (mean.min(), mean.max())
        if self.score_has_level:
            top = float(np.abs(mean).max()) or 1.0
            limits = (-top, top)
        squares = PolyCollection(list(corners), array=mean, edgecolors="none", clim=limits)
        squares.set_cmap(SIGNED_COLOURS if self.score_has_level else SCORE_COLOURS)
        ax.add_collection(squares)
        ax.autoscale_view()
        ax.set_aspect("equal")
        ax.invert_yaxis()
        ax.set(xlabel="x (pixels)", ylabel="y (pixels)")
        ax.figure.colorbar(squares, ax=ax, label=f"{self.score_name} (mean)")

    def _plot_curve(self, ax: Axes) -> None:
        """Draw the mean score ± 1 standard deviation along the position, or the index."""
        mean = self._shown_column(self.attention_mean)
        sd = np.sqrt(self._shown_column(self.attention_variance))
        x = np.arange(len(mean)) if self.coords is None else self.coords.ravel()
        order = np.argsort(x)
        ax.plot(x[order], mean[order], marker=".")
        ax.fill_between(x[order], (mean - sd)[order], (mean + sd)[order], alpha=0.3)
        xlabel = "instance" if self.coords is None else "position"
        ax.set(xlabel=xlabel, ylabel=f"{self.score_name} (mean)")

    def _shown_column(self, values: np.ndarray) -> np.ndarray:
        """Return the column of an array of instances that is shown first."""
        if values.ndim == 1:
            return values
        return values[:, self.of_task.column(self, values.shape[1])]

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame with one row per instance: its bag, coordinates and all arrays.

        The score and its variances are named after what they hold, as `evidence_mean`.
        """
        columns: dict[str, Any] = {"bag": [self.name] * len(self.attention_mean)}
        for key, values in self.per_instance().items():
            rows = values.reshape(len(values), -1)
            width = rows.shape[1]
            key = key.replace("attention", self.score_name)
            names = [key]
            if key == "coords":
                names = ["position"] if width == 1 else ["x", "y"]
            elif values.ndim > 1:
                suffixes = self.of_task.column_names(self, width) or range(width)
                names = [f"{key}_{suffix}" for suffix in suffixes]
            columns |= dict(zip(names, rows.T, strict=True))
        return pd.DataFrame(columns)
