"""The dozen lines that answer what a reader of a report asks first.

How good is the model, where is its threshold, how sure may one be of it, and is its map right?
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ...core import counted
from ...statistics import Metric
from ...tasks import MEAN_RIVAL
from ..context import Context
from ..section import Section
from ..words import METRIC_TITLES, shortened

FEW_GROUPS = 10
"""With fewer groups than this, intervals say too little to stand without a remark."""
FEW_CALIBRATED = 20
"""With fewer bags than this, the error of probabilities is mostly noise."""
AT_CHANCE = "warning: not shown better than chance"


class Findings(NamedTuple):
    """What the lines are about."""

    context: Context
    metrics: Mapping[str, Metric]
    sections: Mapping[str, Section]
    threshold_source: str

    def values(self, key: str) -> Mapping[str, Any]:
        """Return the values of a section; none if the report has no such section."""
        section = self.sections.get(key)
        return {} if section is None else section.values


def summary_lines(
    context: Context,
    metrics: Mapping[str, Metric],
    sections: tuple[Section | None, ...],
    *,
    threshold_source: str,
) -> tuple[str, ...]:
    """Return the lines on what was evaluated and found, without those that do not apply."""
    by_key = {s.key: s for s in sections if s is not None}
    found = Findings(context, metrics, by_key, threshold_source)
    return tuple(line for line in (make(found) for make in LINES) if line)


def at_chance(reservations: Iterable[str]) -> str:
    """Return the one of a run's reservations that says that it is not better than chance, or ""."""
    words = AT_CHANCE.removeprefix("warning: ")
    return next((said for said in reservations if words in said), "")


def _parts(context: Context) -> str:
    parts = dict.fromkeys(context.predictions.parts[i] for i in context.rows)
    return " and ".join("validation" if part == "val" else part for part in parts)


def _bags(found: Findings) -> str:
    context, table = found.context, found.context.predictions
    of_class = "{} of class {}" if context.task.has_classes else "{} {}"
    counts = context.task.labels.counts(context.targets, table.class_names)
    classes = ", ".join(of_class.format(n, name) for name, n in counts.items())
    bags = f"{len(context.rows)} {_parts(context)} bags"
    patients = len(set(context.groups))
    of = f" of {counted(patients, 'patient')}" if patients < len(context.rows) else ""
    return f"bags: {bags}{of} ({classes})"


def _title(found: Findings, name: str) -> str:
    titles = {m.name: m.title for m in found.context.task.measures}
    return titles.get(name, METRIC_TITLES[name])


def _headline(found: Findings) -> str:
    return ", ".join(
        f"{_title(found, name)} {_metric(found.metrics[name])}"
        for name in found.context.task.headline
        if name in found.metrics
    )


def _metric(m: Metric) -> str:
    return f"undefined ({m.reason})" if m.value is None else shortened(m.text())


def _groups(found: Findings) -> str:
    groups = len(set(found.context.groups))
    if groups >= FEW_GROUPS or not found.context.bootstrap:
        return ""
    of = "patients" if groups < len(found.context.rows) else "bags"
    return f"warning: only {groups} {of}, so the intervals are too narrow to rely on"


def _chance(found: Findings) -> str:
    """Say whether the headline is shown to be better than that of predictions by chance.

    The validation bags decide only where the bags of the report cannot.
    """
    task, context, name = found.context.task, found.context, found.context.task.headline[0]
    which, bags, m, beside = _parts(context), len(context.rows), found.metrics.get(name), ""
    of_means = found.values("target").get("rivals", {}).get(MEAN_RIVAL, {}).get(name)
    if of_means is not None:
        beside = f"; the {MEAN_RIVAL} has {_metric(of_means)} on these bags"
    if (m is None or m.low is None) and context.validation.rows:
        of_validation = task.metrics(context.validation.data, context.validation.draws).overall
        which, bags, beside = "validation", len(context.validation.rows), ""
        m = of_validation.get(name)
    if m is None or m.low is None or m.low > task.chance:
        return ""
    return (
        f"{AT_CHANCE}: {_title(found, name)} of the {bags} {which} bags is {_metric(m)}, and "
        f"chance has {shortened(f'{task.chance:g}')}{beside}"
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
    ece, usual, limit = (
        of_bags.values[k] for k in ("ece_adaptive", "ece_by_chance", "ece_by_chance_95")
    )
    if (bags := of_bags.values["items"]) < FEW_CALIBRATED:
        return f"calibration: cannot be judged on {counted(bags, 'bag')}; it takes {FEW_CALIBRATED}"
    verdict = "miscalibrated" if ece.value > limit else "no miscalibration can be shown"
    return (
        f"calibration: probabilities are off by {ece.value:.0%} on average; calibrated ones "
        f"would be by {usual:.0%}, rarely by more than {limit:.0%}: {verdict}"
    )


def _surest(found: Findings) -> str:
    of_bags = found.values("doubt").get("bags")
    if of_bags is None or "margin" not in of_bags.values["retention"]["curves"]:
        return ""
    curve = of_bags.values["retention"]["curves"]["margin"]
    half = curve.error_rate[of_bags.values["retention"]["shares"].index(0.5)]
    return (
        f"surest half: {half:.0%} of the calls with the largest margin are wrong, of all "
        f"{of_bags.values['error_rate'].value:.0%}"
    )


def _map(found: Findings) -> str:
    comparisons = found.values("within_bags").get("comparisons", ())
    return f"map: {comparisons[-1].sentence}" if comparisons else ""


def _instances(found: Findings) -> str:
    maps = found.values("within_bags").get("maps", {})
    of_own, of_shown = next(iter(maps.values()), {}), next(reversed(maps.values()), {})
    top, dice = of_shown.get("pointing_game"), of_own.get("dice")
    if top is None or top.value is None:
        return ""
    said = f"instances: the top one is positive in {top.value:.0%}{_percent(top)} of positive bags"
    if dice is None or dice.value is None:
        return said
    at = found.values("within_bags")["at_threshold"]
    more = "".join(f", {k} {m.value:.2f}" for k, m in at.items() if m.value is not None)
    return f"{said}; Dice {_metric(dice)}{shortened(more)}"


def _percent(m: Metric) -> str:
    return "" if m.low is None or m.high is None else f" [{m.low:.0%}, {m.high:.0%}]"


def _doubt(found: Findings) -> str:
    """Say that P(wrong) finds wrong calls, where it does better than the margin."""
    parts = (found.values("doubt").get(k) for k in ("bags", "instances"))
    better = [
        p.values["verdict"]
        for p in parts
        if p is not None and (p.values["doubt_gain"].low or 0) > 0
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
    return f"{said}, the mean over the bags of each: {_title(found, name)} {_metric(m)}"


def _unlike(found: Findings) -> str:
    beyond = found.values("doubt").get("beyond_validation")
    if beyond is None or not beyond["beyond"]:
        return ""
    expected = beyond["expected"]
    chance = "" if expected is None else f"; {expected:.1f} are expected by chance"
    return (
        f"unlike training: {beyond['beyond']} of {counted(beyond['bags'], 'bag')} (column "
        f"ood of predictions.csv is 1){chance}"
    )


LINES: tuple[Callable[[Findings], str], ...] = (
    _bags,
    _headline,
    _chance,
    _groups,
    _calls,
    _calibration,
    _surest,
    _map,
    _instances,
    _doubt,
    _patients,
    _unlike,
)
"""In the order of the text; each returns a line, or nothing where it does not apply."""
