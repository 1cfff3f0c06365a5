"""Ensembles: K members in one run, trained one after another, and predicted together."""

import numpy as np
import pytest
from support.made_runs import history_of, make_config

from probsa.errors import InputError
from probsa.evaluation import Ensemble, load, read_predictions
from probsa.training import open_data, read_split, train
from probsa.training.loop import member_configs
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
    bags, stored = open_data(config.data), read_predictions(run.predictions)
    assert stored.metadata["members"] == 3 and len(stored.metadata["epoch"]) == 3
    names = stored.bags
    alone = [list(load(m.path, device="cpu").predict(bags.bag(n) for n in names)) for m in members]
    for row, name in enumerate(names):
        p, std = (
            np.array([getattr(member[row], what) for member in alone], np.float64)
            for what in ("probability", "std")
        )
        np.testing.assert_allclose(stored.probability[row], p.mean(0), rtol=1e-6)
        within, between = np.square(std).mean(0), p.var(0)
        np.testing.assert_allclose(stored.std_within[row], np.sqrt(within), rtol=1e-5)
        np.testing.assert_allclose(stored.std_between[row], np.sqrt(between), rtol=1e-5)
        np.testing.assert_allclose(stored.std[row], np.sqrt(within + between), rtol=1e-5)
        read = stored.instances(name)
        total = read.variance_within + read.variance_between
        np.testing.assert_allclose(read.attention_variance, total, rtol=1e-5)
        assert read.std_between is not None and read.variance_between.any()


def test_a_member_that_diverges_is_named(tmp_path):
    wild = make_config(tmp_path / "data", model="dsmil", members=2, learning_rate=1e30)
    with pytest.raises(InputError, match=r"members.0: epoch 1: .* lower learning_rate"):
        train(wild, tmp_path / "run")
    assert not (tmp_path / "run").exists()
