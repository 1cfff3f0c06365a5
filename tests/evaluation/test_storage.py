"""Predictions on disk: round trips, atomic writing, and files that cannot be read."""

import csv
import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from support.refusals import refused

import probsa
from probsa.core import NO_OUTPUTS, Outputs, files, note_written
from probsa.errors import BagError, InputError, OutputExists, TableError, UnknownName
from probsa.evaluation import (
    Prediction,
    PredictionsMetadata,
    read_predictions,
    stated_of,
    storage,
    write_predictions,
)
from probsa.evaluation.storage import read_instances, write_instances
from probsa.statistics import Threshold


def _prediction(name="a", *, probability=(0.25,), n=5, seed=0, **other):
    rng = np.random.default_rng(seed)
    values = {
        k: rng.random(n).astype(np.float32)
        for k in ("attention_mean", "attention_variance", "weight_mean", "weight_variance")
    }
    given = {
        "probability": np.array(probability, dtype=np.float32),
        "std": np.full(len(probability), 0.1, dtype=np.float32),
        "coords": rng.integers(0, 9999, size=(n, 2)),
        "degree": rng.integers(0, 8, size=n).astype(np.float32),
        "stride": 512.0,
        "instance_labels": rng.integers(-1, 2, size=n).astype(np.int8),
    }
    return Prediction(name=name, **(values | given | other))


_number = partial(_prediction, task="regression", outputs=Outputs(("mean",)))


def _write(folder, predictions, *, classes=("0", "1"), **other):
    given = {"labels": {}, "parts": {}, "threshold": None, "metadata": {}}
    write_predictions(folder, predictions, classes=classes, **(given | other))


def _rows(folder):
    with (folder / "predictions.csv").open(newline="") as f:
        return list(csv.reader(f))


def _same(a: Prediction, b: Prediction) -> None:
    for field in fields(Prediction):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=field.name)
            assert left.dtype == right.dtype, field.name
        else:
            assert left == right, field.name


@pytest.mark.parametrize("parts", [(), ("within", "between")])
def test_a_round_trip_preserves_everything(tmp_path, parts):
    """With the parts of the variance where there are several members, and arrays of classes."""
    of_classes = np.random.default_rng(0).random((5, 3)).astype(np.float32)
    keys = ("attention_mean", "class_score", "contribution", "leave_one_out", "at_least")
    more = dict.fromkeys(keys, of_classes) | {"probability_positive": of_classes[:, 0]}
    predictions = [
        _prediction("007", probability=(0.1,), kind="ct", score_kind="weight"),
        _prediction("img 1.b", probability=(np.float32(1) / 3,), seed=1, instance_labels=None),
        _prediction("é", probability=(0.9,), seed=2, coords=None, stride=None, n=1),
        _prediction("of classes", score_kind="evidence", ood=of_classes[:, 1], **more),
    ]
    for part in parts:
        predictions = [
            replace(p, **{f"std_{part}": p.std / 3, f"variance_{part}": p.degree / 2})
            for p in predictions
        ]
    _write(
        tmp_path / "p",
        iter(predictions),
        labels={"007": 0, "é": 1},
        parts={"007": "test", "é": "val"},
        threshold=0.75,
        metadata={"model": "abmil", "epoch": 3},
    )
    read = read_predictions(tmp_path / "p")
    assert read.bags == ("007", "img 1.b", "é", "of classes")
    assert read.labels == (0, None, 1, None)
    assert read.parts == ("test", "new", "val", "new")
    assert read.classes == ("0", "1")
    assert read.threshold == 0.75
    assert read.metadata == PredictionsMetadata(model="abmil", epoch=3)
    assert read.probability.shape == (4, 1)
    assert _rows(tmp_path / "p")[0][6:] == [f"sd_{part}_1" for part in parts]
    for p in predictions:
        _same(read.instances(p.name), replace(p, stated=stated_of(read)))


