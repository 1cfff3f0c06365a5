"""CAMELYON16, raw and processed: names, corrections, polygons."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from support.made_studies import (
    SIDE,
    asap_xml,
    lattice,
    rows_of,
    write_processed,
    write_slide,
    write_splits,
)

from probsa.datasets import open_bags, read_table
from probsa.datasets.studies.annotations import read_area
from probsa.datasets.studies.camelyon16 import OFFICIAL, official
from probsa.datasets.studies.opening import (
    StudyOptions,
    open_study,
    read_study,
    recognise_study,
)
from probsa.errors import BagError, InputError, TableError
from probsa.patches.polygons import raster
from probsa.training.config import DataConfig, RunConfig
from probsa.training.preparation import prepare


@pytest.fixture
def raw(tmp_path: Path) -> tuple[Path, Path]:
    """A download and its features: six slides, tumor in the left two of four columns."""
    root, work = tmp_path / "CAMELYON16", tmp_path / "work" / "features_test"
    (root / "annotations").mkdir(parents=True)
    (root / "testing").mkdir()
    left = asap_xml((0, 0), (2 * SIDE, 0), (2 * SIDE, 9 * SIDE), (0, 9 * SIDE))
    for name in ("tumor_001", "test_001", "test_114"):
        (root / "annotations" / f"{name}.xml").write_text(left)
    (root / "testing" / "reference.csv").write_text(
        "test_001,Tumor,IDC,Macro\ntest_003,Normal,None,None\ntest_114.tif,Tumor,IDC,Micro\n"
    )
    for name in ("normal_001", "Tumor_001", "test_001", "test_003", "test_114", "tumor_002"):
        write_slide(work, name, lattice(4, 3))
    return root, work


def marks(study) -> dict[str, list[int]]:
    bags = open_bags(
        study.features, features=study.feature_set, instance_labels=study.instance_labels
    )
    return {b: bags.stored(b).instance_labels.tolist() for b in bags.names}


def test_official_names() -> None:
    kinds = [name.partition("_")[0] for name in OFFICIAL]
    assert len(OFFICIAL) == len(set(OFFICIAL)) == 399
    assert [kinds.count(k) for k in ("normal", "tumor", "test")] == [159, 111, 129]
    assert official("Tumor_001") == official("tumor_1") == "tumor_001"
    assert official("tumor_001_mask") is None and official("patient_000_node_1") is None


def test_a_download(raw, tmp_path: Path) -> None:
    root, work = raw
    assert recognise_study(root) == "camelyon16"
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work)
    table = read_table(study.labels)
    labels = dict(zip(table.bags, table.labels, strict=True))
    assert labels == {
        "normal_001": 0, "Tumor_001": 1, "tumor_002": 1,
        "test_001": 1, "test_003": 0, "test_114": 1,
    }  # fmt: skip
    assert [b for b, p in zip(table.bags, table.splits, strict=True) if p == "test"] == [
        "test_001", "test_003", "test_114",
    ]  # fmt: skip
    half = [1, 1, 0, 0] * 3
    assert marks(study) == {
        "normal_001": [0] * 12,
        "Tumor_001": half,
        "test_001": half,
        "test_003": [0] * 12,
        "test_114": [-1] * 12,  # not annotated exhaustively
        "tumor_002": [-1] * 12,  # its annotation is missing
    }
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["tumor_without_annotation"] == ["tumor_002"]
    assert list(record["corrected"]) == ["test_114"]
    assert study.counts["without features"] == 393 == len(record["without_features"])
    assert "393 members of the release have no features here." in study.notes
    assert study.counts["bags with known instances"] == 4
    assert study.counts["positive instances"] == 12
    assert read_study(tmp_path / "out") == study
    assert open_study("camelyon16", tmp_path / "out", out=tmp_path / "unused") == study
    assert recognise_study(tmp_path / "out") == "camelyon16"


@pytest.mark.parametrize(("share", "positive"), [(0.5, 0), (0.49, 3), (0.0, 3)])
def test_a_patch_is_positive_above_the_share(raw, tmp_path: Path, share, positive) -> None:
    """Exactly half of the third column is annotated, so it is negative at a share of 0.5."""
    root, work = raw
    edge = 2 * SIDE + SIDE // 2
    drawn = asap_xml((0, 0), (edge, 0), (edge, 9 * SIDE), (0, 9 * SIDE))
    (root / "annotations" / "tumor_001.xml").write_text(drawn)
    options = StudyOptions(share=share)
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work, options=options)
    assert sum(marks(study)["Tumor_001"]) == 6 + positive


def test_labels_win_over_what_patches_say(raw, tmp_path: Path) -> None:
    """A slide with a micro-metastasis smaller than half a patch stays positive, with a note."""
    root, work = raw
    (root / "annotations" / "tumor_001.xml").write_text(asap_xml((10, 10), (90, 10), (90, 90)))
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work)
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["labels_a_derivation_would_change"] == ["Tumor_001"]
    assert study.counts["labels that a derivation would change"] == 1
    assert any("For 1 of 4 bags, a label derived" in n for n in study.notes)
    table = read_table(study.labels)
    assert table.labels[table.bags.index("Tumor_001")] == 1


def test_test_slides_without_a_reference(raw, tmp_path: Path) -> None:
    root, work = raw
    (root / "testing" / "reference.csv").unlink()
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work)
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["labels_derived"] == ["test_001", "test_003", "test_114"]
    table = read_table(study.labels)
    assert [table.labels[table.bags.index(b)] for b in record["labels_derived"]] == [1, 0, 1]
    for name in ("test_001", "test_114"):
        (root / "annotations" / f"{name}.xml").unlink()
    with pytest.raises(TableError, match=r"label of test_001 is unknown: .*reference\.csv"):
        open_study("camelyon16", root, out=tmp_path / "out", features=work)


def test_corrections_of_the_organisers(raw, tmp_path: Path) -> None:
    root, work = raw
    for name in ("test_049", "normal_086", "normal_999", "scan_of_mine"):
        write_slide(work, name, lattice(2, 1))
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work)
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert set(record["excluded"]) == {"test_049", "normal_999", "scan_of_mine"}
    assert record["corrected"]["normal_086"] == "it is tumor_111: tumor"
    table = read_table(study.labels)
    assert table.labels[table.bags.index("normal_086")] == 1
    write_slide(work, "tumor_111", lattice(2, 1))
    open_study("camelyon16", root, out=tmp_path / "out", features=work)
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert "normal_086" in record["excluded"] and "tumor_111" not in record["without_features"]
    write_slide(work, "TUMOR_001", lattice(2, 1))
    with pytest.raises(BagError, match="are both tumor_001"):
        open_study("camelyon16", root, out=tmp_path / "out", features=work)


def test_a_run_on_it_leaves_the_excluded_out(raw, tmp_path: Path) -> None:
    root, work = raw
    write_slide(work, "test_049", lattice(2, 1))
    for k in range(3, 9):
        write_slide(work, f"tumor_{k:03d}", lattice(2, 1))
        write_slide(work, f"normal_{k:03d}", lattice(2, 1))
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work)
    config = DataConfig(**study.settings())
    split = prepare(RunConfig(data=config, model="abmil")).split
    assert set(split.test) == {"test_001", "test_003", "test_114"}
    assert split.part_of("test_049") == "unused" and len(split.train + split.val) == 15


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shared_data) -> tuple[Path, dict[str, int]]:
    """All 399 slides in the authors' layout; two tumours are too small for a patch."""
    root = tmp_path_factory.mktemp("c16")
    rows = rows_of(shared_data / "labels_splits" / "camelyon16_labels_camil.csv")
    truth = {r["slide_id"]: int(r["slide_label"]) for r in rows}
    stored = {k: 0 if k in ("tumor_005", "test_001") else y for k, y in truth.items()}
    write_processed(root / "patches_512", {k: (y, np.array([0, y, 0])) for k, y in stored.items()})
    write_splits(
        root / "splits.csv", {k: "test" if k.startswith("test") else "train" for k in truth}
    )
    return root, truth


