"""Metadata of training bags compared with predicted bags, and slides without features."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from support import foreign
from support.made_slides import tissue, write_cohort, write_slide
from support.stored import write_folder

from probsa.cli import main
from probsa.cohorts import ExtractOptions, WorkFolder, extract_cohort, patch_cohort
from probsa.core import TextTable
from probsa.datasets import EstimatedStride, FeatureMetadata, Metadata, NoCoordinates, open_bags
from probsa.errors import InputError, TableError
from probsa.patches import PatchSettings
from probsa.training import DataConfig, RunConfig, RunFolder, prepare

SLIDES = 6
SIDE = 640
ENCODER = "handcrafted"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A cohort of six slides with tissue, an empty one and a file that is no slide."""
    folder = tmp_path_factory.mktemp("cohort")
    slides = write_cohort(folder / "slides", slides=SLIDES, side=SIDE)
    write_slide(slides / "glass.tiff", tissue(SIDE, SIDE, boxes=[]))
    (slides / "text.svs").write_text("this is no slide\n" * 50)
    patch_cohort(slides, folder / "work", settings=PatchSettings(size=128, mpp=0.5))
    extract_cohort(folder / "work", ExtractOptions(threads=1))
    return folder / "work"


def write_labels(path, names):
    rows = "".join(f"{name},{k % 2}\n" for k, name in enumerate(names))
    path.write_text(f"bag,label\n{rows}")
    return path


def train(work, labels, out, *more):
    given = [
        "train",
        "--features",
        work,
        "--labels",
        labels,
        "--out",
        out,
        "--model",
        "abmil",
        "--model.embed",
        4,
        "--epochs",
        1,
        "--device",
        "cpu",
        "--tensorboard",
        "false",
        "--maps",
        "none",
        *more,
    ]
    return main([str(w) for w in given])


def predict(run, features, out, *more):
    given = ["predict", run, "--features", features, "--out", out, "--device", "cpu", *more]
    return main([str(w) for w in given])


ALL = [*(f"slide{k}" for k in range(SLIDES)), "glass", "text"]


