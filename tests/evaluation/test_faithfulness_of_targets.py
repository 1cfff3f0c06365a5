"""Faithfulness of tasks without classes: the curves follow what the maps explain."""

import numpy as np
import pytest
from support.made_targets import TARGETS, run_keys, write_targets

from probsa.evaluation import MapScoreChoice, evaluate, load, read_predictions
from probsa.evaluation.faithfulness import deletion_curves, deletion_drops
from probsa.training import open_units, read_run, train
from probsa.workflow import predict_folder, predict_run

OTHERS = [task for task in TARGETS if task not in ("binary", "multiclass")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each task, of a model with a closed form, trained a little."""
    folder = tmp_path_factory.mktemp("targets")
    data = write_targets(folder / "data", bags=24)
    return data, {t: train(read_run(None, run_keys(data, t)), folder / t) for t in OTHERS}


@pytest.mark.parametrize("task", OTHERS)
def test_curves_begin_at_what_is_predicted_and_drops_are_of_it(task, runs):
    _, found = runs
    predictor = load(found[task].path, device="cpu")
    bags, _ = open_units(found[task].config().data)
    bag = bags.bag(bags.names[1])
    p, curves = deletion_curves(predictor, bag)
    whole = p.of_task.response(p, p.of_task.column(p))
    for curve in (*curves.most_first.values(), *curves.least_first.values()):
        assert curve[0] == pytest.approx(whole, abs=1e-4)
    assert curves.removal == "pooling" and curves.rank_correlation is not None
    drops = deletion_drops(predictor, bag, p)
    assert {"random", "evidence", "contribution"} <= set(drops)


@pytest.mark.parametrize("task", OTHERS)
def test_contributions_raise_what_they_explain(task, runs):
    """Removing the instance that adds most lowers the response more than another one."""
    _, found = runs
    predictor = load(found[task].path, device="cpu")
    bags, _ = open_units(found[task].config().data)
    (p,) = predictor.predict([bags.bag(bags.names[2])])
    assert p.contribution is not None and p.leave_one_out is not None
    contribution, lost = (
        v[:, p.of_task.column(p)] if v.ndim == 2 else v for v in (p.contribution, p.leave_one_out)
    )
    assert lost[np.argmax(contribution)] > lost[np.argmin(contribution)]


def test_the_score_of_the_maps_is_chosen_and_stated(runs, tmp_path):
    data, found = runs
    for task, words in (("regression", "predicted value"), ("survival", "risk")):
        predict_run(found[task])
        table = read_predictions(found[task].predictions)
        choice = MapScoreChoice.of(table.metadata, where="here")
        assert choice is not None and words in choice.rule and choice.bags == 6
        assert "random" not in choice.drops and words in choice.reason
    out = tmp_path / "predictions"
    labels = data / "labels_regression.csv"
    predict_folder(
        found["regression"].path, data / "features", out=out, labels=labels, faithfulness=True
    )
    report = evaluate(out, bootstrap=0, part="test")
    (section,) = [s for s in report.sections if s.key == "faithfulness"]
    assert section.to_dict()["bags"] == report.bags
