"""Scores of validation bags, the choice of the epoch by them, and the average of weights."""

import random
from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.made_runs import (
    history_of,
    loop_of,
    make_config,
    make_survival,
    with_data,
    with_training,
)

from probsa.errors import InputError
from probsa.evaluation import load
from probsa.models import build
from probsa.training import (
    Reporter,
    Shard,
    TrainingConfig,
    load_checkpoint,
    open_data,
    prepare,
    read_run,
    read_split,
    train,
)
from probsa.training.config import Select
from probsa.training.optimizers import averaged_model
from probsa.training.validation import check_selection, chosen_row, validation_scores

SELECT = get_args(Select)


def history(auroc, nll=None):
    return [
        {"epoch": k, "val_auroc": a, "val_nll": b}
        for k, (a, b) in enumerate(zip(auroc, nll or [1.0] * len(auroc), strict=True), start=1)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_each_rule_is_what_it_says_at_every_epoch(seed):
    """Against brute force; an epoch that is dropped is never needed again."""
    draw = random.Random(seed)
    rows = history(*([draw.randint(1, 9) / 10 for _ in range(30)] for _ in range(2)))
    keys = {
        "auroc": lambda r: (-r["val_auroc"], r["val_nll"], r["epoch"]),
        "nll": lambda r: (r["val_nll"], r["epoch"]),
        "last": lambda r: -r["epoch"],
    }
    keys["ema-nll"] = keys["nll"]
    assert set(keys) == set(SELECT)
    for rule, key in keys.items():
        kept = 1
        for k in range(1, len(rows) + 1):
            now = chosen_row(rule, rows[:k])["epoch"]
            assert now == min(rows[:k], key=key)["epoch"] and now in (kept, k)
            kept = now
    undefined = history([None, None, None], [2.0, 1.0, 1.5])
    assert chosen_row("auroc", undefined)["epoch"] == 2  # the NLL decides


def test_scores_of_classes():
    one_class = validation_scores([1, 1], [[0.2], [0.9]])
    assert one_class["val_auroc"] is None
    assert one_class["val_nll"] == pytest.approx(-np.log([0.2, 0.9]).mean())
    assert validation_scores([], []) == {"val_auroc": None, "val_nll": None}
    assert validation_scores([0, 1], [[0.7, 0.3], [0.2, 0.8]])["val_auroc"] == 1.0
    rng = np.random.default_rng(0)
    y = rng.choice(4, size=60, p=[0.6, 0.25, 0.1, 0.05])  # unbalanced: one-vs-one differs
    p = rng.dirichlet(np.ones(4), size=60)
    p[np.arange(60), y] += 0.3
    p /= p.sum(1, keepdims=True)
    auroc = validation_scores(y.tolist(), p.tolist())["val_auroc"]
    assert auroc == pytest.approx(roc_auc_score(y, p, multi_class="ovr"), abs=1e-12)
    assert abs(auroc - roc_auc_score(y, p, multi_class="ovo")) > 1e-3


@pytest.mark.parametrize("rule", SELECT)
def test_the_row_of_the_choice_is_the_validation_of_the_kept_weights(tmp_path, rule):
    settings = {"epochs": 8, "batch_size": 3, "warmup_epochs": 0, "ema_decay": 0.9}
    config = make_config(tmp_path / "data", bags=30, signal=1.0, select=rule, **settings)
    run = train(config, tmp_path / "run")
    last = load_checkpoint(run.last)
    best = last.metadata["progress"]["best"]
    rows = history_of(run)
    assert best["epoch"] == chosen_row(rule, rows)["epoch"]
    assert best["val_nll"] == rows[best["epoch"] - 1]["val_nll"]
    bags = open_data(config.data)
    names = read_split(run).val
    targets = prepare(config).targets
    predictions = load(run.path, device="cpu").predict(bags.bag(name) for name in names)
    p = [prediction.probability.tolist() for prediction in predictions]
    scores = validation_scores([targets[name] for name in names], p)
    assert scores["val_nll"] == pytest.approx(best["val_nll"], rel=1e-5)
    assert scores["val_auroc"] == pytest.approx(best["val_auroc"], rel=1e-6)
    last_weights = last.part("model")
    best_weights = load_checkpoint(run.best).part("model")
    are_equal = all(torch.equal(last_weights[key], best_weights[key]) for key in last_weights)
    assert are_equal == (rule == "last" or (rule != "ema-nll" and best["epoch"] == 8))


def test_the_average_is_that_of_all_steps_with_floating_buffers(tmp_path):
    """Σ (1 − d) dᵗ⁻ⁱ wᵢ / (1 − dᵗ), by brute force over the weights after each step."""
    config = make_config(tmp_path / "data", select="ema-nll", ema_decay=0.9)
    loop = loop_of(config, tmp_path / "run")
    step = loop.step
    weights = []

    def recorded_step(*args):
        terms = step(*args)
        weights.append({k: v.double().clone() for k, v in loop.model.state_dict().items()})
        return terms

    loop.step = recorded_step
    for _ in range(3):
        loop.train_epoch()
        loop.progress.epoch += 1
    d = 0.9
    t = len(weights)
    for name, value in loop.kept.state_dict().items():
        parts = [(1 - d) * d ** (t - 1 - i) * w[name] for i, w in enumerate(weights)]
        expected = torch.stack(parts).sum(0) / (1 - d**t)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    module = torch.nn.Linear(2, 1)
    module.register_buffer("log_kappa", torch.tensor(1.0))
    module.register_buffer("count", torch.tensor(1))
    average = averaged_model(module, decay=0.5)
    average.update_parameters(module)
    module.log_kappa.fill_(4.0)
    module.count.fill_(2)
    average.update_parameters(module)
    assert average.module.log_kappa == 3.0 and average.module.count == 2  # weights 1/3 and 2/3
    assert module.log_kappa == 4.0


@pytest.mark.parametrize(
    ("rule", "model", "settings", "names"),
    [
        ("ema-nll", "iibmil", {}, "select.*iibmil"),  # a memory
        ("ema-nll", "gtp", {}, "select.*gtp"),  # batch norms
        ("ema-nll", "smabmil", {}, "select.*smabmil"),  # spectral norms
        ("last", "abmil", {"patience": 3}, "select.*patience"),
    ],
)
def test_what_a_rule_cannot_do_with_a_model_is_refused(rule, model, settings, names):
    with pytest.raises(InputError, match=names):
        check_selection(
            TrainingConfig(select=rule, **settings), build(model, in_dim=4), validation=True
        )
    flags = {"features": "x", "labels": "y", "model": model, "select": rule, **settings}
    with pytest.raises(InputError, match=names):
        read_run(None, flags)


@pytest.mark.parametrize("rule", ["nll", "ema-nll"])
def test_a_rule_that_compares_epochs_needs_validation_bags(rule):
    with pytest.raises(InputError, match="select"):
        check_selection(TrainingConfig(select=rule), build("abmil", in_dim=4), validation=False)


@pytest.mark.parametrize(
    ("rule", "model", "settings", "validation"),
    [
        ("ema-nll", "transmil", {}, True),
        ("last", "abmil", {}, False),
        ("auroc", "gtp", {"patience": 3}, False),
    ],
)
def test_what_a_rule_can_do(rule, model, settings, validation):
    settings = TrainingConfig(select=rule, **settings)
    check_selection(settings, build(model, in_dim=4), validation=validation)


def test_a_run_without_validation_bags_keeps_its_last_epoch(tmp_path):
    split = tmp_path / "splits_0.csv"
    rows = [f"{k},{k:03d},,{k + 8:03d}" if k < 4 else f"{k},{k:03d},," for k in range(8)]
    split.write_text("\n".join([",train,val,test", *rows]) + "\n")
    config = with_data(make_config(tmp_path / "data"), test_fold=None, split=split)
    assert not prepare(config).split.val
    for rule in ("last", "auroc"):
        run = train(with_training(config, select=rule), tmp_path / rule)
        assert load_checkpoint(run.best).metadata["progress"]["best"]["epoch"] == 3
    for key, value in (("select", "nll"), ("schedule", "plateau")):
        with pytest.raises(InputError, match=key):
            train(with_training(config, **{key: value}), tmp_path / "refused")
        assert not (tmp_path / "refused").exists()


def test_the_likelihood_of_validation_is_that_of_all_bags(tmp_path):
    config = make_survival(tmp_path / "data")
    loop = loop_of(config, tmp_path / "run")
    scores = []
    for size in (1, 5, 12):
        loop.settings = with_training(config, batch_size=size).training
        scores.append(loop.validate())
    assert all(other == pytest.approx(scores[0], rel=1e-6) for other in scores)
    names = loop.prepared.split.val
    logits = torch.cat([loop.model.eval()(loop.reader[Shard((n,), 1)]).logits for n in names])
    y = torch.tensor([loop.prepared.targets[n] for n in names]).double()
    expected = loop.model.likelihood.nll(logits.double(), y).mean().item()
    assert scores[0]["val_nll"] == pytest.approx(expected, rel=1e-6)


def test_a_model_that_predicts_one_value_is_noted_once(tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(Reporter, "note", lambda self, text: notes.append(text))
    train(make_config(tmp_path / "data", model="mean-pool"), tmp_path / "a")
    assert not notes
    loop = loop_of(make_config(tmp_path / "data", model="abmil"), tmp_path / "b")
    with torch.no_grad():
        loop.model.classifier.weight.zero_()
    for _ in range(2):
        loop.validate()
    (note,) = notes
    assert "abmil" in note
