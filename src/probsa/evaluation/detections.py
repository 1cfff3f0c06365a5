"""How well several scores find wrong calls: AUROC, AUGRC and retention curves of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from rich.table import Table as Grid

from ..statistics import (
    SHARES,
    Draws,
    Metric,
    RetentionCurve,
    SampledMetric,
    augrc,
    ratio_of_sums,
    retention_curve,
    sampled_auroc,
    sampled_difference,
    student_interval,
)
from .error_detectors import margin_verdict
from .metrics import all_same_reason

CURVE_RESAMPLES = 200
"""Upper limit of the resamples of a retention curve."""
SHOWN_SHARES = (0.5, 0.8)
"""The shares of the kept items whose error rate the text of a report shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """Metrics and retention curves of detectors of wrong calls, of bags or of instances."""

    what: str
    """What is called: bags, or the instances that are judged."""
    items: int
    error_rate: Metric
    """Also the error rate of any share of the calls that is kept at random."""
    auroc: dict[str, Metric]
    """By detector, as the metrics and curves below."""
    augrc: dict[str, Metric]
    gain: Metric
    """AUROC of P(wrong) minus that of the margin, with an interval that holds for few groups."""
    curves: dict[str, RetentionCurve] = field(default_factory=dict)
    """Detectors without an AUROC have no curve."""

    @property
    def verdict(self) -> str:
        """One sentence that says whether P(wrong) finds wrong calls better than the margin."""
        return margin_verdict(self.auroc["doubt"], self.auroc["margin"], self.gain, what=self.what)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "of": self.what,
            "items": self.items,
            "error_rate": self.error_rate.to_dict(),
            "error_auroc": {name: m.to_dict() for name, m in self.auroc.items()},
            "augrc": {name: m.to_dict() for name, m in self.augrc.items()},
            "doubt_gain": self.gain.to_dict(),
            "verdict": self.verdict,
            "retention": {
                "shares": list(SHARES),
                "random": self.error_rate.value,
                "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            },
        }

    def grid(self, titles: Mapping[str, str]) -> Grid:
        """Return the table of the text report."""
        rate = "" if self.error_rate.value is None else f", {self.error_rate.value:.1%} wrong"
        grid = Grid(title=f"doubt: {self.items} {self.what}{rate}", title_justify="left")
        grid.add_column("wrong calls found by")
        grid.add_column("AUROC", justify="right", no_wrap=True)
        grid.add_column("95 % interval")
        grid.add_column("AUGRC", justify="right", no_wrap=True)
        for share in SHOWN_SHARES:
            grid.add_column(f"wrong of {share:.0%} kept", justify="right")
        for name, m in self.auroc.items():
            if m.value is None:
                grid.add_row(titles[name], "-", m.reason, "", "", "")
                continue
            span = "" if m.low is None or m.high is None else f"[{m.low:.3f}, {m.high:.3f}]"
            rates = [self.curves[name].error_rate[SHARES.index(s)] for s in SHOWN_SHARES]
            cells = [f"{self.augrc[name].value:.4f}", *(f"{rate:.1%}" for rate in rates)]
            grid.add_row(titles[name], f"{m.value:.3f}", span, *cells)
        return grid


def detect(
    wrong: Bool[np.ndarray, " n"],
    detectors: Mapping[str, Float[np.ndarray, " n"] | str],
    *,
    draws: Draws,
    what: str,
) -> Detections:
    """Return how well each detector finds the wrong calls.

    Args:
        wrong: whether each call is wrong; at least one item.
        detectors: scores that are high where a call is doubtful, or the reason why there is none;
            `doubt` and `margin` are among them.
        draws: draws of these items with the data as row 0.
        what: the items in the plural, for reasons and titles.
    """
    rate = ratio_of_sums(wrong, np.ones_like(wrong), draws=draws)
    all_same = all_same_reason(wrong, what=what)
    fewer = Draws(counts=draws.counts[: CURVE_RESAMPLES + 1], member=draws.member)
    auroc: dict[str, SampledMetric] = {}
    areas: dict[str, SampledMetric] = {}
    curves: dict[str, RetentionCurve] = {}
    for name, score in detectors.items():
        if all_same or isinstance(score, str):
            reason = all_same or str(score)
            auroc[name] = areas[name] = SampledMetric.undefined(reason)
            continue
        auroc[name] = sampled_auroc(wrong, score, draws=draws, what=what)
        aurocs, rates = auroc[name].rows, rate.rows
        assert aurocs is not None and rates is not None, "calls are right and wrong"
        areas[name] = SampledMetric(rows=augrc(rates, aurocs))
        curves[name] = retention_curve(wrong, score, draws=fewer)
    return Detections(
        what=what,
        items=len(wrong),
        error_rate=rate.metric(),
        auroc={name: m.metric() for name, m in auroc.items()},
        augrc={name: m.metric() for name, m in areas.items()},
        gain=student_interval(
            sampled_difference(auroc["doubt"], auroc["margin"]),
            groups=len(np.unique(draws.member)),
        ),
        curves=curves,
    )