@pytest.mark.parametrize(
    ("probability", "classes", "threshold", "called"),
    [
        ((0.25,), "01", None, 0),
        ((0.5,), "01", None, 1),
        ((0.5,), "01", 0.7, 0),
        ((0.7,), "01", 0.7, 1),  # positive from the threshold on
        ((0.25,), "01", 0.25, 1),
        ((0.25,), "01", 0.250001, 0),
        ((0.75,), "nt", None, 1),
        ((0.6, 0.4), "01", None, 0),
        ((0.6, 0.4), "01", 0.3, 1),  # two columns follow a threshold where there is one
        ((0.25, 0.25, 0.5), "xyz", None, 2),
        ((1, 0, 0), "xyz", None, 0),
    ],
)
def test_columns_and_calls_of_one_logit_and_of_classes(
    tmp_path, probability, classes, threshold, called
):
    p = _prediction("a", probability=probability)
    _write(tmp_path / "p", [p], classes=tuple(classes), threshold=threshold)
    names = classes[-len(probability) :]
    header, row = _rows(tmp_path / "p")
    columns = [f"{start}_{name}" for start in ("p", "sd") for name in names]
    assert header == ["bag", "part", "label", "prediction", *columns]
    assert row[:4] == ["a", "new", "", str(called)]
    assert row[4:] == [*map(str, p.probability), *["0.1"] * len(names)]
    assert read_predictions(tmp_path / "p").probability.tolist() == [[*map(float, probability)]]


def test_contents_of_instance_files(tmp_path):
    p = _prediction("a", n=4)
    write_instances(tmp_path / "a.h5", p)
    with h5py.File(tmp_path / "a.h5") as f:
        stated = {"name": "a", "score_kind": "logit", "kind": "slide", "pitch": 512.0}
        assert dict(f.attrs) == stated | {"probsa_version": probsa.__version__}
        arrays = "attention_mean attention_variance coords degree instance_labels weight_mean"
        assert sorted(f) == [*arrays.split(), "weight_variance"]
        np.testing.assert_array_equal(f["attention_variance"][()], p.attention_variance)
    empty = np.empty(0, dtype=np.float32)
    _same(read_instances(tmp_path / "a.h5"), replace(p, probability=empty, std=empty))


def test_instances_are_written_one_by_one(tmp_path):
    def predict():
        for i in range(3):
            written = sorted(p.name for p in tmp_path.glob(".p.*/instances/*"))
            assert written == [f"{k}.h5" for k in range(i)]
            assert not (tmp_path / "p").exists()
            yield _prediction(str(i))

    _write(tmp_path / "p", predict())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p"]


