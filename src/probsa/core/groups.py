"""Names of the groups (patients) of bags that cannot be confused with one another."""

from collections.abc import Mapping, Sequence


def group_keys(bags: Sequence[str], group_of: Mapping[str, str]) -> list[str]:
    """Return the group of each bag; a bag without a group is its own group.

    Its own group has the name of the bag, with an addition if another bag belongs to a group of
    that name: a bag `P1` without a group does not belong to the patient `P1` of other bags.

    Args:
        bags: The names of the bags.
        group_of: The group of each bag that has one; an empty text is no group.

    >>> group_keys(["a", "b", "P1"], {"b": "P1"})
    ['a', 'P1', 'P1 (no group)']
    """
    groups = {group for group in group_of.values() if group}
    used_names = groups.union(bags)
    keys: list[str] = []
    for bag in bags:
        key = group_of.get(bag) or bag
        if not group_of.get(bag) and bag in groups:
            while key in used_names:
                key += " (no group)"
            used_names.add(key)
        keys.append(key)
    return keys
