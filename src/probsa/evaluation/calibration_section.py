"""The section of a report on calibration: whether probabilities come true as often as they say.

For bags, p(Y = 1) against the frequency of Y = 1, or with three classes or more the highest
probability against accuracy. For instances of positive bags, P(f > 0) against their labels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from rich.console import Console
from scipy.special import ndtr

from ..core import counted
from ..statistics import (
    ChanceError,
    Draws,
    Metric,
    Reliability,
    bin_count,
    calibration_error,
    equal_mass_bins,
    reliability,
    sampled_reliability,
)
from .evaluated import Evaluated
from .metrics import ECE_BINS, NO_VARIANCE, equal_width_bins
from .pools import NO_INSTANCE_LABELS, bag_draws, labelled
from .prediction import Prediction
from .scores import class_column, distance_ratio, instance_scores, instance_variances

NO_PROBABILITY = "the model gives instances no probability of being positive"
INSTANCE_RESAMPLES = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The calibration of one kind of probability."""

    quantity: str
    """What the probability is compared with."""
    items: int
    ece: Metric
    """Adaptive ECE: Σ over bins of equal mass of |Σ (p - y)| / n. Intervals are biased upwards."""
    diagram: Reliability
    """For bags with a consistency band, for instances with intervals over groups of bags."""
    chance: ChanceError | None = None
    """The ECE of calibrated probabilities of as many independent bags; None for instances."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        chance = self.chance
        return {
            "of": self.quantity,
            "items": self.items,
            "ece_adaptive": self.ece.to_dict(),
            "ece_by_chance": None if chance is None else chance.mean,
            "ece_by_chance_95": None if chance is None else chance.upper,
            "band": "intervals over groups" if chance is None else "consistency",
            "bins": self.diagram.to_dict(),
        }

    def sentence(self, name: str) -> str:
        """Return the result in words."""
        e, bins = self.ece, len(self.diagram.count)
        assert e.value is not None
        span = "" if e.low is None or e.high is None else f" [{e.low:.3f}, {e.high:.3f}]"
        text = (
            f"calibration of {name}: adaptive ECE {e.value:.3f}{span} in {counted(bins, 'bin')} of "
            f"equal mass, {counted(self.items, 'item')}"
        )
        if self.chance is None:
            return text
        is_high = e.value > self.chance.upper
        return (
            f"{text}; calibrated probabilities would have {self.chance.mean:.3f} on average, and "
            f"up to {self.chance.upper:.3f} in 19 of 20 sets: "
            + ("miscalibrated" if is_high else "no miscalibration can be shown")
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationSection:
    """The calibration of bags and, where they have labels, of instances."""

    bags: Calibration
    class_wise: Metric | None
    """Mean adaptive ECE of the probability of each class; None with two classes."""
    instances: Calibration | None
    reason: str | None
    """Why there is nothing on instances."""
    temperature: float | None
    """The temperature that the probabilities are scaled by; None if they are not."""
    filled_bins: int
    """Number of the bins of equal width, of the ECE in the table of bags, that have a bag."""

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return "calibration"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bags": self.bags.to_dict(),
            "ece_class_wise": None if self.class_wise is None else self.class_wise.to_dict(),
            "instances": None if self.instances is None else self.instances.to_dict(),
            "instances_reason": self.reason,
            "temperature": self.temperature,
        }

    def render(self, console: Console) -> None:
        """Print one sentence for bags and one for instances."""
        scaled = "" if self.temperature is None else f" (temperature {self.temperature:.3g})"
        lines = [self.bags.sentence(f"bags{scaled}"), _equal_width(self.filled_bins)]
        if self.class_wise is not None and self.class_wise.value is not None:
            lines.append(f"mean adaptive ECE of the classes: {self.class_wise.value:.3f}")
        if self.instances is not None:
            lines.append(self.instances.sentence("P(f > 0) in positive bags"))
        elif self.reason in (NO_PROBABILITY, NO_VARIANCE):
            lines.append(f"calibration of P(f > 0) is undefined: {self.reason}")
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)


def calibration_section(evaluated: Evaluated) -> CalibrationSection:
    """Return the section of these predictions."""
    rows = evaluated.rows
    y, p = evaluated.y(rows), evaluated.p(rows)
    draws = Draws.stratified(
        y, groups=evaluated.groups(rows), resamples=evaluated.bootstrap, seed=evaluated.seed
    )
    if p.shape[1] == 2:
        quantity, score, hit = "p(Y = 1) and the frequency of Y = 1", p[:, 1], y == 1
    else:
        quantity, score, hit = "the highest probability and accuracy", p.max(1), p.argmax(1) == y
    bins = equal_mass_bins(score, bins=bin_count(len(score)))
    diagram, chance = reliability(score, hit, bins=bins, seed=evaluated.seed)
    instances = _instances(evaluated)
    temperature = evaluated.predictions.metadata.get("temperature")
    return CalibrationSection(
        bags=Calibration(
            quantity=quantity,
            items=len(score),
            ece=calibration_error(score, hit, bins=bins, draws=draws),
            diagram=diagram,
            chance=chance,
        ),
        class_wise=None if p.shape[1] == 2 else _class_wise(y, p, draws=draws),
        instances=None if isinstance(instances, str) else instances,
        reason=instances if isinstance(instances, str) else None,
        temperature=temperature if isinstance(temperature, float) else None,
        filled_bins=len(np.unique(equal_width_bins(score))),
    )


def _equal_width(filled: int) -> str:
    """Return how the ECE of the table of bags differs from the adaptive one."""
    return (
        f"The ECE in the table of bags has {ECE_BINS} bins of equal width, of which {filled} "
        f"{'has' if filled == 1 else 'have'} a bag. It says little for few bags: errors cancel in "
        "a bin that most bags share, and bins with a single bag look miscalibrated."
    )


def _class_wise(y: np.ndarray, p: Float[np.ndarray, "bags classes"], *, draws: Draws) -> Metric:
    rows = []
    for c in range(p.shape[1]):
        bins = equal_mass_bins(p[:, c], bins=bin_count(len(y)))
        rows.append(calibration_error(p[:, c], y == c, bins=bins, draws=draws).rows)
    return Metric.of(np.mean(rows, axis=0))


def _instances(evaluated: Evaluated) -> Calibration | str:
    """Return the calibration of P(f > 0), or why it is unknown."""
    names: list[str] = []
    parts: list[tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]] = []
    any_labels = has_variance = False
    for p in evaluated.instances(evaluated.rows):
        if not labelled([p]):
            continue
        any_labels = True
        if evaluated.label[p.name] == 0:
            continue
        probability = positive_probability(p)
        if probability is None:
            return NO_PROBABILITY
        has_variance = has_variance or bool(p.attention_variance.any())
        labels = np.asarray(p.instance_labels)
        names.append(p.name)
        parts.append((probability[labels >= 0], labels[labels >= 0] > 0))
    if not any_labels:
        return NO_INSTANCE_LABELS
    if sum(len(probability) for probability, _ in parts) == 0:
        return "no labelled instances of positive bags"
    bag = np.repeat(np.arange(len(parts)), [len(probability) for probability, _ in parts])
    score, hit = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not has_variance and np.isin(score, (0, 0.5, 1)).all():
        return NO_VARIANCE  # the probability of a point is 0 or 1: its error is that of the calls
    draws = bag_draws(
        names,
        np.ones(len(names), dtype=bool),
        groups=evaluated.group,
        resamples=min(evaluated.bootstrap, INSTANCE_RESAMPLES),
        seed=evaluated.seed,
    )
    within = draws.for_items(bag)
    bins = equal_mass_bins(score, bins=bin_count(len(score)))
    return Calibration(
        quantity="P(f > 0) and the share of positive instances, in positive bags",
        items=len(score),
        ece=calibration_error(score, hit, bins=bins, draws=within),
        diagram=sampled_reliability(score, hit, bins=bins, draws=within),
    )


def positive_probability(p: Prediction) -> Float[np.ndarray, " n"] | None:
    """Return the probability that each instance is positive, if the model gives one.

    That is P(f > 0), stored or from the mean and variance of evidence, or the model's probability
    of the instance.
    """
    if p.probability_positive is not None:
        return class_column(p, p.probability_positive)
    score = instance_scores(p)
    if p.score_kind == "probability":
        return np.clip(score, 0, 1)
    if p.score_kind != "evidence":
        return None
    ratio = distance_ratio(np.abs(score), np.sqrt(instance_variances(p)))
    return ndtr(np.sign(score) * ratio)
