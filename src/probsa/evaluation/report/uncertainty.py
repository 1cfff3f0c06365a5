"""The sections on doubt and calibration: whether a model knows how sure it is.

Doubt: which scores find wrong calls of bags and of instances. Calibration: whether probabilities
come true as often as they say; of bags p(Y = 1) (with three classes or more the highest probability
against accuracy), of instances of positive bags P(f > 0).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import entr, ndtr

from ...core import counted
from ...statistics import (
    SHARES,
    Draws,
    Metric,
    calibration_error,
    equal_mass_bins,
    equal_width_bins,
    reliability,
    retention_curve,
    sampled_reliability,
)
from ..context import SEEN, Context
from ..instances.measures import POSITIVE_BAGS, detections, detector, detector_verdict
from ..instances.table import (
    NO_CALLS,
    NO_DISTANCE,
    NO_INSTANCE_LABELS,
    NO_PROBABILITY,
    NO_VARIANCE,
    ONE_MODEL,
    InstanceTable,
    Values,
)
from ..scores import distance_ratio
from ..section import RIGHT, Line, Panel, Section, Style, bags_and_instances, grid
from ..words import BAG_DETECTORS, INSTANCE_DETECTORS, NULL_DETECTORS, OF_SEVERAL_CLASSES

CURVE_RESAMPLES = 200
"""Upper limit of the resamples of a retention curve."""
NULL = " (null)"
STYLES: dict[str, Style] = {"doubt": "main", **dict.fromkeys(NULL_DETECTORS, "null")}
"""The styles of the lines of detectors; others are plain."""
SHOWN_SHARES = (0.5, 0.8)
"""The shares of the kept items whose error rate the text of a report shows."""
OF_BAGS = (
    "P(wrong) = Φ(−|p − t|/s) with the probability p, the threshold t and the standard deviation s."
)
OF_INSTANCES = (
    "P(wrong) = Φ(−|e|/σ) with the evidence e, which is the distance of the score from its "
    "threshold, and its standard deviation σ; w is the weight in the bag."
)
"""The symbols in the titles of detectors."""
SEVERAL_CLASSES = "it needs two classes"
DISTANCE_VALIDATION_BAGS = "distance_validation_bags"
"""The entry of predictions.json with the number of bags that `ood` compares with."""


def doubt_section(context: Context, table: InstanceTable | None) -> Section:
    """Return how well scores of bags and of instances find those that are called wrongly."""
    beyond, sentence = _beyond_validation(context)
    return bags_and_instances(
        "doubt",
        _bag_doubt(context),
        _instance_doubt(context, table),
        figure="retention",
        between=sentence,
        more={"beyond_validation": beyond},
    )


def _doubt(
    wrong: Bool[np.ndarray, " n"],
    scores: Mapping[str, Values | str],
    *,
    draws: Draws,
    what: str,
    titles: Mapping[str, str],
    symbols: str,
) -> Section:
    """Return how well scores find the wrong calls of at least one item, see `detections`.

    titles: those of the detectors that are shown; symbols: a sentence that explains them.
    """
    found = detections(wrong, scores, draws=draws, what=what)
    area, risk = ({k: found[f"{kind}_{k}"] for k in scores} for kind in ("error_auroc", "augrc"))
    gain = (area["doubt"] - area["margin"]).student(groups=len(np.unique(draws.member)))
    verdict = detector_verdict({**found, "error_auroc_doubt_gain": gain}, "doubt", what=what)
    fewer = Draws(counts=draws.counts[: CURVE_RESAMPLES + 1], member=draws.member)
    curves = {
        k: retention_curve(wrong, s, draws=fewer)
        for k, s in scores.items()
        if area[k].value is not None and not isinstance(s, str)
    }
    rate = float(wrong.mean())
    rows, undefined, lines = [], {}, []
    for name, title in titles.items():
        m = area[name]
        if name not in curves:
            undefined.setdefault(m.reason, []).append(title.removesuffix(NULL))
            continue
        curve, style = curves[name], STYLES.get(name, "plain")
        kept = [f"{curve.error_rate[SHARES.index(share)]:.1%}" for share in SHOWN_SHARES]
        rows.append([title, f"{m.value:.3f}", m.span(before=""), f"{risk[name].value:.4f}", *kept])
        line = Line(name, _percent(SHARES), _percent(curve.error_rate), label=title, style=style)
        if style == "main":
            label, low, high = f"{title} and its 95 % interval", curve.low, curve.high
            line = replace(line, label=label, low=_percent(low), high=_percent(high))
        lines.append(line)
    if rows:  # in random order, the AUGRC is half the error rate
        kept = [f"{rate:.1%}"] * len(SHOWN_SHARES)
        rows.append([f"random order{NULL}", "0.500", "exact", f"{rate / 2:.4f}", *kept])
    heading, number = f"doubt: {len(wrong)} {what}, {rate:.1%} wrong", {**RIGHT, "no_wrap": True}
    columns = {
        "wrong calls found by": {},
        "AUROC": number,
        "95 % interval": {},
        "AUGRC": number,
        **{f"wrong of {share:.0%} kept": RIGHT for share in SHOWN_SHARES},
    }
    text = [grid(heading, columns, rows) if rows else heading]
    if undefined:
        reasons = (f"{', '.join(names)} ({reason})" for reason, names in undefined.items())
        text.append(f"Undefined: {'; '.join(reasons)}.")
    panel = Panel(
        title=f"{len(wrong)} {what}",
        x="calls kept, least doubtful first (%)",
        y="wrong among the kept calls (%)",
        lines=lines,
        xlim=(0.0, 100.0),
        level=(100 * rate, "random order (null)"),
    )
    values = {
        "of": what,
        "items": len(wrong),
        "error_rate": found["error_rate"],
        "error_auroc": area,
        "augrc": risk,
        "random_order": {"error_auroc": 0.5, "augrc": rate / 2} if 0 < rate < 1 else None,
        "doubt_gain": gain,
        "verdict": verdict,
        "retention": {"shares": list(SHARES), "random": rate, "curves": curves},
    }
    return Section(
        "doubt",
        values,
        text=[*text, verdict, symbols],
        figure=("retention", [panel] if lines else []),
    )


def _percent(values: Sequence[float | None]) -> list[Any]:
    return [None if v is None else 100 * v for v in values]


def _bag_doubt(context: Context) -> Section:
    """Return how well scores of bags find wrong calls of bags."""
    p, table, rows = context.p, context.predictions, list(context.rows)
    several, (called, margin) = p.shape[1] > 2, context.task.call(p, context.threshold)

    def deviation(value: np.ndarray | None, *, missing: str) -> Values | str:
        if value is None:
            return missing
        column = value[rows, called if several else -1]
        return column if column.any() else NO_VARIANCE

    doubt = spread = deviation(table.std, missing=NO_VARIANCE)
    if several:
        doubt = SEVERAL_CLASSES
    elif not isinstance(spread, str):
        doubt = ndtr(-distance_ratio(margin, spread))
    scores = {
        "doubt": doubt,
        "spread": spread,
        "within": deviation(table.std_within, missing=ONE_MODEL),
        "between": deviation(table.std_between, missing=ONE_MODEL),
        "margin": -margin,
        "entropy": entr(p).sum(1),
        "ood": NO_DISTANCE if table.ood_distance is None else table.ood_distance[rows],
    }
    return _doubt(
        called != context.y,
        scores,
        draws=context.draws,
        what="bags",
        titles={**BAG_DETECTORS, **(OF_SEVERAL_CLASSES if several else {})},
        symbols="" if several else OF_BAGS,
    )


def _instance_doubt(context: Context, table: InstanceTable | None) -> Section | str:
    """Return the detectors on instances of positive bags, or why there are none."""
    if table is None:
        return NO_INSTANCE_LABELS
    inside = table.of_bags()
    if inside.called is None:
        return NO_CALLS
    if not len(inside.y):
        return f"no {POSITIVE_BAGS}"
    # of a single model, the part within members is the whole
    hidden = ("doubt_within",) if inside.missing.get("doubt_between") == ONE_MODEL else ()
    return _doubt(
        inside.called != inside.y,
        {name: detector(inside, name) for name in INSTANCE_DETECTORS},
        draws=context.resamples(table.names, table.positive).for_items(inside.bag),
        what=POSITIVE_BAGS,
        titles={k: t for k, t in INSTANCE_DETECTORS.items() if k not in hidden},
        symbols=OF_INSTANCES,
    )


def _beyond_validation(context: Context) -> tuple[dict[str, Any] | None, str]:
    """Count the evaluated bags that are further from training than all validation bags.

    If all are alike, n / (v + 1) of n bags lie beyond v validation bags. None without distances, or
    if the run has seen all bags. The same in words.
    """
    table = context.predictions
    rows = [i for i in context.rows if table.parts[i] not in SEEN]
    if table.ood is None or not rows:
        return None, ""
    stored = table.metadata.get(DISTANCE_VALIDATION_BAGS)
    count = stored if isinstance(stored, int) else table.parts.count("val")
    known = None if "runs" in table.metadata else count or None
    beyond, expected = int((table.ood[rows] >= 1).sum()), None
    than, chance = "validation bags", " (predict again to compare with the number by chance)."
    if known is not None:
        expected, than = len(rows) / (known + 1), counted(known, "validation bag")
        chance = (
            f"; {expected:.1f} are expected by chance if these bags are like those of training."
        )
    values = {"bags": len(rows), "beyond": beyond, "validation_bags": known, "expected": expected}
    return values, (
        f"distance from training: {beyond} of {counted(len(rows), 'bag')} "
        f"{'is' if beyond == 1 else 'are'} further from training than all {than}{chance}"
    )


# Calibration


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
    instances = _instance_calibration(context, table)
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
    bins = equal_mass_bins(p)
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
    text = (
        f"calibration of {name}: adaptive ECE {ece} in {counted(int(bins.max()) + 1, 'bin')} of "
        f"equal mass, {counted(len(p), 'item')}"
    )
    if seed is None:
        diagram, mean, upper = sampled_reliability(p, y, bins=bins, draws=draws), None, None
        line, band, note = "doubt", "intervals over groups", "lines: 95 % intervals over groups"
    else:
        diagram, mean, upper = reliability(p, y, bins=bins, seed=seed)
        line, band, note = "band", "consistency", "grey: 95 % of calibrated frequencies"
        is_high = (ece.value or 0.0) > upper
        text += (
            f"; perfectly calibrated probabilities give {mean:.3f} on average and at most "
            f"{upper:.3f} in 19 of 20 such sets, so miscalibration is "
            f"{'shown' if is_high else 'not shown'}"
        )
    low, high = diagram.low, diagram.high
    panel = Panel(
        title=f"{title}, n = {len(p)}\nadaptive ECE {ece.value:.3f}\n{note}",
        x="mean probability of the bin",
        y="frequency in the bin",
        lines=[
            Line(line, diagram.probability, diagram.frequency, low=low, high=high, style="points")
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
    return Section("calibration", values, text=[text], figure=("", [panel]))


def _instance_calibration(context: Context, table: InstanceTable | None) -> Section | str:
    """Return the calibration of P(f > 0), or why it is unknown."""
    if table is None:
        return NO_INSTANCE_LABELS
    if "probability" in table.missing:
        return NO_PROBABILITY
    inside = table.of_bags()
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
