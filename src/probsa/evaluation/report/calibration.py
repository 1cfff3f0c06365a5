"""The section on calibration: whether probabilities come true as often as they say.

For bags, p(Y = 1) against the frequency of Y = 1, or with three classes or more the highest
probability against accuracy. For instances of positive bags, P(f > 0) against their labels.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from ...core import counted
from ...statistics import (
    Draws,
    Metric,
    bin_count,
    calibration_error,
    equal_mass_bins,
    equal_width_bins,
    reliability,
    sampled_reliability,
)
from ..context import Context
from ..instances.table import NO_INSTANCE_LABELS, NO_PROBABILITY, NO_VARIANCE, InstanceTable
from ..section import Line, Panel, Section, bags_and_instances


def calibration_section(context: Context, table: InstanceTable | None) -> Section:
    """Return the calibration of bags and, where they have labels, of instances."""
    y, p, draws, class_wise = context.y, context.p, context.draws, None
    if p.shape[1] == 2:
        of, score, hit = "p(Y = 1) and the frequency of Y = 1", p[:, 1], y == 1
    else:
        of, score, hit = "the highest probability and accuracy", p.max(1), p.argmax(1) == y
        errors = (_error(q, y == c, draws=draws)[0].rows for c, q in enumerate(p.T))
        class_wise = Metric.of(np.mean([rows for rows in errors if rows is not None], axis=0))
    temperature = context.predictions.metadata.get("temperature")
    temperature = temperature if isinstance(temperature, float) else None
    scaled = "" if temperature is None else f" (temperature {temperature:.3g})"
    filled = len(np.unique(equal_width_bins(score)))
    about = (
        f"The ECE in the table of bags has 15 bins of equal width, of which {filled} "
        f"{'has' if filled == 1 else 'have'} a bag. It says little for few bags: errors cancel in "
        "a bin that most bags share, and bins with a single bag look miscalibrated."
    )
    if class_wise is not None and class_wise.value is not None:
        about += f"\nmean adaptive ECE of the classes: {class_wise.value:.3f}"
    bags = _calibration(
        score, hit, name=f"bags{scaled}", title="bags", of=of, draws=draws, seed=context.seed
    )
    instances = _instances(context, table)
    if instances in (NO_PROBABILITY, NO_VARIANCE):
        about += f"\ncalibration of P(f > 0) is undefined: {instances}"
    more = {"ece_class_wise": class_wise, "temperature": temperature}
    return bags_and_instances(
        "calibration", bags, instances, figure="reliability", between=about, more=more
    )


def _error(
    p: Float[np.ndarray, " n"], y: Bool[np.ndarray, " n"], *, draws: Draws
) -> tuple[Metric, Int[np.ndarray, " n"]]:
    """Return the adaptive ECE, and the bin of each item."""
    bins = equal_mass_bins(p, bins=bin_count(len(p)))
    return calibration_error(p, y, bins=bins, draws=draws), bins


def _calibration(
    p: Float[np.ndarray, " n"],
    y: Bool[np.ndarray, " n"],
    *,
    of: str,
    name: str,
    title: str,
    draws: Draws,
    seed: int | None = None,
) -> Section:
    """Compare probabilities with what came true; intervals of an ECE are biased upwards.

    `name` and `title` are the items in a sentence and a figure; `seed` is that of simulated labels
    of independent items, None if items are not independent.
    """
    ece, bins = _error(p, y, draws=draws)
    count = int(bins.max()) + 1
    text = (
        f"calibration of {name}: adaptive ECE {ece} in {counted(count, 'bin')} of equal mass, "
        f"{counted(len(p), 'item')}"
    )
    if seed is None:
        diagram, mean, upper = sampled_reliability(p, y, bins=bins, draws=draws), None, None
        line, band, note = "doubt", "intervals over groups", "lines: 95 % intervals over groups"
    else:
        diagram, chance = reliability(p, y, bins=bins, seed=seed)
        mean, upper = chance.mean, chance.upper
        line, band, note = "band", "consistency", "grey: 95 % of calibrated frequencies"
        is_high = (ece.value or 0.0) > upper
        text += (
            f"; calibrated probabilities would have {mean:.3f} on average, and up to {upper:.3f} "
            "in 19 of 20 sets: "
        ) + ("miscalibrated" if is_high else "no miscalibration can be shown")
    panel = Panel(
        title=f"{title}, n = {len(p)}\nadaptive ECE {ece.value:.3f}\n{note}",
        x="mean probability of the bin",
        y="frequency in the bin",
        lines=[
            Line(
                name=line,
                x=diagram.probability,
                y=diagram.frequency,
                low=diagram.low,
                high=diagram.high,
                style="points",
            )
        ],
        ylim=(0.0, 1.0),
        diagonal=True,
    )
    values = {
        "of": of,
        "items": len(p),
        "ece_adaptive": ece,
        "ece_by_chance": mean,
        "ece_by_chance_95": upper,
        "band": band,
        "bins": diagram,
    }
    return Section(key="calibration", values=values, text=[text], figure=("", [panel]))


def _instances(context: Context, table: InstanceTable | None) -> Section | str:
    """Return the calibration of P(f > 0), or why it is unknown."""
    if table is None:
        return NO_INSTANCE_LABELS
    if "probability" in table.missing:
        return NO_PROBABILITY
    inside = table.inside()
    if not len(inside.y):
        return "no labelled instances of positive bags"
    p = inside["probability"]
    if not inside["variance"].any() and np.isin(p, (0, 0.5, 1)).all():
        return NO_VARIANCE  # the probability of a point is 0 or 1: its error is that of the calls
    return _calibration(
        p,
        inside.y,
        of="P(f > 0) and the share of positive instances, in positive bags",
        name="P(f > 0) in positive bags",
        title="P(f > 0), instances of positive bags",
        draws=context.resamples(table.names, table.positive).for_items(inside.bag),
    )