@pytest.mark.parametrize("old", [(), ("old",)])
def test_a_failure_midway_leaves_the_old_predictions_or_nothing(tmp_path, old):
    if old:
        _write(tmp_path / "p", map(_prediction, old))

    def predict():
        yield _prediction("new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "p", predict(), overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["p"] * len(old)
    if old:
        assert read_predictions(tmp_path / "p").bags == old
    _write(tmp_path / "p", [_prediction("new")], overwrite=True)
    assert read_predictions(tmp_path / "p").bags == ("new",)
    assert [p.name for p in (tmp_path / "p" / "instances").iterdir()] == ["new.h5"]
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_old_predictions_are_restored_if_the_new_ones_cannot_replace_them(tmp_path, monkeypatch):
    _write(tmp_path / "p", [_prediction("old")])
    replace_path = Path.replace

    def refuse(self, target):
        if self.suffix == ".tmp" and target == tmp_path / "p":
            raise OSError("no space left on device")
        return replace_path(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    refused(OSError, "no space left", _write, tmp_path / "p", [_prediction("new")], overwrite=True)
    assert read_predictions(tmp_path / "p").bags == ("old",)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_a_folder_in_use_is_refused(tmp_path):
    _write(tmp_path / "p", [_prediction("old")])
    with pytest.raises(OutputExists, match="--overwrite"):
        _write(tmp_path / "p", [_prediction("new")])
    for file in storage.OWN - {"instances", "null_maps"}:  # all that a prediction may write
        (tmp_path / "p" / file).touch()
    with pytest.raises(OutputExists, match=str(tmp_path / "p")):
        _write(tmp_path / "p", [_prediction("new")], overwrite=True)
    for file in (tmp_path / "p").glob("*.*"):
        if file.is_file():
            note_written(file)
    _write(tmp_path / "p", [_prediction("new")], overwrite=True)
    assert len(list((tmp_path / "p").glob("[!.]*"))) == 3
    (tmp_path / "p" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExists, match=r"thesis\.txt"):
        _write(tmp_path / "p", [_prediction("new")], overwrite=True)
    assert (tmp_path / "p" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    refused(OutputExists, str(tmp_path / "file"), _write, tmp_path / "file", [_prediction("new")])
    (tmp_path / "empty").mkdir()
    _write(tmp_path / "empty", [_prediction("new")])
    assert read_predictions(tmp_path / "empty").bags == ("new",)


@pytest.mark.parametrize(
    ("predictions", "error", "message"),
    [
        ([_prediction("a"), _prediction("a")], BagError, "'a'"),
        ([_prediction("../a")], BagError, r"'\.\./a'"),
        ([_prediction("..")], BagError, r"'\.\.'"),
        ([], InputError, "/p$"),
        ([_prediction(probability=(np.nan,))], BagError, "'a': p_1 is 'nan'"),
        ([_prediction(bag_ood=2.0)], BagError, r"'a': ood is '2\.0'"),
        ([_prediction(probability=(0.2, 0.3, 0.5))], InputError, "'a' .* 3 .* 2 classes"),
        ([_number(probability=(np.inf,))], BagError, "'a': mean is 'inf'"),
        ([_number(scores={"nll": np.nan})], BagError, "'a': nll is 'nan'"),
    ],
)
def test_predictions_that_cannot_be_written(tmp_path, predictions, error, message):
    refused(error, message, _write, tmp_path / "p", predictions)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def folder(tmp_path):
    _write(tmp_path / "p", [_prediction("a"), _prediction("b")], labels={"a": 1})
    return tmp_path / "p"


def test_no_folder_and_no_table_and_a_bare_one(tmp_path, folder):
    refused(InputError, "nowhere", read_predictions, tmp_path / "nowhere")
    refused(TableError, r"predictions\.csv", read_predictions, tmp_path)
    (folder / "predictions.json").unlink()
    (folder / "predictions.csv").write_text("bag,p_1,sd_1\na,0.5,0\n")
    read = read_predictions(folder)
    assert (read.labels, read.parts, read.classes) == ((None,), ("new",), ("1",))
    assert read.call_threshold == Threshold(value=0.5, origin="default")


WHOLE = "bag,part,label,prediction,p_1,sd_1\n"
FAR = "bag,part,label,prediction,p_1,sd_1,ood,ood_distance\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bag,label\na,1\n", "'p_<class>' .*'sd_<class>'"),
        ("bag,label,p_1\na,1,.5\n", "'sd_1'"),
        ("label,p_1,sd_1\n1,.5,0\n", "'bag'"),
        ("bag,label,p_1,sd_1\na,1,.5,0\n", "'part'"),
        (WHOLE + 2 * "a,test,1,1,.5,0\n", "line 3: bag 'a' .*line 2"),
        (WHOLE + ",test,1,1,.5,0\n", "line 2: .*'bag'"),
        (WHOLE + "a,test,yes,1,.5,0\n", "bag 'a': label is 'yes'"),
        (WHOLE + "a,test,9,1,.5,0\n", "bag 'a': label is '9'.* 0 to 1"),
        (WHOLE + "a,weird,1,1,.5,0\n", "bag 'a': part is 'weird'"),
        (WHOLE + "a,test,1,1,nan,0\n", "bag 'a': p_1 is 'nan'"),
        (WHOLE + "a,test,1,1,.5,\n", "bag 'a': sd_1 is ''"),
        (FAR + "a,test,1,1,.5,0,1.5,2\n", "bag 'a': ood is '1.5'"),
        (FAR + "a,test,1,1,.5,0,.5,far\n", "bag 'a': ood_distance is 'far'"),
        (WHOLE.replace("_1", "_x") + "a,test,1,1,.5,0\n", " x, .*predictions.json"),
    ],
)
def test_tables_that_cannot_be_used(folder, text, message):
    (folder / "predictions.csv").write_text(text)
    refused(TableError, "predictions.csv.*" + message.replace("<", "."), read_predictions, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: {"classes": ["0", "1"]}, "threshold"),
        (lambda stored: stored | {"task": "regression"}, "outputs"),
        (lambda stored: stored | {"threshold": "x"}, "threshold"),
        (lambda stored: stored | {"classes": [1, 2]}, "classes"),
        (lambda stored: stored | {"kappa": {}}, "kappa"),
        (lambda stored: [1], "a list"),
    ],
)
def test_metadata_that_cannot_be_used(folder, change, message):
    file = folder / "predictions.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    refused(InputError, rf"predictions\.json.*{message}", read_predictions, folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("json", b'{"threshold": 0.'),
        ("csv", b"\xff\xfe"),
        ("csv", WHOLE.encode() + b"../x,a,,1,1,1"),
    ],
)
def test_tables_and_metadata_that_are_damaged(folder, file, content):
    (folder / f"predictions.{file}").write_bytes(content)
    refused(InputError, rf"predictions\.{file}|\.\./x", read_predictions, folder)


