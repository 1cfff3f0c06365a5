"""Every claim that reports make, each with the simulation that holds it.

The patient is the unit of chance. Each simulation draws cohorts of 40 patients with one, two or
five bags each, of whom one, two, three or five are of the rarer class; what is claimed is false in
them, or known. Criteria, stated first: a false claim is made in at most 5 % of the cohorts, and an
interval, where there is one, holds the true value in at least 90 %; below three patients of the
rarer class there is no interval and no claim. `benchmarks/intervals.py` has the same cohorts for
more values.
"""

import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import expit, logit, logsumexp
from scipy.stats import binom
from support.made_predictions import made as made_bag
from support.paths import ROOT

from probsa.evaluation import (
    Claim,
    PredictionsMetadata,
    compare_to_null_maps,
    doubt,
    instance_evidence,
)
from probsa.evaluation.instances.measures import BAGS, detections, detector_claim
from probsa.evaluation.report.uncertainty import (
    beyond_validation,
    calibration_verdict,
    probability_wrong,
)
from probsa.layers import sampled_weights
from probsa.models._explanation import predicted_alone
from probsa.statistics import (
    MEAN_SHARE,
    Draws,
    areas,
    binary_metrics,
    calibration_error,
    equal_mass_bins,
    mean_of_items,
    reliability,
)
from probsa.variational import Bernoulli, Diagonal

simulation = runpy.run_path(str(ROOT / "benchmarks" / "intervals.py"))
Setting, coverage, METRICS = (simulation[k] for k in ("Setting", "coverage", "METRICS"))

PATIENTS = 40
COHORTS = 100
RESAMPLES = 100
FALSE_CLAIMS = 0.05
COVERED = 0.9
FEWEST = 3


class Cohort:
    """Patients with several bags, `positives` of whom are of the rarer class."""

    def __init__(self, bags: int, positives: int, seed: int, patients: int = PATIENTS) -> None:
        self.rng = np.random.default_rng((bags, positives, seed))
        self.patient = np.repeat(np.arange(patients), bags)
        self.y = self.patient < positives
        self.seed = seed

    def noise(self, *, shared: float = 0.6) -> np.ndarray:
        """Return a number per bag with variance 1, of which bags of a patient share a part."""
        of_patient = self.rng.normal(size=self.patient.max() + 1)[self.patient]
        of_bag = self.rng.normal(size=len(self.patient))
        return np.sqrt(shared) * of_patient + np.sqrt(1 - shared) * of_bag

    def draws(self, resamples: int = RESAMPLES) -> Draws:
        return Draws.patients(
            self.y, groups=self.patient.tolist(), resamples=resamples, seed=self.seed
        )


def seldom(made: list[bool], *, rate: float = FALSE_CLAIMS) -> bool:
    """Say whether a false claim was not made more often than chance allows at this rate."""
    return sum(made) <= binom.ppf(0.999, len(made), rate)


def mostly(covered: list[bool], *, rate: float = COVERED) -> bool:
    """Whether the true value was held as often as chance allows at this rate."""
    return sum(covered) >= binom.ppf(0.001, len(covered), rate)


def intervals_hold_the_population(bags: int, positives: int) -> None:
    setting = Setting(positives=positives, bags=bags, auroc=0.85)
    cohorts = 10 if positives < FEWEST else COHORTS
    found = coverage(setting, cohorts=cohorts, resamples=RESAMPLES)
    for name in METRICS:
        if positives < FEWEST:
            assert found[name].given == 0, name
        else:
            assert found[name].given == 1, name
            assert found[name].covered >= binom.ppf(0.001, COHORTS, COVERED) / COHORTS, name


def intervals_of_instances_hold_the_population(bags: int, positives: int) -> None:
    """AUROC of 20 instances of each positive bag, 8 of them positive; patients differ in ease."""
    signal = 1.0
    ease = 0.3
    covered = []
    given = []
    # instances of a patient are ranked with those of all: the difference of two scores has the
    # variance 2 + ease² + the shared part of both
    truth_rng = np.random.default_rng(0)
    a = truth_rng.normal(size=10**6) + signal + ease * truth_rng.normal(size=10**6)
    b = truth_rng.normal(size=10**6)
    truth = float((a > b).mean())
    for seed in range(COHORTS):
        cohort = Cohort(bags, positives, seed)
        inside = np.flatnonzero(cohort.y)
        of_patient = cohort.rng.normal(size=PATIENTS)[cohort.patient[inside]]
        bag = np.repeat(inside, 20)
        y = np.tile(np.arange(20) < 8, len(inside))
        score = cohort.rng.normal(size=len(bag))
        score += y * (signal + ease * np.repeat(of_patient, 20))
        draws = cohort.draws().for_items(bag)
        metric = areas(y, score, draws=draws, scale=MEAN_SHARE)["auroc"]
        given.append(metric.low is not None)
        if metric.low is not None:
            covered.append(metric.low <= truth <= metric.high)
    assert all(given) == any(given) == (positives >= FEWEST)
    assert mostly(covered)


