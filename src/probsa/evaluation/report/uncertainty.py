"""The sections on doubt and calibration: whether a model knows how sure it is.

Doubt: which scores find wrong calls of bags and of instances. Calibration: whether probabilities
come true as often as they say; of bags p(Y = 1) (with three classes or more the highest probability
against accuracy), of instances the probability that they are positive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.table import Table as Grid
from scipy.special import entr, ndtr

from ...core import counted, group_keys
from ...statistics import (
    FEWEST_PATIENTS,
    LOSS,
    MEAN_SHARE,
    SHARE,
    SHARES,
    SMALLEST,
    Draws,
    ErrorByChance,
    Metric,
    Reliability,
    RetentionCurve,
    Scale,
    calibration_error,
    equal_mass_bins,
    equal_width_bins,
    mean_of_items,
    reliability,
    retention_curve,
    sampled_reliability,
)
from ..claims import Claim
from ..context import SEEN, Context
from ..instances.measures import (
    BAGS,
    INSTANCES_OF_POSITIVE_BAGS,
    POSITIVE_BAGS,
    Items,
    detections,
    detector,
    detector_claim,
    detector_verdict,
)
from ..instances.table import (
    IN_MEMORY,
    NO_CALLS,
    NO_DISTANCE,
    NO_INSTANCE_LABELS,
    ONE_MODEL,
    InstanceTable,
    Values,
)
from ..scores import NO_VARIANCE, distance_ratio
from ..section import (
    RIGHT,
    Line,
    Panel,
    Section,
    SectionFigure,
    Style,
    bags_and_instances,
    grid,
)
from ..words import (
    BAG_DETECTORS,
    INSTANCE_DETECTORS,
    INTERVAL,
    NULL_DETECTORS,
    NULL_MARK,
    OF_SEVERAL_CLASSES,
    detector_titles,
)

CURVE_RESAMPLES = 200
"""Upper limit of the resamples of a retention curve."""
Judged = Literal["doubt", "flip"]
"""The detector that is compared with the margin: the one that uses the posterior."""
SHOWN_SHARES = (0.5, 0.8)
"""The shares of the kept items whose error rate the text of a report shows."""
DRAWN_DETECTORS = ("doubt", "flip", "spread", "variance", "ood", "margin")
"""The detectors that a retention curve is drawn of; tables and JSON have the others, too."""
LEAST_KEPT = 5
"""Smallest number of kept items that a drawn curve begins with: rates of fewer are noise."""
OF_BAGS = (
    "P(wrong) is 1 minus the probability of the called class. P(the call flips) = Φ(−|p − t|/s) "
    "with the probability p, the threshold t and the standard deviation s."
)
OF_INSTANCES = (
    "P(wrong) is the probability that the prediction gives the other call; P(the call flips) is "
    "the posterior probability that the evidence e has another sign; w is the weight in the bag."
)
"""The symbols in the titles of detectors."""
SEVERAL_CLASSES = "it needs two classes"


def doubt_section(context: Context, table: InstanceTable | None) -> Section:
    """Return how well scores of bags and of instances find those that are called wrongly."""
    beyond, sentence = beyond_validation(context)
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
    items: Items,
    scale: Scale,
    judged: Judged,
    titles: Mapping[str, str],
    symbols: str,
) -> Section:
    """Return how well scores find the wrong calls of at least one item, see `detections`.

    Args:
        wrong: whether the call of each item is wrong.
        scores: the detectors of wrong calls, or why there is none.
        draws: resamples of the items.
        items: what the items are.
        scale: the values that rates can take.
        judged: the detector that the verdict compares with the margin.
        titles: the titles of the detectors that are shown.
        symbols: a sentence that explains them.
    """
    metrics = detections(wrong, scores, draws=draws, items=items, scale=scale)
    areas = {name: metrics[f"error_auroc_{name}"] for name in scores}
    gain = areas[judged] - areas["margin"]
    metrics[f"error_auroc_{judged}_gain"] = gain
    verdict = detector_verdict(metrics, judged, what=items.many)
    fewer = draws.first(CURVE_RESAMPLES)
    curves: dict[str, RetentionCurve] = {}
    for name, score in scores.items():
        if areas[name].value is not None and not isinstance(score, str):
            curves[name] = retention_curve(wrong, score, draws=fewer, scale=scale)
    rate = float(wrong.mean())
    heading = f"doubt: {len(wrong)} {items.many}, {rate:.1%} wrong"
    lines = _retention_lines(curves, judged=judged, titles=titles, count=len(wrong))
    values = {
        "of": items.many,
        "items": len(wrong),
        "error_rate": metrics["error_rate"],
        "error_auroc": areas,
        "random_order": {"error_auroc": 0.5} if 0 < rate < 1 else None,
        "judged": judged,
        "doubt_gain": gain,
        "claim": detector_claim(gain),
        "verdict": verdict,
        "retention": {"shares": list(SHARES), "random": rate, "curves": curves},
    }
    return Section(
        "doubt",
        values,
        text=[
            _detector_grid(heading, areas, curves, titles=titles, rate=rate),
            _undefined_detectors(areas, curves, titles=titles),
            verdict,
            symbols,
        ],
        figure=SectionFigure("retention", _retention_panels(lines, items, wrong)),
    )


def _detector_grid(
    heading: str,
    areas: Mapping[str, Metric],
    curves: Mapping[str, RetentionCurve],
    *,
    titles: Mapping[str, str],
    rate: float,
) -> Grid | str:
    """Return a table with a row for each detector that has a curve; without any, its heading."""
    rows = []
    for name, title in detector_titles(titles).items():
        if name in curves:
            error_rate = curves[name].error_rate
            kept = [f"{error_rate[SHARES.index(share)]:.1%}" for share in SHOWN_SHARES]
            rows.append([title, f"{areas[name].value:.3f}", areas[name].span(before=""), *kept])
    if not rows:
        return heading
    kept = [f"{rate:.1%}"] * len(SHOWN_SHARES)
    rows.append([f"random order{NULL_MARK}", "0.500", "exact", *kept])
    columns = {
        "wrong calls found by": {},
        "AUROC": {**RIGHT, "no_wrap": True},
        INTERVAL: {},
        **{f"wrong of {share:.0%} kept": RIGHT for share in SHOWN_SHARES},
    }
    return grid(heading, columns, rows)


def _undefined_detectors(
    areas: Mapping[str, Metric],
    curves: Mapping[str, RetentionCurve],
    *,
    titles: Mapping[str, str],
) -> str:
    """Say which detectors are undefined, and why; empty if all have a curve."""
    by_reason: dict[str | None, list[str]] = {}
    for name, title in titles.items():
        if name not in curves:
            by_reason.setdefault(areas[name].reason, []).append(title)
    if not by_reason:
        return ""
    reasons = (f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return f"Undefined: {'; '.join(reasons)}."


def _first_drawn(count: int) -> int:
    """Return the index of the first of `SHARES` that is drawn, of so many items."""
    return sum(share * count < LEAST_KEPT for share in SHARES[:-1])


def _retention_lines(
    curves: Mapping[str, RetentionCurve],
    *,
    judged: Judged,
    titles: Mapping[str, str],
    count: int,
) -> list[Line]:
    """Return the error rates of the kept calls by detector; the judged one has its interval."""
    first = _first_drawn(count)
    lines = []
    for name, title in detector_titles(titles).items():
        if name not in curves or name not in DRAWN_DETECTORS:
            continue
        curve = curves[name]
        style: Style = "plain"
        if name == judged:
            style = "main"
        elif name in NULL_DETECTORS:
            style = "null"
        line = Line(
            name,
            _percent(SHARES[first:]),
            _percent(curve.error_rate[first:]),
            label=title,
            style=style,
        )
        if style == "main":
            line = replace(
                line,
                label=f"{title} and its {INTERVAL}",
                low=_percent(curve.low[first:]),
                high=_percent(curve.high[first:]),
            )
        lines.append(line)
    return lines


def _retention_panels(
    lines: Sequence[Line], items: Items, wrong: Bool[np.ndarray, " n"]
) -> list[Panel]:
    """Return the diagram of the error rates; none without a line."""
    if not lines:
        return []
    shares = _percent(SHARES[_first_drawn(len(wrong)) :])
    panel = Panel(
        title=f"{len(wrong)} {items.many}",
        x="calls kept, least doubtful first (%)",
        y="wrong among the kept calls (%)",
        lines=lines,
        xlim=(shares[0], 100.0) if len(shares) > 1 else (0.0, 100.0),
        level=(100 * float(wrong.mean()), "random order (null)"),
    )
    return [panel]


def _percent(values: Sequence[float | None]) -> list[Any]:
    return [None if v is None else 100 * v for v in values]


def probability_wrong(
    p: Float[np.ndarray, "bags classes"], called: Int[np.ndarray, " bags"]
) -> Float[np.ndarray, " bags"]:
    """Return P(wrong) of each bag's call: 1 minus the probability of the called class."""
    return 1 - p[np.arange(len(p)), called]


