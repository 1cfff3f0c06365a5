"""Ranks reproduce the paper's tables; tests agree with scipy or with enumeration."""

import csv
import itertools

import numpy as np
import pytest
from scipy import stats

from probsa.statistics import average_ranks, critical_difference, signed_rank
from probsa.statistics.ranks import friedman, nemenyi


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


def test_significant_differences_of_the_papers_ranks(printed):
    """Diag and plain ABMIL differ significantly; no two variants of T-ABMIL do."""
    diagrams = {
        table: critical_difference(
            {model: row["values"] for (name, model), row in printed.items() if name == table}
        )
        for table in ("table2_no_global", "table3_global")
    }
    local, all_bag = diagrams["table2_no_global"], diagrams["table3_global"]
    assert local.difference == pytest.approx(3.68, abs=0.005)
    assert local.reason is None
    together = [set(c) for c in local.cliques]
    assert not any({"ABMIL", "ABMIL+ProbSA Diag"} <= c for c in together)
    assert any({"ABMIL+ProbSA Dirac", "ABMIL+ProbSA Diag"} <= c for c in together)
    tied = {"T-ABMIL", "T-ABMIL+ProbSA Diag", "T-ABMIL+ProbSA Dirac"}
    assert any(tied <= set(c) for c in all_bag.cliques)


def test_ranks_by_hand():
    ranks = average_ranks({"a": [3, 1, 5], "b": [2, 1, 5], "c": [1, 4, 5]})
    np.testing.assert_array_equal(ranks.ranks, [[1, 2.5, 2], [2, 2.5, 2], [3, 1, 2]])
    assert ranks.mean["c"] == 2.0
    assert ranks.sd["c"] == 1.0
    assert np.isnan(average_ranks({"a": [1.0], "b": [2.0]}).sd["a"])


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_nemenyis_q_is_demsars_table_5(methods, q):
    got = nemenyi(methods, 10) / np.sqrt(methods * (methods + 1) / 60)
    assert got == pytest.approx(q, abs=0.001)


def test_five_pairs_are_too_few_and_six_are_not():
    five = signed_rank([1, 2, 3, 4, 5], [0, 0, 0, 0, 0])
    assert five.p == 0.0625
    assert five.reason == "too few pairs: p is at least 0.0625 with 5 unequal pairs"
    six = signed_rank([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0])
    assert six.p == 0.03125
    assert six.reason is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [5, 9, 30])
def test_without_ties_the_signed_rank_test_is_scipys_exact(seed, n):
    d = np.random.default_rng(seed).standard_normal(n) + 0.3
    expected = stats.wilcoxon(d, method="exact")
    got = signed_rank(d + 1, np.ones(n))
    assert got.p == pytest.approx(expected.pvalue, rel=1e-9)


def test_with_ties_the_signed_rank_test_enumerates_all_signs():
    d = np.array([0.1, -0.1, 0.2, 0.3, 0.3, 0.4, 0.0, 0.1])
    unequal = d[d != 0]
    ranks = stats.rankdata(np.abs(unequal))
    sums = [
        sum(r for r, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(unequal))
    ]
    smaller = ranks[unequal < 0].sum()
    expected = 2 * np.mean([s <= smaller for s in sums])
    got = signed_rank(d, np.zeros(8))
    assert got.p == pytest.approx(expected, rel=1e-12)


def test_pairs_equal_up_to_rounding_are_ties():
    a, b = [0.3, 0.2, 0.8, 0.5, 0.7, 0.9], [0.2, 0.1, 0.9, 0.3, 0.3, 0.4]
    assert len({x - y for x, y in zip(a[:3], b, strict=False)}) == 3
    # the negative difference has the mean rank 2: 4 of 64 sums of signs are as small
    assert signed_rank(a, b).p == 0.125


def test_equal_pairs_have_p_one_and_a_reason():
    got = signed_rank([1, 2], [1, 2])
    assert (got.p, got.reason) == (1.0, "all 2 pairs are equal")


def test_friedman_is_scipys_on_the_values_themselves():
    rng = np.random.default_rng(4)
    values = rng.integers(0, 6, size=(4, 12)).astype(float)
    got = friedman(average_ranks({f"m{i}": row for i, row in enumerate(values)}))
    expected = stats.friedmanchisquare(*values)
    assert got.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert got.reason is None


@pytest.mark.parametrize(
    ("values", "p", "reason"),
    [
        ({"a": [1.0, 2.0], "b": [2.0, 3.0]}, None, "needs three"),
        ({"a": [1.0], "b": [2.0], "c": [3.0]}, None, "one column"),
        ({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]}, 1.0, "equal in every column"),
    ],
)
def test_friedman_gives_a_reason_if_it_is_not_informative(values, p, reason):
    got = friedman(average_ranks(values))
    assert got.p == p
    assert reason in got.reason


@pytest.mark.parametrize(
    ("values", "cliques"),
    [
        # mean ranks 1, 2, 3, 4; the critical difference is 1.48
        ({"a": [4] * 10, "b": [3] * 10, "c": [2] * 10, "d": [1] * 10}, ("ab", "bc", "cd")),
        # a clique within another is not named
        ({"a": [3, 2, 3, 2], "b": [2, 3, 2, 3], "c": [1, 1, 1, 1]}, ("abc",)),
        # a method that differs from all others is in none
        ({"a": [9.0] * 20, "b": [2, 1] * 10, "c": [1, 2] * 10}, ("bc",)),
    ],
)
def test_cliques_by_hand(values, cliques):
    got = critical_difference(values)
    assert got.cliques == tuple(map(tuple, cliques)) and got.reason is None
    assert len(values) < 4 or got.difference == pytest.approx(1.483, abs=0.001)


def test_too_few_columns_are_the_reason():
    few = critical_difference({f"m{i}": [float(i), float(i)] for i in range(7)})
    assert "too few columns: with 2," in few.reason
    assert "no two ranks can be more than 6 apart" in few.reason
    rng = np.random.default_rng(1)
    null = critical_difference({f"m{i}": rng.random(12) for i in range(4)})
    assert null.friedman.p > 0.05
    assert "Friedman's test finds no difference" in null.reason
