"""The rival that is linear in the mean of the features: its fit, its file, and its report."""

import json

import h5py
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from support.made_targets import KEYS, run_keys, write_targets

from probsa.core import TextTable
from probsa.errors import CheckpointError, InputError
from probsa.evaluation import evaluate, load, read_predictions
from probsa.tasks import TASKS
from probsa.training import read_run, save_checkpoint
from probsa.variational import Categorical, LikelihoodSpec, build_likelihood
from probsa.workflow import predict_folder, train_and_report
from probsa.workflow.mean_features import RIDGES, MeanFeatures, fit_linear, fit_mean_features

RIVAL = "mean of the features"


def made(bags=80, width=5, seed=0):
    g = np.random.default_rng(seed)
    x = g.normal(size=(bags, width))
    return x, x @ g.normal(size=width) + 0.5 * g.normal(size=bags)


def test_of_classes_it_is_a_logistic_regression():
    x, score = made()
    y = (score > 0).astype(int) + (score > 1)
    likelihood = Categorical().double()
    decay = 0.05
    linear = fit_linear(likelihood, torch.tensor(x), torch.tensor(y), columns=3, decay=decay)
    theirs = LogisticRegression(C=1 / (len(x) * decay), tol=1e-10, max_iter=5000).fit(x, y)
    ours = torch.softmax(linear(torch.tensor(x)), 1).detach().numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(x), atol=1e-4)


def test_of_numbers_it_is_a_ridge_regression():
    x, y = made()
    spec = LikelihoodSpec(task="regression", noise=2.0, shift=float(y.mean()), scale=2.0)
    likelihood = build_likelihood(spec).double()
    linear = fit_linear(likelihood, torch.tensor(x), torch.tensor(y), columns=1, decay=0.3)
    # with v = 1 the loss is (y - μ)² / 2 in standardised units
    theirs = Ridge(alpha=0.3 * len(x)).fit(x, (y - y.mean()) / 2)
    np.testing.assert_allclose(linear.weight.detach().numpy()[0], theirs.coef_, atol=1e-6)


def test_validation_bags_choose_the_penalty(monkeypatch):
    x, y = (torch.tensor(v) for v in made(bags=400, width=30))
    spec = LikelihoodSpec(task="regression", shift=0.0, scale=1.0)
    likelihood = build_likelihood(spec).double()
    noise = torch.tensor(np.random.default_rng(1).normal(size=400))
    weights = []
    for target in (y, noise):
        fitted = fit_mean_features(
            likelihood,
            train=(x[:200], target[:200]),
            validation=(x[200:], target[200:]),
            columns=1,
        )
        weights.append(float(fitted.linear.weight.detach().norm()))
    assert weights[1] < 0.2 * weights[0]  # where nothing can be learned, the penalty is large
    chosen = fit_mean_features(likelihood, train=(x, y), validation=None, columns=1)
    monkeypatch.setattr("probsa.workflow.mean_features.RIDGES", (RIDGES[2],))
    only = fit_mean_features(likelihood, train=(x, y), validation=(x, y), columns=1)
    assert torch.equal(chosen.linear.weight, only.linear.weight)
    assert not likelihood.log_variance.any()  # the run's own likelihood is left as it was


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_targets(tmp_path_factory.mktemp("targets") / "data")


def trained_on(folder, task, out):
    return train_and_report(read_run(None, run_keys(folder, task)), out, maps="none")


@pytest.mark.parametrize(
    "task",
    [
        "multiclass",
        pytest.param("ordinal", marks=pytest.mark.nightly),
        pytest.param("multilabel", marks=pytest.mark.nightly),
        "regression",
        "survival",
    ],
)
def test_reports_show_it_and_new_predictions_have_it(folder, tmp_path, task):
    trained = trained_on(folder, task, tmp_path / "run")
    run = trained.run
    out = tmp_path / "predictions"
    labels = folder / f"labels_{task}.csv"
    predict_folder(run.path, folder / "features", out=out, labels=labels)
    first = {r["bag"]: r for r in TextTable.read(run.predictions / "mean_features.csv").rows}
    again = {r["bag"]: r for r in TextTable.read(out / "mean_features.csv").rows}
    assert first and len(again) == len(read_predictions(out).bags)
    for bag, row in first.items():
        assert {k: float(v) for k, v in row.items() if k != "bag"} == pytest.approx(
            {k: float(v) for k, v in again[bag].items() if k != "bag"}, abs=1e-6
        )
    stored = json.loads((run.path / "evaluation.json").read_text())["target"]
    primary = TASKS[task].primary
    gain = stored["gain_over_mean_features"]
    rival = stored["rivals"][RIVAL][primary.name]
    own = trained.report.metrics["auroc" if task == "multiclass" else primary.name].value
    sign = 1 if primary.higher_is_better else -1
    assert gain["metric"] == primary.name
    assert gain["value"] == pytest.approx(sign * (own - rival["value"]), abs=1e-9)
    if task == "ordinal":  # the mean of the first feature follows the grade
        assert rival["value"] > 0.4


