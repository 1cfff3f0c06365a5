"""Training: choice of the best epoch, schedules, options, and runs that are refused."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score
from support.stored import write_folder

from probsa.core import GraphOptions
from probsa.errors import BagError, GraphError, InputError, OutputExists, TableError
from probsa.evaluation import load
from probsa.training import Reporter, RunFolder, plan_epoch, train
from probsa.training.checkpoints import load_checkpoint
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.devices import World
from probsa.training.loop import TrainingLoop
from probsa.training.optimizers import set_learning_rate
from probsa.training.preparation import Standardizer, prepare
from probsa.training.validation import is_better
from probsa.training.validation import validation_scores


class Listener(Reporter):
    """Keeps the rows that it is given."""

    def __init__(self):
        self.rows = []

    def epoch(self, row):
        self.rows.append(dict(row))


@pytest.fixture
def config(tmp_path):
    features, labels = write_folder(tmp_path / "data")
    return RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="abmil-probsa-diag",
        model_arguments={"embed": 8, "attention_dim": 4, "samples": 4, "predict_samples": 50},
        training=TrainingConfig(
            epochs=3, batch_size=2, device="cpu", tensorboard=False, learning_rate=1e-2
        ),
    )


def with_training(config, **changed):
    return replace(config, training=replace(config.training, **changed))


def weights(folder, which="last"):
    return load_checkpoint(getattr(folder, which)).part("model")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_run_folder_holds_everything(config, tmp_path):
    listener = Listener()
    run = train(config, tmp_path / "run", reporter=listener)
    with run.metrics_file.open() as f:
        rows = list(csv.DictReader(f))
    assert [r["epoch"] for r in rows] == ["1", "2", "3"]
    assert {"nll", "kl", "loss", "kl_weight", "val_auroc", "val_nll"} <= rows[0].keys()
    assert [r["val_nll"] for r in listener.rows] == [float(r["val_nll"]) for r in rows]
    assert run.config() == config
    split = json.loads(run.split_file.read_text())
    assert len(split["test"]) == 4 and len(split["val"]) == 4 and len(split["train"]) == 4
    assert json.loads((run.path / "about.json").read_text())["torch"] == torch.__version__
    assert not list(run.path.rglob("*.tmp"))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(config, tmp_path):
    a = train(config, tmp_path / "a")
    b = train(config, tmp_path / "b")
    c = train(replace(config, seed=1), tmp_path / "c")
    assert same(weights(a), weights(b))
    assert not same(weights(a), weights(c))


def test_training_leaves_the_global_generator_as_it_was(config, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(config, tmp_path / "a")
    assert torch.equal(before, torch.get_rng_state())


def test_best_is_the_highest_auroc_then_the_lowest_nll(config, tmp_path):
    run = train(with_training(config, epochs=8), tmp_path / "a")
    history = load_checkpoint(run.last).metadata["progress"]["history"]
    best = load_checkpoint(run.best).metadata["progress"]["epoch"]
    ranked = sorted(history, key=lambda r: (-(r["val_auroc"]), r["val_nll"], r["epoch"]))
    assert best == ranked[0]["epoch"]


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 4},
        {"batch_size": 3},
        {"max_instances": 9},
        {"optimizer": "sgd"},
        {"optimizer": "adamw", "weight_decay": 0.5},
        {"optimizer": "radam"},
        {"schedule": "cosine"},
        {"schedule": "step", "schedule_epochs": 2},
        {"learning_rate": 2e-2},
        {"warmup_epochs": 0},
        {"weight_decay": 0.1},
        {"kl_weight": 0.3},
        {"kl_weight": "linear"},
        {"clip_norm": 1e-2},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_every_option_changes_the_weights(config, tmp_path, change):
    plain = train(config, tmp_path / "plain")
    other = train(with_training(config, **change), tmp_path / "other")
    assert not same(weights(plain), weights(other))


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({"schedule": "step", "schedule_epochs": 1}, {"schedule_factor": 0.5}),
        ({"schedule": "step"}, {"schedule_epochs": 1}),
        ({"weight_decay": 0.5}, {"decay_vectors": False}),
    ],
    ids=str,
)
def test_an_option_of_an_option_changes_the_weights(config, tmp_path, base, change):
    plain = train(with_training(config, **base), tmp_path / "plain")
    other = train(with_training(config, **base, **change), tmp_path / "other")
    assert not same(weights(plain), weights(other))


def test_a_plateau_of_the_validation_loss_lowers_the_rate(config, tmp_path):
    run = train(
        with_training(
            config,
            epochs=9,
            learning_rate=1e-8,
            warmup_epochs=0,
            schedule="plateau",
            schedule_epochs=2,
        ),
        tmp_path / "a",
    )
    rows = load_checkpoint(run.last).metadata["progress"]["history"]
    # steps of this size change nothing: after the first epoch, the loss never falls by 1e-4
    assert max(r["val_nll"] for r in rows) - min(r["val_nll"] for r in rows) < 1e-4
    rates = [1, 1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008]
    assert [r["learning_rate"] for r in rows] == pytest.approx(
        [1e-8 * r for r in rates], rel=1e-9, abs=0
    )


def test_a_plateau_needs_bags_that_validate(config, tmp_path):
    split = tmp_path / "splits_0.csv"
    names = [f"{k:03d}" for k in range(12)]
    split.write_text(
        "\n".join([",train,val,test", *(f"{k},{n},," for k, n in enumerate(names[:8])), "8,,,011"])
    )
    config = replace(config, data=replace(config.data, test_fold=None, split=split))
    train(config, tmp_path / "a")
    with pytest.raises(
        InputError, match=r"schedule is 'plateau', .* but there are no validation bags"
    ):
        train(with_training(config, schedule="plateau"), tmp_path / "b")


def test_class_weights_change_an_unbalanced_run_alone(config, tmp_path):
    labels = config.data.labels
    rows = labels.read_text().splitlines()
    labels.write_text(
        "\n".join([rows[0], *(r for r in rows[1:] if not r.startswith("005"))]) + "\n"
    )
    (config.data.features / "005.h5").unlink()
    plain = train(config, tmp_path / "plain")
    weighed = train(with_training(config, balanced=True), tmp_path / "weighed")
    assert not same(weights(plain), weights(weighed))
    class_weights = load_checkpoint(weighed.best).metadata["arguments"]["class_weights"]
    train_bags = json.loads(weighed.split_file.read_text())["train"]
    positive = sum(int(b) % 2 for b in train_bags)
    expected = [
        len(train_bags) / (2 * (len(train_bags) - positive)),
        len(train_bags) / (2 * positive),
    ]
    assert class_weights == pytest.approx(expected)


def test_a_model_without_a_kl_ignores_its_weight(config, tmp_path):
    plain = replace(config, model="abmil", model_arguments={"embed": 8, "attention_dim": 4})
    a = train(with_training(plain, kl_weight=0.0), tmp_path / "a")
    b = train(with_training(plain, kl_weight=1.0), tmp_path / "b")
    assert same(weights(a), weights(b))


def test_worker_processes_change_nothing(config, tmp_path):
    a = train(config, tmp_path / "a")
    b = train(with_training(config, workers=2), tmp_path / "b")
    assert same(weights(a), weights(b))


def test_predictions_that_are_no_numbers_end_the_run_with_a_reason(config, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "probsa.models._base.Output.probability",
        property(lambda out: out.logits.mean(1) * torch.nan),
    )
    with pytest.raises(InputError, match="epoch 1: validation bags are predicted as NaN"):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_patience_stops_early(config, tmp_path):
    run = train(with_training(config, epochs=60, patience=2, learning_rate=0.0), tmp_path / "a")
    assert len(load_checkpoint(run.last).metadata["progress"]["history"]) == 3


def test_tensorboard_events_are_written_where_it_is_installed(config, tmp_path):
    pytest.importorskip("tensorboard")
    run = train(with_training(config, tensorboard=True), tmp_path / "a")
    assert list((run.path / "tensorboard").glob("events*"))


def test_standardisation_is_of_the_training_part_and_kept(config, tmp_path):
    config = replace(config, data=replace(config.data, standardize=True))
    run = train(config, tmp_path / "a")
    prepared = prepare(config)
    x = torch.cat([prepared.bags.bag(n).x for n in prepared.split.train]).double()
    statistics = load_checkpoint(run.best).part("standardize")
    torch.testing.assert_close(statistics["mean"].double(), x.mean(0), rtol=1e-6, atol=1e-7)
    std = x.std(0, correction=0)
    torch.testing.assert_close(statistics["deviation"].double(), std, rtol=1e-6, atol=1e-7)


def test_a_constant_feature_keeps_its_scale(config, tmp_path):
    import h5py

    for file in config.data.features.glob("*.h5"):
        with h5py.File(file, "r+") as f:
            f["features"][:, 2] = 7.0
    bags = open_data(config.data)
    standardizer = Standardizer.fit(bags, bags.names)
    assert standardizer.deviation[2] == 1 and standardizer.mean[2] == 7


def test_the_learning_rate_follows_linear_lr():
    parameter = torch.nn.Parameter(torch.zeros(1))
    ours = torch.optim.SGD([parameter], lr=1e-4)
    theirs = torch.optim.SGD([parameter], lr=1e-4)
    parameter.grad = torch.zeros(1)
    reference = torch.optim.lr_scheduler.LinearLR(theirs, start_factor=0.1, total_iters=10)
    for epoch in range(15):
        rate = set_learning_rate(ours, TrainingConfig(), epoch=epoch)
        assert rate == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9)
        theirs.step()
        reference.step()


def test_validation_with_one_class_is_undefined_not_half():
    scores = validation_scores([1, 1], [[0.2], [0.9]])
    assert scores["val_auroc"] is None
    assert scores["val_nll"] == pytest.approx(-(torch.tensor([0.2, 0.9]).log()).mean().item())
    assert validation_scores([], []) == {"val_auroc": None, "val_nll": None}
    two = validation_scores([0, 1], [[0.7, 0.3], [0.2, 0.8]])
    assert two["val_auroc"] == 1.0
    three = validation_scores([0, 1, 2], [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7]])
    assert three["val_auroc"] == 1.0


def test_the_auroc_of_several_classes_is_one_against_the_rest():
    rng = np.random.default_rng(0)
    y = rng.choice(4, size=60, p=[0.6, 0.25, 0.1, 0.05])  # unbalanced: one-vs-one differs
    p = rng.dirichlet(np.ones(4), size=60)
    p[np.arange(60), y] += 0.3
    p /= p.sum(1, keepdims=True)
    got = validation_scores(y.tolist(), p.tolist())["val_auroc"]
    ranks = [rankdata(p[:, c]) for c in range(4)]
    one_against_rest = [
        (r[y == c].mean() - ((y == c).sum() + 1) / 2) / (y != c).sum() for c, r in enumerate(ranks)
    ]
    assert got == pytest.approx(np.mean(one_against_rest), abs=1e-12)
    assert abs(got - roc_auc_score(y, p, multi_class="ovo")) > 1e-3


def test_each_epoch_has_an_order_of_its_own(config, tmp_path):
    names = tuple("abcdefgh")
    orders = {
        epoch: tuple(plan_epoch(names, seed=0, epoch=epoch, batch_size=3)) for epoch in range(20)
    }
    assert len(set(orders.values())) == 20
    assert all(sorted(n for b in o for n in b) == list(names) for o in orders.values())
    # and the loop asks for the order of its epoch, not always for the same
    data = prepare(config)
    loop = TrainingLoop(config, RunFolder(tmp_path), data, device=torch.device("cpu"),
                       world=World(), reporter=Reporter())  # fmt: skip
    assert len({tuple(plan) for plan in loop.plans}) == config.training.epochs > 1


def test_one_class_in_validation_trains_to_the_end(config, tmp_path):
    rows = ["bag,label,split"]
    rows += [f"{k:03d},{k % 2},{'val' if k in (1, 3) else 'train'}" for k in range(12)]
    config.data.labels.write_text("\n".join(rows) + "\n")
    config = replace(config, data=replace(config.data, test_fold=None))
    run = train(config, tmp_path / "a")
    with run.metrics_file.open() as f:
        assert [r["val_auroc"] for r in csv.DictReader(f)] == ["", "", ""]
    assert run.best.is_file()


@pytest.mark.parametrize("model", ["abmil", "evidence-field", "mean-pool", "instance-lr"])
def test_one_class_in_training_is_refused_before_the_run_folder(config, tmp_path, model):
    rows = [f"{k:03d},{int(k > 3)},{'train' if k > 3 else 'val'}" for k in range(12)]
    config.data.labels.write_text("\n".join(["bag,label,split", *rows]) + "\n")
    data = replace(config.data, test_fold=None)
    config = replace(config, data=data, model=model, model_arguments={})
    with pytest.raises(TableError, match=r"all 8 training bags are of class 1, .* another class"):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_column_that_is_probably_misspelt_is_noted_before_training(config, tmp_path):
    """Patients would otherwise be divided between the parts without a word."""
    header, *rows = config.data.labels.read_text().splitlines()
    config.data.labels.write_text("\n".join([f"{header},grup", *(f"{r},p" for r in rows)]) + "\n")
    said = []

    class Hearing(Reporter):
        def note(self, text):
            said.append(text)

    train(with_training(config, epochs=1), tmp_path / "run", reporter=Hearing())
    (note,) = [text for text in said if text.startswith("note: ")]
    assert "the column 'grup' of" in note and "rename it to 'group'" in note


def test_three_classes(config, tmp_path):
    rows = ["bag,label"] + [f"{k:03d},{k % 3}" for k in range(12)]
    config.data.labels.write_text("\n".join(rows) + "\n")
    config = replace(config, data=replace(config.data, test_fold=None))
    run = train(config, tmp_path / "a")
    assert load_checkpoint(run.best).metadata["arguments"]["n_classes"] == 3


def test_a_diverging_run_says_so(config, tmp_path):
    config = with_training(config, learning_rate=1e38, optimizer="sgd", warmup_epochs=0)
    with pytest.raises(InputError, match=r"epoch \d+: .* Try a lower learning_rate"):
        train(config, tmp_path / "a")


def test_an_empty_graph_where_one_is_needed(config, tmp_path):
    config = replace(config, data=replace(config.data, graph=GraphOptions(kind="none")))
    says = "needs neighbours, but no training bag .* --graph knn .* --model abmil"
    with pytest.raises(GraphError, match=says):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    train(replace(config, model="abmil", model_arguments={"embed": 8}), tmp_path / "b")


def test_a_folder_that_exists_is_refused(config, tmp_path):
    train(config, tmp_path / "a")
    with pytest.raises(OutputExists, match=r"--resume.*--overwrite"):
        train(config, tmp_path / "a")
    train(config, tmp_path / "a", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not a run folder, so it is not overwritten"):
        train(config, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(InputError, match="nothing to resume"):
        train(config, tmp_path / "mine", resume=True)


def test_bags_and_labels_must_match_and_nothing_is_left_behind(config, tmp_path):
    (config.data.features / "003.h5").unlink()
    with pytest.raises(TableError, match="003"):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_run_refused_before_its_first_epoch_leaves_nothing(config, tmp_path):
    import h5py
    import numpy as np

    with h5py.File(config.data.features / "004.h5", "r+") as f:
        f["features"][1, 2] = np.nan
    with pytest.raises(BagError, match=r"004.*row 1"):
        train(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_more_classes_than_the_table_has_are_refused_before_training(config, tmp_path):
    arguments = {**config.model_arguments, "n_classes": 3}
    with pytest.raises(InputError, match=r"n_classes is 3, but .* has 2 classes"):
        train(replace(config, model_arguments=arguments), tmp_path / "a")
    arguments["n_classes"] = 2
    run = train(replace(config, model_arguments=arguments), tmp_path / "b")
    assert weights(run)["classifier.weight"].shape[0] == 2


@pytest.mark.parametrize(
    ("model", "select", "loss", "nll"),
    [
        ("abmil-probsa-diag", "auroc", [1.795238, 1.778104, 1.768453], 0.699555),
        ("evidence-field", "ema-nll", [0.963541, 0.868797, 0.782754], 0.673445),
    ],
)
def test_a_seed_gives_the_numbers_that_it_always_gave(config, tmp_path, model, select, loss, nll):
    """Initial weights, order of the bags, noise and steps; the same since the first version."""
    run = train(with_training(replace(config, model=model), select=select), tmp_path / "a")
    progress = load_checkpoint(run.last).metadata["progress"]
    assert [r["loss"] for r in progress["history"]] == pytest.approx(loss, rel=2e-4)
    assert progress["best"]["val_nll"] == pytest.approx(nll, rel=2e-4)


def test_every_step_has_noise_of_its_own(config, tmp_path, monkeypatch):
    from probsa.training import loop

    keys = []
    real = loop.random_stream
    monkeypatch.setattr(loop, "random_stream", lambda *n, **k: (keys.append(n), real(*n, **k))[1])
    train(config, tmp_path / "a")
    assert keys == [(0, "noise", step) for step in range(6)]  # 3 epochs of 2 steps


def test_validation_is_in_eval_without_gradients(config, tmp_path, monkeypatch):
    from probsa.models.probsa import ProbSA

    seen = []
    real = ProbSA.forward

    def spied(self, bags, **given):
        seen.append((self.training, torch.is_grad_enabled()))
        return real(self, bags, **given)

    monkeypatch.setattr(ProbSA, "forward", spied)
    train(config, tmp_path / "a")
    assert seen == ([(True, True)] * 2 + [(False, False)] * 2) * 3  # 4 bags each, two at a time


@pytest.mark.parametrize(
    ("auroc", "nll", "better"),
    [(0.9, 9.0, True), (0.7, 0.1, False), (0.8, 0.4, True), (0.8, 0.5, False), (0.8, 0.6, False)],
)
def test_ties_go_to_the_lower_nll_then_to_the_earlier_epoch(auroc, nll, better):
    best = {"epoch": 1, "val_auroc": 0.8, "val_nll": 0.5}
    assert is_better({"val_auroc": auroc, "val_nll": nll}, best) is better


@pytest.mark.parametrize(
    ("model", "arguments", "task"),
    [
        ("clam-mb", {"instance_loss": "svm", "n_classes": 2}, "multiclass"),
        ("dsmil", {"labels": "independent", "n_classes": 2}, "multiclass"),
    ],
)
def test_losses_that_replace_the_likelihood_are_trained_and_predicted(
    config, tmp_path, model, arguments, task
):
    config = replace(config, model=model, model_arguments=arguments)
    run = train(with_training(config, epochs=1), tmp_path / "run")
    predictor = load(run.path, device="cpu")
    assert predictor.task == task
    p = next(predictor.predict([open_data(config.data).bag("001")]))
    assert len(p.probability) == arguments.get("n_classes", 1)
    assert np.isfinite(p.probability).all()
