"""The regressions as models: their fit equals scikit-learn's, and they train like other models."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from support.stored import WIDTH, write_folder

from probsa import Bag, load, pack
from probsa.errors import InputError
from probsa.models import FeatureSums, build, fit_logistic, sample_size
from probsa.models._logistic import GRID, MOST_INSTANCES
from probsa.training import read_run, train
from probsa.workflow import finish_run

NOWHERE = {"edges": torch.zeros(2, 0, dtype=torch.long), "weights": torch.zeros(0)}


def bags(count, *, seed, classes=2):
    """Bags of different sizes whose first feature depends on the class, with a large offset."""
    g = np.random.default_rng(seed)
    made = []
    for k in range(count):
        n = int(g.integers(2, 12))
        y = k % classes
        x = 50 + g.normal(size=(n, WIDTH)) * np.arange(1, WIDTH + 1)
        x[:, 0] += y
        made.append(Bag(name=f"b{k}", x=torch.from_numpy(x).float(), y=y, **NOWHERE))
    return made


def independent(train_bags, validation, *, name, classes):
    """Return the logits of the validation bags by scikit-learn's own pipeline, and C."""
    rows = np.concatenate([b.x.double().numpy() for b in train_bags])
    scaler = StandardScaler().fit(rows)
    sizes = [len(b) for b in train_bags]
    y = np.array([bag.y for bag in train_bags])
    y_validation = np.array([bag.y for bag in validation])

    def means(bags):
        return np.stack([scaler.transform(bag.x.double().numpy()).mean(0) for bag in bags])

    fits = []
    for c in GRID:
        model = LogisticRegression(C=c, max_iter=20_000, tol=1e-10)
        if name == "mean-pool":
            model.fit(means(train_bags), y)
        else:
            weight = np.repeat([1 / n for n in sizes], sizes)
            model.fit(scaler.transform(rows), np.repeat(y, sizes), sample_weight=weight)
        loss = log_loss(y_validation, model.predict_proba(means(validation)), labels=range(classes))
        fits.append((loss, c, model.decision_function(means(validation))))
    _, c, logits = min(fits, key=lambda fit: fit[0])
    return logits.reshape(len(validation), -1), c


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("name", ["mean-pool", "instance-lr"])
def test_the_fit_is_scikit_learns(name, classes):
    labels = max(2, classes)
    train_bags = bags(30, seed=1, classes=labels)
    validation = bags(12, seed=2, classes=labels)
    model = build(name, in_dim=WIDTH, n_classes=classes).double()
    model.fit_bags(train_bags, validation)
    want, c = independent(train_bags, validation, name=name, classes=labels)
    assert float(model.monitored()["C"]) == c
    with torch.no_grad():
        out = model.eval()(pack([Bag(name=b.name, x=b.x.double(), **NOWHERE) for b in validation]))
    actual = out.logits[:, 0].numpy()
    if classes == 2:
        actual = actual[:, 1:] - actual[:, :1]
    # the optimiser stops at a gradient of 1e-4
    np.testing.assert_allclose(actual, want, atol=5e-3)
    explained = out.explanation
    bag = np.repeat(np.arange(len(validation)), [len(b) for b in validation])
    for c in range(classes):
        total = np.bincount(bag, weights=explained.contributions[:, c].numpy())
        np.testing.assert_allclose(
            total + model.linear.bias[c].item(), out.logits[:, 0, c].numpy(), atol=1e-9
        )
    shown = out.attention.mean.reshape(len(bag), -1)
    np.testing.assert_allclose(shown, (explained.scores + model.linear.bias).detach(), atol=1e-12)


def test_class_weights_weigh_the_bags_of_the_fit():
    train_bags = bags(21, seed=1)
    validation = pack(bags(8, seed=2))
    logits = []
    for weights in (None, (1.0, 50.0)):
        model = build("mean-pool", in_dim=WIDTH, class_weights=weights)
        model.fit_bags(train_bags, [])
        assert float(model.monitored()["C"]) == 1.0  # without validation
        logits.append(model.eval()(validation).logits)
    assert bool((logits[1] > logits[0]).all())
    with pytest.raises(InputError, match="class 1"):
        model.fit_bags(bags(5, seed=0, classes=1), [])


def test_large_bags_are_sampled_and_the_sample_depends_on_the_name_alone():
    assert sample_size(10) == 200 and sample_size(7000) == 2
    assert sample_size(10 * MOST_INSTANCES) == 1
    x = np.arange(600.0)[:, None].astype(np.float32)
    samples = []
    for first in ("a", "z"):
        sums = FeatureSums(per_bag=5, seed=3)
        sums.add(first, x, y=0)
        sums.add("b", x, y=1)
        samples.append(sums.result())
    one, other = (s.rows[s.bag == 1] for s in samples)
    assert len(one) == 5 and np.array_equal(one, other)
    assert not np.array_equal(samples[0].rows[:5], one)
    assert samples[0].mean[0] == pytest.approx(x.mean())
    assert samples[0].deviation[0] == pytest.approx(x.std())


def test_a_bag_counts_once_however_many_instances_it_has():
    """A positive and a negative bag of ones: the logit of such a bag is 0."""
    sums = FeatureSums(per_bag=100)
    for name, n, value, y in (("a", 90, 1, 1), ("b", 3, 1, 0), ("c", 3, -1, 0), ("d", 3, -2, 1)):
        sums.add(name, np.full((n, 1), value, np.float32), y=y)
    known = sums.result()
    fit = fit_logistic(known, known, on="instances")
    weighted = LogisticRegression(C=fit.c, tol=1e-10).fit(
        (known.means - known.mean) / known.deviation, known.y
    )  # one row per bag is the same, since each bag is constant
    np.testing.assert_allclose(fit.weight, weighted.coef_, atol=1e-3)


@pytest.mark.parametrize("name", ["mean-pool", "instance-lr"])
def test_a_run_has_one_epoch_and_is_resumed_predicted_and_explained(tmp_path, name):
    """Standardising the features before changes nothing."""
    features, labels = write_folder(tmp_path / "data", bags=24)
    found = []
    for standardize in ("true", "false"):
        run_file = tmp_path / "run.yaml"
        run_file.write_text(
            f"data: {{features: {features}, labels: {labels}, test_fold: 0, "
            f"standardize: {standardize}}}\nmodel: {{name: {name}}}\n"
            "training: {epochs: 7, device: cpu}\n"
        )
        config = read_run(run_file, {})
        run = train(config, tmp_path / standardize)
        assert len(run.metrics_file.read_text().splitlines()) == 2
        before = run.last.read_bytes()
        train(config, run.path, resume=True)
        assert run.last.read_bytes() == before
        finish_run(run, bootstrap=0, maps="none", extras=False)
        assert json.loads((run.predictions / "predictions.json").read_text())["C"] in GRID
        assert load(run.path).model.name == name
        rows = (run.predictions / "predictions.csv").read_text().splitlines()[1:]
        found.append([float(row.split(",")[4]) for row in rows])
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