def _bag_doubt(context: Context) -> Section:
    """Return how well scores of bags find wrong calls of bags."""
    p = context.p
    table = context.predictions
    rows = list(context.rows)
    several = p.shape[1] > 2
    called, margin = context.task.call(p, context.threshold)

    def deviation(value: np.ndarray | None, *, missing: str) -> Values | str:
        """Return the deviation of the called class, or of the last of two classes."""
        if value is None:
            return missing
        column = value[rows, called if several else -1]
        return column if column.any() else NO_VARIANCE

    spread = deviation(table.std, missing=NO_VARIANCE)
    flip = spread
    if several:
        flip = SEVERAL_CLASSES
    elif not isinstance(spread, str):
        flip = ndtr(-distance_ratio(margin, spread))
    scores = {
        "doubt": probability_wrong(p, called),
        "flip": flip,
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
        items=BAGS,
        scale=SHARE,
        judged="flip",
        titles=BAG_DETECTORS | OF_SEVERAL_CLASSES if several else BAG_DETECTORS,
        symbols="" if several else OF_BAGS,
    )


def _instance_doubt(context: Context, table: InstanceTable | None) -> Section | str:
    """Return the detectors on instances of positive bags, or why there are none."""
    if table is None:
        return _no_instances(context)
    inside = table.of_bags()
    if inside.called is None:
        return NO_CALLS
    if not len(inside.y):
        return f"no {POSITIVE_BAGS}"
    # of a single model, the part within members is the whole
    hidden = ("flip_within",) if inside.missing.get("flip_between") == ONE_MODEL else ()
    return _doubt(
        inside.called != inside.y,
        {name: detector(inside, name) for name in INSTANCE_DETECTORS},
        draws=context.resamples(table.names, table.positive).for_items(inside.bag),
        items=INSTANCES_OF_POSITIVE_BAGS,
        scale=MEAN_SHARE,
        judged="doubt",
        titles={k: t for k, t in INSTANCE_DETECTORS.items() if k not in hidden},
        symbols=OF_INSTANCES,
    )


