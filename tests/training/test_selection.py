"""The choice of the epoch, averages of weights, and that both survive an interruption."""

import math
import random
from dataclasses import replace

import pytest
import torch
from support.stored import write_folder

from probsa.errors import InputError
from probsa.evaluation import load
from probsa.models import build
from probsa.training import (
    Reporter,
    full_name,
    load_checkpoint,
    open_data,
    prepare,
    read_run,
    read_split,
    train,
    train_jointly,
)
from probsa.training.averaging import WeightAverage, exponential_rate, first_averaged_epoch
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.devices import World
from probsa.training.run_folder import RunFolder
from probsa.training.selection import (
    SELECT,
    Candidates,
    candidates,
    check_selection,
    is_better,
    standard_error,
)
from probsa.training.single import single_loop
from probsa.training.validation import validation_scores


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


def chosen(rule, history, *, epochs=None, counts=(9, 8)):
    return candidates(rule, history, epochs=epochs or len(history), counts=counts)[0]


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
    assert chosen("last", rows) == chosen("average", rows) == len(rows)

    def window(end):
        part = rows[end - 5 : end]
        return sum(r["val_auroc"] for r in part), -sum(r["val_nll"] for r in part), -end

    assert chosen("smoothed", rows) == max(range(5, len(rows) + 1), key=lambda e: (
        round(window(e)[0], 9), round(window(e)[1], 9), -e
    ))  # fmt: skip
    top = max(r["val_auroc"] for r in rows)
    bound = top - standard_error(top, (9, 8))
    assert chosen("one-se", rows) == next(r["epoch"] for r in rows if r["val_auroc"] >= bound)


@pytest.mark.parametrize("rule", SELECT)
@pytest.mark.parametrize("seed", range(5))
def test_an_epoch_that_is_dropped_is_never_needed_again(rule, seed):
    rows, kept = random_history(seed), ()
    for k in range(len(rows)):
        now = candidates(rule, rows[: k + 1], epochs=len(rows), counts=(9, 8))
        assert set(now) <= {*kept, k + 1}
        assert rule == "one-se" or len(now) == 1
        kept = now


def test_a_few_cases_by_hand():
    rows = history_of([0.9, 0.5, 0.7, 0.7, 0.7, 0.7, 0.8], [3.0, 2.0, 1.0, 1.0, 0.5, 1.0, 0.4])
    assert chosen("auroc", rows) == 1
    assert chosen("nll", rows) == 7
    assert chosen("smoothed", rows[:4], epochs=7) == 4  # no window is complete: the latest
    assert chosen("smoothed", rows) == 7
    assert chosen("smoothed", rows[:3]) == 3  # a training of three epochs has a window of three
    rising = history_of([0.5, 0.8, 0.86, 0.90])
    assert candidates("one-se", rising, epochs=4, counts=(58, 51)) == (4,)
    assert candidates("one-se", rising, epochs=4, counts=(9, 8)) == (3, 4)


def test_without_an_auroc_the_nll_decides():
    rows = history_of([None, None, None], [2.0, 1.0, 1.5])
    for rule in ("auroc", "one-se", "smoothed"):
        assert chosen(rule, rows) == (3 if rule == "smoothed" else 2)


def test_the_standard_error_is_that_of_hanley_and_mcneil():
    assert standard_error(0.893, (58, 51)) == pytest.approx(0.0325, abs=1e-4)  # their example
    assert standard_error(0.893, (58, 51)) == pytest.approx(
        math.sqrt(
            (0.893 * 0.107 + 50 * (0.893 / 1.107 - 0.893**2)
             + 57 * (2 * 0.893**2 / 1.893 - 0.893**2)) / (58 * 51)
        )
    )  # fmt: skip
    assert 0 < standard_error(1.0, (9, 8)) < standard_error(0.9, (9, 8))
    assert standard_error(0.2, (9, 8)) == standard_error(0.5, (9, 8))
    three = standard_error(0.8, (5, 6, 7))
    assert min(standard_error(0.8, (18 - n, n)) for n in (5, 6, 7)) <= three < 0.2


