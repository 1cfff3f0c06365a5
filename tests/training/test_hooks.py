"""Hooks of the training loop: start of an epoch, memory, and parameter groups with own norms."""

import pytest
import torch
from support.stored import write_folder

from probsa.errors import InputError
from probsa.models import _registry, register
from probsa.models.attention_mil import ABMIL
from probsa.training.checkpoints import load_checkpoint
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.devices import World
from probsa.training.loop import TrainingLoop
from probsa.training.optimizers import clip_gradients
from probsa.training.preparation import prepare
from probsa.training.reporting import Reporter
from probsa.training.run_folder import RunFolder
from probsa.training.single import train


class Hooked(ABMIL):
    """Trains its attention in even epochs and the rest in odd ones; counts the bags it has seen."""

    def __init__(self, *, in_dim, n_classes=1, embed=8, attention_dim=4):
        super().__init__(
            in_dim=in_dim, n_classes=n_classes, embed=embed, attention_dim=attention_dim
        )
        self.turn, self.started, self.seen = 0, [], {}

    def start_epoch(self, epoch, epochs):
        self.turn = epoch % 2
        self.started.append((epoch, epochs))

    def losses(self, out, bags):
        attention = out.attention.mean.square().mean()
        return {"attention": attention} if self.turn == 0 else super().losses(out, bags)

    def after_step(self, out, bags):
        for name in bags.names:
            self.seen[name] = self.seen.get(name, torch.zeros(())) + 1

    def memory(self):
        return self.seen

    def restore_memory(self, tensors):
        self.seen = dict(tensors)


@pytest.fixture
def registered():
    """Register the model for the duration of a test."""
    register("hooked-test")(Hooked)
    yield "hooked-test"
    del _registry._registrations["hooked-test"]


@pytest.fixture
def config(tmp_path, registered):
    features, labels = write_folder(tmp_path / "data")
    return RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model=registered,
        model_arguments={"embed": 8, "attention_dim": 4},
        training=TrainingConfig(epochs=4, batch_size=2, device="cpu", tensorboard=False),
    )


def loop_of(config, out, *, world=None):
    return TrainingLoop(
        config, RunFolder(out), prepare(config), device=torch.device("cpu"),
        world=world or World(), reporter=Reporter(),
    )  # fmt: skip


def test_each_epoch_is_announced_and_what_a_step_does_not_reach_stays(config, tmp_path):
    loop = loop_of(config, tmp_path / "a")
    model = loop.model
    before = {k: v.clone() for k, v in model.state_dict().items()}
    loop.train_epoch()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed and not any(k.startswith("classifier") for k in changed)
    assert not any("classifier" in k for k in _state_names(loop))
    loop.progress.epoch += 1
    loop.train_epoch()
    assert model.started == [(0, 4), (1, 4)]
    now = model.state_dict()
    assert not torch.equal(now["classifier.weight"], before["classifier.weight"])


def _state_names(loop):
    names = {id(p): k for k, p in loop.model.named_parameters()}
    return {names[id(p)] for p in loop.optimizer.state}


def test_a_memory_survives_an_interruption(config, tmp_path):
    """Two epochs and two more give the weights and the memory of four."""
    whole = train(config, tmp_path / "whole")

    class Killed(Reporter):
        def epoch(self, row):
            if row["epoch"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", reporter=Killed())
    parts = train(config, tmp_path / "parts", resume=True)
    a, b = load_checkpoint(whole.last), load_checkpoint(parts.last)
    assert set(a.part("memory")) == set(prepare(config).split.train)
    for prefix in ("model", "memory"):
        assert a.part(prefix).keys() == b.part(prefix).keys()
        assert all(torch.equal(v, b.part(prefix)[k]) for k, v in a.part(prefix).items())
    assert all(v == 4 for v in a.part("memory").values())


def test_a_group_with_its_own_norm_is_clipped_by_itself():
    a, b, c = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = torch.optim.SGD(
        [{"params": [a], "clip_norm": 5.0}, {"params": [b]}, {"params": [c]}], lr=1.0
    )
    for p, value in ((a, 30.0), (b, 6.0), (c, 8.0)):
        p.grad = torch.tensor([value, 0.0])
    clip_gradients(optimizer, None)
    assert [p.grad[0].item() for p in (a, b, c)] == pytest.approx([5, 6, 8], rel=1e-5)
    clip_gradients(optimizer, 1.0)
    assert [p.grad[0].item() for p in (a, b, c)] == pytest.approx([5, 0.6, 0.8], rel=1e-5)


def test_a_method_that_couples_bags_is_trained_in_one_process(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Hooked, "couples_bags", True)
    loop_of(config, tmp_path / "a")
    with pytest.raises(InputError, match=r"couples the bags of a batch.*2 processes.*in one"):
        loop_of(config, tmp_path / "b", world=World(rank=0, size=2))


def test_scores_on_request_are_what_prediction_shows(registered):
    from probsa.evaluation.predictor import Predictor
    from probsa.training.preparation import Standardizer
    from probsa.variational.posteriors import Dirac

    class Costly(Hooked):
        score_kind = "relevance"

        def instance_scores(self, bags, out):
            with torch.enable_grad():
                x = bags.x.detach().requires_grad_()
                (grad,) = torch.autograd.grad(self.embed(x).sum(), x)
            return Dirac(grad.sum(1).detach())

    from support.random_bags import random_bag

    bag = random_bag(5, features=6, dtype=torch.float32)
    model = Costly(in_dim=6, embed=4, attention_dim=3).eval()
    (prediction,) = Predictor(model, Standardizer(), device="cpu").predict([bag])
    x = bag.x.requires_grad_()
    (expected,) = torch.autograd.grad(model.embed(x).sum(), x)
    assert prediction.attention_mean.tolist() == pytest.approx(expected.sum(1).tolist(), rel=1e-5)
    positive = expected.sum(1).clamp_min(0)
    shares = (positive / positive.sum().clamp_min(1e-30)).tolist()
    assert prediction.weight_mean.tolist() == pytest.approx(shares, rel=1e-5)


def test_a_weight_is_its_own_share_and_a_logit_is_softmaxed():
    from probsa.evaluation.predictor import _weights

    v = torch.tensor([0.1, 0.9, 2.0])
    assert torch.equal(_weights(v, (2, 1), kind="weight"), v)
    shares = _weights(v, (2, 1), kind="probability")
    assert shares.tolist() == pytest.approx([0.1, 0.9, 1.0])
    soft = _weights(v, (2, 1), kind="logit")
    assert soft.tolist() == pytest.approx([*v[:2].softmax(0).tolist(), 1.0])
    nothing = _weights(torch.tensor([-1.0, 0.0]), (2,), kind="relevance")
    assert nothing.tolist() == [0, 0]
