"""Likelihoods of grades, findings, numbers and times, against reference values and libraries."""

import math

import numpy as np
import pytest
import scoringrules
import torch
import torch.nn.functional as F
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.miscmodels.ordinal_model import OrderedModel
from support.random_bags import F64

from probsa.errors import InputError
from probsa.variational import (
    Cox,
    LikelihoodOptions,
    LikelihoodSpec,
    build_likelihood,
    fit_spec,
    logits_of,
)
from probsa.variational.cox import breslow_hazard, partial_nll
from probsa.variational.findings import Findings
from probsa.variational.gaussian import UNIT, Gaussian
from probsa.variational.hazards import Hazards, hazard_nll
from probsa.variational.likelihoods import Independent
from probsa.variational.ordinal import CumulativeLink

NAN = math.nan
THETA = [-1.5, -0.5, 0.5, 1.0, 2.0]
ETA, GRADES = [-2, -0.5, 0.8, 2.5, 0.1], [0, 1, 3, 5, 2]
TIMES, EVENTS = [5, 3, 8, 3, 10, 7, 3, 12], [1, 1, 0, 1, 1, 0, 0, 1]
RISKS = [0.5, 1.2, -0.3, 0.8, -0.6, 0.1, 0.9, -1]


def t64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def logits(*shape, seed=0, scale=1.5) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def survival_targets(bags, seed=0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    time = rng.integers(1, 9, size=bags)  # many ties
    return t64(np.stack([time, rng.integers(0, 2, size=bags)], 1).tolist())


def gaussian_logits(mu, sd) -> torch.Tensor:
    return torch.stack([mu, torch.log(torch.expm1(sd**2 - 1e-4)) - UNIT], -1)


ALL = {
    "cumulative": (
        LikelihoodSpec(task="ordinal", n_classes=4, kind="cumulative", starts=(-1.0, 0.0, 1.0)),
        "grade",
    ),
    "findings": (LikelihoodSpec(task="multilabel", n_classes=3), "findings"),
    "learned": (LikelihoodSpec(task="regression"), "number"),
    "two logits": (LikelihoodSpec(task="regression", noise="heteroscedastic"), "number"),
    "hazards": (LikelihoodSpec(task="survival", kind="hazards", times=(2.0, 4.0, 6.0)), "time"),
    "hazards, one logit": (
        LikelihoodSpec(
            task="survival",
            kind="hazards",
            times=(2.0, 4.0, 6.0),
            starts=(-1.0, 0.0, 0.5),
            one_logit=True,
        ),
        "time",
    ),
    "cox": (
        LikelihoodSpec(task="survival", kind="cox", times=(2.0, 4.0, 6.0), hazard=(0.1, 0.3, 0.9)),
        "time",
    ),
}
TARGETS = {
    "grade": torch.tensor([0, 3, 1, 2, 2, 0]),
    "findings": t64([[1, 0, NAN], [0, 1, 1], [NAN, NAN, 1], [0, 0, 0], [1, 1, 1], [0, NAN, 0]]),
    "number": t64([0.3, -1.2, 2, 0.1, 0, -0.4]),
    "time": t64([[1, 1], [3, 0], [2, 1], [7, 1], [9, 0], [1.5, 0]]),
}


@pytest.fixture(params=list(ALL))
def case(request):
    spec, kind = ALL[request.param]
    return build_likelihood(spec).double(), spec, TARGETS[kind]


def test_the_cumulative_link_has_the_reference_values():
    model = CumulativeLink(starts=THETA).double()
    eta, y = t64(ETA)[:, None, None], torch.tensor(GRADES)
    want = t64([0.474077, 1.465084, 2.085246, 0.474077, 1.409178])
    torch.testing.assert_close(model.nll(eta, y), want, rtol=0, atol=6e-7)
    assert float(model.nll(eta, y).mean().detach()) == pytest.approx(1.1815325, abs=5e-8)
    mean = model.probability(eta)[:, 0, 0]
    want = t64([0.701236, 1.758284, 2.950796, 4.255419, 2.298146])
    torch.testing.assert_close(mean, want, rtol=0, atol=6e-7)


def test_the_cumulative_link_equals_statsmodels():
    eta = np.array([-2, -0.5, 0.1, 0.8, 1.5, 2.5, 0.6, -0.7, -1.1, 2, 0.3, 1])
    y = np.array([0, 1, 2, 3, 4, 5, 3, 1, 0, 5, 2, 4])
    reference = OrderedModel(y, eta[:, None], distr="logit")
    parameters = np.concatenate([[1.0], THETA[:1], np.log(np.diff(THETA))])
    want = -reference.loglike(parameters)
    assert want == pytest.approx(15.3317315, abs=5e-8)
    model = CumulativeLink(starts=THETA).double()
    got = model.nll(t64(eta)[:, None, None], torch.tensor(y)).sum()
    assert float(got.detach()) == pytest.approx(want, abs=1e-6)  # starts are stored in float32


def test_thresholds_stay_ordered_and_extreme_logits_finite():
    model = CumulativeLink(starts=THETA)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    g = torch.Generator().manual_seed(0)
    for _ in range(1000):
        optimizer.zero_grad()
        eta = 4 * torch.randn(8, 1, 1, generator=g)
        model.nll(eta, torch.randint(0, 6, (8,), generator=g)).mean().backward()
        optimizer.step()
    assert bool((model.thresholds.diff() > 0).all())
    eta = torch.tensor([60.0, -60, 60, -60])[:, None, None].requires_grad_()
    loss = model.nll(eta, torch.tensor([0, 5, 3, 2]))
    loss.sum().backward()
    assert bool(loss.isfinite().all()) and bool(eta.grad.isfinite().all())


def test_findings_count_bags_alike_and_leave_out_what_is_not_known():
    y = t64([[1, 0, 1], [0, NAN, 1], [1, 1, 0], [0, 1, NAN], [1, 0, 0]])
    p = t64([[0.9, 0.2, 0.6], [0.4, 0.3, 0.7], [0.6, 0.8, 0.4], [0.5, 0.6, 0.5], [0.3, 0.1, 0.2]])
    ell = p.logit()[:, None].requires_grad_()
    loss = Findings().nll(ell, y)
    assert float(loss.mean().detach()) == pytest.approx(0.4482541, abs=5e-8)
    loss.sum().backward()
    assert bool((ell.grad[:, 0][y.isnan()] == 0).all()) and bool((ell.grad != 0).sum() == 13)


def test_complete_findings_equal_torch_and_one_hot_rows_equal_independent_classes():
    ell, labels = logits(7, 3, 4), torch.tensor([0, 1, 2, 3, 0, 4, 2])
    one_hot = F.one_hot(labels, 5)[:, :4].double()
    got = Findings().nll(ell, one_hot)
    want = F.binary_cross_entropy_with_logits(
        ell, one_hot[:, None].expand_as(ell), reduction="none"
    ).mean((1, 2))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got, Independent().nll(ell, labels), rtol=1e-12, atol=1e-14)


