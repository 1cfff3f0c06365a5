"""σ² and its null rivals as finders of wrong calls: by hand; AUGRC and fields by definition."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from support.made_predictions import cohort, lattice, made, scan, slide

from probsa.errors import BagError, InputError
from probsa.evaluation.error_detectors import (
    AREAS,
    DETECTORS,
    RIVALS,
    error_detectors,
    error_verdict,
)
from probsa.evaluation.neighbours import Neighbours, near_boundary, neighbours_or_reason
from probsa.evaluation.random_field import field_on, random_field
from probsa.evaluation.scores import instance_evidence
from probsa.statistics.bootstrap import Draws
from probsa.statistics.risk import augrc, augrc_of_ranks

# AUGRC


def _augrc_by_brute_force(loss, confidence):
    """The area, with items of equal confidence in every order: their mean is the line."""
    n, rng = len(loss), np.random.default_rng(0)
    areas = []
    for _ in range(4000):
        order = np.lexsort((rng.random(n), -confidence))
        risk = np.append(0, np.cumsum(loss[order])) / n
        areas.append(sum((risk[k] + risk[k + 1]) / 2 / n for k in range(n)))
    return np.mean(areas), np.std(areas) / np.sqrt(4000)


def test_augrc_by_hand():
    """Accepted in the order right, wrong, right, wrong: 0, 0, 1, 1, 2 errors of 4 at 0 … 4."""
    confidence = np.array([4.0, 3.0, 2.0, 1.0])
    got = augrc(np.array([False, True, False, True]), confidence)
    assert got == pytest.approx((0 + 0.5 + 1 + 1.5) / 16)
    # Errors last are the best there is, e²/2; errors first the worst, e - e²/2.
    best = augrc(np.array([0, 0, 1, 1]), confidence)
    worst = augrc(np.array([1, 1, 0, 0]), confidence)
    assert (best, worst) == (pytest.approx(1 / 8), pytest.approx(1 / 2 - 1 / 8))
    assert augrc(np.array([0, 1, 0, 1]), np.zeros(4)) == pytest.approx(1 / 4)
    assert augrc(np.zeros(0), np.zeros(0)) is None


def test_augrc_is_its_definition_also_with_ties_and_losses_of_any_size():
    rng = np.random.default_rng(3)
    confidence = np.round(rng.random(12), 1)
    loss = rng.random(12)
    mean, error = _augrc_by_brute_force(loss, confidence)
    got = augrc(loss, confidence)
    assert got == pytest.approx(mean, abs=4 * error)
    assert error < 1e-3


def test_augrc_follows_from_ranks_and_the_rate_of_errors():
    rng = np.random.default_rng(4)
    for _ in range(10):
        wrong = rng.random(50) < 0.3
        confidence = np.round(rng.random(50) - 0.3 * wrong, 1)
        auroc = roc_auc_score(wrong, -confidence)
        expected = augrc(wrong, confidence)
        assert augrc_of_ranks(wrong.mean(), auroc) == pytest.approx(expected, abs=1e-12)


# Graphs from coordinates


def test_steps_to_the_edge_of_a_lattice_and_of_a_chain():
    g = Neighbours.of(slide("a", np.zeros((5, 6))))
    expected = [[0] * 6, [0, 1, 1, 1, 1, 0], [0, 1, 2, 2, 1, 0], [0, 1, 1, 1, 1, 0], [0] * 6]
    np.testing.assert_array_equal(g.to_edge.reshape(5, 6), expected)
    np.testing.assert_array_equal(g.cells, np.argwhere(np.ones((5, 6))))
    c = Neighbours.of(scan("c", np.zeros(5)))
    np.testing.assert_array_equal(c.to_edge, [0, 1, 2, 1, 0])
    np.testing.assert_array_equal(c.edges, [[0, 1, 2, 3], [1, 2, 3, 4]])
    without = Neighbours.of(made("c", np.zeros(5), kind="ct"))
    np.testing.assert_array_equal(without.edges, c.edges)
    assert Neighbours.of(scan("one", [0.0])).to_edge.tolist() == [0]


def test_a_hole_in_the_tissue_is_an_edge():
    keep = np.ones((7, 7), dtype=bool)
    keep[3, 3] = False
    p = made("h", np.zeros(48), coords=lattice(7, 7)[keep.ravel()], stride=10.0)
    steps = np.full((7, 7), -1.0)
    steps[keep] = Neighbours.of(p).to_edge
    assert steps[1, 1] == 1 and steps[2, 2] == steps[3, 2] == 0 and steps[1, 3] == 1


def test_slides_without_coordinates_have_no_known_neighbours():
    p = made("x", np.zeros(4))
    with pytest.raises(BagError, match="bag 'x' has no coordinates, so that its neighbours"):
        Neighbours.of(p)
    assert str(neighbours_or_reason(p)).startswith("bag 'x' has no coordinates")


def test_the_ring_is_two_steps_to_either_side_of_the_boundary():
    labels = np.zeros((9, 9), dtype=int)
    labels[2:7, 2:7] = 1
    g = Neighbours.of(slide("a", np.zeros((9, 9))))
    ring = near_boundary(labels.ravel(), edges=g.edges).reshape(9, 9)
    expected = np.ones((9, 9), dtype=bool)
    expected[4, 4] = False  # three steps inside; outside, two rows are all there is
    np.testing.assert_array_equal(ring, expected)
    narrow = near_boundary(labels.ravel(), edges=g.edges, within=1).reshape(9, 9)
    expected = np.zeros((9, 9), dtype=bool)
    expected[1:8, 1:8] = True
    expected[3:6, 3:6] = False
    np.testing.assert_array_equal(narrow, expected)
    # What has no label lies in no ring, and makes none.
    labels[labels == 1] = -1
    assert not near_boundary(labels.ravel(), edges=g.edges).any()


# Random fields


@pytest.mark.parametrize("shape", [(8, 8), (7, 10), (1, 9), (1, 6), (5, 1)])
def test_a_random_field_has_the_spectrum_and_the_mean_of_its_map(shape):
    rng = np.random.default_rng(1)
    image = rng.gamma(2, size=shape).cumsum(axis=-1)
    field = random_field(image, rng=rng)
    np.testing.assert_allclose(np.abs(np.fft.fft2(field)), np.abs(np.fft.fft2(image)), atol=1e-8)
    assert field.mean() == pytest.approx(image.mean())
    assert np.abs(field - image).max() > 0.1
    again = random_field(image, rng=np.random.default_rng(2))
    assert np.abs(field - again).max() > 0.1


def test_outside_the_tissue_the_map_is_its_mean():
    image = np.array([[1.0, np.nan, 3.0], [5.0, 3.0, np.nan]])
    field = random_field(image, rng=np.random.default_rng(0))
    filled = np.array([[1.0, 3, 3], [5, 3, 3]])
    np.testing.assert_allclose(np.abs(np.fft.fft2(field)), np.abs(np.fft.fft2(filled)), atol=1e-9)
    cells = np.array([[0, 0], [0, 2], [1, 0], [1, 1], [1, 1]])
    on = field_on(cells, np.array([1.0, 3, 5, 2, 4]), seed=7)  # two of one cell: 3
    expected = random_field(image, rng=np.random.default_rng(7))
    np.testing.assert_allclose(on, expected[cells[:, 0], cells[:, 1]], atol=1e-12)


def test_a_smooth_maps_field_is_smooth():
    y, x = np.mgrid[:16, :16]
    image = np.sin(2 * np.pi * x / 16) + np.cos(2 * np.pi * y / 16)
    field = random_field(image, rng=np.random.default_rng(3))
    rough = np.random.default_rng(3).permutation(image.ravel()).reshape(16, 16)
    assert np.abs(np.diff(field)).mean() < 0.3 * np.abs(np.diff(rough)).mean()


# Detectors


def _by_hand():
    """One positive scan of 6 slices; wrong: slice 1 (called), slice 3 (missed)."""
    weight = np.array([6.0, 4.0, 1.0, 1.0, 1.0, 1.0]) / 14
    return scan(
        "a",
        np.log(weight),
        [1, 0, 0, 1, 0, 0],
        weight_mean=weight,
        degree=[1, 2, 2, 2, 2, 1],
        attention_variance=[0.1, 0.9, 0.2, 0.3, 0.4, 0.1],
    )


def test_every_detector_by_hand():
    a = _by_hand()
    seed = replace(a, attention_mean=a.attention_mean + np.float32([0, 1, 0.1, 0.2, 0.3, 0.5]))
    got = error_detectors([a], positive={"a": True}, others=[[seed]], bootstrap=0)
    wrong = np.array([0, 1, 0, 1, 0, 0])
    assert got["error_rate_all"].value == pytest.approx(2 / 6)
    entropy = -np.asarray(a.weight_mean) * np.log(a.weight_mean)
    both = np.stack([instance_evidence(a), instance_evidence(seed)])
    expected = {
        "variance": (4 + 3) / 8,  # .9 above all right ones, .3 above .1, .2, .1 but not .4
        "degree": roc_auc_score(wrong, 1 / np.array([1, 2, 2, 2, 2, 1])),
        "edge": roc_auc_score(wrong, -np.array([0, 1, 2, 2, 1, 0])),
        "margin": roc_auc_score(wrong, -np.abs(np.round(instance_evidence(a), 5))),
        "entropy": roc_auc_score(wrong, np.round(entropy, 6)),
        "seeds": roc_auc_score(wrong, both.std(0, ddof=1)),
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


def test_areas_are_all_positive_bags_and_the_ring():
    bags, positive = cohort(6, size=9)
    got = error_detectors(bags, positive=positive, bootstrap=0)
    wrong, variance, ring, inside = [], [], [], []
    for p in bags:
        wrong.append((instance_evidence(p) > 0) != (p.instance_labels > 0))
        variance.append(p.attention_variance)
        ring.append(near_boundary(p.instance_labels, edges=Neighbours.of(p).edges))
        inside.append(np.full(81, positive[p.name]))
    wrong, variance, ring, inside = map(np.concatenate, (wrong, variance, ring, inside))
    for area, kept in (("all", ring >= 0), ("positive_bags", inside), ("boundary", ring)):
        assert got[f"error_rate_{area}"].value == pytest.approx(wrong[kept].mean())
        expected = roc_auc_score(wrong[kept], variance[kept])
        assert got[f"error_auroc_variance_{area}"].value == pytest.approx(expected)
    assert 0 < ring.sum() < inside.sum() < len(ring)


def test_unlabelled_instances_are_not_judged():
    a = _by_hand()
    b = replace(a, instance_labels=np.int8([1, 0, 0, -1, 0, 0]))
    got = error_detectors([b], positive={"a": True}, bootstrap=0)
    assert got["error_rate_all"].value == pytest.approx(1 / 5)


def test_the_threshold_moves_calls_and_margins():
    a = _by_hand()
    s = instance_evidence(a)
    got = error_detectors([a], positive={"a": True}, threshold=0.7, bootstrap=0)
    wrong = (s > 0.7) != (a.instance_labels > 0)
    assert got["error_rate_all"].value == wrong.mean() == pytest.approx(1 / 6)
    expected = roc_auc_score(wrong, -np.abs(np.round(s - 0.7, 5)))
    assert got["error_auroc_margin_all"].value == pytest.approx(expected)


def test_gains_are_paired_over_bags_written_out():
    bags, positive = cohort(8)
    got = error_detectors(bags, positive=positive, bootstrap=25, seed=2)
    rivals = {d: got[f"error_auroc_{d}_positive_bags"].value for d in RIVALS if d != "seeds"}
    best = max(rivals, key=rivals.get)
    assert best == "margin"
    flags = np.array([positive[p.name] for p in bags])
    draws = Draws.of(flags, groups=None, resamples=25, seed=2)
    gains = []
    for counts in draws.counts:
        again = [p for p, c in zip(bags, counts, strict=True) for _ in range(c)]
        again = [p for p in again if positive[p.name]]
        wrong = np.concatenate(
            [(instance_evidence(p) > 0) != (p.instance_labels > 0) for p in again]
        )
        variance = np.concatenate([p.attention_variance for p in again])
        margin = np.concatenate([np.abs(instance_evidence(p)) for p in again])
        gains.append(roc_auc_score(wrong, variance) - roc_auc_score(wrong, -margin))
    low, high = np.quantile(gains, [0.025, 0.975])
    assert got["error_auroc_gain_positive_bags"].low == pytest.approx(low)
    assert got["error_auroc_gain_positive_bags"].high == pytest.approx(high)
    patients = {p.name: i // 2 for i, p in enumerate(bags)}
    grouped = error_detectors(bags, positive=positive, bootstrap=25, seed=2, groups=patients)
    assert grouped["error_rate_all"].low != got["error_rate_all"].low


def test_a_variance_that_knows_beats_every_rival_and_one_that_is_noise_does_not():
    knows, positive = cohort(20, variance=lambda rng, wrong: wrong + 0.1 * rng.random(len(wrong)))
    got = error_detectors(knows, positive=positive, bootstrap=100)
    assert got["error_auroc_variance_positive_bags"].value == 1.0
    assert got["error_auroc_gain_positive_bags"].low > 0
    said = error_verdict(got)
    assert said.startswith("σ² finds wrong calls better than what costs nothing: AUROC 1.000")
    assert "-w log w, its best null rival, among instances of positive bags; difference +0." in said
    noise, _ = cohort(20)
    got = error_detectors(noise, positive=positive, bootstrap=100)
    assert error_verdict(got).startswith("σ² finds wrong calls worse than what costs nothing")
    # As good as the best rival, because it is the best rival.
    same = [
        replace(p, attention_variance=np.float32(-p.weight_mean * np.log(p.weight_mean)))
        for p in noise
    ]
    got = error_detectors(same, positive=positive, bootstrap=100)
    assert error_verdict(got).startswith("σ² is not shown to find wrong calls better")
    assert error_verdict(error_detectors(noise, positive=positive, bootstrap=0)).startswith(
        "Nothing is known"
    )


def test_the_random_map_knows_nothing_and_follows_its_seed():
    bags, positive = cohort(30, variance=lambda rng, wrong: wrong + 0.1 * rng.random(len(wrong)))
    got = error_detectors(bags, positive=positive, bootstrap=0, seed=1)
    assert abs(got["error_auroc_field_all"].value - 0.5) < 0.06
    again = error_detectors(bags, positive=positive, bootstrap=0, seed=1)
    other = error_detectors(bags, positive=positive, bootstrap=0, seed=2)
    assert again == got
    assert other["error_auroc_field_all"] != got["error_auroc_field_all"]


# What has no value


def test_undefined_with_its_reason():
    bags, positive = cohort(4)
    flat = [replace(p, attention_variance=np.zeros(64, np.float32)) for p in bags]
    got = error_detectors(flat, positive=positive, bootstrap=3)
    for name in ("variance", "field"):
        assert got[f"error_auroc_{name}_all"].reason == "this posterior has no variance"
    assert got["error_auroc_seeds_all"].reason == "one replicate has no spread over replicates"
    assert error_verdict(got) == (
        "σ² cannot be judged among instances of positive bags: this posterior has no variance."
    )
    bare = [replace(p, coords=None) for p in bags]
    got = error_detectors(bare, positive=positive, bootstrap=0)
    for name in ("error_auroc_edge_all", "augrc_field_positive_bags", "error_rate_boundary"):
        assert got[name].reason.startswith("bag 'b0' has no coordinates"), name
    assert got["error_auroc_degree_all"].value is not None
    negative = error_detectors(bags[::2], positive=positive, bootstrap=0)
    assert negative["error_rate_positive_bags"].reason == "no instances of positive bags"
    assert negative["error_rate_boundary"].reason == "no instances near a lesion's boundary"
    relevance = [replace(p, score_kind="relevance") for p in bags]
    got = error_detectors(relevance, positive=positive)
    assert {m.reason for m in got.values()} == {"relevance has no point where calls change"}
    without = [replace(p, instance_labels=None) for p in bags]
    got = error_detectors(without, positive=positive)
    assert {m.reason for m in got.values()} == {"no bag has instance labels"}
    names = {f"{w}_{d}_{a}" for a in AREAS for d in DETECTORS for w in ("error_auroc", "augrc")}
    assert names | {f"error_{w}_{a}" for a in AREAS for w in ("rate", "auroc_gain")} == set(got)
    right = replace(bags[1], instance_labels=np.int8(instance_evidence(bags[1]) > 0))
    got = error_detectors([right], positive=positive)
    assert got["augrc_margin_all"].reason == (
        "no wrong call among 64 instances: nothing to tell apart"
    )


def test_other_replicates_must_be_of_the_same_bags():
    bags, positive = cohort(4)
    with pytest.raises(InputError, match="bag 'b3' has 64 instances in one replicate, but is miss"):
        error_detectors(bags, positive=positive, others=[bags[:3]])
    short = scan("b3", np.zeros(5))
    with pytest.raises(InputError, match="has another number in another"):
        error_detectors(bags, positive=positive, others=[[*bags[:3], short]])
