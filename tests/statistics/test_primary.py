"""The primary metrics exist, point in the right direction, and need no reference library."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import probsa
from probsa.statistics import (
    PRIMARY,
    CensoringCurve,
    TargetMetrics,
    Task,
    multiclass_metrics,
    multilabel_metrics,
    ordinal_metrics,
    regression_metrics,
    survival_metrics,
)

REFERENCES = ("sksurv", "scikit-survival", "scikit_survival", "lifelines", "scoringrules")
OF_SURVIVAL = (
    "kaplan_meier",
    "censoring",
    "concordance",
    "survival_errors",
    "survival_areas",
    "survival",
)


def _metrics(task, quality):
    """Metrics of predictions that are right (1) or turned round (-1)."""
    y = np.array([0, 1, 2, 0, 1, 2])
    right = np.eye(3)[y] * 0.4 + 0.2
    p = right if quality > 0 else np.roll(right, 1, axis=1)
    if task == "multiclass":
        return multiclass_metrics(y, p)
    if task == "ordinal":
        return ordinal_metrics(y, p)
    if task == "multilabel":
        return multilabel_metrics(np.eye(3)[y], p, names=["a", "b", "c"])
    if task == "regression":
        return regression_metrics(y.astype(float), quality * y.astype(float))
    time, event = np.arange(1.0, 7), np.ones(6, dtype=bool)
    return survival_metrics(
        time, event, risk=-quality * time, censoring=CensoringCurve.fit(time, event)
    )


def test_every_task_has_a_primary_metric_that_tells_right_from_wrong():
    assert set(PRIMARY) == set(get_args(Task))
    for task, primary in PRIMARY.items():
        if task == "binary":  # its metrics are not of this room
            assert (primary.name, primary.higher_is_better) == ("auroc", True)
            continue
        right, wrong = (_metrics(task, quality) for quality in (1, -1))
        assert isinstance(right, TargetMetrics)
        good, bad = (m.overall[primary.name].value for m in (right, wrong))
        assert good is not None and bad is not None
        assert (good > bad) is primary.higher_is_better, task


def test_no_module_imports_a_reference_library_of_the_tests():
    for path in Path(probsa.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in REFERENCES:
            assert not re.search(rf"^\s*(import|from)\s+{name}\b", text, re.MULTILINE), path
            quoted = rf"(import_module|__import__|find_spec|importorskip)\(\s*[\"']{name}"
            assert not re.search(quoted, text), path


def test_survival_metrics_import_without_the_reference_libraries(monkeypatch):
    loaded = {name for name in sys.modules if name.partition(".")[0] in REFERENCES}
    for name in loaded.union(REFERENCES):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        import_module("sksurv.metrics")
    for name in OF_SURVIVAL:
        import_module(f"probsa.statistics.{name}")
        monkeypatch.delitem(sys.modules, f"probsa.statistics.{name}")
    fresh = import_module("probsa.statistics.survival")
    assert fresh.survival_metrics is not survival_metrics
    assert _metrics("survival", 1).overall["uno_c"].value == 1
