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
Level = Literal["bags", "instances"]
LEVELS: tuple[Level, ...] = ("bags", "instances")
"""The parts of the sections on doubt and calibration."""


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

    def part(self, key: str, level: Level) -> Section | None:
        """Return the part of a section on bags or on instances; None if there is none."""
        section = self.sections.get(key)
        return None if section is None else section.parts.get(level)


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
    by_key = {section.key: section for section in sections if section is not None}
    findings = Findings(context, metrics, by_key, threshold_source)
    chance = headline_beside_chance(findings)
    findings = findings._replace(chance=chance)
    lines = [line_of(findings) for line_of in LINES]
    trust = _map_trust(findings)
    reservations: tuple[str, ...] = ()
    if MapTest.MEAN_FEATURES in trust.failed:
        reservations = (_mean_features_reservation(findings),)
    return Summary(
        lines=tuple(line for line in lines if line),
        at_chance="" if chance is None else chance.reservation,
        claims=_claims(findings),
        trust=trust,
        reservations=reservations,
    )


def _mean_features_reservation(findings: Findings) -> str:
    """Say that the model is not shown better than the mean features."""
    failure = FAILED[MapTest.MEAN_FEATURES]
    sentence = failure[0].upper() + failure[1:]
    values = _beside_mean_features(findings)
    return f"{sentence}; {values}." if values else f"{sentence}."


def _map_trust(findings: Findings) -> MapTrust:
    """Collect the tests that model and map have passed, and apply the rule."""
    passed: dict[MapTest, bool | None] = {}
    if findings.chance is not None:
        passed[MapTest.CHANCE] = not findings.chance.reservation
    if findings.context.bootstrap:
        over_mean_features = findings.values("target").get("gain_over_mean_features")
        gain = None if over_mean_features is None else over_mean_features.gain
        passed[MapTest.MEAN_FEATURES] = is_gain(gain)
    comparison = _comparison(findings, "shown_map")
    if comparison is not None and comparison.verdict != "undefined":
        passed[MapTest.NULL_MAPS] = comparison.verdict == "better"
    predictions = findings.context.predictions
    score = shown_score(predictions)
    faithful = judged_faithfulness(
        measured_gain(findings.values("faithfulness"), score=score),
        predictions.metadata.map_score,
        score=score,
        task=findings.context.task,
    )
    passed[MapTest.FAITHFULNESS] = faithful.passed
    return map_trust(passed, map=score, validation_drop=faithful.validation_drop)


def _claims(findings: Findings) -> tuple[Claim, ...]:
    """Return what the lines of a summary claim."""
    claims: list[Claim | None] = []
    if findings.chance is not None and not findings.chance.reservation:
        claims.append(Claim.BETTER_THAN_CHANCE)
    if any(m.low is not None for m in findings.metrics.values()):
        claims.append(Claim.INTERVAL)
    calibration = findings.part("calibration", "bags")
    if calibration is not None:
        claims.append(calibration.values["claim"])
    comparison = _comparison(findings, "shown_map")
    if comparison is not None:
        claims.append(comparison.claim)
    for level in LEVELS:
        doubt = findings.part("doubt", level)
        if doubt is not None:
            claims.append(doubt.values["claim"])
    beyond = findings.values("doubt").get("beyond_validation")
    if beyond is not None:
        claims.append(beyond["claim"])
    return tuple(claim for claim in dict.fromkeys(claims) if claim is not None)


def _parts(context: Context) -> str:
    parts = dict.fromkeys(context.predictions.parts[i] for i in context.rows)
    return " and ".join("validation" if part == "val" else part for part in parts)


def _bags(findings: Findings) -> str:
    context = findings.context
    counts = context.task.labels.counts(context.targets, context.predictions.class_names)
    template = "{} of class {}" if context.task.has_classes else "{} {}"
    classes = ", ".join(template.format(count, name) for name, count in counts.items())
    bags = counted(len(context.rows), f"{_parts(context)} bag")
    patients = len(set(context.groups))
    if patients < len(context.rows):
        bags += f" of {counted(patients, 'patient')}"
    positive_class = list(counts)[-1]
    if context.task.two_classes and not positive_class.isdecimal():
        classes += f"; p is that of {positive_class}"
    return f"bags: {bags} ({classes})"