def test_candidates_keep_what_may_still_be_chosen():
    kept = Candidates()
    weights = [{"w": torch.tensor(float(k))} for k in range(4)]
    assert kept.keep((1,), latest=1, weights=lambda: weights[1])
    assert not kept.keep((1, 2), latest=2, weights=lambda: weights[2])
    again = Candidates()
    stored = {k.removeprefix("c."): v for k, v in kept.tensors("c", chosen=False).items()}
    assert list(stored) == ["2.w"]
    again.restore(stored, chosen=1)
    for one in (kept, again):
        assert one.keep((2, 3), latest=3, weights=lambda: weights[3])
        assert one.chosen == 2 and {e: float(w["w"]) for e, w in one.weights.items()} == {
            2: 2,
            3: 3,
        }


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
    return single_loop(
        config, RunFolder(out), prepare(config), device=torch.device("cpu"),
        world=World(), reporter=Reporter(),
    )  # fmt: skip


def test_the_exponential_average_is_that_of_all_steps(config, tmp_path):
    """Σ (1 − d) dᵗ⁻ⁱ wᵢ / (1 − dᵗ), by brute force over the weights after each step."""
    loop = loop_of(selecting(config, "ema-nll"), tmp_path / "run")
    (group,) = loop.groups
    seen, step = [], loop.step

    def watched(*args):
        terms = step(*args)
        seen.append({k: v.double().clone() for k, v in group.model.state_dict().items()})
        return terms

    loop.step = watched
    for _ in range(2):
        loop.train_epoch()
        loop.state.epoch += 1
    assert len(seen) > 4
    d, t = 0.9, len(seen)
    for name, value in group.average.tensors.items():
        parts = [(1 - d) * d ** (t - 1 - i) * w[name] for i, w in enumerate(seen)]
        expected = torch.stack(parts).sum(0) / (1 - d**t)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_average_of_the_last_quarter_is_the_mean_of_its_epochs(config, tmp_path):
    config = selecting(config, "average")
    loop = loop_of(config, tmp_path / "run")
    seen = []
    for epoch in range(1, 9):
        loop.train_epoch()
        loop.state.epoch += 1
        seen.append({k: v.clone() for k, v in loop.groups[0].model.state_dict().items()})
        assert bool(loop.groups[0].average.tensors) == (epoch >= first_averaged_epoch(8) == 7)
    for name, value in loop.groups[0].average.tensors.items():
        torch.testing.assert_close(value, (seen[6][name] + seen[7][name]) / 2)
    assert [first_averaged_epoch(n) for n in (1, 2, 4, 5, 100)] == [1, 2, 4, 4, 76]
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
    expected = candidates(rule, progress["history"], epochs=8, counts=(5, 5))[0]
    assert best["epoch"] == expected


def test_the_rules_keep_different_weights(config, tmp_path):
    kept = {r: load_checkpoint(train(selecting(config, r), tmp_path / r).best) for r in SELECT}
    weights = {r: kept[r].part("model")["classifier.weight"] for r in SELECT}
    for rule in ("nll", "smoothed", "ema-nll", "average", "last"):
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
    assert any(n.startswith("average.") for n in names) == (rule in ("ema-nll", "average"))
    for at in (2, 5, 7):
        with pytest.raises(Stopped):
            train(config, tmp_path / "broken", resume=True, reporter=Breaker(at))
    assert_same_run(whole, train(config, tmp_path / "broken", resume=True))


