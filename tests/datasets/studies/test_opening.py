"""A user's own cohort, unknown folders, downloads from the Hub, and the command."""

import errno
import json
import os
import shutil
import tarfile
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from support.made_studies import record, write_processed, write_splits
from support.refusals import refused
from support.stored import write_folder

from probsa.cli import main
from probsa.datasets import (
    StudyOptions,
    fetch_release,
    open_bags,
    open_study,
    read_study,
    read_table,
    recognise_study,
)
from probsa.errors import BagError, InputError, MissingExtra, OutputExists, TableError
from probsa.training import DataConfig, RunConfig, prepare

TWO = {"normal_001": (0, np.zeros(2)), "tumor_001": (1, np.ones(2))}


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    write_folder(tmp_path / "cohort")
    return tmp_path / "cohort"


def test_a_cohort_keeps_its_columns(cohort, tmp_path):
    assert recognise_study(cohort) == "table"
    classes = ("benign", "cancer")
    lines = [f"{k:03d},{classes[k % 2]},p{k // 2},{k // 2 % 3}\n" for k in range(10)]
    (cohort / "labels.csv").write_text("slide_id,label,case_id,fold\n" + "".join(lines))
    study = open_study("table", cohort, out=tmp_path / "o", options=StudyOptions(classes=classes))
    table = read_table(study.labels, classes=study.classes)
    assert table.folds == tuple(k // 2 % 3 for k in range(10))
    assert table.groups == tuple(f"p{k // 2}" for k in range(10))
    assert table.labels == (0, 1) * 5 and study.classes == classes
    assert set(record(study)["excluded"]) == {"010", "011"}
    config = DataConfig(**study.settings(), test_fold=0)
    split = prepare(RunConfig(data=config, model="abmil")).split
    assert len(split.test) == 4 and split.part_of("010") == "unused"
    (tmp_path / "labels.csv").write_text("bag,label\n1,0\n2,1\n")
    options = StudyOptions(labels=tmp_path / "labels.csv")
    with pytest.raises(TableError, match="'001', not '1'"):
        open_study("table", cohort, out=tmp_path / "o", options=options)


def test_a_cohorts_own_labels_of_instances(cohort, tmp_path):
    overrides = cohort / "instance_labels"
    size = open_bags(cohort / "features").size
    overrides.mkdir()
    np.save(overrides / "001.npy", np.zeros(size("001"), np.int64))
    study = open_study("table", cohort, out=tmp_path / "out")
    assert study.instance_labels == overrides
    assert not (tmp_path / "out" / "instance_labels").exists()
    assert study.counts["known instances"] == size("001")
    assert record(study)["labels_a_derivation_would_change"] == ["001"]
    np.save(overrides / "002.npy", np.zeros(99, np.int64))
    with pytest.raises(BagError, match=r"'002' .*99"):
        open_study("table", cohort, out=tmp_path / "out")
    for path in overrides.iterdir():
        path.rename(path.with_stem(f"x{path.stem}"))
    refused(BagError, "2 files", open_study, "table", cohort, out=tmp_path / "out")


@pytest.mark.parametrize("classes", [None, ("benign", "cancer")])
def test_what_a_derivation_would_change_is_counted_whatever_classes_are_called(
    cohort, tmp_path, classes
):
    bags = open_bags(cohort / "features")
    names = classes or ("0", "1")
    rows = [f"{b},{names[k % 2]}" for k, b in enumerate(bags.names)]
    (cohort / "labels.csv").write_text("\n".join(["bag,label", *rows, ""]))
    (cohort / "instance_labels").mkdir()
    for k, b in enumerate(bags.names):  # equal to those of the bags, except for the last two
        marks = np.full(bags.size(b), (k + (k >= len(bags) - 2)) % 2, np.int64)
        np.save(cohort / "instance_labels" / f"{b}.npy", marks)
    options = StudyOptions(classes=classes)
    study = open_study("table", cohort, out=tmp_path / "out", options=options)
    assert study.counts["labels that a derivation would change"] == 2
    assert record(study)["labels_a_derivation_would_change"] == list(bags.names[-2:])


def test_a_second_run_forgets_what_the_first_wrote(tmp_path):
    root = tmp_path / "c16"
    out = tmp_path / "out"
    base = write_processed(root / "patches_512", TWO | {"test_114": (1, np.ones(2))})
    assert open_study("camelyon16", root, out=out).instance_labels == out / "instance_labels"
    for path in base.rglob("test_114.npy"):
        path.unlink()
    study = open_study("camelyon16", root, out=out)
    assert study.instance_labels is None and not (out / "instance_labels").exists()
    for text, message in (
        ('{"name": "camelyon16", "unfinished": true}', r"dataset\.json was not finished"),
        ("{}", r"dataset\.json.*: name is missing"),
        ("[", r"dataset\.json is damaged"),
    ):
        (out / "dataset.json").write_text(text)
        refused(InputError, message, read_study, out)
    (out / "dataset.json").unlink()
    with pytest.raises(OutputExists, match=r"labels\.csv"):
        open_study("camelyon16", root, out=out)


def test_a_folder_that_was_moved_keeps_its_files(tmp_path):
    root = tmp_path / "c16"
    out = tmp_path / "out"
    write_processed(root / "patches_512", TWO | {"test_114": (1, np.ones(2))})
    study = open_study("camelyon16", root, out=out)
    moved = tmp_path / "moved"
    out.rename(moved)
    read = read_study(moved)
    assert read.labels == moved / "labels.csv"
    assert read.instance_labels == moved / "instance_labels"
    assert read.features == study.features  # which were not moved


def test_a_copy_of_the_record_and_the_table_uses_the_other_files_where_they_are(tmp_path):
    root = tmp_path / "c16"
    write_processed(root / "patches_512", TWO | {"test_114": (1, np.ones(2))})
    study = open_study("camelyon16", root, out=tmp_path / "out")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("labels.csv", "dataset.json"):
        shutil.copy(tmp_path / "out" / name, copy)
    assert read_study(copy).instance_labels == study.instance_labels


def test_several_sets_of_features(tmp_path):
    base = write_processed(tmp_path / "patches_512", TWO)
    other = base / "features" / "features_other"
    other.mkdir()
    for path in (base / "features" / "features_UNI").iterdir():
        np.save(other / path.name, np.ones((2, 7), np.float32))
    with pytest.raises(BagError, match="--feature-set"):
        open_study("camelyon16", tmp_path, out=tmp_path / "out")
    for chosen, width in (("features_UNI", 3), ("features_other", 7), ("other", 7)):
        study = open_study("camelyon16", tmp_path, out=tmp_path / chosen, feature_set=chosen)
        assert open_bags(study.features, features=study.feature_set).in_dim == width


def test_folders_that_are_no_data_set(tmp_path):
    (tmp_path / "pictures").mkdir()
    with pytest.raises(InputError, match="pictures") as error:
        recognise_study(tmp_path)
    for file in ("stage_2_train.csv", "train.csv", "reference.csv", "splits.csv", "labels.csv"):
        assert file in str(error.value)
    packed = tmp_path / "patches_512" / "features" / "features_UNI.tar.gz"
    packed.parent.mkdir(parents=True)
    packed.touch()
    with pytest.raises(InputError, match=r"features_UNI\.tar\.gz"):
        open_study("camelyon16", tmp_path, out=tmp_path / "out")
    write_processed(tmp_path / "x" / "patches_512", {"slide_a": (0, np.zeros(2))})
    with pytest.raises(InputError, match="'slide_a'"):
        open_study("camelyon16", tmp_path / "x", out=tmp_path / "out")


class Hub:
    """Fake a download: write an archived release, and record the arguments."""

    def __init__(self, folder: Path) -> None:
        self.packed = folder / "made"
        self.asked = dict[str, object]()
        base = write_processed(self.packed / "dataset" / "patches_512", TWO)
        write_splits(self.packed / "dataset" / "splits.csv", dict.fromkeys(TWO, "train"))
        kinds = ("labels", "patch_labels", "coords", "features/features_UNI")
        for number, folder_path in enumerate(base / kind for kind in kinds):
            with tarfile.open(f"{folder_path}.tar.gz", "w:gz") as archive:
                for path in sorted(folder_path.iterdir()):
                    # some of the authors' archives contain the folder, others only the files
                    archive.add(path, f"{folder_path.name if number % 2 else '.'}/{path.name}")
                    path.unlink()
            folder_path.rmdir()

    def snapshot_download(self, repo_id: str, **asked) -> None:
        self.asked = {"repo_id": repo_id, **asked}
        for path in sorted(self.packed.rglob("*")):
            if path.is_file():
                target = Path(asked["local_dir"]) / path.relative_to(self.packed)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch) -> Hub:
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_the_hub(hub, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["dataset", "camelyon16", "--fetch", "authors/set", "--feature-set", "UNI"]
    unpacked: list[int] = []
    for _ in range(2):  # existing files are not unpacked again
        assert main([*command, "--revision", "v1", "--out", str(out), "--json"]) == 0
        array = next(out.rglob("features_UNI/*.npy"))
        unpacked.append(array.stat().st_mtime_ns)
    assert unpacked[0] == unpacked[1]
    output = json.loads(capsys.readouterr().out.split("\n}\n")[-2] + "}")
    assert output["counts"]["train"] == 2 and output["counts"]["tumor"] == 1
    assert hub.asked["repo_id"] == "authors/set" and hub.asked["repo_type"] == "dataset"
    assert hub.asked["revision"] == "v1"

    def taken(name: str) -> bool:
        return any(fnmatch(name, p) for p in hub.asked["allow_patterns"])

    wanted = ("features/features_UNI.tar.gz", "features/features_UNI/a.npy", "coords/a.npy")
    assert all(taken(f"dataset/patches_512/{n}") for n in (*wanted, "patch_labels.tar.gz"))
    assert taken("dataset/splits.csv") and taken("labels/a.npy")
    assert not taken("dataset/patches_512/features/features_resnet50.tar.gz")
    study = read_study(out)
    assert open_bags(study.features, features=study.feature_set).names == tuple(TWO)


def test_another_revision_replaces_the_arrays_of_the_first(hub, tmp_path):
    out = tmp_path / "out"
    archive = hub.packed / "dataset" / "patches_512" / "features" / "features_UNI.tar.gz"
    folder = out / archive.relative_to(hub.packed).with_name("features_UNI")
    for value, names in ((1.0, ("a", "b")), (2.0, ("a",))):
        made = tmp_path / "a.npy"
        np.save(made, np.full((2, 3), value, np.float32))
        with tarfile.open(archive, "w:gz") as packed:
            for name in names:
                packed.add(made, f"{name}.npy")
        fetch_release("authors/set", out, feature_set="UNI", revision=None)
        assert np.load(folder / "a.npy").max() == value
        assert {path.stem for path in folder.glob("*.npy")} == {*names}
    (folder / "a.npy").unlink()
    fetch_release("authors/set", out, feature_set="UNI", revision=None)
    assert np.load(folder / "a.npy").max() == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_cannot_be_written_to_is_not_the_connection(tmp_path, monkeypatch, code):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(OSError, match=os.strerror(code)) as error:
        fetch_release("authors/set", tmp_path, feature_set="features_UNI", revision=None)
    assert not isinstance(error.value, InputError)


NOT_FOUND = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
NOT_FOUND.args = ("404",)  # its constructor needs a response of the Hub


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (OfflineModeIsEnabled("offline"), "Hub cannot be reached"),
        (LocalEntryNotFoundError("no connection"), "Hub cannot be reached"),
        (HFValidationError("bad"), "'authors/set'.* repository name"),
        (NOT_FOUND, "authors/set cannot be fetched.*: 404"),
    ],
)
def test_the_hub_that_does_not_answer(tmp_path, monkeypatch, error, fact):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=fact):
        fetch_release("authors/set", tmp_path, feature_set="features_UNI", revision=None)


