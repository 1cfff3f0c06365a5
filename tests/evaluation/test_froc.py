"""FROC: the organisers' results on every reference case; detections and lesions by hand."""

import csv
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from probsa.errors import BagError, InputError
from probsa.evaluation.found_lesions import froc_of_predictions, patch_mask
from probsa.evaluation.lesion_detections import Detections, detections
from probsa.evaluation.lesion_hits import hits
from probsa.evaluation.lesion_masks import lesions, major_axes
from probsa.evaluation.prediction import Prediction
from probsa.statistics.free_response import RATES, froc, froc_metrics

SUBSETS = (
    "all6",
    "drop_lesion",
    "drop_fp",
    "all8",
    "ties",
    "merge",
    "itc_only",
    "no_normal",
)


@pytest.fixture(scope="module")
def reference(shared_golden):
    return shared_golden / "evaluation" / "froc"


@pytest.fixture(scope="module")
def found(reference):
    """Lesions of every tumour case."""
    with np.load(reference / "masks.npz") as masks:
        return {name: lesions(masks[name]) for name in masks.files}


@pytest.fixture(scope="module")
def expected(reference):
    return json.loads((reference / "froc_expected.json").read_text())


def _rows(path):
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def _points(*points):
    x, y, c = np.array(points, dtype=np.float64).reshape(-1, 3).T
    return Detections(x=x, y=y, confidence=c)


@pytest.fixture(scope="module")
def judged(reference, found):
    """Hits of every case, tumour or normal."""
    by_case = {}
    for r in _rows(reference / "detections.csv"):
        by_case.setdefault(r["case"], []).append((r["x"], r["y"], r["confidence"]))
    return {
        name: hits(name, _points(*np.array(points, dtype=np.float64)), lesions=found.get(name))
        for name, points in by_case.items()
    }


# The reference


def test_evaluation_masks_are_the_organisers(reference, found):
    with np.load(reference / "froc_curves_and_masks.npz") as curves:
        masks = [k for k in curves.files if k.endswith("__evaluation_mask")]
        assert len(masks) == len(found) == 5
        for key in masks:
            np.testing.assert_array_equal(
                found[key.removesuffix("__evaluation_mask")].labels, curves[key]
            )


def test_every_lesion_has_its_area_axis_kind_and_best_confidence(reference, found, judged):
    rows = _rows(reference / "per_lesion.csv")
    assert len(rows) == sum(len(f.axes) for f in found.values()) == 27
    for r in rows:
        f, h, i = found[r["case"]], judged[r["case"]], int(r["label"]) - 1
        assert (f.labels == i + 1).sum() == int(r["area_px"])
        assert f.axes[i] == pytest.approx(float(r["major_axis_px"]), rel=1e-12)
        assert f.isolated[i] == (r["is_itc"] == "1")
        assert np.float32(h.best[i]) == np.float32(r["best_confidence_float32"])
        assert (h.which[i] >= 0) == (r["hit"] == "1")
    assert {r["is_itc"] for r in rows} == {"0", "1"}


def test_hits_and_false_positives_are_the_organisers(reference, expected, judged):
    """Which of two equal detections is named: the first, as the script does under numpy 2."""
    rows = _rows(reference / "detections.csv")
    for name, case in expected["numpy2"]["cases"].items():
        own = [(int(r["x"]), int(r["y"])) for r in rows if r["case"] == name]
        h = judged[name]
        assert h.lesions == case["num_of_tumors"]
        assert h.tumour == case["is_tumor"]
        np.testing.assert_array_equal(h.false, case["fp_probs"])
        for label, hit in case["detection_summary"].items():
            i = int(label.removeprefix("Label ")) - 1
            assert (h.which[i] >= 0) == bool(hit)
            if hit:
                assert own[h.which[i]] == tuple(hit[1:])
                assert h.best[i] == hit[0]


@pytest.mark.parametrize("subset", SUBSETS)
def test_curves_and_scores_are_the_organisers(reference, expected, judged, subset):
    row = next(r for r in _rows(reference / "scores.csv") if r["subset"] == subset)
    got = froc([judged[c] for c in row["cases"].split()])
    with np.load(reference / "froc_curves_and_masks.npz") as curves:
        np.testing.assert_array_equal(got.false_positives, curves[f"{subset}__total_FPs"])
        np.testing.assert_array_equal(got.sensitivity, curves[f"{subset}__total_sensitivity"])
    assert got.lesions == int(row["n_lesions"])
    for rate in RATES:
        assert got.at[rate] == pytest.approx(float(row[f"s_{rate:g}"]), abs=1e-15)
    assert got.score == pytest.approx(float(row["score"]), abs=1e-15)
    newer = expected["numpy2"]["subsets"][subset]
    assert got.score == pytest.approx(newer["score"], abs=1e-15)


