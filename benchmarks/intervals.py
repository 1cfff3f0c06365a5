"""Coverage of the 95 % intervals of `probsa evaluate` over simulated cohorts of 40 patients.

Criterion, written before the simulation: for AUROC, average precision, F1, balanced accuracy and
Cohen's kappa, the interval contains the value of the population in at least 90 % of the cohorts
from three patients of the rarer class on, with one, two and five bags per patient and a true AUROC
of .7, .85, .95 and 1 - 1e-6. Below three patients there is no interval.

Scores of both classes are normal with one variance, of which 60 % is shared by the bags of a
patient; all bags of a patient have its label. Bags are called at the threshold where both errors
are equal, or at the mean of the positive bags (`--high`), which half of them miss.

`python benchmarks/intervals.py` prints a table in Markdown (about 4 minutes on one core).
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from probsa.statistics import Draws, Metric, binary_metrics, multiclass_metrics

PATIENTS = 40
SHARED = 0.6
"""Share of a score's variance that the bags of a patient have in common."""
METRICS = ("auroc", "average_precision", "f1", "balanced_accuracy", "kappa")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What cohorts are drawn from."""

    positives: int
    """Patients of the rarer class, of `PATIENTS`."""
    bags: int
    """Bags of each patient."""
    auroc: float
    """The AUROC of the population."""
    high: bool = False
    """Whether bags are called at the mean of the positive ones."""

    @property
    def distance(self) -> float:
        """The distance of the means of both classes, in standard deviations."""
        return float(np.sqrt(2) * ndtri(self.auroc))

    @property
    def threshold(self) -> float:
        """The score from which a bag is called positive."""
        return self.distance if self.high else self.distance / 2

    def population(self) -> dict[str, float]:
        """Return the value of each metric in the population with this share of positive bags."""
        share = self.positives / PATIENTS
        recall = float(ndtr(self.distance - self.threshold))
        false = float(ndtr(-self.threshold))
        called = share * recall + (1 - share) * false
        agreement = share * recall + (1 - share) * (1 - false)
        by_chance = share * called + (1 - share) * (1 - called)
        limits = np.linspace(self.distance + 9, -9, 20_001)
        recalls = ndtr(self.distance - limits)
        alarms = (1 - share) * ndtr(-limits)
        precision = share * recalls / (share * recalls + alarms)
        return {
            "auroc": self.auroc,
            "average_precision": float(np.trapezoid(precision, recalls)),
            "f1": 2 * share * recall / (share + called),
            "balanced_accuracy": (recall + 1 - false) / 2,
            "kappa": (agreement - by_chance) / (1 - by_chance),
        }

    def metrics(self, rng: np.random.Generator, *, resamples: int) -> dict[str, Metric]:
        """Return the metrics of one cohort."""
        patient = np.repeat(np.arange(PATIENTS), self.bags)
        y = (patient < self.positives).astype(np.int64)
        noise = np.sqrt(SHARED) * rng.normal(size=PATIENTS)[patient]
        noise += np.sqrt(1 - SHARED) * rng.normal(size=len(patient))
        p = ndtr(noise + self.distance * y - self.threshold)
        draws = Draws.patients(
            y, groups=patient.tolist(), resamples=resamples, seed=int(rng.integers(2**31))
        )
        both = np.stack([1 - p, p], axis=1)
        of_classes = multiclass_metrics(y, both, names=("0", "1"), draws=draws).overall
        of_calls = binary_metrics(y, p, threshold=0.5, draws=draws).overall
        return {**of_calls, "kappa": of_classes["kappa"]}


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How often intervals hold the value of the population."""

    covered: float
    """Share of the cohorts with an interval whose interval holds it; nan without any."""
    given: float
    """Share of the cohorts with an interval."""
    width: float
    """Mean width."""


def coverage(
    setting: Setting, *, cohorts: int, resamples: int, names: Sequence[str] = METRICS
) -> Mapping[str, Coverage]:
    """Simulate cohorts and return the coverage of each metric's interval."""
    rng = np.random.default_rng((setting.positives, setting.bags, int(1000 * setting.auroc)))
    truth = setting.population()
    limits = np.full((cohorts, len(names), 2), np.nan)
    for row in limits:
        metrics = setting.metrics(rng, resamples=resamples)
        for k, name in enumerate(names):
            if metrics[name].low is not None:
                row[k] = metrics[name].low, metrics[name].high
    found = {}
    for k, name in enumerate(names):
        low, high = limits[:, k].T
        given = np.isfinite(low)
        inside = (low <= truth[name]) & (truth[name] <= high)
        found[name] = Coverage(
            covered=float(inside[given].mean()) if given.any() else float("nan"),
            given=float(given.mean()),
            width=float((high - low)[given].mean()) if given.any() else float("nan"),
        )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=400)
    parser.add_argument("--high", action="store_true", help="call at the mean of positive bags")
    options = parser.parse_args()
    print("| AUROC | positives | bags | " + " | ".join(METRICS) + " |")
    print("|---|---|---|" + "---|" * len(METRICS))
    for auroc in (0.7, 0.85, 0.95, 1 - 1e-6):
        for positives in (1, 2, 3, 5, 10, 20):
            for bags in (1, 2, 5):
                setting = Setting(positives=positives, bags=bags, auroc=auroc, high=options.high)
                found = coverage(setting, cohorts=options.cohorts, resamples=options.resamples)
                cells = [
                    f"{c.covered:.3f} ({c.width:.2f})" if c.given else "none"
                    for c in found.values()
                ]
                print(f"| {auroc:g} | {positives} | {bags} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