def test_the_whole_release_by_the_official_table(whole, shared_data, tmp_path: Path) -> None:
    root, truth = whole
    assert recognise_study(root) == "camelyon16"
    reference = shared_data / "labels_splits" / "camelyon16_labels_camil.csv"
    options = StudyOptions(labels=reference)
    study = open_study("camelyon16", root, out=tmp_path / "out", options=options)
    table = read_table(study.labels)
    assert dict(zip(table.bags, table.labels, strict=True)) == truth
    c = study.counts
    assert (c["bags"], c["train"], c["test"]) == (399, 270, 129)
    assert (c["train tumor"], c["train normal"]) == (111, 159)
    assert (c["test tumor"], c["test normal"]) == (49, 80)
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["labels_derived"] == [] == record["without_features"]
    assert record["labels_a_derivation_would_change"] == ["test_001", "tumor_005"]
    assert sorted(record["stored_labels_that_are_not_the_clinical"]) == ["test_001", "tumor_005"]
    # instance labels are only written if they differ from the release
    assert [p.name for p in (tmp_path / "out" / "instance_labels").iterdir()] == ["test_114.npy"]
    labels_by_bag = marks(study)
    assert labels_by_bag["test_114"] == [-1, -1, -1] and labels_by_bag["tumor_001"] == [0, 1, 0]