def test_the_subsets_are_all_there_are(reference):
    assert tuple(r["subset"] for r in _rows(reference / "scores.csv")) == SUBSETS


def test_all_thresholds_keep_what_the_script_drops(judged):
    """Tumour_005: hits at .8 and .15; false positives at .7 and .2. The script drops .15."""
    official, every = (froc([judged["Tumor_005"]], thresholds=t) for t in ("official", "all"))
    assert official.sensitivity.max() == 0.5
    np.testing.assert_array_equal(every.false_positives, [2, 2, 1, 0, 0])
    np.testing.assert_array_equal(every.sensitivity, [1, 0.5, 0.5, 0.5, 0])
    assert every.at[2.0] == 1.0
    # A hit at .9 and a false positive at .9 are one threshold then.
    ties = [judged["Tumor_001"], judged["Normal_001"]]
    assert len(froc(ties, thresholds="official").sensitivity) == 12
    distinct = {0.9, 0.6, 0.25, 0.75, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05}
    assert len(froc(ties, thresholds="all").sensitivity) == len(distinct) + 1


# Lesions by hand


def test_lesions_merge_within_75_micrometres():
    mask = np.zeros((40, 80), dtype=bool)
    mask[15:25, 10:30] = mask[15:25, 38:60] = True  # 8 pixels between them: 62 µm
    assert lesions(mask).labels.max() == 1
    mask[:, 38] = False  # 9
    assert lesions(mask).labels.max() == 2
    # With pixels of half the size the gap of 9 is 35 µm.
    assert lesions(mask, pixel_um=0.243 * 16).labels.max() == 1


def test_a_hole_belongs_to_the_lesion_and_no_tumour_has_none():
    mask = np.zeros((60, 60), dtype=np.uint8)
    mask[10:50, 10:50] = 255
    mask[20:40, 20:40] = 0
    assert lesions(mask).labels[30, 30] == 1
    none = lesions(np.zeros((5, 7)))
    assert none.count == 0 and none.labels.shape == (5, 7) and none.labels.max() == 0
    with pytest.raises(InputError, match=r"mask of shape \(0, 3\)"):
        lesions(np.zeros((0, 3)))
    with pytest.raises(InputError, match=r"pixels of 0\.0 µm"):
        lesions(np.ones((2, 3)), pixel_um=0.0)


def test_major_axes_by_hand():
    labels = np.zeros((12, 12), dtype=np.int64)
    labels[0, 0] = 1
    labels[2, 2:5] = 2  # x = -1, 0, 1: variance 2/3
    labels[5:7, 5:7] = 3  # variance 1/4 both ways
    labels[8, 8] = labels[9, 9] = labels[10, 10] = 4  # diagonal: 4/3 along it
    np.testing.assert_allclose(
        major_axes(labels), [0, 4 * np.sqrt(2 / 3), 2, 4 * np.sqrt(4 / 3)], atol=1e-12
    )


# Hits by hand


def _one_lesion():
    mask = np.zeros((100, 100), dtype=bool)
    mask[20:80, 20:80] = True
    return lesions(mask)


def test_slides_without_detections_count_for_the_average():
    tumour = hits("t", _points((1600, 1600, 0.8), (64, 64, 0.9)), lesions=_one_lesion())
    empty = hits("e", _points(), lesions=None)
    assert froc([tumour]).false_positives.tolist() == [1, 0]
    both = froc([tumour, empty, empty, empty])
    assert both.false_positives.tolist() == [0.25, 0]
    assert (both.slides, both.lesions) == (4, 1)
    missed = hits("m", _points(), lesions=_one_lesion())
    nothing = froc([missed, empty])
    assert nothing.score == 0.0 and nothing.sensitivity.tolist() == [0.0]


def test_a_detection_on_the_last_broken_pixel_counts_beyond_it_does_not():
    edge = hits("t", _points((3210, 1600, 0.8)), lesions=_one_lesion())
    assert edge.false.tolist() == [0.8]
    with pytest.raises(InputError, match=r"slide 't': the detection at \(3300, 1600\) lies outs"):
        hits("t", _points((3300, 1600, 0.8)), lesions=_one_lesion())
    with pytest.raises(InputError, match=r"at \(-1, 5\) lies outside the mask of 100 × 100"):
        hits("t", _points((-1, 5, 0.8)), lesions=_one_lesion())
    for wrong in (-0.5, np.nan):
        with pytest.raises(InputError, match="a detection has confidence"):
            hits("n", _points((1, 1, wrong)), lesions=None)


