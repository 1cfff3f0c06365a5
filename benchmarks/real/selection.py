"""Compare rules that choose the epoch (or the weights) of a run, on recorded traces.

    python benchmarks/real/selection.py TRACES [--sets ct_ich colon_tiles] [--methods abmil]

Every rule sees the validation bags only:

auroc     highest AUROC, then lower NLL, then the earlier epoch (the rule of the paper)
nll       lowest NLL
smoothed  highest mean AUROC over the last 5 epochs, then the lowest mean NLL over them
one-se    the earliest epoch whose AUROC is at most one standard error below the highest AUROC
ema-nll   weights averaged exponentially over the steps, at the epoch of their lowest NLL
average   the mean of the weights at the ends of the epochs of the last quarter
last      the last epoch

Criterion, written before any result was looked at. The rules are ranked within each set and method
by the mean over its runs (folds × seeds) of four measures of the test fold: (a) bag NLL, (b) bag
AUROC, (c) instance AUROC and (d) average precision of the instance scores, both within bags and
averaged over the positive bags that have instances of both labels. Rules that tie share the mean of
their ranks. The rule with the lowest mean rank over all (set, method, measure) wins. Among rules
within 0.1 of the lowest mean rank, the one with the lowest bag NLL (mean over sets) wins. Sets
without signal (`null_*`) do not count, and a measure that is not defined is left out.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata
from study_metrics import (
    auroc,
    average_precision,
    bag_losses,
    difference,
    number,
)
from trace_file import Trace, Weights, load_all

from probsa.training.selection import standard_error

WINDOW = 5
TIE = 0.1
RESAMPLES = 2000


class Choice(NamedTuple):
    """The weights and the epoch that a rule chooses; `average` has no epoch of its own."""

    weights: Weights
    epoch: int


class Course(NamedTuple):
    """The validation measures of a run at its candidate epochs."""

    epochs: np.ndarray
    auroc: np.ndarray
    nll: np.ndarray
    counts: tuple[int, int]
    """Number of validation bags of each class."""


def course_of(trace: Trace, weights: Weights, *, window: int = 1) -> Course:
    """Return the course of a run; with a window, trailing means over that many epochs.

    Epochs without a whole window are left out, unless the run is shorter than the window.
    """
    y, p = trace.labels("val"), trace.probability("val", weights=weights)
    losses = bag_losses(y, p)
    area = np.array([auroc(y, row) for row in p])
    area = np.where(np.isfinite(area), area, 0.0)  # one class only: the NLL decides
    nll = losses.mean(1)
    window = min(window, len(p))
    kernel = np.ones(window) / window
    area, nll = (np.convolve(v, kernel, mode="valid") for v in (area, nll))
    candidates = trace.epochs[trace.epochs >= window]
    rows = candidates - window
    return Course(candidates, area[rows], nll[rows], (int((y == 0).sum()), int((y > 0).sum())))


def _by_auroc(course: Course) -> int:
    # equal up to rounding: the mean over a window is not exact
    keys = zip(-course.auroc.round(9), course.nll, course.epochs, strict=True)
    return int(min(keys)[2])


def _by_nll(course: Course) -> int:
    return int(course.epochs[course.nll.argmin()])


def _one_se(course: Course) -> int:
    highest = float(course.auroc.max())
    bound = highest - standard_error(highest, course.counts)
    return int(course.epochs[course.auroc >= bound].min())


RULES: dict[str, Callable[[Trace], Choice]] = {
    "auroc": lambda t: Choice("raw", _by_auroc(course_of(t, "raw"))),
    "nll": lambda t: Choice("raw", _by_nll(course_of(t, "raw"))),
    "smoothed": lambda t: Choice("raw", _by_auroc(course_of(t, "raw", window=WINDOW))),
    "one-se": lambda t: Choice("raw", _one_se(course_of(t, "raw"))),
    "ema-nll": lambda t: Choice("ema", _by_nll(course_of(t, "ema"))),
    "average": lambda t: Choice("average", int(t.epochs[-1])),
    "last": lambda t: Choice("raw", int(t.epochs[-1])),
}
MEASURES = {"bag NLL": -1, "bag AUROC": 1, "instance AUROC": 1, "instance AP": 1}
"""The measures, with 1 where more is better."""


def measured(trace: Trace, choice: Choice) -> dict[str, float]:
    """Return the four measures of a run on its test fold."""
    y = trace.labels("test")
    p = trace.test_probability(choice.weights, choice.epoch)
    bags = [b for b in trace.instances(choice.weights, choice.epoch) if b.has_both]
    nan = [np.nan]
    return {
        "bag NLL": float(bag_losses(y, p).mean()),
        "bag AUROC": auroc(y, p),
        "instance AUROC": float(np.mean([auroc(b.truth, b.mean) for b in bags] or nan)),
        "instance AP": float(np.mean([average_precision(b.truth, b.mean) for b in bags] or nan)),
    }


def measured_by_rule(trace: Trace) -> dict[str, list[float]]:
    """Return the measures of a run by rule; rules that choose the same weights share them."""
    choices = {rule: choose(trace) for rule, choose in RULES.items()}
    values = {choice: list(measured(trace, choice).values()) for choice in set(choices.values())}
    return {rule: values[choice] for rule, choice in choices.items()}


Runs = Mapping[str, np.ndarray]
"""By rule: an array (runs, measures)."""


def mean_ranks(cells: Mapping[tuple[str, str], Runs]) -> dict[str, float]:
    """Return the mean rank of each rule over all sets, methods and measures (1 is best)."""
    rules = list(next(iter(cells.values())))
    signs = np.array(list(MEASURES.values()))
    ranks = []
    for runs in cells.values():
        values = np.array([nan_mean(runs[rule]) for rule in rules]) * signs
        defined = np.isfinite(values).all(0)
        ranks += [rankdata(-column) for column in values.T[defined]]
    return dict(zip(rules, np.mean(ranks, axis=0).tolist(), strict=True))


def nan_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over rows without NaN; NaN for a column of NaN."""
    count = np.isfinite(values).sum(0)
    return np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan)


