"""Isolated false alarms: by hand, and their expectation by chance by enumeration."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from support.instance_metrics import isolated_metrics
from support.made_predictions import cohort, lattice, made, scan, slide

from probsa.errors import BagError
from probsa.evaluation.isolated import CALLED, ISOLATED, isolation_probability
from probsa.evaluation.neighbours import Neighbours
from probsa.evaluation.pools import bag_draws


def _image(*spots, size=10):
    image = np.random.default_rng(0).random((size, size)) * 0.1
    for i, (y, x) in enumerate(spots):
        image[y, x] = 2 + i
    return image


def _values(bags, positive):
    metrics = isolated_metrics(bags, positive)
    assert tuple(metrics) == ISOLATED
    return [m.value for m in metrics.values()]


def test_counts_by_hand():
    """Ten of a hundred are called: two pairs (one diagonal), a triple in line, three alone."""
    together = [(0, 0), (0, 1), (3, 3), (4, 4), (8, 0), (8, 1), (8, 2)]
    spots = [*together, (0, 9), (6, 7), (2, 6)]
    share, expected, excess = _values([slide("n", _image(*spots))], {})
    assert share == pytest.approx(3 / 10)
    assert excess == pytest.approx(share - expected)
    degrees = np.array([3, 5, 8, 8, 5, 8, 8, 3, 8, 8])
    assert expected == pytest.approx(isolation_probability(degrees, instances=100).mean())


def test_chance_is_the_mean_over_all_placements():
    """Three of nine cells are called: for each, the other two may be any of the other eight."""
    g = Neighbours.of(slide("a", np.zeros((3, 3))))
    neighbours = {i: {*g.edges[1][g.edges[0] == i], *g.edges[0][g.edges[1] == i]} for i in range(9)}
    calls = (0, 1, 4)  # corner, side, middle
    expected = []
    for i in calls:
        pairs = list(combinations([j for j in range(9) if j != i], 2))
        expected.append(np.mean([not neighbours[i] & set(two) for two in pairs]))
    degree = np.array([len(neighbours[i]) for i in calls])
    np.testing.assert_allclose(isolation_probability(degree, instances=9), expected, atol=1e-12)
    assert isolation_probability(np.array([0, 0]), instances=5).tolist() == [1.0, 1.0]
    assert isolation_probability(np.array([4]), instances=5).tolist() == [1.0]


def test_random_calls_are_isolated_as_often_as_expected():
    rng = np.random.default_rng(2)
    bags = [slide(f"n{i}", rng.random((12, 12))) for i in range(150)]
    got = isolated_metrics(bags, {}, bootstrap=200)
    excess = got["isolated_fp_excess"]
    assert excess.low < 0 < excess.high
    assert excess.high - excess.low < 0.06
    smooth = [
        slide(f"n{i}", np.add.outer(rng.random(12).cumsum(), np.arange(12))) for i in range(9)
    ]
    got = isolated_metrics(smooth, {}, bootstrap=200)
    assert got["isolated_fp_excess"].high < -0.2


def test_the_number_of_calls_does_not_depend_on_the_scale_of_the_scores():
    image = _image((0, 0), (5, 5), (9, 9))
    assert _values([slide("n", image)], {}) == _values([slide("n", np.exp(image) * 7)], {})


@pytest.mark.parametrize(("called", "isolated"), [(0.4, 2 / 4), (0.31, 2 / 4), (0.2, 1.0)])
def test_the_number_of_calls_is_rounded_up(monkeypatch, called, isolated):
    monkeypatch.setattr("probsa.evaluation.isolated.CALLED", called)
    assert _values([scan("c", [9.0, 0, 8, 0, 0, 0, 0, 0, 7, 6])], {})[0] == isolated


def test_equal_scores_are_not_called_side_by_side():
    flat = [slide(f"n{i}", np.zeros((12, 12))) for i in range(40)]
    share, expected, _ = _values(flat, {})
    assert share == pytest.approx(expected, abs=0.06)


def test_healthy_areas_are_negative_bags_and_negative_instances():
    labels = np.zeros((10, 10), dtype=int)
    labels[:5] = 1
    # Calls in the lesion's half would be neighbours; the five spots of the healthy half are not.
    image = _image(*[(5, x) for x in (0, 2, 4, 6, 8)])
    image[:5] = 50
    p = slide("p", image, labels)
    negative = slide("n", _image(*[(0, x) for x in range(10)]))
    isolated = _values([p], {"p": True})
    assert isolated[0] == 1.0
    both = _values([p, negative], {"p": True})
    assert both[0] == pytest.approx(5 / 15)
    # Edges to the lesion do not count: an instance at the boundary has 5 or 3 neighbours.
    degree = np.array([3, 5, 5, 5, 5])
    assert isolated[1] == pytest.approx(isolation_probability(degree, instances=50).mean())
    unlabelled = replace(p, instance_labels=None)
    assert _values([unlabelled, negative], {"p": True})[0] == 0.0
    got = isolated_metrics([unlabelled], {"p": True})
    assert got["isolated_fp"].reason == "no healthy instance is known"


def test_intervals_resample_bags():
    bags, positive = cohort(8)
    got = isolated_metrics(bags, positive, bootstrap=30, seed=5)
    flags = np.array([positive[p.name] for p in bags])
    draws = bag_draws([p.name for p in bags], flags, groups=None, resamples=30, seed=5)
    each = [_values([p], positive)[0] for p in bags]
    calls = np.array([np.ceil(CALLED * (p.instance_labels == 0).sum()) for p in bags])
    weight = draws.counts * calls
    values = (weight * each).sum(1) / weight.sum(1)
    low, high = np.quantile(values, [0.025, 0.975])
    assert got["isolated_fp"].low == pytest.approx(low)
    assert got["isolated_fp"].high == pytest.approx(high)


def test_bad_input():
    bare = made("x", np.zeros(4))
    got = isolated_metrics([bare], {})
    assert got["isolated_fp_expected"].reason.startswith("bag 'x' has no coordinates")
    wrong = replace(slide("n", np.zeros((4, 4))), attention_mean=np.full(16, np.nan, np.float32))
    with pytest.raises(BagError, match="bag 'n' has attention that is nan"):
        isolated_metrics([wrong], {})
    crowded = made("z", np.zeros(16), coords=lattice(4, 4), stride=3.0)
    got = isolated_metrics([crowded], {})
    assert "patches are stated to lie 3 apart" in got["isolated_fp"].reason
