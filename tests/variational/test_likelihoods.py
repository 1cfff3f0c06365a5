"""Likelihoods against torch, statsmodels, scoringrules and reference values."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scoringrules
import torch
import torch.nn.functional as F
from statsmodels.miscmodels.ordinal_model import OrderedModel
from support.random_bags import F64

from probsa.errors import InputError
from probsa.models import Output
from probsa.variational import (
    Bernoulli,
    Categorical,
    Dirac,
    Independent,
    LikelihoodOptions,
    LikelihoodSpec,
    balanced_weights,
    build_likelihood,
    fit_spec,
    likelihood_of,
    logits_of,
)
from probsa.variational.likelihoods import UNIT

NAN = math.nan
THETA = (-1.5, -0.5, 0.5, 1.0, 2.0)
GRADES = LikelihoodSpec(task="ordinal", n_classes=6, starts=THETA)
FINDINGS = LikelihoodSpec(task="multilabel", n_classes=3)
NUMBER = LikelihoodSpec(task="regression")
TWO_LOGITS = replace(NUMBER, noise="heteroscedastic")
HAZARDS = LikelihoodSpec(task="survival", times=(2.0, 4.0, 6.0))
SPECS = {
    "grades": GRADES,
    "findings": FINDINGS,
    "number": NUMBER,
    "fixed noise": replace(NUMBER, noise=0.7, shift=2.0, scale=3.0),
    "two logits": TWO_LOGITS,
    "hazards": HAZARDS,
    "hazards, one logit": replace(HAZARDS, starts=(-1.0, 0.0, 0.5), one_logit=True),
}


def t64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


TARGETS = {
    "ordinal": torch.tensor([0, 3, 1, 2, 5, 0]),
    "multilabel": t64([[1, 0, NAN], [0, 1, 1], [NAN, NAN, 1], [0, 0, 0], [1, 1, 1], [0, NAN, 0]]),
    "regression": t64([0.3, -1.2, 2, 0.1, 0, -0.4]),
    "survival": t64([[1, 1], [3, 0], [2, 1], [7, 1], [9, 0], [1.5, 0]]),
}
# means of the mixtures of 3 samples, and the noise, of 4 bags
VALUES = t64([1.2, -0.4, 0.3, 2.1])
NOISE = t64([0.5, 0.4, 0.3, 0.8])
MEANS = t64([[0.8, 1, 1.4], [-0.2, 0.1, 0], [0.4, 0.5, 0.7], [1.2, 1.5, 2]])


def logits(*shape, seed=0, scale=1.5) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def gaussian_logits(mu, sd) -> torch.Tensor:
    return torch.stack([mu, torch.log(torch.expm1(sd**2 - 1e-4)) - UNIT], -1)


def close(actual, want, *, atol=6e-8):
    torch.testing.assert_close(actual, torch.as_tensor(want, dtype=F64), rtol=0, atol=atol)


def cross_entropies(ell, y):
    bags, samples, _ = ell.shape
    values = torch.zeros(bags, samples, dtype=F64)
    for b in range(bags):
        for s in range(samples):
            values[b, s] = F.cross_entropy(ell[b, s], y[b])
    return values


def binary(ell, present):
    return F.binary_cross_entropy_with_logits(ell, present.double(), reduction="none")


def one_hot(ell, y):  # the last label is that of no class
    return F.one_hot(y, ell.shape[2] + 1)[:, None, :-1].expand_as(ell)


OF_CLASSES = {
    "bernoulli": (Bernoulli, 1, [0, 1, 1], lambda e, y: binary(e[..., 0], y[:, None].expand(3, 4))),
    "categorical": (Categorical, 3, [2, 0, 1], cross_entropies),
    "independent": (Independent, 2, [0, 1, 2], lambda e, y: binary(e, one_hot(e, y)).mean(2)),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_losses_of_classes_are_means_over_samples_of_those_of_torch(name):
    kind, classes, y, reference = OF_CLASSES[name]
    y = torch.tensor(y)
    ell = logits(3, 4, classes, scale=3.0)
    want = reference(ell, y)
    close(kind().nll(ell, y), want.mean(1), atol=1e-13)
    close(kind().predictive_nll(ell, y), -(-want).exp().mean(1).log(), atol=1e-13)
    assert torch.equal(kind().nll(ell, y.float()), kind().nll(ell, y))
    half = ell.to(torch.bfloat16)
    assert torch.equal(kind().nll(half, y), kind().nll(half.float(), y))
    weights = (0.5, 2.0, 3.0)[: max(classes, 2)]
    weighed = kind(class_weights=weights).nll(ell, y)
    close(weighed, want.mean(1) * torch.tensor([*weights, 1.0])[y], atol=1e-7)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_logits_cost_their_size_and_have_finite_gradients(likelihood, size):
    ell = torch.zeros(1, 1, 1 if isinstance(likelihood, Bernoulli) else 2)
    ell[..., -1] = size
    ell.requires_grad_()
    loss = likelihood.nll(ell, torch.tensor([0 if size > 0 else 1]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(1e4)
    assert float(ell.grad[..., -1]) == pytest.approx(1 if size > 0 else -1)
    assert float(likelihood.nll(ell.detach(), torch.tensor([int(size > 0)]))) == 0


@pytest.mark.parametrize(("classes", "squash"), [(1, torch.sigmoid), (3, lambda t: t.softmax(-1))])
def test_a_probability_is_the_mean_of_probabilities(classes, squash):
    ell = logits(2, 50, classes, scale=5.0)
    out = Output(logits=ell, attention=Dirac(torch.zeros(2)), likelihood=likelihood_of(classes))
    p = torch.stack([squash(ell[:, s]) for s in range(50)], 1)
    close(out.probability, p.mean(1), atol=1e-13)
    close(out.std, p.std(1, correction=0), atol=1e-13)
    assert float((out.probability - squash(ell.mean(1))).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("y", "classes", "want"),
    [([0, 0, 0, 1], 1, (4 / 6, 2.0)), ([0, 1, 1, 2, 2, 2], 3, (2.0, 1.0, 2 / 3))],
)
def test_balanced_weights_are_n_over_c_n_c(y, classes, want):
    assert balanced_weights(torch.tensor(y), classes) == pytest.approx(want)


def test_grades_equal_statsmodels_and_the_reference_values():
    model = build_likelihood(GRADES).double()
    eta = t64([-2, -0.5, 0.8, 2.5, 0.1])[:, None, None]
    y = torch.tensor([0, 1, 3, 5, 2])
    close(model.nll(eta, y), [0.474077, 1.465084, 2.085246, 0.474077, 1.409178], atol=6e-7)
    grades = [0.701236, 1.758284, 2.950796, 4.255419, 2.298146]
    close(model.probability(eta)[:, 0, 0], grades, atol=6e-7)
    eta = logits(30, seed=1)
    y = torch.arange(30) % 6
    reference = OrderedModel(y.numpy(), eta[:, None].numpy(), distr="logit")
    parameters = np.concatenate([[1.0], THETA[:1], np.log(np.diff(THETA))])
    nll = model.nll(eta[:, None, None], y).sum()
    # starts are stored in float32
    assert float(nll.detach()) == pytest.approx(-reference.loglike(parameters), abs=1e-6)


def test_thresholds_stay_ordered_and_extreme_logits_finite():
    model = build_likelihood(GRADES)
    with torch.no_grad():
        model.steps.normal_(std=10, generator=torch.Generator().manual_seed(0))
    assert bool((model.thresholds.diff() > 0).all())
    eta = torch.tensor([60.0, -60, 60, -60])[:, None, None].requires_grad_()
    loss = model.nll(eta, torch.tensor([0, 5, 3, 2]))
    loss.sum().backward()
    assert bool(loss.isfinite().all()) and bool(eta.grad.isfinite().all())


def test_findings_count_bags_alike_and_leave_out_what_is_not_known():
    y = t64([[1, 0, 1], [0, NAN, 1], [1, 1, 0], [0, 1, NAN], [1, 0, 0]])
    p = t64([[0.9, 0.2, 0.6], [0.4, 0.3, 0.7], [0.6, 0.8, 0.4], [0.5, 0.6, 0.5], [0.3, 0.1, 0.2]])
    ell = p.logit()[:, None].requires_grad_()
    loss = build_likelihood(FINDINGS).nll(ell, y)
    assert float(loss.mean().detach()) == pytest.approx(0.4482541, abs=5e-8)
    loss.sum().backward()
    assert torch.equal(ell.grad[:, 0] == 0, y.isnan())
    ell = logits(7, 3, 3)
    labels = torch.tensor([0, 1, 2, 0, 3, 2, 1])
    present = one_hot(ell, labels)[:, 0].double()
    close(build_likelihood(FINDINGS).nll(ell, present), Independent().nll(ell, labels), atol=1e-12)
    weighted = build_likelihood(replace(FINDINGS, positive_weights=(2.0, 0.5, 4.0))).double()
    weights = 1 + present * t64([1, -0.5, 3])
    expected = binary(ell, one_hot(ell, labels)) * weights[:, None]
    close(weighted.nll(ell, present), expected.mean((1, 2)), atol=1e-12)


def test_gaussians_equal_torch_and_scoringrules_and_mixtures_the_reference_values():
    model = build_likelihood(TWO_LOGITS)
    mu = MEANS[:, :1]
    ell = gaussian_logits(mu, NOISE[:, None])
    want = F.gaussian_nll_loss(mu[:, 0], VALUES, NOISE**2, full=True, reduction="none")
    close(model.nll(ell, VALUES), want, atol=1e-10)
    crps = scoringrules.crps_normal(VALUES.numpy(), mu[:, 0].numpy(), NOISE.numpy())
    close(model.score(ell, VALUES)["crps"], crps, atol=1e-9)
    ell = gaussian_logits(MEANS, NOISE[:, None].expand(4, 3))
    scores = model.score(ell, VALUES)
    close(scores["nll"], [0.3795714, 0.4350418, 0.0444846, 0.9710420])
    close(scores["crps"], [0.1446999, 0.2186686, 0.1394531, 0.3306329])
    assert float(model.nll(ell, VALUES).mean()) == pytest.approx(0.4910326, abs=5e-8)
    values = model.predict(ell).values
    close(values[:, 1] ** 2, [0.3122222, 0.1755556, 0.1055556, 0.7488889])
    close(values[0, [2, 6]], [0.154257, 1.992718], atol=6e-7)


def test_the_unit_of_a_number_changes_what_it_should():
    y = VALUES
    ell = logits(4, 5, 1)
    a = -3.0
    c = 40.0
    one = build_likelihood(replace(NUMBER, shift=0.2, scale=1.5)).double()
    other = build_likelihood(replace(NUMBER, shift=a * 0.2 + c, scale=abs(a) * 1.5)).double()
    mirrored = -ell  # a < 0 turns the standardised axis round
    torch.testing.assert_close(other.nll(mirrored, a * y + c), one.nll(ell, y))
    scores = one.score(ell, y)
    other_scores = other.score(mirrored, a * y + c)
    torch.testing.assert_close(other_scores["crps"], abs(a) * scores["crps"])
    torch.testing.assert_close(other_scores["nll"], scores["nll"] + math.log(abs(a)))


def test_a_log_target_has_the_density_and_moments_of_simulated_values():
    spec = replace(NUMBER, noise=0.3, shift=1.0, scale=0.8, transform="log1p")
    model = build_likelihood(spec).double()
    ell = t64([[[0.2], [-0.5], [0.9]]])
    g = torch.Generator().manual_seed(0)
    noise = 0.3 * torch.randn(400_000, 3, generator=g, dtype=F64)
    y = torch.expm1(1.0 + 0.8 * ell[0, :, 0] + noise).flatten()
    values = model.predict(ell).values[0]
    close(values[:2] / torch.stack([y.mean(), y.std()]), [1, 1], atol=0.02)
    quantiles = torch.quantile(y[:400_000], t64([0.05, 0.25, 0.5, 0.75, 0.95]))
    torch.testing.assert_close(values[2:], quantiles, rtol=0.02, atol=0.005)
    grid = torch.linspace(-0.99, 60, 20_001, dtype=F64)
    density = torch.exp(-model.score(ell.expand(len(grid), 3, 1), grid)["nll"])
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-4)


def test_hazards_have_the_reference_values():
    stop = t64([[-1, 0.2, 0.5], [-2, -1, 0], [-1.5, -0.5, 0.3], [0.1, -0.4, 0.8]])[:, None]
    y = t64([[1, 1], [4, 0], [6.5, 1], [3, 1]])  # event beyond the last cut; censored at a cut
    nll = build_likelihood(HAZARDS).nll(stop, y)
    close(nll, [1.313262, 0.440190, 1.229846, 1.657412], atol=6e-7)


def test_a_bag_censored_at_once_teaches_nothing_and_survival_falls():
    model = build_likelihood(HAZARDS)
    ell = logits(5, 2, 3).requires_grad_()
    loss = model.nll(ell, t64([[1.5, 0], [2, 0], [3, 0], [7, 0], [9, 1]]))
    loss.sum().backward()
    assert loss[0] == 0 and bool((ell.grad[0] == 0).all())
    for bag in (1, 2):  # an interval is left behind from its end on
        torch.testing.assert_close(loss[bag], -F.logsigmoid(-ell[bag, :, 0]).mean())
        assert bool((ell.grad[bag, :, 1:] == 0).all())
    assert bool((model.predict(ell.detach()).values[:, 1:].diff() < 0).all())


@pytest.mark.parametrize("horizon", [None, 5.0])
def test_the_risk_is_what_numerical_integration_gives(horizon):
    ell = logits(3, 4, 3)
    tau = horizon or 6.0
    x = torch.linspace(0, tau, 20_001, dtype=F64)
    log_s = F.pad(F.logsigmoid(-ell).cumsum(-1), (1, 0))
    curves = np.apply_along_axis(lambda s: np.interp(x, [0, 2, 4, 6], s), -1, log_s.numpy())
    area = np.trapezoid(np.exp(curves), x, axis=-1).mean(1)
    values = build_likelihood(replace(HAZARDS, horizon=horizon)).predict(ell).values
    close(values[:, 0], tau - area, atol=1e-7)


@pytest.mark.parametrize("name", SPECS)
def test_what_all_likelihoods_promise(name):
    spec = SPECS[name]
    likelihood = build_likelihood(spec).double()
    y = TARGETS[spec.task]
    ell = logits(6, 5, logits_of(spec)).requires_grad_()
    losses = likelihood.nll(ell, y)
    assert torch.autograd.gradcheck(lambda e: likelihood.nll(e, y), (ell,))
    losses.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in likelihood.parameters())
    ell = ell.detach()
    losses = losses.detach()
    samples = torch.stack([likelihood.predict(sample).values for sample in ell.split(1, 1)])
    predicted = likelihood.predict(ell)
    names = likelihood.outputs([f"c{k}" for k in range(spec.n_classes)])
    assert predicted.values.shape == predicted.spread.shape == (6, len(names))
    means = 1 if spec.task == "regression" else len(names)  # quantiles are those of a mixture
    close(predicted.values[:, :means], samples.mean(0)[:, :means], atol=1e-12)
    close(predicted.spread, samples.std(0, correction=0), atol=1e-9)
    for b in range(6):
        torch.testing.assert_close(likelihood.nll(ell[b : b + 1], y[b : b + 1])[0], losses[b])
    change = math.log(spec.scale)  # scores are in the user's unit
    reported = likelihood.score(ell, y)["nll"] - change
    assert bool((reported <= losses + 1e-12).all()) and bool((reported < losses - 1e-3).any())
    one = ell[:, :1]
    close(likelihood.score(one, y)["nll"] - change, likelihood.nll(one, y), atol=1e-12)
    assert LikelihoodSpec.from_dict(spec.as_dict()) == spec


@pytest.mark.parametrize(
    ("spec", "kind"), [(GRADES, "cumulative"), (FINDINGS, ""), (HAZARDS, "hazards")]
)
def test_specifications_of_version_0_2_are_read(spec, kind):
    assert LikelihoodSpec.from_dict({**spec.as_dict(), "kind": kind, "hazard": []}) == spec


def fitted(task, y, *, n_classes=2, **options):
    options = LikelihoodOptions(**options)
    return lambda: fit_spec(task, t64(y), n_classes=n_classes, options=options)


def test_constants_follow_from_the_training_bags():
    spec = fitted("ordinal", [0, 0, 0, 1, 1, 2], n_classes=3)()
    assert spec.starts == pytest.approx([1e-3, -math.log(1.5 / 5.5) + 2e-3])
    spec = fitted("regression", [1, 2, 3])()
    assert (spec.shift, spec.scale) == pytest.approx((2, math.sqrt(2 / 3)))
    y = [[t, 1] for t in range(1, 9)] + [[20, 0]]
    spec = fitted("survival", y)()
    assert spec.times == pytest.approx(np.quantile(np.arange(1, 9), [0.25, 0.5, 0.75, 1]))
    passed = np.array([7, 5, 3, 1])  # two events in each interval
    assert spec.starts == pytest.approx(np.log(2.5 / (passed + 0.5)))


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (fitted("regression", [2.0, 2.0]), "2 training targets"),
        (fitted("regression", [-3.0, 2.0], target_transform="log1p"), "target_transform"),
        (fitted("multilabel", [[1.0, 0.0], [0.0, 0.0]]), "finding 1"),
        (fitted("multilabel", [[1.0, NAN], [0.0, NAN]]), "finding 1"),
        (fitted("survival", [[1.0, 0.0], [2.0, 0.0]]), "0 of 2"),
        (fitted("survival", [[1.0, 1.0], [2.0, 1.0]]), "2 of 2.*bins"),
        (fitted("survival", [[1.0, 1.0], [2.0, 1.0]], bins=2, horizon=9.0), "horizon"),
        (lambda: balanced_weights(torch.tensor([0, 2, 2]), 3), r"class \[1\]"),
        (lambda: balanced_weights(torch.tensor([1, 1]), 1), r"class \[0\]"),
        (lambda: likelihood_of(0), "n_classes"),
        (lambda: LikelihoodSpec.from_dict({"task": "ordinal", "colour": 1}), "'colour'"),
        (lambda: LikelihoodSpec.from_dict({"task": "ordinal", "shift": "a"}), "shift"),
        (lambda: LikelihoodSpec.from_dict({"task": "survival", "kind": "cox"}), "cox"),
    ],
)
def test_what_does_not_determine_a_likelihood_is_refused(call, fact):
    with pytest.raises(InputError, match=fact):
        call()
