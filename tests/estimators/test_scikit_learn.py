"""scikit-learn's own checks of estimators, on rows as bags of one instance, and its own tools."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from support.made_bags import made_bags

from probsa import MILClassifier, MILRegressor, MILSurvival, PerInstance
from probsa.estimators import inputs, per_instance
from probsa.estimators.inputs import items_of

X, _ = made_bags(18)
AMOUNT = np.arange(18) % 3
LABELS = np.arange(18) % 2
FAST = {
    "model": "abmil",
    "model_arguments": {"embed": 4, "attention_dim": 2},
    "epochs": 1,
    "batch_size": 16,
    "learning_rate": 0.02,
    "training": {"warmup_epochs": 0},
    "threads": 1,
    "select": "last",
    "random_state": 0,
}


LIST = "bags come back in a list, as they may differ in size"
WORDS = "it is refused, in the words of bags"
MIL = "Classifier Regressor Survival"
CANNOT_HOLD = {
    "check_complex_data": (MIL, WORDS),
    "check_estimators_empty_data_messages": (MIL, WORDS),
    "check_fit2d_1sample": ("Regressor Survival", WORDS),
    "check_dtype_object": (MIL, "instances are numbers: other objects are refused, not converted"),
    "check_transformer_general": ("Transformer", LIST),
    "check_transformer_data_not_an_array": ("Transformer", LIST),
    "check_transformer_preserve_dtypes": ("Transformer", LIST),
}
"""The checks that bags cannot pass, for which estimators, and why."""


class OfRows:
    """Say that X is a table, of which each row is a bag of one instance, and that one epoch is few.

    Without, scikit-learn skips nearly all checks.
    """

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = False
        for of_kind in (tags.classifier_tags, tags.regressor_tags):
            if of_kind is not None:
                of_kind.poor_score = True
        return tags


class Classifier(OfRows, MILClassifier): ...


class Regressor(OfRows, MILRegressor): ...


class Survival(OfRows, MILSurvival):
    """The checks give one number per bag: here it is a time at which the event was seen."""

    def fit(self, X, y, **given):
        return super().fit(X, self.times(y), **given)

    def score(self, X, y, **given):
        return super().score(X, self.times(y), **given)

    def times(self, y):
        if y is None or np.iscomplexobj(y):
            return y
        return np.stack([np.abs(np.asarray(y, float)) + 1, np.ones(np.shape(y))], -1)


class Transformer(OfRows, PerInstance): ...


def rows_as_bags(X):
    if hasattr(X, "tocsr"):
        return items_of(X)
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError("Reshape your data: expected two dimensions")
    return items_of(X[:, None])


def cannot_hold(estimator):
    name = type(estimator).__name__
    return {check: why for check, (names, why) in CANNOT_HOLD.items() if name in names.split()}


@parametrize_with_checks(
    [Classifier(**FAST), Regressor(**FAST), Survival(**FAST), Transformer(PCA(1))],
    expected_failed_checks=cannot_hold,
)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator, check, monkeypatch):
    monkeypatch.setattr(inputs, "items_of", rows_as_bags)
    monkeypatch.setattr(per_instance, "items_of", rows_as_bags)
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (MILClassifier(**FAST), LABELS),
        (MILClassifier(**FAST, ordinal=True), AMOUNT),
        (MILClassifier(**FAST), np.stack([AMOUNT > 0, AMOUNT > 1], 1).astype(int)),
        (MILRegressor(**FAST), 5.0 + AMOUNT),
        (
            MILSurvival(**FAST, likelihood={"bins": 2}),
            np.stack([9.0 - 2 * AMOUNT + np.arange(18) / 50, LABELS], 1),
        ),
    ],
    ids=["classes", "grades", "findings", "numbers", "times"],
)
def test_every_estimator_stands_in_the_tools_of_scikit_learn(estimator, y):
    pipe = make_pipeline(PerInstance(StandardScaler()), estimator)
    step = pipe.steps[-1][0]
    search = GridSearchCV(pipe, {f"{step}__model__attention_dim": [2, 4]}, cv=2).fit(X, y)
    best = search.best_estimator_[-1]
    assert best.predictor_.model.arguments["attention_dim"] in (2, 4)
    assert len(search.predict(X)) == 18 and best.n_iter_ == 1
    groups = np.arange(18) // 2
    scores = cross_val_score(clone(pipe), X, y, groups=groups, cv=GroupKFold(2))
    assert scores.shape == (2,) and np.isfinite(scores).all()


def test_their_tags_are_true():
    for estimator, kind in (
        (MILClassifier(), "classifier"),
        (MILRegressor(), "regressor"),
        (MILSurvival(), None),
    ):
        tags = get_tags(estimator)
        assert not tags.input_tags.two_d_array and tags.input_tags.three_d_array
        assert tags.target_tags.required and tags.estimator_type == kind
