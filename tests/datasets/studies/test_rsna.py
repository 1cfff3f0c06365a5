"""RSNA: the 150 test scans, DICOM series ordered by position, patients, and errors."""

import csv
import json
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.made_studies import record, rows_of, write_processed, write_splits
from support.refusals import refused

from probsa.cli import main
from probsa.core import write_bag
from probsa.datasets import StudyOptions, open_bags, open_study, read_table, recognise_study
from probsa.datasets.studies.rsna import read_answers, read_scans
from probsa.errors import BagError, InputError, TableError
from probsa.slides import list_scans, open_scan

pydicom = pytest.importorskip("pydicom")


@pytest.fixture(scope="module")
def listed(shared_data) -> Path:
    return shared_data / "rsna_ich_sa_mil" / "testing_example.csv"


def write_slice(path: Path, real: Path, *, series: str, patient: str, z: float) -> None:
    """Write a real slice's header with a small image at another position."""
    with warnings.catch_warnings():  # its UIDs are invalid, as in the whole release
        warnings.simplefilter("ignore")
        d = pydicom.dcmread(real)
        d.SOPInstanceUID = path.stem
        d.SeriesInstanceUID = series
        d.PatientID = patient
        d.StudyInstanceUID = series.replace("ID_", "ID_5")
        d.ImagePositionPatient = [-125.0, -115.9, z]
        d.Rows = d.Columns = 16
        d.PixelData = np.full(256, int(z) + 40, np.int16).tobytes()
        d.save_as(path)


