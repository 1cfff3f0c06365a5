"""`MILClassifier`: against `probsa train` on the same bags, its inputs and its explanations."""

import doctest

import numpy as np
import pytest
import torch
from sklearn.base import clone
from support.made_bags import made_bags
from support.stored import write_folder

from probsa import Bag, MILClassifier, load
from probsa.core import GraphOptions, TextTable
from probsa.datasets import open_bags, read_table
from probsa.errors import BagError, EmptyBag, GraphError, InputError, UnknownName
from probsa.estimators import as_bags
from probsa.estimators import classifier as classifier_module
from probsa.training import read_run, train

X, Y = made_bags()
SMALL = {"embed": 8, "attention_dim": 4, "predict_samples": 20}
FAST = {
    "epochs": 4,
    "batch_size": 4,
    "learning_rate": 0.02,
    "training": {"warmup_epochs": 0},
    "threads": 1,
    "random_state": 0,
}
ABMIL = {"model": "abmil", "model_arguments": {"embed": 8, "attention_dim": 4}, **FAST}


def classifier(**changes) -> MILClassifier:
    return MILClassifier(
        **{"model": "abmil-probsa-diag", "model_arguments": SMALL, **FAST, **changes}
    )


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(X, Y)


def test_it_is_the_run_of_probsa_train(tmp_path):
    """The same bags, labels and seed give the same probabilities, bit for bit."""
    features, table = write_folder(tmp_path)
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]  # without folds
    table.write_text("\n".join(lines) + "\n")
    keys: dict = {"epochs": 1, "threads": 1}
    keys |= {"features": str(features), "labels": str(table), "device": "cpu", "seed": 5}
    config = read_run(None, {**keys, "tensorboard": False})
    run = train(config, tmp_path / "run")
    bags = open_bags(features, graph=config.data.graph)
    given = [bags.bag(name) for name in bags.names]
    labels = read_table(table).labels
    mine = MILClassifier(epochs=1, threads=1, random_state=5).fit(given, labels)
    theirs = [p.probability[0] for p in load(run.path, device="cpu").predict(given)]
    assert mine.predict_proba(given)[:, 1].tolist() == [float(p) for p in theirs]
    rows = TextTable.read(run.metrics_file).rows
    assert [row["loss"] for row in mine.history_] == [float(row["loss"]) for row in rows]


def test_probabilities_labels_and_scores_agree(fitted):
    p = fitted.predict_proba(X)
    assert p.shape == (16, 2) and p.dtype == np.float64
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    assert fitted.classes_.tolist() == ["benign", "tumour"]
    called = ["tumour" if row[1] > row[0] else "benign" for row in p]
    assert fitted.predict(X).tolist() == called
    assert fitted.score(X, Y) == np.mean([a == b for a, b in zip(called, Y, strict=True)])
    np.testing.assert_allclose(fitted.decision_function(X), np.log(p[:, 1] / p[:, 0]))
    assert fitted.n_features_in_ == 6 and fitted.n_iter_ == len(fitted.history_) == 4
    assert fitted.n_bags_ == {"train": len(fitted.split_.train), "val": len(fitted.split_.val)}


def test_every_form_of_a_bag_gives_the_same(fitted):
    p = fitted.predict_proba(X)
    digests = [scores.name for scores in fitted.explain(X)]  # the names decide the random draws
    bags = [Bag.from_arrays(x, c, name=name) for (x, c), name in zip(X, digests, strict=True)]
    tensors = [(torch.from_numpy(x), torch.from_numpy(c)) for x, c in X]
    objects = np.empty(16, dtype=object)
    objects[:] = X
    for form in (bags, tensors, objects):
        assert (fitted.predict_proba(form) == p).all()
    separate = fitted.predict_proba([x for x, _ in X], coords=[c for _, c in X])
    assert (separate == p).all()
    # bags of one size may be one array
    bags_of_six, labels = made_bags(size=6)
    cube = np.stack([x for x, _ in bags_of_six])
    flat = MILClassifier(**ABMIL).fit(cube, labels)
    assert (flat.predict_proba(list(cube)) == flat.predict_proba(torch.from_numpy(cube))).all()


