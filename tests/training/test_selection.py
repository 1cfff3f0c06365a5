"""The choice of the epoch, averages of weights, and that both survive an interruption."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from support.stored import write_folder

from probsa.errors import InputError
from probsa.evaluation import load
from probsa.models import Output, build
from probsa.training import (
    Reporter,
    full_name,
    load_checkpoint,
    open_data,
    prepare,
    read_run,
    read_split,
    train,
)
from probsa.training.averaging import WeightAverage, exponential_rate
from probsa.training.config import DataConfig, RunConfig, Select, TrainingConfig
from probsa.training.devices import World
from probsa.training.loop import TrainingLoop
from probsa.training.run_folder import RunFolder
from probsa.training.validation import check_selection, chosen_row, is_better
from probsa.training.validation import nll_of_all, validation_scores, with_nll
from probsa.variational import Cox, Dirac

SELECT = get_args(Select)


def history_of(auroc, nll=None):
    nll = nll or [1.0] * len(auroc)
    return [
        {"epoch": k + 1, "val_auroc": a, "val_nll": b}
        for k, (a, b) in enumerate(zip(auroc, nll, strict=True))
    ]


def random_history(seed, *, epochs=30):
    draw = random.Random(seed)
    steps = [draw.randint(0, 20) / 20 for _ in range(epochs)]
    return history_of(steps, [draw.randint(1, 9) / 4 for _ in steps])


def chosen(rule, history):
    return chosen_row(rule, history)["epoch"]


@pytest.mark.parametrize("seed", range(5))
def test_each_rule_is_what_it_says(seed):
    """Against brute force over the whole history."""
    rows = random_history(seed)
    best = {}
    for row in rows:
        if is_better(row, best):
            best = row
    assert chosen("auroc", rows) == best["epoch"]
    lowest = min(rows, key=lambda r: (r["val_nll"], r["epoch"]))["epoch"]
    assert chosen("nll", rows) == chosen("ema-nll", rows) == lowest
    assert chosen("last", rows) == len(rows)


@pytest.mark.parametrize("rule", SELECT)
@pytest.mark.parametrize("seed", range(5))
def test_an_epoch_that_is_dropped_is_never_needed_again(rule, seed):
    rows, kept = random_history(seed), 0
    for k in range(len(rows)):
        now = chosen(rule, rows[: k + 1])
        assert now in (kept, k + 1)
        kept = now


def test_a_few_cases_by_hand():
    rows = history_of([0.9, 0.5, 0.7, 0.7, 0.7, 0.7, 0.8], [3.0, 2.0, 1.0, 1.0, 0.5, 1.0, 0.4])
    assert (chosen("auroc", rows), chosen("nll", rows), chosen("last", rows[:3])) == (1, 7, 3)
    assert chosen("auroc", history_of([None, None, None], [2.0, 1.0, 1.5])) == 2  # the NLL decides


@pytest.fixture
def config(tmp_path):
    features, labels = write_folder(tmp_path / "data", bags=30, signal=1.0)
    return RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil-probsa-diag",
        model_arguments={"embed": 12, "attention_dim": 6, "samples": 3, "predict_samples": 20},
        training=TrainingConfig(
            epochs=8, batch_size=3, device="cpu", tensorboard=False, threads=1,
            learning_rate=1e-2, warmup_epochs=0, ema_decay=0.9,
        ),
        data_seed=0,
    )  # fmt: skip


def selecting(config, rule, **more):
    return replace(config, training=replace(config.training, select=rule, **more))


def loop_of(config, out):
    return TrainingLoop(
        config, RunFolder(out), prepare(config), device=torch.device("cpu"),
        world=World(), reporter=Reporter(),
    )  # fmt: skip


def test_the_exponential_average_is_that_of_all_steps(config, tmp_path):
    """Σ (1 − d) dᵗ⁻ⁱ wᵢ / (1 − dᵗ), by brute force over the weights after each step."""
    loop = loop_of(selecting(config, "ema-nll"), tmp_path / "run")
    seen, step = [], loop.step

    def watched(*args):
        terms = step(*args)
        seen.append({k: v.double().clone() for k, v in loop.model.state_dict().items()})
        return terms

    loop.step = watched
    for _ in range(2):
        loop.train_epoch()
        loop.progress.epoch += 1
    assert len(seen) > 4
    d, t = 0.9, len(seen)
    for name, value in loop.average.tensors.items():
        parts = [(1 - d) * d ** (t - 1 - i) * w[name] for i, w in enumerate(seen)]
        expected = torch.stack(parts).sum(0) / (1 - d**t)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    assert exponential_rate(0.0, step=3) == exponential_rate(0.99, step=1) == 1.0


def test_an_average_covers_floating_buffers_and_gives_the_weights_back():
    module = torch.nn.Linear(2, 1)
    module.register_buffer("log_kappa", torch.tensor(1.0))
    module.register_buffer("count", torch.tensor(1))
    average = WeightAverage(module)
    with average.applied():  # empty: nothing happens
        assert module.log_kappa == 1.0
    average.update(0.5)
    module.log_kappa.fill_(3.0)
    module.count.fill_(2)
    average.update(0.5)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with average.applied():
        assert module.log_kappa == 2.0 and module.count == 2
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


@pytest.mark.parametrize("rule", SELECT)
def test_the_row_of_the_choice_is_the_validation_of_the_kept_weights(config, tmp_path, rule):
    run = train(selecting(config, rule), tmp_path / "run")
    progress = load_checkpoint(run.last).metadata["progress"]
    best = progress["best"]
    row = progress["history"][best["epoch"] - 1]
    assert best["val_nll"] == row["val_nll"]
    bags, names = open_data(config.data), read_split(run).val
    labels = prepare(config).targets
    predicted = list(load(run.path, device="cpu").predict(bags.bag(n) for n in names))
    scores = validation_scores(
        [labels[n] for n in names], [p.probability.tolist() for p in predicted]
    )
    assert scores["val_nll"] == pytest.approx(best["val_nll"], rel=1e-5)
    assert scores["val_auroc"] == pytest.approx(best["val_auroc"], rel=1e-6)
    assert best["epoch"] == chosen(rule, progress["history"])


def test_the_rules_keep_different_weights(config, tmp_path):
    kept = {r: load_checkpoint(train(selecting(config, r), tmp_path / r).best) for r in SELECT}
    weights = {r: kept[r].part("model")["classifier.weight"] for r in SELECT}
    for rule in ("nll", "ema-nll", "last"):
        assert not torch.equal(weights[rule], weights["auroc"]), rule
    other = train(selecting(config, "ema-nll", ema_decay=0.5), tmp_path / "other")
    value = load_checkpoint(other.best).part("model")["classifier.weight"]
    assert not torch.equal(value, weights["ema-nll"])


class Stopped(Exception):
    """Raised by reporters to interrupt training."""


class Breaker(Reporter):
    def __init__(self, *at):
        self.at = at

    def step(self, *, epoch, share):
        if epoch in self.at and share > 0.4:
            raise Stopped


def contents(folder):
    files = [load_checkpoint(folder.last), load_checkpoint(folder.best)]
    for file in files:
        for row in file.metadata["progress"]["history"]:
            del row["seconds"]
    return files


def assert_same_run(one, other):
    for a, b in zip(contents(one), contents(other), strict=True):
        assert a.metadata == b.metadata
        assert a.tensors.keys() == b.tensors.keys()
        assert all(torch.equal(v, b.tensors[k]) for k, v in a.tensors.items())


@pytest.mark.parametrize("rule", SELECT)
def test_an_interrupted_run_ends_with_the_same_bits(config, tmp_path, rule):
    config = selecting(config, rule)
    whole = train(config, tmp_path / "whole")
    names = set(load_checkpoint(whole.last).tensors)
    assert any(n.startswith("average.") for n in names) == (rule == "ema-nll")
    for at in (2, 5, 7):
        with pytest.raises(Stopped):
            train(config, tmp_path / "broken", resume=True, reporter=Breaker(at))
    assert_same_run(whole, train(config, tmp_path / "broken", resume=True))


def test_patience_follows_the_rule(config, tmp_path):
    config = selecting(config, "nll", patience=2, epochs=60, learning_rate=0.1)
    run = train(config, tmp_path / "run")
    progress = load_checkpoint(run.last).metadata["progress"]
    assert progress["epoch"] == progress["best"]["epoch"] + 2 < 60
    assert progress["best"]["val_nll"] == min(r["val_nll"] for r in progress["history"])


def check(rule, model, *, patience=None, validation=True):
    check_selection(rule, build(model, in_dim=4), patience=patience, validation=validation)


@pytest.mark.parametrize(
    ("rule", "model", "more", "words"),
    [
        ("ema-nll", "iibmil", {}, "select is 'ema-nll'.*iibmil keeps a memory"),
        ("ema-nll", "gtp", {}, "select is 'ema-nll'.*gtp couples the bags"),
        ("ema-nll", "smabmil", {}, "smabmil normalises its weights"),
        ("last", "abmil", {"patience": 3}, "select is 'last'.*but patience is 3"),
        ("nll", "abmil", {"validation": False}, "select is 'nll'.*validation bags, but there are"),
        ("ema-nll", "abmil", {"validation": False}, "validation bags, but there are"),
    ],
)
def test_what_a_rule_cannot_do_is_refused(rule, model, more, words):
    with pytest.raises(InputError, match=words):
        check(rule, model, **more)


def test_what_a_rule_can_do_is_accepted():
    check("ema-nll", "abmil")
    check("ema-nll", "transmil")
    check("last", "abmil", validation=False)
    check("auroc", "gtp", patience=3, validation=False)


def test_a_rule_is_checked_when_a_run_file_is_read_and_before_a_run_is_trained(config, tmp_path):
    flags = {"features": "x", "labels": "y", "model": "gtp", "select": "ema-nll"}
    with pytest.raises(InputError, match="gtp couples the bags"):
        read_run(None, {full_name(k): v for k, v in flags.items()})
    with pytest.raises(InputError, match=r"select is 'last'.*but patience is 3"):
        train(selecting(config, "last", patience=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_validation_bags_keeps_its_last_epoch(config, tmp_path):
    split = tmp_path / "splits_0.csv"
    rows = [f"{k},{k:03d},,{k + 24:03d}" if k < 6 else f"{k},{k:03d},," for k in range(24)]
    split.write_text("\n".join([",train,val,test", *rows]) + "\n")
    config = replace(config, data=replace(config.data, test_fold=None, split=split))
    assert not prepare(config).split.val
    for rule in ("last", "auroc"):
        run = train(selecting(config, rule), tmp_path / rule)
        assert load_checkpoint(run.best).metadata["progress"]["best"]["epoch"] == 8
    with pytest.raises(InputError, match=r"select is 'nll'.*choose last"):
        train(selecting(config, "nll"), tmp_path / "nll")
    assert not (tmp_path / "nll").exists()


def test_the_partial_likelihood_of_validation_is_that_of_all_bags():
    likelihood = Cox(times=[1.0, 2.0], hazard=[0.1, 0.2])
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 5, 1, generator=source)
    y = torch.stack([torch.rand(12, generator=source), (torch.arange(12) % 3 > 0).float()], 1)
    found = []
    for size in (1, 5, 12):
        rows = []
        for part, targets in zip(logits.split(size), y.split(size), strict=True):
            out = Output(logits=part, attention=Dirac(torch.zeros(1)), likelihood=likelihood)
            rows += with_nll(out, likelihood, SimpleNamespace(y=targets)).tolist()
        scored = nll_of_all(y.tolist(), rows, likelihood)
        found.append(validation_scores(y.tolist(), scored, task="survival"))
    assert found[0] == found[1] == found[2]
    expected = likelihood.nll(logits, y).mean().item()
    assert found[0]["val_nll"] == pytest.approx(expected, rel=1e-6)


def test_training_leaves_the_number_of_threads_as_it_was(config, tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train(replace(config, training=replace(config.training, epochs=1)), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
