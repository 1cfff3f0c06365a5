"""Training: files of a run, options, determinism, and runs that are refused."""

import csv
import json
from dataclasses import replace
from itertools import combinations

import h5py
import numpy as np
import pytest
import torch
from support.made_runs import history_of, loop_of, make_config, with_data, with_training

from probsa.core import GraphOptions
from probsa.errors import BagError, GraphError, InputError, OutputExists, TableError
from probsa.evaluation import load
from probsa.training import (
    Reporter,
    Standardizer,
    load_checkpoint,
    open_data,
    plan_epoch,
    prepare,
    train,
)


class Listener(Reporter):
    """Keeps what it is told."""

    def __init__(self):
        self.rows = []
        self.notes = []

    def epoch(self, row):
        self.rows.append(dict(row))

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path / "data")


def weights(folder, which="last"):
    return load_checkpoint(getattr(folder, which)).part("model")


def same(run, other):
    a = weights(run)
    b = weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def relabel(config, rows, header="bag,label,split"):
    config.data.labels.write_text("\n".join([header, *rows]) + "\n")
    return with_data(config, test_fold=None)


def test_a_run_folder_holds_everything_and_the_process_is_left_as_it_was(config, tmp_path):
    listener = Listener()
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run = train(with_training(config, threads=threads + 1), tmp_path / "run", reporter=listener)
    assert torch.equal(before, torch.get_rng_state()) and torch.get_num_threads() == threads
    with run.metrics_file.open() as f:
        rows = list(csv.DictReader(f))
    assert [r["epoch"] for r in rows] == ["1", "2", "3"]
    assert {"nll", "kl", "loss", "kl_weight", "val_auroc", "val_nll"} <= rows[0].keys()
    assert [r["val_nll"] for r in listener.rows] == [float(r["val_nll"]) for r in rows]
    assert run.config() == with_training(config, threads=threads + 1)
    split = json.loads(run.split_file.read_text())
    assert len(split["test"]) == 4 and len(split["val"]) == 4 and len(split["train"]) == 4
    assert json.loads((run.path / "about.json").read_text())["torch"] == torch.__version__
    assert not list(run.path.rglob("*.tmp"))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(config, tmp_path):
    a = train(config, tmp_path / "a")
    assert same(a, train(config, tmp_path / "b"))
    assert same(a, train(with_training(config, workers=2), tmp_path / "workers"))
    assert not same(a, train(replace(config, seed=1), tmp_path / "c"))


STEP = {"schedule": "step", "schedule_epochs": 1}
DECAY = {"optimizer": "adamw", "weight_decay": 0.5}


def test_every_option_changes_the_weights(config, tmp_path):
    def trained(changed):
        loop = loop_of(with_training(config, **changed), tmp_path / "run")
        for _ in range(loop.epochs):
            loop.train_epoch()
            loop.progress.epoch += 1
        return torch.cat([p.detach().flatten() for p in loop.model.parameters()])

    changes = [
        {},
        {"epochs": 4},
        {"batch_size": 3},
        {"max_instances": 9},
        {"window": 2},
        {"optimizer": "sgd"},
        DECAY,
        {**DECAY, "decay_vectors": False},
        {"optimizer": "radam"},
        {"schedule": "cosine"},
        STEP,
        {**STEP, "schedule_epochs": 2},
        {**STEP, "schedule_factor": 0.5},
        {"learning_rate": 2e-2},
        {"warmup_epochs": 0},
        {"weight_decay": 0.1},
        {"kl_weight": 0.3},
        {"kl_weight": "linear"},
        {"clip_norm": 1e-2},
        {"precision": "bf16"},
    ]
    runs = [trained(changed) for changed in changes]
    assert torch.equal(runs[0], trained({}))
    for (k, a), (m, b) in combinations(enumerate(runs), 2):
        assert not torch.equal(a, b), (changes[k], changes[m])


@pytest.mark.parametrize(
    ("model", "select", "loss", "nll"),
    [
        ("abmil-probsa-diag", "auroc", [1.795238, 1.778104, 1.768453], 0.699555),
        ("evidence-field", "ema-nll", [0.963541, 0.868797, 0.782754], 0.673445),
    ],
)
def test_a_seed_gives_the_numbers_that_it_always_gave(tmp_path, model, select, loss, nll):
    """Initial weights, order of the bags, noise and steps; the same since the first version."""
    arguments = {"embed": 8, "attention_dim": 4, "samples": 4, "predict_samples": 50}
    config = make_config(tmp_path / "data", model=model, model_arguments=arguments, select=select)
    run = train(config, tmp_path / "a")
    assert [r["loss"] for r in history_of(run)] == pytest.approx(loss, rel=2e-4)
    best = load_checkpoint(run.last).metadata["progress"]["best"]
    assert best["val_nll"] == pytest.approx(nll, rel=2e-4)