def test_a_hub_without_these_features_or_with_a_broken_archive(hub, tmp_path, monkeypatch):
    def fetch(name: str | None) -> None:
        fetch_release("authors/set", tmp_path / "into", feature_set=name, revision=None)

    for name, fact in (
        ("features_ctrans", "named features_ctrans"),
        (None, "give --feature-set"),
    ):
        refused(InputError, fact, fetch, name)
    (hub.packed / "dataset" / "patches_512" / "labels.tar.gz").write_bytes(b"cut")
    refused(InputError, r"labels\.tar\.gz", fetch, "features_UNI")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    refused(MissingExtra, "huggingface_hub", fetch, "features_UNI")


def test_the_command_prints_a_table_for_people(tmp_path, capsys):
    write_processed(tmp_path / "patches_512", TWO | {"test_001": (1, np.ones(2))})
    assert main(["dataset", "camelyon16", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "train tumor                                    1" in output
    assert "note: 3 of the 399 slides" in output and "dataset.json" in output
    for wrong, words in (
        (["camelyon16", str(tmp_path), "--fetch", "a/b"], "give no folder"),
        (["camelyon16"], "no folder is given"),
        (["panda", str(tmp_path / "no")], "there is no folder"),
        (["table", str(tmp_path), "--share", "1.5"], "share is 1.5"),
    ):
        assert main(["dataset", *wrong, "--out", str(tmp_path / "o")]) == 2
        assert words in capsys.readouterr().err
