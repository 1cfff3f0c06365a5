"""PANDA: the tables of the whole release, the masks of both hospitals, and errors."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile
from support.made_studies import lattice, rows_of, write_processed, write_slide, write_splits

from probsa.datasets import make_split, open_bags, read_table
from probsa.datasets.studies.opening import StudyOptions, open_study, recognise_study
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


def write_mask(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    rgb = np.stack([values, 0 * values, 0 * values], -1).astype(np.uint8)
    tifffile.imwrite(path, rgb, tile=(16, 16), photometric="rgb", compression="deflate")


@pytest.fixture
def raw(tmp_path: Path) -> tuple[Path, Path]:
    """Eight biopsies of 4 × 2 patches; the first three have masks."""
    root, work = tmp_path / "panda", tmp_path / "work"
    (root / "train_images").mkdir(parents=True)
    columns = np.repeat(np.arange(4), SIDE)[None].repeat(2 * SIDE, 0)
    masks = {
        RADBOUD: np.array([0, 1, 3, 5])[columns],  # background, stroma, Gleason 3 and 5
        KAROLINSKA: np.array([0, 1, 2, 2])[columns],
        BENIGN: np.array([2, 2, 1, 1])[columns],  # Radboud's 2 is healthy
    }
    for name, values in masks.items():
        write_mask(root / "train_label_masks" / f"{name}_mask.tiff", values)
    train = ["image_id,data_provider,isup_grade,gleason_score"]
    parts = ["slide_name,Partition,isup_0"]
    for k, name in enumerate(NAMES):
        grade = 0 if name == BENIGN or k > 5 else 1 + k % 5
        train.append(f"{name},{'karolinska' if k % 2 else 'radboud'},{grade},3+3")
        parts.append(f"{name},{('train', 'test', 'val', 'train')[k % 4]},{int(grade == 0)}")
        write_slide(work, name, lattice(4, 2, side=SIDE), side=SIDE)
    (root / "train.csv").write_text("\n".join(train) + "\n")
    (root / "partition_PANDA.csv").write_text("\n".join(parts) + "\n")
    return root, work


def marks(study) -> dict[str, list[int]]:
    bags = open_bags(
        study.features, features=study.feature_set, instance_labels=study.instance_labels
    )
    return {b: bags.stored(b).instance_labels.tolist() for b in bags.names}


def test_the_whole_tables(tables: Path) -> None:
    partition = read_partition(tables / "partition_PANDA.csv")
    assert len(partition) == 10_616
    assert Counter(part for part, _ in partition.values()) == {"train": 8_822, "test": 1_794}
    train = read_train(tables / "train.csv")
    assert Counter(p for _, p in train.values()) == {"karolinska": 5_456, "radboud": 5_160}
    assert {k: int(g > 0) for k, (g, _) in train.items()} == {
        k: y for k, (_, y) in partition.items()
    }
    assert sum(g > 0 for g, _ in train.values()) == 7_724


def test_real_slides_with_their_duplicates(tables: Path, tmp_path: Path) -> None:
    """300 slides of the real tables in the authors' layout: parts, labels, groups, leaks."""
    partition = read_partition(tables / "partition_PANDA.csv")
    cluster = {r["image_id"]: r["group_id"] for r in rows_of(tables / "duplicate_imgids.csv")}
    chosen = sorted(cluster, key=lambda k: (int(cluster[k]), k))[:200] + sorted(partition)[:100]
    chosen = list(dict.fromkeys(chosen))
    root = tmp_path / "panda"
    stored = {k: (partition[k][1], np.full(2, partition[k][1])) for k in chosen}
    stored[chosen[0]] = (1 - partition[chosen[0]][1], np.full(2, 1 - partition[chosen[0]][1]))
    write_processed(root / "patches_512", stored)
    assert recognise_study(root) == "panda"
    options = StudyOptions(
        labels=tables / "train.csv",
        partition=tables / "partition_PANDA.csv",
        duplicates=tables / "duplicate_imgids.csv",
    )
    study = open_study("panda", root, out=tmp_path / "out", options=options)
    table = read_table(study.labels)
    assert dict(zip(table.bags, table.labels, strict=True)) == {k: partition[k][1] for k in chosen}
    part = dict(zip(table.bags, table.splits, strict=True))
    assert part == {k: partition[k][0] for k in chosen}
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    trained = {cluster[k] for k in chosen if k in cluster and part[k] == "train"}
    leaks = {k for k in chosen if part[k] == "test" and cluster.get(k) in trained}
    assert set(record["test_with_a_near_duplicate_in_training"]) == leaks and leaks
    # groups are within one part, and near-duplicates validate together
    split = make_split(table)
    for k in split.val:
        assert not {j for j in split.train if j in cluster and cluster[j] == cluster.get(k)}
    assert study.counts["without features"] == 10_616 - len(chosen)
    assert study.counts["provider radboud"] + study.counts["provider karolinska"] == len(chosen)
    assert record["labels_a_derivation_would_change"] == [chosen[0]]


