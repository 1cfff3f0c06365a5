"""σ² and its null rivals as detectors of wrong calls: by hand; AUGRC by definition."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from support.instance_metrics import detector_metrics
from support.made_predictions import cohort, scan

from probsa.evaluation.error_detectors import (
    AREAS,
    ERROR_DETECTORS,
    RIVALS,
    doubt_verdict,
    error_verdict,
)
from probsa.evaluation.scores import doubt, instance_evidence
from probsa.statistics import Draws, augrc, auroc

# AUGRC


def _area(wrong, confidence):
    """The area under the generalised risk-coverage curve, averaged over the orders of ties."""
    n, rng = len(wrong), np.random.default_rng(0)
    areas = []
    for _ in range(4000):
        order = np.lexsort((rng.random(n), -confidence))
        areas.append(np.trapezoid(np.append(0, np.cumsum(wrong[order])) / n) / n)
    return np.mean(areas), np.std(areas) / np.sqrt(4000)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([0, 1, 0, 1], (0 + 0.5 + 1 + 1.5) / 16),  # 0, 0, 1, 1, 2 errors of 4 at coverage 0 … 4
        ([0, 0, 1, 1], 1 / 8),  # the best order, e² / 2
        ([1, 1, 0, 0], 1 / 2 - 1 / 8),  # the worst order, e - e² / 2
    ],
)
def test_augrc_by_hand(wrong, expected):
    confidence = np.array([4.0, 3.0, 2.0, 1.0])
    assert _area(np.array(wrong), confidence)[0] == pytest.approx(expected)
    assert augrc(0.5, roc_auc_score(wrong, -confidence)) == pytest.approx(expected)


def test_augrc_is_the_area_under_its_curve_also_with_ties():
    rng = np.random.default_rng(4)
    for _ in range(3):
        wrong = rng.random(30) < 0.3
        confidence = np.round(rng.random(30) - 0.3 * wrong, 1)
        mean, error = _area(wrong, confidence)
        got = augrc(wrong.mean(), roc_auc_score(wrong, -confidence))
        assert got == pytest.approx(mean, abs=4 * error)
        assert error < 1e-3


# Detectors


def _by_hand():
    """A positive scan of 6 slices; the calls of slices 1 (called) and 3 (missed) are wrong."""
    weight = np.array([6.0, 4.0, 1.0, 1.0, 1.0, 1.0]) / 14
    return scan(
        "a",
        np.log(weight),
        [1, 0, 0, 1, 0, 0],
        weight_mean=weight,
        attention_variance=[0.1, 0.9, 0.2, 0.3, 0.4, 0.1],
    )


def test_every_detector_by_hand():
    a = _by_hand()
    got = detector_metrics([a], {"a": True})
    wrong = np.array([0, 1, 0, 1, 0, 0])
    assert got["error_rate_all"].value == pytest.approx(2 / 6)
    entropy = -np.asarray(a.weight_mean) * np.log(a.weight_mean)
    expected = {
        "variance": (4 + 3) / 8,  # .9 is above all correct calls; .3 is above .1, .2, .1 but not .4
        "margin": roc_auc_score(wrong, -np.abs(np.round(instance_evidence(a), 5))),
        "entropy": roc_auc_score(wrong, np.round(entropy, 6)),
    }
    for name, value in expected.items():
        assert got[f"error_auroc_{name}_all"].value == pytest.approx(value), name
        e = 1 / 3
        area = (1 - value) * e * (1 - e) + e * e / 2
        assert got[f"augrc_{name}_all"].value == pytest.approx(area), name
    best = max(
        v
        for k, m in got.items()
        if "_all" in k
        and (v := m.value) is not None
        and k.removeprefix("error_auroc_").removesuffix("_all") in RIVALS
    )
    gain = got["error_auroc_gain_all"].value
    assert gain == pytest.approx(expected["variance"] - best)


def test_areas_are_all_and_positive_bags():
    bags, positive = cohort(6, size=9)
    got = detector_metrics(bags, positive, bootstrap=0)
    wrong, variance, inside = [], [], []
    for p in bags:
        wrong.append((instance_evidence(p) > 0) != (p.instance_labels > 0))
        variance.append(p.attention_variance)
        inside.append(np.full(81, positive[p.name]))
    wrong, variance, inside = map(np.concatenate, (wrong, variance, inside))
    for area, kept in (("all", np.ones_like(inside)), ("positive_bags", inside)):
        assert got[f"error_rate_{area}"].value == pytest.approx(wrong[kept].mean())
        expected = roc_auc_score(wrong[kept], variance[kept])
        assert got[f"error_auroc_variance_{area}"].value == pytest.approx(expected)


def test_unlabelled_instances_are_left_out():
    a = _by_hand()
    b = replace(a, instance_labels=np.int8([1, 0, 0, -1, 0, 0]))
    got = detector_metrics([b], {"a": True}, bootstrap=0)
    assert got["error_rate_all"].value == pytest.approx(1 / 5)


def test_gains_are_paired_over_resampled_bags():
    bags, positive = cohort(8)
    got = detector_metrics(bags, positive, bootstrap=25, seed=2)
    rivals = {d: got[f"error_auroc_{d}_positive_bags"].value for d in RIVALS}
    best = max(rivals, key=rivals.get)
    assert best == "margin"
    flags = np.array([positive[p.name] for p in bags])
    draws = Draws.stratified(flags, groups=None, resamples=25, seed=2)
    gains = []
    for counts in draws.counts[1:]:
        resample = [p for p, c in zip(bags, counts, strict=True) for _ in range(c)]
        resample = [p for p in resample if positive[p.name]]
        wrong = np.concatenate(
            [(instance_evidence(p) > 0) != (p.instance_labels > 0) for p in resample]
        )
        variance = np.concatenate([p.attention_variance for p in resample])
        margin = np.concatenate([np.abs(instance_evidence(p)) for p in resample])
        gains.append(roc_auc_score(wrong, variance) - roc_auc_score(wrong, -margin))
    low, high = np.quantile(gains, [0.025, 0.975])
    assert got["error_auroc_gain_positive_bags"].low == pytest.approx(low)
    assert got["error_auroc_gain_positive_bags"].high == pytest.approx(high)
    patients = {p.name: i // 2 for i, p in enumerate(bags)}
    grouped = detector_metrics(bags, positive, bootstrap=25, seed=2, groups=patients)
    assert grouped["error_rate_all"].low != got["error_rate_all"].low


def test_an_informative_variance_beats_every_rival_and_noise_does_not():
    informative, positive = cohort(
        20, variance=lambda rng, wrong: wrong + 0.1 * rng.random(len(wrong))
    )
    got = detector_metrics(informative, positive, bootstrap=100)
    assert got["error_auroc_variance_positive_bags"].value == 1.0
    assert got["error_auroc_gain_positive_bags"].low > 0
    verdict = error_verdict(got)
    assert verdict.startswith("σ² finds wrong calls better than all null rivals: AUROC 1.000")
    rest = "−w log w, its best null rival, on instances of positive bags; difference +0."
    assert rest in verdict
    noise, _ = cohort(20)
    got = detector_metrics(noise, positive, bootstrap=100)
    assert error_verdict(got).startswith("σ² finds wrong calls worse than the best null rival")
    # A variance equal to the best rival.
    same = [
        replace(p, attention_variance=np.float32(-p.weight_mean * np.log(p.weight_mean)))
        for p in noise
    ]
    got = detector_metrics(same, positive, bootstrap=100)
    assert error_verdict(got).startswith("σ² does not find wrong calls significantly better")
    assert error_verdict(detector_metrics(noise, positive, bootstrap=0)).startswith(
        "No interval shows"
    )


# Undefined metrics


def test_undefined_with_its_reason():
    bags, positive = cohort(4)
    flat = [replace(p, attention_variance=np.zeros(64, np.float32)) for p in bags]
    got = detector_metrics(flat, positive, bootstrap=3)
    assert got["error_auroc_variance_all"].reason == "this posterior has no variance"
    assert error_verdict(got) == (
        "σ² cannot be evaluated on instances of positive bags: this posterior has no variance."
    )
    negative = detector_metrics(bags[::2], positive, bootstrap=0)
    assert negative["error_rate_positive_bags"].reason == "no instances of positive bags"
    relevance = [replace(p, score_kind="relevance") for p in bags]
    got = detector_metrics(relevance, positive)
    assert {m.reason for m in got.values()} == {"relevance has no threshold for calls"}
    names = {
        f"{w}_{d}_{a}" for a in AREAS for d in ERROR_DETECTORS for w in ("error_auroc", "augrc")
    }
    words = ("rate", "auroc_gain", "auroc_doubt_gain")
    assert names | {f"error_{w}_{a}" for a in AREAS for w in words} == set(got)
    right = replace(bags[1], instance_labels=np.int8(instance_evidence(bags[1]) > 0))
    got = detector_metrics([right], positive)
    assert got["augrc_margin_all"].reason == (
        "no wrong call among 64 instances: errors cannot be ranked"
    )


# P(wrong)


def _ensemble(p, *, between):
    """Add a variance between members to a prediction."""
    within = np.asarray(p.attention_variance)
    between = np.asarray(between, np.float32)
    return replace(
        p, variance_within=within, variance_between=between, attention_variance=within + between
    )


def _evidence(**fields):
    return scan(
        "a",
        [2.0, -1.0, 0.5, -0.2, 1.5, -3.0],
        [1, 0, 0, 1, 1, 0],
        attention_variance=[1.0, 4.0, 0.25, 0.01, 9.0, 1.0],
        score_kind="evidence",
        **fields,
    )


def test_p_wrong_is_the_normal_tail_of_each_part_of_the_variance():
    p = _ensemble(_evidence(), between=[3.0, 0.5, 1.0, 4.0, 0.1, 8.0])
    e = np.abs(p.attention_mean.astype(np.float64))
    for part, variance in (
        ("total", p.attention_variance),
        ("within", p.variance_within),
        ("between", p.variance_between),
    ):
        np.testing.assert_allclose(
            doubt(p, part=part), norm.cdf(-e / np.sqrt(variance.astype(np.float64))), rtol=1e-12
        )
    single = _evidence()
    np.testing.assert_array_equal(doubt(single, part="within"), doubt(single))


def test_p_wrong_as_a_detector_by_hand():
    p = _ensemble(_evidence(), between=[9.0, 0.5, 0.01, 4.0, 0.1, 8.0])
    got = detector_metrics([p], {"a": True})
    wrong = np.array([0, 0, 1, 1, 0, 0])
    for name, part in (
        ("doubt", "total"),
        ("doubt_within", "within"),
        ("doubt_between", "between"),
    ):
        expected = roc_auc_score(wrong, doubt(p, part=part))
        assert got[f"error_auroc_{name}_all"].value == pytest.approx(expected), name
    values = [got[f"error_auroc_{d}_all"].value for d in ("doubt", "doubt_within", "doubt_between")]
    assert len(set(values)) == 3, "the parts order the instances differently"
    gain = got["error_auroc_doubt_gain_all"].value
    assert gain == pytest.approx(values[0] - got["error_auroc_margin_all"].value)


def test_p_wrong_is_undefined_without_its_part_of_the_variance():
    got = detector_metrics([_evidence()], {"a": True})
    assert (
        got["error_auroc_doubt_between_all"].reason == "one model has no variance between members"
    )
    assert got["error_auroc_doubt_within_all"] == got["error_auroc_doubt_all"]
    alike = _ensemble(_evidence(), between=np.zeros(6))
    got = detector_metrics([alike], {"a": True})
    assert got["error_auroc_doubt_between_all"].reason == "this posterior has no variance"
    flat = replace(_evidence(), attention_variance=np.zeros(6, np.float32))
    got = detector_metrics([flat], {"a": True})
    assert got["augrc_doubt_all"].reason == "this posterior has no variance"
    verdict = "P(wrong) cannot be evaluated on instances of positive bags: this posterior has no"
    assert doubt_verdict(got) == f"{verdict} variance."
    assert got["error_auroc_margin_all"].value is not None


def test_the_verdict_on_p_wrong_follows_the_interval():
    bags, positive = cohort(20)
    plain = [replace(p, score_kind="evidence") for p in bags]

    def with_variance(make):
        changed = []
        for p in plain:
            wrong = (p.attention_mean > 0) != (p.instance_labels > 0)
            changed.append(replace(p, attention_variance=np.float32(make(wrong))))
        return changed

    rng = np.random.default_rng(0)
    cases = {
        "P(wrong) finds wrong calls better than the margin": lambda wrong: 0.01 + 9.0 * wrong,
        "P(wrong) finds wrong calls worse than the margin": lambda wrong: 9.01 - 9.0 * wrong,
        "P(wrong) does not find": lambda wrong: np.full(len(wrong), 2.0),
    }
    for start, make in cases.items():
        got = detector_metrics(with_variance(make), positive, bootstrap=100)
        assert doubt_verdict(got).startswith(start)
    got = detector_metrics(with_variance(lambda wrong: rng.random(len(wrong))), positive)
    assert doubt_verdict(got).startswith("No interval shows whether P(wrong) beats the margin")


def test_p_wrong_beats_the_margin_by_chance_about_as_often_as_it_should():
    """On null tables |e| and |e|/σ are the same signal, each with its own noise."""
    tables, better, worse = 1000, 0, 0
    for table in range(tables):
        rng = np.random.default_rng((7, table))
        bag, n = np.repeat(np.arange(30), 8), 240
        draws = Draws.stratified(
            np.zeros(30, dtype=np.int64), groups=None, resamples=200, seed=table
        )
        wrong = rng.random(n) < 0.3
        common = rng.normal(size=30)[bag] - wrong
        margin, ratio = common + rng.normal(size=n), common + rng.normal(size=n)
        within = draws.for_items(bag)
        difference = auroc(wrong, -ratio, draws=within) - auroc(wrong, -margin, draws=within)
        difference = difference.student(groups=30)
        better += difference.low > 0
        worse += difference.high < 0
    # 25 are expected on each side: the 0.1 % and 99.9 % points of the binomial distribution
    assert 11 <= better <= 42, better
    assert 11 <= worse <= 42, worse
