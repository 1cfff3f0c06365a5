"""Predictions on disk: round trips, atomic writing, and files that cannot be read."""

import csv
import json
from dataclasses import fields, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import probsa
from probsa.errors import BagError, InputError, OutputExists, TableError, UnknownName
from probsa.evaluation import tables
from probsa.evaluation.prediction import Prediction
from probsa.evaluation.tables import (
    read_instances,
    read_predictions,
    write_instances,
    write_predictions,
)


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


def test_a_round_trip_preserves_everything(tmp_path):
    predictions = [
        _prediction("007", probability=(0.1,), kind="ct", score_kind="weight"),
        _prediction("img 1.b", probability=(np.float32(1) / 3,), seed=1, instance_labels=None),
        _prediction("é", probability=(0.9,), seed=2, coords=None, stride=None, n=1),
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
    assert read.bags == ("007", "img 1.b", "é")
    assert read.labels == (0, None, 1)
    assert read.parts == ("test", "new", "val")
    assert read.classes == ("0", "1")
    assert read.threshold == 0.75
    assert read.metadata == {"model": "abmil", "epoch": 3}
    assert read.probability.shape == (3, 1)
    for p in predictions:
        _same(read.instances(p.name), p)


def test_columns_of_one_logit_and_of_classes(tmp_path):
    _write(tmp_path / "one", [_prediction("a")])
    assert _rows(tmp_path / "one")[0] == ["bag", "part", "label", "prediction", "p_1", "sd_1"]
    assert _rows(tmp_path / "one")[1] == ["a", "new", "", "0", "0.25", "0.1"]
    _write(tmp_path / "named", [_prediction("a")], classes=("normal", "tumour"))
    assert _rows(tmp_path / "named")[0][-2:] == ["p_tumour", "sd_tumour"]
    three = [
        _prediction("a", probability=(0.25, 0.25, 0.5)),
        _prediction("b", probability=(1, 0, 0)),
    ]
    _write(tmp_path / "three", three, classes=("x", "y", "z"))
    header, a, b = _rows(tmp_path / "three")
    assert header[4:] == ["p_x", "p_y", "p_z", "sd_x", "sd_y", "sd_z"]
    assert (a[3], b[3]) == ("2", "0")
    assert read_predictions(tmp_path / "three").probability.tolist() == [
        [0.25, 0.25, 0.5],
        [1, 0, 0],
    ]


@pytest.mark.parametrize(
    ("threshold", "called"), [(None, "011"), (0.7, "001"), (0.25, "111"), (0.250001, "011")]
)
def test_a_bag_is_positive_from_the_threshold_on(tmp_path, threshold, called):
    bags = [_prediction(str(p), probability=(p,)) for p in (0.25, 0.5, 0.7)]
    _write(tmp_path / "p", bags, threshold=threshold)
    assert "".join(row[3] for row in _rows(tmp_path / "p")[1:]) == called


def test_two_columns_follow_the_threshold_where_there_is_one(tmp_path):
    bags = [_prediction("a", probability=(0.6, 0.4))]
    _write(tmp_path / "argmax", bags)
    _write(tmp_path / "chosen", bags, threshold=0.3)
    assert _rows(tmp_path / "argmax")[1][3] == "0"
    assert _rows(tmp_path / "chosen")[1][3] == "1"


def test_contents_of_instance_files(tmp_path):
    p = _prediction("a", n=4)
    write_instances(tmp_path / "a.h5", p)
    with h5py.File(tmp_path / "a.h5") as f:
        assert dict(f.attrs) == {
            "name": "a",
            "score_kind": "logit",
            "kind": "slide",
            "pitch": 512.0,
            "probsa_version": probsa.__version__,
        }
        assert sorted(f) == (
            [
                "attention_mean",
                "attention_variance",
                "coords",
                "degree",
                "instance_labels",
                "weight_mean",
                "weight_variance",
            ]
        )
        np.testing.assert_array_equal(f["attention_variance"][()], p.attention_variance)
    empty = np.empty(0, dtype=np.float32)
    _same(read_instances(tmp_path / "a.h5"), replace(p, probability=empty, std=empty))


def test_a_round_trip_preserves_one_attention_per_class(tmp_path):
    mean = np.arange(10, dtype=np.float32).reshape(5, 2)
    write_instances(tmp_path / "a.h5", _prediction("a", attention_mean=mean))
    np.testing.assert_array_equal(read_instances(tmp_path / "a.h5").attention_mean, mean)


# Atomic writing


def test_instances_are_written_one_by_one(tmp_path):
    def predict():
        for i in range(3):
            written = sorted(p.name for p in tmp_path.glob(".p.*/instances/*"))
            assert written == [f"{k}.h5" for k in range(i)]
            assert not (tmp_path / "p").exists()
            yield _prediction(str(i))

    _write(tmp_path / "p", predict())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p"]


def test_nothing_is_left_when_prediction_fails_midway(tmp_path):
    def predict():
        yield _prediction("a")
        yield _prediction("b")
        raise BagError("bag 'c' is damaged")

    with pytest.raises(BagError, match="'c' is damaged"):
        _write(tmp_path / "p", predict())
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_keeps_the_old_predictions(tmp_path):
    _write(tmp_path / "p", [_prediction("old")])

    def predict():
        yield _prediction("new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "p", predict(), overwrite=True)
    assert read_predictions(tmp_path / "p").bags == ("old",)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
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
    with pytest.raises(OSError, match="no space left"):
        _write(tmp_path / "p", [_prediction("new")], overwrite=True)
    assert read_predictions(tmp_path / "p").bags == ("old",)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_a_folder_in_use_is_refused(tmp_path):
    _write(tmp_path / "p", [_prediction("old")])
    with pytest.raises(OutputExists, match="exists and is not empty: give a new folder or --over"):
        _write(tmp_path / "p", [_prediction("new")])
    (tmp_path / "p" / "thesis.txt").write_text("years of work")
    with pytest.raises(
        OutputExists, match=r"contains 'thesis\.txt', which does not belong to predictions"
    ):
        _write(tmp_path / "p", [_prediction("new")], overwrite=True)
    assert (tmp_path / "p" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputExists, match="is a file"):
        _write(tmp_path / "file", [_prediction("new")])
    (tmp_path / "empty").mkdir()
    _write(tmp_path / "empty", [_prediction("new")])
    assert read_predictions(tmp_path / "empty").bags == ("new",)


@pytest.mark.parametrize(
    ("bags", "error", "message"),
    [
        (["a", "a"], BagError, "two bags are named 'a'"),
        (["../a"], BagError, "bag '../a' cannot be a file name"),
        ([".."], BagError, "cannot be a file name"),
        ([], InputError, "there are no predictions to write"),
    ],
)
def test_bags_that_cannot_be_written(tmp_path, bags, error, message):
    with pytest.raises(error, match=message):
        _write(tmp_path / "p", [_prediction(b) for b in bags])
    assert list(tmp_path.iterdir()) == []


def test_probabilities_that_cannot_be_written(tmp_path):
    with pytest.raises(BagError, match="bag 'a' has the probability nan, expected 0 to 1"):
        _write(tmp_path / "p", [_prediction("a", probability=(np.nan,))])
    with pytest.raises(InputError, match="'a' has 3 probabilities, but there are 2 classes"):
        _write(tmp_path / "p", [_prediction("a", probability=(0.2, 0.3, 0.5))])
    with pytest.raises(InputError, match="'a' has 1 probabilities, but there are 3 classes"):
        _write(tmp_path / "p", [_prediction("a")], classes=("x", "y", "z"))


# Files that cannot be read


@pytest.fixture
def folder(tmp_path):
    _write(tmp_path / "p", [_prediction("a"), _prediction("b")], labels={"a": 1})
    return tmp_path / "p"


def test_no_folder_and_no_table(tmp_path):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        read_predictions(tmp_path / "nowhere")
    with pytest.raises(TableError, match=r"has no predictions\.csv"):
        read_predictions(tmp_path)


WHOLE = "bag,part,label,prediction,p_1,sd_1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("bag,label\na,1\n", "no column 'p_<class>': it has bag, label"),
        ("bag,label,p_1\na,1,.5\n", "no column 'sd_1'"),
        ("label,p_1,sd_1\n1,.5,0\n", "no column 'bag'"),
        ("bag,label,p_1,sd_1\na,1,.5,0\n", "no column 'part'"),
        (
            WHOLE + "a,test,1,1,.5,0\na,test,1,1,.5,0\n",
            "bag 'a' has an empty name, or more than one row",
        ),
        (WHOLE + ",test,1,1,.5,0\n", "bag '' has an empty name"),
        (WHOLE + "a,test,yes,1,.5,0\n", "bag 'a': label 'yes' is not a class number"),
        (WHOLE + "a,test,1,1,nan,0\n", "bag 'a': p_1 is 'nan', expected 0 to 1"),
        (WHOLE + "a,test,1,1,.5,\n", "bag 'a': sd_1 is '', expected 0 to 1"),
        (WHOLE.replace("_1", "_x") + "a,test,1,1,.5,0\n", "probabilities of x, but predictions"),
    ],
)
def test_tables_that_cannot_be_used(folder, text, message):
    (folder / "predictions.csv").write_text(text)
    with pytest.raises(TableError, match="predictions.csv.*" + message.replace("<", ".")):
        read_predictions(folder)


