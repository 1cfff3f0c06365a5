"""The section on calibration: whether probabilities come true as often as they say.

For bags, p(Y = 1) against the frequency of Y = 1, or with three classes or more the highest
probability against accuracy. For instances of positive bags, P(f > 0) against their labels.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...core import counted
from ...statistics import (
    ChanceError,
    Metric,
    Reliability,
    bin_count,
    calibration_error,
    equal_mass_bins,
    equal_width_bins,
    reliability,
    sampled_reliability,
)
from ..context import Context
from ..instances.table import NO_INSTANCE_LABELS, NO_PROBABILITY, NO_VARIANCE, InstanceTable
from ..section import Line, Panel, Section

ECE_BINS = 15
"""Number of bins of equal width of the ECE in the table of bags."""


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
        """Return the values for JSON."""
        chance = self.chance
        return {
            "of": self.quantity,
            "items": self.items,
            "ece_adaptive": self.ece.to_dict(),
            "ece_by_chance": None if chance is None else chance.mean,
            "ece_by_chance_95": None if chance is None else chance.upper,
            "band": "intervals over groups" if chance is None else "consistency",
            "bins": asdict(self.diagram),
        }

    def sentence(self, name: str) -> str:
        """Return the result in words."""
        text = (
            f"calibration of {name}: adaptive ECE {self.ece} in "
            f"{counted(len(self.diagram.count), 'bin')} of equal mass, "
            f"{counted(self.items, 'item')}"
        )
        if self.chance is None:
            return text
        is_high = (self.ece.value or 0.0) > self.chance.upper
        return (
            f"{text}; calibrated probabilities would have {self.chance.mean:.3f} on average, and "
            f"up to {self.chance.upper:.3f} in 19 of 20 sets: "
            + ("miscalibrated" if is_high else "no miscalibration can be shown")
        )

    def panel(self, what: str) -> Panel:
        """Return the reliability diagram."""
        is_band = self.chance is not None
        note = "grey: 95 % of calibrated frequencies" if is_band else (
            "lines: 95 % intervals over groups"
        )  # fmt: skip
        points = Line(
            name="band" if is_band else "doubt",
            x=self.diagram.probability,
            y=self.diagram.frequency,
            low=self.diagram.low,
            high=self.diagram.high,
            style="points",
        )
        return Panel(
            title=f"{what}, n = {self.items}\nadaptive ECE {self.ece.value:.3f}\n{note}",
            x="mean probability of the bin",
            y="frequency in the bin",
            lines=[points],
            ylim=(0.0, 1.0),
            diagonal=True,
        )


def calibration_section(context: Context, table: InstanceTable | None) -> Section:
    """Return the calibration of bags and, where they have labels, of instances."""
    y, p, draws = context.y, context.p, context.draws
    two_classes = p.shape[1] == 2
    if two_classes:
        quantity, score, hit = "p(Y = 1) and the frequency of Y = 1", p[:, 1], y == 1
    else:
        quantity, score, hit = "the highest probability and accuracy", p.max(1), p.argmax(1) == y
    bins = equal_mass_bins(score, bins=bin_count(len(score)))
    diagram, chance = reliability(score, hit, bins=bins, seed=context.seed)
    bags = Calibration(
        quantity=quantity,
        items=len(score),
        ece=calibration_error(score, hit, bins=bins, draws=draws),
        diagram=diagram,
        chance=chance,
    )
    class_wise = None if two_classes else _class_wise(context)
    instances = _instances(context, table)
    temperature = context.predictions.metadata.get("temperature")
    temperature = temperature if isinstance(temperature, float) else None
    scaled = "" if temperature is None else f" (temperature {temperature:.3g})"
    text = [bags.sentence(f"bags{scaled}"), _equal_width(len(np.unique(equal_width_bins(score))))]
    if class_wise is not None and class_wise.value is not None:
        text.append(f"mean adaptive ECE of the classes: {class_wise.value:.3f}")
    panels = [bags.panel("bags")]
    if not isinstance(instances, str):
        text.append(instances.sentence("P(f > 0) in positive bags"))
        panels.append(instances.panel("P(f > 0), instances of positive bags"))
    elif instances in (NO_PROBABILITY, NO_VARIANCE):
        text.append(f"calibration of P(f > 0) is undefined: {instances}")
    return Section(
        key="calibration",
        values={
            "bags": bags,
            "ece_class_wise": class_wise,
            "instances": None if isinstance(instances, str) else instances,
            "instances_reason": instances if isinstance(instances, str) else None,
            "temperature": temperature,
        },
        text=text,
        figure=("reliability", panels),
    )


def _equal_width(filled: int) -> str:
    """Return how the ECE of the table of bags differs from the adaptive one."""
    return (
        f"The ECE in the table of bags has {ECE_BINS} bins of equal width, of which {filled} "
        f"{'has' if filled == 1 else 'have'} a bag. It says little for few bags: errors cancel in "
        "a bin that most bags share, and bins with a single bag look miscalibrated."
    )


def _class_wise(context: Context) -> Metric:
    """Return the mean adaptive ECE of the probability of each class."""
    y, p, rows = context.y, context.p, []
    for c in range(p.shape[1]):
        bins = equal_mass_bins(p[:, c], bins=bin_count(len(y)))
        rows.append(calibration_error(p[:, c], y == c, bins=bins, draws=context.draws).rows)
    return Metric.of(np.mean(rows, axis=0))


def _instances(context: Context, table: InstanceTable | None) -> Calibration | str:
    """Return the calibration of P(f > 0), or why it is unknown."""
    if table is None:
        return NO_INSTANCE_LABELS
    if "probability" in table.missing:
        return NO_PROBABILITY
    inside = table.inside()
    if not len(inside.y):
        return "no labelled instances of positive bags"
    score = inside["probability"]
    if not inside["variance"].any() and np.isin(score, (0, 0.5, 1)).all():
        return NO_VARIANCE  # the probability of a point is 0 or 1: its error is that of the calls
    draws = context.resamples(table.names, table.positive).for_items(inside.bag)
    bins = equal_mass_bins(score, bins=bin_count(len(score)))
    return Calibration(
        quantity="P(f > 0) and the share of positive instances, in positive bags",
        items=len(score),
        ece=calibration_error(score, inside.y, bins=bins, draws=draws),
        diagram=sampled_reliability(score, inside.y, bins=bins, draws=draws),
    )
