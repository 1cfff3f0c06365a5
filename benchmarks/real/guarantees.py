"""Do the guarantees hold? Resplit the test bags of a cross-validation into calibration and test.

    python benchmarks/real/guarantees.py --runs RUNS --labels labels.csv --out guarantees.csv

RUNS holds one run of `probsa train` per fold. Each bag has the prediction of the run that tested
it. Of the groups (patients), half calibrate and half are evaluated, in 1,000 random splits. The
error rate of accepted calls is judged against all bags as the population, from which calibration
groups are drawn with replacement. The table has one row per guarantee and measure.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

from probsa.core import write_csv
from probsa.datasets import read_table
from probsa.errors import InputError
from probsa.evaluation import read_predictions
from probsa.evaluation.accepted_calls import DELTA, START, STEP, calls, confidence
from probsa.evaluation.evaluated import Evaluated
from probsa.evaluation.pools import Pool
from probsa.evaluation.prediction_sets import set_scores
from probsa.evaluation.shift_alarm import LEVEL
from probsa.statistics import (
    ConformalSets,
    certified_threshold,
    coverage_band,
    coverage_band_in_test,
    group_shares,
    least_accepted,
    least_groups,
    risk_threshold,
    shift_test,
)

COVERAGES = (0.8, 0.9)
MISSED = (0.1, 0.2)
ERRORS = (0.05, 0.1, 0.2)
PERMUTATIONS = 199


@dataclass(frozen=True, kw_only=True)
class Bags:
    """The test bags of all folds; all arrays have one row per bag."""

    p: np.ndarray
    y: np.ndarray
    std: np.ndarray
    scores: dict[str, np.ndarray]
    confidence: np.ndarray
    wrong: np.ndarray
    group: np.ndarray
    """Index of each bag's group."""
    positives: list[np.ndarray]
    """Evidence of the positive instances of each bag, without labels none."""
    instances: list[np.ndarray]
    """Evidence of all labelled instances."""

    def part(self, groups: np.ndarray) -> np.ndarray:
        """Return the rows of these groups."""
        return np.flatnonzero(np.isin(self.group, groups))

    def share(self, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the share of each bag in its group, and the number of groups."""
        share, member = group_shares(self.group[rows].tolist())
        return share, len(np.unique(member))


def read_bags(runs: Path, labels: Path) -> Bags:
    """Read the test predictions of every run below a folder."""
    table = read_table(labels)
    label = {b: y for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    groups = dict(zip(table.bags, table.groups or table.bags, strict=True))
    parts: list[dict[str, np.ndarray]] = []
    names, positives, instances = [], [], []
    for run in sorted(p for p in runs.iterdir() if p.is_dir()):
        predictions = read_predictions(run / "predictions")
        rows = tuple(i for i, part in enumerate(predictions.parts) if part == "test")
        e = Evaluated(
            predictions=predictions, part="test", rows=rows, label=label, group=groups,
            threshold=predictions.threshold, bootstrap=0, seed=0,
        )  # fmt: skip
        parts.append(
            {
                "p": e.p(rows),
                "y": e.y(rows),
                "std": predictions.std[list(rows)].max(1),
                "lac": set_scores(e, rows, score="lac"),
                "aps": set_scores(e, rows, score="aps"),
                "confidence": confidence(e, rows),
                "wrong": calls(e, rows) != e.y(rows),
            }
        )
        names += e.groups(rows)
        for p in e.instances(rows):
            pool = None if p.instance_labels is None else Pool.of([p])
            instances.append(np.zeros(0) if pool is None else pool.decision)
            positives.append(np.zeros(0) if pool is None else pool.decision[pool.y])
    joined = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    scores = {k: joined.pop(k) for k in ("lac", "aps")}
    _, group = np.unique(names, return_inverse=True)
    return Bags(**joined, scores=scores, group=group, positives=positives, instances=instances)


def halves(bags: Bags, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a random half of the groups, and of the other half."""
    order = rng.permutation(bags.group.max() + 1)
    middle = len(order) // 2
    return bags.part(order[:middle]), bags.part(order[middle:])


def coverage(
    bags: Bags, rng: np.random.Generator, *, splits: int, level: float, score: str, per_class: bool
) -> dict[str, float]:
    """Realised coverage of sets, its share within the band, and that of sets blind to groups."""
    s, found = bags.scores[score], []
    for _ in range(splits):
        one, other = halves(bags, rng)
        sets = ConformalSets.calibrated(
            s[one], bags.y[one], groups=bags.group[one].tolist(), alpha=1 - level,
            per_class=per_class,
        )  # fmt: skip
        blind = ConformalSets.calibrated(
            s[one], bags.y[one], groups=range(len(one)), alpha=1 - level, per_class=per_class
        )
        inside = sets.sets(s[other])
        if per_class:
            other = other[bags.y[other] == 1]
        share, count = bags.share(other)
        k = sets.groups[1]

        low, high = coverage_band_in_test(k, test_groups=count, alpha=1 - level)
        value, of_blind = (
            float((share * made.sets(s[other])[np.arange(len(other)), bags.y[other]]).sum() / count)
            for made in (sets, blind)
        )
        found.append(
            {
                "realised": value,
                "in_band_of_test": low <= value <= high,
                "blind_to_groups": of_blind,
                "set_size": inside.sum(1).mean(),
                "empty": (inside.sum(1) == 0).mean(),
                "calibration_groups": k,
            }
        )
    mean = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    low, high = coverage_band(round(mean["calibration_groups"]), alpha=1 - level)
    return mean | {"band_low": low, "band_high": high}


def missed(bags: Bags, rng: np.random.Generator, *, splits: int, level: float) -> dict[str, float]:
    """Missed share of positive instances, and the share of instances that is flagged."""
    has = np.array([len(p) > 0 for p in bags.positives])
    found = []
    for _ in range(splits):
        one, other = halves(bags, rng)
        one, tested = one[has[one]], other[has[other]]
        share, count = bags.share(one)
        if count < least_groups(level):
            raise InputError(f"{count} groups with positive instances")
        lengths = [len(bags.positives[i]) for i in one]
        score = np.concatenate([bags.positives[i] for i in one])
        t = -risk_threshold(-score, np.repeat(share / lengths, lengths), groups=count, alpha=level)
        share, groups = bags.share(tested)
        lost = np.array([(bags.positives[i] < t).mean() for i in tested])
        flagged = np.array([(bags.instances[i] >= t).mean() for i in tested])
        negative = [i for i in other if not has[i] and len(bags.instances[i])]
        found.append(
            {
                "missed": (share * lost).sum() / groups,
                "above_level": (share * lost).sum() / groups > level,
                "flagged_positive_bags": (share * flagged).sum() / groups,
                "flagged_negative_bags": np.mean(
                    [(bags.instances[i] >= t).mean() for i in negative]
                ),
                "calibration_groups": count,
            }
        )
    return {k: float(np.mean([f[k] for f in found])) for k in found[0]}


def accepted(
    bags: Bags, rng: np.random.Generator, *, splits: int, level: float
) -> dict[str, float]:
    """How often the certified error rate is exceeded, with all bags as the population."""
    rows_of = [np.flatnonzero(bags.group == g) for g in range(bags.group.max() + 1)]
    weight, k = bags.share(np.arange(len(bags.y)))
    least = least_accepted(max_error=level, delta=DELTA)
    if least > k:
        raise InputError(f"{least} groups are needed, there are {k}")
    shares = np.append(np.arange(min(1.0, START * least / k), 1 - STEP / 2, STEP), 1.0)
    found = []
    for _ in range(splits):
        drawn, others = rng.integers(0, k, size=(2, k))
        rows = np.concatenate([rows_of[g] for g in drawn])
        groups = np.repeat(np.arange(k), [len(rows_of[g]) for g in drawn])
        unlabelled = np.concatenate([bags.confidence[rows_of[g]] for g in others])
        thresholds = np.quantile(unlabelled, 1 - shares, method="lower")
        thresholds[-1] = -np.inf
        rule = certified_threshold(
            thresholds, confidence=bags.confidence[rows], wrong=bags.wrong[rows],
            groups=groups.tolist(), max_error=level, delta=DELTA,
        )  # fmt: skip
        if rule.threshold is None:
            found.append((0.0, 0.0, np.nan))
            continue
        inside = bags.confidence >= rule.threshold
        error = (weight * bags.wrong)[inside].sum() / weight[inside].sum()
        found.append((1.0, (weight * inside).sum() / k, error))
    certified, share, error = np.array(found).T
    return {
        "certified": certified.mean(),
        "accepted_if_certified": share[certified > 0].mean() if certified.any() else np.nan,
        "violations": float(np.mean(error > level)),
        "delta": DELTA,
        "error_of_all": float((weight * bags.wrong).sum() / k),
        "groups": k,
    }


def unchanged(bags: Bags, rows: np.ndarray) -> tuple[np.ndarray, Bags]:
    """No shift."""
    return rows, bags


def less_confident(bags: Bags, rows: np.ndarray) -> tuple[np.ndarray, Bags]:
    """Halve the log odds of the new bags, as for images of poorer quality."""
    p = bags.p.copy()
    p[rows] = expit(logit(np.clip(p[rows], 1e-9, 1 - 1e-9)) / 2)
    level = bags.confidence.copy()
    level[rows] /= 2
    return rows, replace(bags, p=p, confidence=level)


def other_prevalence(bags: Bags, rows: np.ndarray) -> tuple[np.ndarray, Bags]:
    """Keep a quarter of the positive new bags."""
    positive = rows[bags.y[rows] == 1]
    return np.setdiff1d(rows, positive[np.arange(len(positive)) % 4 > 0]), bags


def alarms(
    bags: Bags,
    rng: np.random.Generator,
    *,
    splits: int,
    shift: Callable[[Bags, np.ndarray], tuple[np.ndarray, Bags]],
) -> dict[str, float]:
    """The share of splits in which the alarm rings, by groups and blind to groups."""
    rang = []
    for k in range(splits):
        one, other = halves(bags, rng)
        other, moved = shift(bags, other)
        rows = np.concatenate([one, other])
        new = np.repeat([False, True], [len(one), len(other)])
        values = np.stack([moved.p[rows, -1], moved.confidence[rows], moved.std[rows]], axis=1)
        test = partial(shift_test, values, new=new, permutations=PERMUTATIONS, seed=k)
        grouped = test(groups=bags.group[rows].tolist()).p_value <= LEVEL
        rang.append((grouped, test(groups=range(len(rows))).p_value <= LEVEL))
    by_group, by_bag = np.mean(rang, axis=0)
    return {"alarms": by_group, "alarms_blind_to_groups": by_bag}


def measure(bags: Bags, *, splits: int, seed: int) -> list[dict[str, object]]:
    """Return one row per guarantee, level and measure."""
    plan: list[tuple[str, Callable[..., dict[str, float]]]] = []
    for level in COVERAGES:
        for score in ("lac", "aps"):
            for per_class in (False, True):
                name = f"sets {score}{' per class (class 1)' if per_class else ''} {level}"
                measured = partial(coverage, level=level, score=score, per_class=per_class)
                plan.append((name, measured))
    plan += [(f"missed {level}", partial(missed, level=level)) for level in MISSED]
    plan += [(f"accepted {level}", partial(accepted, level=level)) for level in ERRORS]
    for shift in (unchanged, less_confident, other_prevalence):
        plan.append((f"alarm {shift.__name__}", partial(alarms, shift=shift)))
    rows: list[dict[str, object]] = []
    for name, function in plan:
        try:
            values = function(bags, np.random.default_rng(seed), splits=splits)
        except InputError as e:
            rows.append({"guarantee": name, "measure": "not possible", "value": str(e)})
            continue
        rows += [{"guarantee": name, "measure": k, "value": f"{v:.4f}"} for k, v in values.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bags = read_bags(args.runs, args.labels)
    print(f"{len(bags.y)} bags of {bags.group.max() + 1} groups")
    rows = measure(bags, splits=args.splits, seed=args.seed)
    write_csv(args.out, ["guarantee", "measure", "value"], rows)
    for row in rows:
        print(f"{row['guarantee']:36} {row['measure']:24} {row['value']}")


if __name__ == "__main__":
    main()
