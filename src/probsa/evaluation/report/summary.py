"""The dozen lines that answer what a reader of a report asks first.

How good is the model, where is its threshold, how sure may one be of it, and is its map right?
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ...core import counted
from ...statistics import FEWEST_PATIENTS, Metric
from ...tasks import MEAN_RIVAL
from ..claims import Claim
from ..context import Context
from ..map_tests import FAILED, MapTest
from ..metadata import AT_CHANCE
from ..section import Section
from ..words import METRIC_TITLES, no_interval_text, shortened
from .stored_trust import measured_gain, shown_score
from .trust import MapTrust, is_gain, judged_faithfulness, map_trust
from .uncertainty import FEWEST_CALIBRATED, CalibrationVerdict
from .within import NullComparison

FEW_PATIENTS = 10
"""With fewer patients of the rarer class than this, results do not stand without a remark."""


class Findings(NamedTuple):
    """What the lines are about."""

    context: Context
    metrics: Mapping[str, Metric]
    sections: Mapping[str, Section]
    threshold_source: str
    chance: "BesideChance | None" = None
    """The headline beside chance; None where nothing can be said."""

    def values(self, key: str) -> Mapping[str, Any]:
        """Return the values of a section; none if the report has no such section."""
        section = self.sections.get(key)
        return {} if section is None else section.values


class Summary(NamedTuple):
    """The lines on what was evaluated and found, and what they claim."""

    lines: tuple[str, ...]
    at_chance: str
    """The reservation that the model is not shown better than chance; empty if it is shown."""
    claims: tuple[Claim, ...]
    trust: MapTrust
    """Whether the maps may be shown as explanations."""
    reservations: tuple[str, ...]
    """What is said against the maps, beside chance and null maps, in sentences."""


def summarise(
    context: Context,
    metrics: Mapping[str, Metric],
    sections: tuple[Section | None, ...],
    *,
    threshold_source: str,
) -> Summary:
    """Return the lines that apply to a report, and what they claim."""
    by_key = {s.key: s for s in sections if s is not None}
    found = Findings(context, metrics, by_key, threshold_source)
    chance = headline_beside_chance(found)
    found = found._replace(chance=chance)
    lines = tuple(line for line in (make(found) for make in LINES) if line)
    trust = _map_trust(found)
    said = f"; {_beside_mean_features(found)}" if _beside_mean_features(found) else ""
    reservations = tuple(
        f"{FAILED[test][0].upper()}{FAILED[test][1:]}{said}."
        for test in trust.failed
        if test is MapTest.MEAN_FEATURES
    )
    return Summary(
        lines, "" if chance is None else chance.reservation, _claims(found), trust, reservations
    )


def _map_trust(found: Findings) -> MapTrust:
    """Collect the tests that model and map have passed, and apply the rule."""
    passed: dict[MapTest, bool | None] = {}
    if found.chance is not None:
        passed[MapTest.CHANCE] = not found.chance.reservation
    if found.context.bootstrap:
        gain = found.values("target").get("gain_over_mean_features")
        passed[MapTest.MEAN_FEATURES] = is_gain(gain)
    comparison = _comparison(found, "shown_map")
    if comparison is not None and comparison.verdict != "undefined":
        passed[MapTest.NULL_MAPS] = comparison.verdict == "better"
    predictions = found.context.predictions
    score = shown_score(predictions)
    faithful = judged_faithfulness(
        measured_gain(found.values("faithfulness"), score=score),
        predictions.metadata.map_score,
        score=score,
        task=found.context.task,
    )
    passed[MapTest.FAITHFULNESS] = faithful.passed
    return map_trust(passed, map=score, validation_drop=faithful.validation_drop)


def _claims(found: Findings) -> tuple[Claim, ...]:
    """Return what the lines of a summary claim."""
    claims = list[Claim | None]()
    if found.chance is not None and not found.chance.reservation:
        claims.append(Claim.BETTER_THAN_CHANCE)
    if any(m.low is not None for m in found.metrics.values()):
        claims.append(Claim.INTERVAL)
    of_bags = found.values("calibration").get("bags")
    if of_bags is not None:
        claims.append(of_bags.values["claim"])
    comparison = _comparison(found, "shown_map")
    if comparison is not None:
        claims.append(comparison.claim)
    doubt = found.values("doubt")
    claims += [part.values["claim"] for k in LEVELS if (part := doubt.get(k)) is not None]
    claims.append((doubt.get("beyond_validation") or {}).get("claim"))
    return tuple(claim for claim in dict.fromkeys(claims) if claim is not None)


LEVELS = ("bags", "instances")


def _parts(context: Context) -> str:
    parts = dict.fromkeys(context.predictions.parts[i] for i in context.rows)
    return " and ".join("validation" if part == "val" else part for part in parts)


def _bags(found: Findings) -> str:
    context, table = found.context, found.context.predictions
    of_class = "{} of class {}" if context.task.has_classes else "{} {}"
    counts = context.task.labels.counts(context.targets, table.class_names)
    classes = ", ".join(of_class.format(n, name) for name, n in counts.items())
    bags = counted(len(context.rows), f"{_parts(context)} bag")
    patients = len(set(context.groups))
    of = f" of {counted(patients, 'patient')}" if patients < len(context.rows) else ""
    second = list(counts)[-1]
    meaning = ""
    if context.task.two_classes and not second.isdecimal():
        meaning = f"; p is that of {second}"
    return f"bags: {bags}{of} ({classes}{meaning})"


def _title(found: Findings, name: str) -> str:
    titles = {m.name: m.title for m in found.context.task.measures}
    return titles.get(name, METRIC_TITLES[name])


def _headline(found: Findings) -> str:
    shown = [name for name in found.context.task.headline if name in found.metrics]
    if not shown:
        return ""
    values = [f"{_title(found, name)} {_value(found.metrics[name])}" for name in shown]
    reasons = [_no_interval(found, found.metrics[name]) for name in shown]
    if len(set(reasons)) > 1:  # each metric has its own
        pairs = zip(values, reasons, strict=True)
        values = [f"{value} ({reason})" if reason else value for value, reason in pairs]
        reasons = [""]
    return ", ".join(values) + (f"; {reasons[0]}" if reasons[0] else "")


def _value(m: Metric) -> str:
    return f"undefined ({m.reason})" if m.value is None else shortened(m.text())


def _no_interval(found: Findings, m: Metric) -> str:
    """Say why a metric has no interval; empty if it has one, or none was asked for."""
    if m.value is None or m.no_interval is None:
        return ""
    return no_interval_text(m.no_interval, unit=_unit(found))


def _metric(found: Findings, m: Metric) -> str:
    why = _no_interval(found, m)
    return f"{_value(m)} ({why})" if why else _value(m)


def _unit(found: Findings) -> str:
    """Return what is resampled, in the singular."""
    context = found.context
    return "patient" if len(set(context.groups)) < len(context.rows) else "bag"


def _few_patients(found: Findings) -> str:
    """Warn of few patients of the rarer class, on whom the headline rests."""
    m = found.metrics.get(found.context.task.headline[0])
    if m is None or m.support is None or not found.context.bootstrap:
        return ""
    if m.support.patients >= FEW_PATIENTS:
        return ""
    part = "" if m.support.part is None else f" {m.support.part}"
    few = counted(m.support.patients, _unit(found))
    return f"warning: only {few}{part}: others may give other results"


class BesideChance(NamedTuple):
    """The headline metric of a model, beside that of predictions by chance."""

    reservation: str
    """What is said unless the 95 % interval lies above chance, also where there is none; empty if
    the model is shown to be better."""


def headline_beside_chance(found: Findings) -> BesideChance | None:
    """Compare the headline with chance; None where nothing was asked for or can be said.

    The validation bags decide only where the metric is undefined in the bags of the report.
    """
    task, context, name = found.context.task, found.context, found.context.task.headline[0]
    which, bags, m, beside = _parts(context), len(context.rows), found.metrics.get(name), ""
    of_means = found.values("target").get("rivals", {}).get(MEAN_RIVAL, {}).get(name)
    if of_means is not None:
        beside = f"; the {MEAN_RIVAL} has {_metric(found, of_means)} on these bags"
    if (m is None or m.value is None) and context.validation.rows:
        of_validation = task.metrics(context.validation.data, context.validation.draws).overall
        which, bags, beside = "validation", len(context.validation.rows), ""
        m = of_validation.get(name)
    if m is None or m.value is None or not context.bootstrap:
        return None
    if is_above(m, task.chance):
        return BesideChance("")
    said = (
        f"{AT_CHANCE}: {_title(found, name)} of the {bags} {which} bags is {_metric(found, m)}, "
        f"and chance has {shortened(f'{task.chance:g}')}{beside}"
    )
    return BesideChance(said)


def is_above(m: Metric, level: float) -> bool:
    """Return whether a metric is shown to be above a level; False if it has no interval."""
    return m.low is not None and m.low > level


def _chance(found: Findings) -> str:
    if found.chance is None or not found.chance.reservation:
        return ""
    return f"warning: {found.chance.reservation} (how intervals are made: docs/targets.md, Metrics)"


def _beside_mean_features(found: Findings) -> str:
    """Return the model's metrics beside those of the mean features; empty if these are unknown."""
    of_means = found.values("target").get("rivals", {}).get(MEAN_RIVAL, {})
    names = dict.fromkeys((found.context.task.headline[0], "nll"))
    both = [(name, found.metrics.get(name), of_means.get(name)) for name in names]
    said = [
        f"{_title(found, name)} {shortened(f'{theirs.value:.3f}')} "
        f"(this model: {shortened(f'{own.value:.3f}')})"
        for name, own, theirs in both
        if own is not None and theirs is not None
        if own.value is not None and theirs.value is not None
    ]
    return f"a linear model of the mean features has {', '.join(said)}" if said else ""


