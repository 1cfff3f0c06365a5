"""Digit slides and simulated cohorts: their structure, their difficulty, and what is written."""

import csv
from itertools import combinations

import h5py
import numpy as np
import pytest
import torch
from scipy import ndimage
from scipy.stats import norm
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from support.refusals import refused

from probsa.core import graphs
from probsa.datasets import (
    LESION_DIGIT,
    LOOKALIKE_DIGITS,
    fold_splits,
    open_bags,
    read_table,
    synthetic,
    write_digit_slides,
)
from probsa.datasets.synthetic import STRIDE, SyntheticSlide, digit_slides, write_simulated
from probsa.errors import InputError

DIGIT = load_digits().target


@pytest.fixture(scope="module")
def slides() -> list[SyntheticSlide]:
    return digit_slides(bags=60, seed=3)


def plane(s: SyntheticSlide, values) -> np.ndarray:
    image = np.zeros((16, 16), dtype=int)
    image[s.coords[:, 1] // STRIDE, s.coords[:, 0] // STRIDE] = values
    return image


def test_labels_say_whether_there_is_a_lesion_and_lesions_are_contiguous(slides):
    for s in slides:
        assert s.label == s.instance_labels.max()
        np.testing.assert_array_equal(DIGIT[s.digits] == LESION_DIGIT, s.instance_labels == 1)
    for s in slides:
        lesions, count = ndimage.label(plane(s, s.instance_labels))
        assert count == 0 if s.label == 0 else 1 <= count <= 2
        for k in range(1, count + 1):
            assert 6 <= (lesions == k).sum() <= 32
    sizes = [s.instance_labels.mean() for s in slides if s.label]
    assert max(sizes) < 0.35
    assert np.mean(sizes) < 0.15


def test_tissue_lookalikes_and_parts(slides):
    for label in (0, 1):
        share = [
            np.isin(DIGIT[s.digits], LOOKALIKE_DIGITS).mean() for s in slides if s.label == label
        ]
        assert np.mean(share) > 0.25
    shapes = [plane(s, 1) for s in slides]
    assert len({s.tobytes() for s in shapes}) == len(slides)
    islands = [ndimage.label(s, np.ones((3, 3)))[1] for s in shapes]
    holes = [ndimage.label(1 - np.pad(s, 1))[1] - 1 for s in shapes]
    assert 0 < np.mean([k > 1 for k in islands]) < 0.6
    assert 0.2 < np.mean([k > 0 for k in holes]) < 1
    assert all(60 <= s.sum() <= 230 for s in shapes)
    parts = {p: [s for s in slides if s.part == p] for p in ("train", "val", "test")}
    assert {p: len(v) for p, v in parts.items()} == {"train": 30, "val": 12, "test": 18}
    for held in parts.values():
        assert sum(s.label for s in held) * 2 == len(held)
    used = [set(np.concatenate([s.digits for s in v]).tolist()) for v in parts.values()]
    assert all(not a & b for a, b in combinations(used, 2))


def test_the_seed_decides_everything():
    one, two, other = (digit_slides(bags=12, seed=s) for s in (1, 1, 2))
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a.features, b.features) and np.array_equal(a.coords, b.coords)
    assert any(a.features.shape != c.features.shape for a, c in zip(one, other, strict=True))


def test_features_are_the_mixed_pixels_with_noise(monkeypatch):
    noisy = digit_slides(bags=12, seed=1)[1]
    monkeypatch.setattr(synthetic, "NOISE", 0.0)
    clean = digit_slides(bags=12, seed=1)[1]
    pixels = load_digits().data[clean.digits] / 16
    # an orthogonal matrix keeps the angles between digits
    np.testing.assert_allclose(clean.features @ clean.features.T, pixels @ pixels.T, rtol=1e-4)
    assert clean.features.dtype == np.float32
    assert np.abs(clean.features - pixels).max() > 0.1
    assert (noisy.features - clean.features).std() == pytest.approx(0.65, rel=0.05)


def test_single_patches_are_ambiguous_but_not_hopeless():
    """A supervised patch classifier, as an upper reference for weakly supervised models."""
    slides = digit_slides(bags=80, seed=0)
    x, y = {}, {}
    for part in ("train", "test"):
        part_slides = [s for s in slides if s.part == part]
        x[part] = np.concatenate([s.features for s in part_slides])
        y[part] = np.concatenate([s.instance_labels for s in part_slides])
    model = LogisticRegression(max_iter=500).fit(x["train"], y["train"])
    assert 0.8 < roc_auc_score(y["test"], model.decision_function(x["test"])) < 0.97