def _no_instances(context: Context) -> str:
    """Return why there is no table of instances."""
    return IN_MEMORY if context.predictions.path is None else NO_INSTANCE_LABELS


def beyond_validation(context: Context) -> tuple[dict[str, Any] | None, str]:
    """Count the evaluated patients with a bag further from training than all validation bags.

    If all patients are alike, n / (v + 1) of n patients lie beyond v validation patients. Bags of
    one patient are alike, so that this does not hold for bags. None without distances, or if the
    run has seen all bags. The same in words.
    """
    table = context.predictions
    rows = [i for i in context.rows if table.parts[i] not in SEEN]
    if table.ood is None or not rows:
        return None, ""
    keys = group_keys([table.bags[i] for i in rows], context.truth.group)
    patient_of = dict(zip(rows, keys, strict=True))
    beyond_rows = [i for i in rows if table.ood[i] >= 1]
    patients = len(set(patient_of.values()))
    beyond = len({patient_of[i] for i in beyond_rows})
    validation_bags = table.metadata.distance_validation_bags
    if validation_bags is None:
        validation_bags = table.parts.count("val") or None
    validation = _validation_patients(
        context, bags=validation_bags, has_several=patients < len(rows)
    )
    expected = None if validation is None else patients / (validation + 1)
    unit = "patient" if patients < len(rows) else "bag"
    if expected is not None and validation is not None:
        others = counted(validation, f"validation {unit}")
        chance = (
            f"; {expected:.1f} are expected by chance if these {unit}s are like those of training."
        )
    else:
        others = "validation bags"
        chance = "."
        if unit == "bag":
            chance = " (predict again to compare with the number by chance)."
    verb = "is" if beyond == 1 else "are"
    sentence = (
        f"distance from training: {beyond} of {counted(patients, unit)} {verb} further from "
        f"training than all {others}{chance}"
    )
    values = {
        "bags": len(rows),
        "beyond": len(beyond_rows),
        "patients": patients,
        "patients_beyond": beyond,
        "validation_bags": None if table.metadata.runs else validation_bags,
        "validation_patients": validation,
        "expected": expected,
        "claim": Claim.UNLIKE_TRAINING if beyond else None,
    }
    return values, sentence