def _mean_features(found: Findings) -> str:
    said = _beside_mean_features(found)
    return f"rival: {said}" if said else ""


def _trust(found: Findings) -> str:
    return f"trust in the maps: {_map_trust(found).sentence}"


def _faithfulness(found: Findings) -> str:
    """Say what removing the highest instances does, where it was measured."""
    values = found.values("faithfulness")
    if not values:
        return ""
    bags, metrics = values["bags"], values["metrics"]
    area, gain = metrics["area_shown"], metrics["gain_over_random"]
    if area.value is None:
        return f"faithfulness: undefined ({area.reason})"
    maps = " and ".join(values["shown"])
    said = f"{maps} map, area between the curves {_metric(found, area)}"
    if gain.value is not None:
        said += f", {_metric(found, gain)} more than for instances in random order"
    return (
        f"faithfulness: {said} ({counted(bags, 'bag')} called positive; 0 means that the order "
        "of the map does not matter)"
    )


def _calls(found: Findings) -> str:
    said, rule = found.context.task.calls(found.context.data), found.threshold_source
    if not said or found.context.threshold is not None:
        return said and f"threshold: {rule}; {said}"
    return f"calls: {said}" + (f" ({rule.removeprefix('none: ')})" if rule else "")


def _calibration(found: Findings) -> str:
    of_bags = found.values("calibration").get("bags")
    if of_bags is None or of_bags.values["ece_adaptive"].value is None:
        return ""
    verdict: CalibrationVerdict = of_bags.values["verdict"]
    unit = _unit(found)
    if not verdict.judged:
        few = f"{counted(verdict.patients, unit)}; it takes {FEWEST_CALIBRATED}"
        if verdict.rarer is not None and verdict.rarer < FEWEST_PATIENTS:
            rarer = counted(verdict.rarer, unit)
            few = f"{rarer} of the rarer class; it takes {FEWEST_PATIENTS}"
        return f"calibration: cannot be judged on {few}"
    ece, usual, limit = (
        of_bags.values[k] for k in ("ece_adaptive", "ece_by_chance", "ece_by_chance_98")
    )
    shown = "within what chance gives"
    if verdict.miscalibrated:
        shown = "more than chance explains: train with temperature_scaling if you use them"
    return (
        f"calibration: probabilities and observed frequencies differ by {ece.value:.0%} on "
        f"average; on so few bags, chance alone gives {usual:.0%}, and more than {limit:.0%} once "
        f"in fifty times: {shown}"
    )


