"""Classes of unequal frequency: sampling, weights, the prior of predictions, thresholds."""

import json
from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from support.made_runs import loop_of, make_config, with_data, with_training
from support.stored import write_folder

from probsa.errors import InputError
from probsa.evaluation import load, read_predictions
from probsa.tasks import TargetOptions
from probsa.training import (
    ClassPrior,
    load_checkpoint,
    open_data,
    read_labels,
    read_split,
    stack_targets,
    train,
)
from probsa.variational import Bernoulli, Categorical
from probsa.workflow import finish_run, predict_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bags of which one of ten is positive, with times to an event as well."""
    path = tmp_path_factory.mktemp("imbalance")
    _, table = write_folder(path, bags=60)
    head, *rows = table.read_text().splitlines()
    rows = [r if int(r[:3]) % 10 == 1 else r[:4] + "0" + r[5:] for r in rows]
    table.write_text("\n".join([head, *rows]))
    g = np.random.default_rng(0)
    times = [f"{k:03d},{g.exponential(9) + 1:.3f},{int(k % 4 == 0)},{k % 3}" for k in range(60)]
    (path / "times.csv").write_text("\n".join(["bag,time,event,fold", *times]))
    return path


def config_of(folder, *, model="abmil", **training):
    settings = {"epochs": 2, "batch_size": 8, "warmup_epochs": 0, **training}
    return make_config(folder, model=model, **settings)


def times_of(folder, **training):
    config = config_of(folder, **training)
    targets = TargetOptions(task="survival")
    return with_data(config, labels=folder / "times.csv", targets=targets)


@pytest.mark.parametrize("value", [0.1, (0.1, 1.0)])
def test_targets_keep_their_float64(value):
    np.testing.assert_array_equal(stack_targets({"a": value}, ["a"]).numpy(), [value])


def test_balanced_sampling_draws_classes_equally_often_in_an_epoch_of_the_same_length(
    folder, tmp_path
):
    loop = loop_of(config_of(folder, sampling="balanced"), tmp_path)
    train_bags = loop.prepared.split.train
    for plan in loop.plans:
        names = list(chain.from_iterable(plan))
        counts = Counter(loop.prepared.targets[name] for name in names)
        assert len(names) == len(train_bags) and abs(counts[0] - counts[1]) <= 1
    assert loop.plans[0] != loop.plans[1]
    assert loop.plans == loop_of(config_of(folder, sampling="balanced"), tmp_path).plans
    shuffled = loop_of(config_of(folder), tmp_path).plans[0]
    assert sorted(chain.from_iterable(shuffled)) == sorted(train_bags)


def test_the_times_of_training_are_stored_with_every_digit(folder, tmp_path):
    loop = loop_of(times_of(folder), tmp_path)
    loop.prepared.write(loop.folder)
    stored = json.loads(loop.folder.targets_file.read_text())["train"]
    targets = [list(loop.prepared.targets[name]) for name in loop.prepared.split.train]
    assert stored == targets


def reported(config, out):
    return finish_run(train(config, out), bootstrap=0, maps="none", extras=False).run


def test_predictions_are_moved_to_the_shares_and_the_threshold_is_that_of_the_rule(
    folder, tmp_path
):
    config = config_of(folder, balanced=True, threshold="sensitivity=0.95")
    run = reported(config, tmp_path / "run")
    split = read_split(run)
    prior = json.loads(run.prior_file.read_text())
    table = read_labels(config.data, open_data(config.data))
    y = dict(zip(table.bags, table.labels, strict=True))
    share = np.mean([y[name] for name in split.train])
    assert prior["training"] == prior["predicted"] == pytest.approx([1 - share, share])
    assert prior["effective"] == [0.5, 0.5]
    moved = read_predictions(run.predictions)
    assert "class shares 0.5, 0.5 (in the loss)" in moved.metadata.prior
    stored = json.loads(run.threshold_file.read_text())
    assert stored["chosen"].startswith("sensitivity=0.95")
    again = predict_folder(run.path, config.data.features, out=tmp_path / "again").folder
    assert read_predictions(again).metadata.threshold_rule == moved.metadata.threshold_rule
    asked = predict_folder(
        run.path, config.data.features, out=tmp_path / "asked", threshold="specificity=0.5"
    ).folder
    assert read_predictions(asked).metadata.threshold_rule.rule == "specificity=0.5"
    ill = (np.array(moved.parts) == "val") & (np.array(moved.labels) == 1)
    assert np.mean(moved.probability[ill, 0] >= stored["threshold"]) >= 0.95
    same = reported(with_training(config, prior_correction=False), tmp_path / "off")
    for name, value in load_checkpoint(run.best).part("model").items():
        assert torch.equal(load_checkpoint(same.best).part("model")[name], value), name
    p, q = (read_predictions(r.predictions).probability[:, 0] for r in (run, same))
    odds = p / (1 - p) / (q / (1 - q))
    np.testing.assert_allclose(odds, share / (1 - share), rtol=1e-4)
    rare = reported(config_of(folder, prevalence=(0.99, 0.01)), tmp_path / "rare")
    assert read_predictions(rare.predictions).probability.mean() < 0.1
    assert float(load(rare.path, device="cpu").model.likelihood.prior_shift) < -2
    other = replace(config, model="dsmil")
    other = replace(other, model_arguments={"labels": "independent", "n_classes": 2})
    run = reported(with_training(other, threshold="f1"), tmp_path / "dsmil")
    assert "no class likelihood" in read_predictions(run.predictions).metadata.prior


def test_the_correction_is_that_of_the_worked_examples():
    bernoulli = Bernoulli()
    categorical = Categorical()
    half = [0.5, 0.5]
    bernoulli.prior_shift = ClassPrior(training=half, effective=half, predicted=[0.9, 0.1]).shift(
        one_logit=True
    )
    logit = torch.tensor([[[0.7]]], dtype=torch.float64).logit()
    assert bernoulli.predict(logit).values.item() == pytest.approx(0.2058824, abs=5e-8)
    third = [1 / 3] * 3
    categorical.prior_shift = ClassPrior(
        training=third, effective=third, predicted=[0.2, 0.3, 0.5]
    ).shift(one_logit=False)
    logits = torch.tensor([[[0.5, 0.3, 0.2]]], dtype=torch.float64).log()
    expected = [0.3448276, 0.3103448, 0.3448276]
    assert categorical.predict(logits).values[0].tolist() == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize(
    ("make", "options", "key"),
    [
        (config_of, {"balanced": True, "sampling": "balanced"}, "sampling"),
        (config_of, {"prevalence": (0.5, 0.3, 0.2)}, "prevalence"),
        (config_of, {"prevalence": (1.0, 0.0)}, "prevalence"),
        (config_of, {"threshold": "best"}, "threshold"),
        (config_of, {"sampling": "balanced", "model": "mean-pool"}, "sampling.*mean-pool"),
        (times_of, {"sampling": "balanced"}, "sampling"),
        (times_of, {"prevalence": (0.5, 0.5)}, "prevalence"),
        (times_of, {"balanced": True}, "balanced"),
        (times_of, {"temperature_scaling": True}, "temperature_scaling"),
        (times_of, {"threshold": "youden"}, "threshold.*survival"),
    ],
)
def test_contradictions_are_refused(folder, tmp_path, make, options, key):
    with pytest.raises(InputError, match=key):
        train(make(folder, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("n_classes", [1, 2])
def test_a_saved_model_keeps_the_shares_of_its_predictions(folder, tmp_path, n_classes):
    config = config_of(folder, balanced=True)
    arguments = {**config.model_arguments, "n_classes": n_classes}
    run = train(replace(config, model_arguments=arguments), tmp_path / "run")
    predictor = load(run.path, device="cpu")
    predictor.save_pretrained(tmp_path / "saved")
    saved = load(tmp_path / "saved", device="cpu")
    bag = open_data(config.data).bag("001")
    moved, stored = (p.predict([bag])[0].probability for p in (predictor, saved))
    assert moved.tolist() == stored.tolist()
    shift = predictor.model.likelihood.prior_shift.double().numpy()
    predictor.model.likelihood.prior_shift = None
    p = predictor.predict([bag])[0].probability
    odds = p * np.exp(shift)
    total = odds.sum() if n_classes == 2 else odds + 1 - p
    np.testing.assert_allclose(moved, odds / total, rtol=1e-5)