def test_a_plateau_of_the_validation_loss_lowers_the_rate(config, tmp_path):
    settings = {"epochs": 9, "learning_rate": 1e-8, "warmup_epochs": 0}
    plateau = with_training(config, **settings, schedule="plateau", schedule_epochs=2)
    rows = history_of(train(plateau, tmp_path / "a"))
    # steps of this size change nothing: after the first epoch, the loss never falls by 1e-4
    assert max(r["val_nll"] for r in rows) - min(r["val_nll"] for r in rows) < 1e-4
    expected = [1e-8 * r for r in [1, 1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008]]
    assert [r["learning_rate"] for r in rows] == pytest.approx(expected, rel=1e-9, abs=0)
    stopped = with_training(config, epochs=60, patience=2, learning_rate=0.0)
    assert len(history_of(train(stopped, tmp_path / "b"))) == 3


def test_a_step_has_noise_of_its_own_and_validation_no_gradients(config, tmp_path, monkeypatch):
    from probsa.models.attention_mil import ProbSA
    from probsa.training import loop

    random_stream = loop.random_stream
    forward = ProbSA.forward
    keys = []
    modes = []

    def recorded_stream(*names, **options):
        keys.append(names)
        return random_stream(*names, **options)

    def recorded_forward(self, bags, **options):
        modes.append((self.training, torch.is_grad_enabled()))
        return forward(self, bags, **options)

    monkeypatch.setattr(loop, "random_stream", recorded_stream)
    monkeypatch.setattr(ProbSA, "forward", recorded_forward)
    train(config, tmp_path / "a")
    assert keys == [(0, "noise", step) for step in range(6)]  # 3 epochs of 2 steps
    # 4 bags each, two at a time; at the end, training bags one by one, as validation bags are alike
    assert modes == ([(True, True)] * 2 + [(False, False)] * 2) * 3 + [(False, False)] * 4


def test_a_model_that_learned_nothing_is_reported(config, tmp_path, monkeypatch):
    from probsa.training import loop

    remarks = []
    monkeypatch.setattr(Reporter, "remark", lambda self, text: remarks.append(text))
    still = with_training(config, learning_rate=0.0, epochs=2)
    train(still, tmp_path / "a")
    (remark,) = remarks
    assert "2 epochs" in remark and "4 training bags" in remark
    monkeypatch.setattr(loop, "ALIKE", 0.0)
    train(still, tmp_path / "b")
    assert len(remarks) == 1


def test_each_epoch_has_an_order_of_its_own(config, tmp_path):
    names = tuple("abcdefgh")
    orders = {tuple(plan_epoch(names, seed=0, epoch=e, batch_size=3)) for e in range(20)}
    assert len(orders) == 20
    for order in orders:
        assert sorted(name for batch in order for name in batch) == list(names)
    assert len({tuple(plan) for plan in loop_of(config, tmp_path).plans}) == 3
    limits = {"batch_size": 3, "max_instances": 5, "size": lambda n: ord(n) - 96}
    limited = plan_epoch(names, seed=0, epoch=0, order=names, **limits)
    assert limited == [("a", "b"), ("c",), ("d",), ("e",), ("f",), ("g",), ("h",)]


