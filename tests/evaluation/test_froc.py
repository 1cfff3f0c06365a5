"""FROC: the organisers' results on all reference cases; detections and lesions by hand."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from probsa.errors import BagError, InputError
from probsa.evaluation.froc_summaries import froc_summary
from probsa.evaluation.lesion_detections import Detections, detect_lesions
from probsa.evaluation.lesion_hits import match_detections
from probsa.evaluation.lesion_masks import find_lesions, major_axes, patch_mask
from probsa.evaluation.pools import bag_draws
from probsa.evaluation.prediction import Prediction
from probsa.statistics import RATES, froc

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
def case_lesions(reference):
    """The lesions of every tumour case."""
    with np.load(reference / "masks.npz") as masks:
        return {name: find_lesions(masks[name]) for name in masks.files}


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
def case_hits(reference, case_lesions):
    """The hits of every case, tumour or normal."""
    by_case = {}
    for r in _rows(reference / "detections.csv"):
        by_case.setdefault(r["case"], []).append((r["x"], r["y"], r["confidence"]))
    return {
        name: match_detections(
            name, _points(*np.array(points, dtype=np.float64)), lesions=case_lesions.get(name)
        )
        for name, points in by_case.items()
    }


# The reference


def test_evaluation_masks_are_the_organisers(reference, case_lesions):
    with np.load(reference / "froc_curves_and_masks.npz") as curves:
        masks = [k for k in curves.files if k.endswith("__evaluation_mask")]
        assert len(masks) == len(case_lesions) == 5
        for key in masks:
            np.testing.assert_array_equal(
                case_lesions[key.removesuffix("__evaluation_mask")].labels, curves[key]
            )


def test_every_lesion_has_its_area_axis_kind_and_best_confidence(
    reference, case_lesions, case_hits
):
    rows = _rows(reference / "per_lesion.csv")
    assert len(rows) == sum(len(f.axes) for f in case_lesions.values()) == 27
    for r in rows:
        f, h, i = case_lesions[r["case"]], case_hits[r["case"]], int(r["label"]) - 1
        assert (f.labels == i + 1).sum() == int(r["area_px"])
        assert f.axes[i] == pytest.approx(float(r["major_axis_px"]), rel=1e-12)
        assert f.isolated[i] == (r["is_itc"] == "1")
        assert np.float32(h.best[i]) == np.float32(r["best_confidence_float32"])
        assert (h.which[i] >= 0) == (r["hit"] == "1")
    assert {r["is_itc"] for r in rows} == {"0", "1"}


def test_hits_and_false_positives_are_the_organisers(reference, expected, case_hits):
    """Of two equal detections, the first is the hit, as in the script under NumPy 2."""
    rows = _rows(reference / "detections.csv")
    for name, case in expected["numpy2"]["cases"].items():
        points = [(int(r["x"]), int(r["y"])) for r in rows if r["case"] == name]
        h = case_hits[name]
        assert h.lesions == case["num_of_tumors"]
        assert h.tumour == case["is_tumor"]
        np.testing.assert_array_equal(h.false, case["fp_probs"])
        for label, hit in case["detection_summary"].items():
            i = int(label.removeprefix("Label ")) - 1
            assert (h.which[i] >= 0) == bool(hit)
            if hit:
                assert points[h.which[i]] == tuple(hit[1:])
                assert h.best[i] == hit[0]


@pytest.mark.parametrize("subset", SUBSETS)
def test_curves_and_scores_are_the_organisers(reference, expected, case_hits, subset):
    row = next(r for r in _rows(reference / "scores.csv") if r["subset"] == subset)
    got = froc([case_hits[c] for c in row["cases"].split()])
    with np.load(reference / "froc_curves_and_masks.npz") as curves:
        np.testing.assert_array_equal(got.false_positives, curves[f"{subset}__total_FPs"])
        np.testing.assert_array_equal(got.sensitivity, curves[f"{subset}__total_sensitivity"])
    assert got.lesions == int(row["n_lesions"])
    for rate in RATES:
        assert got.at[rate] == pytest.approx(float(row[f"s_{rate:g}"]), abs=1e-15)
    assert got.score == pytest.approx(float(row["score"]), abs=1e-15)
    newer = expected["numpy2"]["subsets"][subset]
    assert got.score == pytest.approx(newer["score"], abs=1e-15)


def test_all_subsets_of_the_reference_are_tested(reference):
    assert tuple(r["subset"] for r in _rows(reference / "scores.csv")) == SUBSETS


# Lesions by hand


def test_lesions_merge_within_75_micrometres():
    mask = np.zeros((40, 80), dtype=bool)
    mask[15:25, 10:30] = mask[15:25, 38:60] = True  # 8 pixels between them: 62 µm
    assert find_lesions(mask).labels.max() == 1
    mask[:, 38] = False  # 9
    assert find_lesions(mask).labels.max() == 2
    # With pixels of half the size the gap of 9 is 35 µm.
    assert find_lesions(mask, pixel_um=0.243 * 16).labels.max() == 1


def test_a_hole_belongs_to_its_lesion_and_an_empty_mask_has_no_lesion():
    mask = np.zeros((60, 60), dtype=np.uint8)
    mask[10:50, 10:50] = 255
    mask[20:40, 20:40] = 0
    assert find_lesions(mask).labels[30, 30] == 1
    empty = find_lesions(np.zeros((5, 7)))
    assert empty.count == 0 and empty.labels.shape == (5, 7) and empty.labels.max() == 0
    with pytest.raises(InputError, match=r"mask of shape \(0, 3\)"):
        find_lesions(np.zeros((0, 3)))
    with pytest.raises(InputError, match=r"pixels of 0\.0 µm"):
        find_lesions(np.ones((2, 3)), pixel_um=0.0)


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
    return find_lesions(mask)


def test_slides_without_detections_count_for_the_average():
    tumour = match_detections("t", _points((1600, 1600, 0.8), (64, 64, 0.9)), lesions=_one_lesion())
    empty = match_detections("e", _points(), lesions=None)
    assert froc([tumour]).false_positives.tolist() == [1, 0]
    both = froc([tumour, empty, empty, empty])
    assert both.false_positives.tolist() == [0.25, 0]
    assert (both.slides, both.lesions) == (4, 1)
    missed = match_detections("m", _points(), lesions=_one_lesion())
    nothing = froc([missed, empty])
    assert nothing.score == 0.0 and nothing.sensitivity.tolist() == [0.0]


def test_detections_on_a_partial_last_pixel_count_and_beyond_it_do_not():
    edge = match_detections("t", _points((3210, 1600, 0.8)), lesions=_one_lesion())
    assert edge.false.tolist() == [0.8]
    with pytest.raises(InputError, match=r"slide 't': the detection at \(3300, 1600\) lies outs"):
        match_detections("t", _points((3300, 1600, 0.8)), lesions=_one_lesion())
    with pytest.raises(InputError, match=r"at \(-1, 5\) lies outside the mask of 100 × 100"):
        match_detections("t", _points((-1, 5, 0.8)), lesions=_one_lesion())
    for wrong in (-0.5, np.nan):
        with pytest.raises(InputError, match="a detection has confidence"):
            match_detections("n", _points((1, 1, wrong)), lesions=None)


def test_froc_needs_a_lesion():
    itc = np.zeros((50, 50), dtype=bool)
    itc[20:24, 20:24] = True
    only = match_detections("i", _points((22 * 32, 22 * 32, 0.9)), lesions=find_lesions(itc))
    assert len(only.false) == 0
    with pytest.raises(InputError, match="these 1 slides have none larger than isolated"):
        froc([only])
    got = froc_summary([[only]], bootstrap=5)
    assert set(got) == {"froc", *(f"sensitivity_at_{r:g}" for r in RATES)}
    assert all("none larger than isolated" in m.reason for m in got.values())


def test_intervals_resample_slides(case_hits):
    slides = list(case_hits.values())
    got = froc_summary([slides], bootstrap=40, seed=3)
    assert got["froc"].value == froc(slides).score
    names, tumour = [s.name for s in slides], np.array([s.tumour for s in slides])
    draws = bag_draws(names, tumour, groups=None, resamples=40, seed=3)
    sensitivities = []
    for counts in draws.counts[1:]:
        resample = [s for s, c in zip(slides, counts, strict=True) for _ in range(c)]
        if sum(s.lesions for s in resample):
            sensitivities.append(froc(resample).at[4.0])
    low, high = np.quantile(sensitivities, [0.025, 0.975])
    assert got["sensitivity_at_4"].low == pytest.approx(low)
    assert got["sensitivity_at_4"].high == pytest.approx(high)
    assert got["sensitivity_at_4"].left_out == 40 - len(sensitivities)
    pairs = {s.name: i // 2 for i, s in enumerate(slides)}
    assert froc_summary([slides], bootstrap=40, seed=3, groups=pairs)["froc"] != got["froc"]


# Detections by hand


def _slide(values, *, probability=(1.0,), kind="probability", stride=512.0, labels=None, name="s"):
    """A slide on a full lattice with these values (rows × columns)."""
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


def _confident(slide, *, radius):
    """The detections with a confidence of at least 0.5, without smoothing."""
    d = detect_lesions(slide, smoothing=0.0, radius=radius)
    kept = d.confidence >= 0.5
    return d.x[kept], d.y[kept], d.confidence[kept]


def test_non_maximum_suppression_by_hand():
    x, y, confidence = _confident(_slide(PEAKS), radius=1.5)
    # .9 suppresses its eight neighbours, and .7 the .6 diagonally next to it.
    np.testing.assert_allclose(confidence, [0.9, 0.7], atol=1e-7)
    np.testing.assert_array_equal(x, [1.5 * 512, 4.5 * 512])
    np.testing.assert_array_equal(y, [1.5 * 512, 1.5 * 512])
    near = _confident(_slide(PEAKS), radius=1.0)
    np.testing.assert_allclose(near[2], [0.9, 0.7, 0.6], atol=1e-7)
    assert len(detect_lesions(_slide(PEAKS), smoothing=0.0, radius=0.0).x) == 18
    # The radius is inclusive: the .7 is at a distance of 3 from the .9, and the .6 at √17.
    far = _confident(_slide(PEAKS), radius=3.0)
    np.testing.assert_allclose(far[2], [0.9, 0.6], atol=1e-7)


def test_smoothing_is_a_gaussian_over_existing_patches():
    line = _slide([[0.0, 1.0, 0.0]])
    a, b = np.exp(-0.5), np.exp(-2.0)
    expected = [1 / (1 + 2 * a), a / (1 + a + b), a / (1 + a + b)]
    got = detect_lesions(line, smoothing=1.0, radius=0.0)
    np.testing.assert_allclose(got.confidence, expected, rtol=1e-6)
    assert got.x[0] == 1.5 * 512
    # A single .9 against a block of .6, which is highest at the edge of the slide.
    spike = np.full((5, 7), 0.1)
    spike[2, 1] = 0.9
    spike[1:4, 4:7] = 0.6
    assert detect_lesions(_slide(spike), smoothing=0.0).x[0] == 1.5 * 512
    assert detect_lesions(_slide(spike), smoothing=1.0).x[0] == 6.5 * 512


def test_confidence_is_the_bags_probability_times_the_instances():
    weights = np.array([[0.5, 0.25, 0.125, 0.125]])
    share = 4 * weights[0] / (1 + 4 * weights[0])
    for kind, value in (("logit", np.log(weights) + 3), ("weight", weights)):
        p = _slide(value, kind=kind, probability=(0.6,))
        got = detect_lesions(p, smoothing=0.0, radius=0.0)
        np.testing.assert_allclose(got.confidence, 0.6 * share, rtol=1e-5)
    three = _slide([[0.5, 0.2]], probability=(0.25, 0.5, 0.25))
    got = detect_lesions(three, smoothing=0.0, radius=0.0)
    np.testing.assert_allclose(got.confidence, [0.375, 0.15], rtol=1e-6)


def test_slides_without_detections():
    with pytest.raises(InputError, match="relevance has no common scale"):
        detect_lesions(_slide(PEAKS, kind="relevance"))
    with pytest.raises(BagError, match="bag 's' has no 2-D coordinates"):
        detect_lesions(replace(_slide(PEAKS), coords=None))
    with pytest.raises(BagError, match="no 2-D coordinates"):
        detect_lesions(replace(_slide([[1.0, 2.0]]), coords=np.array([[1], [2]])))
    with pytest.raises(InputError, match="radius -1"):
        detect_lesions(_slide(PEAKS), radius=-1.0)


# Masks from patches


def test_froc_from_a_mask_and_from_labels_of_patches():
    """Two tumour slides, of which one is found and one half found, and one normal slide."""
    labels = np.zeros((12, 12))
    labels[2:6, 2:6] = 1
    labels[8:11, 8:11] = 1
    half = np.where(labels, 0.9, 0.0)
    half[8:11, 8:11] = 0.0
    normal = np.zeros((12, 12))
    normal[4, 4] = 0.5
    slides = [
        _slide(np.where(labels, 0.9, 0.0), labels=labels, name="a"),
        _slide(half, labels=labels, name="b"),
        _slide(normal, name="n"),
    ]
    mask = np.kron(labels, np.ones((16, 16)))
    from_patches = patch_mask(slides[0])
    np.testing.assert_array_equal(from_patches[:176, :176], mask[:176, :176])
    assert find_lesions(mask).count == find_lesions(from_patches).count == 2
    for shown in (mask, from_patches):
        found = [
            match_detections(
                p.name,
                detect_lesions(p, smoothing=0.0, radius=3.0),
                lesions=None if p.name == "n" else find_lesions(shown),
            )
            for p in slides
        ]
        # Three lesions are found at .9 and one at 0; the false positive at .5 is on one of three
        # slides, and those at 0 are below every threshold.
        assert froc_summary([found], bootstrap=0)["froc"].value == pytest.approx(0.75)


def test_patches_smaller_than_a_mask_pixel_still_paint_one():
    p = _slide([[0.9, 0.1]], labels=[[1, 0]])
    small = replace(p, coords=np.array([[0, 0], [8, 0]]), stride=8.0)
    np.testing.assert_array_equal(patch_mask(small), [[1]])


def test_patch_masks_need_instance_labels():
    with pytest.raises(BagError, match="neither mask nor instance labels"):
        patch_mask(_slide(PEAKS))
