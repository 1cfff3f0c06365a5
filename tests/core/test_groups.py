"""A bag without a group belongs to nobody, whatever the groups of others are called."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np

import probsa
from probsa.core import group_keys


def test_two_bags_share_a_key_only_if_they_share_a_stated_group() -> None:
    rng = np.random.default_rng(0)
    names = ["a", "b", "c", "a (no group)", "a (no group) (no group)", "b (no group)"]
    for _ in range(500):
        bags = rng.permutation(names)[: rng.integers(1, len(names) + 1)].tolist()
        others = [*rng.permutation(names)[:2].tolist(), "elsewhere"]
        known = [bag for bag in [*bags, *others] if rng.random() < 0.6]
        stated = {bag: str(rng.choice([*names, ""])) for bag in known}
        keys = group_keys(bags, stated)
        assert len(keys) == len(bags)
        assert all(keys)
        for (bag, key), (other, other_key) in combinations(zip(bags, keys, strict=True), 2):
            group = stated.get(bag) or None
            together = group is not None and group == stated.get(other)
            assert (key == other_key) == together, (bag, other, stated)
        for bag, key in zip(bags, keys, strict=True):
            group = stated.get(bag)
            assert not group or key == group
            # Whoever belongs to a group of others keeps out of it, even if they are not asked for.
            assert group or key not in set(stated.values())


def test_a_bag_without_a_group_keeps_its_name_where_nobody_has_it() -> None:
    assert group_keys(["a", "b"], {}) == ["a", "b"]
    assert group_keys(["a", "b", "c"], {"b": "p", "c": ""}) == ["a", "p", "c"]


def test_no_module_makes_up_the_group_of_a_bag_by_itself() -> None:
    made_up = re.compile(r"group\w*\.get\(\s*([\w.\[\]\"]+),\s*\(?\1|group\"?\]? or \w+\[?\"?bag")
    modules = sorted(Path(probsa.__file__).parent.rglob("*.py"))
    assert len(modules) > 100
    assert [path.name for path in modules if made_up.search(path.read_text())] == []
