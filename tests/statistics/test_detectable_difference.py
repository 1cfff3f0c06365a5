"""A difference that is called detectable is found in four of five cohorts."""

from dataclasses import replace

import numpy as np
import pytest
from probsa.statistics.comparison import compare
from probsa.statistics.detectable_difference import (
    detectable_from_intervals,
    detectable_sentence,
    minimum_detectable,
    smallest_detectable,
)
from probsa.statistics.paired_difference import StandardError
from support.equal_methods import cohort


def test_detectable_is_2_80_standard_errors():
    normal = StandardError(patients=0.02, freedom=1_000_000, replicates=0.0, count=1)
    assert minimum_detectable(normal) == pytest.approx(2.80 * 0.02, rel=1e-3)
    few = StandardError(patients=0.02, freedom=100, replicates=0.02, count=3)
    assert minimum_detectable(few) > 2.9 * few.se


def test_a_difference_as_large_as_the_detectable_is_found_in_four_of_five_cohorts():
    rng = np.random.default_rng(15)
    significant, least, differences = 0, [], []
    for i in range(100):
        y, _, scores = cohort(rng, n=120, seeds=1, seed_sd=0.0)
        scores["m1"] = scores["m1"] + 0.72 * y
        got = compare(y, scores, groups=None, metric="auroc", resamples=200, seed=i)
        significant += got.adjusted[next(iter(got.adjusted))] <= 0.05
        least.append(smallest_detectable(got))
        differences.append(got.values["m1"] - got.values["m0"])
    # The true difference equals the detectable one, so the power is 0.8.
    assert np.mean(differences) == pytest.approx(np.mean(least), rel=0.05)
    assert 0.68 <= significant / 100 <= 0.92


def test_no_difference_is_detectable_if_it_would_have_to_exceed_one():
    y, patient, scores = cohort(np.random.default_rng(3), n=60, k=2)
    got = compare(y, scores, groups=patient, metric="auroc", resamples=100)
    (name, d), *_ = got.differences.items()
    wide = replace(d, spread=StandardError(patients=0.01, freedom=50, replicates=0.2, count=2))
    assert minimum_detectable(wide.spread) > 1
    assert detectable_sentence(replace(got, differences={name: wide})) == (
        "Smallest detectable difference in AUROC: none (every difference is below 1)."
    )


def test_the_sentence_under_a_table():
    y, patient, scores = cohort(np.random.default_rng(16), n=90, bags=3, k=3)
    got = compare(y, scores, groups=patient, metric="auroc", resamples=100)
    expected = np.median([minimum_detectable(d.spread) for d in got.differences.values()])
    assert smallest_detectable(got) == pytest.approx(expected)
    assert detectable_sentence(got) == (
        f"Smallest detectable difference in AUROC: {expected:.3f} (80 % power, two-sided 0.05, "
        "30 patients, 5 replicates; median of 2 pairs, each before Holm's correction)."
    )
    same = compare(y, {"a": scores["m0"], "b": scores["m0"]}, groups=None, metric="auroc")
    assert smallest_detectable(same) is None
    assert "unknown" in detectable_sentence(same)


def test_the_sentence_of_differences_with_intervals_only():
    intervals = [(-0.02, 0.04), (None, None), (0.1, 0.3), (-0.05, 0.05)]
    assert detectable_from_intervals(intervals, what="AP") == (
        f"Smallest detectable difference in AP: {0.05 * (1.959964 + 0.841621) / 1.959964:.3f} "
        "(80 % power, two-sided 0.05, from 95 % intervals; median of 3 differences)."
    )
    assert "unknown" in detectable_from_intervals([(None, 1.0)], what="AP")
