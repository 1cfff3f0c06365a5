"""FROC from a folder of annotations, in the report and in the tables of an experiment."""

import csv
import json
import tarfile

import numpy as np
import pytest
import tifffile
import yaml
from PIL import Image
from scipy import ndimage
from support.made_experiments import write_run
from support.made_studies import SIDE, asap_xml, lattice, write_slide

from probsa.benchmark.results import lesions as benchmark_lesions
from probsa.benchmark.results.results import read_results
from probsa.benchmark.tables.instances import instances_table
from probsa.cli.entry import main
from probsa.datasets.studies.annotated import annotation_files, recorded_files, tumour_mask
from probsa.datasets.studies.opening import open_study
from probsa.errors import BagError, InputError, SlideError
from probsa.evaluation.froc_summaries import froc_summary
from probsa.evaluation.lesion_detections import Detections
from probsa.evaluation.lesion_hits import match_detections
from probsa.evaluation.lesion_masks import find_lesions
from probsa.evaluation.prediction import Prediction
from probsa.evaluation.report import evaluate
from probsa.evaluation.tables import write_predictions
from probsa.statistics import froc

ALL6 = ("Tumor_001", "Tumor_002", "Tumor_003", "Tumor_004", "Normal_001", "Normal_002")


def slide(name, coords, share, *, stride=float(SIDE), labels=None, p=1.0, **more):
    """A slide whose patches have these probabilities, relative to that of the slide."""
    share = np.asarray(share, np.float64)
    zero = np.zeros(len(share), np.float32)
    return Prediction(
        name=name,
        probability=np.float32([p]),
        std=np.float32([0]),
        coords=np.asarray(coords),
        attention_mean=share,
        attention_variance=zero,
        weight_mean=zero,
        weight_variance=zero,
        degree=zero + 1,
        stride=stride,
        instance_labels=None if labels is None else np.asarray(labels, np.int8),
        **{"score_kind": "probability", **more},
    )


def save(path, slides, labels, *, parts=None):
    write_predictions(
        path,
        slides,
        labels=labels,
        parts=dict.fromkeys(labels, "test") if parts is None else parts,
        classes=("0", "1"),
        threshold=0.5,
        metadata={},
    )
    return path


# The reference


@pytest.fixture(scope="module")
def reference(shared_golden):
    return shared_golden / "evaluation" / "froc"


@pytest.fixture
def golden(reference, tmp_path):
    """Predictions with the detections of the reference: patches of one pixel, far apart.

    A row of adjacent patches with probability 0 sets the stride and is below every threshold.
    """
    row = [(x, 1) for x in range(12)]
    with (reference / "detections.csv").open(newline="") as f:
        rows = [r for r in csv.DictReader(f) if r["case"] in ALL6]
    slides = [
        slide(
            case,
            row + [(int(r["x"]), int(r["y"])) for r in rows if r["case"] == case],
            [0.0] * len(row) + [float(r["confidence"]) for r in rows if r["case"] == case],
            stride=1.0,
        )
        for case in ALL6
    ]
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
                (folder / f"{name}.json").write_text(whole_pixels(mask))
            elif kind == "pyramid":  # as in the release
                write_pyramid(folder / f"{name}_mask.tif", mask)
            else:
                Image.fromarray(mask).save(folder / f"{name}.{kind}")
    arguments = ["evaluate", str(golden), "--lesions", str(tmp_path / "lesions"), "--json"]
    assert main([*arguments, "--bootstrap", "40"]) == 0
    report = json.loads(capsys.readouterr().out)["lesions"]
    with (reference / "scores.csv").open(newline="") as f:
        row = next(r for r in csv.DictReader(f) if r["subset"] == "all6")
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


def test_the_report_by_hand(cohort, capsys):
    """The peak of test_001 is on its lesion; that of test_002 is excluded: a false positive."""
    folder, annotations = cohort
    report = evaluate(folder, lesions=annotations, bootstrap=0)
    got = report.lesions
    assert (report.part, got.slides, got.tumour_slides, got.lesions) == (
        "test",
        3,
        2,
        2,
    )
    assert got.files == {"polygons": 2} and got.isolated == 0
    assert set(got.left_out) == {"test_004", "test_114"}
    assert got.left_out["test_004"] == "tumour, but no annotation"
    assert "not annotated exhaustively" in got.left_out["test_114"]
    # The lesion of test_001 is found without false positives. That of test_002 is not found, and
    # its false positive counts 1/3 per slide.
    assert got.metrics["sensitivity_at_0.25"].value == pytest.approx(0.5)
    assert main(["evaluate", str(folder), "--lesions", str(annotations), "--bootstrap", "0"]) == 0
    text = capsys.readouterr().out
    assert "lesions of 3 slides" in text and "FROC score" in text
    assert "2 lesions on 2 of 3 slides" in text and "0.243 µm per level-0 pixel" in text
    assert "left out: 1 bag ('test_004'): tumour, but no annotation" in text
    assert "left out: 1 bag ('test_114'): CAMELYON16's test_114 is not annotated" in text
    # Training slides are evaluated only on request.
    only = evaluate(folder, lesions=annotations, part="train", bootstrap=0).lesions
    assert (only.slides, only.lesions, only.metrics["froc"].value) == (1, 1, 1.0)


