"""Shares have all tasks once, as many large ones each, and the order of the tasks."""

from itertools import chain

import pytest

from probsa.errors import InputError
from probsa.jobs import WHOLE, Share, share_of

SIZES = [3, 90, 1, 100, 2, 80, 4, 70, 5, 60]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_every_item_is_in_one_share(count):
    shares = [share_of(range(10), Share(k, count), size=SIZES.__getitem__) for k in range(count)]
    assert sorted(chain(*shares)) == list(range(10))
    assert all(share == sorted(share) for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_large_items_are_dealt_out():
    """By position, the first of two shares would have 15 and the second 400."""
    totals = []
    for k in range(2):
        share = share_of(SIZES, Share(k, 2), size=float)
        totals.append(sum(share))
    assert max(totals) - min(totals) <= 100 and sum(totals) == sum(SIZES)
    # by size: 100 90 | 80 70 | 60 5 | 4 3 | 2 1
    assert share_of(SIZES, Share(0, 2), size=float) == [100, 2, 80, 4, 60]
    assert share_of(SIZES, Share(1, 2), size=float) == [3, 90, 1, 70, 5]


def test_items_of_equal_size_are_dealt_out_in_order():
    assert share_of("abcdefg", Share(1, 3), size=lambda item: 0) == ["b", "e"]


def test_a_share_is_written_as_users_write_it():
    assert Share.parse("2/4") == Share(2, 4)
    assert str(Share(2, 4)) == "2/4"
    assert Share.parse("0/1") == WHOLE == Share()
    for text in ("", "4/4", "-1/4", "1/0", "a/b", "1", "1/", "/2", "0.5/2", "1/2/3"):
        with pytest.raises(InputError):
            Share.parse(text)
    with pytest.raises(InputError):
        Share(2, 2)