@pytest.mark.parametrize("key", ["threshold", "classes"])
def test_metadata_without_a_key_are_refused(folder, key):
    file = folder / "predictions.json"
    stored = json.loads(file.read_text())
    del stored[key]
    file.write_text(json.dumps(stored))
    with pytest.raises(InputError, match=rf"predictions\.json has no key '{key}'"):
        read_predictions(folder)


def test_a_bare_table_is_enough(folder):
    (folder / "predictions.json").unlink()
    (folder / "predictions.csv").write_text("bag,p_1,sd_1\na,0.5,0\n")
    read = read_predictions(folder)
    assert (read.labels, read.parts, read.classes) == ((None,), ("new",), ("1",))
    assert read.threshold is None


def test_damaged_json(folder):
    (folder / "predictions.json").write_text('{"threshold": 0.')
    with pytest.raises(InputError, match=r"predictions\.json is damaged: it is not JSON"):
        read_predictions(folder)
    (folder / "predictions.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match="is a list"):
        read_predictions(folder)


def test_instances_that_cannot_be_read(folder):
    read = read_predictions(folder)
    with pytest.raises(UnknownName, match=r"no predicted bag named 'aa'\. Did you mean 'a'"):
        read.instances("aa")
    path = read.instance_path("a")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BagError, match=r"a\.h5 cannot be read as HDF5"):
        read.instances("a")
    path.unlink()
    with pytest.raises(BagError, match=r"no per-instance outputs at .*a\.h5"):
        read.instances("a")
    with h5py.File(path, "w") as f:
        f["features"] = np.zeros((3, 2))
    with pytest.raises(
        BagError, match=r"is not a file of predictions: it lacks attention_mean, .* it has features"
    ):
        read.instances("a")
    with h5py.File(read.instance_path("b"), "a") as f:
        del f["degree"]
        f["degree"] = np.zeros(4)
    with pytest.raises(BagError, match=r"degree has shape \(4,\), but attention_mean has 5 rows"):
        read.instances("b")


