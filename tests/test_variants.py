"""Which plain model is the λ = 0 of a variant: never one of other arguments."""

import pytest
from made_experiments import write_folds

from probsa.benchmark.figures.numbers import gains
from probsa.benchmark.results import read_results, read_scores
from probsa.benchmark.tables.ablation import ablation_table
from probsa.benchmark.variants import variants_of

Y = {f"b{k:02d}": k % 2 for k in range(12)}
FOLDS = [list(Y)[0:4], list(Y)[4:8], list(Y)[8:12]]
GOOD = {b: 0.9 if y else 0.1 for b, y in Y.items()}
BAD = {b: 1 - p for b, p in GOOD.items()}


def labels_of(out) -> dict[str, list[str]]:
    found = variants_of(read_scores(out))
    return {k: [s.method.label for s in v] for k, v in found.items()}


@pytest.fixture
def written(tmp_path):
    def write(model: str, p: dict[str, float], **of):
        write_folds(tmp_path, Y, FOLDS, p, model=model, **of)
        return tmp_path

    return write


def test_one_made_for_a_variant_is_its_own(written):
    """Its arguments may be those of another: how it was trained is not."""
    written("abmil", BAD)
    written("abmil", GOOD, label="abmil of slow")
    out = written("abmil-probsa-diag", GOOD, label="slow", kl_weight=1)
    assert labels_of(out) == {"slow": ["abmil of slow", "slow"]}
    found, lost = gains(read_scores(out))
    assert lost == [] and {g.points for g in found} == {0.0}


def test_it_has_the_arguments_of_the_variant(written):
    """Of several plain models; a default that is written out is still the default."""
    written("abmil", BAD, label="a small one", arguments={"embed": 32})
    written("abmil", GOOD, label="b", arguments={"embed": 512})
    wide = {"embed": 512, "samples": 4}
    written("abmil-probsa-diag", GOOD, kl_weight=1, arguments=wide)
    small = {"embed": 32, "samples": 4}
    out = written("abmil-probsa-dirac", GOOD, label="d", kl_weight=1, arguments=small)
    found = labels_of(out)
    assert found["abmil-probsa-diag"] == ["b", "abmil-probsa-diag"]
    assert found["d"] == ["a small one", "d"]
    points = {g.variant: g.points for g in gains(read_scores(out))[0] if g.metric == "AUROC"}
    assert points == {"abmil-probsa-diag": 0.0, "d": 100.0}


def test_one_of_other_arguments_is_none(written):
    written("abmil", BAD)
    of = {"label": "small", "arguments": {"embed": 32}}
    written("abmil-probsa-diag", GOOD, kl_weight=1, **of)
    out = written("abmil-probsa-diag", GOOD, kl_weight="cyclical", **of)
    assert labels_of(out) == {"small": ["small", "small"]}
    found, lost = gains(read_scores(out))
    assert found == []
    assert lost[0] == "small λ=1 on toy: abmil of the same arguments was not run"
    assert ablation_table(read_results(out)) is None  # two λ, and nothing to lay them beside
