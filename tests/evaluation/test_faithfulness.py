"""Curves of deletion equal predictions of shortened bags; they summarise maps and choose scores."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy import special, stats
from support.made_predictions import made
from support.made_targets import TARGETS, run_keys, write_targets
from support.random_bags import random_bag
from support.refusals import refused

from probsa import Bag, models
from probsa.core import Outputs, select_instances
from probsa.errors import BagError, InputError, UnknownName
from probsa.evaluation import (
    DeletionCurves,
    Ensemble,
    MapScoreChoice,
    PredictionsMetadata,
    Predictor,
    available_scores,
    choose_map_score,
    deletion_curves,
    evaluate,
    load,
    map_values,
    predicted_with_curves,
    read_curves,
    read_predictions,
    write_curves,
    write_predictions,
)
from probsa.evaluation import faithfulness as module
from probsa.evaluation.faithfulness import deletion_drops, mean_curves_metrics
from probsa.maps import write_report_figures
from probsa.maps.report_figures import draw_panels
from probsa.statistics import ANY_VALUE, Draws
from probsa.training import Standardizer, open_units, read_run, train
from probsa.workflow import predict_folder, predict_run

# Curves


def bag(n=30, *, seed=0, **fields):
    at = torch.stack([torch.arange(n) % 6, torch.arange(n) // 6], 1)
    made_bag = random_bag(n, seed=seed, dtype=torch.float32)
    return replace(made_bag, **{"coords": at.float(), **fields})


def predictor(name="abmil", *, seed=0, **arguments) -> Predictor:
    torch.manual_seed(seed)
    model = models.build(name, in_dim=5, **{"embed": 8, **arguments})
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return Predictor(model, Standardizer(), device="cpu")


def again(p, whole, order, counts, *, column=0):
    """Predict each shortened bag by itself."""
    after = []
    for count in counts:
        (q,) = p.predict([select_instances(whole, torch.from_numpy(np.sort(order[count:])))])
        after.append(q.probability[column])
    return np.array(after)


@pytest.mark.parametrize(
    ("arguments", "removal"),
    [({}, "pooling"), ({"n_classes": 3}, "pooling"), ({"classifier_hidden": 4}, "bag")],
)
def test_curves_are_predictions_of_the_shortened_bags(arguments, removal):
    """Without an encoder and a graph, removal from the pooling is removal from the bag."""
    p = predictor(**arguments)
    whole = bag()
    prediction, curves = deletion_curves(p, whole)
    column = 1 + int(prediction.probability[1:].argmax()) if "n_classes" in arguments else 0
    assert curves.removal == removal and max(curves.counts) == 29
    drops = prediction.probability[column] - np.concatenate(
        [again(p, whole, np.roll(np.arange(30), -k), [1], column=column) for k in range(30)]
    )
    assert (prediction.leave_one_out is None) == (removal == "bag")
    if removal == "pooling":
        closed = prediction.leave_one_out.reshape(30, -1)[:, column]
        np.testing.assert_allclose(closed, drops, atol=1e-6)
        drops = closed
    for name, values in {"shown": prediction.attention_mean, "leave_one_out": drops}.items():
        assert np.ptp(curves.most_first[name]) > 0.01
        most = np.argsort(-values, kind="stable")
        for kind, order in ((curves.most_first, most), (curves.least_first, most[::-1])):
            want = again(p, whole, order, curves.counts, column=column)
            np.testing.assert_allclose(kind[name], want, atol=1e-6)


@pytest.mark.parametrize("name", ["evidence-diag", "smabmil", "dsmil", "clam-sb", "tabmil"])
def test_every_pooling_with_an_explanation_has_the_closed_form(name):
    extra = {"predict_samples": 8} if name == "evidence-diag" else {}
    p, curves = deletion_curves(predictor(name, **extra), bag())
    assert curves.removal == "pooling"
    for of_order in (curves.most_first, curves.least_first):
        assert set(of_order) == {"shown", "leave_one_out", "random"}
        for curve in of_order.values():  # nothing is removed at the first step
            np.testing.assert_allclose(curve[0], p.probability[0], atol=1e-6)


def test_a_later_sample_is_beyond_the_closed_form(monkeypatch):
    few = predictor("abmil-probsa-diag", predict_samples=8)
    monkeypatch.setattr(module, "SAMPLES", 4)
    p, curves = deletion_curves(few, bag())
    assert 0 < abs(curves.most_first["shown"][0] - p.probability[0]) < 0.2
    monkeypatch.setattr(module, "SAMPLES", 8)
    _, whole = deletion_curves(few, bag())
    np.testing.assert_allclose(whole.most_first["shown"][0], p.probability[0], atol=1e-6)


def test_an_ensemble_has_the_mean_of_its_members():
    both = [predictor(seed=1), predictor(seed=2)]
    whole = bag()
    _, joint = deletion_curves(Ensemble(both), whole)
    assert joint.removal == "pooling"
    each = [deletion_curves(m, whole)[1].most_first["random"] for m in both]
    _, renamed = deletion_curves(both[0], replace(whole, name="another chance"))
    assert renamed.most_first["random"] != each[0]
    np.testing.assert_allclose(joint.most_first["random"], np.mean(each, 0), atol=1e-9)
    _, alone = deletion_curves(Ensemble(both, seen=[frozenset(), frozenset({whole.name})]), whole)
    np.testing.assert_allclose(alone.most_first["random"], each[0], atol=1e-9)
    mixed = Ensemble([predictor(), predictor(classifier_hidden=4)])
    assert deletion_curves(mixed, whole)[1].removal == "bag"


def test_curves_are_of_scaled_probabilities():
    p = predictor()
    whole = bag()
    _, plain = deletion_curves(p, whole)
    p.temperature = 2.5
    prediction, scaled = deletion_curves(p, whole)
    assert scaled.removal == "pooling"
    column = prediction.probability[-1]
    for order, curve in scaled.most_first.items():
        logit = special.logit(plain.most_first[order])
        np.testing.assert_allclose(curve, 1 / (1 + np.exp(-logit / 2.5)), rtol=1e-9)
        assert curve[0] == pytest.approx(column, abs=1e-6)


def test_the_area_is_the_mean_difference_between_the_curves():
    curves = DeletionCurves(
        name="a",
        shown="attention",
        removal="bag",
        counts=(0, 1, 3),
        instances=4,
        most_first={"shown": (0.8, 0.6, 0.2)},
        least_first={"shown": (0.8, 0.8, 1.0)},
    )
    # differences 0, 0.2, 0.8 at 0, 1 and 3 of 4: (0.1 + 2 · 0.5) / 3
    assert curves.areas == {"shown": pytest.approx(1.1 / 3)}


def test_a_score_that_points_the_other_way_has_a_negative_area():
    p = predictor()
    whole = bag()
    prediction, _ = deletion_curves(p, whole)
    _, by_contribution = deletion_curves(p, whole, shown="contribution")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "map_values", lambda p, score: -p.contribution)
        _, reversed_ = deletion_curves(p, whole, shown="contribution")
    assert reversed_.areas["shown"] == pytest.approx(-by_contribution.areas["shown"])
    assert by_contribution.areas["shown"] > 0.05
    assert reversed_.rank_correlation == pytest.approx(-by_contribution.rank_correlation)
    assert by_contribution.rank_correlation > 0.5
    assert prediction.contribution is not None


def test_what_cannot_be_removed_or_ranked_has_a_reason(tmp_path):
    _, one = deletion_curves(predictor(), bag(1))
    assert "bag of 1 instance " in one.missing["shown"]
    assert not one.most_first and one.rank_correlation is None
    write_curves(tmp_path, [one])
    assert read_curves(tmp_path) == {one.name: one}
    p = predictor()
    p.model.min_instances = 4
    assert "4 instances" in deletion_curves(p, bag(4))[1].missing["shown"]
    _, few = deletion_curves(p, bag(5))
    assert few.counts == (0, 1)
    assert not deletion_curves(p, bag(4))[1].most_first
    _, large = deletion_curves(predictor(classifier_hidden=4), bag(101))
    assert set(large.missing) == {"leave_one_out", "rank_correlation"}
    assert "leave_one_out" not in large.most_first and "100" in large.missing["leave_one_out"]
    flat = predictor()
    with torch.no_grad():
        flat.model.classifier.weight.zero_()
    _, curves = deletion_curves(flat, bag())
    assert curves.rank_correlation is None and curves.missing["rank_correlation"]
    refused(UnknownName, "probability", deletion_curves, predictor(), bag(), shown="probability")


def predicted(folder, curves, *, threshold=0.5, probability=0.9):
    names = [c.name for c in curves]
    write_predictions(
        folder,
        (
            made(n, np.zeros(3), probability=[probability if k % 2 else 0.2])
            for k, n in enumerate(names)
        ),
        labels={n: k % 2 for k, n in enumerate(names)},
        parts=dict.fromkeys(names, "test"),
        classes=("0", "1"),
        threshold=threshold,
        metadata={},
    )
    write_curves(folder, curves)


def stored(name, area, *, rank=0.5, **fields):
    values = {
        "most_first": {"shown": (0.5, 0.5 - area), "random": (0.5, 0.4)},
        "least_first": {"shown": (0.5, 0.5 + area), "random": (0.5, 0.5)},
        "missing": {"leave_one_out": "too large"},
        **fields,
    }
    return DeletionCurves(
        name=name,
        shown="attention",
        removal="bag",
        counts=(0, 9),
        instances=10,
        rank_correlation=rank,
        **values,
    )


def faithfulness_of(report):
    """Return the section on faithfulness, or None."""
    return next((s for s in report.sections if s.key == "faithfulness"), None)


@pytest.mark.parametrize(
    "ranks", [(0.2, 0.8), (0.9, 0.95, 0.4), (-0.5, 0.9, 0.6), (0.99, 0.2), (0.5,) * 3]
)
def test_the_mean_rank_correlation_of_few_bags_stays_between_minus_1_and_1(ranks):
    """Of the first pair, version 0.2 gave .50 [-3.32, 4.32]."""
    curves = [stored(f"b{k}", 0.1, rank=rank) for k, rank in enumerate(ranks)]
    draws = Draws.patients(np.ones(len(ranks)), groups=None, resamples=500, seed=0)
    found = mean_curves_metrics(curves, draws=draws, response=ANY_VALUE)["rank_correlation"]
    assert found.value == pytest.approx(np.mean(ranks))
    if found.no_interval is None:
        assert -1 <= found.low <= found.value <= found.high <= 1
    else:
        assert found.low is None
        assert found.high is None


def test_the_report_averages_the_bags_that_are_called_positive(tmp_path):
    curves = [stored(f"b{k}", 0.02 * k, rank=0.1 * k) for k in range(8)]
    predicted(tmp_path / "p", curves)
    report = evaluate(tmp_path / "p", bootstrap=100)
    section = faithfulness_of(report)
    assert section.values["bags"] == 4  # the odd ones
    m = section.values["metrics"]
    assert m["area_shown"].value == pytest.approx(np.mean([0.02, 0.06, 0.1, 0.14]))
    assert m["area_random"].value == pytest.approx(0.05)
    assert m["gain_over_random"].value == pytest.approx(0.08 - 0.05)
    assert m["gain_over_random"].low < 0.03 < m["gain_over_random"].high
    assert m["rank_correlation"].value == pytest.approx(0.4)
    assert m["area_leave_one_out"].reason == m["gain_over_leave_one_out"].reason == "too large"
    written = json.loads(json.dumps(report.to_dict()))["faithfulness"]
    assert written["removal"] == {"bag": 4}
    assert written["curves"]["most_first"]["probability"][-1] == pytest.approx(0.5 - 0.08)
    assert written["curves"]["most_first_random"]["probability"][-1] == pytest.approx(0.4)
    figures = write_report_figures(report, tmp_path / "figures")
    assert "deletion.png" in {path.name for path in figures}
    ax = draw_panels(section.figure.panels).axes[0]
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    np.testing.assert_allclose(lines["most relevant first"][[0, -1]], [0.5, 0.42])
    np.testing.assert_allclose(lines["least relevant first"][[0, -1]], [0.5, 0.58])
    table = tmp_path / "labels.csv"
    table.write_text("bag,label,group\n" + "\n".join(f"b{k},{k % 2},one" for k in range(8)))
    alone = faithfulness_of(evaluate(tmp_path / "p", labels=table, bootstrap=100))
    assert alone.values["metrics"]["area_shown"].low is None  # a single group says nothing


def test_a_finding_is_called_from_its_own_threshold(tmp_path):
    p = {"b0": (0.9, 0.05), "b1": (0.99, 0.05), "b2": (0.2, 0.15), "b3": (0.2, 0.05)}
    task = {"task": "multilabel", "outputs": Outputs(("x", "y"))}
    write_predictions(
        tmp_path / "p",
        [made(n, np.zeros(3), probability=v, **task) for n, v in p.items()],
        labels={n: (float(k % 2), float(k // 2)) for k, n in enumerate(p)},
        parts=dict.fromkeys(p, "test"),
        classes=("x", "y"),
        threshold=None,
        metadata={"thresholds": [0.95, 0.1]},
    )
    write_curves(tmp_path / "p", [stored(n, 0.1 * k) for k, n in enumerate(p)])
    section = faithfulness_of(evaluate(tmp_path / "p", bootstrap=0))
    assert section.values["metrics"]["area_shown"].value == pytest.approx(0.15)  # of b1 and b2


def test_bags_without_curves_are_counted_and_damage_is_named(tmp_path):
    curves = [stored(f"b{k}", 0.02 * k) for k in range(7)]
    empty = {"most_first": {}, "least_first": {}, "missing": {"shown": "too small"}}
    predicted(tmp_path / "p", [*curves, stored("b7", 0.0, **empty)])
    section = faithfulness_of(evaluate(tmp_path / "p", bootstrap=0))
    assert section.values["bags"] == 3 and section.values["without"] == {"too small": 1}
    predicted(tmp_path / "q", curves, probability=0.3)
    section = faithfulness_of(evaluate(tmp_path / "q", bootstrap=0))
    values = section.values
    assert values["bags"] == 0 and values["metrics"]["area_shown"].reason
    assert section.figure is None
    curves = [stored(f"b{k}", 0.1) for k in range(4)]
    predicted(tmp_path / "r", curves)
    assert read_curves(tmp_path / "r") == {c.name: c for c in curves}
    file = tmp_path / "r" / "faithfulness.json"
    for key, changed, words in (
        ("counts", [0, 11], "not ascending"),
        ("counts", [9, 0], "not ascending"),
        ("counts", [0, 4, 9], "expected 3 probabilities"),
        ("least_first", {}, "most_first and least_first"),
    ):
        damaged = json.loads(file.read_text())
        damaged["bags"]["b1"][key] = changed
        (tmp_path / "q" / file.name).write_text(json.dumps(damaged))
        refused(InputError, rf"json: bag 'b1' .*{words}", read_curves, tmp_path / "q")
    file.write_text('{"bags": {"b0": {}}}')
    with pytest.raises(InputError, match=r"faithfulness\.json: .*bag 'b0' .*shown"):
        evaluate(tmp_path / "r", bootstrap=0)
    file.unlink()
    assert faithfulness_of(evaluate(tmp_path / "r", bootstrap=0)) is None


def test_predictions_with_curves_are_the_predictions():
    p = predictor()
    bags = [bag(seed=k) for k in range(3)]
    found = []
    choice = MapScoreChoice(chosen="contribution", drops={}, bags=0, reason="", rule="")
    p.metadata = replace(p.metadata, map_score=choice)
    got = list(predicted_with_curves(p, bags, into=found))
    for a, b in zip(got, p.predict(bags), strict=True):
        np.testing.assert_allclose(a.probability, b.probability, atol=1e-6)
    assert [c.name for c in found] == [b.name for b in bags]
    assert {c.shown for c in found} == {"contribution"}


def test_intervals_over_few_groups_are_students():
    """The percentiles of resamples are too narrow for few groups (benchmarks/RESULTS.md)."""

    def metrics(groups):
        draws = Draws.patients(np.ones(6), groups=groups, resamples=20_000, seed=0)
        return mean_curves_metrics(curves, draws=draws, response=ANY_VALUE)

    areas = [0.02, 0.06, 0.1, 0.14, 0.03, 0.09]
    curves = [stored(f"b{k}", area) for k, area in enumerate(areas)]
    m = metrics(range(6))["gain_over_random"]
    gains = np.array(areas) - 0.05
    low, high = stats.t.interval(0.95, 5, gains.mean(), gains.std(ddof=1) / 6**0.5)
    assert (m.low, m.high) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))
    pairs = metrics([0, 0, 1, 1, 2, 2])
    of_groups = gains.reshape(3, 2).mean(1)
    half = stats.t.ppf(0.975, 2) * of_groups.std(ddof=1) / 3**0.5
    assert pairs["gain_over_random"].high == pytest.approx(gains.mean() + half, abs=3e-3)


# The score of the maps


def planted_bag(name: str, *, n=40, seed=0) -> Bag:
    """Return a bag with four instances that speak for the class (feature 0), and attention that
    looks elsewhere (feature 1)."""
    g = torch.Generator().manual_seed(seed)
    x = 0.01 * torch.randn(n, 2, generator=g)
    x[:4, 0] += 12.0
    x[4:12, 1] += 0.5
    i = torch.arange(n - 1)
    return Bag(name=name, x=x, edges=torch.stack([i, i + 1]), weights=torch.ones(n - 1))


def planted_predictor(name="abmil", **arguments) -> Predictor:
    """Return a model whose attention is feature 1 and whose class score is feature 0."""
    model = models.build(name, in_dim=2, embed=None, **arguments)
    with torch.no_grad():
        model.attention.trunk.first.weight.zero_()[:, 1] = 1.0
        model.attention.trunk.first.bias.zero_()
        model.attention.mean.weight.fill_(1 / model.attention.mean.weight.shape[1])
        model.classifier.weight.zero_()[-1, 0] = 1.0
        model.classifier.bias.zero_()
    return Predictor(model, Standardizer())


BAGS = {f"b{k}": planted_bag(f"b{k}", seed=k) for k in range(6)}


def chosen(p: Predictor, names=tuple(BAGS), *, threshold=None, read=BAGS.__getitem__):
    return choose_map_score(p, names, read=read, threshold=threshold)


@pytest.mark.parametrize("name", ["abmil", "abmil-probsa-diag"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_the_score_whose_removal_matters_most_is_chosen(name, classes):
    extra = {"predict_samples": 4} if name != "abmil" else {}
    choice = chosen(planted_predictor(name, n_classes=classes, **extra))
    assert choice.chosen in ("contribution", "evidence")
    assert choice.bags == 6
    assert choice.drops["attention"] < 0.1 < choice.drops[choice.chosen]
    assert choice.chosen in choice.reason
    assert "for attention" in choice.reason
    stored = PredictionsMetadata.of({"map_score": asdict(choice)}, where="f")
    assert stored.map_score == choice and stored.to_dict() == {"map_score": asdict(choice)}
    refused(InputError, "map_score", PredictionsMetadata.of, {"map_score": 1e19}, where="f")


def test_the_choice_depends_on_neither_order_nor_instance_labels():
    first = chosen(planted_predictor())
    labels = torch.ones(40, dtype=torch.int8)
    labelled = {k: replace(b, instance_labels=labels) for k, b in BAGS.items()}
    again = chosen(planted_predictor(), tuple(reversed(BAGS)), read=labelled.__getitem__)
    assert again == first

    def read(name):
        if name == "b0":
            raise BagError("gone")
        return BAGS[name]

    assert chosen(planted_predictor(), read=read).bags == 5


def test_the_models_own_score_is_left_where_no_other_is_better():
    choice = chosen(planted_predictor(), threshold=0.9999)
    assert choice.chosen == "attention"
    assert "only 0 validation bags" in choice.reason
    assert chosen(planted_predictor(), ["b0"]).chosen == "attention"
    assert chosen(planted_predictor(), []) is None
    p = planted_predictor(classifier_hidden=None)
    p.model.explains = False
    choice = chosen(p)
    assert (choice.chosen, choice.bags) == ("attention", 0)
    assert "only score" in choice.reason
    p = planted_predictor()
    with torch.no_grad():
        p.model.classifier.weight.zero_()
        p.model.classifier.bias.fill_(1.0)  # every bag is positive, whatever it contains
    choice = chosen(p)
    assert choice.chosen == "attention"
    assert set(choice.drops.values()) == {0.0}


def test_a_prediction_names_the_scores_that_it_has():
    (p,) = planted_predictor().predict([BAGS["b0"]])
    assert available_scores(p) == ("attention", "contribution", "evidence")
    np.testing.assert_array_equal(map_values(p, "evidence"), p.class_score)
    with pytest.raises(InputError, match=r"'probability': .*attention, contribution"):
        map_values(p, "probability")
    level = replace(p, score_kind="evidence", instance_probability=p.weight_mean)
    assert available_scores(level) == ("evidence", "contribution", "probability")
    np.testing.assert_array_equal(map_values(level, "evidence"), p.attention_mean)
    (one,) = planted_predictor().predict([BAGS["b0"]])
    (three,) = planted_predictor(n_classes=3).predict([BAGS["b0"]])
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
    choice = module.choice_of(scores, noisy, task="binary")
    assert choice.drops == pytest.approx({"attention": 0.15, "contribution": 0.1625})
    assert choice.chosen == "attention" and "not clearly less than" in choice.reason
    steady = [{**d, "contribution": 0.25 + 0.01 * k} for k, d in enumerate(noisy)]
    assert module.choice_of(scores, steady, task="binary").chosen == "contribution"


def test_no_member_explains_while_instances_are_removed(monkeypatch):
    """Explanations of shortened bags would be computed and thrown away."""
    both = Ensemble([planted_predictor(), planted_predictor()])
    explained = []
    for member in both.members:
        real = member.model._explainers

        def recorded(*args, real=real, **options):
            explained.append(real(*args, **options))
            return []

        monkeypatch.setattr(member.model, "_explainers", recorded)
    (p,) = both.predict([BAGS["b0"]])
    assert len(explained) == 2 and all(explained)
    explained.clear()
    deletion_drops(both, BAGS["b0"], p)
    assert explained and not any(explained)
    assert all(member.model.explains for member in both.members)


# Tasks without classes

OTHERS = [task for task in TARGETS if task not in ("binary", "multiclass")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each task, of a model with a closed form, trained a little."""
    folder = tmp_path_factory.mktemp("targets")
    data = write_targets(folder / "data", bags=24)
    return data, {t: train(read_run(None, run_keys(data, t)), folder / t) for t in OTHERS}


