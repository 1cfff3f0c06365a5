"""Checks of the studies' rules and measures on cases with a known answer (`--check`)."""

import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from selection import RULES, mean_ranks, resampled_differences, winner_of
from sklearn.metrics import average_precision_score, roc_auc_score
from study_doubt import doubts
from study_metrics import auroc, average_precision, bag_losses, evidence_scale
from torch import nn
from trace_file import Trace, load, save
from trace_recorder import Averages

CHECK_EPOCHS = 8


def a_trace() -> Trace:
    """Return a trace with two validation bags, two test bags and a known course."""
    val = np.array([
        [0.5, 0.5], [0.6, 0.4], [0.1, 0.9], [0.4, 0.6],
        [0.3, 0.7], [0.2, 0.8], [0.7, 0.9], [0.9, 0.1],
    ])  # fmt: skip
    test = np.array([[0.2, 0.8]] * CHECK_EPOCHS)
    p = np.concatenate([val, test], axis=1).astype(np.float32)
    ema = p.copy()
    ema[:, :2] = [[0.3, 0.7]] * 3 + [[0.05, 0.95]] + [[0.3, 0.7]] * 4
    mean = np.arange(5, dtype=np.float16) * np.ones((CHECK_EPOCHS, 1), np.float16)
    parts = {
        "val": {"names": ["a", "b"], "labels": [0, 1], "sizes": [2, 2]},
        "test": {"names": ["c", "d"], "labels": [0, 1], "sizes": [2, 3]},
    }
    arrays = {
        "raw_p": p,
        "ema_p": ema,
        "average_p": p[-1:],
        "raw_mean": mean,
        "ema_mean": mean,
        "average_mean": mean[-1:],
        "instance_labels": np.array([0, 0, 1, 0, 1], dtype=np.int8),
        "instance_epochs": np.arange(1, CHECK_EPOCHS + 1),
    }
    header = {"data": "s", "method": {"name": "m"}, "kept": [2, 3], "score_kind": "logit", **parts}
    return Trace(header, arrays)


def check_rules() -> None:
    """Each rule chooses the epoch that follows from its definition."""
    trace = a_trace()
    chosen = {name: tuple(rule(trace)) for name, rule in RULES.items()}
    assert chosen["auroc"] == ("raw", 3), chosen  # AUROC 1 and the lowest NLL
    assert chosen["nll"] == ("raw", 3), chosen
    # the windows that end at epochs 5 to 8 have mean AUROCs .7, .8, 1 and .8
    assert chosen["smoothed"] == ("raw", 7), chosen
    # one pair of bags: its standard error is large, so the first epoch is within it
    assert chosen["one-se"] == ("raw", 1), chosen
    assert chosen["ema-nll"] == ("ema", 4), chosen
    assert chosen["average"] == ("average", 8), chosen
    assert chosen["last"] == ("raw", 8), chosen
    trace.arrays["instance_epochs"] = np.array([2, 4, 6, 8])  # others are no candidates
    assert RULES["nll"](trace) == ("raw", 6)
    assert RULES["smoothed"](trace)[1] in (6, 8)


def check_metrics() -> None:
    """AUROC and average precision are those of scikit-learn, with ties."""
    rng = np.random.default_rng(0)
    for n in (5, 40, 300):
        y, score = rng.random(n) < 0.3, rng.integers(0, n // 3 + 2, n).astype(float)
        y[:2] = True, False
        assert abs(auroc(y, score) - roc_auc_score(y, score)) < 1e-12
        assert abs(average_precision(y, score) - average_precision_score(y, score)) < 1e-12


def check_ranking() -> None:
    """Ranks, ties and the winner follow the criterion."""
    nan = np.nan
    runs = {
        "auroc": np.array([[0.5, 0.9, 0.8, nan], [0.7, 0.9, 0.8, nan]]),
        "last": np.array([[0.4, 0.8, 0.8, nan], [0.4, 0.8, 0.8, nan]]),
    }
    ranks = mean_ranks({("s", "m"): runs})
    assert ranks == {"auroc": 1.5, "last": 1.5}, ranks
    assert winner_of(ranks, {"auroc": 0.6, "last": 0.4}) == "last"
    assert winner_of({"a": 1.0, "b": 1.2}, {"a": 0.9, "b": 0.1}) == "a"
    drawn = resampled_differences([("s", 0), ("s", 1)], runs, "last", resamples=20)
    assert np.allclose(drawn[0, :3], [-0.2, -0.1, 0.0])
    assert set(drawn[1:, 0].round(6)) <= {-0.1, -0.2, -0.3}


def check_measures() -> None:
    """The measures of bags and instances."""
    assert math.isclose(bag_losses(np.array([1]), np.array([0.25]))[0], math.log(4))
    assert auroc([0, 1], [0.1, 0.2]) == 1.0
    assert math.isnan(auroc([1, 1], [0.1, 0.2]))
    assert average_precision([0, 1, 1], [0.1, 0.3, 0.2]) == 1.0
    equal = evidence_scale(np.full(7, 3.0), kind="logit", has_zero=False)
    assert equal is not None
    assert np.allclose(equal, 0)
    assert evidence_scale(np.array([1.0]), kind="relevance", has_zero=False) is None
    doubt = doubts(np.array([[1.0, -2.0], [3.0, -2.0]]), np.zeros((2, 2)))
    assert np.allclose(doubt["margin"], [-2, -2])
    assert np.allclose(doubt["sd between"], [math.sqrt(2), 1e-6])
    assert "sd within" not in doubt
    assert "Φ total" not in doubt  # the same as between


def check_file() -> None:
    """A trace is read as it was written, and its bags are told apart."""
    trace = a_trace()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "s" / "m" / "f0_s0.npz"
        save(path, trace)
        again = load(path)
    assert again.header == trace.header
    bags = list(again.instances("raw", 2))
    assert [b.name for b in bags] == ["c", "d"]
    assert bags[1].mean.tolist() == [2, 3, 4]
    assert bags[1].has_both
    assert not bags[0].has_both
    assert not list(again.instances("raw", 2, part="val"))
    assert np.allclose(again.test_probability("average", 8), [0.2, 0.8])


def check_averages() -> None:
    """The averages of weights, and that a module has its own weights back."""
    module = nn.Linear(2, 1)
    module.register_buffer("log_kappa", torch.tensor(0.0))
    start = module.weight.detach().clone()
    averages = Averages(module, decay=0.9)
    with torch.no_grad():
        module.weight += 1
        module.log_kappa += 2
    averages.after_step()
    averages.add_epoch()
    with averages.swapped(averages.ema):
        assert torch.allclose(module.weight, start + 0.1)
        assert math.isclose(float(module.log_kappa), 0.2, abs_tol=1e-6)
    assert torch.allclose(module.weight, start + 1)
    with averages.swapped(averages.average):
        assert torch.allclose(module.weight, start + 1)


def check_all() -> None:
    """Run every check."""
    for check in (
        check_rules, check_metrics, check_ranking, check_measures, check_file, check_averages,
    ):  # fmt: skip
        check()
        print(f"{check.__name__}: passed")