def test_without_annotations_nothing_changes(cohort, capsys):
    folder, _ = cohort
    report = evaluate(folder, bootstrap=0)
    assert report.lesions is None and "lesions" not in report.to_dict()
    assert main(["evaluate", str(folder), "--mpp", "0.5"]) == 2
    assert "--mpp is 0.5, which only lesions need" in capsys.readouterr().err


def test_the_resolution_decides_which_lesions_are_itc(cohort):
    """1024 pixels are 249 µm, or 324 µm after dilation; at 0.1 µm per pixel they are an ITC."""
    folder, annotations = cohort
    at_fine = evaluate(folder, lesions=annotations, mpp=0.1, bootstrap=0).lesions
    assert (at_fine.lesions, at_fine.isolated, at_fine.mpp) == (1, 1, 0.1)
    with pytest.raises(SlideError, match=r"-1\.0 micrometres per pixel"):
        evaluate(folder, lesions=annotations, mpp=-1.0, bootstrap=0)


def test_test_114_is_special_in_camelyon16_only(tmp_path):
    coords, share = lattice(4, 4), np.r_[0.9, np.full(15, 0.1)]
    folder = save(
        tmp_path / "p",
        [slide("test_114", coords, share), slide("mine", coords, share)],
        {"test_114": 1, "mine": 0},
    )
    np.save(tmp_path / "test_114.npy", np.ones((64, 64)))
    report = evaluate(folder, lesions=tmp_path, bootstrap=0).lesions
    assert report.left_out == {} and report.slides == 2


def test_slides_that_cannot_be_evaluated_have_a_reason(cohort, tmp_path):
    folder, annotations = cohort
    (folder / "instances" / "test_003.h5").unlink()
    (annotations / "test_004.json").write_text('{"positive": []}')
    report = evaluate(folder, lesions=annotations, bootstrap=0).lesions
    assert report.left_out["test_003"] == "no per-instance outputs"
    assert report.left_out["test_004"] == "tumour, but its annotation marks none"
    coords, share = lattice(4, 4), np.full(16, 0.2)
    other = [
        slide("a", coords, share, score_kind="relevance"),
        slide("n", coords, share, score_kind="relevance"),
    ]
    np.save(tmp_path / "a.npy", np.ones((64, 64)))
    relevance = save(tmp_path / "r", other, {"a": 1, "n": 0})
    got = evaluate(relevance, lesions=tmp_path, bootstrap=0).lesions.metrics["froc"]
    assert got.value is None and "relevance has no common scale" in got.reason
    np.save(tmp_path / "n.npy", np.ones((64, 64)))
    report = evaluate(relevance, lesions=tmp_path, bootstrap=0).lesions
    assert report.left_out == {"n": "annotated, but labelled as without tumour"}
    flat = [slide(n, np.arange(16)[:, None], share) for n in "an"]
    with pytest.raises(BagError, match="no 2-D coordinates"):
        evaluate(save(tmp_path / "f", flat, {"a": 1, "n": 0}), lesions=tmp_path, bootstrap=0)


# Files


