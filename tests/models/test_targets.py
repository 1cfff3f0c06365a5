"""Every model learns every target that its class names, and refuses the others in one sentence."""

from dataclasses import replace

import pytest
import torch
from models.test_contract import F64, IN_DIM, SMALL, make_bag

from probsa import pack
from probsa.errors import InputError
from probsa.models import arguments, build, check_task, names
from probsa.models._registry import fixed
from probsa.tasks import TASKS
from probsa.variational import LikelihoodSpec

SPECS = {
    "cumulative": LikelihoodSpec(
        task="ordinal", n_classes=4, kind="cumulative", starts=(-1.0, 0.0, 1.0)
    ),
    "findings": LikelihoodSpec(task="multilabel", n_classes=3),
    "number": LikelihoodSpec(task="regression", shift=2.0, scale=3.0),
    "two logits": LikelihoodSpec(task="regression", noise="heteroscedastic"),
    "hazards": LikelihoodSpec(
        task="survival", kind="hazards", times=(2.0, 4.0, 6.0), starts=(-1.0, 0.0, 0.5)
    ),
    "cox": LikelihoodSpec(
        task="survival", kind="cox", times=(2.0, 4.0, 6.0), hazard=(0.1, 0.3, 0.9)
    ),
}
TARGETS = {
    "ordinal": torch.tensor([0, 3, 1]),
    "multilabel": torch.tensor([[1, 0, torch.nan], [0, 1, 1], [0, 0, 0]], dtype=F64),
    "regression": torch.tensor([0.3, -1.2, 2.0], dtype=F64),
    "survival": torch.tensor([[1, 1], [3, 0], [2, 1]], dtype=F64),
}
NAMES = names()


def model_for(name: str, spec: LikelihoodSpec):
    small = {k: v for k, v in SMALL.items() if k in arguments(name)}
    cls, _ = fixed(name)
    one_logit = cls.one_field and bool(spec.starts)
    values = {**spec.as_dict(), "one_logit": one_logit}
    torch.manual_seed(0)
    return build(name, in_dim=IN_DIM, likelihood=values, **small).double()


def bags_for(model, y):
    sizes = [max(n, model.min_instances) for n in (9, 4, 17)]
    bags = [make_bag(f"bag{k}", n) for k, n in enumerate(sizes)]
    return [replace(b, y=y[k]) for k, b in enumerate(bags)]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_learns_every_target_that_it_can(name):
    cls, _ = fixed(name)
    for spec in SPECS.values():
        if cls.needs_classes or cls.binary:
            with pytest.raises(InputError, match=f"{name} cannot learn the task {spec.task}"):
                model_for(name, spec)
            continue
        model = model_for(name, spec)
        bags = bags_for(model, TARGETS[spec.task])
        packed = pack(bags)
        out = model.train()(packed)
        losses = model.losses(out, packed)
        sum(losses.values()).backward()
        own = dict(model.likelihood.named_parameters())
        assert all(bool(v.isfinite()) for v in losses.values())
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in own.values())
        # one field: hazards and grades have one map, whatever the number of their steps
        if cls.one_field and spec.kind:
            assert out.logits.shape[2] == 1
        with torch.no_grad():
            whole = model.eval()(packed)
            columns = model.likelihood.outputs([f"c{k}" for k in range(spec.n_classes)])
            assert whole.probability.shape == whole.std.shape == (3, len(columns))
            alone = model(pack(bags[1:2]))
        torch.testing.assert_close(alone.probability[0], whole.probability[1], rtol=1e-8, atol=1e-9)
        if whole.explanation is not None:
            assert bool(whole.explanation.leave_one_out.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_built_again_from_what_it_states(name):
    cls, _ = fixed(name)
    for spec in SPECS.values():
        if cls.needs_classes or cls.binary:
            continue
        model = model_for(name, spec)
        again = build(name, **model.arguments)
        again.load_state_dict(model.state_dict())
        assert again.likelihood.task == spec.task and again.arguments == model.arguments


def test_every_task_has_models_and_rivals_say_why_not():
    for task in TASKS:
        check_task("abmil-probsa-diag", task)
        check_task("evidence-field", task)
    with pytest.raises(InputError, match=r"vmil cannot learn the task multiclass: .* binary"):
        check_task("vmil", "multiclass")
    with pytest.raises(InputError, match=r"clam-sb cannot .* Models for survival: .*abmil"):
        check_task("clam-sb", "survival")


def test_a_number_of_classes_that_contradicts_the_likelihood_is_refused():
    with pytest.raises(InputError, match="needs 3 logits: leave n_classes out"):
        build("abmil", in_dim=4, n_classes=2, likelihood=SPECS["findings"])