class Release:
    """A download of six real test scans (four slices each) and four training scans."""

    def __init__(self, folder: Path, listed: Path, real: Path) -> None:
        self.root = folder / "rsna"
        self.work = folder / "work"
        images = self.root / "stage_2_train"
        images.mkdir(parents=True)
        scans: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for r in rows_of(listed):
            scans[r["bag_name"]].append((r["instance_name"], int(r["instance_label"])))
        positive = [b for b, s in scans.items() if any(y for _, y in s)][:3]
        negative = [b for b, s in scans.items() if not any(y for _, y in s)][:3]
        # four slices, including the first positive ones
        self.test = {b: sorted(scans[b], key=lambda s: -s[1])[:4] for b in (*positive, *negative)}
        self.train = {
            f"ID_{k:010x}": [(f"ID_{k:06x}{i:03x}.dcm", int(k == 1 and i == 2)) for i in range(4)]
            for k in range(4)
        }
        lines = ["ID,Label"]
        self.truth: dict[str, list[int]] = {}
        for k, (bag, slices) in enumerate({**self.test, **self.train}.items()):
            patient = f"ID_{k:08x}"
            for i, (name, label) in enumerate(slices):
                # file names do not follow the order
                place = (i * 3) % 4
                write_slice(images / name, real, series=bag, patient=patient, z=place * 5.0)
                stem = name.removesuffix(".dcm")
                lines += [f"{stem}_epidural,0", f"{stem}_any,{label}"]
            order = sorted(range(4), key=lambda i: (i * 3) % 4)
            self.truth[bag] = [slices[i][1] for i in order]
        (self.root / "stage_2_train.csv").write_text("\n".join(lines) + "\n")
        self.write_list(self.root / "testing_example.csv", self.test)

    def write_list(self, path: Path, scans: dict[str, list[tuple[str, int]]]) -> None:
        with path.open("w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["instance_label", "instance_name", "bag_name", "bag_label", "order"])
            for bag, slices in scans.items():
                label = max(y for _, y in slices)
                out.writerows([[y, n, bag, label, i] for i, (n, y) in enumerate(slices)])

    def extract(self) -> None:
        """Write one feature per slice, named and ordered as by extraction."""
        for source in list_scans(self.root / "stage_2_train").sources:
            scan = open_scan(source)
            write_bag(
                self.work / f"{source.name}.h5",
                features=scan.volume.mean(axis=(1, 2))[:, None],
                coords=scan.positions[:, None],
                kind="ct",
            )

    def linked(self, work: Path, *, without: str = "-") -> Path:
        """Link the features, but for those of one bag, into another folder."""
        work.mkdir()
        for path in self.work.glob("*.h5"):
            if without not in path.name:
                (work / path.name).symlink_to(path)
        return work


@pytest.fixture(scope="module")
def made(tmp_path_factory, listed: Path, shared_data) -> Release:
    real = shared_data / "rsna_ich_sa_mil" / "ID_000012eaf.dcm"
    release = Release(tmp_path_factory.mktemp("rsna"), listed, real)
    release.extract()
    return release


def test_the_150_test_scans_in_the_authors_folder(listed, tmp_path):
    scans = read_scans(listed)
    assert len(scans) == 150 and sum(s.label or 0 for s in scans.values()) == 72
    sizes = [len(s.slices) for s in scans.values()]
    assert (sum(sizes), min(sizes), max(sizes)) == (5_254, 24, 57)
    # all 150 real test scans with their slice labels, and a few training scans
    root = tmp_path / "rsna"
    slices: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for r in rows_of(listed):
        slices[r["bag_name"]].append((int(r["order"]), int(r["instance_label"])))
    truth = {b: np.array([y for _, y in sorted(s)]) for b, s in slices.items()}
    bags = {b: (int(y.max()), y) for b, y in truth.items()}
    bags |= {f"ID_{k:010x}": (k % 2, np.full(3, k % 2)) for k in range(6)}
    write_processed(root, bags, kind="slice_labels", encoder="features_resnet50")
    parts = {b: "test" if b in truth else "train" for b in bags}
    write_splits(root / "splits.csv", parts)
    assert recognise_study(root) == "rsna"
    study = open_study("rsna", root, out=tmp_path / "out")
    c = study.counts
    assert (c["test"], c["test haemorrhage"], c["train"]) == (150, 72, 6)
    assert c["known instances"] == 5_254 + 18 and c["positive instances"] == 806 + 9
    assert c["labels that a derivation would change"] == 0 == c["labels derived"]
    bags_of_study = open_bags(study.features, features=study.feature_set)
    name = next(iter(truth))
    assert bags_of_study.stored(name).inferred_kind == "ct"
    n = len(truth[name])
    assert bags_of_study.bag(name).edges.T.tolist() == [[i, i + 1] for i in range(n - 1)]
    (root / "splits.csv").unlink()
    with pytest.raises(InputError, match=r"splits\.csv.*bag_name and split"):
        open_study("rsna", root, out=tmp_path / "out")


def test_a_download(made, tmp_path):
    assert recognise_study(made.root) == "rsna"
    study = open_study("rsna", made.root, out=tmp_path / "out", features=made.work)
    table = read_table(study.labels)
    series = [b.removeprefix("stage_2_train_") for b in table.bags]
    truth = {b: max(y) for b, y in made.truth.items()}
    assert dict(zip(series, table.labels, strict=True)) == truth
    assert {b for b, p in zip(series, table.splits, strict=True) if p == "test"} == set(made.test)
    assert table.groups is not None and len(set(table.groups)) == 10
    bags = open_bags(study.features, instance_labels=study.instance_labels)
    for bag, uid in zip(table.bags, series, strict=True):
        assert bags.stored(bag).instance_labels.tolist() == made.truth[uid]
        # positions ascend, and features are in the order of the slices
        assert bags.stored(bag).coords[:, 0].tolist() == sorted(bags.stored(bag).coords[:, 0])
    assert any("1,150 scans" in note for note in study.notes)


def test_the_lists_say_who_takes_part(made, tmp_path):
    lists = tmp_path / "train.csv"
    listed = dict(list(made.train.items())[:2])
    gone = {"ID_00000000aa": [("ID_aaaaaaaaa.dcm", 0)]}
    made.write_list(lists, {**listed, **gone})
    options = StudyOptions(train_scans=lists)
    study = open_study("rsna", made.root, out=tmp_path / "out", features=made.work, options=options)
    assert (study.counts["train"], study.counts["test"]) == (2, 6)
    held = record(study)
    assert len(held["excluded"]) == 2 and held["without_features"] == ["ID_00000000aa"]
    assert not any("1,150 scans" in note for note in study.notes)


def test_nobody_trains_and_tests(made, shared_data, tmp_path):
    """Other scans of a test patient are excluded from training."""
    real = shared_data / "rsna_ich_sa_mil" / "ID_000012eaf.dcm"
    images = made.root / "stage_2_train"
    bag = "ID_00000000ff"
    work = made.linked(tmp_path / "work")
    answers = tmp_path / "answers.csv"
    text = (made.root / "stage_2_train.csv").read_text()
    answers.write_text(text + "ID_fffffffff_any,0\n")
    write_slice(images / "ID_fffffffff.dcm", real, series=bag, patient="ID_00000000", z=1.0)
    try:
        write_bag(
            work / f"stage_2_train_{bag}.h5",
            features=np.ones((1, 1)),
            coords=np.ones((1, 1)),
            kind="ct",
        )
        options = StudyOptions(labels=answers)
        study = open_study("rsna", made.root, out=tmp_path / "o", features=work, options=options)
    finally:
        (images / "ID_fffffffff.dcm").unlink()
    excluded = record(study)["excluded"]
    assert set(excluded) == {f"stage_2_train_{bag}"}
    assert "patient" in excluded[f"stage_2_train_{bag}"]


def test_features_of_other_slices_are_refused(made, tmp_path):
    name = sorted(made.work.glob("*.h5"))[0]
    work = made.linked(tmp_path / "work", without=name.name)
    name = work / name.name
    write_bag(name, features=np.ones((4, 1)), coords=np.array([[0.0], [5], [10], [14]]), kind="ct")
    with pytest.raises(BagError, match=rf"'{name.stem}' .*4"):
        open_study("rsna", made.root, out=tmp_path / "out", features=work)


def test_a_damaged_slice_is_left_out_and_the_scan_keeps_its_label(made, tmp_path):
    bag = next(b for b, y in made.truth.items() if b in made.test and sum(y))
    name = next(n for n, y in made.test[bag] if y)
    path = made.root / "stage_2_train" / name
    whole = path.read_bytes()
    lost = next(s for s in list_scans(path.parent).sources if bag in s.name)
    path.write_bytes(whole[:300])
    try:
        work = made.linked(tmp_path / "work", without=bag)
        scan = open_scan(next(s for s in list_scans(path.parent).sources if bag in s.name))
        write_bag(
            work / f"{lost.name}.h5",
            features=np.ones((3, 1)),
            coords=scan.positions[:, None],
            kind="ct",
        )
        study = open_study("rsna", made.root, out=tmp_path / "out", features=work)
    finally:
        path.write_bytes(whole)
    assert record(study)["damaged_slices"] == [name.removesuffix(".dcm")]
    table = read_table(study.labels)
    assert table.labels[table.bags.index(lost.name)] == 1


def test_what_is_missing_is_named(made, listed, tmp_path):
    def opened(root: Path, **options) -> None:
        study_options = StudyOptions(**options)
        open_study("rsna", root, out=tmp_path / "out", features=made.work, options=study_options)

    with pytest.raises(TableError, match=r"4 slices .*\d\d"):
        opened(made.root, test_scans=listed)
    bare = tmp_path / "bare"
    (bare / "stage_2_train").mkdir(parents=True)
    refused(InputError, r"stage_2_train\.csv", opened, bare)
    (bare / "stage_2_train.csv").write_text("ID,Label\nID_0_any,0\n")
    refused(InputError, "--test-scans", opened, bare)
    (bare / "stage_2_train").rmdir()
    with pytest.raises(InputError, match="stage_2_train"):
        opened(bare, test_scans=listed)
    with pytest.raises(InputError, match="probsa patch"):
        open_study("rsna", bare, out=tmp_path / "out")


def test_answers_that_are_none(tmp_path):
    path = tmp_path / "stage_2_train.csv"
    path.write_text("ID,Label\nID_a_any,0\nID_a_any,1\n")
    refused(TableError, "line 3: slice 'ID_a'", read_answers, path)
    path.write_text("image_id,isup\na,1\n")
    refused(TableError, r"stage_2_train\.csv", read_answers, path)
    path.write_text("bag_name,slice\na,1\n")
    refused(TableError, "'instance_name'", read_scans, path)


def test_from_the_download_by_commands(made, tmp_path, capsys):
    """Run patch, extract and dataset as documented."""
    work = tmp_path / "work"
    images = tmp_path / "stage_2_train"
    images.mkdir()
    for slices in (*list(made.test.values())[:1], *list(made.train.values())[:1]):
        for name, _ in slices:
            (images / name).symlink_to(made.root / "stage_2_train" / name)
    assert main(["patch", str(images), "--out", str(work), "--json"]) == 0
    alone = ["--encoder", "handcrafted", "--readers", "0", "--threads", "1"]
    assert main(["extract", str(work), *alone, "--json"]) == 0
    capsys.readouterr()
    command = ["dataset", "rsna", str(made.root), "--features", str(work)]
    assert main([*command, "--out", str(tmp_path / "out"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["counts"]["bags"] == 2 and output["counts"]["known instances"] == 8
    bags = open_bags(work, instance_labels=tmp_path / "out" / "instance_labels")
    for name in bags.names:
        uid = name.removeprefix("stage_2_train_")
        assert bags.stored(name).instance_labels.tolist() == made.truth[uid]
