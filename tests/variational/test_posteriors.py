"""The KL, with and without constants, against densities, projections and golden numbers."""

from contextlib import nullcontext

import pytest
import torch
from support.random_bags import (
    F64,
    chain_bag,
    dense_laplacian,
    graphs_of_all_kinds,
    packed,
    random_bag,
    split,
)
from torch.distributions import MultivariateNormal, kl_divergence

from probsa import Bag, pack
from probsa.core import elimination, random_stream
from probsa.errors import InputError
from probsa.variational import (
    Diagonal,
    Dirac,
    Dirichlet,
    Field,
    Posterior,
    Streams,
    sample_blocks,
)

SIZES = (1, 6, 23)
LAPLACIANS = ["combinatorial", "normalized"]
CHAIN = 1 + 0.1 * torch.arange(5, dtype=F64)
MU = torch.tensor(
    [-1.9390778, -3.3672083, 0.04245467, 0.28317261, 1.8578168, 0.53969929], dtype=F64
)
LOG_VARIANCE = torch.tensor(
    [-0.41126212, 0.38318177, 0.18382133, -0.0093434596, -0.19631258, -0.37708604], dtype=F64
)


def random_q(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, generator=g, dtype=F64)
    return Diagonal(mean, (torch.randn(n, generator=g, dtype=F64) - 1).exp())


def connected():
    return [b for b in graphs_of_all_kinds() if b.name in ("complete", "random", "chain", "single")]


@pytest.mark.parametrize("laplacian", LAPLACIANS)
@pytest.mark.parametrize(("kappa", "ridge"), [(1.0, 0.01), (0.3, 0.5), (2.0, 0.05)])
def test_exact_kl_is_that_of_torch(laplacian, kappa, ridge):
    given = graphs_of_all_kinds()
    bags = packed(given)
    q = random_q(len(bags.x))
    prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    actual = q.kl(prior, bags, exact=True)
    for b, bag in enumerate(given):
        lap = dense_laplacian(bag, laplacian)
        precision = 2 * kappa * (lap + ridge * torch.eye(len(lap), dtype=F64))
        p = MultivariateNormal(torch.zeros(len(lap), dtype=F64), precision_matrix=precision)
        own = MultivariateNormal(split(q.mean, bags)[b], split(q.variance, bags)[b].diag())
        assert float(actual[b]) == pytest.approx(float(kl_divergence(own, p)), abs=1e-8), bag.name


@pytest.mark.parametrize("kappa", [1.0, 2.5])
def test_without_a_ridge_the_exact_kl_is_that_of_the_contrasts(kappa):
    given = connected()
    bags = packed(given)
    q = random_q(len(bags.x), seed=1)
    actual = q.kl(Dirichlet(kappa=kappa, ridge=0.0), bags, exact=True)
    for b, bag in enumerate(given):
        n = len(bag.x)
        if n == 1:
            assert float(actual[b]) == pytest.approx(0, abs=1e-12)
            continue
        # An orthonormal basis of the vectors whose entries sum to 0.
        basis = torch.linalg.qr(
            torch.cat([torch.ones(n, 1, dtype=F64), torch.eye(n, dtype=F64)[:, 1:]], 1)
        )[0][:, 1:]
        assert float(basis.sum(0).abs().max()) < 1e-12
        mean, variance = split(q.mean, bags)[b], split(q.variance, bags)[b]
        precision = basis.T @ (2 * kappa * dense_laplacian(bag, "combinatorial")) @ basis
        p = MultivariateNormal(torch.zeros(n - 1, dtype=F64), precision_matrix=precision)
        own = MultivariateNormal(basis.T @ mean, basis.T @ variance.diag() @ basis)
        assert float(actual[b]) == pytest.approx(float(kl_divergence(own, p)), abs=1e-8), bag.name


@pytest.mark.parametrize("laplacian", LAPLACIANS)
def test_the_trained_kl_is_the_exact_one_up_to_a_constant(laplacian):
    bags = packed(graphs_of_all_kinds())
    prior = Dirichlet(kappa=1.5, ridge=0.1, laplacian=laplacian)
    differences = []
    for seed in (0, 1):
        start = random_q(len(bags.x), seed=seed)
        leaves = start.mean.clone().requires_grad_(), start.variance.clone().requires_grad_()
        trained, exact = (Diagonal(*leaves).kl(prior, bags, exact=e) for e in (False, True))
        differences.append((exact - trained).detach())
        pairs = [torch.autograd.grad(kl.sum(), leaves) for kl in (trained, exact)]
        for a, b in zip(*pairs, strict=True):
            assert float(a.abs().max()) > 0.1
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(differences[0], differences[1], rtol=1e-11, atol=1e-11)
    assert float(differences[0].abs().min()) > 0.1


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_the_kl_passes_gradcheck(exact, ridge):
    bags = packed(connected())
    prior = Dirichlet(ridge=ridge)
    start = random_q(len(bags.x))
    q = (start.mean.clone().requires_grad_(), start.variance.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda m, v: Diagonal(m, v).kl(prior, bags, exact=exact), q)


