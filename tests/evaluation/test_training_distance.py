"""Distances from training: invariances, percentiles, files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta
from sklearn.covariance import LedoitWolf

from probsa.core import Bag
from probsa.errors import BagError, InputError
from probsa.evaluation.training_distance import MOST_INSTANCES, Gaussian, TrainingDistance

NO_EDGES = {"edges": torch.zeros(2, 0, dtype=torch.int64), "weights": torch.zeros(0)}


def _x(n, *, d=5, seed=0):
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(d, d))
    return rng.normal(size=(n, d)) @ mixing + 3


def _bags(count, *, seed=0, instances=12, shift=0.0, prefix="b"):
    return {
        f"{prefix}{k}": Bag(
            name=f"{prefix}{k}",
            x=torch.from_numpy(_x(instances, seed=1000 * seed + k) + shift).float(),
            **NO_EDGES,
        )
        for k in range(count)
    }


def _fitted(**changes):
    bags = _bags(30) | _bags(12, seed=1, prefix="v")
    arguments = {
        "training": [n for n in bags if n[0] == "b"],
        "validation": [n for n in bags if n[0] == "v"],
    }
    fitted = TrainingDistance.fit(bags.__getitem__, **(arguments | changes))
    return fitted, bags


def test_the_distance_is_mahalanobis_of_standardised_features():
    x, new = _x(60), _x(7, seed=1)
    got = Gaussian.fit(x, validation=_x(5, seed=2))(new).distance
    z = (x - x.mean(0)) / x.std(0)
    estimate = LedoitWolf().fit(z)
    squared = estimate.mahalanobis((new - x.mean(0)) / x.std(0))
    np.testing.assert_allclose(got, np.sqrt(squared), rtol=1e-9)


def test_distances_do_not_depend_on_the_units_of_features():
    x, val, new = _x(60), _x(20, seed=1), _x(9, seed=2)
    scale, shift = np.array([1e-3, 2.0, -5.0, 40.0, 1e3]), np.array([5.0, 0, -3, 100, 1])
    one = Gaussian.fit(x, validation=val)(new)
    other = Gaussian.fit(x * scale + shift, validation=val * scale + shift)(new * scale + shift)
    np.testing.assert_allclose(one.distance, other.distance, rtol=1e-7)
    np.testing.assert_array_equal(one.percentile, other.percentile)


def test_a_constant_feature_of_training_that_changes_is_far():
    x = np.hstack([_x(60), np.full((60, 1), 2.0)])
    val = np.hstack([_x(20, seed=1), np.full((20, 1), 2.0)])
    gaussian = Gaussian.fit(x, validation=val)
    assert np.isfinite(gaussian(val).distance).all()
    changed = val.copy()
    changed[:, -1] = 50
    assert gaussian(changed).percentile.min() == 1


def test_percentiles_by_hand():
    gaussian = Gaussian.fit(_x(60), validation=_x(4, seed=1))
    gaussian = replace(gaussian, reference=np.sort(gaussian(_x(4, seed=1)).distance))
    got = gaussian(_x(4, seed=1)).percentile
    np.testing.assert_allclose(np.sort(got), [1 / 8, 3 / 8, 5 / 8, 7 / 8])
    far, near = gaussian(_x(1) + 1e4), gaussian((gaussian.scale_mean)[None])
    assert far.percentile[0] == 1 and near.percentile[0] == 0


def test_percentiles_of_exchangeable_bags_are_uniform():
    """The share of new items above the k-th of n validation distances has a Beta distribution."""
    n, k = 99, 89
    shares = []
    for seed in range(200):
        gaussian = Gaussian.fit(_x(50, seed=seed), validation=_x(n, seed=1000 + seed))
        new = gaussian(_x(400, seed=5000 + seed))
        assert ((new.percentile >= 0) & (new.percentile <= 1)).all()
        shares.append((new.percentile >= k / n).mean())
    law = beta(n + 1 - k, k)  # of the probability that a new item lies beyond the k-th
    spread = np.sqrt(law.var() + law.mean() * (1 - law.mean()) / 400)
    assert abs(np.mean(shares) - law.mean()) < 4 * spread / np.sqrt(200)
    low, high = law.ppf([0.0005, 0.9995])
    slack = 3 * np.sqrt(high * (1 - high) / 400)
    assert np.mean([(low - slack <= s <= high + slack) for s in shares]) > 0.98


def test_bags_and_instances_that_are_far_get_one():
    fitted, bags = _fitted()
    near = fitted.of(bags["v3"])
    far = fitted.of(_bags(1, seed=7, shift=200.0)["b0"])
    assert far["bag_ood"] == 1 and (far["ood"] == 1).all()
    assert near["bag_ood"] < 1 and near["ood"].mean() < 0.9
    assert far["bag_ood_distance"] > near["bag_ood_distance"]
    assert near["ood"].shape == near["ood_distance"].shape == (12,)


def test_the_sample_of_instances_is_limited_and_follows_its_seed():
    count = 3
    size = MOST_INSTANCES // count + 50
    bags = _bags(count, instances=size) | _bags(2, seed=1, prefix="v")
    names = {"training": ["b0", "b1", "b2"], "validation": ["v0", "v1"]}
    one = TrainingDistance.fit(bags.__getitem__, **names)
    assert one.about["training_instances"] == count * (MOST_INSTANCES // count)
    again = TrainingDistance.fit(bags.__getitem__, **names)
    other = TrainingDistance.fit(bags.__getitem__, **names, seed=1)
    np.testing.assert_array_equal(one.instances.mean, again.instances.mean)
    assert (one.instances.scale_mean != other.instances.scale_mean).any()
    np.testing.assert_array_equal(one.bags.mean, other.bags.mean)


def test_too_few_bags_have_no_distances_and_unreadable_ones_are_passed_over():
    assert _fitted(validation=["v1"])[0] is None
    bags = _bags(5) | _bags(3, seed=1, prefix="v")

    def read(name):
        if name == "b2":
            raise BagError("damaged")
        return bags[name]

    names = [f"b{k}" for k in range(5)]
    fitted = TrainingDistance.fit(read, training=names, validation=["v0", "v1", "v2"])
    assert fitted.about["training_bags"] == 4


def test_files(tmp_path):
    fitted, bags = _fitted()
    fitted.write(tmp_path / "d.npz")
    assert (tmp_path / "d.json").is_file()
    read = TrainingDistance.read(tmp_path / "d.npz")
    one, other = fitted.of(bags["v1"]), read.of(bags["v1"])
    np.testing.assert_allclose(one["ood_distance"], other["ood_distance"], rtol=1e-4)
    narrow = Bag(name="n", x=torch.zeros(3, 2), **NO_EDGES)
    with pytest.raises(BagError, match="bag 'n' has 2 features per instance, those of training 5"):
        read.of(narrow)
    (tmp_path / "d.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="does not hold the distances of a run"):
        TrainingDistance.read(tmp_path / "d.npz")