def _surest(found: Findings) -> str:
    of_bags = found.values("doubt").get("bags")
    if of_bags is None or "margin" not in of_bags.values["retention"]["curves"]:
        return ""
    curve = of_bags.values["retention"]["curves"]["margin"]
    half = curve.error_rate[of_bags.values["retention"]["shares"].index(0.5)]
    return (
        f"wrong calls: {of_bags.values['error_rate'].value:.0%}; {half:.0%} in the half of the "
        "bags whose probability is furthest from the threshold"
    )


def _comparison(found: Findings, which: Literal["own_map", "shown_map"]) -> NullComparison | None:
    """Return the model's own map, or the one that its maps show, beside null maps."""
    within = found.values("within_bags")
    by_map = {comparison.map: comparison for comparison in within.get("comparisons", ())}
    return by_map.get(within.get(which, ""))


def _map(found: Findings) -> str:
    comparison = _comparison(found, "shown_map")
    return "" if comparison is None else f"map: {comparison.sentence}"


def _instances(found: Findings) -> str:
    within = found.values("within_bags")
    name = within.get("shown_map", "")
    top = _top_instance(found, name)
    if not top:
        return ""
    dice = _dice(found) if name == within["own_map"] else ""
    return f"instances: {top} by the {name} map{dice}"