def test_a_download(raw, tmp_path: Path) -> None:
    root, work = raw
    assert recognise_study(root) == "panda"
    study = open_study("panda", root, out=tmp_path / "out", features=work)
    table = read_table(study.labels)
    assert table.labels == (1, 1, 0, 1, 1, 1, 0, 0)
    assert table.splits == ("train", "test", "train", "train") * 2
    assert marks(study) == {
        RADBOUD: [0, 0, 1, 1] * 2,
        KAROLINSKA: [0, 0, 1, 1] * 2,
        BENIGN: [0] * 8,
        **{name: [-1] * 8 for name in NAMES[3:]},
    }
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["without_mask"] == NAMES[3:]
    assert record["strata"]["provider"][KAROLINSKA] == "karolinska"
    assert (study.counts["train"], study.counts["test"]) == (6, 2)


def test_the_share_of_a_patch(raw, tmp_path: Path) -> None:
    root, work = raw
    values = np.zeros((2 * SIDE, 4 * SIDE), np.uint8)
    values[:SIDE, : SIDE // 2] = 4  # half of the first patch
    write_mask(root / "train_label_masks" / f"{RADBOUD}_mask.tiff", values)
    for share, first in ((0.5, 0), (0.4, 1)):
        options = StudyOptions(share=share)
        study = open_study("panda", root, out=tmp_path / "out", features=work, options=options)
        assert marks(study)[RADBOUD] == [first, *[0] * 7]


def test_a_mask_of_the_other_hospital(raw, tmp_path: Path) -> None:
    root, work = raw
    text = (root / "train.csv").read_text()
    (root / "train.csv").write_text(text.replace(f"{RADBOUD},radboud", f"{RADBOUD},karolinska"))
    with pytest.raises(InputError, match=r"contains the values 3, 5, but .* is from karolinska"):
        open_study("panda", root, out=tmp_path / "out", features=work)


def test_masks_that_cannot_be_used_leave_their_patches_unknown(raw, tmp_path: Path) -> None:
    root, work = raw
    (root / "train_label_masks" / f"{RADBOUD}_mask.tiff").write_bytes(b"nothing")
    write_slide(
        work, KAROLINSKA, lattice(4, 2, side=SIDE), side=SIDE, level0_width=99, level0_height=99
    )
    study = open_study("panda", root, out=tmp_path / "out", features=work)
    assert set(marks(study)[RADBOUD]) == set(marks(study)[KAROLINSKA]) == {-1}
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["damaged_masks"] == [RADBOUD, KAROLINSKA]
    assert any("64x32 pixels, but its slide has 99x99" in note for note in study.notes)


def test_no_masks_at_all(raw, tmp_path: Path) -> None:
    root, work = raw
    (root / "train_label_masks").rename(root / "elsewhere")
    study = open_study("panda", root, out=tmp_path / "out", features=work)
    assert study.instance_labels is None
    assert any("train_label_masks, so patches have no labels" in note for note in study.notes)


def test_the_authors_folder_without_any_table(tmp_path: Path) -> None:
    """Without clinical labels, the stored ones are used, with a note."""
    root = tmp_path / "panda"
    write_processed(root / "patches_512", {k: (k == RADBOUD, np.zeros(2)) for k in NAMES})
    with pytest.raises(InputError, match=r"splits\.csv"):
        open_study("panda", root, out=tmp_path / "out")
    write_splits(root / "splits.csv", dict.fromkeys(NAMES[:6], "train") | {NAMES[6]: "test"})
    study = open_study("panda", root, out=tmp_path / "out")
    assert study.counts["labels derived"] == 7 and study.counts["excluded"] == 1
    assert study.counts["cancer"] == 1
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["labels_a_derivation_would_change"] == [RADBOUD]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("train.csv", None, r"train\.csv of PANDA's raw download is missing"),
        ("partition_PANDA.csv", None, r"partition_PANDA\.csv \(columns slide_name, Partition"),
        ("train.csv", "image_id,isup_grade\na,1\n", r"train\.csv has no column 'data_provider'"),
        ("train.csv", "image_id,isup_grade,data_provider\na,7,radboud\n", "the ISUP grade '7'"),
        ("train.csv", "image_id,isup_grade,data_provider\na,1,oslo\n", "radboud or karolinska"),
        ("partition_PANDA.csv", "name,part\na,train\n", "has no column 'slide_name': it has"),
        ("partition_PANDA.csv", "slide_name,Partition\na,first\n", "in the part 'first'"),
    ],
)
def test_tables_that_are_missing_or_wrong(raw, tmp_path: Path, name, text, said) -> None:
    root, work = raw
    if text is None:
        (root / name).unlink()
    else:
        (root / name).write_text(text)
    with pytest.raises((InputError, TableError), match=said):
        open_study("panda", root, out=tmp_path / "out", features=work)