@pytest.mark.parametrize("rule", ["one-se", "ema-nll", "average", "smoothed"])
def test_joint_runs_choose_as_alone_and_resume(config, tmp_path, rule):
    config = selecting(config, rule)
    configs = [config, replace(config, seed=1)]
    outs = [tmp_path / "a", tmp_path / "b"]
    whole = train_jointly(configs, outs, state=tmp_path / "state")
    parts = [tmp_path / "c", tmp_path / "d"]
    for at in (3, 7):
        with pytest.raises(Stopped):
            train_jointly(
                configs, parts, state=tmp_path / "s", reporter=Breaker(at), save_every=0.0
            )
    resumed = train_jointly(configs, parts, state=tmp_path / "s")
    for k, (one, other) in enumerate(zip(whole, resumed, strict=True)):
        assert_same_run(one, other)
        alone = train(configs[k], tmp_path / f"alone{k}")
        for a, b in zip(contents(alone), contents(one), strict=True):
            assert a.tensors.keys() == b.tensors.keys()
            assert (
                a.metadata["progress"]["best"]["epoch"] == b.metadata["progress"]["best"]["epoch"]
            )
            for name, value in a.tensors.items():
                torch.testing.assert_close(b.tensors[name], value, rtol=5e-3, atol=1e-4, msg=name)


def test_patience_follows_the_rule(config, tmp_path):
    config = selecting(config, "nll", patience=2, epochs=60, learning_rate=0.1)
    run = train(config, tmp_path / "run")
    progress = load_checkpoint(run.last).metadata["progress"]
    assert progress["epoch"] == progress["best"]["epoch"] + 2 < 60
    assert progress["best"]["val_nll"] == min(r["val_nll"] for r in progress["history"])


def test_what_a_rule_cannot_do_is_refused(config, tmp_path):
    models = {n: build(n, in_dim=4) for n in ("abmil", "transmil", "iibmil", "gtp")}
    smooth = build("smabmil", in_dim=4)
    for rule in ("ema-nll", "average"):
        for name, words in (("iibmil", "keeps a memory"), ("gtp", "couples the bags")):
            with pytest.raises(InputError, match=f"select is '{rule}'.*{name} {words}"):
                check_selection(
                    rule, [models["abmil"], models[name]], patience=None, validation=True
                )
        check_selection(rule, [models["abmil"], models["transmil"]], patience=None, validation=True)
    with pytest.raises(InputError, match="smabmil normalises its weights"):
        check_selection("average", [smooth], patience=None, validation=True)
    flags = {"features": "x", "labels": "y", "model": "gtp", "select": "average"}
    with pytest.raises(InputError, match="gtp couples the bags"):
        read_run(None, {full_name(k): v for k, v in flags.items()})
    for rule in ("last", "average"):
        with pytest.raises(InputError, match=f"select is '{rule}'.*but patience is 3"):
            train(selecting(config, rule, patience=3), tmp_path / "run")
        check_selection(rule, [models["abmil"]], patience=None, validation=False)
    assert not (tmp_path / "run").exists()
    for rule in ("nll", "smoothed", "one-se", "ema-nll"):
        with pytest.raises(InputError, match=f"select is '{rule}'.*validation bags, but there are"):
            check_selection(rule, [models["abmil"]], patience=None, validation=False)
    check_selection("auroc", [models["gtp"]], patience=3, validation=False)


def test_a_run_without_validation_bags_keeps_its_last_epoch(config, tmp_path):
    split = tmp_path / "splits_0.csv"
    rows = [f"{k},{k:03d},,{k + 24:03d}" if k < 6 else f"{k},{k:03d},," for k in range(24)]
    split.write_text("\n".join([",train,val,test", *rows]) + "\n")
    config = replace(config, data=replace(config.data, test_fold=None, split=split))
    assert not prepare(config).split.val
    for rule in ("last", "average", "auroc"):
        run = train(selecting(config, rule), tmp_path / rule)
        assert load_checkpoint(run.best).metadata["progress"]["best"]["epoch"] == 8
    with pytest.raises(InputError, match=r"select is 'nll'.*choose last or average"):
        train(selecting(config, "nll"), tmp_path / "nll")
    assert not (tmp_path / "nll").exists()