def test_without_the_reference_test_labels_are_the_stored_ones(whole, tmp_path: Path) -> None:
    root, truth = whole
    study = open_study("camelyon16", root, out=tmp_path / "out")
    table = read_table(study.labels)
    label_of = dict(zip(table.bags, table.labels, strict=True))
    assert [b for b in truth if label_of[b] != truth[b]] == ["test_001"]
    assert study.counts["labels derived"] == 129
    assert any("labels of 129 bags are derived" in n for n in study.notes)


def test_real_polygons_on_a_grid_of_patches(shared_data, tmp_path: Path) -> None:
    """The share of each patch of tumor_101 counted by pixel; also the exclusions of tumor_107."""
    folder = shared_data / "labels_splits" / "camelyon16_ncrf_annotation_json_5_tumor_slides.tar.gz"
    root, work = tmp_path / "c16", tmp_path / "work"
    with tarfile.open(folder) as packed:
        packed.extractall(root / "jsons", filter="data")
    expected = {}
    for name in ("Tumor_101", "Tumor_107"):
        area = read_area(root / "jsons" / f"{name}.json")
        corner = np.concatenate([p.outer for p in area.inside]).min(0) // SIDE - 1
        coords = lattice(8, 8, at=tuple((corner * SIDE).tolist()))
        write_slide(work, name, coords)
        xs = np.arange(8 * SIDE) + 0.5
        left, top = (corner * SIDE).tolist()
        drawn = raster(area.inside, left + xs, top + xs) & ~raster(
            area.outside, left + xs, top + xs
        )
        shares = drawn.reshape(8, SIDE, 8, SIDE).mean(axis=(1, 3)).T.ravel()
        expected[name] = (shares > 0.5).astype(int).tolist()
    study = open_study("camelyon16", root, out=tmp_path / "out", features=work)
    assert marks(study) == expected
    assert 0 < sum(expected["Tumor_101"]) < 64 and 0 < sum(expected["Tumor_107"]) < 64


def test_what_is_missing_is_named(raw, tmp_path: Path) -> None:
    root, work = raw
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"not a processed folder of CAMELYON16.*probsa patch"):
        open_study("camelyon16", root, out=out)
    with pytest.raises(InputError, match="there is no folder"):
        open_study("camelyon16", root / "absent", out=out)
    base = write_processed(tmp_path / "p" / "patches_512", {"normal_001": (0, np.zeros(2))})
    (base / "patch_labels" / "normal_001.npy").unlink()
    open_study("camelyon16", tmp_path / "p", out=out)
    record = json.loads((out / "dataset.json").read_text())
    assert record["without_known_instances"] == ["normal_001"]
    (base / "labels" / "normal_001.npy").unlink()
    with pytest.raises(InputError, match=r"labels/normal_001\.npy is missing"):
        open_study("camelyon16", tmp_path / "p", out=out)
    for folder in ("labels", "patch_labels", "coords"):
        (base / folder).rename(base / "away")
        with pytest.raises(InputError, match=rf"patches_512/{folder} of CAMELYON16's processed"):
            open_study("camelyon16", tmp_path / "p", out=out)
        (base / "away").rename(base / folder)
    (root / "testing" / "reference.csv").write_text("image,label\nslide,1\n")
    with pytest.raises(TableError, match=r"reference\.csv: no line holds a test slide"):
        open_study("camelyon16", root, out=out, features=work)


def test_labels_of_another_length_name_the_bag(tmp_path: Path) -> None:
    base = write_processed(tmp_path / "patches_512", {"tumor_001": (1, np.ones(3))})
    np.save(base / "patch_labels" / "tumor_001.npy", np.ones(5, np.int64))
    with pytest.raises(BagError, match=r"'tumor_001' has 3 instances .* 5 instance labels"):
        open_study("camelyon16", tmp_path, out=tmp_path / "out")


def test_features_without_a_patch_size_cannot_be_annotated(raw, tmp_path: Path) -> None:
    root, _ = raw
    work = tmp_path / "bare"
    write_slide(work, "tumor_001", lattice(2, 1), patch_size=None, patch_size_level0=None)
    with pytest.raises(BagError, match=r"'tumor_001' .* does not state the positions and the size"):
        open_study("camelyon16", root, out=tmp_path / "out", features=work)
