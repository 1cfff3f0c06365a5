"""The section on doubt: which scores find wrong calls of bags and of instances."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from rich.table import Table as Grid
from scipy.special import entr, ndtr

from ...core import counted
from ...statistics import (
    SHARES,
    Draws,
    Metric,
    RetentionCurve,
    augrc,
    retention_curve,
)
from ..context import SEEN, Context
from ..instances.measures import POSITIVE_BAGS, detection, detector, generalised_risk
from ..instances.table import (
    NO_CALLS,
    NO_DISTANCE,
    NO_INSTANCE_LABELS,
    NO_VARIANCE,
    ONE_MODEL,
    InstanceTable,
)
from ..instances.verdicts import margin_verdict
from ..scores import distance_ratio
from ..section import Line, Panel, Section
from ..words import BAG_DETECTORS, INSTANCE_DETECTORS, NULL_DETECTORS, OF_SEVERAL_CLASSES

CURVE_RESAMPLES = 200
"""Upper limit of the resamples of a retention curve."""
NULL = " (null)"
SHOWN_SHARES = (0.5, 0.8)
"""The shares of the kept items whose error rate the text of a report shows."""
SYMBOLS_OF_BAGS = (
    "P(wrong) = Φ(−|p − t|/s) with the probability p, the threshold t and the standard deviation s."
)
SYMBOLS_OF_INSTANCES = (
    "P(wrong) = Φ(−|e|/σ) with the evidence e, which is the distance of the score from its "
    "threshold, and its standard deviation σ; w is the weight in the bag."
)
SEVERAL_CLASSES = "it needs two classes"
DISTANCE_VALIDATION_BAGS = "distance_validation_bags"
"""The entry of predictions.json with the number of bags that `ood` compares with."""

Scores = Mapping[str, "Float[np.ndarray, ' n'] | str"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """How well several scores find wrong calls, of bags or of instances."""

    what: str
    """What is called: bags, or the instances that are judged."""
    titles: Mapping[str, str]
    """The title of each detector that is shown."""
    items: int
    error_rate: Metric
    """Also the error rate of any share of the calls that is kept at random."""
    auroc: Mapping[str, Metric]
    """By detector, as the metrics and curves below."""
    augrc: Mapping[str, Metric]
    gain: Metric
    """AUROC of P(wrong) minus that of the margin, with an interval that holds for few groups."""
    curves: Mapping[str, RetentionCurve] = field(default_factory=dict)
    """Detectors without an AUROC have no curve."""

    @classmethod
    def of(
        cls,
        wrong: Bool[np.ndarray, " n"],
        scores: Scores,
        *,
        draws: Draws,
        what: str,
        titles: Mapping[str, str],
    ) -> "Detections":
        """Return how well each score finds the wrong calls.

        Args:
            wrong: whether each call is wrong; at least one item.
            scores: by detector, high where a call is doubtful, or the reason why there is none.
            draws: resamples of these items.
            what: the items in the plural, for reasons and titles.
            titles: the title of each detector.
        """
        rate = Metric.of(draws.ratio(wrong, np.ones_like(wrong)))
        area = {k: detection(wrong, s, draws=draws, what=what) for k, s in scores.items()}
        fewer = Draws(counts=draws.counts[: CURVE_RESAMPLES + 1], member=draws.member)
        return cls(
            what=what,
            titles=titles,
            items=len(wrong),
            error_rate=rate,
            auroc=area,
            augrc={k: generalised_risk(rate, m) for k, m in area.items()},
            gain=(area["doubt"] - area["margin"]).student(groups=len(np.unique(draws.member))),
            curves={
                k: retention_curve(wrong, s, draws=fewer)
                for k, s in scores.items()
                if not isinstance(s, str) and area[k].value is not None
            },
        )

    @property
    def random(self) -> dict[str, float] | None:
        """The exact metrics of a random order; None if errors cannot be ranked."""
        rate = self.error_rate.value
        if rate is None or not 0 < rate < 1:
            return None
        return {"error_auroc": 0.5, "augrc": augrc(rate, 0.5)}

    @property
    def verdict(self) -> str:
        """One sentence that says whether P(wrong) finds wrong calls better than the margin."""
        return margin_verdict(self.auroc["doubt"], self.auroc["margin"], self.gain, what=self.what)

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "of": self.what,
            "items": self.items,
            "error_rate": self.error_rate.to_dict(),
            "error_auroc": {name: m.to_dict() for name, m in self.auroc.items()},
            "augrc": {name: m.to_dict() for name, m in self.augrc.items()},
            "random_order": self.random,
            "doubt_gain": self.gain.to_dict(),
            "verdict": self.verdict,
            "retention": {
                "shares": list(SHARES),
                "random": self.error_rate.value,
                "curves": {name: asdict(curve) for name, curve in self.curves.items()},
            },
        }

    def text(self) -> list[Grid | str]:
        """Return the table of the detectors, why others are undefined, and the verdict."""
        rate = "" if self.error_rate.value is None else f", {self.error_rate.value:.1%} wrong"
        heading = f"doubt: {self.items} {self.what}{rate}"
        known = {k: t for k, t in self.titles.items() if self.auroc[k].value is not None}
        parts: list[Grid | str] = [self._grid(heading, known) if known else heading]
        by_reason: dict[str, list[str]] = {}
        for name, title in self.titles.items():
            if name not in known:
                reason = self.auroc[name].reason or ""
                by_reason.setdefault(reason, []).append(title.removesuffix(NULL))
        if by_reason:
            reasons = (f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
            parts.append(f"Undefined: {'; '.join(reasons)}.")
        return [*parts, self.verdict]

    def _grid(self, heading: str, titles: Mapping[str, str]) -> Grid:
        grid = Grid(title=heading, title_justify="left")
        grid.add_column("wrong calls found by")
        grid.add_column("AUROC", justify="right", no_wrap=True)
        grid.add_column("95 % interval")
        grid.add_column("AUGRC", justify="right", no_wrap=True)
        for share in SHOWN_SHARES:
            grid.add_column(f"wrong of {share:.0%} kept", justify="right")
        for name, title in titles.items():
            m, kept = self.auroc[name], self.curves[name].error_rate
            rates = [f"{kept[SHARES.index(share)]:.1%}" for share in SHOWN_SHARES]
            value = f"{m.value:.3f}"
            grid.add_row(title, value, m.span(before=""), f"{self.augrc[name].value:.4f}", *rates)
        if self.random is not None:
            kept_at_random = [f"{2 * self.random['augrc']:.1%}"] * len(SHOWN_SHARES)
            values = (f"{self.random['error_auroc']:.3f}", "exact", f"{self.random['augrc']:.4f}")
            grid.add_row(f"random order{NULL}", *values, *kept_at_random)
        return grid

    def panel(self) -> Panel:
        """Return the retention curves: error rates of the calls that are kept."""
        lines = []
        for name in (n for n in self.titles if n in self.curves):
            curve, main = self.curves[name], name == "doubt"
            style = "main" if main else "null" if name in NULL_DETECTORS else "plain"
            lines.append(
                Line(
                    name=name,
                    x=[100 * share for share in SHARES],
                    y=[100 * rate for rate in curve.error_rate],
                    label=self.titles[name] + (" and its 95 % interval" if main else ""),
                    low=_percent(curve.low) if main else None,
                    high=_percent(curve.high) if main else None,
                    style=style,
                )
            )
        return Panel(
            title=f"{self.items} {self.what}",
            x="calls kept, least doubtful first (%)",
            y="wrong among the kept calls (%)",
            lines=lines,
            xlim=(0.0, 100.0),
            level=(100 * (self.error_rate.value or 0.0), "random order (null)"),
        )


def _percent(limits: Sequence[float | None]) -> list[float | None]:
    return [None if v is None else 100 * v for v in limits]


def doubt_section(context: Context, table: InstanceTable | None) -> Section:
    """Return the detectors of wrong calls of bags, and of instances of positive bags."""
    bags = _bags(context)
    instances = _instances(context, table)
    beyond = _beyond_validation(context)
    text = bags.text()
    if bags.auroc["doubt"].reason != SEVERAL_CLASSES:
        text.append(SYMBOLS_OF_BAGS)
    if beyond is not None:
        text.append(_sentence(beyond))
    if not isinstance(instances, str):
        text += [*instances.text(), SYMBOLS_OF_INSTANCES]
    found = [bags] if isinstance(instances, str) else [bags, instances]
    panels = [d.panel() for d in found if d.curves]
    return Section(
        key="doubt",
        values={
            "bags": bags,
            "instances": None if isinstance(instances, str) else instances,
            "instances_reason": instances if isinstance(instances, str) else None,
            "beyond_validation": beyond,
        },
        text=text,
        figure=("retention", panels) if panels else None,
    )


def bag_detectors(context: Context) -> tuple[Bool[np.ndarray, " bags"], Scores]:
    """Return whether the call of each bag is wrong, and the scores that should find out."""
    p, table, rows = context.p, context.predictions, list(context.rows)
    two_classes = p.shape[1] == 2
    called = context.task.calls(p, context.threshold)
    margin = context.task.margins(p, context.threshold)

    def deviation(value: np.ndarray | None, *, missing: str) -> Float[np.ndarray, " bags"] | str:
        if value is None:
            return missing
        column = value[rows][:, -1]
        if not two_classes:
            column = np.take_along_axis(value[rows], called[:, None], axis=1)[:, 0]
        return column if column.any() else NO_VARIANCE

    spread = deviation(table.std, missing=NO_VARIANCE)
    doubt = spread if two_classes else SEVERAL_CLASSES
    if not isinstance(doubt, str):
        doubt = ndtr(-distance_ratio(margin, doubt))
    return called != context.y, {
        "doubt": doubt,
        "spread": spread,
        "within": deviation(table.std_within, missing=ONE_MODEL),
        "between": deviation(table.std_between, missing=ONE_MODEL),
        "margin": -margin,
        "entropy": entr(p).sum(1),
        "ood": NO_DISTANCE if table.ood_distance is None else table.ood_distance[rows],
    }


def _bags(context: Context) -> Detections:
    wrong, scores = bag_detectors(context)
    several = scores["doubt"] is SEVERAL_CLASSES
    titles = {**BAG_DETECTORS, **(OF_SEVERAL_CLASSES if several else {})}
    return Detections.of(wrong, scores, draws=context.draws, what="bags", titles=titles)


def _instances(context: Context, table: InstanceTable | None) -> Detections | str:
    """Return the detectors on instances of positive bags, or why there are none."""
    if table is None:
        return NO_INSTANCE_LABELS
    inside = table.inside()
    if inside.called is None:
        return NO_CALLS
    if not len(inside.y):
        return f"no {POSITIVE_BAGS}"
    scores = {name: detector(inside, name) for name in INSTANCE_DETECTORS}
    # of a single model, the part within members is the whole
    hidden = ("doubt_within",) if inside.missing.get("doubt_between") == ONE_MODEL else ()
    return Detections.of(
        inside.called != inside.y,
        scores,
        draws=context.resamples(table.names, table.positive).for_items(inside.bag),
        what=POSITIVE_BAGS,
        titles={k: t for k, t in INSTANCE_DETECTORS.items() if k not in hidden},
    )


def _beyond_validation(context: Context) -> dict[str, int | float | None] | None:
    """Count the evaluated bags that are further from training than all validation bags.

    If all are alike, n / (v + 1) of n bags lie beyond v validation bags. None without distances, or
    if the run has seen all bags.
    """
    table = context.predictions
    rows = [i for i in context.rows if table.parts[i] not in SEEN]
    if table.ood is None or not rows:
        return None
    stored = table.metadata.get(DISTANCE_VALIDATION_BAGS)
    validation = stored if isinstance(stored, int) else table.parts.count("val")
    known = None if "runs" in table.metadata else validation or None
    return {
        "bags": len(rows),
        "beyond": int((table.ood[rows] >= 1).sum()),
        "validation_bags": known,
        "expected": None if known is None else len(rows) / (known + 1),
    }


def _sentence(beyond: Mapping[str, Any]) -> str:
    text = (
        f"distance from training: {beyond['beyond']} of {counted(beyond['bags'], 'bag')} "
        f"{'is' if beyond['beyond'] == 1 else 'are'} further from training than "
    )
    if beyond["expected"] is None:
        return f"{text}all validation bags (predict again to learn how many are by chance)."
    return (
        f"{text}all {counted(beyond['validation_bags'], 'validation bag')}; "
        f"{beyond['expected']:.1f} are expected by chance if these bags are like those of training."
    )
