"""Which map is shown first, and the words for a bag."""

from dataclasses import replace

import numpy as np
import pytest
from support.made_predictions import made

from probsa.evaluation.prediction import column_names
from probsa.evaluation.verdicts import shown_column, truth_text, verdict


def predicted(task, values, outputs, std=None):
    values = np.asarray(values, np.float32)
    std = 0 * values if std is None else np.asarray(std, np.float32)
    p = made("bag", np.zeros(3))
    return replace(p, probability=values, std=std, task=task, outputs=outputs)


RISK = ("risk", "s_6", "s_15")


def test_the_column_that_is_shown_first():
    findings = predicted("multilabel", (0.9, 0.2, 0.4), ("a", "b", "c"))
    assert shown_column(findings, 3) == 0 and column_names(findings, 3) == ("a", "b", "c")
    steps = predicted("ordinal", (0.1, 0.2, 0.7), ("low", "mid", "high"))
    assert shown_column(steps, 2) == 1 and column_names(steps, 2) == (
        "at least mid",
        "at least high",
    )
    number = predicted("regression", (3.0, 1.0, 1, 2, 3, 4, 5), ("mean", "sd", "q05"))
    assert shown_column(number, 2) == 0  # the second logit is the variance
    assert shown_column(predicted("survival", (9, 0.5, 0.02), RISK), 2) == 0
    assert shown_column(predicted("survival", (2, 0.99, 0.3), RISK), 2) == 1
    classes = predicted("binary", (0.6, 0.1, 0.3), ())
    assert shown_column(classes, 3) == 2 and column_names(classes, 3) is None


@pytest.mark.parametrize(
    ("p", "call", "unsure"),
    [
        (predicted("binary", (0.55,), (), (0.1,)), "tumour", True),
        (predicted("binary", (0.3,), (), (0.1,)), "benign", False),
        (predicted("ordinal", (0.1, 0.35, 0.55), ("0", "1", "2"), (0, 0, 0.1)), "2", True),
        (predicted("ordinal", (0.1, 0.1, 0.8), ("0", "1", "2"), (0, 0, 0.1)), "2", False),
        (predicted("multilabel", (0.9, 0.2), ("a", "b"), (0.1, 0.1)), "a", False),
        (predicted("multilabel", (0.1, 0.45), ("a", "b"), (0.1, 0.1)), "none", True),
        (predicted("survival", (7, 0.6, 0.1), RISK), "0.60", False),
    ],
)
def test_calls_and_their_doubt(p, call, unsure):
    said = verdict(p, classes=("benign", "tumour") if p.task == "binary" else ("0", "1", "2"))
    assert (said.call, said.unsure) == (call, unsure)


def test_labels_in_words():
    assert truth_text("survival", (4.9, 0.0)) == "4.9, censored"
    assert truth_text("multilabel", (1.0, float("nan")), classes=("a", "b")) == "a (b not known)"
    assert truth_text("ordinal", (1.0,), classes=("low", "high")) == "high"
    assert truth_text("regression", (float("nan"),)) == ""
