"""A user's own cohort, unknown folders, downloads from the Hub, and the command."""

import json
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
from support.made_studies import write_processed, write_splits
from support.stored import write_folder

from probsa.cli.entry import main
from probsa.datasets import open_bags, read_table
from probsa.datasets.studies.fetching import fetch_release
from probsa.datasets.studies.opening import (
    StudyOptions,
    open_study,
    read_study,
    recognise_study,
)
from probsa.errors import BagError, InputError, MissingExtra, OutputExists, TableError
from probsa.training.config import DataConfig, RunConfig
from probsa.training.preparation import prepare


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    root = tmp_path / "cohort"
    write_folder(root)
    return root


def test_a_cohort_keeps_its_columns(cohort: Path, tmp_path: Path) -> None:
    assert recognise_study(cohort) == "table"
    (cohort / "labels.csv").write_text(
        "slide_id,label,case_id,fold\n"
        + "".join(
            f"{k:03d},{('benign', 'cancer')[k % 2]},p{k // 2},{k // 2 % 3}\n" for k in range(10)
        )
    )
    options = StudyOptions(classes=("benign", "cancer"))
    study = open_study("table", cohort, out=tmp_path / "out", options=options)
    table = read_table(study.labels, classes=study.classes)
    assert table.folds == tuple(k // 2 % 3 for k in range(10))
    assert table.groups == tuple(f"p{k // 2}" for k in range(10))
    assert table.labels == (0, 1) * 5 and study.classes == ("benign", "cancer")
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert set(record["excluded"]) == {"010", "011"}
    config = DataConfig(**study.settings(), test_fold=0)
    split = prepare(RunConfig(data=config, model="abmil")).split
    assert len(split.test) == 4 and split.part_of("010") == "unused"


def test_a_cohorts_own_labels_of_instances(cohort: Path, tmp_path: Path) -> None:
    overrides = cohort / "instance_labels"
    overrides.mkdir()
    size = open_bags(cohort / "features").size
    np.save(overrides / "001.npy", np.zeros(size("001"), np.int64))
    study = open_study("table", cohort, out=tmp_path / "out")
    assert (
        study.instance_labels == overrides and not (tmp_path / "out" / "instance_labels").exists()
    )
    assert study.counts["known instances"] == size("001")
    assert study.counts["labels that a derivation would change"] == 1
    np.save(overrides / "002.npy", np.zeros(99, np.int64))
    with pytest.raises(BagError, match=r"'002' has \d instances .* there are 99 instance labels"):
        open_study("table", cohort, out=tmp_path / "out")
    for path in overrides.iterdir():
        path.rename(path.with_stem(f"x{path.stem}"))
    with pytest.raises(BagError, match="none of the 2 files"):
        open_study("table", cohort, out=tmp_path / "out")


@pytest.mark.parametrize("classes", [None, ("benign", "cancer")])
def test_what_a_derivation_would_change_is_counted_whatever_classes_are_called(
    cohort: Path, tmp_path: Path, classes: tuple[str, ...] | None
) -> None:
    bags = open_bags(cohort / "features")
    class_names = classes or ("0", "1")
    rows = [f"{b},{class_names[k % 2]}" for k, b in enumerate(bags.names)]
    (cohort / "labels.csv").write_text("\n".join(["bag,label", *rows, ""]))
    (cohort / "instance_labels").mkdir()
    for k, b in enumerate(bags.names):  # equal to those of the bags, except for the last two
        other = k >= len(bags.names) - 2
        marks = np.full(bags.size(b), (k + other) % 2, np.int64)
        np.save(cohort / "instance_labels" / f"{b}.npy", marks)
    options = StudyOptions(classes=classes)
    study = open_study("table", cohort, out=tmp_path / "out", options=options)
    assert study.counts["labels that a derivation would change"] == 2
    record = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert record["labels_a_derivation_would_change"] == list(bags.names[-2:])


def test_a_table_of_other_bags(cohort: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("bag,label\n1,0\n2,1\n")
    with pytest.raises(TableError, match="'001', not '1'"):
        open_study("table", cohort, out=tmp_path / "out", options=StudyOptions(labels=labels))


def test_a_second_run_forgets_what_the_first_wrote(tmp_path: Path) -> None:
    root = tmp_path / "c16"
    bags = {
        "normal_001": (0, np.zeros(2)),
        "test_114": (1, np.ones(2)),
        "tumor_001": (1, np.ones(2)),
    }
    base = write_processed(root / "patches_512", bags)
    out = tmp_path / "out"
    assert open_study("camelyon16", root, out=out).instance_labels == out / "instance_labels"
    for path in base.rglob("test_114.npy"):
        path.unlink()
    study = open_study("camelyon16", root, out=out)
    assert study.instance_labels is None and not (out / "instance_labels").exists()
    (out / "dataset.json").write_text('{"name": "camelyon16", "unfinished": true}')
    with pytest.raises(InputError, match=r"dataset\.json was not finished"):
        read_study(out)
    (out / "dataset.json").write_text("{}")
    with pytest.raises(InputError, match=r"dataset\.json is damaged: name is missing"):
        read_study(out)
    (out / "dataset.json").unlink()
    with pytest.raises(OutputExists, match=r"a labels\.csv that probsa dataset did not write"):
        open_study("camelyon16", root, out=out)


def test_several_sets_of_features(tmp_path: Path) -> None:
    bags = {"normal_001": (0, np.zeros(2)), "tumor_001": (1, np.ones(2))}
    base = write_processed(tmp_path / "patches_512", bags)
    other = base / "features" / "features_other"
    other.mkdir()
    for path in (base / "features" / "features_UNI").iterdir():
        np.save(other / path.name, np.ones((2, 7), np.float32))
    with pytest.raises(BagError, match="Choose one with --feature-set"):
        open_study("camelyon16", tmp_path, out=tmp_path / "out")
    for chosen, width in (("features_UNI", 3), ("features_other", 7), ("other", 7)):
        study = open_study("camelyon16", tmp_path, out=tmp_path / chosen, feature_set=chosen)
        assert open_bags(study.features, features=study.feature_set).in_dim == width


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(InputError, match="it holds pictures") as error:
        recognise_study(tmp_path)
    for file in ("stage_2_train.csv", "train.csv", "reference.csv", "splits.csv", "labels.csv"):
        assert file in str(error.value)
    packed = tmp_path / "patches_512" / "features" / "features_UNI.tar.gz"
    packed.parent.mkdir(parents=True)
    packed.touch()
    with pytest.raises(InputError, match=r"features_UNI\.tar\.gz is an archive: unpack it"):
        open_study("camelyon16", tmp_path, out=tmp_path / "out")


def test_bags_of_another_cohort(tmp_path: Path) -> None:
    write_processed(tmp_path / "patches_512", {"slide_a": (0, np.zeros(2))})
    with pytest.raises(InputError, match=r"none of the 1 bags .* 'slide_a', for example, has no"):
        open_study("camelyon16", tmp_path, out=tmp_path / "out")


class Hub:
    """Fake a download: write an archived release, and record the arguments."""

    def __init__(self, folder: Path) -> None:
        self.packed = folder / "made"
        bags = {"normal_001": (0, np.zeros(2)), "tumor_001": (1, np.ones(2))}
        base = write_processed(self.packed / "dataset" / "patches_512", bags)
        parts = dict.fromkeys(bags, "train")
        write_splits(self.packed / "dataset" / "splits.csv", parts)
        for number, folder_ in enumerate(
            ["labels", "patch_labels", "coords", "features/features_UNI"]
        ):
            folder_path = base / folder_
            with tarfile.open(
                folder_path.with_name(f"{folder_path.name}.tar.gz"), "w:gz"
            ) as archive:
                for path in sorted(folder_path.iterdir()):
                    # some of the authors' archives contain the folder, others only the files
                    archive.add(
                        path, f"{folder_path.name}/{path.name}" if number % 2 else f"./{path.name}"
                    )
                    path.unlink()
            folder_path.rmdir()
        self.asked: dict[str, object] = {}

    def snapshot_download(self, repo_id: str, **asked) -> str:
        self.asked = {"repo_id": repo_id, **asked}
        into = Path(asked["local_dir"])
        for path in sorted(self.packed.rglob("*")):
            if path.is_file():
                target = into / path.relative_to(self.packed)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        return str(into)


def test_the_hub(tmp_path: Path, monkeypatch, capsys) -> None:
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    out = tmp_path / "out"
    command = ["dataset", "camelyon16", "--fetch", "authors/set", "--feature-set", "UNI"]
    for _ in range(2):  # existing files are not unpacked again
        assert main([*command, "--revision", "v1", "--out", str(out), "--json"]) == 0
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
    assert open_bags(study.features, features=study.feature_set).names == (
        "normal_001",
        "tumor_001",
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OfflineModeIsEnabled("offline"), "the Hugging Face Hub cannot be reached"),
        (LocalEntryNotFoundError("no connection"), "the Hugging Face Hub cannot be reached"),
        (HFValidationError("bad"), "is not a repository name"),
    ],
)
def test_the_hub_that_does_not_answer(tmp_path: Path, monkeypatch, error, said) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=said):
        fetch_release("authors/set", tmp_path, feature_set="features_UNI", revision=None)


