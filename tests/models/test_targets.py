"""Every model learns every target that its class names, and grades have a map of each threshold."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.test_contract import F64, IN_DIM, SMALL, make_bag
from scipy import integrate, stats

from probsa import pack
from probsa.errors import InputError
from probsa.models import arguments, build, check_task, look_up, names
from probsa.tasks import TASKS
from probsa.variational import LikelihoodSpec

GRADES = LikelihoodSpec(task="ordinal", n_classes=4, starts=(-1.0, 0.0, 1.0))
FINDINGS = LikelihoodSpec(task="multilabel", n_classes=3)
TIMES = (2.0, 4.0, 6.0)
SPECS = [
    GRADES,
    FINDINGS,
    LikelihoodSpec(task="regression", shift=2.0, scale=3.0),
    LikelihoodSpec(task="regression", noise="heteroscedastic"),
    LikelihoodSpec(task="survival", times=TIMES, starts=(-1.0, 0.0, 0.5)),
]
TARGETS = {
    "ordinal": torch.tensor([0, 3, 1]),
    "multilabel": torch.tensor([[1, 0, torch.nan], [0, 1, 1], [0, 0, 0]], dtype=F64),
    "regression": torch.tensor([0.3, -1.2, 2.0], dtype=F64),
    "survival": torch.tensor([[1, 1], [3, 0], [2, 1]], dtype=F64),
}


def model_for(name: str, spec: LikelihoodSpec):
    small = {k: v for k, v in SMALL.items() if k in arguments(name)}
    one_logit = look_up(name).model.one_field and bool(spec.starts)
    values = {**spec.as_dict(), "one_logit": one_logit}
    torch.manual_seed(0)
    return build(name, in_dim=IN_DIM, likelihood=values, **small).double()


@pytest.mark.parametrize("name", names())
def test_a_model_learns_every_target_that_it_can(name):
    cls = look_up(name).model
    for spec in SPECS:
        if cls.needs_classes or cls.binary:
            with pytest.raises(InputError, match=rf"{name} .*{spec.task}"):
                model_for(name, spec)
            continue
        model = model_for(name, spec)
        y = TARGETS[spec.task]
        again = build(name, **model.arguments)
        again.load_state_dict(model.state_dict())
        assert again.likelihood.task == spec.task and again.arguments == model.arguments
        sizes = [max(n, model.min_instances) for n in (9, 4, 17)]
        bags = [replace(make_bag(f"bag{k}", n), y=y[k]) for k, n in enumerate(sizes)]
        packed = pack(bags)
        out = model.train()(packed)
        losses = model.losses(out, packed)
        sum(losses.values()).backward()
        assert all(bool(v.isfinite()) for v in losses.values())
        own = list(model.likelihood.parameters())
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in own)
        # one field: hazards and grades have one map, whatever the number of their steps
        if cls.one_field and spec.starts:
            assert out.logits.shape[2] == 1
        with torch.no_grad():
            whole = model.eval()(packed)
            alone = model(pack(bags[1:2]))
        columns = model.likelihood.outputs([f"c{k}" for k in range(spec.n_classes)])
        assert whole.probability.shape == whole.std.shape == (3, len(columns))
        torch.testing.assert_close(alone.probability[0], whole.probability[1], rtol=1e-8, atol=1e-9)
        if whole.explanation is not None:
            assert bool(whole.explanation.leave_one_out.isfinite().all())
            if spec is not GRADES:
                assert whole.explanation.at_least is None


@torch.no_grad()
@pytest.mark.parametrize("name", ["abmil", "abmil-probsa-diag", "evidence-dirac"])
def test_the_map_of_a_threshold_is_the_prediction_of_a_bag_with_one_instance(name):
    model = model_for(name, GRADES).eval()
    bag = make_bag("bag", 6)
    at_least = model(pack([bag])).explanation.at_least
    for row in range(6):
        edges = torch.zeros(2, 0, dtype=torch.long)
        weights = torch.zeros(0, dtype=F64)
        alone = replace(bag, x=bag.x[[row]], edges=edges, weights=weights, coords=bag.coords[[row]])
        p = model(pack([alone])).probability[0]
        torch.testing.assert_close(at_least[row], p.flip(0).cumsum(0).flip(0)[1:])
    model.add_covariates(1)
    with_age = replace(bag, covariates=torch.zeros(1, dtype=F64))
    assert model.double()(pack([with_age])).explanation.at_least is None


@torch.no_grad()
@pytest.mark.parametrize("name", ["evidence-diag", "evidence-field"])
def test_under_a_posterior_it_is_the_mean_over_the_evidence_of_the_instance(name):
    """Against adaptive quadrature of scipy, with another formula of the same likelihood."""
    model = model_for(name, GRADES).eval()
    model.pooling.log_alpha.fill_(0.7)
    model.pooling.bias.fill_(-0.3)
    out = model(pack([make_bag("bag", 5)]))
    alpha = float(np.exp(0.7))
    theta = model.likelihood.thresholds.numpy()
    mean = out.attention.mean.numpy()
    std = out.attention.variance.sqrt().numpy()
    for n in range(5):
        for k, cut in enumerate(theta):

            def reached(f, n=n, cut=cut):
                return stats.norm.pdf(f, mean[n], std[n]) / (1 + np.exp(cut - alpha * f + 0.3))

            want, _ = integrate.quad(reached, mean[n] - 12 * std[n], mean[n] + 12 * std[n])
            assert abs(float(out.explanation.at_least[n, k]) - want) < 1e-5


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: check_task("vmil", "multiclass"), "multiclass.*binary"),
        (lambda: check_task("clam-sb", "survival"), "survival.*abmil"),
        (lambda: build("abmil", in_dim=4, n_classes=2, likelihood=FINDINGS), "n_classes"),
    ],
)
def test_a_target_that_a_model_cannot_learn_is_refused(call, names):
    for task in TASKS:
        check_task("abmil-probsa-diag", task)
        check_task("evidence-field", task)
    with pytest.raises(InputError, match=names):
        call()
