"""The time to an event of each bag, which may be censored: a risk, and survival at some times."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core import counted, finite_number
from ..errors import InputError, TableError
from ..statistics import (
    CensoringCurve,
    Draws,
    TargetMetrics,
    concordance,
    kaplan_meier,
    survival_metrics,
)
from .base import UNSTATED, Measure, Names, P, Predicted, Stated, TargetData, Task, Verdict, Y
from .columns import Cells, Targets, Value
from .words import TIMES, PageWords, plus_minus, quoted

CENSORSHIP = "censorship"
"""Name of the column that other tools write in place of `event`, with the opposite meaning."""
EVENTS = {"1": 1.0, "true": 1.0, "dead": 1.0, "0": 0.0, "false": 0.0, "alive": 0.0}
CENSORED = {"1": 0.0, "true": 0.0, "0": 1.0, "false": 1.0}
"""The event that each cell of a column `censorship` means."""


class Survival(Task):
    """A time and whether its event was seen; outputs are `risk` and `s_<time>`."""

    name = "survival"
    words = TIMES
    validation_metric = "val_c_index"
    runs_average = compares_across_folds = False
    counted_stratum = 1
    undefined_metric = "the c-index"
    measures = (
        Measure("uno_c", "Uno's c", by_fold=True),
        replace(Measure.loss("integrated_brier", "integrated Brier"), by_fold=True),
        Measure("mean_auroc", "mean AUROC(t)", by_fold=True),
    )

    def metrics(self, data: TargetData, draws: Draws) -> TargetMetrics:
        times = output_times(data.outputs)
        survival = data.predicted[:, [n.startswith("s_") for n in data.outputs]]
        risk = data.column("risk")
        return _metrics(data, draws, risk=risk, survival=survival, times=times)

    def null_rivals(self, data: TargetData, draws: Draws) -> dict[str, TargetMetrics]:
        times, known, n = output_times(data.outputs), _training(data), len(data.y)
        curve = kaplan_meier(known[:, 0], known[:, 1] > 0, times)
        found = _metrics(
            data, draws, risk=np.zeros(n), survival=np.tile(curve, (n, 1)), times=times
        )
        return {"Kaplan–Meier of the training bags": found}

    def strata(self, y: Y) -> np.ndarray:
        return y[:, 1]

    def counts(self, y: Y, names: Names) -> dict[str, int]:
        del names
        events = int((y[:, 1] > 0).sum())
        return {"with the event": events, "censored": len(y) - events}

    def validation_score(self, y: Y, predicted: P) -> float | None:
        return concordance(y[:, 0], y[:, 1] > 0, risk=predicted[:, 0]).value

    def unjudgeable(self, y: Y, training: np.ndarray, names: Names) -> str | None:
        del names
        censoring = CensoringCurve.fit(training[:, 0], training[:, 1] > 0)
        c = concordance(y[:, 0], y[:, 1] > 0, risk=np.zeros(len(y)), censoring=censoring)
        return None if c.reason is None else f"there is {c.reason.partition(':')[0]}"

    def verdict(self, p: Predicted, stated: Stated = UNSTATED) -> Verdict:
        del stated
        risk, spread = float(p.probability[0]), float(p.std[0])
        k = 1 + middle_time(p.outputs)
        chance, time = f"{p.probability[k]:.2f}", p.outputs[k].removeprefix("s_")
        at_time = f"S({time}) = {chance}{plus_minus(float(p.std[k]))}"
        return Verdict(
            call=chance,
            value=risk,
            spread=spread,
            text=f"risk = {risk:.4g}{plus_minus(spread, digits='.2g')} · {at_time}",
        )

    def truth_text(self, y: Sequence[float], *, classes: Names = ()) -> str:
        del classes
        if math.isnan(y[0]):
            return ""
        return f"{y[0]:.4g}, {'event' if y[1] > 0 else 'censored'}"

    def shown_column(self, p: Predicted, columns: int) -> int:
        """Return the interval k with the largest change of the risk by its logit.

        A unit of the logit lowers log S by h_k from the end of the interval on, so the risk changes
        by about h_k times the area below S from the middle of the interval on.
        """
        if columns == 1 or len(p.probability) != columns + 1:
            return columns - 1
        times = np.append([0.0], output_times(p.outputs))
        survival = np.append([1.0], p.probability[1:].astype(np.float64))
        areas = np.diff(times) * (survival[:-1] + survival[1:]) / 2
        hazards = 1 - survival[1:] / np.maximum(survival[:-1], np.finfo(np.float64).tiny)
        after = areas[::-1].cumsum()[::-1] - areas / 2
        return int(np.argmax(hazards * after))

    def column_names(self, p: Predicted, columns: int) -> tuple[str, ...] | None:
        if columns > 1 and len(p.outputs) == columns + 1:
            return tuple(f"until {name.removeprefix('s_')}" for name in p.outputs[1:])
        return super().column_names(p, columns)

    def watched(self, outputs: Names) -> tuple[str, ...]:
        del outputs
        return ("risk",)

    def label_columns(self, classes: Names) -> tuple[str, ...]:
        del classes
        return ("label_time", "label_event")

    def predicts(self, names: Names, outputs: Names, target: Names) -> str:
        return (
            f"the time to an event ({quoted(outputs, 'and')}: the risk, higher is worse, and the "
            "probability to be without the event at each time). Nothing is predicted beyond the "
            f"time {outputs[-1].removeprefix('s_')}"
        )

    def page_words(self, outputs: Names, target: Names) -> PageWords:
        time = f"S({output_times(outputs)[middle_time(outputs)]:.3g})"
        return replace(super().page_words(outputs, target), said=time, call=time)

    def default_columns(
        self, header: Names, classes: Names | None, *, where: object
    ) -> tuple[str, ...]:
        del classes, where
        censorship = next((c for c in header if c.lower() == CENSORSHIP), None)
        return ("time", censorship if censorship and "event" not in header else "event")

    def check_columns(self, columns: Names) -> None:
        if len(columns) != 2:
            raise TableError(
                f"the target is {', '.join(columns)}: for survival give two columns, the time and "
                "the event"
            )

    def parse(self, cells: Cells) -> Targets:
        time_column, event_column = cells.columns
        inverted = event_column.lower() == CENSORSHIP
        events = CENSORED if inverted else EVENTS
        values: list[Value] = []
        for place, (time, event) in cells:
            if not (time or event or cells.required):
                values.append(None)
                continue
            duration, seen = finite_number(time), events.get(event.lower().removesuffix(".0"))
            if duration is None or duration <= 0:
                raise TableError(
                    f"{place}: the time ({time_column!r}) is {time or 'empty'}, expected a number "
                    "more than 0, in one unit for all bags. Correct it, or leave the bag out"
                )
            if seen is None:
                one, zero = ("censored", "event seen")[:: -1 if not inverted else 1]
                words = "true or false" + ("" if inverted else ", dead or alive")
                raise TableError(
                    f"{place}: the column {event_column!r} is {event or 'empty'}, expected 1 "
                    f"({one}) or 0 ({zero}); also {words}. Other words are not guessed"
                )
            values.append((duration, seen))
        note = (
            f"the column {event_column!r} of {cells.path} is read inverted: 1 means censored, 0 "
            "that the event was seen"
        )
        return Targets(
            task=self.name,
            target=cells.columns,
            labels=self.bag_strata(values),
            values=tuple(values),
            classes=(),
            notes=(note,) if inverted else (),
        )

    def bag_strata(self, values: Sequence[Value]) -> tuple[int | None, ...]:
        return tuple(None if v is None else int(v[1]) for v in values)

    def needed_strata(self, present: Iterable[int]) -> frozenset[int]:
        return frozenset(present) & {1}

    def stratum_names(self, strata: Iterable[int], *, classes: Names, target: Names) -> str:
        del classes, target
        return " or ".join("with an event" if k else "without an event" for k in strata)

    def stratified_by(self, target: Names) -> str:
        del target
        return "stratified by event"

    def untrained(self, y: Mapping[str, np.ndarray], names: Names) -> str | None:
        del names
        if (y["train"][:, 1] > 0).any():
            return None
        return (
            f"all {counted(len(y['train']), 'training bag')} are censored, so no hazard can be "
            "learned. Give bags with an event, or check its column"
        )

    def untestable(self, strata: Sequence[int], classes: Names) -> str | None:
        del classes
        if 1 in strata or not len(strata):
            return None
        return f"has no event: all {counted(len(strata), 'bag')} are censored"

    def content(self, y: Y, names: Names) -> str:
        events, censored = self.counts(y, names).values()
        first, last = y[:, 0].min(), y[:, 0].max()
        counts = f"{counted(events, 'event')} and {censored:,} censored"
        return f"{counts}, times from {first:g} to {last:g}"

    def as_two_classes(self, y: Y, training: np.ndarray) -> np.ndarray:
        del training
        return y[:, 1].astype(np.int64)


def output_times(outputs: Names) -> np.ndarray:
    """Return the times at which survival is predicted."""
    return np.array([float(n.removeprefix("s_")) for n in outputs if n.startswith("s_")])


def middle_time(outputs: Names) -> int:
    """Return which of the times of survival is in their middle, the earlier of two."""
    return (len(output_times(outputs)) - 1) // 2


def _training(data: TargetData) -> np.ndarray:
    if data.training is None:
        raise InputError(
            "these predictions do not state the times of the training bags, which the metrics of "
            "survival need: predict again with a run"
        )
    return data.training


def _metrics(
    data: TargetData, draws: Draws, *, risk: np.ndarray, survival: np.ndarray, times: np.ndarray
) -> TargetMetrics:
    known = _training(data)
    return survival_metrics(
        data.y[:, 0],
        data.y[:, 1] > 0,
        risk=risk,
        censoring=CensoringCurve.fit(known[:, 0], known[:, 1] > 0),
        survival=survival,
        times=times,
        draws=draws,
    )