def _alter(f, name, data):
    f.pop(name, None)
    f[name] = data


def _only_features(f):
    for k in list(f):
        del f[k]
    f["features"] = np.zeros((3, 2))


def _nothing_stored(f):
    for k in [k for k in f if k != "coords"]:
        del f[k]
        f.create_dataset(k, (10**9,), "f4", chunks=(10**6,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_only_features, "attention_mean, .* features"),
        (lambda f: f.pop("degree"), "degree"),
        (lambda f: _alter(f, "degree", np.zeros(4)), r"degree .*\(4,\).* 5 "),
        (lambda f: _alter(f, "degree", 3.0), r"degree .*\(\)"),
        (lambda f: _alter(f, "degree", np.full(5, np.nan)), "degree"),
        (lambda f: _alter(f, "attention_mean", np.array([b"a"] * 5)), "attention_mean"),
        (lambda f: _alter(f, "coords", np.zeros((5, 3))), r"coords .*\(5, 3\)"),
        (lambda f: _alter(f, "coords", np.full((5, 2), 1e17)), "coords"),
        *(
            (lambda f, k=k, v=v: _alter(f, k, v), rf"{k} ")
            for k, v in {
                "instance_labels": np.zeros((5, 1), int),
                "degree": np.zeros((5, 2)),
                "ood_distance": np.zeros((5, 1)),
                "attention_variance": np.zeros(5, np.longdouble),
                "slide": np.zeros(5),
            }.items()
        ),
        (lambda f: _alter(f, "weight_mean", np.zeros((5, 3))), r"weight_mean .*\(5, 3\)"),
        (lambda f: f.attrs.update({"name": "../../x"}), "name is '../../x'"),
        (lambda f: f.attrs.update({"name": np.arange(3)}), "name"),
        (lambda f: f.attrs.update({"score_kind": "beauty"}), "score_kind is 'beauty'"),
        (lambda f: f.attrs.update({"kind": 3}), "kind"),
        (lambda f: f.attrs.update({"slides": ["x"]}), "slides .*'x'"),
        (_nothing_stored, "nothing is stored|would take"),
    ],
)
def test_instances_that_cannot_be_read(folder, change, message):
    read = read_predictions(folder)
    with h5py.File(read.instance_path("a"), "a") as f:
        change(f)
    refused(BagError, rf"a\.h5.*{message}", read.instances, "a")


