"""Data frames against the files and arrays that they are made of."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from probsa.benchmark.tables.formats import to_csv
from probsa.benchmark.tables.table import Column, ResultTable, TableCell
from probsa.evaluation import Prediction, Report, read_predictions, write_predictions
from probsa.statistics import Metric

G = np.random.default_rng(0)


def prediction(name: str, *, n: int = 3, classes: int = 1, **more) -> Prediction:
    def draw(*shape):
        return G.random(shape).astype(np.float32)

    p = draw(classes)
    return Prediction(
        name=name, probability=p / max(p.sum(), 1), std=draw(classes),
        coords=np.arange(2 * n).reshape(n, 2), attention_mean=draw(n), attention_variance=draw(n),
        weight_mean=draw(n), weight_variance=draw(n), degree=draw(n), **more,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [1, 3])
def test_bags_have_the_columns_of_predictions_csv(classes, tmp_path):
    names = ("0", "1") if classes == 1 else ("a", "b", "c")
    of_bags = [prediction(f"b{k}", classes=classes) for k in range(3)]
    write_predictions(
        tmp_path / "p", of_bags, labels={"b0": 1, "b2": 0}, parts={"b1": "test"}, classes=names,
        threshold=None, metadata={},
    )  # fmt: skip
    frame = read_predictions(tmp_path / "p").to_frame()
    table = pandas.read_csv(tmp_path / "p" / "predictions.csv", dtype={"label": "Int64"})
    assert [*table.columns.drop("prediction")] == [*frame.columns]
    pandas.testing.assert_frame_equal(frame, table.drop(columns="prediction"))
    assert frame["label"].isna().tolist() == [False, True, False]


def test_instances_have_every_array():
    p = prediction("b", class_score=G.random((3, 2)).astype(np.float32), ood=np.zeros(3))
    frame = p.to_frame()
    assert frame["bag"].tolist() == ["b"] * 3
    assert frame[["x", "y"]].to_numpy().tolist() == p.coords.tolist()
    assert (frame[["class_score_0", "class_score_1"]].to_numpy() == p.class_score).all()
    assert (frame["attention_variance"] == p.attention_variance).all() and "ood" in frame
    slices = Prediction(
        name="c", probability=p.probability, std=p.std, coords=np.arange(3)[:, None],
        **{k: np.zeros(3, np.float32) for k in ("attention_mean", "attention_variance",
                                                "weight_mean", "weight_variance", "degree")},
    )  # fmt: skip
    assert slices.to_frame()["position"].tolist() == [0, 1, 2]


def test_a_report_has_one_row_per_metric():
    report = Report(
        folder=Path("p"), part="test", parts={}, bags=3, classes=("0", "1"), per_class={},
        threshold=0.5, threshold_source="", instance_bags=1, without_label=(),
        without_prediction=(), warnings=(),
        metrics={"auroc": Metric(0.75, low=0.5, high=1.0), "f1": Metric.undefined("one class")},
        instances={"auroc": Metric(0.25)},
    )  # fmt: skip
    frame = report.to_frame()
    assert frame["of"].tolist() == ["bags", "bags", "instances"]
    assert frame["metric"].tolist() == ["auroc", "f1", "auroc"]
    np.testing.assert_array_equal(frame["value"], [0.75, np.nan, 0.25])
    np.testing.assert_array_equal(frame["low"], [0.5, np.nan, np.nan])
    assert frame["reason"].tolist() == [None, "one class", None]


def test_a_table_has_the_numbers_of_its_csv(tmp_path):
    table = ResultTable(
        name="t", title="T",
        columns=(Column(key="method", title="m"), Column(key="a", title="A", unit="percent")),
        rows=(
            (TableCell(text="abmil"), TableCell(value=0.5, low=0.25, high=0.75)),
            (TableCell(text="clam"), TableCell()),
        ),
    )  # fmt: skip
    (tmp_path / "t.csv").write_text(to_csv(table))
    pandas.testing.assert_frame_equal(table.to_frame(), pandas.read_csv(tmp_path / "t.csv"))
    assert table.to_frame()["a"][0] == 50
