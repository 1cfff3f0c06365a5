"""A row of the leaderboard: how it is made from predictions, and which files are refused."""

import json

import h5py
import numpy as np
import pytest
from support.leaderboards import BAGS, GROUPS, SOME_LABELS, Y, run_of, write_experiment, write_row

from probsa.core import write_csv
from probsa.errors import InputError
from probsa.evaluation import read_submission, submit


@pytest.fixture
def row(tmp_path):
    """A row of the first method of an experiment."""
    write_experiment(tmp_path, seeds=1)
    write_row(tmp_path, tmp_path / "row.json")
    return tmp_path / "row.json"


def test_wrong_predictions_are_refused(tmp_path):
    write_experiment(tmp_path, seeds=1)
    row = tmp_path / "row.json"
    prepared = write_row(tmp_path, row)
    predictions, new = run_of(tmp_path, 0), tmp_path / "new.json"
    with pytest.raises(InputError, match="already in replicate 0"):
        submit(predictions, row, folder=prepared, method="theirs")
    with pytest.raises(InputError, match="is the row of 'theirs', not of 'mine'"):
        submit(predictions, row, folder=prepared, method="mine")
    with pytest.raises(InputError, match="does not name its model"):
        submit(predictions, new, folder=prepared)
    with pytest.raises(InputError, match="is not a set of LocalMIL"):
        submit(predictions, new, folder=tmp_path, method="a")
    rows = [{"bag": b, "label": 1 - Y[b], "fold": 0} for b in BAGS]
    write_csv(prepared / "labels.csv", ["bag", "label", "fold"], rows)
    with pytest.raises(InputError, match=r"bag 'f0b0' has the label 0 in .*, but 1 in .*labels"):
        submit(predictions, new, folder=prepared, method="a")
    rows = [{"bag": b, "label": Y[b], "fold": 0} for b in BAGS if b != "f0b3"]
    write_csv(prepared / "labels.csv", ["bag", "label", "fold"], rows)
    with pytest.raises(InputError, match=r"bag 'f0b3' .* is not in"):
        submit(predictions, new, folder=prepared, method="a")
    assert not new.exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("instance_labels", [0, 0, 1, 1, 1, *[0] * 7], r"have the label 0 of instance 2, .* has 1"),
        ("features", np.zeros((11, 2), np.float32), "have 12 instances, but the set has 11"),
        ("coords", np.stack([np.arange(12)[::-1]] * 2, 1), "have other coordinates of instances"),
    ],
)
def test_predictions_of_other_instances_are_refused(tmp_path, name, value, message):
    write_experiment(tmp_path, seeds=1)
    prepared = write_row(tmp_path, tmp_path / "row.json")
    with h5py.File(prepared / "features" / "f0b1.h5", "a") as f:
        if name == "features":
            del f["coords"], f["instance_labels"]
        del f[name]
        f[name] = np.asarray(value)
    with pytest.raises(InputError, match=f"bag 'f0b1' in .* {message}.*of the prepared set"):
        submit(run_of(tmp_path, 0), tmp_path / "new.json", folder=prepared, method="a")


def test_instance_labels_are_those_of_the_set(tmp_path):
    write_experiment(tmp_path, seeds=1, labels={})
    write_experiment(tmp_path / "labelled", seeds=1)
    write_row(tmp_path, tmp_path / "row.json")
    write_row(tmp_path / "labelled", tmp_path / "labelled.json")
    assert read_submission(tmp_path / "row.json") == read_submission(tmp_path / "labelled.json")


def test_bags_without_instance_labels_in_the_set_have_no_instance_measures(tmp_path):
    write_experiment(tmp_path, seeds=1, labels=SOME_LABELS)
    write_row(tmp_path, tmp_path / "row.json", labels=SOME_LABELS)
    of_set = read_submission(tmp_path / "row.json").sets["toy"]
    bags = of_set.replicates["0"]
    found = {
        b: (v.n, v.labelled, v.positive, v.measures.average_precision) for b, v in bags.items()
    }
    assert found["f0b0"] == found["f0b1"] == (12, 0, 0, None)
    assert found["f1b1"][:3] == (12, 8, 3) and 0 < found["f1b1"][3] <= 1
    assert bags["f0b1"].group == GROUPS["f0b1"]
    assert of_set.missing("0") is None


def test_rounding_is_no_fault(row):
    given = json.loads(row.read_text())
    measures = given["sets"]["toy"]["replicates"]["0"]["f0b1"]["measures"]
    measures |= {"average_precision": 1.0000000000000002, "faithfulness": -1.0000000000000002}
    row.write_text(json.dumps(given))
    assert read_submission(row).method == "theirs"


def test_an_infinite_count_is_an_error_of_the_file(row):
    row.write_text(row.read_text().replace('"n": 12', '"n": Infinity', 1))
    with pytest.raises(InputError, match=r"is not a row of the leaderboard \(OverflowError"):
        read_submission(row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "is not a row of the leaderboard .ValueError: its format is 'x'"),
        ({"sets": {}}, "has no data set"),
        ({"sets": {"toy": {"fingerprint": "", "replicates": {}}}}, "has no bags of toy"),
        ({"sets": {"toy": {"fingerprint": "", "replicates": {"0": {}}}}}, "has no bags of toy"),
        ({"method": " "}, "has an empty name of the method"),
    ],
)
def test_files_that_are_no_rows_are_refused(row, change, message):
    row.write_text(json.dumps(json.loads(row.read_text()) | change))
    with pytest.raises(InputError, match=message):
        read_submission(row)