@pytest.mark.parametrize("task", OTHERS)
def test_curves_begin_at_what_is_predicted_and_contributions_raise_it(task, runs):
    """Removing the instance that adds most lowers the response more than another one."""
    _, found = runs
    predictor = load(found[task].path, device="cpu")
    bags, _ = open_units(found[task].config().data)
    bag = bags.bag(bags.names[1])
    p, curves = deletion_curves(predictor, bag)
    whole = p.of_task.response(p, p.of_task.column(p))
    for curve in (*curves.most_first.values(), *curves.least_first.values()):
        assert curve[0] == pytest.approx(whole, abs=1e-4)
    assert curves.removal == "pooling" and curves.rank_correlation is not None
    drops = deletion_drops(predictor, bag, p)
    assert {"random", "evidence", "contribution"} <= set(drops)
    (p,) = predictor.predict([bags.bag(bags.names[2])])
    contribution, lost = (
        v[:, p.of_task.column(p)] if v.ndim == 2 else v for v in (p.contribution, p.leave_one_out)
    )
    assert lost[np.argmax(contribution)] > lost[np.argmin(contribution)]


def test_the_chosen_score_and_its_rule_are_stated(runs, tmp_path):
    data, found = runs
    predict_run(found["survival"])
    table = read_predictions(found["survival"].predictions)
    choice = table.metadata.map_score
    assert choice is not None and "risk" in choice.rule and choice.bags == 6
    assert "random" not in choice.drops and "risk" in choice.reason
    out = tmp_path / "predictions"
    labels = data / "labels_regression.csv"
    predict_folder(
        found["regression"].path, data / "features", out=out, labels=labels, faithfulness=True
    )
    report = evaluate(out, bootstrap=0, part="test")
    (section,) = [s for s in report.sections if s.key == "faithfulness"]
    assert section.to_dict()["bags"] == report.bags
