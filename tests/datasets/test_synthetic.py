"""Digit slides: their structure, their difficulty, and the absence of leaks."""

import csv
from itertools import combinations

import h5py
import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from support.refusals import refused

from probsa.datasets import open_bags, synthetic
from probsa.datasets.synthetic import (
    LESION_DIGIT,
    LOOKALIKE_DIGITS,
    STRIDE,
    SyntheticSlide,
    digit_slides,
    write_digit_slides,
)
from probsa.errors import InputError

DIGIT = load_digits().target


@pytest.fixture(scope="module")
def slides() -> list[SyntheticSlide]:
    return digit_slides(bags=60, seed=3)


def plane(s: SyntheticSlide, values) -> np.ndarray:
    image = np.zeros((16, 16), dtype=int)
    image[s.coords[:, 1] // STRIDE, s.coords[:, 0] // STRIDE] = values
    return image


def test_labels_say_whether_there_is_a_lesion(slides):
    for s in slides:
        assert s.label == s.instance_labels.max()
        np.testing.assert_array_equal(DIGIT[s.digits] == LESION_DIGIT, s.instance_labels == 1)


def test_lesions_are_contiguous_and_as_large_as_said(slides):
    for s in slides:
        lesions, count = ndimage.label(plane(s, s.instance_labels))
        assert count == 0 if s.label == 0 else 1 <= count <= 2
        for k in range(1, count + 1):
            assert 6 <= (lesions == k).sum() <= 32
    sizes = [s.instance_labels.mean() for s in slides if s.label]
    assert max(sizes) < 0.35
    assert np.mean(sizes) < 0.15


def test_both_classes_hold_lookalikes(slides):
    for label in (0, 1):
        share = [
            np.isin(DIGIT[s.digits], LOOKALIKE_DIGITS).mean() for s in slides if s.label == label
        ]
        assert np.mean(share) > 0.25


def test_tissue_is_irregular(slides):
    shapes = [plane(s, 1) for s in slides]
    assert len({s.tobytes() for s in shapes}) == len(slides)
    islands = [ndimage.label(s, np.ones((3, 3)))[1] for s in shapes]
    holes = [ndimage.label(1 - np.pad(s, 1))[1] - 1 for s in shapes]
    assert 0 < np.mean([k > 1 for k in islands]) < 0.6
    assert 0.2 < np.mean([k > 0 for k in holes]) < 1
    assert all(60 <= s.sum() <= 230 for s in shapes)


def test_parts_are_balanced_and_share_no_digit(slides):
    parts = {p: [s for s in slides if s.part == p] for p in ("train", "val", "test")}
    assert {p: len(v) for p, v in parts.items()} == {"train": 30, "val": 12, "test": 18}
    for held in parts.values():
        assert sum(s.label for s in held) * 2 == len(held)
    used = [set(np.concatenate([s.digits for s in v]).tolist()) for v in parts.values()]
    assert all(not a & b for a, b in combinations(used, 2))


def test_the_seed_decides_everything():
    one, two, other = (digit_slides(bags=12, seed=s) for s in (1, 1, 2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.features, b.features)
        np.testing.assert_array_equal(a.coords, b.coords)
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
        # the 8 adjacent patches are neighbours
        step = (bag.coords[bag.edges[0]] - bag.coords[bag.edges[1]]).abs().amax(1)
        assert torch.equal(step, torch.full_like(step, STRIDE))
        tissue = plane(s, 1)
        pairs = sum(
            int((a & b).sum())
            for a, b in (
                (tissue[:, 1:], tissue[:, :-1]),
                (tissue[1:], tissue[:-1]),
                (tissue[1:, 1:], tissue[:-1, :-1]),
                (tissue[1:, :-1], tissue[:-1, 1:]),
            )
        )
        assert bag.edges.shape[1] == pairs
    with (tmp_path / "labels.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [(r["bag"], r["label"], r["split"]) for r in rows] == [
        (s.name, str(s.label), s.part) for s in slides
    ]
    with h5py.File(tmp_path / "features" / "slide_000.h5") as f:
        assert f.attrs["probsa_kind"] == "slide"