def intervals_of_differences_hold_the_difference(bags: int, positives: int) -> None:
    """Two methods with the same AUROC, whose scores have a correlation of one half."""
    covered = []
    for seed in range(COHORTS):
        cohort = Cohort(bags, positives, seed)
        common = cohort.noise()
        draws = cohort.draws()
        a, b = (
            areas(cohort.y, common + cohort.noise() + 1.5 * cohort.y, draws=draws)["auroc"]
            for _ in range(2)
        )
        difference = a - b
        assert (difference.low is None) == (positives < FEWEST)
        if difference.low is not None:
            covered.append(difference.low <= 0 <= difference.high)
    assert mostly(covered)


def random_scores_are_seldom_better_than_chance(bags: int, positives: int) -> None:
    made = []
    for seed in range(COHORTS):
        cohort = Cohort(bags, positives, seed)
        p = expit(cohort.noise())
        metrics = binary_metrics(cohort.y.astype(int), p, threshold=0.5, draws=cohort.draws())
        made.append(metrics.overall["auroc"].is_above(0.5))
    assert seldom(made)
    assert positives >= FEWEST or not any(made)


def _calibrated(bags: int, positives: int, seed: int) -> tuple[Cohort, np.ndarray, np.ndarray]:
    """Bags share the label of their patient, and each has the probability of this label, given
    evidence of its own, or in every second cohort that of the whole patient."""
    cohort = Cohort(bags, positives, seed)
    share = positives / PATIENTS
    y = (cohort.rng.random(PATIENTS) < share)[cohort.patient]
    evidence = 1.5 * y + cohort.noise(shared=1.0 if seed % 2 else 0.6)
    p = expit(logit(share) + 1.5 * evidence - 1.5**2 / 2)
    return cohort, p, y


def _verdict(cohort: Cohort, p: np.ndarray, y: np.ndarray) -> tuple:
    draws = Draws.patients(y, groups=cohort.patient.tolist(), resamples=0, seed=0)
    bins = equal_mass_bins(p)
    ece = calibration_error(p, y, bins=bins, draws=draws)
    diagram, by_chance = reliability(p, y, bins=bins, patient=draws.member, seed=cohort.seed)
    return calibration_verdict(ece, by_chance, draws=draws, positive=y), diagram


def calibrated_models_are_seldom_called_miscalibrated(bags: int, positives: int) -> None:
    made = []
    for seed in range(COHORTS):
        cohort, p, y = _calibrated(bags, positives, seed)
        verdict, _ = _verdict(cohort, p, y)
        made.append(verdict.miscalibrated)
        of_patients = np.unique(cohort.patient[y]).size
        assert verdict.judged == (FEWEST <= of_patients <= PATIENTS - FEWEST)
    assert seldom(made)


def bands_hold_calibrated_frequencies(bags: int, positives: int) -> None:
    inside = []
    for seed in range(COHORTS):
        _, diagram = _verdict(*_calibrated(bags, positives, seed))
        first = 0 if seed % 2 else -1  # one bin of each cohort, as bins share patients
        inside.append(diagram.low[first] <= diagram.frequency[first] <= diagram.high[first])
    assert mostly(inside, rate=0.95)


def _comparison(bags: int, positives: int, seed: int):
    """A map as good as the best of three null maps, in bags of patients that differ in ease."""
    cohort = Cohort(bags, positives, seed)
    ease = cohort.noise(shared=0.8)
    draws = cohort.draws()
    values = {}
    for name, mean in {"map": 0.8, "equal": 0.8, "worse": 0.65, "worst": 0.5}.items():
        value = np.clip(mean + 0.05 * ease + 0.07 * cohort.noise(), 0, 1)
        inside = draws.for_items(np.flatnonzero(cohort.y))
        values[name] = mean_of_items(value[cohort.y], draws=inside, scale=MEAN_SHARE)
    return compare_to_null_maps("attention", values.pop("map"), values)


def maps_like_the_best_null_map_are_seldom_better(bags: int, positives: int) -> None:
    found = [_comparison(bags, positives, seed).claim for seed in range(COHORTS)]
    assert seldom([claim is Claim.BETTER_MAP for claim in found])
    assert positives >= FEWEST or set(found) == {None}