def test_one_gaussian_equals_torch_and_scoringrules():
    y, mu = t64([1.2, -0.4, 0.3, 2.1]), t64([[1], [0], [0.5], [1.5]])
    sd = t64([0.5, 0.4, 0.3, 0.8])
    model = Gaussian(noise="heteroscedastic")
    ell = gaussian_logits(mu, sd[:, None])
    want = F.gaussian_nll_loss(mu[:, 0], y, sd**2, full=True, reduction="none")
    torch.testing.assert_close(model.nll(ell, y), want, rtol=1e-10, atol=1e-12)
    assert float(model.nll(ell, y).mean()) == pytest.approx(0.4306680, abs=5e-8)
    want = t64([0.1483440, 0.2409765, 0.1214149, 0.3585154])
    torch.testing.assert_close(model.score(ell, y)["crps"], want, rtol=0, atol=6e-8)
    reference = scoringrules.crps_normal(y.numpy(), mu[:, 0].numpy(), sd.numpy())
    np.testing.assert_allclose(model.score(ell, y)["crps"], reference, rtol=1e-9)


def test_a_mixture_of_gaussians_has_the_reference_values():
    y, sd = t64([1.2, -0.4, 0.3, 2.1]), t64([0.5, 0.4, 0.3, 0.8])
    mu = t64([[0.8, 1, 1.4], [-0.2, 0.1, 0], [0.4, 0.5, 0.7], [1.2, 1.5, 2]])
    model = Gaussian(noise="heteroscedastic")
    ell = gaussian_logits(mu, sd[:, None].expand(4, 3))
    scores = model.score(ell, y)
    want = t64([0.3795714, 0.4350418, 0.0444846, 0.9710420])
    torch.testing.assert_close(scores["nll"], want, rtol=0, atol=6e-8)
    want = t64([0.1446999, 0.2186686, 0.1394531, 0.3306329])
    torch.testing.assert_close(scores["crps"], want, rtol=0, atol=6e-8)
    assert float(model.nll(ell, y).mean()) == pytest.approx(0.4910326, abs=5e-8)
    values = model.predict(ell).values
    want = t64([0.3122222, 0.1755556, 0.1055556, 0.7488889])
    torch.testing.assert_close(values[:, 1] ** 2, want, rtol=0, atol=6e-8)
    assert values[0, [2, 6]].tolist() == pytest.approx([0.154257, 1.992718], abs=6e-7)
    noise, attention = model.variance_parts(ell)
    torch.testing.assert_close(noise + attention, values[:, 1] ** 2, rtol=1e-12, atol=0)


