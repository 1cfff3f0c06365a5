"""PANDA: the tables of the whole release, the masks of both hospitals, and errors."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile
from support.made_studies import (
    lattice,
    marks,
    record,
    rows_of,
    write_processed,
    write_slide,
    write_splits,
)
from support.refusals import refused

from probsa.datasets import Study, StudyOptions, make_split, open_study, read_table, recognise_study
from probsa.datasets.studies.panda import read_partition, read_train
from probsa.errors import InputError, TableError

SIDE = 16
NAMES = [f"{k:032x}" for k in range(8)]
RADBOUD, KAROLINSKA, BENIGN = NAMES[:3]


@pytest.fixture(scope="module")
def tables(shared_data, tmp_path_factory) -> Path:
    """The real tables, unpacked under the names that the loader expects."""
    folder = tmp_path_factory.mktemp("tables")
    for name, kept in (
        ("panda_silva2021_partition", "partition_PANDA"),
        ("panda_train_5kfold", "train"),
        ("panda_duplicate_imgids", "duplicate_imgids"),
    ):
        packed = shared_data / "labels_splits" / f"{name}.csv.gz"
        (folder / f"{kept}.csv").write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


class Download:
    """Eight biopsies of 4 × 2 patches; the first three have masks."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "panda"
        self.work = folder / "work"
        self.out = folder / "out"
        (self.root / "train_images").mkdir(parents=True)
        columns = np.repeat(np.arange(4), SIDE)[None].repeat(2 * SIDE, 0)
        for name, values in (
            (RADBOUD, [0, 1, 3, 5]),  # background, stroma, Gleason 3 and 5
            (KAROLINSKA, [0, 1, 2, 2]),
            (BENIGN, [2, 2, 1, 1]),  # Radboud's 2 is healthy
        ):
            self.write_mask(name, np.array(values)[columns])
        train = ["image_id,data_provider,isup_grade,gleason_score"]
        parts = ["slide_name,Partition,isup_0"]
        for k, name in enumerate(NAMES):
            grade = 0 if name == BENIGN or k > 5 else 1 + k % 5
            train.append(f"{name},{'karolinska' if k % 2 else 'radboud'},{grade},3+3")
            parts.append(f"{name},{('train', 'test', 'val', 'train')[k % 4]},{int(grade == 0)}")
            write_slide(self.work, name, lattice(4, 2, side=SIDE), side=SIDE)
        (self.root / "train.csv").write_text("\n".join(train) + "\n")
        (self.root / "partition_PANDA.csv").write_text("\n".join(parts) + "\n")

    def write_mask(self, name: str, values: np.ndarray) -> None:
        path = self.root / "train_label_masks" / f"{name}_mask.tiff"
        path.parent.mkdir(exist_ok=True)
        rgb = np.stack([values, 0 * values, 0 * values], -1).astype(np.uint8)
        tifffile.imwrite(path, rgb, tile=(16, 16), photometric="rgb", compression="deflate")

    def open(self, **options: object) -> Study:
        chosen = StudyOptions(**options)
        return open_study("panda", self.root, out=self.out, features=self.work, options=chosen)

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def raw(tmp_path: Path) -> Download:
    return Download(tmp_path)


@pytest.fixture
def authors(tmp_path: Path) -> Path:
    """The authors' folder, without splits."""
    bags = {k: (k == RADBOUD, np.zeros(2)) for k in NAMES}
    write_processed(tmp_path / "authors" / "patches_512", bags)
    return tmp_path / "authors"


def test_the_whole_tables(tables):
    partition = read_partition(tables / "partition_PANDA.csv")
    assert len(partition) == 10_616
    assert Counter(part for part, _ in partition.values()) == {"train": 8_822, "test": 1_794}
    train = read_train(tables / "train.csv")
    assert Counter(p for _, p in train.values()) == {"karolinska": 5_456, "radboud": 5_160}
    positive = {k: int(g > 0) for k, (g, _) in train.items()}
    assert positive == {k: y for k, (_, y) in partition.items()}
    assert sum(positive.values()) == 7_724
    grades = read_partition(tables / "partition_PANDA.csv", grades=True)
    assert {k: g for k, (_, g) in grades.items()} == {k: g for k, (g, _) in train.items()}


