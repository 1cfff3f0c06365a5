"""How well several scores find wrong calls: AUROC, AUGRC and retention curves of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from rich.console import Console
from rich.table import Table as Grid

from ..statistics import (
    SHARES,
    Draws,
    Metric,
    RetentionCurve,
    augrc,
    ratio_of_sums,
    retention_curve,
)
from ..statistics import (
    auroc as auroc_of,
)
from .error_detectors import margin_verdict
from .metrics import all_same_reason

CURVE_RESAMPLES = 200
"""Upper limit of the resamples of a retention curve."""
NULL = " (null)"
"""The end of the title of a null rival."""
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
        """Return plain values for JSON."""
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
                "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            },
        }

    def render(self, console: Console, titles: Mapping[str, str]) -> None:
        """Print the table of the detectors with a title, why others are undefined, and the verdict.

        Args:
            console: where to print.
            titles: the title of each detector to show.
        """
        line = partial(console.print, markup=False, soft_wrap=True)
        if any(self.auroc[name].value is not None for name in titles):
            console.print(self._grid(titles))
        else:
            line(self._heading)
        undefined = self._undefined(titles)
        if undefined:
            parts = (f"{', '.join(names)} ({reason})" for reason, names in undefined.items())
            line(f"Undefined: {'; '.join(parts)}.")
        line(self.verdict)

    @property
    def _heading(self) -> str:
        rate = "" if self.error_rate.value is None else f", {self.error_rate.value:.1%} wrong"
        return f"doubt: {self.items} {self.what}{rate}"

    def _undefined(self, titles: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the titles of detectors without an AUROC, by the reason."""
        by_reason: dict[str, list[str]] = {}
        for name, title in titles.items():
            reason = self.auroc[name].reason
            if reason is not None:
                by_reason.setdefault(reason, []).append(title.removesuffix(NULL))
        return by_reason

    def _grid(self, titles: Mapping[str, str]) -> Grid:
        """Return the table of the text report."""
        grid = Grid(title=self._heading, title_justify="left")
        grid.add_column("wrong calls found by")
        grid.add_column("AUROC", justify="right", no_wrap=True)
        grid.add_column("95 % interval")
        grid.add_column("AUGRC", justify="right", no_wrap=True)
        for share in SHOWN_SHARES:
            grid.add_column(f"wrong of {share:.0%} kept", justify="right")
        for name, title in titles.items():
            m = self.auroc[name]
            if m.value is None:
                continue
            span = "" if m.low is None or m.high is None else f"[{m.low:.3f}, {m.high:.3f}]"
            rates = [self.curves[name].error_rate[SHARES.index(s)] for s in SHOWN_SHARES]
            cells = [f"{self.augrc[name].value:.4f}", *(f"{rate:.1%}" for rate in rates)]
            grid.add_row(title, f"{m.value:.3f}", span, *cells)
        if self.random is not None:
            kept = [f"{2 * self.random['augrc']:.1%}"] * len(SHOWN_SHARES)
            values = [f"{self.random['error_auroc']:.3f}", "exact", f"{self.random['augrc']:.4f}"]
            grid.add_row(f"random order{NULL}", *values, *kept)
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
    auroc: dict[str, Metric] = {}
    areas: dict[str, Metric] = {}
    curves: dict[str, RetentionCurve] = {}
    for name, score in detectors.items():
        if all_same or isinstance(score, str):
            reason = all_same or str(score)
            auroc[name] = areas[name] = Metric.undefined(reason)
            continue
        auroc[name] = auroc_of(wrong, score, draws=draws, what=what)
        aurocs, rates = auroc[name].rows, rate.rows
        assert aurocs is not None and rates is not None, "calls are right and wrong"
        areas[name] = Metric.of(augrc(rates, aurocs))
        curves[name] = retention_curve(wrong, score, draws=fewer)
    return Detections(
        what=what,
        items=len(wrong),
        error_rate=rate,
        auroc=dict(auroc),
        augrc=dict(areas),
        gain=(auroc["doubt"] - auroc["margin"]).student(groups=len(np.unique(draws.member))),
        curves=curves,
    )
