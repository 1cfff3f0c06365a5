"""Simulated cohorts: lesions, the null layout, and what is written."""

import numpy as np
import pytest
from scipy import ndimage
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from probsa.datasets import open_bags, read_table
from probsa.datasets.splits import fold_splits
from probsa.datasets.synthetic import write_simulated
from probsa.errors import InputError


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
        stacked(signal), stacked(write_simulated(tmp_path / "b", layout="null", **arguments))
    )  # fmt: skip
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
    table, bags = read_table(tmp_path / "labels.csv"), open_bags(tmp_path / "features")
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
        {"bags": 9}, {"features": 0}, {"signal": -1.0}, {"lesion": (0, 3)}, {"lesion": (5, 4)},
        {"size": (2, 2), "lesion": (1, 4)},
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(given, tmp_path):
    with pytest.raises(InputError, match="give 10 bags or more"):
        write_simulated(tmp_path, **{"bags": 10, "layout": "null", "seed": 0, **given})