def winner_of(ranks: Mapping[str, float], nll: Mapping[str, float]) -> str:
    """Return the rule that wins by the criterion, given each rule's mean rank and bag NLL."""
    best = min(ranks.values())
    return min((r for r in ranks if ranks[r] <= best + TIE), key=lambda r: nll[r])


def set_means(cells: Mapping[tuple[str, str], Runs], rule: str) -> np.ndarray:
    """Return the measures of a rule: the mean over sets of the mean over the set's methods."""
    by_set: dict[str, list[np.ndarray]] = defaultdict(list)
    for (data, _), runs in cells.items():
        by_set[data].append(nan_mean(runs[rule]))
    return nan_mean(np.array([nan_mean(np.array(v)) for v in by_set.values()]))


def resampled_differences(
    rows: Sequence[tuple[str, int]], values: Runs, rule: str, *, resamples: int = RESAMPLES
) -> np.ndarray:
    """Return differences to `auroc` (1 + resamples, measures), resampling the folds of all sets.

    Args:
        rows: the set and the fold of each run; a pair is resampled with all its runs.
        values: by rule, the measures of each run.
        rule: the rule to compare.
        resamples: number of resamples.
    """
    gains = values[rule] - values["auroc"]
    units = sorted(set(rows))
    of_unit = {u: np.array([r == u for r in rows]) for u in units}
    by_unit = np.array([nan_mean(gains[of_unit[u]]) for u in units])
    rng = np.random.default_rng(0)
    draws = rng.integers(len(units), size=(resamples, len(units)))
    return np.stack([nan_mean(by_unit), *(nan_mean(by_unit[d]) for d in draws)])


def report(traces: Sequence[Trace]) -> None:
    """Print the table of rules and the winner."""
    counted = [t for t in traces if not t.header["data"].startswith("null")]
    if not counted:
        raise SystemExit("there are no traces of these sets and methods")
    rows_of = [measured_by_rule(t) for t in counted]
    values = {rule: np.array([row[rule] for row in rows_of]) for rule in RULES}
    keys = [(t.header["data"], t.header["method"]["name"]) for t in counted]
    cells = {
        key: {rule: v[[k == key for k in keys]] for rule, v in values.items()}
        for key in dict.fromkeys(keys)
    }
    ranks = mean_ranks(cells)
    means = {rule: set_means(cells, rule) for rule in RULES}
    rows = [(t.header["data"], t.header["fold"]) for t in counted]
    print(f"{len(counted)} runs, {len(cells)} sets and methods, {len(set(rows))} sets and folds\n")
    print("Means over sets; difference to `auroc` with its interval over sets and folds.\n")
    print("| rule | mean rank | " + " | ".join(f"{m} | Δ" for m in MEASURES) + " |")
    print("|---" * (2 + 2 * len(MEASURES)) + "|")
    for rule in sorted(RULES, key=lambda r: ranks[r]):
        drawn = resampled_differences(rows, values, rule)
        columns = []
        for k, mean in enumerate(means[rule]):
            columns += [number(mean), "" if rule == "auroc" else difference(drawn[:, k])]
        print(f"| {rule} | {ranks[rule]:.2f} | " + " | ".join(columns) + " |")
    nll = {rule: float(means[rule][0]) for rule in RULES}
    print(f"\nBy the criterion: **{winner_of(ranks, nll)}**")


def epochs_chosen(traces: Sequence[Trace]) -> None:
    """Print the median and the range of the epochs that each rule chooses, by set."""
    print("\n| set | " + " | ".join(RULES) + " |\n|---" + "|---" * len(RULES) + "|")
    for data in dict.fromkeys(t.header["data"] for t in traces):
        of_set = [t for t in traces if t.header["data"] == data]
        cells = []
        for choose in RULES.values():
            epochs = [choose(t).epoch for t in of_set]
            cells.append(f"{np.median(epochs):g} ({min(epochs)} to {max(epochs)})")
        print(f"| {data} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--check", action="store_true", help="check the rules and the measures")
    a = parser.parse_args()
    if a.check:
        from study_checks import check_all

        check_all()
        return
    traces = load_all(a.traces, sets=a.sets, methods=a.methods)
    report(traces)
    epochs_chosen(traces)


if __name__ == "__main__":
    main()