@pytest.fixture(scope="module")
def run(work, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert train(work, write_labels(folder / "labels.csv", ALL), folder / "run") == 0
    return folder / "run"


@pytest.fixture
def copied(work, tmp_path):
    """Copy the features of three slides out of the work folder, so that they can be changed."""
    (tmp_path / "copied").mkdir()
    for k in range(3):
        whole = next(work.glob(f"*/features_*/slide{k}.h5"))
        (tmp_path / "copied" / whole.name).write_bytes(whole.read_bytes())
    return tmp_path / "copied"


def restate(path, **changed):
    """Change attributes of the file (`probsa_…`) or of its coordinates; None removes one."""
    with h5py.File(path, "r+") as f:
        for key, value in changed.items():
            held = f.attrs if key.startswith("probsa_") else f["coords"].attrs
            if value is None:
                del held[key]
            else:
                held[key] = value


def test_a_run_folder_says_what_its_features_are(run, work, tmp_path, monkeypatch):
    held = json.loads(RunFolder(run).features_file.read_text())
    with h5py.File(next(work.glob("*/features_*/slide0.h5"))) as f:
        identity = f.attrs["probsa_encoder"]
    assert identity.startswith(f"{ENCODER}@")
    assert held == {
        "encoders": [identity],
        "kinds": ["slide"],
        "patch_sizes": [128.0],
        "mpps": [0.5],
    }
    assert FeatureMetadata.read(RunFolder(run).features_file) == FeatureMetadata(
        encoders=(identity,), kinds=("slide",), patch_sizes=(128.0,), mpps=(0.5,)
    )
    bags = open_bags(work)
    expected = FeatureMetadata.of(bags, bags.names)
    monkeypatch.setattr(type(bags), "_read", None)
    assert FeatureMetadata.of(open_bags(work), bags.names) == expected
    scans, _ = write_folder(tmp_path, bags=2)
    scans = open_bags(scans)
    assert FeatureMetadata.of(scans, scans.names) == FeatureMetadata(kinds=("ct",))


def test_only_training_bags_count(work, tmp_path):
    """A validation bag with another resolution is not one that the model was trained on."""
    names = ALL[:SLIDES]
    parts = ["train"] * 4 + ["val"] * 2
    rows = [f"{n},{k % 2},{p}" for k, (n, p) in enumerate(zip(names, parts, strict=True))]
    (tmp_path / "labels.csv").write_text("\n".join(["bag,label,split", *rows]) + "\n")
    features = tmp_path / "features"
    features.mkdir()
    for k, name in enumerate(names):
        copy = features / f"{name}.h5"
        copy.write_bytes(next(work.glob(f"*/features_*/{name}.h5")).read_bytes())
        restate(copy, mpp=[0.5, 0.25, 0.25004, 0.5, 1.0, 2.0][k])
    data = DataConfig(features=features, labels=tmp_path / "labels.csv")
    assert prepare(RunConfig(model="abmil", data=data)).feature_metadata.mpps == (0.25, 0.5)


def test_what_is_like_no_training_bag_is_left_out(run, work, tmp_path, capsys):
    changes = {name: changed for name, (changed, _) in OTHER.items()} | ALIKE
    assert predict(run, variants(work, tmp_path / "x", changes), tmp_path / "p") == 1
    failed = {r["bag"]: r["reason"] for r in TextTable.read(tmp_path / "p" / "failed.csv").rows}
    printed = capsys.readouterr().err
    assert set(failed) == set(OTHER)
    for name, (_, facts) in OTHER.items():
        assert failed[name] in printed
        assert all(fact in failed[name] for fact in (*facts, "--other-features"))
    rows = TextTable.read(tmp_path / "p" / "predictions.csv").rows
    assert [r["bag"] for r in rows] == list(ALIKE)
    # what agrees or is not stated is predicted
    assert predict(run, variants(work, tmp_path / "y", ALIKE), tmp_path / "q", "--json") == 0
    assert json.loads(capsys.readouterr().out)["failed"] == []


def test_other_features_are_predicted_when_asked_for(run, copied, tmp_path, capsys):
    restate(copied / "slide1.h5", mpp=1.0)
    assert predict(run, copied, tmp_path / "p", "--other-features") == 0
    assert "'slide1'" in capsys.readouterr().err
    assert not (tmp_path / "p" / "failed.csv").exists()
    there = {r["bag"]: r for r in TextTable.read(tmp_path / "p" / "predictions.csv").rows}
    assert sorted(there) == ["slide0", "slide1", "slide2"]
    # the metadata do not change the predictions
    restate(copied / "slide1.h5", mpp=0.5)
    assert predict(run, copied, tmp_path / "same", "--other-features", "--json") == 0
    assert json.loads(capsys.readouterr().out)["other_features"] == []
    again = {r["bag"]: r for r in TextTable.read(tmp_path / "same" / "predictions.csv").rows}
    assert again == there


def variants(work, folder, changes):
    """Copy a slide of the work folder under the names of changes, each with its own metadata."""
    folder.mkdir()
    whole = next(work.glob("*/features_*/slide1.h5"))
    for name, changed in changes.items():
        (folder / f"{name}.h5").write_bytes(whole.read_bytes())
        restate(folder / f"{name}.h5", **changed)
    return folder


OTHER = {
    "encoder": ({"probsa_encoder": "resnet50@00ff"}, ["resnet50@00ff", "--encoder handcrafted"]),
    "weights": ({"probsa_encoder": "handcrafted@00ff"}, ["handcrafted@00ff"]),
    "kind": ({"probsa_kind": "ct"}, ["scan", "slide"]),
    "coarser": ({"mpp": 0.53}, ["0.53", "--mpp 0.5"]),
    "finer": ({"mpp": 0.47}, ["0.47", "--mpp 0.5"]),
    "size": ({"patch_size": 256}, ["256", "--patch-size 128"]),
}
"""Stated otherwise than by the training bags, and what the reason names."""


ALIKE = {
    "a": {"mpp": 0.52},
    "b": {"mpp": 0.48},
    "c": {"mpp": None, "patch_size": None},
    "d": {"mpp": "None", "patch_size": "None"},
    "e": {"probsa_encoder": None},
    "f": {"probsa_encoder": "handcrafted"},  # from another tool, which does not state the weights
}


def test_a_run_without_the_file_compares_nothing_and_a_resumed_one_writes_it(
    work, copied, tmp_path, capsys
):
    labels = write_labels(tmp_path / "labels.csv", ALL[:SLIDES])
    assert train(work, labels, tmp_path / "run") == 0
    file = RunFolder(tmp_path / "run").features_file
    stated = file.read_bytes()
    restate(copied / "slide1.h5", mpp=1.0)
    file.unlink()
    assert predict(tmp_path / "run", copied, tmp_path / "p") == 0
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--maps", "none"]) == 0
    assert file.read_bytes() == stated
    assert predict(tmp_path / "run", copied, tmp_path / "p", "--overwrite") == 1
    file.write_text('{"mpps": 3}')
    capsys.readouterr()
    assert predict(tmp_path / "run", copied, tmp_path / "p", "--overwrite") == 2
    assert "features.json" in capsys.readouterr().err


def test_where_nothing_can_be_predicted_nothing_is_written(run, work, tmp_path, capsys):
    """If every bag would be left out, the command states the reason."""
    other = variants(work, tmp_path / "x", {f"b{k}": {"mpp": 1.0} for k in range(3)})
    assert predict(run, other, tmp_path / "p", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert all(fact in error for fact in (str(other), "'b0'", "0.5"))
    assert not (tmp_path / "p").exists()
    assert predict(run, other, tmp_path / "p", "--json", "--other-features") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bags"] == len(answer["other_features"]) == 3 and answer["failed"] == []


@pytest.fixture
def own(work, tmp_path):
    """A copy of the work folder, which a test may change."""
    return Path(shutil.copytree(work, tmp_path / "work"))


def test_what_metadata_say_and_do_not(tmp_path):
    def of(make, **more):
        bags = open_bags(make(tmp_path / f"{make.__name__}", foreign.slide(), **more))
        return FeatureMetadata.of(bags, bags.names)

    clam = of(foreign.clam)
    trident = of(foreign.trident)
    stamp = of(foreign.stamp)
    assert {s.kinds for s in (clam, trident, stamp, of(foreign.slideflow))} == {("slide",)}
    assert of(foreign.torchmil) == FeatureMetadata(
        kinds=("slide",)
    )  # its encoder is the name of a folder
    assert trident.encoders == ("uni_v1",)
    assert (stamp.patch_sizes, stamp.mpps) == ((224.0,), (round(256 / 224, 4),))
    assert len(stamp.encoders) == 1
    assert trident.difference(Metadata(encoder="uni_v1@00ff", kind="slide")) is None
    stated = FeatureMetadata(encoders=("train",))
    guess = Metadata(encoder="test", encoder_guessed=True)
    assert stated.difference(guess) is None
    assert stated.difference(replace(guess, encoder_guessed=False)) is not None
    stated = FeatureMetadata(mpps=(0.22, 0.23, 0.24, 0.25), patch_sizes=(224.0, 256.0))
    assert stated.difference(Metadata(mpp=0.26, patch_size=256.0)) is None
    difference = stated.difference(Metadata(mpp=0.5, patch_size=300.0)) or ""
    for fact in ("0.22", "300", "224", "--mpp 0.25", "--patch-size 256"):
        assert fact in difference


def test_features_train_and_features_test_are_one_encoder(run, copied, tmp_path):
    """Folders with names that the user chose, with files that do not state an encoder."""
    for folder in ("features_train", "features_test"):
        (tmp_path / folder).mkdir()
        for path in copied.iterdir():
            copy = tmp_path / folder / path.name
            copy.write_bytes(path.read_bytes())
            restate(copy, probsa_encoder=None)
    train_bags, test_bags = (open_bags(tmp_path / f"features_{p}") for p in ("train", "test"))
    assert train_bags.metadata("slide0").encoder == "train"  # the name that convert would use
    stated = FeatureMetadata.of(train_bags, train_bags.names)
    assert stated.encoders == () and stated.patch_sizes == (128.0,)
    assert [stated.difference(test_bags.metadata(n)) for n in test_bags.names] == [None] * 3


def test_slides_without_features_leave_the_table(run, work, tmp_path, capsys):
    labels = write_labels(tmp_path / "labels.csv", ALL)
    assert train(work, labels, tmp_path / "run") == 0
    errors = capsys.readouterr().err
    assert "'glass'" in errors and "'text'" in errors
    notes = json.loads(RunFolder(tmp_path / "run").notes_file.read_text())
    assert {bag: note["kind"] for bag, (note,) in notes.items()} == {
        "glass": "left_out",
        "text": "left_out",
    }
    records = {r.name: r for p in WorkFolder(work).sets().values() for r in p.records()}
    assert records["text"].reason and records["text"].reason in notes["text"][0]["reason"]
    split = json.loads(RunFolder(tmp_path / "run").split_file.read_text())
    assert sorted([*split["train"], *split["val"], *split["test"]]) == ALL[:SLIDES]


def config(work: Path, labels: Path, **more) -> RunConfig:
    return RunConfig(model="abmil", data=DataConfig(features=work, labels=labels, **more))


def test_remarks_on_bags_do_not_depend_on_how_often_a_run_was_resumed(work, tmp_path):
    """Notes from before a kill are kept, in the order of the names and not of reading."""
    prepared = prepare(config(work, write_labels(tmp_path / "labels.csv", ALL)))
    folder = RunFolder(tmp_path / "run")
    first = dict(prepared.bags.notes)
    prepared.bags.notes["slide2"] = (NoCoordinates(),)
    prepared.bags.notes["slide1"] = (EstimatedStride(stride=8.0),)
    prepared.write(folder)
    again = prepare(config(work, tmp_path / "labels.csv"))  # every epoch is done, so no bag is read
    again.write(folder)
    notes = json.loads(folder.notes_file.read_text())
    assert list(notes) == sorted([*first, "slide1", "slide2"])
    assert notes["slide2"][0]["kind"] == "no_coordinates"


def test_a_failed_extraction_leaves_the_table_too(own, tmp_path):
    work = own
    (lost,) = work.glob("*/features_*/slide3.h5")
    lost.unlink()
    labels = write_labels(tmp_path / "labels.csv", ALL[:SLIDES])
    with pytest.raises(TableError, match=r"'slide3'; line 5") as refused:
        prepare(config(work, labels))
    # it was patched and did not fail, so its features should be there
    assert str(lost.parent.parent / "patch.csv") in str(refused.value)
    record = lost.parent.parent / "records" / lost.parent.name / "slide3.json"
    held = json.loads(record.read_text())
    record.write_text(json.dumps(held | {"status": "failed", "reason": "out of memory"}))
    prepared = prepare(config(work, labels))
    assert prepared.left_out == ("slide3",)
    (note,) = prepared.bags.notes["slide3"]
    assert note.kind == "left_out" and "out of memory" in note.text
    assert "slide3" not in prepared.table.bags and len(prepared.table.bags) == SLIDES - 1


def test_slides_that_wait_for_extraction_are_named_when_predicting(run, own, tmp_path, capsys):
    for name in ("slide1", "slide3"):
        (lost,) = own.glob(f"*/features_*/{name}.h5")
        lost.unlink()
    assert predict(run, own, tmp_path / "preds", "--json") == 0
    assert json.loads(capsys.readouterr().out)["without_features"] == ["slide1", "slide3"]
    # slides that could not be patched are no slides that wait
    rows = (tmp_path / "preds" / "predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + SLIDES - 2


def test_labels_without_a_bag_are_refused(work, tmp_path, copied):
    labels = write_labels(tmp_path / "labels.csv", [*ALL, "slide9"])
    with pytest.raises(TableError, match=r"'slide9'") as refused:
        prepare(config(work, labels))
    assert str(next(work.glob("*/patch.csv"))) in str(refused.value)
    labels = write_labels(tmp_path / "labels.csv", ["slide0", "slide1", "slide2", "glass"])
    with pytest.raises(TableError, match="'glass'") as refused:
        prepare(config(copied, labels))
    assert "patch.csv" not in str(refused.value)


def test_a_split_may_name_slides_that_are_left_out(work, tmp_path):
    labels = write_labels(tmp_path / "labels.csv", ALL)
    parts = [
        ("slide0", "slide4", "slide5"),
        ("slide1", "glass", "text"),
        ("slide2", "", ""),
        ("slide3", "", ""),
    ]
    rows = [",".join([str(k), *row]) for k, row in enumerate(parts)]
    (tmp_path / "splits_0.csv").write_text("\n".join([",train,val,test", *rows]) + "\n")
    split = prepare(config(work, labels, split=tmp_path / "splits_0.csv")).split
    assert split.train == ("slide0", "slide1", "slide2", "slide3")
    assert (split.val, split.test) == (("slide4",), ("slide5",))
    (tmp_path / "splits_0.csv").write_text(",train,val,test\n0,glass,slide4,slide5\n")
    with pytest.raises(TableError):
        prepare(config(work, labels, split=tmp_path / "splits_0.csv"))


def test_a_run_does_not_go_on_without_one_of_its_bags(own, tmp_path):
    work = own
    labels = write_labels(tmp_path / "labels.csv", ALL[:SLIDES])
    assert train(work, labels, tmp_path / "run") == 0
    (folder,) = work.glob("*/features_*/")
    (folder / "slide3.h5").unlink()
    record = folder.parent / "records" / folder.name / "slide3.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "failed"}))
    with pytest.raises(InputError, match="'slide3'"):
        prepare(RunFolder(tmp_path / "run").config(), previous=tmp_path / "run")