def test_real_slides_with_their_duplicates(tables, tmp_path):
    """300 slides of the real tables in the authors' layout: parts, labels, groups, leaks."""
    partition = read_partition(tables / "partition_PANDA.csv")
    cluster = {r["image_id"]: r["group_id"] for r in rows_of(tables / "duplicate_imgids.csv")}
    chosen = sorted(cluster, key=lambda k: (int(cluster[k]), k))[:200] + sorted(partition)[:100]
    chosen = list(dict.fromkeys(chosen))
    root = tmp_path / "panda"
    first = chosen[0]
    labels = {k: partition[k][1] for k in chosen}
    stored = labels | {first: 1 - labels[first]}
    write_processed(root / "patches_512", {k: (y, np.full(2, y)) for k, y in stored.items()})
    assert recognise_study(root) == "panda"
    options = StudyOptions(
        labels=tables / "train.csv",
        partition=tables / "partition_PANDA.csv",
        duplicates=tables / "duplicate_imgids.csv",
    )
    study = open_study("panda", root, out=tmp_path / "out", options=options)
    table = read_table(study.labels)
    assert dict(zip(table.bags, table.labels, strict=True)) == labels
    part = dict(zip(table.bags, table.splits, strict=True))
    assert part == {k: partition[k][0] for k in chosen}
    trained = {cluster[k] for k in chosen if k in cluster and part[k] == "train"}
    leaks = {k for k in chosen if part[k] == "test" and cluster.get(k) in trained}
    assert set(record(study)["test_with_a_near_duplicate_in_training"]) == leaks and leaks
    # groups are within one part, and near-duplicates validate together
    split = make_split(table)
    for k in split.val:
        assert not {j for j in split.train if j in cluster and cluster[j] == cluster.get(k)}
    assert study.counts["without features"] == 10_616 - len(chosen)
    assert study.counts["provider radboud"] + study.counts["provider karolinska"] == len(chosen)
    assert record(study)["labels_a_derivation_would_change"] == [first]


