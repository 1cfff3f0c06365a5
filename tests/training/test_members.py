"""Ensembles: K members in one run, trained one after another, and predicted together."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.made_runs import history_of, make_config, with_data, with_training

from probsa.errors import InputError
from probsa.evaluation import Ensemble, load, read_predictions
from probsa.tasks import TargetOptions
from probsa.training import (
    Reporter,
    load_checkpoint,
    loop,
    open_data,
    prepare,
    read_run,
    read_split,
    train,
)
from probsa.training.loop import member_configs
from probsa.variational import evidence_level, localisation
from probsa.workflow import finish_run


def test_an_ensemble_is_a_run_whose_members_differ_in_their_seed_alone(tmp_path):
    config = make_config(tmp_path / "data", bags=24, signal=1.0, batch_size=5, members=3, seed=4)
    run = finish_run(train(config, tmp_path / "run"), bootstrap=0, maps="none", extras=False).run
    members = run.members()
    assert [m.path.name for m in members] == ["0", "1", "2"] and not run.best.exists()
    assert [m.config() for m in members] == member_configs(config)
    assert [m.config().seed for m in members] == [4, 5, 6]
    assert {m.config().data_seed for m in members} == {4}
    assert all(read_split(m) == read_split(run) for m in members)
    lines = run.metrics_file.read_text().splitlines()
    nll = float(lines[1].split(",")[lines[0].split(",").index("val_nll")])
    assert len(lines) == 4
    assert nll == pytest.approx(np.mean([history_of(m)[0]["val_nll"] for m in members]))
    predictor = load(run.path, device="cpu")
    assert isinstance(predictor, Ensemble) and len(predictor.members) == 3
    bags = open_data(config.data)
    stored = read_predictions(run.predictions)
    assert stored.metadata.members == 3 and len(stored.metadata.epoch) == 3
    names = stored.bags
    alone = [list(load(m.path, device="cpu").predict(bags.bag(n) for n in names)) for m in members]
    for row, name in enumerate(names):
        p = np.array([member[row].probability for member in alone], np.float64)
        std = np.array([member[row].std for member in alone], np.float64)
        np.testing.assert_allclose(stored.probability[row], p.mean(0), rtol=1e-6)
        within = np.square(std).mean(0)
        between = p.var(0)
        np.testing.assert_allclose(stored.std_within[row], np.sqrt(within), rtol=1e-5)
        np.testing.assert_allclose(stored.std_between[row], np.sqrt(between), rtol=1e-5)
        np.testing.assert_allclose(stored.std[row], np.sqrt(within + between), rtol=1e-5)
        instances = stored.instances(name)
        total = instances.variance_within + instances.variance_between
        np.testing.assert_allclose(instances.attention_variance, total, rtol=1e-5)
        assert instances.std_between is not None and instances.variance_between.any()


def test_a_member_that_diverges_is_named(tmp_path):
    wild = make_config(tmp_path / "data", model="dsmil", members=2, learning_rate=1e30)
    with pytest.raises(InputError, match=r"members.0: epoch 1"):
        train(wild, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def assumed(run):
    """Return the arguments of each member that make its assumption."""
    assumptions = []
    for member in run.members():
        arguments = load_checkpoint(member.best).metadata["arguments"]
        assumptions.append({k: v for k, v in arguments.items() if k in ("guidance", "negatives")})
    return assumptions


@pytest.fixture
def reporter():
    """Return a reporter that keeps its notes."""
    reporter = Reporter()
    reporter.notes = []
    reporter.note = reporter.notes.append
    return reporter


def evidence_config(folder, *, bags=24, signal=3.0, **training):
    arguments = {"embed": 8, "attention_dim": 4, "predict_samples": 16}
    return make_config(
        folder,
        bags=bags,
        signal=signal,
        model="evidence-field",
        model_arguments=arguments,
        **training,
    )


def test_a_run_states_the_weight_of_neighbours_on_its_validation_bags(tmp_path):
    config = evidence_config(tmp_path / "data", bags=12, epochs=1)
    run = finish_run(train(config, tmp_path / "run"), bootstrap=0, maps="none", extras=False).run
    metadata = read_predictions(run.predictions).metadata
    prepared = prepare(config)
    bags = [prepared.bags.bag(name) for name in prepared.split.val]
    weights = [p.neighbour_weight for p in load(run.path, device="cpu").predict(bags)]
    assert metadata.neighbour_weight == pytest.approx(np.mean(weights), rel=1e-5)
    assert 0 < metadata.neighbour_weight < 1 and "neighbour_share" not in metadata.more


def test_members_take_the_assumptions_in_turn(tmp_path):
    assume = ("none", "one_region", "negatives")
    config = evidence_config(tmp_path / "data", members=4, assume=assume)
    run = train(config, tmp_path / "run")
    expected = [{}, {"guidance": "normal"}, {"negatives": 1.0}, {}]
    assert assumed(run) == expected
    for member, arguments in zip(run.members(), expected, strict=True):
        assert set(arguments) == {"guidance", "negatives"} & set(history_of(member)[0])
    one = replace(config, training=replace(config.training, members=1, assume=("negatives",)))
    assert assumed(train(one, tmp_path / "one")) == [{"negatives": 1.0}]


def test_no_member_assumes_one_region_of_the_slides_of_a_patient(tmp_path, reporter):
    config = evidence_config(tmp_path / "data", members=2, assume=("one_region", "negatives"))
    rows = [f"{k:03d},p{k // 2},{k // 2 % 2},{k // 2 % 3}" for k in range(24)]
    config.data.labels.write_text("\n".join(["bag,group,label,fold", *rows]))
    config = with_data(config, targets=TargetOptions(unit="patient"))
    run = train(config, tmp_path / "run", reporter=reporter)
    assert assumed(run) == [{}, {"negatives": 1.0}]
    assert any("one_region" in note for note in reporter.notes)


def test_a_model_that_cannot_make_an_assumption_makes_none(tmp_path, reporter):
    config = make_config(tmp_path / "data", model="abmil", members=2, assume=("negatives",))
    assert assumed(train(config, tmp_path / "run", reporter=reporter)) == [{}, {}]
    assert any("negatives" in note for note in reporter.notes)


def test_a_point_mass_does_not_assume_negatives(tmp_path, reporter):
    """P(f ≤ 0) of a point mass is 0 or 1, so its logarithm is no term."""
    config = evidence_config(tmp_path / "data", members=2, assume=("negatives", "one_region"))
    arguments = {"embed": 8, "attention_dim": 4}
    config = replace(config, model="evidence-dirac", model_arguments=arguments)
    run = train(config, tmp_path / "run", reporter=reporter)
    assert assumed(run) == [{}, {"guidance": "normal"}]
    assert any("negatives" in note for note in reporter.notes)
    for member in run.members():
        assert all(np.isfinite(row["loss"]) for row in history_of(member))


def test_the_level_of_evidence_is_that_of_the_validation_bags(tmp_path, monkeypatch):
    monkeypatch.setattr(
        localisation, "MAX_FALSE_SHARE", 0.6
    )  # at 0.15, the level of these bags is near 0
    config = evidence_config(tmp_path / "data", bags=60, signal=8.0, epochs=15, select="last")
    run = train(config, tmp_path / "run")
    level = load_checkpoint(run.best).metadata["arguments"]["level"]
    prepared = prepare(config)
    bags = [prepared.bags.bag(name) for name in prepared.split.val]
    predictions = list(load(run.path, device="cpu").predict(bags))
    means = [p.attention_mean for p in predictions]
    variances = [p.attention_variance for p in predictions]
    mean = torch.from_numpy(np.concatenate(means)).double() + level
    variance = torch.from_numpy(np.concatenate(variances)).double()
    sizes = [len(bag) for bag in bags]
    y = torch.tensor([prepared.targets[name] for name in prepared.split.val]) == 1
    assert level == pytest.approx(evidence_level(mean, variance, sizes, y), abs=1e-4) != 0
    assert load_checkpoint(run.last).metadata["arguments"]["level"] == level  # `last` is the best
    # a run file states all arguments, and None is replaced; a level that the user states stays
    data = {k: getattr(config.data, k) for k in ("features", "labels")}
    assert read_run(None, {**data, "model": "evidence-field"}).model_arguments["level"] is None
    with_level = replace(config, model_arguments={**config.model_arguments, "level": 0.25})
    run = train(with_training(with_level, epochs=1), tmp_path / "with_level")
    assert load_checkpoint(run.best).metadata["arguments"]["level"] == 0.25


def test_each_finding_has_its_own_level_and_the_background_0(tmp_path, monkeypatch):
    config = evidence_config(tmp_path / "data", bags=30)
    rows = [f"{k:03d},{k % 5 // 2},{k % 3}" for k in range(30)]
    config.data.labels.write_text("\n".join(["bag,label,fold", *rows]))
    counted = lambda mean, variance, sizes, positive: 1.0 + float(positive.sum())  # noqa: E731
    monkeypatch.setattr(loop, "evidence_level", counted)
    run = train(config, tmp_path / "run")
    y = [int(k) % 5 // 2 for k in read_split(run).val]
    level = load_checkpoint(run.best).metadata["arguments"]["level"]
    assert level == [0.0, 1.0 + y.count(1), 1.0 + y.count(2)]  # 0 is the background


def test_a_run_on_one_of_several_feature_sets_reads_a_folder_of_files(tmp_path):
    config = make_config(tmp_path / "data", model="abmil")
    config.data.features.rename(tmp_path / "data" / "features_a")
    (tmp_path / "data" / "features_b").mkdir()
    named = with_data(config, features=tmp_path / "data", feature_set="features_a")
    files = tmp_path / "data" / "features_a"
    assert open_data(named.data).names == open_data(named.data, features=files).names != ()
