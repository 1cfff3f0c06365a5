"""Lesions and FROC: the organisers' results, cases by hand, and the report on annotated slides."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import tifffile
from PIL import Image
from scipy import ndimage
from support.made_predictions import made_slide as slide
from support.made_studies import SIDE, asap_xml, lattice
from support.refusals import refused

from probsa.cli.entry import main
from probsa.datasets.studies.annotated import tumour_mask
from probsa.errors import BagError, InputError, SlideError
from probsa.evaluation import evaluate, write_predictions
from probsa.evaluation import lesions as module
from probsa.evaluation.lesions import (
    Detections,
    detect_lesions,
    find_lesions,
    froc_summary,
    match_detections,
    patch_mask,
)
from probsa.statistics import RATES, Draws, NoInterval, froc

ALL6 = ("Tumor_001", "Tumor_002", "Tumor_003", "Tumor_004", "Normal_001", "Normal_002")


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


def save(path, slides, labels, *, parts=None):
    given = {"classes": ("0", "1"), "threshold": 0.5, "metadata": {}}
    parts = dict.fromkeys(labels, "test") if parts is None else parts
    write_predictions(path, slides, labels=labels, parts=parts, **given)
    return path


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


def test_masks_and_lesions_are_the_organisers(reference, case_lesions, case_hits):
    with np.load(reference / "froc_curves_and_masks.npz") as curves:
        masks = [k for k in curves.files if k.endswith("__evaluation_mask")]
        assert len(masks) == len(case_lesions) == 5
        for key in masks:
            np.testing.assert_array_equal(
                case_lesions[key.removesuffix("__evaluation_mask")].labels, curves[key]
            )
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


def test_hits_curves_and_scores_are_the_organisers(reference, expected, case_hits):
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
    rows = _rows(reference / "scores.csv")
    assert len(rows) == 8
    with np.load(reference / "froc_curves_and_masks.npz") as curves:
        for row in rows:
            name, got = row["subset"], froc([case_hits[c] for c in row["cases"].split()])
            np.testing.assert_array_equal(got.false_positives, curves[f"{name}__total_FPs"])
            np.testing.assert_array_equal(got.sensitivity, curves[f"{name}__total_sensitivity"])
            for rate in RATES:
                assert got.at[rate] == pytest.approx(float(row[f"s_{rate:g}"]), abs=1e-15)
            newer = expected["numpy2"]["subsets"][name]["score"]
            assert got.score == pytest.approx(float(row["score"]), abs=1e-15)
            assert got.score == pytest.approx(newer, abs=1e-15)


# Lesions by hand


def test_lesions_merge_within_75_micrometres():
    mask = np.zeros((40, 80), dtype=bool)
    mask[15:25, 10:30] = mask[15:25, 38:60] = True  # 8 pixels between them: 62 µm
    assert find_lesions(mask).labels.max() == 1
    mask[:, 38] = False  # 9
    assert find_lesions(mask).labels.max() == 2
    # With pixels of half the size the gap of 9 is 35 µm.
    assert find_lesions(mask, mpp=0.243 / 2).labels.max() == 1
    mask = np.zeros((60, 60), dtype=np.uint8)
    mask[10:50, 10:50] = 255
    mask[20:40, 20:40] = 0
    assert find_lesions(mask).labels[30, 30] == 1
    empty = find_lesions(np.zeros((5, 7)))
    assert len(empty.isolated) == 0 and empty.labels.shape == (5, 7) and empty.labels.max() == 0
    p = _slide([[0.9, 0.1]], labels=[[1, 0]])
    small = replace(p, coords=np.array([[0, 0], [8, 0]]), stride=8.0)
    np.testing.assert_array_equal(patch_mask(small), [[1]])


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
    refused(InputError, "these 1 slides have none larger than isolated", froc, [only])
    got = froc_summary([[only]], bootstrap=5)
    assert set(got) == {"froc", *(f"sensitivity_at_{r:g}" for r in RATES)}
    assert all("none larger than isolated" in m.reason for m in got.values())


def test_a_weight_of_a_slide_is_a_number_of_copies(case_hits):
    slides = list(case_hits.values())
    counts = [2 + k % 3 for k in range(len(slides) - 1)] + [0]
    copies = [s for s, count in zip(slides, counts, strict=True) for _ in range(count)]
    got, expected = froc(slides, weights=[0.25 * c for c in counts]), froc(copies)
    np.testing.assert_allclose(got.sensitivity, expected.sensitivity)
    np.testing.assert_allclose(got.false_positives, expected.false_positives)


def test_intervals_resample_slides(case_hits):
    slides = list(case_hits.values())
    got = froc_summary([slides], bootstrap=40, seed=3)
    assert got["froc"].value == froc(slides).score
    tumour = np.array([s.tumour for s in slides])
    draws = Draws.patients(tumour, groups=None, resamples=40, seed=3)
    expected = []
    for counts in draws.counts:
        drawn = [s for s, weight in zip(slides, counts, strict=True) if weight]
        found = any(s.lesions for s in drawn)
        curve = froc(slides, weights=counts) if found else None
        expected.append(np.nan if curve is None else curve.at[4.0])
    np.testing.assert_allclose(got["sensitivity_at_4"].rows, expected)
    assert got["sensitivity_at_4"].left_out == np.isnan(expected).sum()
    pairs = {s.name: f"patient {i // 2}" for i, s in enumerate(slides)}
    assert froc_summary([slides], bootstrap=40, seed=3, groups=pairs)["froc"] != got["froc"]


# Detections by hand


def _slide(values, *, name="s", **fields):
    """A slide on a full lattice of patches of 512 pixels with these values (rows × columns)."""
    rows, columns = np.shape(values)
    return slide(name, lattice(columns, rows), np.ravel(values).astype(np.float32), **fields)


PEAKS = np.full((3, 6), 0.1)
PEAKS[1, 1:5], PEAKS[2, 1], PEAKS[2, 5] = (0.9, 0.8, 0.1, 0.7), 0.8, 0.6


@pytest.fixture
def unsmoothed(monkeypatch):
    """No patch has another one within three standard deviations of the Gaussian."""
    monkeypatch.setattr(module, "SMOOTHING", 1e-9)


@pytest.mark.parametrize(
    ("radius", "peaks"),
    [
        # The radius is inclusive: the .7 is at a distance of 3 from the .9, and the .6 at √17.
        (3.0, [(0.9, 1.5, 1.5), (0.6, 5.5, 2.5)]),
        # .9 suppresses its eight neighbours, and .7 the .6 diagonally next to it.
        (1.5, [(0.9, 1.5, 1.5), (0.7, 4.5, 1.5)]),
        (1.0, [(0.9, 1.5, 1.5), (0.7, 4.5, 1.5), (0.6, 5.5, 2.5)]),
    ],
)
def test_non_maximum_suppression_by_hand(unsmoothed, monkeypatch, radius, peaks):
    monkeypatch.setattr(module, "RADIUS", radius)
    d = detect_lesions(_slide(PEAKS))
    found = np.stack([d.confidence, d.x / 512, d.y / 512], 1)[d.confidence >= 0.5]
    np.testing.assert_allclose(found, peaks, atol=1e-7)


def test_smoothing_is_a_gaussian_over_existing_patches(monkeypatch):
    line = _slide([[0.0, 1.0, 0.0]])
    a, b = np.exp(-0.5), np.exp(-2.0)
    expected = [1 / (1 + 2 * a), a / (1 + a + b), a / (1 + a + b)]
    monkeypatch.setattr(module, "RADIUS", 0.0)
    got = detect_lesions(line)
    np.testing.assert_allclose(got.confidence, expected, rtol=1e-6)
    assert got.x[0] == 1.5 * 512
    # A single .9 against a block of .6, which is highest at the edge of the slide.
    spike = np.full((5, 7), 0.1)
    spike[2, 1] = 0.9
    spike[1:4, 4:7] = 0.6
    assert detect_lesions(_slide(spike)).x[0] == 6.5 * 512
    monkeypatch.setattr(module, "SMOOTHING", 1e-9)
    assert detect_lesions(_slide(spike)).x[0] == 1.5 * 512


def test_confidence_is_the_bags_probability_times_the_instances(unsmoothed, monkeypatch):
    monkeypatch.setattr(module, "RADIUS", 0.0)
    weights = np.array([[0.5, 0.25, 0.125, 0.125]])
    share = 4 * weights[0] / (1 + 4 * weights[0])
    for kind, value in (("logit", np.log(weights) + 3), ("weight", weights)):
        p = _slide(value, score_kind=kind, p=0.6)
        got = detect_lesions(p)
        np.testing.assert_allclose(got.confidence, 0.6 * share, rtol=1e-5)
    three = _slide([[0.5, 0.2]], p=(0.25, 0.5, 0.25))
    got = detect_lesions(three)
    np.testing.assert_allclose(got.confidence, [0.375, 0.15], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"score_kind": "relevance"}, InputError, "relevance has no common scale"),
        ({"coords": None}, BagError, "bag 's' has no 2-D coordinates"),
        ({"coords": np.arange(18)[:, None]}, BagError, "no 2-D coordinates"),
    ],
)
def test_slides_without_detections(change, error, message):
    refused(error, message, detect_lesions, replace(_slide(PEAKS), **change))


# Masks from patches


def test_froc_from_a_mask_and_from_labels_of_patches(unsmoothed, monkeypatch):
    """Two tumour slides, of which one is found and one half found, and one normal slide."""
    monkeypatch.setattr(module, "RADIUS", 3.0)
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
    mask, from_patches = np.kron(labels, np.ones((16, 16))), patch_mask(slides[0])
    np.testing.assert_array_equal(from_patches[:176, :176], mask[:176, :176])
    for shown in (mask, from_patches):
        truth = find_lesions(shown)
        assert (~truth.isolated).sum() == 2
        found = []
        for p in slides:
            of_slide = None if p.name == "n" else truth
            found.append(match_detections(p.name, detect_lesions(p), lesions=of_slide))
        # Three lesions are found at .9 and one at 0; the false positive at .5 is on one of three
        # slides, and those at 0 are below every threshold.
        assert froc_summary([found], bootstrap=0)["froc"].value == pytest.approx(0.75)


def test_the_mean_over_replicates_and_its_interval():
    def slide_with(name, x, confidence, *, tumour):
        lesions = _one_lesion() if tumour else None
        return match_detections(name, _points((x, 1600.0, confidence)), lesions=lesions)

    first = [slide_with("a", 1600.0, 0.9, tumour=True), slide_with("n", 1600.0, 0.5, tumour=False)]
    second = [slide_with("a", 100.0, 0.9, tumour=True), slide_with("n", 1600.0, 0.5, tumour=False)]
    got = froc_summary([first, second], bootstrap=60, seed=1)
    assert got["froc"].value == pytest.approx((froc(first).score + froc(second).score) / 2)
    assert froc(first).score == 1.0 and froc(second).score == 0.0
    assert got["froc"].no_interval == NoInterval("few patients", 1, "with lesions")
    assert froc_summary([first[1:]], bootstrap=5)["froc"].reason.startswith("FROC needs a lesion")
    refused(InputError, "of the same slides", froc_summary, [first, first[:1]])


@pytest.fixture
def golden(reference, tmp_path):
    """Predictions with the detections of the reference: patches of one pixel, far apart.

    A row of adjacent patches with probability 0 sets the stride and is below every threshold.
    """
    row, slides = [(x, 1) for x in range(12)], []
    for case in ALL6:
        found = [r for r in _rows(reference / "detections.csv") if r["case"] == case]
        coords = row + [(int(r["x"]), int(r["y"])) for r in found]
        share = [0.0] * len(row) + [float(r["confidence"]) for r in found]
        slides.append(slide(case, coords, share, stride=1.0))
    return save(tmp_path / "p", slides, {c: int(c.startswith("Tumor")) for c in ALL6})


def whole_pixels(mask):
    """JSON polygons that cover exactly the tumour pixels, one per run of pixels in a row."""
    squares = []
    for y, row in enumerate(mask != 0):
        label, count = ndimage.label(row)
        for k in range(1, count + 1):
            x0, x1 = np.flatnonzero(label == k)[[0, -1]]
            box = 32 * np.array([[x0, y], [x1 + 1, y], [x1 + 1, y + 1], [x0, y + 1]])
            squares.append({"vertices": box.tolist()})
    return json.dumps({"positive": squares, "negative": []})


@pytest.mark.parametrize("kind", ["npy", "png", "tif", "pyramid", "json"])
def test_the_reference_score_by_the_command(reference, golden, tmp_path, capsys, kind):
    folder = tmp_path / "lesions" / "below"
    folder.mkdir(parents=True)
    with np.load(reference / "masks.npz") as masks:
        for name in ALL6[:4]:
            mask = masks[name]
            if kind == "npy":
                np.save(folder / f"{name}.npy", mask > 0)
            elif kind == "json":
                path, (rows, columns) = folder / f"{name}.json", mask.shape
                path.write_text(whole_pixels(mask))
                drawn = tumour_mask(path, cover=(32.0 * columns, 32.0 * rows), downsample=32)
                np.testing.assert_array_equal(drawn[:rows, :columns], mask != 0)
            elif kind == "pyramid":  # as in the release
                write_pyramid(folder / f"{name}_mask.tif", mask)
            else:
                Image.fromarray(mask).save(folder / f"{name}.{kind}")
    arguments = ["evaluate", str(golden), "--lesions", str(tmp_path / "lesions"), "--json"]
    assert main([*arguments, "--bootstrap", "40"]) == 0
    report = json.loads(capsys.readouterr().out)["lesions"]
    row = next(r for r in _rows(reference / "scores.csv") if r["subset"] == "all6")
    got = {k: m["value"] for k, m in report["metrics"].items()}
    assert got.pop("froc") == pytest.approx(float(row["score"]), abs=1e-12)
    for rate in ("0.25", "0.5", "1", "2", "4", "8"):
        expected = float(row[f"s_{rate}"])
        assert got[f"sensitivity_at_{rate}"] == pytest.approx(expected, abs=1e-12)
    score = report["metrics"]["froc"]
    assert score["low"] < score["value"] < score["high"]
    assert (report["slides"], report["tumour_slides"]) == (6, 4)
    assert report["lesions"] == int(row["n_lesions"])
    assert report["annotations"] == ({"polygons": 4} if kind == "json" else {"masks": 4})
    assert (report["left_out"], report["mpp"]) == ({}, 0.243)


def write_pyramid(path, mask):
    """Write two finer levels by repetition, then the mask at 1/32 of the first level."""
    options = {"photometric": "minisblack", "tile": (128, 128), "compression": "zlib"}
    with tifffile.TiffWriter(path) as f:
        f.write(np.kron(mask, np.ones((32, 32), np.uint8)), subifds=0, **options)
        f.write(np.kron(mask, np.ones((8, 8), np.uint8)), subfiletype=1, **options)
        f.write(mask, subfiletype=1, **options)


def test_lesions_of_the_window_are_those_of_the_whole_mask():
    """Lesions at the edges, a hole, and a lesion inside another, by the rules on the whole mask."""
    mask = np.zeros((90, 120), np.uint8)
    mask[0:5, 20:40] = mask[20:30, 50:60] = mask[70:90, 100:120] = 1
    mask[8:38, 8:38] = 1
    mask[13:33, 13:33] = 0
    for shown in (mask, mask[:, :80], mask[10:60], mask[:60, :110]):
        near = ndimage.distance_transform_edt(shown == 0) < 75 / (0.243 * 32 * 2)
        expected, count = ndimage.label(ndimage.binary_fill_holes(near), np.ones((3, 3)))
        got = find_lesions(shown)
        np.testing.assert_array_equal(got.labels, expected)
        assert len(got.axes) == count >= 2


# The report


@pytest.fixture
def cohort(tmp_path):
    """Six slides of 8 × 8 patches; annotations of four, one of them with an exclusion."""
    coords = lattice(8, 8)
    share = np.full((8, 8), 0.1)
    share[1:3, 1:3] = 0.9
    names = {"test_001": 1, "test_002": 1, "test_003": 0, "test_004": 1, "test_114": 1}
    slides = [slide(n, coords, share.ravel(), p=1.0 if y else 0.5) for n, y in names.items()]
    slides.append(slide("tumor_009", coords, share.ravel()))  # a training slide
    parts = {**dict.fromkeys(names, "test"), "tumor_009": "train"}
    folder = save(tmp_path / "p", slides, {**names, "tumor_009": 1}, parts=parts)
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    block = [(SIDE, SIDE), (3 * SIDE, SIDE), (3 * SIDE, 3 * SIDE), (SIDE, 3 * SIDE)]
    for name in ("Test_1", "test_114", "tumor_009"):
        (annotations / f"{name}.xml").write_text(asap_xml(*block))
    # The peak of this slide is excluded; tumour remains below and to the right.
    whole = [(0, 0), (8 * SIDE, 0), (8 * SIDE, 8 * SIDE), (0, 8 * SIDE)]
    cut = [(0, 0), (5 * SIDE, 0), (5 * SIDE, 5 * SIDE), (0, 5 * SIDE)]
    polygons = [{"vertices": whole}]
    text = json.dumps({"positive": polygons, "negative": [{"vertices": cut}]})
    (annotations / "test_002.json").write_text(text)
    return folder, annotations


def lesions_of(folder, annotations, **options):
    return evaluate(folder, lesions=annotations, bootstrap=0, **options).to_dict()["lesions"]


def test_the_report_by_hand(cohort, capsys):
    """The peak of test_001 is on its lesion; that of test_002 is excluded: a false positive."""
    folder, annotations = cohort
    report = evaluate(folder, lesions=annotations, bootstrap=0)
    got = report.to_dict()["lesions"]
    assert report.part == "test"
    assert (got["slides"], got["tumour_slides"], got["lesions"]) == (3, 2, 2)
    assert got["annotations"] == {"polygons": 2} and got["isolated_tumour_cells"] == 0
    assert set(got["left_out"]) == {"test_004", "test_114"}
    assert got["left_out"]["test_004"] == "tumour, but no annotation"
    assert "not annotated exhaustively" in got["left_out"]["test_114"]
    # The lesion of test_001 is found without false positives. That of test_002 is not found, and
    # its false positive counts 1/3 per slide.
    assert got["metrics"]["sensitivity_at_0.25"]["value"] == pytest.approx(0.5)
    assert main(["evaluate", str(folder), "--lesions", str(annotations), "--bootstrap", "0"]) == 0
    text = capsys.readouterr().out
    assert "lesions of 3 slides" in text and "FROC score" in text
    assert "2 lesions on 2 of 3 slides" in text and "0.243 µm per level-0 pixel" in text
    assert "left out: 1 bag ('test_004'): tumour, but no annotation" in text
    assert "left out: 1 bag ('test_114'): CAMELYON16's test_114 is not annotated" in text
    # Training slides are evaluated only on request.
    only = lesions_of(folder, annotations, part="train")
    assert (only["slides"], only["lesions"], only["metrics"]["froc"]["value"]) == (1, 1, 1.0)
    folder, _ = cohort
    report = evaluate(folder, bootstrap=0)
    assert "lesions" not in report.to_dict()
    assert main(["evaluate", str(folder), "--mpp", "0.5"]) == 2
    assert "--mpp has no effect without --lesions" in capsys.readouterr().err
    fine = lesions_of(folder, annotations, mpp=0.1)
    assert (fine["lesions"], fine["isolated_tumour_cells"], fine["mpp"]) == (1, 1, 0.1)
    with pytest.raises(SlideError, match="µm per pixel is -1: expected"):
        evaluate(folder, lesions=annotations, mpp=-1.0, bootstrap=0)


def test_test_114_is_special_in_camelyon16_only(tmp_path):
    labels, share = {"test_114": 1, "mine": 0}, np.r_[0.9, np.full(15, 0.1)]
    folder = save(tmp_path / "p", [slide(n, lattice(4, 4), share) for n in labels], labels)
    np.save(tmp_path / "test_114.npy", np.ones((64, 64)))
    got = lesions_of(folder, tmp_path)
    assert got["left_out"] == {} and got["slides"] == 2


def test_slides_that_cannot_be_evaluated_have_a_reason(cohort, tmp_path):
    folder, annotations = cohort
    (folder / "instances" / "test_003.h5").unlink()
    (annotations / "test_004.json").write_text('{"positive": []}')
    left_out = lesions_of(folder, annotations)["left_out"]
    assert left_out["test_003"] == "no per-instance outputs"
    assert left_out["test_004"] == "tumour, but its annotation marks none"
    coords, share = lattice(4, 4), np.full(16, 0.2)
    other = [slide(n, coords, share, score_kind="relevance") for n in "an"]
    np.save(tmp_path / "a.npy", np.ones((64, 64)))
    relevance = save(tmp_path / "r", other, {"a": 1, "n": 0})
    got = lesions_of(relevance, tmp_path)["metrics"]["froc"]
    assert got["value"] is None and "relevance has no common scale" in got["reason"]
    np.save(tmp_path / "n.npy", np.ones((64, 64)))
    why = "annotated, but labelled as without tumour"
    assert lesions_of(relevance, tmp_path)["left_out"] == {"n": why}
    flat = [slide(n, np.arange(16)[:, None], share) for n in "an"]
    with pytest.raises(BagError, match="no 2-D coordinates"):
        evaluate(save(tmp_path / "f", flat, {"a": 1, "n": 0}), lesions=tmp_path, bootstrap=0)