def test_a_seed_repeats_a_fit_and_another_one_does_not(fitted):
    again = clone(fitted).fit(X, Y)
    assert (again.predict_proba(X) == fitted.predict_proba(X)).all()
    other = classifier(random_state=1).fit(X, Y)
    assert (other.predict_proba(X) != fitted.predict_proba(X)).any()
    draws = [classifier(random_state=np.random.RandomState(k)).fit(X, Y) for k in (3, 3)]
    assert (draws[0].predict_proba(X) == draws[1].predict_proba(X)).all()


def test_three_classes():
    labels = [k % 3 for k in range(16)]
    many = MILClassifier(**ABMIL).fit(X, labels)
    p = many.predict_proba([x for x, _ in X])
    assert p.shape == (16, 3) and many.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(many.decision_function(X), np.log(p))


def test_explain_gives_what_the_posterior_says(fitted):
    explained = fitted.explain(X)
    assert len(explained) == 16
    for scores, (x, coords) in zip(explained, X, strict=True):
        assert scores.mean.shape == scores.variance.shape == scores.weight.shape == (len(x),)
        assert (scores.coords == coords).all() and scores.score_kind == "logit"
        assert scores.weight.sum() == pytest.approx(1, abs=1e-5)
        # attention states no probability; its samples say how often a weight is above 1 / n
        assert scores.probability.shape == (len(x),) and np.isnan(scores.probability).all()
        above = scores.prediction.weight_above_uniform
        assert 0 < float(above.min()) < float(above.max()) < 1
    frame = explained[0].to_frame()
    assert frame["attention_mean"].tolist() == explained[0].mean.tolist()


