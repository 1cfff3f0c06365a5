"""Several runs: a bag has the mean null maps and distances of the runs that have not seen it."""

import json

import numpy as np
import pytest
from support.stored import write_folder

from probsa import predict_folder
from probsa.datasets import open_bags
from probsa.evaluation import (
    distances_of,
    evaluate,
    null_maps_file,
    null_maps_of,
    read_null_scores,
    read_predictions,
)
from probsa.training import read_run, read_split, train
from probsa.workflow import finish_run


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """Two runs of a cross-validation, and ten bags that both have not seen."""
    folder = tmp_path_factory.mktemp("folds")
    features, labels = write_folder(folder / "data", bags=36)
    runs = []
    for fold in (0, 1):
        file = folder / f"{fold}.yaml"
        file.write_text(
            f"data: {{features: {features}, labels: {labels}, test_fold: {fold}}}\n"
            "model: {name: mean-pool}\ntraining: {device: cpu}\n"
        )
        run = train(read_run(file, {}), folder / f"run{fold}")
        finish_run(run, bootstrap=0, maps="none")
        runs.append(run)
    new, _ = write_folder(folder / "new", bags=10, seed=7)
    for path in sorted(new.iterdir()):
        path.rename(features / f"new{path.name}")
    predict_folder([r.path for r in runs], features, out=folder / "both", labels=labels)
    return folder, features, runs, [f"new{k:03}" for k in range(10)]


def test_a_bag_of_one_fold_has_the_values_of_the_run_that_tests_it(folds):
    folder, _, runs, _ = folds
    predicted = read_predictions(folder / "both")
    run = runs[0]
    name = read_split(run).test[0]
    assert name in read_split(runs[1]).train + read_split(runs[1]).val
    own = read_predictions(run.predictions)
    row = predicted.bags.index(name)
    assert predicted.ood[row] == pytest.approx(own.ood[own.bags.index(name)])
    n = predicted.instances(name).attention_mean.shape[0]
    alone = read_null_scores(run.predictions, name, instances=n)
    both = read_null_scores(folder / "both", name, instances=n)
    for null_map, score in alone.items():
        if isinstance(score, str):
            assert both[null_map] == score
        else:
            np.testing.assert_allclose(both[null_map], score, rtol=1e-6)


def test_a_new_bag_has_the_mean_of_both_runs(folds):
    folder, features, runs, new = folds
    bags = open_bags(features)
    predicted = read_predictions(folder / "both")
    maps = [null_maps_of([r.path]) for r in runs]
    distances = [distances_of([r.path]) for r in runs]
    for name in new[:3]:
        bag = bags.bag(name)
        stored = bags.stored(name)
        expected = np.mean([d.scores(bag)["bag_ood_distance"] for d in distances])
        row = predicted.bags.index(name)
        assert predicted.ood_distance[row] == pytest.approx(expected, rel=1e-5)
        of_instances = np.mean([d.scores(bag)["ood"] for d in distances], axis=0)
        np.testing.assert_allclose(predicted.instances(name).ood, of_instances, rtol=1e-5)
        got = read_null_scores(folder / "both", name, instances=len(bag))
        for null_map in ("position", "mahalanobis", "mean_features"):
            means = np.mean([m.scores(stored)[null_map] for m in maps], axis=0)
            np.testing.assert_allclose(got[null_map], means, rtol=1e-5)


def test_a_report_of_several_runs_compares_with_all_null_maps(folds):
    folder, _, runs, _ = folds
    about = json.loads((folder / "both" / "null_maps" / "about.json").read_text())
    assert len(about["runs"]) == len(runs)
    report = evaluate(folder / "both", bootstrap=0)
    (found,) = [s for s in report.sections if s.key == "within_bags"]
    assert {"centre", "position", "mahalanobis", "mean_features"} <= set(found.values["null_maps"])


def test_runs_of_which_one_has_no_files_have_none(folds, tmp_path):
    paths = [run.path for run in folds[2]]
    for file, of in (
        (null_maps_file(paths[1]), null_maps_of),
        (folds[2][1].distance_file, distances_of),
    ):
        file.rename(tmp_path / "kept")
        assert of(paths) is None
        (tmp_path / "kept").rename(file)
        assert of(paths) is not None
