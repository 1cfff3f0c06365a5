"""Bags of the same name are told apart by numbers that no bag has."""

import numpy as np

from probsa import Bag
from probsa.estimators.inputs import with_own_names


def test_a_number_is_not_the_name_of_another_bag():
    bags = [Bag.from_arrays(np.ones((2, 3)), name=name) for name in ("a", "a", "a-2")]
    assert [bag.name for bag in with_own_names(bags)] == ["a", "a-3", "a-2"]
