"""Simulated cohorts: lesions, differences between layouts, and the null layout."""

from itertools import combinations

import numpy as np
import pytest
from scipy import ndimage
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from probsa.datasets import open_bags, read_table
from probsa.datasets.copies import find_copies
from probsa.datasets.protocol import fold_splits
from probsa.datasets.simulated import simulated_cohort, write_simulated
from probsa.errors import InputError

LAYOUTS = ("contiguous", "scattered", "null")
EIGHT = np.ones((3, 3))


@pytest.fixture(scope="module")
def cohorts():
    return {n: simulated_cohort(bags=60, layout=n, seed=4, size=(14, 10)) for n in LAYOUTS}


def plane(bag):
    image = np.zeros((10, 14), dtype=int)
    image[bag.coords[:, 1] // 256, bag.coords[:, 0] // 256] = bag.instance_labels
    return image


def stacked(bags):
    return np.concatenate([b.features for b in bags]), np.concatenate(
        [b.instance_labels for b in bags]
    )


def test_half_of_the_bags_have_a_lesion_of_the_size_asked_for(cohorts):
    for bags in cohorts.values():
        assert [b.label for b in bags] == [0, 1] * 30
        sizes = [int(b.instance_labels.sum()) for b in bags]
        assert set(sizes[::2]) == {0}
        assert min(sizes[1::2]) >= 8
        assert max(sizes[1::2]) <= 20
        assert len(set(sizes[1::2])) > 5
        assert all(len(b.features) == 140 for b in bags)


def test_contiguous_lesions_are_one_piece_and_scattered_ones_many(cohorts):
    pieces = {n: [ndimage.label(plane(b))[1] for b in bags[1::2]] for n, bags in cohorts.items()}
    assert set(pieces["contiguous"]) == set(pieces["null"]) == {1}
    assert np.mean(pieces["scattered"]) > 7


def test_layouts_of_a_seed_differ_in_the_places_alone(cohorts):
    contiguous, scattered, null = (cohorts[n] for n in LAYOUTS)
    x, y = stacked(contiguous)
    moved = x[y == 1] - stacked(null)[0][y == 1]
    assert np.ptp(moved, axis=0).max() < 1e-5  # all are shifted in one direction
    assert np.linalg.norm(moved[0]) == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(x[y == 0], stacked(null)[0][y == 0])
    s, z = stacked(scattered)
    np.testing.assert_allclose(s[z == 1] - stacked(null)[0][z == 1], moved[: len(s[z == 1])],
                               atol=1e-5)  # fmt: skip
    for a, b in zip(contiguous, scattered, strict=True):
        assert a.instance_labels.sum() == b.instance_labels.sum()
        assert (a.label, a.fold) == (b.label, b.fold)


@pytest.mark.parametrize("signal", [0.5, 2.0])
def test_the_best_single_instance_is_as_good_as_stated(signal):
    bags = simulated_cohort(bags=400, layout="scattered", seed=1, signal=signal, features=8)
    x, y = stacked(bags)
    direction = x[y == 1].mean(0) - x[y == 0].mean(0)
    expected = norm.cdf(signal / np.sqrt(2))
    # three standard errors (0.0055) of an AUROC over 2,800 instances
    assert roc_auc_score(y, x @ direction) == pytest.approx(expected, abs=0.0165)


def mean_of_neighbours(bag, score):
    image = score.reshape(10, 14)
    return (ndimage.uniform_filter(image, 3, mode="nearest")).reshape(-1)


def test_neighbours_tell_more_of_contiguous_lesions_alone(cohorts):
    # scored by the true direction, which is unknown to methods
    gain = {}
    for layout in ("contiguous", "scattered"):
        bags = cohorts[layout][1::2]
        x, y = stacked(bags)
        direction = x[y == 1].mean(0) - x[y == 0].mean(0)
        single = roc_auc_score(y, x @ direction)
        smooth = np.concatenate([mean_of_neighbours(b, b.features @ direction) for b in bags])
        gain[layout] = roc_auc_score(y, smooth) - single
    assert gain["contiguous"] > 0.08
    assert gain["scattered"] < 0.0


def test_null_features_tell_nothing_of_labels():
    bags = simulated_cohort(bags=2000, layout="null", seed=0, size=(4, 4), lesion=(3, 6))
    x = np.stack([np.concatenate([b.features.mean(0), b.features.max(0)]) for b in bags])
    y = np.array([b.label for b in bags])
    score = LogisticRegression(C=0.1).fit(x[:1000], y[:1000]).decision_function(x[1000:])
    assert roc_auc_score(y[1000:], score) == pytest.approx(0.5, abs=0.055)  # 3 standard errors
    told = simulated_cohort(
        bags=2000, layout="contiguous", seed=0, size=(4, 4), lesion=(3, 6), signal=2.0
    )
    x = np.stack([np.concatenate([b.features.mean(0), b.features.max(0)]) for b in told])
    score = LogisticRegression(C=0.1).fit(x[:1000], y[:1000]).decision_function(x[1000:])
    assert roc_auc_score(y[1000:], score) > 0.8


def test_the_same_seed_gives_the_same_cohort_and_another_another():
    one, same, other = (
        simulated_cohort(bags=10, layout="scattered", seed=s, features=4) for s in (3, 3, 5)
    )
    for a, b, c in zip(one, same, other, strict=True):
        np.testing.assert_array_equal(a.features, b.features)
        np.testing.assert_array_equal(a.instance_labels, b.instance_labels)
        assert not np.array_equal(a.features, c.features)
    for a, b in combinations(one, 2):
        assert not np.array_equal(a.features, b.features)


def test_arguments_change_what_they_say():
    bags = simulated_cohort(
        bags=10, layout="contiguous", seed=0, size=(5, 4), lesion=(3, 3), features=7
    )
    assert {b.features.shape for b in bags} == {(20, 7)}
    assert {int(b.instance_labels.sum()) for b in bags} == {0, 3}
    assert bags[0].coords[5].tolist() == [0, 256]


@pytest.mark.parametrize(
    "given",
    [
        {"bags": 9},
        {"features": 0},
        {"signal": -1.0},
        {"lesion": (0, 3)},
        {"lesion": (5, 4)},
        {"size": (2, 2), "lesion": (1, 4)},
    ],
)
def test_what_cannot_be_made_is_refused(given):
    with pytest.raises(InputError, match="give"):
        simulated_cohort(**{"bags": 10, "layout": "null", "seed": 0, **given})


def test_what_is_written_is_read_with_its_folds_and_its_lattice(tmp_path):
    cohort = write_simulated(
        tmp_path, bags=20, layout="contiguous", seed=2, size=(6, 5), lesion=(3, 6), features=5
    )
    table, bags = read_table(tmp_path / "labels.csv"), open_bags(tmp_path / "features")
    assert table.bags == bags.names == tuple(b.name for b in cohort)
    for b in cohort:
        read = bags.bag(b.name)
        np.testing.assert_array_equal(read.x.numpy(), b.features)
        np.testing.assert_array_equal(read.instance_labels.numpy(), b.instance_labels)
        assert read.edges.shape[1] == 6 * 4 + 5 * 5 + 2 * 5 * 4  # sides and diagonals
    splits = fold_splits(table)
    assert [len(s.test) for s in splits] == [4] * 5
    assert all("no bag" not in s.origin for s in splits)
    assert find_copies(bags, bags.names) == []


def test_a_decoy_is_scattered_elsewhere_in_bags_with_a_lesion_alone():
    arguments = {"bags": 40, "layout": "contiguous", "seed": 2, "size": (10, 10), "features": 6}
    without = simulated_cohort(**arguments, signal=2.0)
    decoyed = simulated_cohort(**arguments, signal=2.0, decoy=5.0)
    moved = [b.features - a.features for a, b in zip(without, decoyed, strict=True)]
    for bag, difference in zip(decoyed, moved, strict=True):
        changed = np.abs(difference).sum(1) > 1e-6
        assert changed.sum() == bag.instance_labels.sum()  # as many as lesion instances
        assert not (changed & (bag.instance_labels == 1)).any()
        np.testing.assert_allclose(np.linalg.norm(difference[changed], axis=1), 5.0, rtol=1e-5)
    # one direction, orthogonal to that of the lesion
    null = simulated_cohort(**{**arguments, "layout": "null"}, signal=2.0)
    lesion = (without[1].features - null[1].features)[without[1].instance_labels == 1][0]
    decoy = moved[1][np.abs(moved[1]).sum(1) > 1e-6]
    assert np.abs(decoy @ lesion).max() < 1e-4
    np.testing.assert_allclose(decoy, np.tile(decoy[0], (len(decoy), 1)), atol=1e-5)
