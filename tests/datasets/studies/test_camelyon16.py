"""CAMELYON16, raw and processed: names, corrections, polygons."""

from pathlib import Path

import numpy as np
import pytest
from support.made_studies import (
    SIDE,
    asap_xml,
    lattice,
    marks,
    record,
    rows_of,
    write_processed,
    write_slide,
    write_splits,
)
from support.refusals import refused

from probsa.datasets import Study, StudyOptions, open_study, read_study, read_table, recognise_study
from probsa.datasets.studies.camelyon16 import OFFICIAL, official
from probsa.errors import BagError, InputError, TableError
from probsa.training import DataConfig, RunConfig, prepare


class Download:
    """A download and its features: six slides, tumor in the left two of four columns."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "CAMELYON16"
        self.work = folder / "work" / "features_test"
        self.out = folder / "out"
        self.reference = self.root / "testing" / "reference.csv"
        self.reference.parent.mkdir(parents=True)
        (self.root / "annotations").mkdir()
        for name in ("tumor_001", "test_001", "test_114"):
            self.annotate(name, (0, 0), (2 * SIDE, 0), (2 * SIDE, 9 * SIDE), (0, 9 * SIDE))
        self.reference.write_text(
            "test_001,Tumor,IDC,Macro\ntest_003,Normal,None,None\ntest_114.tif,Tumor,IDC,Micro\n"
        )
        for name in ("normal_001", "Tumor_001", "test_001", "test_003", "test_114", "tumor_002"):
            write_slide(self.work, name, lattice(4, 3))

    def annotate(self, name: str, *corners: tuple[int, int]) -> None:
        (self.root / "annotations" / f"{name}.xml").write_text(asap_xml(*corners))

    def open(self, work: Path | None = None, **options: object) -> Study:
        given = {"features": work or self.work, "options": StudyOptions(**options)}
        return open_study("camelyon16", self.root, out=self.out, **given)


@pytest.fixture
def raw(tmp_path: Path) -> Download:
    return Download(tmp_path)


def labels_of(study: Study) -> dict[str, int]:
    table = read_table(study.labels)
    return dict(zip(table.bags, table.labels, strict=True))


def test_official_names():
    kinds = [name.partition("_")[0] for name in OFFICIAL]
    assert len(OFFICIAL) == len(set(OFFICIAL)) == 399
    assert [kinds.count(k) for k in ("normal", "tumor", "test")] == [159, 111, 129]
    assert official("Tumor_001") == official("tumor_1") == "tumor_001"
    assert official("tumor_001_mask") is None and official("patient_000_node_1") is None


def test_a_download(raw, tmp_path):
    assert recognise_study(raw.root) == "camelyon16"
    study = raw.open()
    table = read_table(study.labels)
    tumour = {"Tumor_001": 1, "tumor_002": 1, "test_001": 1, "test_114": 1}
    assert labels_of(study) == {"normal_001": 0, "test_003": 0} | tumour
    tested = [b for b, p in zip(table.bags, table.splits, strict=True) if p == "test"]
    assert tested == ["test_001", "test_003", "test_114"]
    half = [1, 1, 0, 0] * 3
    assert marks(study) == {
        "normal_001": [0] * 12,
        "Tumor_001": half,
        "test_001": half,
        "test_003": [0] * 12,
        "test_114": [-1] * 12,  # not annotated exhaustively
        "tumor_002": [-1] * 12,  # its annotation is missing
    }
    assert record(study)["tumor_without_annotation"] == ["tumor_002"]
    assert list(record(study)["corrected"]) == ["test_114"]
    assert study.counts["without features"] == 393 == len(record(study)["without_features"])
    assert any("393 members of the release" in note for note in study.notes)
    assert study.counts["bags with known instances"] == 4
    assert study.counts["positive instances"] == 12
    assert read_study(raw.out) == study
    assert open_study("camelyon16", raw.out, out=tmp_path / "unused") == study
    assert recognise_study(raw.out) == "camelyon16"


@pytest.mark.parametrize(("share", "positive"), [(0.5, 0), (0.49, 3), (0.0, 3)])
def test_a_patch_is_positive_above_the_share(raw, share, positive):
    """Exactly half of the third column is annotated, so it is negative at a share of 0.5."""
    edge = 2 * SIDE + SIDE // 2
    raw.annotate("tumor_001", (0, 0), (edge, 0), (edge, 9 * SIDE), (0, 9 * SIDE))
    assert sum(marks(raw.open(share=share))["Tumor_001"]) == 6 + positive


def test_labels_win_over_what_patches_say(raw):
    """A slide with a micro-metastasis smaller than half a patch stays positive, with a note."""
    raw.annotate("tumor_001", (10, 10), (90, 10), (90, 90))
    study = raw.open()
    assert record(study)["labels_a_derivation_would_change"] == ["Tumor_001"]
    assert study.counts["labels that a derivation would change"] == 1
    assert any("1 of 4 bags" in n for n in study.notes)
    assert labels_of(study)["Tumor_001"] == 1


def test_test_slides_without_a_reference(raw):
    raw.reference.unlink()
    study = raw.open()
    assert record(study)["labels_derived"] == ["test_001", "test_003", "test_114"]
    assert [labels_of(study)[b] for b in record(study)["labels_derived"]] == [1, 0, 1]
    for name in ("test_001", "test_114"):
        (raw.root / "annotations" / f"{name}.xml").unlink()
    refused(TableError, r"test_001 .*reference\.csv", raw.open)


def test_corrections_of_the_organisers(raw):
    for name in ("test_049", "normal_086", "normal_999", "scan_of_mine"):
        write_slide(raw.work, name, lattice(2, 1))
    study = raw.open()
    assert set(record(study)["excluded"]) == {"test_049", "normal_999", "scan_of_mine"}
    assert record(study)["corrected"]["normal_086"] == "it is tumor_111: tumor"
    assert labels_of(study)["normal_086"] == 1
    write_slide(raw.work, "tumor_111", lattice(2, 1))
    held = record(raw.open())
    assert "normal_086" in held["excluded"] and "tumor_111" not in held["without_features"]
    write_slide(raw.work, "TUMOR_001", lattice(2, 1))
    refused(BagError, "tumor_001", raw.open)


def test_a_run_on_it_leaves_the_excluded_out(raw):
    names = [f"{kind}_{k:03d}" for k in range(3, 9) for kind in ("tumor", "normal")]
    for name in ("test_049", *names):
        write_slide(raw.work, name, lattice(2, 1))
    config = DataConfig(**raw.open().settings())
    split = prepare(RunConfig(data=config, model="abmil")).split
    assert set(split.test) == {"test_001", "test_003", "test_114"}
    assert split.part_of("test_049") == "unused" and len(split.train + split.val) == 15


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shared_data) -> tuple[Path, dict[str, int]]:
    """All 399 slides in the authors' layout; two tumours are too small for a patch."""
    root = tmp_path_factory.mktemp("c16")
    rows = rows_of(shared_data / "labels_splits" / "camelyon16_labels_camil.csv")
    truth = {r["slide_id"]: int(r["slide_label"]) for r in rows}
    stored = truth | {"tumor_005": 0, "test_001": 0}
    write_processed(root / "patches_512", {k: (y, np.array([0, y, 0])) for k, y in stored.items()})
    parts = {k: "test" if k.startswith("test") else "train" for k in truth}
    write_splits(root / "splits.csv", parts)
    return root, truth


