"""Joint training gives each run what it gets on its own, and says which runs cannot take part."""

from dataclasses import replace

import pytest
import torch
from support.random_bags import F64, random_bag
from support.stored import write_folder

from probsa import models, pack
from probsa.core.randomness import random_stream
from probsa.errors import InputError, TableError
from probsa.evaluation.loading import load
from probsa.training import (
    JointTrainingFailed,
    Reporter,
    joint_key,
    train,
    train_jointly,
    why_not_jointly,
)
from probsa.training.checkpoints import load_checkpoint
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.model_stack import Stack, objectives
from probsa.training.preparation import open_data
from probsa.variational.objectives import objective

SMALL = {"embed": 12, "attention_dim": 6}
TRANSFORMER = {**SMALL, "heads": 2}
STRUCTURES = [
    ("abmil", SMALL),
    ("abmil", {**SMALL, "trunk": "gated", "score_bias": True}),
    ("abmil-probsa-dirac", {**SMALL, "laplacian": "normalized"}),
    ("abmil-probsa-diag", {**SMALL, "samples": 5, "predict_samples": 50}),
    ("abmil-probsa-diag", {"embed": None, "trunk": "mlp", "attention_dim": 4, "samples": 3}),
    ("abmil-probsa-diag", {"embed": (9, 7), "classifier_hidden": 4, "samples": 3}),
    ("tabmil", {**TRANSFORMER, "final_norm": False}),
    ("tabmil-probsa-diag", {**TRANSFORMER, "samples": 4, "add_self": True}),
    ("tabmil-probsa-dirac", {**TRANSFORMER, "width": 8, "out_proj": False, "use_mlp": False}),
    ("abmil-probsa-field", {**SMALL, "samples": 3}),
    ("tabmil-probsa-field", {**TRANSFORMER, "samples": 3, "laplacian": "normalized"}),
    ("evidence-dirac", SMALL),
    ("evidence-diag", {**SMALL, "samples": 3}),
    ("evidence-field", {**TRANSFORMER, "samples": 3, "encoder": "transformer"}),
]


@pytest.mark.parametrize(("name", "arguments"), STRUCTURES)
@pytest.mark.parametrize("n_classes", [1, 3])
def test_a_stack_gives_each_model_its_own_outputs_terms_and_gradients(name, arguments, n_classes):
    """In float64, so that only rounding errors remain."""
    bags = pack([random_bag(n, seed=n, y=n % 2) for n in (4, 1, 6)])
    alone = []
    for seed in (3, 11, 4):
        torch.manual_seed(seed)
        built = models.build(name, in_dim=5, n_classes=n_classes, seed=seed, **arguments)
        if getattr(built, "learned_prior", None) is not None:
            built.learned_prior.log_kappa.fill_(seed / 10)  # each model has learned its own κ
        alone.append(built.double())
    stack = Stack(alone)
    out, many = stack(bags, generators=[random_stream(m.seed, "noise") for m in alone])
    terms = stack.losses(out, many)
    λ = [0.0, 0.5, 2.0]
    objectives(terms, weights={}, kl_weights=λ).sum().backward()
    grads = {k: p.grad for k, p in stack.model.named_parameters()}
    for k, model in enumerate(alone):
        output = model(bags, generator=random_stream(model.seed, "noise"))
        loss = model.losses(output, bags)
        assert loss.keys() == terms.keys()
        for key, value in loss.items():
            torch.testing.assert_close(terms[key][k], value, rtol=1e-12, atol=1e-14)
        objective(loss, weights={}, kl_weight=λ[k]).backward()
        for key, p in model.named_parameters():
            expected = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(grads[key][k], expected, rtol=1e-9, atol=1e-13)
    stack.eval()
    with torch.no_grad():
        p = stack.probability(stack(bags)[0])
        for k, model in enumerate(alone):
            torch.testing.assert_close(p[k], model.eval()(bags).probability, rtol=1e-12, atol=1e-14)


def test_a_term_at_no_weight_is_not_multiplied():
    terms = {
        "nll": torch.tensor([1.0, 2.0], dtype=F64),
        "kl": torch.tensor([torch.inf, 3.0]).double(),
    }
    losses = objectives(terms, weights={"nll": 0.5}, kl_weights=[0.0, 2.0])
    assert losses.tolist() == [0.5, 7.0]