def test_grades_instead_of_two_classes(raw, tmp_path: Path) -> None:
    root, work = raw
    study = open_study(
        "panda", root, out=tmp_path / "out", features=work, options=StudyOptions(grades=True)
    )
    assert study.classes == tuple(f"isup_{k}" for k in range(6))
    assert [int(r["label"]) for r in rows_of(study.labels)] == [1, 2, 0, 4, 5, 1, 0, 0]
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["counts"]["test isup_2"] == 1


def test_grades_of_the_whole_partition_are_those_of_the_download(tables: Path) -> None:
    partition = read_partition(tables / "partition_PANDA.csv", grades=True)
    train = read_train(tables / "train.csv")
    assert {k: grade for k, (_, grade) in partition.items()} == {
        k: g for k, (g, _) in train.items()
    }


def test_a_slide_without_a_grade_is_left_out_and_one_with_two_is_refused(
    raw, tmp_path: Path
) -> None:
    root = tmp_path / "authors"
    write_processed(root / "patches_512", {k: (k == RADBOUD, np.zeros(2)) for k in NAMES})
    write_splits(root / "splits.csv", dict.fromkeys(NAMES, "train") | {NAMES[6]: "test"})
    options = StudyOptions(grades=True, labels=tmp_path / "train.csv")
    lines = ["image_id,isup_grade,data_provider"]
    lines += [f"{name},3,radboud" for name in NAMES[:-1]]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    open_study("panda", root, out=tmp_path / "out", options=options)
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["excluded"] == {NAMES[-1]: "its ISUP grade is unknown: it is not in train.csv"}
    path = tmp_path / "partition.csv"
    columns = ",".join(f"isup_{k}" for k in range(6))
    path.write_text(f"slide_name,Partition,{columns}\na,train,1,0,0,1,0,0\n")
    with pytest.raises(TableError, match="line 2: slide 'a' has 2 grades"):
        read_partition(path, grades=True)
    path.write_text("slide_name,Partition,isup_0\na,train,\nb,train,1\nc,test,0\n")
    assert read_partition(path) == {"a": ("train", None), "b": ("train", 0), "c": ("test", 1)}
    path.write_text("slide_name,Partition,isup_0\na,train,x\n")
    with pytest.raises(TableError, match="line 2: slide 'a' has 'x' among the columns isup_0"):
        read_partition(path)


def test_grades_need_a_table_that_has_them(tmp_path: Path) -> None:
    root = tmp_path / "authors"
    write_processed(root / "patches_512", {k: (k == RADBOUD, np.zeros(2)) for k in NAMES})
    write_splits(root / "splits.csv", dict.fromkeys(NAMES, "train") | {NAMES[6]: "test"})
    with pytest.raises(InputError, match=r"no ISUP grade is known: --grades needs .*train\.csv"):
        open_study("panda", root, out=tmp_path / "out", options=StudyOptions(grades=True))