def test_a_repository_that_is_not_there(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
        error.args = ("404",)  # its constructor needs a response of the Hub
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match="cannot be fetched from the Hugging Face Hub: 404"):
        fetch_release("authors/set", tmp_path, feature_set="features_UNI", revision=None)


def test_a_hub_without_these_features_or_with_a_broken_archive(tmp_path, monkeypatch) -> None:
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    into = tmp_path / "into"
    with pytest.raises(InputError, match="holds no features named features_ctrans"):
        fetch_release("authors/set", into, feature_set="features_ctrans", revision=None)
    with pytest.raises(InputError, match="give --feature-set"):
        fetch_release("authors/set", into, feature_set=None, revision=None)
    (hub.packed / "dataset" / "patches_512" / "labels.tar.gz").write_bytes(b"cut")
    with pytest.raises(InputError, match=r"labels\.tar\.gz cannot be unpacked"):
        fetch_release("authors/set", into, feature_set="features_UNI", revision=None)


def test_without_the_hubs_package(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match="huggingface_hub is not installed"):
        fetch_release("authors/set", tmp_path, feature_set="features_UNI", revision=None)


def test_the_command_prints_a_table_for_people(tmp_path: Path, capsys) -> None:
    bags = {
        "normal_001": (0, np.zeros(2)),
        "tumor_001": (1, np.ones(2)),
        "test_001": (1, np.ones(2)),
    }
    write_processed(tmp_path / "patches_512", bags)
    assert main(["dataset", "camelyon16", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "train tumor                                    1" in output
    assert "note: 3 of the 399 slides" in output and "dataset.json" in output
    command = [
        "dataset",
        "camelyon16",
        str(tmp_path),
        "--fetch",
        "a/b",
        "--out",
        str(tmp_path / "o"),
    ]
    for wrong, words in (
        (command, "give no folder"),
        (["dataset", "camelyon16", "--out", str(tmp_path / "o")], "no folder is given"),
        (["dataset", "panda", str(tmp_path / "no"), "--out", "o"], "there is no folder"),
        (["dataset", "table", str(tmp_path), "--share", "1.5", "--out", "o"], "share is 1.5"),
    ):
        assert main(wrong) == 2
        assert words in capsys.readouterr().err
