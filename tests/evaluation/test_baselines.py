"""Null maps and distances from training: their scores by other means, and what is missing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy import stats
from scipy.spatial.distance import mahalanobis
from scipy.stats import binom
from sklearn.covariance import LedoitWolf, ledoit_wolf
from support.refusals import refused
from support.stored import WIDTH

from probsa import Bag
from probsa.core import StoredBag
from probsa.errors import BagError, CheckpointError, InputError
from probsa.evaluation import (
    NullMaps,
    TrainingDistance,
    centre,
    compare_to_null_maps,
    fit_null_maps,
)
from probsa.evaluation.baselines.distance import MOST_INSTANCES, Gaussian
from probsa.evaluation.baselines.null_maps import NO_COORDINATES, NO_INTENSITY, position_basis
from probsa.evaluation.words import NULL_TITLES
from probsa.models import build
from probsa.statistics import MEAN_SHARE, Draws, Metric, Support, mean_of_items

NO_EDGES = {"edges": torch.zeros(2, 0, dtype=torch.int64), "weights": torch.zeros(0)}


def stored(name, *, seed, y, n=15, coords=True, **fields):
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, WIDTH)) * np.arange(1, WIDTH + 1) + 7
    x[: n // 3, 0] += 2 * y
    place = np.stack([np.arange(n) % 5, np.arange(n) // 5], 1) * 256
    return StoredBag(
        name=name, features=x.astype(np.float32), coords=place if coords else None, **fields
    )


def cohort(count, *, seed, labels=(0, 1), prefix="b", **fields):
    """Return bags by name, and their labels."""
    bags = [
        stored(f"{prefix}{k}", seed=seed + k, y=labels[k % len(labels)], **fields)
        for k in range(count)
    ]
    return {b.name: b for b in bags}, {b.name: labels[k % len(labels)] for k, b in enumerate(bags)}


def fit(train, validation=None):
    validation = validation or ({}, {})
    bags = train[0] | validation[0]
    labels = train[1] | validation[1]
    names = {"train": list(train[0]), "validation": list(validation[0])}
    return fit_null_maps(bags.__getitem__, labels=labels, **names)


@pytest.fixture(scope="module")
def fitted():
    return fit(cohort(20, seed=0), cohort(8, seed=100, prefix="v"))


def test_scores_without_training_are_their_formulas(fitted):
    bag = stored("new", seed=999, y=1)
    got = fitted.scores(bag)
    rows = np.concatenate([b.features for b in cohort(20, seed=0)[0].values()]).astype(np.float64)
    z = (bag.features - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(got["norm"], np.sqrt((z**2).sum(1)), rtol=1e-10)
    precision = np.linalg.inv(ledoit_wolf((rows - rows.mean(0)) / rows.std(0))[0])
    want = [mahalanobis(v, np.zeros(WIDTH), precision) for v in z]
    np.testing.assert_allclose(got["mahalanobis"], want, rtol=1e-9)
    middle = np.array([4 * 256, 2 * 256]) / 2
    np.testing.assert_allclose(got["centre"], -np.hypot(*(bag.coords - middle).T), rtol=1e-12)
    assert got["darkness"] == NO_INTENSITY and "brightness" not in got


@pytest.mark.parametrize(
    ("null_map", "model"), [("mean_features", "mean-pool"), ("single_instance", "instance-lr")]
)
def test_the_regressions_are_the_maps_of_the_models(fitted, null_map, model):
    def bags(some):
        return [
            Bag(name=b.name, x=torch.from_numpy(b.features), y=some[1][b.name], **NO_EDGES)
            for b in some[0].values()
        ]

    m = build(model, in_dim=WIDTH).double()
    m.fit_bags(bags(cohort(20, seed=0)), bags(cohort(8, seed=100, prefix="v")))
    bag = stored("new", seed=999, y=1)
    with torch.no_grad():
        z = (torch.from_numpy(bag.features).double() - m.mean) / m.deviation
        want = m.linear(z)[:, 0].numpy()
    np.testing.assert_allclose(fitted.scores(bag)[null_map], want, atol=1e-6)
    assert fitted.about[f"{null_map}_C"] == float(m.monitored()["C"])


def test_the_place_within_a_bag_has_no_unit_and_learns_from_labels_of_bags():
    grid = np.stack(np.meshgrid(np.arange(7), np.arange(4)), -1).reshape(-1, 2)
    basis = position_basis(grid)
    np.testing.assert_allclose(basis.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(position_basis(grid * 512 + 99), basis, atol=1e-12)
    assert position_basis(grid[:1]).shape == (1, basis.shape[1])
    # positive bags have instances at the top only, so that the top speaks for positive bags
    line = np.arange(30)[:, None]

    def bag(name, y):
        coords = np.concatenate([line[:15], line[-1:]]) if y else line
        return StoredBag(name=name, features=np.zeros((len(coords), 2), np.float32), coords=coords)

    some = {f"b{k}": bag(f"b{k}", k % 2) for k in range(10)}
    maps = fit((some, {name: k % 2 for k, name in enumerate(some)}))
    score = maps.scores(bag("new", 0))["position"]
    assert score[2:14].min() > score[16:28].max()


def test_darkness_of_patches_and_brightness_of_slices(fitted):
    level = np.linspace(0, 255, 15).astype(np.float32)
    slide = fitted.scores(stored("s", seed=1, y=0, intensity=level))
    np.testing.assert_array_equal(slide["darkness"], -level.astype(np.float64))
    scan = fitted.scores(stored("s", seed=1, y=0, intensity=level, kind="ct"))
    np.testing.assert_array_equal(scan["brightness"], level)
    assert "darkness" not in scan


def test_only_a_sample_of_large_bags_is_kept(monkeypatch):
    monkeypatch.setattr("probsa.evaluation.baselines.null_maps.sample_size", lambda bags: 4)
    maps = fit(cohort(20, seed=0))
    assert maps.about["instances"] == 80 and maps.about["instances_per_bag"] == 4
    again = fit(cohort(20, seed=0))
    for key, value in maps.arrays.items():
        np.testing.assert_array_equal(again.arrays[key], value)


def test_what_is_missing_has_a_reason_and_bad_bags_are_refused(fitted):
    got = fit(cohort(6, seed=0, labels=(1,))).scores(stored("new", seed=5, y=1))
    for name in ("mean_features", "single_instance", "position"):
        assert "all 6 training bags" in got[name]
    for name in ("centre", "norm", "mahalanobis"):
        assert got[name].shape == (15,)
    without = fit(cohort(8, seed=0, coords=False))
    got = without.scores(stored("new", seed=5, y=1, coords=False))
    assert got["centre"] == got["position"] == NO_COORDINATES == centre(None)
    assert without.missing["position"] == f"{NO_COORDINATES} in the training bags"
    assert got["mean_features"].shape == (15,)
    assert without.about["mean_features_C"] == 1.0  # no validation bags
    bad = stored("bad", seed=0, y=0)
    bad.features[3, 1] = np.nan
    with pytest.raises(BagError, match=r"'bad'.* row 3"):
        fit(({"bad": bad}, {"bad": 0}))
    narrow = replace(bad, features=np.zeros((15, 2), np.float32))
    refused(BagError, f"\\b2 .*\\b{WIDTH}\\b", fitted.scores, narrow)
    refused(InputError, "training bags", fit, ({}, {}))


def test_a_stored_fit_gives_the_same_scores_and_a_foreign_file_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "maps.safetensors")
    again = NullMaps.load(tmp_path / "maps.safetensors")
    bag = stored("new", seed=9, y=1)
    for name, score in fitted.scores(bag).items():
        np.testing.assert_array_equal(again.scores(bag)[name], score)
    assert again.about == fitted.about
    (tmp_path / "text").write_text("no maps")
    refused(CheckpointError, "text", NullMaps.load, tmp_path / "text")
    save_file({"mean": np.zeros(2)}, tmp_path / "other")
    refused(CheckpointError, "other", NullMaps.load, tmp_path / "other")
    fitted.save(tmp_path / "maps.safetensors")
    arrays = {**fitted.arrays, "norm.weight": np.zeros(2), "whitening": np.zeros((2, 2))}
    replace(fitted, arrays=arrays).save(tmp_path / "misshapen")
    with pytest.raises(CheckpointError, match=r"whitening .*\(2, 2\)"):
        NullMaps.load(tmp_path / "misshapen")


def sample(value, *, deviation=0.02, seed=0, patients=50):
    noise = np.random.default_rng(seed).normal(scale=deviation, size=2000)
    support = Support(patients=patients, part=None, trials=float(patients - 1))
    rows = np.array([value, *(value + noise)])
    return Metric.of(rows, support=support, scale=MEAN_SHARE)


def test_a_map_must_beat_every_null_map():
    nulls = {"centre": sample(0.6, seed=1), "norm": sample(0.55, seed=2)}
    won = compare_to_null_maps("evidence", sample(0.8), nulls)
    assert (won.verdict, won.null) == ("better", "centre")
    for fact in ("evidence map", " .800 ", " .600 ", NULL_TITLES["centre"], "+.200 [+.1"):
        assert fact in won.sentence
    low, high = won.differences["centre"].low, won.differences["centre"].high
    half = stats.t.ppf(0.975, 49) * 0.02 * 2**0.5
    assert (low, high) == pytest.approx((0.2 - half, 0.2 + half), abs=0.005)
    # a wide interval to a poor null map leaves it open, and the sentence says which one
    nulls["norm"] = sample(0.55, deviation=0.3, seed=2)
    open_ = compare_to_null_maps("evidence", sample(0.8), nulls)
    assert (open_.verdict, open_.null) == ("undecided", "centre")
    assert "+.250 [−" in open_.sentence and NULL_TITLES["norm"] in open_.sentence


def test_a_map_that_loses_and_one_that_cannot_be_compared():
    nulls = {"position": sample(0.9, seed=1)}
    lost = compare_to_null_maps("attention", sample(0.6), nulls)
    assert lost.verdict == "not better" and "−.300 [−" in lost.sentence
    alone = compare_to_null_maps("attention", sample(0.6, patients=1), nulls)
    assert alone.verdict == "undecided" and alone.claim is None
    assert alone.differences["position"].no_interval.patients == 1
    nothing = compare_to_null_maps("attention", sample(0.6), {})
    assert nothing.verdict == "undefined" and nothing.null is None
    missing = Metric.undefined("no positive bag")
    undefined = compare_to_null_maps("attention", missing, nulls)
    assert undefined.value.reason in undefined.sentence and undefined.null is None


SIGNAL = {"random": (0.0, 0.0), "equal": (1.0, 1.0), "better": (1.5, 0.5)}
"""How far the scores of positive instances lie above the others: of the map, and of one null."""
"""How far the scores of positive instances lie above the others: of the map, and of one null."""


def verdict(case, *, groups, seed):
    """The verdict of one cohort of positive bags in groups of one to three; 6 of 30 instances of a
    bag are positive, groups differ in how easy they are, and there are six null maps."""
    rng = np.random.default_rng((seed, groups))
    group = np.repeat(np.arange(groups), rng.integers(1, 4, size=groups))
    ease = rng.normal(scale=0.5, size=groups)[group]
    draws = Draws.patients(np.ones(len(group)), groups=group.tolist(), resamples=200, seed=seed)
    metrics = []
    for signal in [*SIGNAL[case], *[0.0] * 5]:
        score = rng.normal(size=(len(group), 30))
        score[:, :6] += (signal * np.exp(ease) if signal else 0 * ease)[:, None]
        auroc = (score[:, :6, None] > score[:, None, 6:]).mean((1, 2))
        metrics.append(mean_of_items(auroc, draws=draws, scale=MEAN_SHARE))
    nulls = {f"null{k}": metric for k, metric in enumerate(metrics[1:])}
    return compare_to_null_maps("random", metrics[0], nulls).verdict


@pytest.mark.parametrize(("case", "groups"), [("equal", 5), ("random", 10)])
def test_a_map_that_is_no_better_seldom_wins(case, groups):
    """In at most 2.5 % of cohorts; 1,000 cohorts and more cases are in benchmarks/RESULTS.md."""
    found = [verdict(case, groups=groups, seed=s) for s in range(200)]
    assert found.count("better") <= binom.ppf(0.999, 200, 0.025)


def features(n, *, d=5, seed=0):
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(d, d))
    return rng.normal(size=(n, d)) @ mixing + 3


def made_bags(count, *, seed=0, instances=12, shift=0.0, prefix="b"):
    return {
        f"{prefix}{k}": Bag(
            name=f"{prefix}{k}",
            x=torch.from_numpy(features(instances, seed=1000 * seed + k) + shift).float(),
            **NO_EDGES,
        )
        for k in range(count)
    }


def distances(**changes):
    bags = made_bags(30) | made_bags(12, seed=1, prefix="v")
    arguments = {
        "training": [n for n in bags if n[0] == "b"],
        "validation": [n for n in bags if n[0] == "v"],
    }
    return TrainingDistance.fit(bags.__getitem__, **(arguments | changes)), bags


def test_the_distance_is_mahalanobis_of_standardised_features_without_units():
    x = features(60)
    new = features(7, seed=1)
    val = features(5, seed=2)
    one = Gaussian.fit(x, validation=val)
    squared = LedoitWolf().fit((x - x.mean(0)) / x.std(0)).mahalanobis((new - x.mean(0)) / x.std(0))
    np.testing.assert_allclose(one.distance(new), np.sqrt(squared), rtol=1e-9)
    scale = np.array([1e-3, 2.0, -5.0, 40.0, 1e3])
    shift = np.array([5.0, 0, -3, 100, 1])
    other = Gaussian.fit(x * scale + shift, validation=val * scale + shift)
    np.testing.assert_allclose(other.distance(new * scale + shift), one.distance(new), rtol=1e-7)
    constant = np.hstack([x, np.full((60, 1), 2.0)])
    gaussian = Gaussian.fit(constant, validation=constant[:20])
    changed = constant[:20] + np.array([0, 0, 0, 0, 0, 50])
    assert gaussian.percentile(gaussian.distance(changed)).min() == 1


def test_percentiles_by_hand_and_far_bags():
    gaussian = Gaussian.fit(features(60), validation=features(4, seed=1))
    got = gaussian.percentile(gaussian.distance(features(4, seed=1)))
    np.testing.assert_allclose(np.sort(got), [1 / 8, 3 / 8, 5 / 8, 7 / 8])
    far = gaussian.distance(features(1) + 1e4)
    assert gaussian.percentile(far)[0] == 1
    assert gaussian.percentile(gaussian.distance(gaussian.scale_mean[None]))[0] == 0
    fitted, bags = distances()
    near = fitted.scores(bags["v3"])
    far = fitted.scores(made_bags(1, seed=7, shift=200.0)["b0"])
    assert far["bag_ood"] == 1 and (far["ood"] == 1).all()
    assert near["bag_ood"] < 1 and near["ood"].mean() < 0.9
    assert far["bag_ood_distance"] > near["bag_ood_distance"]
    assert near["ood"].shape == near["ood_distance"].shape == (12,)
    assert distances(validation=["v1"])[0] is None
    bags = made_bags(5) | made_bags(3, seed=1, prefix="v")

    def read(name):
        if name == "b2":
            raise BagError("damaged")
        return bags[name]

    names = [f"b{k}" for k in range(5)]
    fitted = TrainingDistance.fit(read, training=names, validation=["v0", "v1", "v2"])
    assert fitted.about["training_bags"] == 4


def test_the_sample_of_instances_is_limited_and_follows_its_seed():
    size = MOST_INSTANCES // 3 + 50
    bags = made_bags(3, instances=size) | made_bags(2, seed=1, prefix="v")
    names = {"training": ["b0", "b1", "b2"], "validation": ["v0", "v1"]}
    one, again = (TrainingDistance.fit(bags.__getitem__, **names) for _ in range(2))
    assert one.about["training_instances"] == 3 * (MOST_INSTANCES // 3)
    other = TrainingDistance.fit(bags.__getitem__, **names, seed=1)
    np.testing.assert_array_equal(one.instances.mean, again.instances.mean)
    assert (one.instances.scale_mean != other.instances.scale_mean).any()
    np.testing.assert_array_equal(one.bags.mean, other.bags.mean)


def test_files_of_distances(tmp_path):
    fitted, bags = distances()
    fitted.write(tmp_path / "d.npz")
    assert (tmp_path / "d.json").is_file()
    read = TrainingDistance.read(tmp_path / "d.npz")
    one = fitted.scores(bags["v1"])
    other = read.scores(bags["v1"])
    np.testing.assert_allclose(one["ood_distance"], other["ood_distance"], rtol=1e-4)
    narrow = Bag(name="n", x=torch.zeros(3, 2), **NO_EDGES)
    with pytest.raises(BagError, match=r"bag 'n' .*2 .*5"):
        read.scores(narrow)
    (tmp_path / "d.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"d\.npz"):
        TrainingDistance.read(tmp_path / "d.npz")


def test_a_map_that_is_better_wins():
    found = [verdict("better", groups=20, seed=s) for s in range(30)]
    assert found.count("better") > 20