def _title(findings: Findings, name: str) -> str:
    titles = {measure.name: measure.title for measure in findings.context.task.measures}
    return titles.get(name, METRIC_TITLES[name])


def _headline(findings: Findings) -> str:
    metrics = {
        _title(findings, name): findings.metrics[name]
        for name in findings.context.task.headline
        if name in findings.metrics
    }
    reasons = {_no_interval(findings, m) for m in metrics.values()}
    if len(reasons) > 1:  # each metric has its own
        return ", ".join(f"{title} {_metric(findings, m)}" for title, m in metrics.items())
    values = ", ".join(f"{title} {_value(m)}" for title, m in metrics.items())
    reason = "".join(reasons)
    return f"{values}; {reason}" if reason else values


def _value(m: Metric) -> str:
    return f"undefined ({m.reason})" if m.value is None else shortened(m.text())


def _no_interval(findings: Findings, m: Metric) -> str:
    """Say why a metric has no interval; empty if it has one, or none was asked for."""
    if m.value is None or m.no_interval is None:
        return ""
    return no_interval_text(m.no_interval, unit=_unit(findings))


def _metric(findings: Findings, m: Metric) -> str:
    reason = _no_interval(findings, m)
    return f"{_value(m)} ({reason})" if reason else _value(m)


def _unit(findings: Findings) -> str:
    """Return what is resampled, in the singular."""
    context = findings.context
    return "patient" if len(set(context.groups)) < len(context.rows) else "bag"


def _few_patients(findings: Findings) -> str:
    """Warn of few patients of the rarer class, on whom the headline rests."""
    m = findings.metrics.get(findings.context.task.headline[0])
    if m is None or m.support is None or not findings.context.bootstrap:
        return ""
    if m.support.patients >= FEW_PATIENTS:
        return ""
    part = "" if m.support.part is None else f" {m.support.part}"
    few = counted(m.support.patients, _unit(findings))
    return f"warning: only {few}{part}: others may give other results"


class BesideChance(NamedTuple):
    """The headline metric of a model, beside that of predictions by chance."""

    reservation: str
    """What is said unless the 95 % interval lies above chance, also where there is none; empty if
    the model is shown to be better."""


def headline_beside_chance(findings: Findings) -> BesideChance | None:
    """Compare the headline with chance; None where nothing was asked for or can be said.

    The validation bags decide only where the metric is undefined in the bags of the report.
    """
    context = findings.context
    name = context.task.headline[0]
    m = findings.metrics.get(name)
    bags = f"{len(context.rows)} {_parts(context)} bags"
    rival = ""
    rival_metric = _mean_features_metrics(findings).get(name)
    if rival_metric is not None:
        rival = f"; the {MEAN_RIVAL} has {_metric(findings, rival_metric)} on these bags"
    if (m is None or m.value is None) and context.validation.rows:
        validation = context.validation
        m = context.task.metrics(validation.data, validation.draws).overall.get(name)
        bags = f"{len(validation.rows)} validation bags"
        rival = ""
    if m is None or m.value is None or not context.bootstrap:
        return None
    level = context.task.chance
    if m.is_above(level):
        return BesideChance("")
    return BesideChance(
        f"{AT_CHANCE}: {_title(findings, name)} of the {bags} is {_metric(findings, m)}, "
        f"and chance has {shortened(f'{level:g}')}{rival}"
    )


def _chance(findings: Findings) -> str:
    chance = findings.chance
    if chance is None or not chance.reservation:
        return ""
    return f"warning: {chance.reservation} (how intervals are made: docs/targets.md, Metrics)"


def _mean_features_metrics(findings: Findings) -> Mapping[str, Metric]:
    """Return the metrics of the linear model of the mean features; none if they are not known."""
    return findings.values("target").get("rivals", {}).get(MEAN_RIVAL, {})