def test_files_are_matched_by_name(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("normal_086.xml", "deep/Tumor_1.xml", "deep/er/mine_mask.png", "notes.json"):
        (tmp_path / name).touch()
    (tmp_path / "deep" / ".other.xml").touch()  # a hidden file
    got = annotation_files(tmp_path, ["tumor_111", "tumor_001", "mine", "other"])
    assert {b: p.name for b, p in got.items()} == {
        "tumor_111": "normal_086.xml",
        "tumor_001": "Tumor_1.xml",
        "mine": "mine_mask.png",
    }
    (tmp_path / "tumor_001.tif").touch()
    with pytest.raises(InputError, match=r"Tumor_1\.xml and .*tumor_001\.tif both annotate"):
        annotation_files(tmp_path, ["tumor_001"])
    with pytest.raises(InputError, match=r"named after a bag: expected, for example, else\.xml"):
        annotation_files(tmp_path, ["else"])
    with pytest.raises(InputError, match="there is no folder"):
        annotation_files(tmp_path / "gone", ["else"])


def test_files_that_are_not_masks(tmp_path):
    def read(name):
        return tumour_mask(tmp_path / name, cover=(640.0, 320.0), downsample=32)

    np.save(tmp_path / "a.npy", np.eye(20)[:10])
    np.testing.assert_array_equal(read("a.npy"), np.eye(20)[:10])
    np.save(tmp_path / "b.npy", np.ones((2, 2, 3)))
    with pytest.raises(InputError, match=r"shape \(2, 2, 3\), expected numbers of shape \(rows"):
        read("b.npy")
    (tmp_path / "c.npy").write_text("no")
    with pytest.raises(InputError, match=r"c\.npy cannot be read as \.npy"):
        read("c.npy")
    np.save(tmp_path / "d.npy", np.ones((320, 640)))
    with pytest.raises(InputError, match="640 × 320 pixels, but the slide's patches end at 20 × 1"):
        read("d.npy")
    colour = np.zeros((10, 20, 3), np.uint8)
    colour[..., 0] = 200
    Image.fromarray(colour).save(tmp_path / "e.png")
    with pytest.raises(InputError, match="is a colour image, expected a mask"):
        read("e.png")
    with tifffile.TiffWriter(tmp_path / "f.tif") as f:
        for k in (1, 2):
            f.write(np.ones((512 // k, 512 // k), np.uint8), subfiletype=k - 1, tile=(128, 128))
    with pytest.raises(InputError, match=r"levels of 1/1, 1/2, but none of 1/32"):
        read("f.tif")


def test_polygons_of_the_release_fill_their_pixels(shared_data, tmp_path):
    """The area of a real annotation at 1/32, against the area of its polygons."""
    packed = shared_data / "labels_splits" / "camelyon16_ncrf_annotation_json_5_tumor_slides.tar.gz"
    with tarfile.open(packed) as t:
        t.extractall(tmp_path, filter="data")
    path = next(tmp_path.rglob("Tumor_101.json"))
    annotation = json.loads(path.read_text())
    rings = [np.array(p["vertices"], float) for p in annotation["positive"]]
    area = sum(
        abs(np.sum(r[:, 0] * np.roll(r[:, 1], -1) - r[:, 1] * np.roll(r[:, 0], -1))) / 2
        for r in rings
    )
    mask = tumour_mask(path, cover=(10.0, 10.0), downsample=32)
    assert mask.sum() * 32**2 == pytest.approx(area, rel=0.02)
    corner = np.concatenate(rings).max(0)
    assert mask.shape[1] * 32 > corner[0] and mask.shape[0] * 32 > corner[1]


# Experiments


@pytest.fixture
def experiment(tmp_path):
    """Two methods on a miniature CAMELYON16 with tumour in the left quarter of each slide."""
    root, work, out = tmp_path / "c16", tmp_path / "work" / "features_test", tmp_path / "out"
    (root / "annotations").mkdir(parents=True)
    (root / "testing").mkdir()
    names = {"test_001": 1, "test_002": 1, "test_003": 0, "test_004": 1, "test_114": 1}
    coords = lattice(8, 8)
    for name in (*names, "tumor_001"):
        write_slide(work, name, coords)
    left = asap_xml((0, 0), (2 * SIDE, 0), (2 * SIDE, 8 * SIDE), (0, 8 * SIDE))
    for name in ("test_001", "test_002", "test_114", "tumor_001"):
        (root / "annotations" / f"{name}.xml").write_text(left)
    lines = [f"{n},{'Tumor' if y else 'Normal'}" for n, y in names.items()]
    (root / "testing" / "reference.csv").write_text("\n".join(lines))
    study = open_study("camelyon16", root, out=out / "data" / "c16", features=work)
    tumour = coords[:, 0] < 2 * SIDE
    for model, right in (("abmil", True), ("dsmil", False)):
        for seed in (0, 1):
            run = write_run(
                out, data="c16", model=model, seed=seed, folds=False,
                test=dict.fromkeys(names, 0.5), y=names, rest=("tumor_001",),
            )  # fmt: skip
            data = {k: str(v) for k, v in study.settings().items() if k in ("features", "labels")}
            (run / "run.yaml").write_text(yaml.safe_dump({"data": data, "model": {"name": model}}))
            slides = [_prediction(n, y, coords, tumour, right=right) for n, y in names.items()]
            write_predictions(
                run / "predictions", slides, labels=names, parts=dict.fromkeys(names, "test"),
                classes=("0", "1"), threshold=0.5, metadata={}, overwrite=True,
            )  # fmt: skip
    return out


def _prediction(name, y, coords, tumour, *, right):
    labels = tumour.astype(int) * y
    if name in ("test_004", "test_114"):  # as in the study
        labels = np.full(len(coords), -1)
    share = np.where(tumour == right, 0.9, 0.1)
    return slide(name, coords, share, p=0.9 if y else 0.1, labels=labels)


def test_tables_of_a_camelyon16_study(experiment):
    record = json.loads((experiment / "data" / "c16" / "dataset.json").read_text())
    assert sorted(record["annotations"]) == ["test_001", "test_002", "test_114", "tumor_001"]
    scores = read_results(experiment).scores
    table = instances_table(scores, bootstrap=20)
    names = ["errors_c16", "froc_patches_c16", "froc_c16", "within_bags_c16"]
    assert [t.name for t in table.follow] == names
    _, patches, official, _ = table.follow
    for t in (patches, official):
        assert [row[0].text for row in t.rows] == ["abmil", "dsmil"]
        assert t.rows[0][1].value == 1.0  # the best detections of both slides are hits
        assert t.rows[1][1].value < 1.0
        assert "2 lesions on 2 tumour slides of 3; 0 isolated tumour cells." in t.footnotes
    assert "approximation on patches" in patches.footnotes[0]
    assert patches.title == "FROC (patch-level) of c16"
    assert any(
        "test_004, test_114): tumour slides without complete patch labels" in n
        for n in patches.footnotes
    )
    assert any("(test_004): tumour, but no annotation" in n for n in official.footnotes)
    assert any("(test_114): CAMELYON16's test_114 is not" in n for n in official.footnotes)


def test_without_the_annotations_the_approximation_remains(experiment, tmp_path):
    scores = read_results(experiment).scores
    (tmp_path / "c16" / "annotations" / "test_001.xml").unlink()
    table = instances_table(scores, bootstrap=0)
    assert [t.name for t in table.follow] == ["errors_c16", "froc_patches_c16", "within_bags_c16"]
    assert any("No official FROC" in n and "test_001.xml" in n for n in table.footnotes)
    labels = experiment / "data" / "c16" / "labels.csv"
    assert recorded_files(labels, ["test_002"]).keys() == {"test_002"}
    (labels.parent / "dataset.json").unlink()
    assert recorded_files(labels, ["test_002"]) is None


def test_many_patches_are_not_detected_in_all_replicates(experiment, monkeypatch):
    monkeypatch.setattr(benchmark_lesions, "PATCHES", 5 * 64 + 1)
    table = instances_table(read_results(experiment).scores, bootstrap=0)
    assert any("abmil (1 of 2), dsmil (1 of 2)" in n for n in table.follow[1].footnotes)
    (experiment / "cells" / "c16" / "dsmil" / "split0-seed1").rename(experiment / "away")
    table = instances_table(read_results(experiment).scores, bootstrap=0)
    assert any("to save time: abmil (1 of 2)." in n for n in table.follow[1].footnotes)


def test_small_pictures_have_no_lesions_to_find(tmp_path):
    """In bags of 4 pixels all lesions are ITC, and the reason is a footnote of the table."""
    y = {"a": 1, "b": 0}
    labels = {"a": [0, 0, 1, 1], "b": [0, 0, 0, 0]}
    write_run(tmp_path, folds=False, test={"a": 0.9, "b": 0.2}, y=y, instances=labels)
    table = instances_table(read_results(tmp_path).scores, bootstrap=0)
    assert [t.name for t in table.follow] == ["errors_toy", "within_bags_toy"]
    assert any("No FROC (patch-level) of toy: FROC needs a lesion" in n for n in table.footnotes)


def test_the_mean_over_replicates_and_its_interval():
    mask = np.zeros((100, 100))
    mask[20:80, 20:80] = 1
    lesion = find_lesions(mask)

    def slide_with(name, x, confidence, *, tumour):
        point = Detections(x=np.array([x]), y=np.array([1600.0]), confidence=np.array([confidence]))
        return match_detections(name, point, lesions=lesion if tumour else None)

    first = [slide_with("a", 1600.0, 0.9, tumour=True), slide_with("n", 1600.0, 0.5, tumour=False)]
    second = [slide_with("a", 100.0, 0.9, tumour=True), slide_with("n", 1600.0, 0.5, tumour=False)]
    got = froc_summary([first, second], bootstrap=60, seed=1)
    assert got["froc"].value == pytest.approx((froc(first).score + froc(second).score) / 2)
    assert froc(first).score == 1.0 and froc(second).score == 0.0
    # With one slide per stratum only the replicates vary, and one of two is drawn each time.
    assert (got["froc"].low, got["froc"].high) == (0.0, 1.0)
    assert froc_summary([first[1:]], bootstrap=5)["froc"].reason.startswith("FROC needs a lesion")
    with pytest.raises(InputError, match="of the same slides"):
        froc_summary([first, first[:1]])