def maps_like_the_best_null_map_are_seldom_worse(bags: int, positives: int) -> None:
    found = [_comparison(bags, positives, seed).claim for seed in range(COHORTS)]
    assert seldom([claim is Claim.WORSE_MAP for claim in found])


def _doubt_claims(bags: int, positives: int) -> list[Claim | None]:
    """Doubt and margin find wrong calls, which a few patients have, equally well."""
    found = []
    for seed in range(COHORTS):
        cohort = Cohort(bags, positives, seed)
        wrong = cohort.y
        common = cohort.noise()
        scores = {k: common + cohort.noise() + wrong for k in ("doubt", "margin")}
        metrics = detections(wrong, scores, draws=cohort.draws(), items=BAGS)
        gain = metrics["error_auroc_doubt"] - metrics["error_auroc_margin"]
        found.append(detector_claim(gain))
    return found


def equal_doubt_is_seldom_better(bags: int, positives: int) -> None:
    found = _doubt_claims(bags, positives)
    assert seldom([claim is Claim.DOUBT_IS_BETTER for claim in found])
    assert positives >= FEWEST or set(found) == {None}


def equal_doubt_is_seldom_worse(bags: int, positives: int) -> None:
    found = _doubt_claims(bags, positives)
    assert seldom([claim is Claim.DOUBT_IS_WORSE for claim in found])


def right_on_average(differences: list[float]) -> bool:
    """Whether a mean over cohorts is 0 within 3.3 standard errors, which must be finite."""
    error = np.std(differences) / np.sqrt(len(differences))
    assert np.isfinite(error) and error > 0
    return abs(np.mean(differences)) <= 3.3 * error


def calls_are_wrong_as_often_as_is_said(bags: int, positives: int) -> None:
    """Bags of calibrated models, called from .3; and attention whose posterior is the world."""
    of_bags = []
    of_attention = []
    for seed in range(4 * COHORTS):
        _, p, y = _calibrated(bags, positives, seed)
        called = (p >= 0.3).astype(int)
        claimed = probability_wrong(np.stack([1 - p, p], axis=1), called)
        of_bags.append(float((claimed - (called != y)).mean()))
    for seed in range(COHORTS):
        cohort = Cohort(bags, positives, seed)
        wrong = []
        for of_patient in cohort.rng.normal(size=positives):
            for _ in range(bags):
                mean = cohort.rng.normal(size=20) * np.exp(0.3 * of_patient)
                f = mean + cohort.rng.normal(size=(300, 20))
                share = sampled_weights(torch.from_numpy(f[1:].T), (20,)).above_uniform
                above = f[0] - logsumexp(f[0]) + np.log(20) > 0
                bag = made_bag("a", mean, weight_above_uniform=share.float().numpy())
                call = instance_evidence(bag) > 0
                wrong.append(float((doubt(bag) - (call != above)).mean()))
        of_attention.append(float(np.mean(wrong)))
    assert right_on_average(of_bags)
    assert right_on_average(of_attention)


def instances_are_positive_as_often_as_is_said(bags: int, positives: int) -> None:
    """The world is the model: f ~ q, and the label of an instance has the logit αf + b."""
    alpha = 1.2
    bias = -0.5
    scale = torch.tensor([alpha]).double()
    shift = torch.tensor([bias]).double()
    low = []
    high = []
    wrong = []
    for seed in range(COHORTS):
        cohort = Cohort(bags, positives, seed)
        inside = np.flatnonzero(cohort.y)
        of_patient = cohort.rng.normal(size=PATIENTS)[cohort.patient[inside]]
        mean = cohort.rng.normal(size=(len(inside), 50)) * 2 + of_patient[:, None]
        deviation = cohort.rng.uniform(0.2, 2.0, mean.shape)
        f = mean + deviation * cohort.rng.normal(size=mean.shape)
        y = cohort.rng.random(mean.shape) < expit(alpha * f + bias)
        q = Diagonal(torch.from_numpy(mean.ravel()), torch.from_numpy(deviation.ravel() ** 2))
        p, _ = predicted_alone(q, Bernoulli(), alpha=scale, bias=shift)
        p = p.numpy().reshape(mean.shape)
        bag = made_bag("a", mean.ravel(), score_kind="evidence", instance_probability=p.ravel())
        called = mean > 0
        low.append(float(np.where(p < 0.5, y - p, 0).mean()))
        high.append(float(np.where(p >= 0.5, y - p, 0).mean()))
        wrong.append(float((doubt(bag) - (called != y).ravel()).mean()))
    assert right_on_average(low)
    assert right_on_average(high)
    assert right_on_average(wrong)