@pytest.mark.parametrize(
    ("laplacian", "energy", "kl"),
    [("combinatorial", 20.553235, 32.929964), ("normalized", 8.072199, 14.115571)],
)
def test_golden_kl_of_a_chain_of_six(laplacian, energy, kl):
    bags = pack([chain_bag(6, CHAIN)])
    prior = Dirichlet(ridge=0.0, laplacian=laplacian)
    q = Diagonal(MU, LOG_VARIANCE.exp())
    assert float(Dirac(MU).kl(prior, bags)) == pytest.approx(energy, abs=1e-6)
    assert float(q.kl(prior, bags)) == pytest.approx(kl, abs=1e-6)
    exact = q.kl(Dirichlet(ridge=0.05), bags, exact=True)
    assert float(exact) == pytest.approx(29.13523184, abs=1e-6)


def test_single_precision_weights_do_not_blunt_a_double_kl():
    bag = random_bag(12, seed=2)
    coarse = Bag(name="a", x=bag.x.float(), edges=bag.edges, weights=bag.weights.float())
    exact = Bag(name="a", x=bag.x, edges=bag.edges, weights=bag.weights.float().double())
    q = random_q(12)
    prior = Dirichlet()
    for flag in (False, True):
        kl_coarse = q.kl(prior, pack([coarse]), exact=flag)
        kl_exact = q.kl(prior, pack([exact]), exact=flag)
        torch.testing.assert_close(kl_coarse, kl_exact, rtol=1e-13, atol=1e-13)


def streams(sizes=SIZES, seed=0):
    return Streams(sizes, [random_stream(seed, f"bag{b}") for b in range(len(sizes))])


@pytest.mark.parametrize("classes", [None, 3])
def test_samples_are_mean_plus_sd_times_the_noise_of_each_bag(classes):
    n = sum(SIZES)
    shape = () if classes is None else (classes,)
    g = torch.Generator().manual_seed(0)
    mean = torch.randn(n, *shape, generator=g, dtype=F64)
    log_variance = torch.randn(n, *shape, generator=g, dtype=F64)
    q = Diagonal(mean, log_variance.exp())
    noise = torch.randn(n, 4, generator=g, dtype=F64)
    sd = q.variance.sqrt()
    want = mean[:, None] + sd[:, None] * noise.view(n, 4, *[1] * len(shape))
    torch.testing.assert_close(q.rsample(9, noise=noise), want, rtol=0, atol=1e-15)
    f = q.sample(100_000, streams())
    assert f.shape == (*shape, 100_000, n)
    z = (f.movedim(-1, 0).movedim(-1, 1) - mean[:, None]) / sd[:, None]
    # six standard errors of a mean, a variance and a correlation between classes or instances
    z = z.movedim(1, 0).reshape(100_000, -1)
    error = (z.T @ z / 100_000 - torch.eye(z.shape[1], dtype=F64)).abs().max()
    assert z.mean(0).abs().max() < 6 / 100_000**0.5 and error < 9 / 100_000**0.5


@pytest.mark.parametrize("classes", [None, 3])
def test_the_samples_of_a_bag_depend_neither_on_other_bags_nor_on_blocks(monkeypatch, classes):
    shape = () if classes is None else (classes,)
    mean = torch.randn(sum(SIZES), *shape, generator=torch.Generator().manual_seed(1))
    q = Diagonal(mean, mean.exp())
    whole = q.sample(50, streams())
    monkeypatch.setattr("probsa.variational.posteriors.BLOCK", 30)  # 16 samples at a time
    blocks = list(sample_blocks(q, 50, streams()))
    assert len(blocks) > 2
    assert torch.equal(torch.cat(blocks, -2), whole)
    alone = Diagonal(mean[:1], mean[:1].exp()).sample(50, streams((1,)))
    torch.testing.assert_close(alone, whole[..., :1], rtol=1e-6, atol=1e-6)
    assert not torch.equal(q.sample(50, streams(seed=1)), whole)


def test_given_noise_has_a_row_for_each_instance():
    q = Diagonal(MU, LOG_VARIANCE.exp())
    streams = Streams([2, 4], noise=torch.ones(6, 3))
    assert q.sample(7, streams).shape == (3, 6)
    assert torch.equal(streams.normal(7, like=MU), torch.ones(3, 6))
    with pytest.raises(InputError, match="noise"):
        Streams([3, 6], noise=torch.ones(6, 3))


