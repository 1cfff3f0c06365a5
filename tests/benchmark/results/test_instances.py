"""A method's instance metrics over splits and seeds: seeds of one split are not new splits."""

from dataclasses import replace

import numpy as np
import pytest
from support.made_experiments import write_run
from support.made_predictions import cohort

from probsa.benchmark import read_results
from probsa.benchmark.results.instances import metrics_of
from probsa.evaluation import InstanceTable, instance_metrics, write_predictions

KEYS = [(split, seed) for split in (0, 1) for seed in (0, 1)]


def slides_of(split):
    """Both seeds of a split predict the same; the second split has less information."""
    result, positive = cohort(6, seed=3)
    rng = np.random.default_rng(split)
    noise = 0.1 + 3 * split
    large = [replace(p, coords=50 * p.coords, stride=50 * p.stride) for p in result]
    return [
        replace(p, attention_mean=p.attention_mean + noise * rng.normal(size=len(p.attention_mean)))
        for p in large
    ], positive


@pytest.fixture
def scores(tmp_path):
    for split, seed in KEYS:
        slides, positive = slides_of(split)
        y = {p.name: int(positive[p.name]) for p in slides}
        p = dict.fromkeys(y, 0.5)
        run = write_run(tmp_path, split=split, seed=seed, folds=False, test=p, y=y)
        write_predictions(
            run / "predictions",
            slides,
            labels=y,
            parts=dict.fromkeys(y, "test"),
            classes=("0", "1"),
            threshold=0.5,
            metadata={},
            overwrite=True,
        )
    (own,) = read_results(tmp_path).scores
    return own


def interval(metric):
    return metric.value, metric.low, metric.high


def test_instances_of_a_method(scores):
    assert scores.blocks == [0, 0, 1, 1]
    positive = slides_of(0)[1]
    tables = [
        InstanceTable.of(slides_of(split)[0], positive=lambda p: positive[p.name])
        for split, _ in KEYS
    ]
    by_split = instance_metrics(tables, blocks=[0, 0, 1, 1], bootstrap=50)["auroc"]
    apart = instance_metrics(tables, bootstrap=50)["auroc"]
    result = metrics_of(scores, bootstrap=50)
    assert interval(result["auroc"]) == interval(by_split) != interval(apart)