def _own_map(found: Findings) -> str:
    """Say what the model's own score finds, where maps show another score."""
    own = _comparison(found, "own_map")
    if own is None or own.map == found.values("within_bags")["shown_map"]:
        return ""
    top = _top_instance(found, own.map)
    said = own.sentence.removesuffix(".") + (f"; {top}" if top else "")
    return f"model's own score: {said}{_dice(found)}"


def _top_instance(found: Findings, name: str) -> str:
    """Say how often the highest instance of a map is positive; empty if that is undefined."""
    top = found.values("within_bags").get("maps", {}).get(name, {}).get("pointing_game")
    if top is None or top.value is None:
        return ""
    return f"the top one is positive in {top.value:.0%}{_percent(top)} of positive bags"


def _dice(found: Findings) -> str:
    """Say how well the calls of instances are, which come from the model's own score."""
    within = found.values("within_bags")
    dice = within["maps"][within["own_map"]].get("dice")
    if dice is None or dice.value is None:
        return ""
    calls = within["at_threshold"].items()
    more = "".join(f", {name} {m.value:.2f}" for name, m in calls if m.value is not None)
    return f"; Dice {_metric(found, dice)}{shortened(more)}"


def _instance_probability(found: Findings) -> str:
    """Say how far the probabilities of instances are off, where instance labels tell."""
    of_instances = found.values("calibration").get("instances")
    if of_instances is None:
        return ""
    ece = of_instances.values["ece_adaptive"]
    nll = _metric(found, of_instances.values["nll"])
    return (
        f"probability of instances: off by {ece.value:.0%}{_percent(ece)} on average in positive "
        f"bags; negative log-likelihood {nll}"
    )


def _percent(m: Metric) -> str:
    return "" if m.low is None or m.high is None else f" [{m.low:.0%}, {m.high:.0%}]"


def _doubt(found: Findings) -> str:
    """Say that P(wrong) finds wrong calls, where it does better than the margin."""
    parts = (found.values("doubt").get(k) for k in ("bags", "instances"))
    better = [
        p.values["verdict"]
        for p in parts
        if p is not None and p.values["claim"] is Claim.DOUBT_IS_BETTER
    ]
    return shortened(f"doubt: {' '.join(better)}") if better else ""


def _patients(found: Findings) -> str:
    values = found.values("patients")
    if not values:
        return ""
    name = found.context.task.headline[0]
    m = values["metrics"].get(name)
    said = f"patients: {values['patients']} with {counted(values['slides'], 'bag')}"
    if m is None:
        return f"{said}: {values['reason']}"
    if m.value is None and found.context.task.has_classes:
        y = found.context.y
        positive = {g for g, v in zip(found.context.groups, y, strict=True) if v > 0}
        if len(positive) == values["patients"]:
            return (
                f"{said}: {_title(found, name)} is undefined, as every patient has a positive bag"
            )
    headline = f"{_title(found, name)} {_metric(found, m)}"
    return f"{said}, the mean over the bags of each: {headline}"


def _unlike(found: Findings) -> str:
    beyond = found.values("doubt").get("beyond_validation")
    if beyond is None or beyond["claim"] is None:
        return ""
    expected = beyond["expected"]
    chance = "" if expected is None else f"; {expected:.1f} are expected by chance"
    unit = "patient" if beyond["patients"] < beyond["bags"] else "bag"
    return (
        f"unlike training: {beyond['patients_beyond']} of {counted(beyond['patients'], unit)} "
        f"(column ood of predictions.csv is 1){chance}"
    )


LINES: tuple[Callable[[Findings], str], ...] = (
    _bags,
    _headline,
    _mean_features,
    _chance,
    _few_patients,
    _calls,
    _calibration,
    _surest,
    _map,
    _faithfulness,
    _trust,
    _instances,
    _own_map,
    _instance_probability,
    _doubt,
    _patients,
    _unlike,
)
"""In the order of the text; each returns a line, or nothing where it does not apply."""