@pytest.fixture
def configs(tmp_path):
    """Runs with different seeds, λ, posteriors and encoders that see the same batches."""
    features, labels = write_folder(tmp_path / "data", bags=18)
    one = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0, standardize=True),
        model="abmil",
        model_arguments=SMALL,
        training=TrainingConfig(
            epochs=4, batch_size=4, device="cpu", tensorboard=False, threads=1, balanced=True,
            learning_rate=1e-3, kl_weight=0.0,
        ),
        data_seed=5,
    )  # fmt: skip

    def variant(model, arguments, *, seed, kl_weight):
        training = replace(one.training, kl_weight=kl_weight)
        return replace(one, model=model, model_arguments=arguments, seed=seed, training=training)

    diag = {**SMALL, "samples": 4, "predict_samples": 40}
    return [
        one,
        replace(one, seed=1),
        variant("abmil-probsa-dirac", SMALL, seed=0, kl_weight=1.0),
        variant("abmil-probsa-diag", diag, seed=1, kl_weight=0.1),
        variant("abmil-probsa-diag", diag, seed=0, kl_weight="cyclical"),
        variant("tabmil-probsa-diag", {**TRANSFORMER, **diag}, seed=2, kl_weight="linear"),
    ]


def test_each_joint_run_equals_its_run_alone(configs, tmp_path):
    """In weights, optimiser, metrics and files, up to the float32 rounding of four epochs."""
    assert {joint_key(c) for c in configs} == {joint_key(configs[0])}
    outs = [tmp_path / f"joint{k}" for k in range(len(configs))]
    folders = train_jointly(configs, outs, state=tmp_path / "state")
    assert not (tmp_path / "state").exists()
    for k, (config, joint) in enumerate(zip(configs, folders, strict=True)):
        alone = train(config, tmp_path / f"alone{k}")
        files = [sorted(p.relative_to(f.path) for p in f.path.rglob("*.*")) for f in (alone, joint)]
        assert files[0] == files[1]
        assert joint.config() == alone.config() == config
        for one, other in ((alone.best, joint.best), (alone.last, joint.last)):
            a, b = load_checkpoint(one), load_checkpoint(other)
            assert a.tensors.keys() == b.tensors.keys()
            for key, value in a.tensors.items():
                torch.testing.assert_close(b.tensors[key], value, rtol=2e-3, atol=2e-6, msg=key)
            assert a.metadata["classes"] == b.metadata["classes"]
        assert (
            load_checkpoint(alone.last).metadata["groups"]
            == load_checkpoint(joint.last).metadata["groups"]
        )
        rows = [load_checkpoint(f.last).metadata["progress"] for f in (alone, joint)]
        for row, same in zip(rows[0]["history"], rows[1]["history"], strict=True):
            assert row.keys() == same.keys()
            assert {**row, "seconds": 0} == pytest.approx({**same, "seconds": 0}, rel=1e-4)
        assert rows[0]["best"] == pytest.approx(rows[1]["best"], rel=1e-4)
    bags = open_data(configs[0].data)
    first = [bags.bag(name) for name in bags.names[:3]]
    for k, folder in enumerate(folders):
        a, b = (
            list(load(f, device="cpu").predict(first))
            for f in (folder.path, tmp_path / f"alone{k}")
        )
        assert [p.probability[0] for p in a] == pytest.approx(
            [p.probability[0] for p in b], rel=1e-4
        )


def test_the_state_of_other_runs_is_not_used(configs, tmp_path):
    class Stop(Exception):
        pass

    class Breaker(Reporter):
        def step(self, *, epoch, share):
            if epoch == 1:
                raise Stop

    outs = [tmp_path / f"run{k}" for k in range(2)]
    with pytest.raises(Stop):
        train_jointly(configs[:2], outs, state=tmp_path / "s", reporter=Breaker(), save_every=0.0)
    fewer = train_jointly(configs[:1], outs[:1], state=tmp_path / "s")
    alone = train_jointly(configs[:1], [tmp_path / "alone"], state=tmp_path / "t")
    x, y = load_checkpoint(fewer[0].last).tensors, load_checkpoint(alone[0].last).tensors
    assert all(torch.equal(x[key], y[key]) for key in x)