def _validation_patients(context: Context, *, bags: int | None, has_several: bool) -> int | None:
    """Return the number of validation patients that `ood` compares with; None if it is not known.

    Args:
        context: the evaluated bags.
        bags: the number of validation bags, if it is known.
        has_several: whether an evaluated patient has several bags, as validation patients may have.
    """
    table = context.predictions
    if table.metadata.runs:
        return None
    if table.metadata.distance_validation_patients is not None:
        return table.metadata.distance_validation_patients
    parts = zip(table.bags, table.parts, strict=True)
    names = [bag for bag, part in parts if part == "val"]
    if names and len(names) == bags:
        return len(set(group_keys(names, context.truth.group)))
    return None if has_several else bags


# Calibration


FEWEST_CALIBRATED = 20
"""With fewer patients than this, the error of probabilities is mostly noise, and not judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationVerdict:
    """Whether probabilities of bags are miscalibrated."""

    judged: bool
    """False with fewer than 20 patients, or fewer than three of the rarer class."""
    miscalibrated: bool
    """Whether the error is larger than in 49 of 50 sets of calibrated probabilities."""
    patients: int
    rarer: int | None
    """Patients of the rarer of two classes; None with more classes."""


def calibration_verdict(
    ece: Metric, by_chance: ErrorByChance, *, draws: Draws, positive: Bool[np.ndarray, " n"] | None
) -> CalibrationVerdict:
    """Return whether a calibration error is larger than by chance, see `reliability`.

    `positive` are the bags of the second of two classes; None with more classes.
    """
    patients = draws.support().patients
    rarer = None
    if positive is not None:
        rarer = min(draws.patients_with(positive), draws.patients_with(~positive))
    enough_of_rarer = rarer is None or rarer >= FEWEST_PATIENTS
    judged = patients >= FEWEST_CALIBRATED and enough_of_rarer
    above = ece.value is not None and ece.value > by_chance.upper
    return CalibrationVerdict(
        judged=judged, miscalibrated=judged and above, patients=patients, rarer=rarer
    )


def calibration_section(context: Context, table: InstanceTable | None) -> Section:
    """Return the calibration of bags and, where they have labels, of instances."""
    y = context.y
    p = context.p
    draws = context.draws
    positive: Bool[np.ndarray, " n"] | None = None
    if p.shape[1] == 2:
        compared = "p(Y = 1) and the frequency of Y = 1"
        score = p[:, 1]
        hit = positive = y == 1
    else:
        compared = "the highest probability and accuracy"
        score = p.max(1)
        hit = p.argmax(1) == y
    temperature = context.predictions.metadata.temperature
    scaled = "" if temperature is None else f" (temperature {temperature:.3g})"
    filled = len(np.unique(equal_width_bins(score)))
    verb = "has" if filled == 1 else "have"
    about = (
        f"The ECE in the table of bags has 15 bins of equal width, of which {filled} {verb} a bag. "
        "It says little for few bags: errors cancel in "
        "a bin that most bags share, and bins with a single bag look miscalibrated."
    )
    ece, bins = _error(score, hit, draws=draws)
    diagram, by_chance = reliability(score, hit, bins=bins, patient=draws.member, seed=context.seed)
    verdict = calibration_verdict(ece, by_chance, draws=draws, positive=positive)
    beside_chance = (
        f"; perfectly calibrated probabilities give {by_chance.mean:.3f} on average and at most "
        f"{by_chance.upper:.3f} in 49 of 50 such sets"
    )
    if verdict.judged:
        shown = "shown" if verdict.miscalibrated else "not shown"
        beside_chance += f", so miscalibration is {shown}"
    bags = _calibration(
        CalibratedItems(len(score), compared, name=f"bags{scaled}", title="bags"),
        ece,
        diagram,
        band="consistency",
        more=beside_chance,
        values={
            "ece_by_chance": by_chance.mean,
            "ece_by_chance_98": by_chance.upper,
            "verdict": verdict,
            "claim": Claim.MISCALIBRATED if verdict.miscalibrated else None,
        },
    )
    instances = _instance_calibration(context, table)
    if table is not None and isinstance(instances, str):
        about += f"\ncalibration of instances is undefined: {instances}"
    return bags_and_instances(
        "calibration",
        bags,
        instances,
        figure="reliability",
        between=about,
        more={"temperature": temperature},
    )


def _error(
    p: Float[np.ndarray, " n"], y: Bool[np.ndarray, " n"], *, draws: Draws
) -> tuple[Metric, Int[np.ndarray, " n"]]:
    """Return the adaptive ECE, and the bin of each item."""
    bins = equal_mass_bins(p)
    return calibration_error(p, y, bins=bins, draws=draws), bins


Band = Literal["consistency", "intervals over groups"]
BANDS: Mapping[Band, tuple[str, str]] = {
    "consistency": ("band", "grey: 95 % of calibrated frequencies"),
    "intervals over groups": ("doubt", "lines: 95 % intervals over groups"),
}
"""What the bars of a diagram are: how they are drawn, and what its title says of them."""


@dataclass(frozen=True, slots=True)
class CalibratedItems:
    """What is calibrated."""

    count: int
    compared: str
    """What is compared."""
    name: str
    """The items in a sentence."""
    title: str
    """The items in a figure."""


def _calibration(
    items: CalibratedItems,
    ece: Metric,
    diagram: Reliability,
    *,
    band: Band,
    more: str,
    values: Mapping[str, Any],
) -> Section:
    """Compare probabilities with what came true.

    Args:
        items: the items.
        ece: the adaptive ECE.
        diagram: the bins.
        band: what the limits of the bins are.
        more: the rest of the sentence.
        values: further values for JSON.
    """
    line, note = BANDS[band]
    text = (
        f"calibration of {items.name}: adaptive ECE {ece} in "
        f"{counted(len(diagram.count), 'bin')} of equal mass, {counted(items.count, 'item')}{more}"
    )
    points = Line(
        line,
        diagram.probability,
        diagram.frequency,
        low=diagram.low,
        high=diagram.high,
        style="points",
    )
    panel = Panel(
        title=f"{items.title}, n = {items.count}\nadaptive ECE {ece.value:.3f}\n{note}",
        x="mean probability of the bin",
        y="frequency in the bin",
        lines=[points],
        ylim=(0.0, 1.0),
        diagonal=True,
    )
    return Section(
        "calibration",
        {
            "of": items.compared,
            "items": items.count,
            "ece_adaptive": ece,
            **values,
            "band": band,
            "bins": diagram,
        },
        text=[text],
        figure=SectionFigure("reliability", [panel]),
    )


def _instance_calibration(context: Context, table: InstanceTable | None) -> Section | str:
    """Return the calibration of the instances' probabilities, or why it is unknown.

    The bins are those of positive bags; `nll` is there and over all bags.
    """
    if table is None:
        return _no_instances(context)
    if "probability" in table.missing:
        return table.missing["probability"]
    inside = table.of_bags()
    if not len(inside.y):
        return "no labelled instances of positive bags"
    p = inside["probability"]
    draws = context.resamples(table.names, table.positive)
    draws_of_instances = draws.for_items(inside.bag)
    ece, bins = _error(p, inside.y, draws=draws_of_instances)
    nll = _instance_nll(inside, draws=draws)
    nll_everywhere = _instance_nll(table, draws=draws)
    ece_everywhere, _ = _error(table["probability"], table.y, draws=draws.for_items(table.bag))
    return _calibration(
        CalibratedItems(
            len(p),
            compared=(
                "the probability of an instance and the share of positive ones, in positive bags"
            ),
            name="instances of positive bags",
            title="instances of positive bags",
        ),
        ece,
        sampled_reliability(p, inside.y, bins=bins, draws=draws_of_instances),
        band="intervals over groups",
        more=(
            f"; negative log-likelihood {nll}; of the instances of all bags: adaptive ECE "
            f"{ece_everywhere}, negative log-likelihood {nll_everywhere}"
        ),
        values={
            "ece_by_chance": None,
            "ece_by_chance_98": None,
            "nll": nll,
            "all_bags": {
                "items": len(table.y),
                "ece_adaptive": ece_everywhere,
                "nll": nll_everywhere,
            },
        },
    )


def _instance_nll(table: InstanceTable, *, draws: Draws) -> Metric:
    """Return the mean negative log-likelihood of the labels of instances."""
    p = np.clip(table["probability"], SMALLEST, 1 - SMALLEST)
    loss = -np.log(np.where(table.y, p, 1 - p))
    return mean_of_items(loss, draws=draws.for_items(table.bag), scale=LOSS)