def test_a_damaged_rival_is_refused(folder, tmp_path):
    trained = trained_on(folder, "regression", tmp_path / "run")
    path = trained.run.predictions / "mean_features.csv"
    labels = folder / "labels_regression.csv"
    text = path.read_text()
    header, *rows = text.splitlines()
    infinite = [",".join([*row.split(",")[:-1], "1e400"]) for row in rows]
    for damaged in (text.replace("mean", "mitte", 1), "\n".join([header, *infinite])):
        path.write_text(damaged)
        with pytest.raises(InputError, match=r"mean_features\.csv"):
            evaluate(trained.run.predictions, labels=labels, bootstrap=0)
    path.unlink()
    report = evaluate(trained.run.predictions, labels=labels, bootstrap=0)
    (target,) = [s for s in report.sections if s.key == "target"]
    assert RIVAL not in target.values["rivals"]
    assert target.values["gain_over_mean_features"] is None
    file = trained.run.path / "mean_features.safetensors"
    save_checkpoint(tmp_path / "other.safetensors", {"mean": torch.zeros(2)}, metadata={})
    with pytest.raises(CheckpointError, match=r"other\.safetensors"):
        MeanFeatures.load(tmp_path / "other.safetensors", likelihood=Categorical())
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(CheckpointError, match=r"mean_features\.safetensors"):
        MeanFeatures.load(file, likelihood=load(trained.run.path).model.likelihood)
    with pytest.raises(CheckpointError):
        predict_folder(trained.run.path, folder / "features", out=tmp_path / "out", labels=labels)
    assert not (tmp_path / "out").exists()


def test_balanced_sampling_leaves_its_probabilities_at_the_shares_of_training(tmp_path):
    """They are moved back once, as those of the run: not from the shares where they already are."""
    g = np.random.default_rng(0)
    (tmp_path / "features").mkdir()
    lines = ["bag,label,split"]
    for k in range(400):
        y = int(g.choice(3, p=[0.7, 0.2, 0.1]))
        with h5py.File(tmp_path / "features" / f"b{k}.h5", "w") as f:
            f["features"] = g.normal(size=(3, 4)).astype(np.float32)
            f["coords"] = np.arange(6).reshape(3, 2)
            f["coords"].attrs["kind"] = "slide"
        lines.append(f"b{k},{y},{('train', 'train', 'val', 'test')[k % 4]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    keys = {**KEYS, "features": str(tmp_path / "features"), "labels": str(tmp_path / "labels.csv")}
    keys |= {"model": "abmil", "sampling": "balanced", "epochs": 1}
    del keys["samples"], keys["predict_samples"]
    trained = train_and_report(read_run(None, keys), tmp_path / "run", maps="none")
    rows = TextTable.read(trained.run.predictions / "mean_features.csv").rows
    mean = np.mean([[float(r[c]) for c in ("0", "1", "2")] for r in rows], axis=0)
    # the features say nothing, so each bag has about the shares of the training bags
    np.testing.assert_allclose(mean, [0.7, 0.2, 0.1], atol=0.06)
    # the stored rival has weights of classes, which the run's likelihood has not
    file = trained.run.path / "mean_features.safetensors"
    stored = MeanFeatures.load(file, likelihood=load(trained.run.path).model.likelihood)
    with h5py.File(tmp_path / "features" / f"{rows[0]['bag']}.h5") as f:
        x = torch.from_numpy(f["features"][()].astype(np.float64)).mean(0, keepdim=True)
    np.testing.assert_allclose(stored.predict(x)[0], [float(rows[0][c]) for c in "012"], rtol=1e-6)
