"""Null maps of an experiment are fitted once per split, and stand beside the methods."""

import shutil

import numpy as np
import pytest
from support.stored import write_folder

from probsa.benchmark import instances_table, read_grid, read_results, run_grid
from probsa.benchmark.results import instances
from probsa.benchmark.results.instances import null_results
from probsa.evaluation import NULL_MAPS, evaluate

GRID = """\
data: {{features: {features}, labels: {labels}}}
models: [mean-pool, instance-lr]
seeds: 1
device: cpu
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    features, labels = write_folder(folder / "data", bags=36)
    (folder / "grid.yaml").write_text(GRID.format(features=features, labels=labels))
    run_grid(read_grid(folder / "grid.yaml"), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def table(experiment, tmp_path_factory):
    """The table of instances, which the table within bags follows last."""
    out = shutil.copytree(experiment, tmp_path_factory.mktemp("copy") / "out")
    return instances_table(read_results(out).scores, bootstrap=20)


def test_they_are_fitted_once_per_split_and_kept(experiment, tmp_path, monkeypatch):
    out = shutil.copytree(experiment, tmp_path / "out")
    fitted = []
    fit = instances.fit_null_maps

    def counted(bags, **parts):
        fitted.append(parts["train"])
        return fit(bags, **parts)

    monkeypatch.setattr(instances, "fit_null_maps", counted)
    scores = read_results(out).scores
    table = instances_table(scores, bootstrap=20)
    assert len(fitted) == 3 == len({tuple(sorted(names)) for names in fitted})
    again = instances_table(scores, bootstrap=20)
    assert len(fitted) == 3 and again.follow[-1] == table.follow[-1]


def values(table):
    """Return the values of a table by row and key."""
    return {
        row[0].text: {c.key: e.value for c, e in zip(table.columns[1:], row[1:], strict=True)}
        for row in table.rows
    }


def test_the_null_maps_that_are_models_equal_them(table):
    """Each method's own test bags are scored by the null map of the same fold."""
    inside = table.follow[-1]
    dice = {"dice", "dice_pooled", "dice_of_map"}  # null maps have no calls
    for rows in (values(inside), values(table)):
        for null, model in (("mean_features", "mean-pool"), ("single_instance", "instance-lr")):
            for measure, value in rows[model].items():
                of_null = rows[f"null: {null}"][measure]
                if measure in dice:
                    assert of_null is None and 0 < value <= 1
                else:
                    assert of_null == pytest.approx(value, abs=1e-6), measure
        nulls = rows.keys() - {"mean-pool", "instance-lr"}
        assert nulls and nulls < {f"null: {name}" for name in NULL_MAPS}


def test_dice_of_the_maps_is_that_of_a_report(experiment, table):
    """Over folds, it is the mean of the reports of all runs, weighted by their positive bags."""
    of_runs = []
    counts = []
    for run in experiment.glob("cells/*/mean-pool/*"):
        report = evaluate(run / "predictions", bootstrap=0).to_dict()
        of_runs.append(report["within_bags"]["maps"]["evidence"]["dice"]["value"])
        counts.append(report["within_bags"]["counted_bags"])
    assert len(of_runs) == 3
    dice = values(table.follow[-1])["mean-pool"]["dice_of_map"]
    assert dice == pytest.approx(np.average(of_runs, weights=counts))


def test_without_the_features_the_reason_is_given(experiment, tmp_path):
    out = shutil.copytree(experiment, tmp_path / "out")
    for file in (out / "cells").rglob("run.yaml"):
        text = file.read_text().replace("/data/features", "/data/gone")
        file.write_text(text)
    scores = read_results(out).scores
    found = null_results(scores[0], bootstrap=5)
    assert not found.metrics and "gone" in found.missing["all"]
    table = instances_table(scores, bootstrap=5).follow[-1]
    assert {row[0].text for row in table.rows} == {"mean-pool", "instance-lr"}
    assert any(found.missing["all"] in note for note in table.footnotes)