def test_standardisation_is_of_the_training_part_and_kept(config, tmp_path):
    config = with_data(config, standardize=True)
    for file in config.data.features.glob("*.h5"):
        with h5py.File(file, "r+") as f:
            f["features"][:, 2] = 7.0  # a constant feature keeps its scale
    run = train(config, tmp_path / "a")
    prepared = prepare(config)
    x = torch.cat([prepared.bags.bag(n).x for n in prepared.split.train]).double()
    std = x.std(0, correction=0)
    std[2] = 1
    statistics = load_checkpoint(run.best).part("standardize")
    torch.testing.assert_close(statistics["mean"].double(), x.mean(0), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(statistics["deviation"].double(), std, rtol=1e-6, atol=1e-7)
    restored = Standardizer.restored(load_checkpoint(run.best), in_dim=6)
    assert torch.equal(restored.mean, statistics["mean"])


def test_class_weights_are_those_of_the_training_part(config, tmp_path):
    rows = [f"{k:03d},{int(k > 6)},{('val', 'train')[k % 4 > 0]}" for k in range(12)]
    config = relabel(config, rows)
    plain = train(config, tmp_path / "plain")
    weighed = train(with_training(config, balanced=True), tmp_path / "weighed")
    assert not same(plain, weighed)
    # of the nine training bags, five are negative
    class_weights = load_checkpoint(weighed.best).metadata["arguments"]["class_weights"]
    assert class_weights == pytest.approx([9 / (2 * 5), 9 / (2 * 4)])


def test_classes_of_the_table_and_of_validation(config, tmp_path):
    one = relabel(
        config, [f"{k:03d},{k % 2},{'val' if k in (1, 3) else 'train'}" for k in range(12)]
    )
    run = train(one, tmp_path / "one")  # a single class in validation
    assert [r["val_auroc"] for r in history_of(run)] == [None] * 3 and run.best.is_file()
    three = relabel(config, [f"{k:03d},{k % 3}" for k in range(12)], header="bag,label")
    run = train(three, tmp_path / "three")
    assert load_checkpoint(run.best).metadata["arguments"]["n_classes"] == 3
    note = relabel(config, [f"{k:03d},{k % 2},p" for k in range(12)], header="bag,label,grup")
    listener = Listener()
    train(with_training(note, epochs=1), tmp_path / "note", reporter=listener)
    assert any("'grup'" in note and "'group'" in note for note in listener.notes)


@pytest.mark.parametrize("model", ["abmil", "evidence-field", "mean-pool", "instance-lr"])
def test_one_class_in_training_is_refused_before_the_run_folder(config, tmp_path, model):
    rows = [f"{k:03d},{int(k > 3)},{'train' if k > 3 else 'val'}" for k in range(12)]
    config = replace(relabel(config, rows), model=model, model_arguments={})
    with pytest.raises(TableError):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def _without_a_bag(config):
    (config.data.features / "003.h5").unlink()
    return config


def _with_nan(config):
    with h5py.File(config.data.features / "004.h5", "r+") as f:
        f["features"][1, 2] = np.nan
    return config


@pytest.mark.parametrize(
    ("change", "error", "fact"),
    [
        (lambda c: with_data(c, graph=GraphOptions(kind="none")), GraphError, "--graph knn"),
        (_without_a_bag, TableError, "003"),
        (_with_nan, BagError, r"004.*row 1"),
        (lambda c: replace(c, model_arguments={"n_classes": 3}), InputError, "n_classes"),
        (
            lambda c: with_training(c, learning_rate=1e38, optimizer="sgd", warmup_epochs=0),
            InputError,
            "learning_rate",
        ),
    ],
)
def test_a_run_that_fails_before_its_first_epoch_leaves_nothing(
    config, tmp_path, change, error, fact
):
    with pytest.raises(error, match=fact):
        train(change(config), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_predictions_that_are_no_numbers_end_the_run_with_a_reason(config, tmp_path, monkeypatch):
    nothing = property(lambda out: out.logits.mean(1) * torch.nan)
    monkeypatch.setattr("probsa.models._base.Output.probability", nothing)
    with pytest.raises(InputError, match="epoch 1"):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_folder_that_exists_is_refused(config, tmp_path):
    train(config, tmp_path / "a")
    with pytest.raises(OutputExists, match=r"--resume.*--overwrite"):
        train(config, tmp_path / "a")
    train(config, tmp_path / "a", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="mine"):
        train(config, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(InputError, match="mine"):
        train(config, tmp_path / "mine", resume=True)


def test_tensorboard_events_are_written_where_it_is_installed(config, tmp_path):
    pytest.importorskip("tensorboard")
    run = train(with_training(config, tensorboard=True), tmp_path / "a")
    assert list((run.path / "tensorboard").glob("events*"))


def test_two_logits_are_trained_and_predicted(config, tmp_path):
    arguments = {"instance_loss": "svm", "n_classes": 2}
    config = replace(config, model="clam-mb", model_arguments=arguments)
    predictor = load(train(with_training(config, epochs=1), tmp_path / "run").path, device="cpu")
    p = predictor.predict([open_data(config.data).bag("001")])[0].probability
    assert predictor.task == "multiclass" and len(p) == 2 and np.isfinite(p).all()