def _beside_mean_features(findings: Findings) -> str:
    """Return the model's metrics beside those of the mean features; empty if these are unknown."""
    rival_metrics = _mean_features_metrics(findings)
    values = []
    for name in dict.fromkeys((findings.context.task.headline[0], "nll")):
        m = findings.metrics.get(name)
        rival = rival_metrics.get(name)
        if m is None or rival is None or m.value is None or rival.value is None:
            continue
        values.append(
            f"{_title(findings, name)} {shortened(f'{rival.value:.3f}')} "
            f"(this model: {shortened(f'{m.value:.3f}')})"
        )
    return f"a linear model of the mean features has {', '.join(values)}" if values else ""


def _mean_features(findings: Findings) -> str:
    values = _beside_mean_features(findings)
    return f"rival: {values}" if values else ""


def _trust(findings: Findings) -> str:
    return f"trust in the maps: {_map_trust(findings).sentence}"


def _faithfulness(findings: Findings) -> str:
    """Say what removing the highest instances does, where it was measured."""
    values = findings.values("faithfulness")
    if not values:
        return ""
    area = values["metrics"]["area_shown"]
    gain = values["metrics"]["gain_over_random"]
    if area.value is None:
        return f"faithfulness: undefined ({area.reason})"
    maps = " and ".join(values["shown"])
    areas = f"{maps} map, area between the curves {_metric(findings, area)}"
    if gain.value is not None:
        areas += f", {_metric(findings, gain)} more than for instances in random order"
    bags = counted(values["bags"], "bag")
    return (
        f"faithfulness: {areas} ({bags} called positive; 0 means that the order of the map does "
        "not matter)"
    )


def _calls(findings: Findings) -> str:
    context = findings.context
    calls = context.task.calls(context.data)
    if not calls:
        return ""
    if context.threshold is not None:
        return f"threshold: {findings.threshold_source}; {calls}"
    rule = context.task.words.call_rule
    return f"calls: {calls} ({rule})" if rule else f"calls: {calls}"


def _calibration(findings: Findings) -> str:
    calibration = findings.part("calibration", "bags")
    if calibration is None or calibration.values["ece_adaptive"].value is None:
        return ""
    verdict: CalibrationVerdict = calibration.values["verdict"]
    unit = _unit(findings)
    if not verdict.judged:
        few = f"{counted(verdict.patients, unit)}; it takes {FEWEST_CALIBRATED}"
        if verdict.rarer is not None and verdict.rarer < FEWEST_PATIENTS:
            rarer = counted(verdict.rarer, unit)
            few = f"{rarer} of the rarer class; it takes {FEWEST_PATIENTS}"
        return f"calibration: cannot be judged on {few}"
    ece: Metric = calibration.values["ece_adaptive"]
    usual: float = calibration.values["ece_by_chance"]
    limit: float = calibration.values["ece_by_chance_98"]
    judgement = "within what chance gives"
    if verdict.miscalibrated:
        judgement = "more than chance explains: train with temperature_scaling if you use them"
    return (
        f"calibration: probabilities and observed frequencies differ by {ece.value:.0%} on "
        f"average; on so few bags, chance alone gives {usual:.0%}, and more than {limit:.0%} once "
        f"in fifty times: {judgement}"
    )


def _surest(findings: Findings) -> str:
    doubt = findings.part("doubt", "bags")
    if doubt is None or "margin" not in doubt.values["retention"]["curves"]:
        return ""
    retention = doubt.values["retention"]
    half = retention["curves"]["margin"].error_rate[retention["shares"].index(0.5)]
    return (
        f"wrong calls: {doubt.values['error_rate'].value:.0%}; {half:.0%} in the half of the "
        "bags whose probability is furthest from the threshold"
    )


def _comparison(
    findings: Findings, which: Literal["own_map", "shown_map"]
) -> NullComparison | None:
    """Return the model's own map, or the one that its maps show, beside null maps."""
    within = findings.values("within_bags")
    by_map = {comparison.map: comparison for comparison in within.get("comparisons", ())}
    return by_map.get(within.get(which, ""))


