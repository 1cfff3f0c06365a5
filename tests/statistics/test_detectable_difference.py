"""What is called detectable is found in four of five cohorts."""

from dataclasses import replace

import numpy as np
import pytest
from support.equal_methods import cohort

from probsa.errors import InputError
from probsa.statistics.comparison import compare
from probsa.statistics.delong_test import delong
from probsa.statistics.detectable_difference import (
    auroc_se,
    detectable,
    detectable_sentence,
    smallest_detectable,
)
from probsa.statistics.paired_difference import Spread


def test_detectable_is_2_80_standard_errors():
    normal = Spread(patients=0.02, freedom=1_000_000, replicates=0.0, count=1)
    assert detectable(normal) == pytest.approx(2.80 * 0.02, rel=1e-3)
    few = Spread(patients=0.02, freedom=100, replicates=0.02, count=3)
    assert detectable(few) > 2.9 * few.se


def test_a_difference_as_large_as_the_detectable_is_found_in_four_of_five_cohorts():
    rng = np.random.default_rng(15)
    found, least, differences = 0, [], []
    for i in range(100):
        y, _, scores = cohort(rng, n=120, seeds=1, seed_sd=0.0)
        scores["m1"] = scores["m1"] + 0.72 * y
        got = compare(y, scores, groups=None, metric="auroc", resamples=200, seed=i)
        found += got.adjusted[next(iter(got.adjusted))] <= 0.05
        least.append(smallest_detectable(got))
        differences.append(got.values["m1"] - got.values["m0"])
    # What was planted is as large as what is called detectable, so its power is 0.8.
    assert np.mean(differences) == pytest.approx(np.mean(least), rel=0.05)
    assert 0.68 <= found / 100 <= 0.92


def test_a_difference_above_one_is_none_that_can_be():
    y, patient, scores = cohort(np.random.default_rng(3), n=60, k=2)
    got = compare(y, scores, groups=patient, metric="auroc", resamples=100)
    (name, d), *_ = got.differences.items()
    wide = replace(d, spread=Spread(patients=0.01, freedom=50, replicates=0.2, count=2))
    assert detectable(wide.spread) > 1
    assert detectable_sentence(replace(got, differences={name: wide})) == (
        "Smallest detectable difference in AUROC: none that there can be (all are below 1)."
    )


def test_what_stands_under_a_table():
    y, patient, scores = cohort(np.random.default_rng(16), n=90, bags=3, k=3)
    got = compare(y, scores, groups=patient, metric="auroc", resamples=100)
    expected = np.median([detectable(d.spread) for d in got.differences.values()])
    assert smallest_detectable(got) == pytest.approx(expected)
    assert detectable_sentence(got) == (
        f"Smallest detectable difference in AUROC: {expected:.3f} (80 % power, two-sided 0.05, "
        "30 patients, 5 replicates; median of 2 pairs, each before Holm's correction)."
    )
    same = compare(y, {"a": scores["m0"], "b": scores["m0"]}, groups=None, metric="auroc")
    assert smallest_detectable(same) is None
    assert "unknown" in detectable_sentence(same)


@pytest.mark.parametrize(
    ("auroc", "positives", "negatives", "half"),
    [
        (0.98, 49, 80, 0.028),
        (0.95, 49, 80, 0.044),
        (0.90, 60, 90, 0.056),
        (0.98, 1850, 750, 0.0047),
    ],
)
def test_the_error_of_one_auroc_is_the_specifications(auroc, positives, negatives, half):
    """CAMELYON16's test part, RSNA's and PANDA's sizes."""
    got = 1.96 * auroc_se(auroc, positives=positives, negatives=negatives)
    assert got == pytest.approx(half, abs=0.0005 if half > 0.01 else 0.00005)
    if (auroc, positives) == (0.98, 49):
        assert auroc_se(auroc, positives=49, negatives=80) == pytest.approx(0.0143, abs=5e-5)


def test_the_planned_error_of_an_auroc_is_near_delongs():
    y, _, scores = cohort(np.random.default_rng(17), n=400, seeds=1)
    got = delong(y, scores["m0"])
    planned = auroc_se(float(got.auc[0]), positives=160, negatives=240)
    assert planned == pytest.approx(got.se[0], rel=0.15)


@pytest.mark.parametrize(("auroc", "positives"), [(1.1, 5), (0.9, 0)])
def test_what_cannot_be_planned_is_said(auroc, positives):
    with pytest.raises(InputError, match=f"AUROC {auroc} of {positives} positive"):
        auroc_se(auroc, positives=positives, negatives=5)