def test_a_dirac_has_one_sample_and_no_variance():
    q = Dirac(MU)
    assert torch.equal(q.rsample(7), MU[:, None])
    assert [v.shape for v in sample_blocks(q, 99, streams((6,)))] == [(1, 6)]
    assert torch.equal(q.variance, torch.zeros(6, dtype=F64))


@pytest.mark.parametrize("kind", [Dirac, Diagonal])
def test_the_kl_of_several_classes_is_the_sum_of_each(kind):
    bags = packed(graphs_of_all_kinds())
    classes = [random_q(len(bags.x), seed=k) for k in range(3)]
    mean = torch.stack([q.mean for q in classes], 1)
    variance = torch.stack([q.variance for q in classes], 1)
    if kind is Dirac:
        classes = [Dirac(q.mean) for q in classes]
        together = Dirac(mean)
    else:
        together = Diagonal(mean, variance)
    for laplacian in LAPLACIANS:
        prior = Dirichlet(kappa=1.5, ridge=0.1, laplacian=laplacian)
        expected = torch.stack([q.kl(prior, bags) for q in classes]).sum(0)
        torch.testing.assert_close(together.kl(prior, bags), expected)


PRIOR = Dirichlet(kappa=0.7, ridge=0.05)
POSTERIORS = {
    "Dirac": lambda mean, variance, bags: Dirac(mean),
    "Diagonal": lambda mean, variance, bags: Diagonal(mean, variance),
    "Field": lambda mean, variance, bags: Field(mean, variance, prior=PRIOR, bags=bags),
}
"""Each posterior from two leaves."""
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def values(q: Posterior, bags) -> dict[str, torch.Tensor]:
    """Return all that a posterior says, by name, with what it keeps for itself."""
    torch.manual_seed(0)  # of the probes of a large field
    tensors: dict[str, torch.Tensor] = {}
    for name in dir(q):
        if name.startswith("__"):
            continue
        value = getattr(q, name)
        for k, part in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(part, torch.Tensor):
                tensors[f"{name} {k}"] = part
    noise = torch.linspace(-2, 2, 3 * len(bags.x), dtype=F64).view(-1, 3)
    return tensors | {"kl": q.kl(PRIOR, bags), "rsample": q.rsample(3, noise=noise)}


def gradients(value: torch.Tensor, leaves) -> list[torch.Tensor]:
    weights = torch.arange(1, value.numel() + 1, dtype=F64).view(value.shape)
    total = (weights * (1 + value).square()).sum()
    if not total.requires_grad:
        return [torch.zeros_like(v) for v in leaves]
    keep = {"retain_graph": True, "materialize_grads": True}
    return list(torch.autograd.grad(total, leaves, **keep))


def test_every_posterior_is_here():
    names = set()
    for cls in Posterior.__subclasses__():
        if cls.__module__.startswith("probsa."):
            names.add(cls.__name__)
    assert names == POSTERIORS.keys()


@pytest.mark.parametrize("made", ["recorded", *MODES])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", POSTERIORS)
def test_who_looks_first_changes_neither_values_nor_gradients(kind, large, mode, made, monkeypatch):
    if large:  # several blocks, whose KL has random probes
        monkeypatch.setattr(elimination, "DENSE", 3)
        monkeypatch.setattr(elimination, "LEAF", 4)
    bags = packed(graphs_of_all_kinds())
    start = random_q(len(bags.x), seed=3)
    leaves = start.mean.requires_grad_(), start.variance.requires_grad_()

    def fresh() -> Posterior:
        return POSTERIORS[kind](*leaves, bags)

    want = values(fresh(), bags)
    expected = {name: gradients(value, leaves) for name, value in want.items()}
    for name in ("mean 0", "variance 0", "kl", "rsample"):
        moved = any(bool(v.any()) for v in expected[name])
        assert moved or (kind, name) == ("Dirac", "variance 0")
    with MODES[mode]():
        plain = values(fresh(), bags)

    with MODES.get(made, nullcontext)():
        q = fresh()
    with MODES[mode]():
        values(q, bags)
    for name, value in values(q, bags).items():
        torch.testing.assert_close(value, want[name], msg=name)
        for actual, wanted in zip(gradients(value, leaves), expected[name], strict=True):
            torch.testing.assert_close(actual, wanted, msg=name)

    q = fresh()
    values(q, bags)
    with MODES[mode]():
        for name, value in values(q, bags).items():
            torch.testing.assert_close(value, plain[name], msg=name)