def test_a_download(raw):
    assert recognise_study(raw.root) == "panda"
    study = raw.open()
    table = read_table(study.labels)
    assert table.labels == (1, 1, 0, 1, 1, 1, 0, 0)
    assert table.splits == ("train", "test", "train", "train") * 2
    unknown = {name: [-1] * 8 for name in NAMES[3:]}
    half = [0, 0, 1, 1] * 2
    assert marks(study) == {RADBOUD: half, KAROLINSKA: half, BENIGN: [0] * 8, **unknown}
    assert record(study)["without_mask"] == NAMES[3:]
    assert record(study)["strata"]["provider"][KAROLINSKA] == "karolinska"
    assert (study.counts["train"], study.counts["test"]) == (6, 2)
    study = raw.open(grades=True)
    assert study.classes == tuple(f"isup_{k}" for k in range(6))
    assert [int(r["label"]) for r in rows_of(study.labels)] == [1, 2, 0, 4, 5, 1, 0, 0]
    assert study.counts["test isup_2"] == 1
    values = np.zeros((2 * SIDE, 4 * SIDE), np.uint8)
    values[:SIDE, : SIDE // 2] = 4  # half of the first patch
    raw.write_mask(RADBOUD, values)
    for share, first in ((0.5, 0), (0.4, 1)):
        assert marks(raw.open(share=share))[RADBOUD] == [first, *[0] * 7]
    raw.replace("train.csv", f"{RADBOUD},radboud", f"{RADBOUD},karolinska")
    refused(InputError, "4, .*karolinska", raw.open)


def test_masks_that_cannot_be_used_leave_their_patches_unknown(raw):
    (raw.root / "train_label_masks" / f"{RADBOUD}_mask.tiff").write_bytes(b"nothing")
    other = {"level0_width": 99, "level0_height": 99}
    write_slide(raw.work, KAROLINSKA, lattice(4, 2, side=SIDE), side=SIDE, **other)
    # the hospital of a slide that train.csv lacks is not known, nor what its mask means
    raw.replace("train.csv", BENIGN, "f" * 32)
    study = raw.open()
    for name in (RADBOUD, KAROLINSKA, BENIGN):
        assert set(marks(study)[name]) == {-1}
    assert record(study)["damaged_masks"] == [RADBOUD, KAROLINSKA]
    assert any("64x32 pixels" in note and "99x99" in note for note in study.notes)
    (raw.root / "train_label_masks").rename(raw.root / "elsewhere")
    study = raw.open()
    assert study.instance_labels is None
    assert any("train_label_masks" in note and "no labels" in note for note in study.notes)


def test_the_authors_folder_without_any_table(authors, tmp_path):
    """Without clinical labels, the stored ones are used, with a note."""
    refused(InputError, r"splits\.csv", open_study, "panda", authors, out=tmp_path / "out")
    write_splits(authors / "splits.csv", dict.fromkeys(NAMES[:6], "train") | {NAMES[6]: "test"})
    study = open_study("panda", authors, out=tmp_path / "out")
    assert study.counts["labels derived"] == 7 and study.counts["excluded"] == 1
    assert study.counts["cancer"] == 1
    assert record(study)["labels_a_derivation_would_change"] == [RADBOUD]


def test_grades_of_the_authors_folder_need_a_table(authors, tmp_path):
    write_splits(authors / "splits.csv", dict.fromkeys(NAMES, "train") | {NAMES[6]: "test"})
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"--grades .*train\.csv"):
        open_study("panda", authors, out=out, options=StudyOptions(grades=True))
    lines = ["image_id,isup_grade,data_provider", *(f"{name},3,radboud" for name in NAMES[:-1])]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    options = StudyOptions(grades=True, labels=tmp_path / "train.csv")
    study = open_study("panda", authors, out=out, options=options)
    excluded = record(study)["excluded"]
    assert set(excluded) == {NAMES[-1]}
    assert "ISUP" in excluded[NAMES[-1]] and "train.csv" in excluded[NAMES[-1]]


TRAIN = "image_id,isup_grade,data_provider\n"
PARTS = "slide_name,Partition,isup_0\n"


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("train.csv", None, r"train\.csv.* is missing"),
        ("partition_PANDA.csv", None, r"partition_PANDA\.csv \(columns slide_name, Partition"),
        ("train.csv", "image_id,isup_grade\na,1\n", r"train\.csv has no column 'data_provider'"),
        ("train.csv", f"{TRAIN}a,7,radboud\n", "the ISUP grade '7'"),
        ("train.csv", f"{TRAIN}a,1,oslo\n", "radboud or karolinska"),
        ("partition_PANDA.csv", "name,part\na,train\n", "'Partition'.* name, part"),
        ("partition_PANDA.csv", f"{PARTS}a,first,1\n", "in the part 'first'"),
        ("partition_PANDA.csv", f"{PARTS}a,train,x\n", "'a' has 'x'.*isup_0"),
    ],
)
def test_tables_that_are_missing_or_wrong(raw, name, text, fact):
    path = raw.root / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    refused(InputError, fact, raw.open)


def test_a_partition_may_lack_labels_but_has_one_grade_a_slide(tmp_path):
    path = tmp_path / "partition.csv"
    path.write_text(f"{PARTS}a,train,\nb,train,1\nc,test,0\n")
    assert read_partition(path) == {"a": ("train", None), "b": ("train", 0), "c": ("test", 1)}
    columns = ",".join(f"isup_{k}" for k in range(6))
    path.write_text(f"slide_name,Partition,{columns}\na,train,1,0,0,1,0,0\n")
    refused(TableError, "line 2: slide 'a' .*2", read_partition, path, grades=True)