def test_instances_that_are_no_file_of_instances(folder):
    read = read_predictions(folder)
    refused(UnknownName, r"'aa'.* 'a'", read.instances, "aa")
    path = read.instance_path("a")
    path.write_bytes(path.read_bytes()[:1000])
    refused(BagError, r"a\.h5", read.instances, "a")
    path.unlink()
    refused(BagError, r"a\.h5", read.instances, "a")


@pytest.mark.parametrize("name", ["a:b", "why?", "end.", "end "])
def test_a_name_that_windows_cannot_store_is_refused_there(tmp_path, monkeypatch, name):
    _write(tmp_path / "here", [_prediction(name)])
    monkeypatch.setattr(files, "WINDOWS", True)
    refused(BagError, "on Windows", _write, tmp_path / "there", [_prediction(name)])


def test_two_names_that_a_disk_takes_for_one_are_refused(tmp_path, monkeypatch):
    """As on macOS and Windows, where `A.h5` and `a.h5` are one file."""
    monkeypatch.setattr(files, "check_file_name", str.lower)
    with pytest.raises(BagError, match="'A'"):
        _write(tmp_path / "p", [_prediction("a"), _prediction("A", seed=1)])
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("classes", "task", "outputs"),
    [
        (("0", "1"), "binary", NO_OUTPUTS),
        (("a", "b", "c"), "multiclass", NO_OUTPUTS),
        (("a", "b", "c"), "multilabel", Outputs(("a", "b", "c"))),
        ((), "regression", Outputs.of_number((0.05, 0.95))),
    ],
)
def test_bags_have_the_columns_of_predictions_csv(tmp_path, classes, task, outputs):
    width = len(outputs) or (1 if len(classes) == 2 else 3)
    given = {"task": task, "outputs": outputs, "bag_ood": 0.5, "bag_ood_distance": 2.0}
    p = [_prediction(f"b{k}", probability=np.full(width, (4 + k) / 16), **given) for k in range(3)]
    if task == "regression":
        p[0] = replace(p[0], group="p")  # the others are their own groups
    labels = {"multilabel": (1.0, 0.0, np.nan), "regression": 2.5}.get(task, 1)
    _write(
        tmp_path / "p",
        p,
        classes=classes,
        labels={"b0": labels, "b2": labels},
        parts={"b1": "val"},
        threshold=0.3 if task == "binary" else None,
    )
    read = read_predictions(tmp_path / "p")
    frame = read.to_frame()
    columns = {"label": "Int64"} if task != "regression" else {}
    table = pd.read_csv(tmp_path / "p" / "predictions.csv", dtype=columns)
    calls = frame.pop("call")
    if "group" in table:
        table["group"] = table["group"].fillna(table["bag"])
    assert [*table.columns] == [*frame.columns]
    pd.testing.assert_frame_equal(frame, table)
    if task == "binary":
        assert calls.tolist() == ["0", "1", "1"] and frame["prediction"].tolist() == [0, 1, 1]
    assert frame.filter(like="label").isna().all(axis=1).tolist() == [False, True, False]
    assert read.task == task and read.outputs == outputs
    assert read.group_of == ({"b0": "p", "b1": "b1", "b2": "b2"} if p[0].group else {})


def test_instances_have_every_array():
    p = _prediction("b", n=3, class_score=np.eye(3, 2, dtype=np.float32), ood=np.zeros(3))
    frame = p.to_frame()
    assert frame["bag"].tolist() == ["b"] * 3
    assert frame[["x", "y"]].to_numpy().tolist() == p.coords.tolist()
    assert (frame[["class_score_0", "class_score_1"]].to_numpy() == p.class_score).all()
    assert (frame["attention_variance"] == p.attention_variance).all() and "ood" in frame
    evidence = replace(p, score_kind="evidence").to_frame()
    assert evidence["evidence_mean"].tolist() == p.attention_mean.tolist()
    assert "evidence_variance" in evidence and not any("attention" in c for c in evidence)
    slices = replace(p, coords=np.arange(3)[:, None])
    assert slices.to_frame()["position"].tolist() == [0, 1, 2]