def test_froc_needs_a_lesion():
    itc = np.zeros((50, 50), dtype=bool)
    itc[20:24, 20:24] = True
    only = hits("i", _points((22 * 32, 22 * 32, 0.9)), lesions=lesions(itc))
    assert len(only.false) == 0
    with pytest.raises(InputError, match="these 1 slides have none larger than isolated"):
        froc([only])
    got = froc_metrics([only], bootstrap=5)
    assert set(got) == {"froc", *(f"sensitivity_at_{r:g}" for r in RATES)}
    assert all("none larger than isolated" in m.reason for m in got.values())


def test_intervals_are_of_slides_drawn_again(judged):
    from probsa.statistics.bootstrap import Draws

    slides = list(judged.values())
    got = froc_metrics(slides, bootstrap=40, seed=3)
    assert got["froc"].value == froc(slides).score
    draws = Draws.of(np.array([s.tumour for s in slides]), groups=None, resamples=40, seed=3)
    scores = []
    for counts in draws.counts:
        again = [s for s, c in zip(slides, counts, strict=True) for _ in range(c)]
        if sum(s.lesions for s in again):
            scores.append(froc(again).at[4.0])
    low, high = np.quantile(scores, [0.025, 0.975])
    assert got["sensitivity_at_4"].low == pytest.approx(low)
    assert got["sensitivity_at_4"].high == pytest.approx(high)
    assert got["sensitivity_at_4"].left_out == 40 - len(scores)
    pairs = {s.name: i // 2 for i, s in enumerate(slides)}
    assert froc_metrics(slides, bootstrap=40, seed=3, groups=pairs)["froc"] != got["froc"]


# Detections by hand


def _slide(values, *, probability=(1.0,), kind="probability", stride=512.0, labels=None, name="s"):
    """A whole lattice with these values (rows × columns)."""
    values = np.asarray(values, dtype=np.float32)
    rows, columns = np.mgrid[: values.shape[0], : values.shape[1]]
    flat = values.ravel()
    zero = np.zeros_like(flat)
    return Prediction(
        name=name,
        probability=np.float32(probability),
        std=np.zeros(len(probability), np.float32),
        coords=(np.stack([columns.ravel(), rows.ravel()], axis=1) * 512).astype(np.int64),
        attention_mean=flat,
        attention_variance=zero,
        weight_mean=zero,
        weight_variance=zero,
        degree=zero,
        score_kind=kind,
        stride=stride,
        instance_labels=None if labels is None else np.asarray(labels, np.int8).ravel(),
    )


PEAKS = np.array(
    [
        [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        [0.1, 0.9, 0.8, 0.1, 0.7, 0.1],
        [0.1, 0.8, 0.1, 0.1, 0.1, 0.6],
    ]
)


def test_non_maximum_suppression_by_hand():
    x, y, c = detections(_slide(PEAKS), smoothing=0.0, radius=1.5, least=0.5)
    # .9 silences its eight neighbours, .7 the .6 at the corner from it.
    np.testing.assert_allclose(c, [0.9, 0.7], atol=1e-7)
    np.testing.assert_array_equal(x, [1.5 * 512, 4.5 * 512])
    np.testing.assert_array_equal(y, [1.5 * 512, 1.5 * 512])
    near = detections(_slide(PEAKS), smoothing=0.0, radius=1.0, least=0.5)
    np.testing.assert_allclose(near.confidence, [0.9, 0.7, 0.6], atol=1e-7)
    every = detections(_slide(PEAKS), smoothing=0.0, radius=0.0)
    assert len(every) == 18
    assert len(detections(_slide(PEAKS), smoothing=0.0, radius=0.0, most=4)) == 4
    # A distance is inclusive: the .7 is 3 to the right of the .9, the .6 is √17 from it.
    far = detections(_slide(PEAKS), smoothing=0.0, radius=3.0, least=0.5)
    np.testing.assert_allclose(far.confidence, [0.9, 0.6], atol=1e-7)


def test_smoothing_is_a_gaussian_over_the_patches_that_are_there():
    line = _slide([[0.0, 1.0, 0.0]])
    a, b = np.exp(-0.5), np.exp(-2.0)
    expected = [1 / (1 + 2 * a), a / (1 + a + b), a / (1 + a + b)]
    got = detections(line, smoothing=1.0, radius=0.0)
    np.testing.assert_allclose(got.confidence, expected, rtol=1e-6)
    assert got.x[0] == 1.5 * 512
    # A lone .9 against a block of .6, highest at the edge, beyond which nothing lowers it.
    spike = np.full((5, 7), 0.1)
    spike[2, 1] = 0.9
    spike[1:4, 4:7] = 0.6
    assert detections(_slide(spike), smoothing=0.0, most=1).x[0] == 1.5 * 512
    assert detections(_slide(spike), smoothing=1.0, most=1).x[0] == 6.5 * 512


def test_confidence_is_the_bags_probability_times_the_instances_share():
    weights = np.array([[0.5, 0.25, 0.125, 0.125]])
    share = 4 * weights[0] / (1 + 4 * weights[0])
    for kind, value in (("logit", np.log(weights) + 3), ("weight", weights)):
        p = _slide(value, kind=kind, probability=(0.6,))
        got = detections(p, smoothing=0.0, radius=0.0)
        np.testing.assert_allclose(got.confidence, 0.6 * share, rtol=1e-5)
    three = _slide([[0.5, 0.2]], probability=(0.25, 0.5, 0.25))
    got = detections(three, smoothing=0.0, radius=0.0)
    np.testing.assert_allclose(got.confidence, [0.375, 0.15], rtol=1e-6)
    raw = detections(p, smoothing=0.0, radius=0.0, confidence="score")
    np.testing.assert_allclose(raw.confidence, weights[0], rtol=1e-6)


def test_what_has_no_detections():
    with pytest.raises(InputError, match="relevance has no scale"):
        detections(_slide(PEAKS, kind="relevance"))
    assert len(detections(_slide(PEAKS, kind="relevance"), confidence="score")) > 0
    with pytest.raises(BagError, match="bag 's' has no coordinates in the plane"):
        detections(replace(_slide(PEAKS), coords=None))
    with pytest.raises(BagError, match="no coordinates in the plane"):
        detections(replace(_slide([[1.0, 2.0]]), coords=np.array([[1], [2]])))
    with pytest.raises(InputError, match="radius -1"):
        detections(_slide(PEAKS), radius=-1.0)


# A model's FROC


def _cohort():
    """Two tumour slides, one found and one half found, and one normal slide."""
    labels = np.zeros((12, 12))
    labels[2:6, 2:6] = 1
    labels[8:11, 8:11] = 1
    whole = np.where(labels, 0.9, 0.1)
    half = whole.copy()
    half[8:11, 8:11] = 0.1
    normal = np.full((12, 12), 0.1)
    normal[4, 4] = 0.5
    return [
        _slide(whole, labels=labels, name="a"),
        _slide(half, labels=labels, name="b"),
        _slide(normal, labels=np.zeros((12, 12)), name="n"),
    ], {"a": True, "b": True, "n": False}


def test_froc_of_predictions_with_masks_and_with_labels_of_patches():
    slides, positive = _cohort()
    find = partial(detections, smoothing=0.0, radius=3.0, least=0.3)
    mask = np.kron(slides[0].instance_labels.reshape(12, 12), np.ones((16, 16), dtype=np.int8))
    np.testing.assert_array_equal(patch_mask(slides[0])[:176, :176], mask[:176, :176])
    got = froc_of_predictions(slides, {"a": mask, "b": mask}, positive=positive, find=find)
    assert got.source == "masks" and [s.lesions for s in got.slides] == [2, 2, 0]
    # Lesions at .9, .9, .9, missed; one false positive at .5 on three slides.
    assert got.metrics["froc"].value == pytest.approx(0.75)
    rough = froc_of_predictions(slides, None, positive=positive, find=find, bootstrap=0)
    assert rough.source == "patches" and rough.note.startswith("patch-level approximation")
    assert rough.note.endswith("4 lesions on 3 slides")
    assert rough.metrics["froc"].value == got.metrics["froc"].value
    smooth = froc_of_predictions(slides, None, positive=positive, bootstrap=0)
    assert smooth.metrics["froc"].value < 1.0


def test_patches_smaller_than_a_mask_pixel_still_paint_one():
    p = _slide([[0.9, 0.1]], labels=[[1, 0]])
    small = replace(p, coords=np.array([[0, 0], [8, 0]]), stride=8.0)
    np.testing.assert_array_equal(patch_mask(small), [[1]])


def test_masks_that_are_missing_are_named():
    slides, positive = _cohort()
    with pytest.raises(InputError, match="slide 'b' has tumour but no mask"):
        froc_of_predictions(slides, {"a": np.ones((192, 192))}, positive=positive)
    bare = [replace(slides[0], instance_labels=None)]
    with pytest.raises(BagError, match="neither mask nor instance labels"):
        froc_of_predictions(bare, None, positive=positive)
