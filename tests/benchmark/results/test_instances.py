"""A method's instance metrics over splits and seeds: seeds of one split are not new splits."""

from dataclasses import replace

import numpy as np
import pytest
from support.made_experiments import write_run
from support.made_predictions import cohort

from probsa.benchmark.results.instances import metrics_of
from probsa.benchmark.results.lesions import LesionTruth, lesions_found
from probsa.benchmark.results.results import read_results
from probsa.evaluation import InstanceTable, instance_metrics
from probsa.evaluation.lesions import (
    detect_lesions,
    find_lesions,
    froc_summary,
    match_detections,
    patch_mask,
)
from probsa.evaluation.storage import write_predictions

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


def test_lesions_of_a_method(scores):
    def hit(split):
        slides, positive = slides_of(split)
        there = {p.name: find_lesions(patch_mask(p)) if positive[p.name] else None for p in slides}
        return [match_detections(p.name, detect_lesions(p), lesions=there[p.name]) for p in slides]

    replicates = [hit(split) for split, _ in KEYS]
    by_split = froc_summary(replicates, blocks=[0, 0, 1, 1], bootstrap=50)
    apart = froc_summary(replicates, bootstrap=50)
    result = lesions_found(scores, [LesionTruth(source="patches")], bootstrap=50)["patches"].metrics
    assert interval(result["froc"]) == interval(by_split["froc"]) != interval(apart["froc"])


def test_lesions_are_those_of_the_labels_that_came():
    """A method with different patches may have different labels at the same positions."""
    slide = next(p for p in slides_of(0)[0] if p.instance_labels.any())
    truth = LesionTruth(source="patches")
    there = truth.of(slide, tumour=True)
    assert truth.of(slide, tumour=True) is there
    turned = replace(slide, instance_labels=slide.instance_labels[::-1].copy())
    other = truth.of(turned, tumour=True)
    np.testing.assert_array_equal(other.labels, find_lesions(patch_mask(turned)).labels)
    assert (other.labels != there.labels).any()
    assert truth.of(slide, tumour=False) is None
    reason = truth.of(replace(slide, instance_labels=None), tumour=True)
    assert (
        isinstance(reason, str) and truth.of(slide, tumour=True) == reason
    )  # left out from now on
