"""Hooks of a model in the training loop, and its scores on request."""

import pytest
import torch
from support.made_runs import ARGUMENTS, loop_of, make_config

from probsa.errors import InputError
from probsa.evaluation.predictor import _weights
from probsa.models import _registry, register
from probsa.models.attention_mil import ABMIL
from probsa.training.devices import World


class Hooked(ABMIL):
    """Trains its attention in even epochs and the rest in odd ones."""

    def __init__(self, *, in_dim, n_classes=1, embed=8, attention_dim=4):
        super().__init__(
            in_dim=in_dim, n_classes=n_classes, embed=embed, attention_dim=attention_dim
        )
        self.turn = 0
        self.started = []

    def start_epoch(self, epoch, epochs):
        self.turn = epoch % 2
        self.started.append((epoch, epochs))

    def losses(self, out, bags):
        attention = out.attention.mean.square().mean()
        return {"attention": attention} if self.turn == 0 else super().losses(out, bags)


@pytest.fixture
def registered():
    """Register the model for the duration of a test."""
    register("hooked-test")(Hooked)
    yield "hooked-test"
    del _registry._registrations["hooked-test"]


@pytest.fixture
def config(tmp_path, registered):
    return make_config(tmp_path / "data", model=registered, model_arguments=ARGUMENTS, epochs=4)


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


def test_a_method_that_couples_bags_is_trained_in_one_process(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Hooked, "couples_bags", True)
    loop_of(config, tmp_path / "a")
    with pytest.raises(InputError, match="2 processes"):
        loop_of(config, tmp_path / "b", world=World(rank=0, size=2))


def test_a_weight_is_its_own_share_and_a_logit_is_softmaxed():
    v = torch.tensor([0.1, 0.9, 2.0])
    assert torch.equal(_weights(v, (2, 1), kind="weight"), v)
    shares = _weights(v, (2, 1), kind="probability")
    assert shares.tolist() == pytest.approx([0.1, 0.9, 1.0])
    soft = _weights(v, (2, 1), kind="logit")
    assert soft.tolist() == pytest.approx([*v[:2].softmax(0).tolist(), 1.0])
    positive = _weights(torch.tensor([-1.0, 0.0, -1.0, 3.0, 1.0]), (2, 3), kind="relevance")
    assert positive.tolist() == [0, 0, 0, 0.75, 0.25]