def test_the_unit_of_a_number_changes_what_it_should():
    y, ell = t64([1.2, -0.4, 0.3, 2.1]), logits(4, 5, 1)
    a, c = -3.0, 40.0
    one = Gaussian(shift=0.2, scale=1.5).double()
    other = Gaussian(shift=a * 0.2 + c, scale=abs(a) * 1.5).double()
    mirrored = -ell  # a < 0 turns the standardised axis round
    torch.testing.assert_close(other.nll(mirrored, a * y + c), one.nll(ell, y))
    crps = one.score(ell, y)["crps"]
    torch.testing.assert_close(other.score(mirrored, a * y + c)["crps"], abs(a) * crps)
    nll = one.score(ell, y)["nll"]
    torch.testing.assert_close(other.score(mirrored, a * y + c)["nll"], nll + math.log(abs(a)))


def test_a_log_target_has_the_density_and_moments_of_simulated_values():
    model = Gaussian(noise=0.3, shift=1.0, scale=0.8, transform="log1p").double()
    ell = t64([[[0.2], [-0.5], [0.9]]])
    grid = torch.linspace(-0.9999, 200, 2_000_001, dtype=F64)
    density = torch.exp(-model.score(ell.expand(1, 3, 1), grid[:1])["nll"])
    each = [torch.exp(-model.score(ell, v[None])["nll"]) for v in grid[::200_000]]
    assert torch.isfinite(torch.stack(each)).all() and torch.isfinite(density).all()
    g = torch.Generator().manual_seed(0)
    mu, v = model.moments(ell)
    z = mu + v.sqrt() * torch.randn(400_000, 1, 3, generator=g, dtype=F64)
    y = model.in_unit(z).flatten()
    values = model.predict(ell).values[0]
    assert float(values[0]) == pytest.approx(float(y.mean()), rel=0.01)
    assert float(values[1]) == pytest.approx(float(y.std()), rel=0.02)
    quantiles = torch.quantile(y[:400_000], t64([0.05, 0.25, 0.5, 0.75, 0.95]))
    torch.testing.assert_close(values[2:], quantiles, rtol=0.02, atol=0.005)


def test_hazards_have_the_reference_values():
    stop = t64([[-1, 0.2, 0.5], [-2, -1, 0], [-1.5, -0.5, 0.3], [0.1, -0.4, 0.8]])[:, None]
    got = hazard_nll(stop, torch.tensor([0, 1, 2, 1]), t64([1, 0, 1, 1]))[:, 0]
    want = t64([1.313262, 0.440190, 1.229846, 1.657412])
    torch.testing.assert_close(got, want, rtol=0, atol=6e-7)


