"""docs/python.md: its examples run, in the order of the page, and do what the text says."""

import re
from typing import get_args

import pytest
from support import forks
from support.paths import ROOT

from probsa.core import GraphOptions
from probsa.training.config import Tracker

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
ERRORS = """
import warnings

warnings.simplefilter("error", UserWarning)
"""
AFTERWARDS = """
from sklearn.metrics import roc_auc_score

positive = np.array(labels) == "tumour"
for p in (classifier.predict_proba(slides)[:, 1], pipeline.predict_proba(slides)[:, 1]):
    assert roc_auc_score(positive, p) > 0.9, p
assert set(np.argsort(scores.mean)[-3:]) == {0, 1, 2}, scores.mean  # the unusual patches
assert set(frame["weight_mean"].nlargest(3).index) == {0, 1, 2}
assert losses[-1] < losses[0] / 2, losses
assert roc_auc_score(positive, probability.numpy()) > 0.9
assert pooled.weight_mean.shape == (24 * 12,)
assert loss.isfinite()
assert numbers.quantiles.shape == (2, 5) and (numbers.sd > numbers.spread).all()
assert graded.task_ == "ordinal" and graded.classes_.tolist() == [0, 1, 2]
assert findings.predict_proba(slides).shape == (24, 2)
assert survival.predict_survival_function(slides).shape == (24, len(survival.times_))
"""


def test_the_examples_run_and_learn(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    done = forks.run("\n".join([ERRORS, *blocks, AFTERWARDS]))
    assert done.returncode == 0, done.output() + done.errors()


def test_the_options_and_extras_that_the_page_names_exist():
    (listed,) = re.findall(r"options of run files: (.*?)\.\n", PAGE)
    assert set(re.findall(r"`(\w+)`", listed)) == set(GraphOptions.__dataclass_fields__)
    assert set(re.findall(r"`tracker: (\w+)`", PAGE)) == set(get_args(Tracker))
    text = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"pip install '\.\[(\w+)\]'", PAGE):
        assert re.search(rf"^{extra} = \[", text, re.MULTILINE), extra