def test_groups_never_share_training_and_validation():
    groups = [k // 4 for k in range(16)]
    parts = MILClassifier(**{**ABMIL, "validation": 0.5}).fit(X, Y, groups=groups).split_
    names = [bag.name for bag in as_bags(X, graph=GraphOptions())]
    group = dict(zip(names, groups, strict=True))
    train_groups = {group[name] for name in parts.train}
    val_groups = {group[name] for name in parts.val}
    assert train_groups and val_groups and not train_groups & val_groups


def test_without_validation_all_bags_train_and_equal_bags_are_told_apart():
    twice = MILClassifier(**{**ABMIL, "validation": 0}).fit([*X, *X], [*Y, *Y])
    assert len(set(twice.split_.train)) == 32 and twice.split_.val == ()


def test_options_are_those_of_run_files():
    chosen = classifier(
        model=None,
        graph={"neighbours": 3},
        kl_weight=0.5,
        select="last",
        balanced=True,
        model_arguments={"ridge": 0.2},
        training={"members": 1, "clip_norm": 1},
    )._config()
    assert chosen.model == "evidence-field" and chosen.model_arguments["ridge"] == 0.2
    training = chosen.training
    assert (training.kl_weight, training.select, training.balanced) == (0.5, "last", True)
    assert (training.members, training.clip_norm) == (1, 1)
    assert chosen.data.graph.neighbours == 3
    assert chosen.data.graph.weight_scale == "median"  # what the default recipe says
    assert classifier()._config().data.graph == GraphOptions()


def test_arguments_are_set_by_name_and_shown():
    base = MILClassifier(model_arguments={"embed": 8}).set_params(
        model__attention_dim=4, training__members=1, epochs=np.int64(3), validation=np.float32(0.5)
    )
    assert base.model_arguments == {"embed": 8, "attention_dim": 4}
    graph = MILClassifier(graph="knn").set_params(graph__neighbours=4)._config().data.graph
    assert (graph.kind, graph.neighbours) == ("knn", 4)
    assert base._config().training.members == 1 and base._config().training.epochs == 3
    assert repr(MILClassifier(epochs=3)) == "MILClassifier(model=None [evidence-field], epochs=3)"
    assert repr(MILClassifier("abmil")) == "MILClassifier(model='abmil')"
    with pytest.raises(TypeError, match=r"named 'epoch'\. Did you mean 'epochs'"):
        MILClassifier(epoch=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownName, match="Did you mean 'batch_size'"):
        base.set_params(batchsize=3)
    with pytest.raises(UnknownName, match="attention_dim"):
        base.set_params(model__attention_dims=3).fit(X, Y)


def test_the_example_of_the_class_runs():
    results = doctest.testmod(classifier_module)
    assert results.attempted > 10 and not results.failed


@pytest.mark.parametrize(
    ("changes", "given", "error", "message"),
    [
        ({}, ([], []), InputError, "X has 0 bags"),
        ({}, (X, Y[:3]), InputError, " 16 bags"),
        ({}, (X, None), InputError, "requires y"),
        ({}, (X, ["a"] * 16), InputError, "one class"),
        ({}, (np.zeros((4, 6)), [0, 1, 0, 1]), InputError, r"shape \(4, 6\) \(one bag\?"),
        ({}, ("text", Y), InputError, "X is a str"),
        ({}, ([(1, 2, 3)] * 2, [0, 1]), BagError, "bag 0 of X .* tuple of 3"),
        ({}, ([*X[:-1], (np.zeros((0, 6)), None)], Y), EmptyBag, "bag '15 of X' is empty"),
        ({}, ([*X[:-1], (np.zeros((3, 5)), None)], Y), BagError, r"X has 5 features.*bag 15 of X"),
        ({}, ([x for x, _ in X], Y), GraphError, "model='abmil'"),
        ({"model": "abmill"}, (X, Y), UnknownName, "Did you mean 'abmil'"),
        ({"training": {"epoch": 3}}, (X, Y), UnknownName, "epoch"),
        ({"validation": 0.7}, (X, Y), InputError, "validation is 0.7"),
        ({}, (X[:2], Y[:2]), InputError, "validation=0"),
        ({"epochs": 0}, (X, Y), InputError, "epochs"),
        ({}, (X, np.linspace(0, 1, 16)), InputError, "use MILRegressor"),
        ({}, (X, [np.int64(1)] * 16), InputError, "one class, 1:"),
        ({}, ([*X[:-1], (np.zeros((3, 6)), None)], Y), GraphError, "bag 15 of X .*no coord"),
    ],
)
def test_errors_say_what_was_expected(changes, given, error, message):
    with pytest.raises(error, match=message) as caught:
        classifier(**changes).fit(*given)
    # scikit-learn's checks expect a ValueError for data; a name that is unknown is a KeyError
    assert error is UnknownName or isinstance(caught.value, ValueError)


def test_errors_of_prediction(fitted):
    with pytest.raises(BagError, match="X has 5 features, but MILClassifier is expecting 6"):
        fitted.predict([np.zeros((2, 5))])
    with pytest.raises(InputError, match="16 bags but 2"):
        fitted.predict(X, coords=[None, None])
    with pytest.raises(BagError, match=r"bag '0 of X'.*no coordinates"):
        fitted.predict([np.zeros((2, 6))])


def test_two_classes_are_called_by_the_threshold_of_the_model(fitted):
    p = fitted.predict_proba(X)[:, 1]
    cut = float(np.sort(p)[len(p) // 2])
    assert fitted.predictor_.threshold is None
    assert fitted.predict(X).tolist() == fitted.classes_[(p >= 0.5).astype(int)].tolist()
    fitted.predictor_.threshold = cut
    try:
        assert fitted.predict(X).tolist() == fitted.classes_[(p >= cut).astype(int)].tolist()
    finally:
        fitted.predictor_.threshold = None