def test_the_whole_release_by_the_official_table(whole, shared_data, tmp_path):
    root, truth = whole
    assert recognise_study(root) == "camelyon16"
    options = StudyOptions(labels=shared_data / "labels_splits" / "camelyon16_labels_camil.csv")
    study = open_study("camelyon16", root, out=tmp_path / "out", options=options)
    assert labels_of(study) == truth
    c = study.counts
    assert (c["bags"], c["train"], c["test"]) == (399, 270, 129)
    assert (c["train tumor"], c["train normal"]) == (111, 159)
    assert (c["test tumor"], c["test normal"]) == (49, 80)
    held = record(study)
    assert held["labels_derived"] == [] == held["without_features"]
    assert held["labels_a_derivation_would_change"] == ["test_001", "tumor_005"]
    assert sorted(held["stored_labels_that_are_not_the_clinical"]) == ["test_001", "tumor_005"]
    # instance labels are only written if they differ from the release
    assert [p.name for p in (tmp_path / "out" / "instance_labels").iterdir()] == ["test_114.npy"]
    assert marks(study)["test_114"] == [-1, -1, -1] and marks(study)["tumor_001"] == [0, 1, 0]


def test_without_the_reference_test_labels_are_the_stored_ones(whole, tmp_path):
    root, truth = whole
    study = open_study("camelyon16", root, out=tmp_path / "out")
    assert [b for b in truth if labels_of(study)[b] != truth[b]] == ["test_001"]
    assert study.counts["labels derived"] == 129
    assert any("labels of 129 bags" in n for n in study.notes)


def test_what_is_missing_is_named(raw, tmp_path):
    for root, message in (
        (raw.root, r"processed folder of CAMELYON16.*probsa patch"),
        (raw.root / "absent", "there is no folder"),
    ):
        refused(InputError, message, open_study, "camelyon16", root, out=raw.out)
    raw.reference.write_text("image,label\nslide,1\n")
    refused(TableError, r"reference\.csv", raw.open)
    write_slide(
        tmp_path / "bare", "tumor_001", lattice(2, 1), patch_size=None, patch_size_level0=None
    )
    raw.reference.unlink()
    with pytest.raises(BagError, match="'tumor_001'"):
        raw.open(tmp_path / "bare")


def test_what_is_missing_of_a_processed_folder_is_named(tmp_path):
    base = write_processed(tmp_path / "patches_512", {"tumor_001": (1, np.ones(3))})
    marked = base / "patch_labels" / "tumor_001.npy"
    out = tmp_path / "out"

    def named(error: type[InputError], message: str) -> None:
        refused(error, message, open_study, "camelyon16", tmp_path, out=out)

    np.save(marked, np.ones(5, np.int64))
    named(BagError, r"'tumor_001' has 3 instances .* 5 instance labels")
    marked.unlink()
    study = open_study("camelyon16", tmp_path, out=out)
    assert record(study)["without_known_instances"] == ["tumor_001"]
    np.save(base / "labels" / "tumor_001.npy", np.array([0.5]))
    named(BagError, r"labels/tumor_001\.npy: .* not all whole numbers")
    (base / "labels" / "tumor_001.npy").unlink()
    named(InputError, r"labels/tumor_001\.npy is missing")
    for folder in ("labels", "patch_labels", "coords"):
        (base / folder).rename(base / "away")
        named(InputError, rf"patches_512/{folder} of CAMELYON16's processed")
        (base / "away").rename(base / folder)
