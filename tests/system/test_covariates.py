"""Clinical covariates: an additive effect on the logits, encoded on training patients alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.stored import write_folder

from probsa.core import Bag, pack
from probsa.datasets import CovariateOptions
from probsa.errors import InputError, TableError
from probsa.evaluation import load, read_predictions
from probsa.models import build
from probsa.training import DataConfig, RunConfig, TrainingConfig, make_optimizer, train
from probsa.workflow import predict_folder, train_and_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bags without a signal, and an age that has one; one age is missing in training."""
    path = tmp_path_factory.mktemp("covariates")
    g = np.random.default_rng(0)
    write_folder(path, bags=36, signal=0.0)
    rows = ["bag,age,sex,height"]
    for k in range(36):
        age = "" if k == 10 else f"{60 + 12 * (k % 2) + 2 * g.normal():.2f}"
        rows.append(f"{k:03d},{age},{'mf'[k % 5 < 2]},{170 + 5 * g.normal():.1f}")
    (path / "clinical.csv").write_text("\n".join(rows) + "\n")
    return path


def config_of(folder, **options):
    given = {"numeric": ("age", "height"), "categorical": ("sex",), **options}
    covariates = CovariateOptions(covariates=folder / "clinical.csv", **given)
    return RunConfig(
        data=DataConfig(
            features=folder / "features",
            labels=folder / "labels.csv",
            test_fold=0,
            covariates=covariates,
        ),
        model="abmil-probsa-diag",
        model_arguments={"embed": 8, "attention_dim": 4, "samples": 3, "predict_samples": 20},
        training=TrainingConfig(
            epochs=25,
            batch_size=6,
            learning_rate=3e-2,
            warmup_epochs=0,
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
    )


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    return train_and_report(config_of(folder), tmp_path_factory.mktemp("run") / "run", maps="none")


def test_a_run_states_its_covariates_and_trains_no_second_model(trained):
    metadata = json.loads((trained.run.predictions / "predictions.json").read_text())
    assert metadata["covariates"] == ["age", "height", "sex"]
    assert load(trained.run.path, device="cpu").model.arguments["covariates"] == 4
    assert not (trained.run.path / "images_alone").exists()


def test_scales_and_levels_are_those_of_training(trained, folder, tmp_path):
    encoder = json.loads((trained.run.path / "covariates.json").read_text())
    split = json.loads((trained.run.path / "split.json").read_text())
    rows = [r.split(",") for r in (folder / "clinical.csv").read_text().splitlines()[1:]]
    ages = [float(age) for bag, age, *_ in rows if bag in split["train"] and age]
    assert encoder["means"][0] == pytest.approx(np.mean(ages))
    assert encoder["deviations"][0] == pytest.approx(np.std(ages))
    # rows of test bags may say anything
    test = set(split["test"])
    changed = [f"{b},{'99' if b in test else a},{s},{h}" for b, a, s, h in rows]
    (tmp_path / "clinical.csv").write_text("\n".join(["bag,age,sex,height", *changed]))
    other = config_of(folder)
    covariates = replace(other.data.covariates, covariates=tmp_path / "clinical.csv")
    other = replace(other, data=replace(other.data, covariates=covariates))
    short = replace(other, training=replace(other.training, epochs=1))
    run = train(short, tmp_path / "run")
    assert json.loads((run.path / "covariates.json").read_text()) == encoder


def test_new_patients_are_predicted_with_a_table_of_their_own(trained, folder, tmp_path):
    rows = (folder / "clinical.csv").read_text().splitlines()
    shifted = [rows[0]]
    for row in rows[1:]:
        bag, age, sex, height = row.split(",")
        shifted.append(f"{bag},{float(age) + 20 if age else ''},{sex},{height}")
    (tmp_path / "new.csv").write_text("\n".join(shifted))
    same = predict_folder(trained.run.path, folder / "features", out=tmp_path / "same")
    older = predict_folder(
        trained.run.path,
        folder / "features",
        out=tmp_path / "older",
        covariates=tmp_path / "new.csv",
    )
    p, q = (read_predictions(r.folder).probability[:, 0] for r in (same, older))
    known = np.array([row.split(",")[1] != "" for row in rows[1:]])
    assert (q[known] > p[known]).all() and q[~known] == p[~known]
    stored = read_predictions(trained.run.predictions)
    order = [read_predictions(same.folder).bags.index(b) for b in stored.bags]
    np.testing.assert_allclose(p[order], stored.probability[:, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (
            lambda rows: [*rows[:-1], rows[-1].replace(",m,", ",x,").replace(",f,", ",x,")],
            InputError,
            "x",
        ),
        (lambda rows: rows[:-1], TableError, "'035'"),
        (lambda rows: [*rows[:-1], "035,inf,m,170"], TableError, "inf"),
    ],
)
def test_bad_rows_are_refused(trained, folder, tmp_path, change, error, named):
    rows = (folder / "clinical.csv").read_text().splitlines()
    (tmp_path / "bad.csv").write_text("\n".join(change(rows)))
    with pytest.raises(error, match=named):
        predict_folder(
            trained.run.path,
            folder / "features",
            out=tmp_path / "p",
            covariates=tmp_path / "bad.csv",
        )
    assert not (tmp_path / "p").exists()


def bag_of(covariates=None):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    given = None if covariates is None else torch.tensor(covariates)
    return Bag(name="b", x=x, edges=edges, weights=torch.ones(4), y=1, covariates=given)


@pytest.mark.parametrize("name", ["abmil-probsa-diag", "evidence-field", "transmil"])
def test_with_coefficients_of_zero_the_image_decides_alone_bit_for_bit(name):
    torch.manual_seed(3)
    alone = build(name, in_dim=4).eval()
    torch.manual_seed(3)
    both = build(name, in_dim=4, covariates=2).eval()
    with torch.no_grad():
        a, b = alone(pack([bag_of()])), both(pack([bag_of([2.0, -1.0])]))
        assert torch.equal(a.logits, b.logits)
        both.covariates.weight.copy_(torch.tensor([[0.5, 3.0]]))
        shifted = both(pack([bag_of([2.0, -1.0])]))
    torch.testing.assert_close(shifted.logits, a.logits - 2.0)
    assert torch.equal(shifted.attention.mean, a.attention.mean)


def test_bags_and_model_must_agree_on_covariates():
    with pytest.raises(InputError, match="0 covariates"):
        build("abmil", in_dim=4, covariates=2)(pack([bag_of()]))
    with pytest.raises(InputError, match="1 covariates"):
        build("abmil", in_dim=4)(pack([bag_of([1.0])]))
    refused(InputError, "clam-sb takes no covariates", build, "clam-sb", in_dim=4, covariates=2)
    model = build("abmil", in_dim=4, covariates=2).eval()
    with torch.no_grad():
        model.covariates.weight.copy_(torch.tensor([[0.5, 3.0]]))
        p = model(pack([bag_of([2.0, -1.0])])).probability
        model.covariates.weight.copy_(torch.tensor([[0.05, 3.0]]))
        torch.testing.assert_close(model(pack([bag_of([20.0, -1.0])])).probability, p)
    model = build("abmil", in_dim=4, covariates=2)
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.3, covariate_weight_decay=0.07))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay[id(model.covariates.weight)] == 0.07
    assert len(decay) == sum(1 for _ in model.parameters())
    assert {v for k, v in decay.items() if k != id(model.covariates.weight)} == {0.3}


def test_an_interrupted_run_with_covariates_ends_with_the_same_bits(folder, trained, tmp_path):
    from probsa.training import Reporter, load_checkpoint

    class AfterTwoEpochs(Reporter):
        def epoch(self, row):
            if row["epoch"] == 2:
                raise KeyboardInterrupt

    config = config_of(folder)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", reporter=AfterTwoEpochs())
    run = train(config, tmp_path / "run", resume=True)
    for name, value in load_checkpoint(trained.run.last).tensors.items():
        assert torch.equal(load_checkpoint(run.last).tensors[name], value), name