def _map(findings: Findings) -> str:
    comparison = _comparison(findings, "shown_map")
    return "" if comparison is None else f"map: {comparison.sentence}"


def _instances(findings: Findings) -> str:
    within = findings.values("within_bags")
    name = within.get("shown_map", "")
    top = _top_instance(findings, name)
    if not top:
        return ""
    dice = _dice(findings) if name == within["own_map"] else ""
    return f"instances: {top} by the {name} map{dice}"


def _own_map(findings: Findings) -> str:
    """Say what the model's own score finds, where maps show another score."""
    comparison = _comparison(findings, "own_map")
    if comparison is None or comparison.map == findings.values("within_bags")["shown_map"]:
        return ""
    top = _top_instance(findings, comparison.map)
    statement = f"{comparison.statement}; {top}" if top else comparison.statement
    return f"model's own score: {statement}{_dice(findings)}"


def _top_instance(findings: Findings, name: str) -> str:
    """Say how often the highest instance of a map is positive; empty if that is undefined."""
    top = findings.values("within_bags").get("maps", {}).get(name, {}).get("pointing_game")
    if top is None or top.value is None:
        return ""
    return f"the top one is positive in {top.value:.0%}{_percent(top)} of positive bags"


def _dice(findings: Findings) -> str:
    """Say how well the calls of instances are, which come from the model's own score."""
    within = findings.values("within_bags")
    dice = within["maps"][within["own_map"]].get("dice")
    if dice is None or dice.value is None:
        return ""
    metrics = within["at_threshold"].items()
    others = "".join(f", {name} {m.value:.2f}" for name, m in metrics if m.value is not None)
    return f"; Dice {_metric(findings, dice)}{shortened(others)}"


def _instance_probability(findings: Findings) -> str:
    """Say how far the probabilities of instances are off, where instance labels tell."""
    calibration = findings.part("calibration", "instances")
    if calibration is None:
        return ""
    ece = calibration.values["ece_adaptive"]
    nll = _metric(findings, calibration.values["nll"])
    return (
        f"probability of instances: off by {ece.value:.0%}{_percent(ece)} on average in positive "
        f"bags; negative log-likelihood {nll}"
    )


def _percent(m: Metric) -> str:
    return "" if m.low is None or m.high is None else f" [{m.low:.0%}, {m.high:.0%}]"


def _doubt(findings: Findings) -> str:
    """Say that P(wrong) finds wrong calls, where it does better than the margin."""
    verdicts = []
    for level in LEVELS:
        doubt = findings.part("doubt", level)
        if doubt is not None and doubt.values["claim"] is Claim.DOUBT_IS_BETTER:
            verdicts.append(doubt.values["verdict"])
    return shortened(f"doubt: {' '.join(verdicts)}") if verdicts else ""


def _patients(findings: Findings) -> str:
    values = findings.values("patients")
    if not values:
        return ""
    context = findings.context
    name = context.task.headline[0]
    m = values["metrics"].get(name)
    patients = f"patients: {values['patients']} with {counted(values['slides'], 'bag')}"
    if m is None:
        return f"{patients}: {values['reason']}"
    title = _title(findings, name)
    if m.value is None and context.task.has_classes:
        bags = zip(context.groups, context.y, strict=True)
        positive = {group for group, y in bags if y > 0}
        if len(positive) == values["patients"]:
            return f"{patients}: {title} is undefined, as every patient has a positive bag"
    return f"{patients}, the mean over the bags of each: {title} {_metric(findings, m)}"


def _unlike(findings: Findings) -> str:
    beyond = findings.values("doubt").get("beyond_validation")
    if beyond is None or beyond["claim"] is None:
        return ""
    unit = "patient" if beyond["patients"] < beyond["bags"] else "bag"
    expected = beyond["expected"]
    chance = "" if expected is None else f"; {expected:.1f} are expected by chance"
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
