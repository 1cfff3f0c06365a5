"""Methods have the order and λ the notation of the paper's tables."""

import pytest

from probsa.benchmark import Method
from probsa.benchmark.results.method_order import ORDER, kl_text, position
from probsa.models import names


def test_every_model_of_the_paper_is_one_of_ours():
    assert set(ORDER) <= set(names())


@pytest.mark.parametrize(
    ("kl", "text"), [(None, "0.0"), (0.1, "0.1"), (1.0, "1.0"), ("cyclical", "cyclical")]
)
def test_kl_weights_are_spelled_as_in_the_paper(kl, text):
    method = Method(label="abmil-probsa-diag", model="abmil-probsa-diag", kl_weight=kl)
    assert kl_text(method) == text


def test_methods_stand_in_the_papers_order():
    def method(model, kl=None):
        return Method(label=model, model=model, kl_weight=kl)

    given = [
        method("vmil"),
        method("smabmil"),
        method("tabmil"),
        method("clam-sb"),
        method("abmil-probsa-diag", "cyclical"),
        method("abmil"),
        method("abmil-probsa-diag", 1.0),
        method("abmil-probsa-diag", 0.5),
        method("abmil-probsa-diag", "linear"),
    ]
    assert [m.name for m in sorted(given, key=position)] == [
        "abmil-probsa-diag λ=0.5",
        "abmil-probsa-diag λ=1",
        "abmil-probsa-diag λ=linear",
        "abmil-probsa-diag λ=cyclical",
        "abmil",
        "clam-sb",
        "smabmil",
        "tabmil",
        "vmil",
    ]
