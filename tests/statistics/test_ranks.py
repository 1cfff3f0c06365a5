"""Average ranks reproduce the paper's tables, and ranks counted by hand."""

import csv

import numpy as np
import pytest

from probsa.statistics import average_ranks


@pytest.fixture(scope="module")
def printed(shared_data):
    """By (table, model), the six values, and the average rank and its s.d. as printed."""
    printed: dict[tuple[str, str], dict] = {}
    with (shared_data.parent / "paper" / "tables.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["table"] in ("table2_no_global", "table3_global"):
                entry = printed.setdefault((row["table"], row["model"]), {"values": []})
                if row["metric"] == "rank":
                    entry["rank"] = (row["mean"], row["sd"])
                else:
                    entry["values"].append(float(row["mean"]))
    return printed


@pytest.mark.parametrize(("table", "models"), [("table2_no_global", 7), ("table3_global", 9)])
def test_the_papers_average_ranks_come_out_to_three_decimals(printed, table, models):
    rows = {model: row for (name, model), row in printed.items() if name == table}
    assert len(rows) == models
    assert all(len(row["values"]) == 6 for row in rows.values())
    ranks = average_ranks({model: row["values"] for model, row in rows.items()})
    for model, row in rows.items():
        assert (f"{ranks.mean[model]:.3f}", f"{ranks.sd[model]:.3f}") == row["rank"]


def test_ranks_by_hand():
    ranks = average_ranks({"a": [3, 1, 5], "b": [2, 1, 5], "c": [1, 4, 5]})
    np.testing.assert_array_equal(ranks.ranks, [[1, 2.5, 2], [2, 2.5, 2], [3, 1, 2]])
    assert ranks.mean["c"] == 2.0
    assert ranks.sd["c"] == 1.0
    assert np.isnan(average_ranks({"a": [1.0], "b": [2.0]}).sd["a"])
