"""Classifiers in folders."""

import json

import numpy as np
import pytest
from support.made_bags import made_bags

from probsa import MILClassifier, from_pretrained
from probsa.errors import InputError
from probsa.estimators import as_bags

X, Y = made_bags(8, seed=9)


def classifier(**changes):
    return MILClassifier(
        **{
            "model_arguments": {"embed": 4, "attention_dim": 2, "predict_samples": 10},
            "epochs": 2,
            "batch_size": 4,
            "threads": 1,
            "random_state": 0,
            "graph": {"weight_scale": "degree"},
            "standardize": True,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def fitted():
    arguments = {"embed": np.int64(4), "attention_dim": 2, "predict_samples": 10}
    return classifier(model_arguments=arguments).fit(X, Y)


def test_a_classifier_comes_back_equal(fitted, tmp_path):
    loaded = MILClassifier.from_pretrained(fitted.save_pretrained(tmp_path / "a", data="Made."))
    assert (loaded.predict_proba(X) == fitted.predict_proba(X)).all()
    assert loaded.predict(X).tolist() == fitted.predict(X).tolist()
    assert loaded.get_params() == fitted.get_params()
    for name in ("n_features_in_", "n_iter_", "history_", "n_bags_"):
        assert getattr(loaded, name) == getattr(fitted, name), name
    assert loaded.classes_.tolist() == ["benign", "tumour"]
    card = (tmp_path / "a" / "README.md").read_text()
    assert "Made." in card and "No figures" in card and "`benign`" in card
    bag = fitted.explain(X)[0]
    # all bags, as above: with other batch-mates the last bit may differ
    prediction, *_ = from_pretrained(tmp_path / "a", device="cpu").predict(
        as_bags(X, graph=loaded.predictor_.config.data.graph)
    )
    assert (prediction.attention_mean == bag.mean).all()


@pytest.mark.parametrize("labels", [[0, 1], [True, False]])
def test_labels_keep_their_type(labels, tmp_path):
    fitted = classifier(model="abmil", model_arguments={"embed": 4}, epochs=1)
    fitted.fit(X, labels * 4).save_pretrained(tmp_path / "a")
    loaded = MILClassifier.from_pretrained(tmp_path / "a")
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.classes_.tolist() == fitted.classes_.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("estimator"), r"load it with probsa\.from_pretrained"),
        (lambda c: c["estimator"].update(labels=["a"]), "labels and classes differ"),
        (lambda c: c["estimator"]["parameters"].update(epoch=1), "has no 'epoch'"),
        (lambda c: c["estimator"].update(n_features_in="six"), "n_features_in"),
    ],
)
def test_a_damaged_estimator_is_refused(change, message, fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=message):
        MILClassifier.from_pretrained(tmp_path / "a")