def as_many_patients_are_unlike_training_as_expected(bags: int, positives: int) -> None:
    """Patients of validation and test are alike; the classes do not matter."""
    beyond = []
    validation = 9
    for seed in range(4 * COHORTS):
        cohort = Cohort(bags, positives, seed, patients=validation + 20)
        distance = cohort.noise()
        of_validation = cohort.patient < validation
        names = [f"b{i}" for i in range(len(distance))]
        rows = np.flatnonzero(~of_validation)
        limit = distance[of_validation].max()
        table = SimpleNamespace(
            bags=names,
            parts=["val" if inside else "test" for inside in of_validation],
            ood=np.where(distance > limit, 1.0, 0.5),
            metadata=PredictionsMetadata(distance_validation_bags=int(of_validation.sum())),
        )
        patients = [f"patient {k}" for k in cohort.patient]
        group = dict(zip(names, patients, strict=True))
        context = SimpleNamespace(
            predictions=table, rows=rows.tolist(), truth=SimpleNamespace(group=group)
        )
        values, _ = beyond_validation(context)
        assert values["expected"] == pytest.approx(20 / (validation + 1))
        beyond.append(values["patients_beyond"])
    error = np.std(beyond) / np.sqrt(len(beyond))
    assert np.mean(beyond) == pytest.approx(2.0, abs=3.3 * error)


class Row(NamedTuple):
    """A claim, and what holds it."""

    claim: Claim
    holds: Callable[[int, int], None] | str
    """A simulation of cohorts with this many bags per patient and patients of the rarer class; or
    the test elsewhere that has one, as `file::function`."""


ROWS = (
    Row(Claim.INTERVAL, intervals_hold_the_population),
    Row(Claim.INTERVAL_OF_INSTANCES, intervals_of_instances_hold_the_population),
    Row(Claim.INTERVAL_OF_DIFFERENCE, intervals_of_differences_hold_the_difference),
    Row(Claim.BETTER_THAN_CHANCE, random_scores_are_seldom_better_than_chance),
    Row(Claim.MISCALIBRATED, calibrated_models_are_seldom_called_miscalibrated),
    Row(Claim.BAND_OF_CALIBRATED, bands_hold_calibrated_frequencies),
    Row(Claim.BETTER_MAP, maps_like_the_best_null_map_are_seldom_better),
    Row(Claim.WORSE_MAP, maps_like_the_best_null_map_are_seldom_worse),
    Row(Claim.DOUBT_IS_BETTER, equal_doubt_is_seldom_better),
    Row(Claim.DOUBT_IS_WORSE, equal_doubt_is_seldom_worse),
    Row(Claim.P_WRONG, calls_are_wrong_as_often_as_is_said),
    Row(Claim.INSTANCE_PROBABILITY, instances_are_positive_as_often_as_is_said),
    Row(Claim.UNLIKE_TRAINING, as_many_patients_are_unlike_training_as_expected),
    Row(
        Claim.WINNER,
        "tests/statistics/test_compare.py::test_among_equal_methods_there_is_a_winner_in_at_most_one_of_twenty_cohorts",
    ),
    Row(
        Claim.GUARANTEE,
        "tests/statistics/test_conformal.py::test_coverage_over_a_thousand_resplits_lies_in_its_band",
    ),
)
"""Every claim of the package. A new member of `Claim` needs a row here."""


def test_every_claim_has_a_simulation():
    assert [row.claim for row in ROWS] == list(Claim)
    for row in ROWS:
        if isinstance(row.holds, str):
            file, name = row.holds.split("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), row.holds


@pytest.mark.parametrize("positives", [1, 2, 3, 5])
@pytest.mark.parametrize("bags", [1, pytest.param(2, marks=pytest.mark.nightly), 5])
@pytest.mark.parametrize("row", [r for r in ROWS if callable(r.holds)], ids=lambda r: r.claim.name)
def test_a_claim_holds(row, bags, positives):
    row.holds(bags, positives)


def test_a_miscalibrated_model_is_found():
    """Power: log odds three times too large, with 20 of 40 patients of each class."""
    made = []
    for seed in range(COHORTS):
        cohort, p, y = _calibrated(2, 20, seed)
        verdict, _ = _verdict(cohort, expit(3 * logit(p)), y)
        made.append(verdict.miscalibrated)
    assert np.mean(made) >= 0.8


def test_a_better_map_and_a_better_model_are_found():
    """Power with ten patients of the rarer class of 40, and two bags each."""
    made = []
    for seed in range(COHORTS):
        cohort = Cohort(2, 10, seed)
        score = expit(1.5 * cohort.y + cohort.noise())
        metrics = binary_metrics(cohort.y.astype(int), score, draws=cohort.draws())
        made.append(metrics.overall["auroc"].is_above(0.5))
    assert np.mean(made) >= 0.8
