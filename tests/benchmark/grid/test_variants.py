"""The plain model (λ = 0) of a variant never has other arguments."""

import pytest
from support.made_experiments import write_folds

from probsa.benchmark import Method, ablation_table, comparison_table, read_results
from probsa.benchmark.figures.forest import differences
from probsa.benchmark.figures.improvement import gains
from probsa.benchmark.figures.ranks import family_ranks
from probsa.benchmark.grid.variants import CHOSEN, chosen, family_baseline, variants_of

Y = {f"b{k:02d}": k % 2 for k in range(12)}
FOLDS = [list(Y)[0:4], list(Y)[4:8], list(Y)[8:12]]
GOOD = {b: 0.9 if y else 0.1 for b, y in Y.items()}
BAD = {b: 1 - p for b, p in GOOD.items()}


def labels_of(out) -> dict[str, list[str]]:
    variants = variants_of(read_results(out).scores)
    return {k: [s.method.label for s in v] for k, v in variants.items()}


@pytest.fixture
def written(tmp_path):
    def write(model: str, p: dict[str, float], **of):
        write_folds(tmp_path, Y, FOLDS, p, model=model, **of)
        return tmp_path

    return write


def test_one_made_for_a_variant_is_its_own(written):
    """The plain model made for a variant shares its training, not only its arguments."""
    written("abmil", BAD)
    written("abmil", GOOD, label="abmil of slow")
    out = written("abmil-probsa-diag", GOOD, label="slow", kl_weight=1)
    assert labels_of(out) == {"slow": ["abmil of slow", "slow"]}
    result, missing, _ = gains(read_results(out).scores)
    assert missing == [] and {g.points for g in result} == {0.0}


def test_it_has_the_arguments_of_the_variant(written):
    """Several plain models may be candidates; an explicit default is still the default."""
    written("abmil", BAD, label="a small one", arguments={"embed": 32})
    written("abmil", GOOD, label="b", arguments={"embed": 512})
    wide = {"embed": 512, "samples": 4}
    written("abmil-probsa-diag", GOOD, kl_weight=1, arguments=wide)
    small = {"embed": 32, "samples": 4}
    out = written("abmil-probsa-dirac", GOOD, label="d", kl_weight=1, arguments=small)
    result = labels_of(out)
    assert result["abmil-probsa-diag"] == ["b", "abmil-probsa-diag"]
    assert result["d"] == ["a small one", "d"]
    points = {
        g.variant: g.points for g in gains(read_results(out).scores)[0] if g.metric == "AUROC"
    }
    assert points == {"abmil-probsa-diag": 0.0, "d": 100.0}


def test_of_plain_models_that_are_alike_the_one_of_the_models_name_stands(written):
    written("abmil", BAD, label="a")
    written("abmil", GOOD)
    out = written("abmil-probsa-diag", GOOD, kl_weight=1)
    assert labels_of(out) == {"abmil-probsa-diag": ["abmil", "abmil-probsa-diag"]}


def test_one_of_other_arguments_is_none(written):
    written("abmil", BAD)
    of = {"label": "small", "arguments": {"embed": 32}}
    written("abmil-probsa-diag", GOOD, kl_weight=1, **of)
    out = written("abmil-probsa-diag", GOOD, kl_weight="cyclical", **of)
    assert labels_of(out) == {"small": ["small", "small"]}
    result, missing, _ = gains(read_results(out).scores)
    assert result == [] and ["small λ=1" in reason for reason in missing] == [True, False]
    assert ablation_table(read_results(out)) is None  # two λ, but no plain model


@pytest.mark.parametrize(
    ("run", "stands"),
    [
        ((0.1, 1, 0.5), "1"),
        ((0.1, "linear", 10), "linear"),
        (("linear", "cyclical", 5), "cyclical"),
    ],
)
def test_one_kl_weight_stands_for_a_method_in_tables_and_figures_alike(written, run, stands):
    written("abmil", BAD)
    for kl in run:
        out = written("abmil-probsa-diag", GOOD, kl_weight=kl)
    results = read_results(out)
    name = f"abmil-probsa-diag λ={stands}"
    assert [s.method.name for s in chosen(results.scores)] == [name, "abmil"]
    table = comparison_table(results, "local")
    assert {row[0].text for row in table.rows} == {"abmil", name}
    assert any(CHOSEN in note for note in table.footnotes)
    assert {r.method for r in family_ranks(results.scores)[0]} == {"abmil", name}
    assert {d.method for d in differences(results.scores)[0]} == {name}


def test_a_kl_weight_is_the_same_on_all_data_sets(written):
    """Otherwise ranks over all data sets would include methods run on only one."""
    for data in ("one", "two"):
        written("abmil", BAD, data=data)
        written("abmil-probsa-diag", GOOD, kl_weight=0.1, data=data)
    out = written("abmil-probsa-diag", GOOD, kl_weight=5, data="one")
    shown = {(s.data, s.method.name) for s in chosen(read_results(out).scores)}
    assert ("one", "abmil-probsa-diag λ=5") in shown
    assert ("two", "abmil-probsa-diag λ=0.1") not in shown


def test_who_is_ranked_is_the_same_in_table_and_figure(written):
    """A method without F1 in a column and one without a data set are both left out and named."""
    for data in ("one", "two"):
        written("abmil", BAD, data=data)
        written("dsmil", GOOD, data=data)
    written("tabmil", GOOD, data="three")  # data sets of another family do not count
    out = written("patchgcn", GOOD, data="one")
    results = read_results(out)
    table = comparison_table(results, "local")
    rank = [c.key for c in table.columns].index("rank")
    in_table = {row[0].text for row in table.rows if row[rank].value is not None}
    result, missing, _ = family_ranks(results.scores)
    in_figure = {r.method for r in result if r.family == "local"}
    assert in_table == in_figure == {"abmil", "dsmil"}
    (note,) = missing
    assert "patchgcn" in note and note in table.footnotes
    assert {r.data_sets for r in result if r.family == "local"} == {2}


def test_a_family_is_compared_to_the_plain_model_of_its_own_name():
    def method(label: str, **arguments) -> Method:
        return Method(label=label, model="abmil", arguments=arguments)

    own = method("abmil")
    renamed = method("plain")
    changed = method("A", gated=True)
    other = Method(label="tabmil", model="tabmil")
    assert family_baseline([changed, renamed, own, other], "local") is own
    assert family_baseline([changed, renamed, other], "local") is renamed
    assert family_baseline([changed, other], "local") is changed
    assert family_baseline([other], "local") is None
    assert family_baseline([changed, other], "global") is other