def test_a_run_that_diverges_takes_no_other_with_it(configs, tmp_path):
    arguments = {**SMALL, "kappa": 1e38}
    training = replace(configs[2].training, kl_weight=1e4)
    wild = replace(configs[2], model_arguments=arguments, training=training)
    outs = [tmp_path / "a", tmp_path / "wild", tmp_path / "b"]
    with pytest.raises(
        JointTrainingFailed, match=r"1 runs of a joint training failed\. .*wild: epoch \d"
    ) as failed:
        train_jointly([configs[0], wild, configs[2]], outs, state=tmp_path / "s")
    assert list(failed.value.failures) == [outs[1]]
    assert not outs[1].exists()
    calm = train_jointly(
        [configs[0], configs[2]], [tmp_path / "c", tmp_path / "d"], state=tmp_path / "t"
    )
    for path, folder in zip((outs[0], outs[2]), calm, strict=True):
        a = load_checkpoint(path / "checkpoints/last.safetensors").tensors
        b = load_checkpoint(folder.last).tensors
        for key, value in b.items():
            torch.testing.assert_close(a[key], value, rtol=1e-4, atol=1e-7, msg=key)


def test_predictions_that_are_no_numbers_end_a_run_as_they_do_alone(configs, tmp_path, monkeypatch):
    """The loss can be finite while predictions are not, as after the last step of an epoch."""
    probability = Stack.probability
    factor = torch.tensor([1.0, torch.nan])[:, None, None]
    monkeypatch.setattr(Stack, "probability", lambda self, out: probability(self, out) * factor)
    outs = [tmp_path / "a", tmp_path / "b"]
    message = r"b: epoch 1: validation bags are predicted as NaN"
    with pytest.raises(JointTrainingFailed, match=message) as failed:
        train_jointly(configs[:2], outs, state=tmp_path / "s")
    assert list(failed.value.failures) == [outs[1]]
    assert outs[0].exists() and not outs[1].exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "dsmil", "model_arguments": {}}, "dsmil is not made of linear maps"),
        (
            {"model_arguments": {"dropout": 0.2}},
            "dropout draws all its noise from one random stream",
        ),
        ({"training": {"clip_norm": 1.0}}, "clip_norm is 1.0"),
        ({"training": {"scalar_rate": 10.0}}, "scalar_rate is 10.0"),
        ({"training": {"patience": 3}}, "patience is 3"),
        ({"training": {"lookahead": 6}}, "lookahead is 6"),
        ({"training": {"schedule": "plateau"}}, "schedule is plateau"),
        ({"training": {"decay_vectors": False, "weight_decay": 0.1}}, "decay_vectors is False"),
    ],
)
def test_a_run_that_cannot_train_jointly_is_refused(configs, tmp_path, change, words):
    if "training" in change:
        change = {"training": replace(configs[0].training, **change["training"])}
    config = replace(configs[0], **change)
    assert words in (why_not_jointly(config) or "")
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        train_jointly([config], [tmp_path / "run"], state=tmp_path / "s")
    assert not (tmp_path / "run").exists()
    assert all(why_not_jointly(c) is None for c in configs)


def test_one_class_in_training_is_refused_for_all_joint_runs(configs, tmp_path):
    table = configs[0].data.labels
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    lines = [f"{bag},{int(fold != '1')},{fold}" for bag, _, fold in rows]
    table.write_text("\n".join(["bag,label,fold", *lines]) + "\n")  # fold 1 validates
    with pytest.raises(TableError, match=r"training bags are of class 1, .* another class"):
        train_jointly(configs[:2], [tmp_path / "a", tmp_path / "b"], state=tmp_path / "s")
    assert not (tmp_path / "a").exists()


def test_runs_that_see_other_batches_do_not_train_jointly(configs, tmp_path):
    one = configs[0]
    keys = [
        joint_key(replace(one, data_seed=6)),
        joint_key(replace(one, data=replace(one.data, test_fold=1))),
        joint_key(replace(one, training=replace(one.training, batch_size=5))),
        joint_key(replace(one, training=replace(one.training, precision="bf16"))),
        joint_key(replace(one, model_arguments={**SMALL, "n_classes": 2})),
        joint_key(replace(one, data_seed=None, seed=7)),
    ]
    assert len({joint_key(one), *keys}) == 7
    assert joint_key(replace(one, data_seed=None, seed=5)) == joint_key(one)
    other = replace(one, data_seed=6)
    with pytest.raises(InputError, match="do not see the same batches"):
        train_jointly([one, other], [tmp_path / "a", tmp_path / "b"], state=tmp_path / "s")