def test_a_bag_censored_at_once_teaches_nothing_and_survival_falls():
    model = Hazards(cuts=[2.0, 4.0, 6.0])
    ell = logits(5, 2, 3).requires_grad_()
    y = t64([[1.5, 0], [2, 0], [3, 0], [7, 0], [9, 1]])
    loss = model.nll(ell, y)
    loss.sum().backward()
    assert loss[0] == 0 and bool((ell.grad[0] == 0).all())
    for bag in (1, 2):  # an interval is left behind from its end on
        torch.testing.assert_close(loss[bag], -F.logsigmoid(-ell[bag, :, 0]).mean())
        assert bool((ell.grad[bag, :, 1:] == 0).all())
    survival = model.predict(ell.detach()).values[:, 1:]
    assert bool((survival.diff() < 0).all())


def test_the_risk_is_what_numerical_integration_gives():
    for horizon in (None, 5.0):
        model = Hazards(cuts=[2.0, 4.0, 6.0], horizon=horizon)
        ell = logits(3, 4, 3)
        tau = horizon or 6.0
        x = torch.linspace(0, tau, 200_001, dtype=F64)
        log_s = torch.cat([torch.zeros(3, 4, 1), F.logsigmoid(-ell).cumsum(-1)], -1).double()
        curves = np.stack(
            [[np.interp(x, [0, 2, 4, 6], log_s[b, s]) for s in range(4)] for b in range(3)]
        )
        area = np.trapezoid(np.exp(curves), x, axis=-1).mean(1)
        np.testing.assert_allclose(model.predict(ell).values[:, 0], tau - area, rtol=1e-8)


def test_cox_has_the_reference_values_and_equals_statsmodels():
    y, r = torch.stack([t64(TIMES), t64(EVENTS)], 1), t64(RISKS)[:, None]
    assert float(partial_nll(r, y).sum()) == pytest.approx(4.2825657, abs=5e-8)
    for seed in range(5):
        y_random, r_random = survival_targets(40, seed), logits(40, 1, seed=seed)
        time, event = y_random.T.numpy()
        want = -PHReg(time, r_random.numpy(), event, ties="efron").loglike(np.ones(1))
        got = float(partial_nll(r_random, y_random).sum())
        assert got == pytest.approx(want, rel=1e-10)
        shifted = partial_nll(r_random + 7, y_random)
        torch.testing.assert_close(shifted, partial_nll(r_random, y_random))
    hazard = breslow_hazard(r[:, 0].exp(), y, t64([3, 5, 7, 8, 10, 12]))
    want = t64([0.1610739, 0.3877592, 0.3877592, 0.3877592, 1.4786393, 4.1969211])
    torch.testing.assert_close(hazard, want, rtol=0, atol=6e-8)


def test_the_baseline_of_cox_gives_survival():
    model = Cox(times=[3.0, 7.0, 12.0], hazard=[0.1, 0.2, 0.3])
    y, r = torch.stack([t64(TIMES), t64(EVENTS)], 1), t64(RISKS)
    model.set_baseline(r.exp(), y)
    values = model.predict(t64([[[0.5]]])).values[0]
    assert float(values[2]) == pytest.approx(0.5276580, abs=5e-8)
    s3, s7 = float(values[1]), float(values[2])
    assert float(values[0]) == pytest.approx(12 - (3 + 4 * s3 + 5 * s7), abs=1e-12)


def test_a_batch_without_an_event_has_loss_0_and_no_gradient():
    model = Cox(times=[3.0], hazard=[0.1])
    ell = logits(4, 2, 1).requires_grad_()
    loss = model.nll(ell, t64([[1, 0], [2, 0], [3, 0], [4, 0]]))
    loss.sum().backward()
    assert loss.tolist() == [0] * 4 and (ell.grad is None or bool((ell.grad == 0).all()))


def test_the_reported_nll_is_the_term_of_the_elbo_for_one_sample_and_at_most_that_for_more(case):
    likelihood, spec, y = case
    if isinstance(likelihood, Cox):
        assert likelihood.score(logits(6, 4, 1), y) == {}
        return
    for samples in (1, 9):
        ell = logits(6, samples, logits_of(spec))
        reported = likelihood.score(ell, y)["nll"]
        term = likelihood.nll(ell, y).double()
        if samples == 1:
            torch.testing.assert_close(reported, term, rtol=1e-6, atol=1e-7)
        else:
            assert bool((reported <= term + 1e-12).all()) and bool((reported < term - 1e-3).any())