def test_too_few_slides_are_refused():
    refused(InputError, "12 bags", digit_slides, seed=0, bags=4)


def test_written_slides_are_read_back(tmp_path):
    slides = write_digit_slides(tmp_path, bags=12, seed=5)
    stored_bags = open_bags(tmp_path / "features")
    assert sorted(stored_bags.names) == [s.name for s in slides]
    for s in slides:
        bag = stored_bags.bag(s.name)
        np.testing.assert_array_equal(bag.x, s.features)
        np.testing.assert_array_equal(bag.coords, s.coords)
        np.testing.assert_array_equal(bag.instance_labels, s.instance_labels)
        assert bag.stride == STRIDE
        assert torch.equal(bag.edges, graphs.grid(bag.coords, stride=STRIDE))
    with (tmp_path / "labels.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [(r["bag"], r["label"], r["split"]) for r in rows] == [
        (s.name, str(s.label), s.part) for s in slides
    ]
    with h5py.File(tmp_path / "features" / "slide_000.h5") as f:
        assert f.attrs["probsa_kind"] == "slide"


def stacked(bags):
    return [np.concatenate([getattr(b, k) for b in bags]) for k in ("features", "instance_labels")]


def test_half_of_the_bags_have_a_contiguous_lesion_of_the_size_asked_for(tmp_path):
    bags = write_simulated(tmp_path, bags=60, layout="contiguous", seed=4, size=(14, 10))
    assert [b.label for b in bags] == [0, 1] * 30
    sizes = [int(b.instance_labels.sum()) for b in bags]
    assert set(sizes[::2]) == {0} and 8 <= min(sizes[1::2]) < max(sizes[1::2]) <= 20
    for bag in bags[1::2]:
        assert ndimage.label(bag.instance_labels.reshape(10, 14))[1] == 1


def test_a_null_cohort_lacks_the_shift_alone(tmp_path):
    arguments = {"bags": 400, "seed": 1, "size": (6, 6), "lesion": (3, 8), "features": 8}
    signal = write_simulated(tmp_path / "a", layout="contiguous", signal=2.0, **arguments)
    (x, y), (null, _) = (
        stacked(signal),
        stacked(write_simulated(tmp_path / "b", layout="null", **arguments)),
    )
    np.testing.assert_array_equal(x[y == 0], null[y == 0])
    moved = x[y == 1] - null[y == 1]
    assert np.ptp(moved, axis=0).max() < 1e-5  # all are shifted in one direction
    assert np.linalg.norm(moved[0]) == pytest.approx(2.0, abs=1e-5)
    # three standard errors of an AUROC
    expected = norm.cdf(2.0 / np.sqrt(2))
    assert roc_auc_score(y, x @ moved[0]) == pytest.approx(expected, abs=0.02)
    assert roc_auc_score(y, null @ moved[0]) == pytest.approx(0.5, abs=0.04)


def test_what_is_written_is_read_with_its_folds_and_its_lattice(tmp_path):
    arguments = {"bags": 20, "layout": "contiguous", "size": (6, 5), "lesion": (3, 6)}
    cohort = write_simulated(tmp_path, seed=2, features=5, **arguments)
    table = read_table(tmp_path / "labels.csv")
    bags = open_bags(tmp_path / "features")
    assert table.bags == bags.names == tuple(b.name for b in cohort)
    for b in cohort:
        read = bags.bag(b.name)
        np.testing.assert_array_equal(read.x.numpy(), b.features)
        np.testing.assert_array_equal(read.instance_labels.numpy(), b.instance_labels)
        assert read.edges.shape[1] == 6 * 4 + 5 * 5 + 2 * 5 * 4  # sides and diagonals
    assert [len(s.test) for s in fold_splits(table)] == [4] * 5
    again = write_simulated(tmp_path / "again", seed=2, features=5, **arguments)
    assert all((a.features == b.features).all() for a, b in zip(cohort, again, strict=True))


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
def test_what_cannot_be_made_is_refused(given, tmp_path):
    with pytest.raises(InputError, match="10 bags"):
        write_simulated(tmp_path, **{"bags": 10, "layout": "null", "seed": 0, **given})
