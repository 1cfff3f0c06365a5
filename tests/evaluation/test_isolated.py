"""Isolated false alarms: by hand, chance by enumeration, the same number for every method."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from support.made_predictions import cohort, lattice, made, scan, slide

from probsa.errors import BagError, InputError
from probsa.evaluation.isolated import ISOLATED, isolated_false_positives, lonely_by_chance
from probsa.evaluation.neighbours import Neighbours
from probsa.statistics.bootstrap import Draws


def _image(*spots, size=10):
    image = np.random.default_rng(0).random((size, size)) * 0.1
    for i, (y, x) in enumerate(spots):
        image[y, x] = 2 + i
    return image


def _shares(bags, positive, **options):
    got = isolated_false_positives(bags, positive=positive, bootstrap=0, **options)
    assert tuple(got) == ISOLATED
    return [m.value for m in got.values()]


def test_counts_by_hand():
    """Ten of a hundred are called: two pairs (one diagonal), a triple in line, three alone."""
    together = [(0, 0), (0, 1), (3, 3), (4, 4), (8, 0), (8, 1), (8, 2)]
    spots = [*together, (0, 9), (6, 7), (2, 6)]
    share, expected, excess = _shares([slide("n", _image(*spots))], {})
    assert share == pytest.approx(3 / 10)
    assert excess == pytest.approx(share - expected)
    degrees = np.array([3, 5, 8, 8, 5, 8, 8, 3, 8, 8])
    assert expected == pytest.approx(lonely_by_chance(degrees, instances=100).mean())


def test_chance_is_the_mean_over_all_places():
    """Of 9 cells 3 are called; the others of each call lie anywhere among the other 8."""
    g = Neighbours.of(slide("a", np.zeros((3, 3))))
    beside = {i: {*g.edges[1][g.edges[0] == i], *g.edges[0][g.edges[1] == i]} for i in range(9)}
    calls = (0, 1, 4)  # corner, side, middle
    expected = []
    for i in calls:
        places = list(combinations([j for j in range(9) if j != i], 2))
        expected.append(np.mean([not beside[i] & set(two) for two in places]))
    degree = np.array([len(beside[i]) for i in calls])
    np.testing.assert_allclose(lonely_by_chance(degree, instances=9), expected, atol=1e-12)
    assert lonely_by_chance(np.array([0, 0]), instances=5).tolist() == [1.0, 1.0]
    assert lonely_by_chance(np.array([4]), instances=5).tolist() == [1.0]


def test_random_calls_are_as_lonely_as_expected():
    rng = np.random.default_rng(2)
    bags = [slide(f"n{i}", rng.random((12, 12))) for i in range(150)]
    got = isolated_false_positives(bags, positive={}, bootstrap=200)
    excess = got["isolated_fp_excess"]
    assert excess.low < 0 < excess.high
    assert excess.high - excess.low < 0.06
    smooth = [
        slide(f"n{i}", np.add.outer(rng.random(12).cumsum(), np.arange(12))) for i in range(9)
    ]
    got = isolated_false_positives(smooth, positive={}, bootstrap=200)
    assert got["isolated_fp_excess"].high < -0.2


def test_every_method_calls_as_many_whatever_its_scale():
    image = _image((0, 0), (5, 5), (9, 9))
    plain = _shares([slide("n", image)], {})
    assert plain == _shares([slide("n", np.exp(image) * 7)], {})
    many = _shares([slide("n", image)], {}, called=0.03)
    assert many[0] == 1.0
    scans = [scan("c", [9.0, 0, 8, 0, 0, 0, 0, 0, 7, 6])]
    assert _shares(scans, {}, called=0.4)[0] == pytest.approx(2 / 4)
    assert _shares(scans, {}, called=0.31)[0] == pytest.approx(2 / 4)  # rounded up
    assert _shares(scans, {}, called=0.2)[0] == 1.0


def test_equal_scores_are_not_called_side_by_side():
    flat = [slide(f"n{i}", np.zeros((12, 12))) for i in range(40)]
    share, expected, _ = _shares(flat, {})
    assert share == pytest.approx(expected, abs=0.06)


def test_healthy_areas_are_negative_bags_and_negative_instances():
    labels = np.zeros((10, 10), dtype=int)
    labels[:5] = 1
    # Nine calls in the lesion's half would be neighbours; five spots of the healthy half are alone.
    image = _image(*[(5, x) for x in (0, 2, 4, 6, 8)])
    image[:5] = 50
    p = slide("p", image, labels)
    negative = slide("n", _image(*[(0, x) for x in range(10)]))
    alone = _shares([p], {"p": True})
    assert alone[0] == 1.0
    both = _shares([p, negative], {"p": True})
    assert both[0] == pytest.approx(5 / 15)
    assert _shares([p, negative], {"p": True}, healthy="bags")[0] == 0.0
    # Edges to the lesion do not count as neighbours: a row of the border has 5 or 3.
    degree = np.array([3, 5, 5, 5, 5])
    assert alone[1] == pytest.approx(lonely_by_chance(degree, instances=50).mean())
    unlabelled = replace(p, instance_labels=None)
    assert _shares([unlabelled, negative], {"p": True})[0] == 0.0
    got = isolated_false_positives([unlabelled], positive={"p": True})
    assert got["isolated_fp"].reason == "no healthy instance is known"


def test_intervals_resample_bags():
    bags, positive = cohort(8)
    got = isolated_false_positives(bags, positive=positive, bootstrap=30, seed=5)
    flags = np.array([positive[p.name] for p in bags])
    draws = Draws.of(flags, groups=None, resamples=30, seed=5)
    each = [_shares([p], positive)[0] for p in bags]
    calls = np.array([np.ceil(0.1 * (p.instance_labels == 0).sum()) for p in bags])
    weight = draws.counts * calls
    values = (weight * each).sum(1) / weight.sum(1)
    low, high = np.quantile(values, [0.025, 0.975])
    assert got["isolated_fp"].low == pytest.approx(low)
    assert got["isolated_fp"].high == pytest.approx(high)


def test_bad_input():
    with pytest.raises(InputError, match=r"called is 1\.0: a share"):
        isolated_false_positives([], positive={}, called=1.0)
    bare = made("x", np.zeros(4))
    got = isolated_false_positives([bare], positive={})
    assert got["isolated_fp_expected"].reason.startswith("bag 'x' has no coordinates")
    wrong = replace(slide("n", np.zeros((4, 4))), attention_mean=np.full(16, np.nan, np.float32))
    with pytest.raises(BagError, match="bag 'n' has attention that is nan"):
        isolated_false_positives([wrong], positive={})
    crowded = made("z", np.zeros(16), coords=lattice(4, 4), stride=3.0)
    got = isolated_false_positives([crowded], positive={})
    assert "patches are stated to lie 3 apart" in got["isolated_fp"].reason