def test_scores_of_maps_are_stored_where_a_model_has_them(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "class_score": rng.random((5, 3)).astype(np.float32),
        "contribution": rng.random((5, 3)).astype(np.float32),
        "leave_one_out": rng.random((5, 3)).astype(np.float32),
        "probability_positive": rng.random(5).astype(np.float32),
    }
    for p in (_prediction(), _prediction(score_kind="evidence", **columns)):
        write_instances(tmp_path / "a.h5", p)
        read = read_instances(tmp_path / "a.h5")
        _same(replace(read, probability=p.probability, std=p.std), p)
    with h5py.File(tmp_path / "a.h5") as f:
        assert set(columns) <= set(f)


@pytest.mark.parametrize("name", ["a:b", "why?", "end.", "end "])
def test_a_name_that_windows_cannot_store_is_refused_there(tmp_path, monkeypatch, name):
    _write(tmp_path / "here", [_prediction(name)])
    monkeypatch.setattr(tables, "WINDOWS", True)
    with pytest.raises(BagError, match="on Windows"):
        _write(tmp_path / "there", [_prediction(name)])


def test_two_names_that_a_disk_takes_for_one_are_refused(tmp_path, monkeypatch):
    """As on macOS and Windows, where `A.h5` and `a.h5` are one file."""
    monkeypatch.setattr(tables, "_file_name", str.lower)
    with pytest.raises(BagError, match="'A' has the file name of another bag"):
        _write(tmp_path / "p", [_prediction("a"), _prediction("A", seed=1)])
    assert not (tmp_path / "p").exists()