def test_the_loss_of_each_sample_is_that_of_the_sample_alone(case):
    likelihood, spec, y = case
    if likelihood.couples_bags:
        return
    ell = logits(6, 5, logits_of(spec))
    alone = torch.stack([likelihood.nll(one, y) for one in ell.split(1, 1)], 1)
    torch.testing.assert_close(likelihood.sampled_nll(ell, y), alone)


def test_predictions_are_means_of_what_samples_predict(case):
    likelihood, spec, _ = case
    ell = logits(6, 5, logits_of(spec))
    predicted = likelihood.predict(ell)
    names = likelihood.outputs([f"c{k}" for k in range(spec.n_classes)])
    assert predicted.values.shape == predicted.spread.shape == (6, len(names))
    alone = [likelihood.predict(one).values for one in ell.split(1, 1)]
    if spec.task != "regression":  # whose quantiles are those of a mixture
        torch.testing.assert_close(predicted.values, torch.stack(alone).mean(0))
    else:
        torch.testing.assert_close(predicted.values[:, 0], torch.stack(alone).mean(0)[:, 0])
    spread = torch.stack(alone).std(0, correction=0)
    torch.testing.assert_close(predicted.spread, spread, rtol=1e-6, atol=1e-9)
    one = likelihood.predict(ell[:, :1])
    assert bool((one.spread == 0).all())


def test_a_bags_loss_does_not_depend_on_its_batch(case):
    likelihood, spec, y = case
    ell = logits(6, 3, logits_of(spec))
    together = likelihood.nll(ell, y)
    if likelihood.couples_bags:
        return
    for b in range(6):
        torch.testing.assert_close(likelihood.nll(ell[b : b + 1], y[b : b + 1])[0], together[b])


def test_gradients_equal_finite_differences(case):
    likelihood, spec, y = case
    ell = logits(6, 2, logits_of(spec)).requires_grad_()
    assert torch.autograd.gradcheck(lambda e: likelihood.nll(e, y), (ell,))


def test_a_specification_survives_as_plain_values(case):
    _, spec, _ = case
    assert LikelihoodSpec.from_dict(spec.as_dict()) == spec
    with pytest.raises(InputError, match="colour"):
        LikelihoodSpec.from_dict({**spec.as_dict(), "colour": 1})


def test_constants_follow_from_the_training_bags():
    options = LikelihoodOptions()
    y = torch.tensor([0, 0, 0, 1, 1, 2])
    spec = fit_spec("ordinal", y, n_classes=3, options=options)
    want = [-math.log(3.5 / 3.5) + 1e-3, -math.log(1.5 / 5.5) + 2e-3]
    assert spec.starts == pytest.approx(want)
    spec = fit_spec("regression", t64([1, 2, 3]), n_classes=0, options=options)
    assert (spec.shift, spec.scale) == pytest.approx((2, math.sqrt(2 / 3)))
    y = t64([[t, 1] for t in range(1, 9)] + [[20, 0]])
    spec = fit_spec("survival", y, n_classes=0, options=options)
    assert spec.times == pytest.approx(np.quantile(np.arange(1, 9), [0.25, 0.5, 0.75, 1]))
    cox = fit_spec("survival", y, n_classes=0, options=LikelihoodOptions(survival="cox"))
    assert cox.times == tuple(range(1, 9)) and cox.hazard[0] == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("task", "y", "options", "message"),
    [
        ("regression", [2.0, 2.0], {}, "all 2 training targets are 2"),
        ("regression", [-3.0, 2.0], {"target_transform": "log1p"}, "above -1"),
        ("multilabel", [[1.0, 0.0], [0.0, 0.0]], {}, "finding 1 .* only bags with 0"),
        ("survival", [[1.0, 0.0], [2.0, 0.0]], {}, "0 of 2 training bags have the event"),
        ("survival", [[1.0, 1.0], [2.0, 1.0]], {}, "lower bins"),
        ("survival", [[1.0, 1.0], [2.0, 1.0]], {"bins": 2, "horizon": 9.0}, "horizon is 9"),
    ],
)
def test_training_bags_that_do_not_suffice_are_refused(task, y, options, message):
    with pytest.raises(InputError, match=message):
        fit_spec(task, t64(y), n_classes=2, options=LikelihoodOptions(**options))
