"""The primary metrics exist, point in the right direction, and need no reference library."""

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import probsa
from probsa.core import Task
from probsa.statistics import (
    PRIMARY,
    CensoringCurve,
    TargetMetrics,
    binary_metrics,
    multiclass_metrics,
    multilabel_metrics,
    ordinal_metrics,
    regression_metrics,
    survival_metrics,
)

REFERENCES = ("sksurv", "scikit-survival", "scikit_survival", "lifelines", "scoringrules")


def _metrics(task, quality) -> TargetMetrics:
    """Metrics of predictions that are right (1) or turned round (-1)."""
    y = np.array([0, 1, 2, 0, 1, 2])
    right = np.eye(3)[y] * 0.4 + 0.2
    p = right if quality > 0 else np.roll(right, 1, axis=1)
    time, event = np.arange(1.0, 7), np.ones(6, dtype=bool)
    return {
        "binary": lambda: binary_metrics(y == 0, p[:, 0]),
        "multiclass": lambda: multiclass_metrics(y, p),
        "ordinal": lambda: ordinal_metrics(y, p),
        "multilabel": lambda: multilabel_metrics(np.eye(3)[y], p, names=["a", "b", "c"]),
        "regression": lambda: regression_metrics(y.astype(float), quality * y.astype(float)),
        "survival": lambda: survival_metrics(
            time, event, risk=-quality * time, censoring=CensoringCurve.fit(time, event)
        ),
    }[task]()


@pytest.mark.parametrize("task", get_args(Task))
def test_the_primary_metric_of_a_task_tells_right_from_wrong(task):
    good, bad = (_metrics(task, q).overall[PRIMARY[task].name].value for q in (1, -1))
    assert good is not None and bad is not None
    assert (good > bad) is PRIMARY[task].higher_is_better


def test_no_module_imports_a_reference_library_of_the_tests():
    names = "|".join(REFERENCES)
    quoted = rf"(import_module|__import__|find_spec|importorskip)\(\s*[\"']({names})"
    for path in Path(probsa.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(rf"^\s*(import|from)\s+({names})\b", text, re.MULTILINE), path
        assert not re.search(quoted, text), path
