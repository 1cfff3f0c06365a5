"""The score of the maps is chosen by deletion on validation bags, without instance labels."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from support.random_bags import random_bag

from probsa import Bag, models
from probsa.errors import BagError, InputError
from probsa.evaluation import faithfulness as rules
from probsa.evaluation.faithfulness import MapScoreChoice, choose_map_score
from probsa.evaluation.map_scores import available_scores, map_values
from probsa.evaluation.predictor import Ensemble, Predictor
from probsa.training import Standardizer


def bag(name: str, *, n=40, seed=0) -> Bag:
    """Return a bag with four instances that speak for the class (feature 0), and attention that
    looks elsewhere (feature 1)."""
    g = torch.Generator().manual_seed(seed)
    x = 0.01 * torch.randn(n, 2, generator=g)
    x[:4, 0] += 12.0
    x[4:12, 1] += 0.5
    i = torch.arange(n - 1)
    return Bag(name=name, x=x, edges=torch.stack([i, i + 1]), weights=torch.ones(n - 1))


def predictor(name="abmil", **arguments) -> Predictor:
    """Return a model whose attention is feature 1 and whose class score is feature 0."""
    model = models.build(name, in_dim=2, embed=None, **arguments)
    with torch.no_grad():
        model.attention.trunk.first.weight.zero_()[:, 1] = 1.0
        model.attention.trunk.first.bias.zero_()
        model.attention.mean.weight.fill_(1 / model.attention.mean.weight.shape[1])
        model.classifier.weight.zero_()[-1, 0] = 1.0
        model.classifier.bias.zero_()
    return Predictor(model, Standardizer())


BAGS = {f"b{k}": bag(f"b{k}", seed=k) for k in range(6)}


def chosen(p: Predictor, names=tuple(BAGS), *, threshold=None, read=BAGS.__getitem__):
    return choose_map_score(p, names, read=read, threshold=threshold)


@pytest.mark.parametrize("name", ["abmil", "abmil-probsa-diag"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_the_score_whose_removal_matters_most_is_chosen(name, classes):
    extra = {"predict_samples": 4} if name != "abmil" else {}
    choice = chosen(predictor(name, n_classes=classes, **extra))
    assert choice.chosen in ("contribution", "evidence")
    assert choice.bags == 6
    assert choice.drops["attention"] < 0.1 < choice.drops[choice.chosen]
    assert choice.reason.startswith(f"{choice.chosen}: removing its top instances")
    assert "for attention" in choice.reason
    assert MapScoreChoice.of({"map_score": asdict(choice)}, where="f") == choice
    assert MapScoreChoice.of({}, where="f") is None
    with pytest.raises(InputError, match=r"^f: map_score.*"):
        MapScoreChoice.of({"map_score": 1e19}, where="f")


def test_the_choice_depends_on_neither_order_nor_instance_labels():
    first = chosen(predictor())
    labels = torch.ones(40, dtype=torch.int8)
    labelled = {k: replace(b, instance_labels=labels) for k, b in BAGS.items()}
    again = chosen(predictor(), tuple(reversed(BAGS)), read=labelled.__getitem__)
    assert again == first


def test_too_few_positive_bags_give_the_models_own_score():
    choice = chosen(predictor(), threshold=0.9999)
    assert choice.chosen == "attention"
    assert "only 0 validation bags" in choice.reason
    assert chosen(predictor(), ["b0"]).chosen == "attention"
    assert chosen(predictor(), []) is None


def test_a_model_with_one_score_needs_no_choice():
    p = predictor(classifier_hidden=None)
    p.model.explains = False
    choice = chosen(p)
    assert (choice.chosen, choice.bags) == ("attention", 0)
    assert "only score" in choice.reason


def test_bags_that_cannot_be_read_are_passed_over():
    def read(name):
        if name == "b0":
            raise BagError("gone")
        return BAGS[name]

    assert chosen(predictor(), read=read).bags == 5


def test_equal_scores_leave_the_models_own():
    p = predictor()
    with torch.no_grad():
        p.model.classifier.weight.zero_()
        p.model.classifier.bias.fill_(1.0)  # every bag is positive, whatever it contains
    choice = chosen(p)
    assert choice.chosen == "attention"
    assert set(choice.drops.values()) == {0.0}


def test_a_prediction_names_the_scores_that_it_has():
    (p,) = predictor().predict([BAGS["b0"]])
    assert available_scores(p) == ("attention", "contribution", "evidence")
    np.testing.assert_array_equal(map_values(p, "evidence"), p.class_score)
    with pytest.raises(InputError, match="no score 'probability': it has attention, contribution"):
        map_values(p, "probability")
    level = replace(p, score_kind="evidence", probability_positive=p.weight_mean)
    assert available_scores(level) == ("evidence", "contribution", "probability")
    np.testing.assert_array_equal(map_values(level, "evidence"), p.attention_mean)


def test_predictions_have_columns_for_classes_only():
    (one,) = predictor().predict([BAGS["b0"]])
    (three,) = predictor(n_classes=3).predict([BAGS["b0"]])
    assert one.contribution.shape == one.leave_one_out.shape == one.class_score.shape == (40,)
    assert three.contribution.shape == three.leave_one_out.shape == (40, 3)
    (none,) = Predictor(models.build("transmil", in_dim=5), Standardizer()).predict(
        [random_bag(6, dtype=torch.float32)]
    )
    assert none.contribution is none.leave_one_out is none.class_score is None


def test_a_gain_within_its_error_leaves_the_models_own_score():
    noisy = [
        {"attention": 0.2, "contribution": 0.2 + gain, "random": 0.05}
        for gain in (0.3, -0.2, 0.1, -0.15)
    ]
    scores = ("attention", "contribution")
    choice = rules.choice_of(scores, noisy, task="binary")
    assert choice.drops == pytest.approx({"attention": 0.15, "contribution": 0.1625})
    assert choice.chosen == "attention" and "not clearly less than" in choice.reason
    steady = [{**d, "contribution": 0.25 + 0.01 * k} for k, d in enumerate(noisy)]
    assert rules.choice_of(scores, steady, task="binary").chosen == "contribution"


def test_no_member_explains_while_instances_are_removed(monkeypatch):
    """Explanations of shortened bags would be computed and thrown away."""
    both = Ensemble([predictor(), predictor()])
    explained = []
    for member in both.members:
        real = member.model._explainer
        monkeypatch.setattr(
            member.model, "_explainer", lambda *a, real=real: explained.append(real(*a))
        )
    (p,) = both.predict([BAGS["b0"]])
    assert len(explained) == 2 and all(e is not None for e in explained)
    explained.clear()
    rules.deletion_drops(both, BAGS["b0"], p)
    assert explained and all(e is None for e in explained)
    assert all(member.model.explains for member in both.members)
