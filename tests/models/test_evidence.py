"""Evidence models: the soft maximum, additivity, removal, several classes and the learned κ."""

from dataclasses import replace

import pytest
import torch
from support.random_bags import F64, random_bag

from probsa import Bag, pack
from probsa.core import segment_sum
from probsa.errors import InputError
from probsa.models import build
from probsa.variational import (
    Diagonal,
    Dirac,
    negative_instances,
    normal_guidance,
    objective,
    probability_positive,
)

NAMES = ("evidence-dirac", "evidence-diag", "evidence-field")
SIZES = (5, 9, 1, 30)


def bags_of(sizes=SIZES):
    return pack([random_bag(n, seed=n, features=6, y=k % 2) for k, n in enumerate(sizes)])


def make(name, *, classes=1, seed=0, **arguments):
    torch.manual_seed(seed)
    model = build(name, in_dim=6, n_classes=classes, embed=8, attention_dim=4, **arguments).double()
    with torch.no_grad():  # away from the start, where α = β = 1 and b = 0
        for p, value in zip(model.pooling.parameters(), (0.3, 0.5, -0.2), strict=True):
            p += value * torch.arange(1, classes + 1)
        if model.attention.log_variance is not None:
            torch.nn.init.normal_(model.attention.log_variance.weight)
    return model


def test_with_infinite_sharpness_it_is_the_largest_evidence():
    model = make("evidence-dirac").eval()
    bags = bags_of()
    with torch.no_grad():
        model.pooling.log_beta.fill_(12.0)
        out = model(bags)
        tops = torch.stack([f.max() for f in out.attention.mean.split(bags.sizes)])
        alpha = model.pooling.log_alpha.exp()
        torch.testing.assert_close(out.logits[:, 0, 0], alpha * tops + model.pooling.bias)


def test_the_probability_of_positive_evidence_is_that_of_the_normal_distribution():
    variance = torch.tensor([1.0, 4.0, 1.0], dtype=F64)
    q = Diagonal(torch.tensor([0.0, 1.0, -2.0], dtype=F64), variance)
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor([0.0, 0.5, -2.0]).double())
    torch.testing.assert_close(probability_positive(q), expected)
    point = Dirac(torch.tensor([-1.0, 0.0, 3.0]))
    assert probability_positive(point).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_several_classes_are_several_fields(name):
    """The classes of one model are those of single-class models with the same values."""
    model = make(name, classes=3)
    bags = bags_of()
    q = model.attention(model.instances(bags), bags)
    assert q.mean.shape == q.variance.shape == (sum(SIZES), 3)
    state = model.state_dict()
    by_class = ("attention.mean.", "attention.log_variance.", "pooling.")
    out = model(bags, generator=torch.Generator().manual_seed(0))
    kl = model.kl(out, bags)
    total = torch.zeros_like(kl)
    for c in range(3):
        class_model = make(name)
        class_state = {k: v[c : c + 1] if k.startswith(by_class) else v for k, v in state.items()}
        class_model.load_state_dict(class_state)
        class_out = class_model(bags, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(class_out.attention.mean, q.mean[:, c])
        torch.testing.assert_close(class_out.attention.variance, q.variance[:, c])
        if name == "evidence-dirac":
            torch.testing.assert_close(class_out.logits[:, :, 0], out.logits[:, :, c])
        total = total + class_model.kl(class_out, bags)
    torch.testing.assert_close(kl, total)


@pytest.mark.parametrize("classes", [1, 3])
def test_kappa_moves_to_its_estimate(classes):
    model = make("evidence-field", classes=classes, kappa=2.0)
    bags = bags_of()
    prior = model.attention.prior
    assert prior is not None and float(prior.kappa) == pytest.approx(2.0)
    out = model(bags, generator=torch.Generator().manual_seed(0))
    total = model.batch_statistics(out, bags)
    with torch.no_grad():
        f = out.attention.rsample(500, generator=torch.Generator().manual_seed(1))
        bag_prior = prior.prior(bags)
        tied = (bags.degrees > 0).double()
        sums = []
        for sample in f.unbind(1):
            sums.append(segment_sum(bag_prior.energies(sample, bags) * tied, SIZES))
        energies = torch.stack(sums) / bag_prior.kappa / torch.tensor(SIZES)  # like the KL
    shares = segment_sum(tied, SIZES) / torch.tensor(SIZES)
    assert shares.min() == 0 and shares.max() == 1  # one bag has one instance
    assert float(total[0]) == pytest.approx(float(shares.sum()) * classes)
    assert float(total[1]) == pytest.approx(float(energies.sum(1).mean()), rel=0.05)
    model.update_statistics(total)
    star = float(total[0] / (2 * total[1]))
    assert float(prior.kappa) == pytest.approx(2.0 * (star / 2.0) ** 0.05, rel=1e-5)


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_instances_without_neighbours_do_not_move_kappa(reduction, laplacian):
    model = make("evidence-field", kl_reduction=reduction, laplacian=laplacian)
    tied = [random_bag(n, seed=n, features=6, y=n % 2, density=1.0) for n in (4, 9)]
    alone = [random_bag(n, seed=n, features=6, y=n % 2, density=0.0) for n in (1, 30)]
    zeros = replace(tied[0], name="zero weights", weights=torch.zeros_like(tied[0].weights))

    def statistics(bag_list):
        bags = pack(bag_list)
        return model.batch_statistics(model(bags), bags)

    torch.testing.assert_close(statistics([*tied, *alone, zeros]), statistics(tied))
    assert statistics([*alone, zeros]).tolist() == [0, 0]
    model.update_statistics(statistics([*alone, zeros]))
    assert float(model.attention.prior.kappa) == 1


def test_kappa_does_not_run_away_where_nothing_is_tied():
    """Training on bags of isolated instances, and on chains beside them."""
    alone = [random_bag(20, seed=k, features=6, y=k % 2, density=0.0) for k in range(2)]
    i = torch.arange(19)
    chained = [
        replace(
            bag,
            name=f"{bag.name} chain",
            edges=torch.stack([i, i + 1]),
            weights=torch.ones(19, dtype=F64),
        )
        for bag in alone
    ]
    for bag_list in (alone, [*alone, *chained]):
        model = make("evidence-field", samples=1)
        bags = pack(bag_list)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(120):
            optimiser.zero_grad()
            out = model(bags, generator=torch.Generator().manual_seed(step))
            objective(model.losses(out, bags), weights={}, kl_weight=1.0).backward()
            optimiser.step()
            model.update_statistics(model.batch_statistics(out, bags))
        assert 0.1 < float(model.attention.prior.kappa) < 30


def test_a_fixed_kappa_stays_and_a_diverged_step_changes_nothing():
    fixed = make("evidence-field", learn_kappa=False, kappa=0.5)
    fixed.update_statistics(torch.tensor([10.0, 1.0], dtype=F64))
    assert float(fixed.attention.prior.kappa) == pytest.approx(0.5)
    model = make("evidence-field")
    model.update_statistics(torch.tensor([10.0, float("nan")], dtype=F64))
    assert float(model.attention.prior.kappa) == pytest.approx(1.0)


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_level_moves_the_evidence_and_neither_the_prediction_nor_the_kl(name, classes):
    level = 0.7 if classes == 1 else (0.7, -0.4, 1.2)
    plain, cut = (make(name, classes=classes, **own).eval() for own in ({}, {"level": level}))
    bags = bags_of()
    with torch.no_grad():
        before, after = plain(bags), cut(bags)
    torch.testing.assert_close(after.logits, before.logits)
    torch.testing.assert_close(cut.kl(after, bags), plain.kl(before, bags))
    moved = before.attention.mean - after.attention.mean
    torch.testing.assert_close(moved, torch.tensor(level, dtype=F64).expand_as(moved))
    # contributions and the bias still add up to the logit
    total = segment_sum(after.explanation.contributions, bags.sizes)
    bias = cut.readout(bags.x, bags.x).bias
    torch.testing.assert_close(total + bias, after.logits.mean(1), rtol=1e-6, atol=1e-6)


def test_a_level_of_another_number_of_classes_is_refused():
    with pytest.raises(InputError, match="level"):
        make("evidence-diag", classes=3, level=(0.5, 0.5))


def test_instances_of_negative_bags_are_a_term_only_if_asked_for():
    bags = bags_of()
    model = make("evidence-field", negatives=2.0)
    assert "negatives" not in make("evidence-field").losses(model(bags), bags)
    out = model(bags)
    each = -torch.special.log_ndtr(-out.attention.mean / out.attention.variance.sqrt())
    means = [part.mean() for part in each.split(bags.sizes)]
    expected = torch.stack([m for m, y in zip(means, bags.y, strict=True) if y == 0]).sum() / 4
    torch.testing.assert_close(model.losses(out, bags)["negatives"], expected)
    assert model.loss_weights == {"negatives": 2.0}


def test_each_of_several_classes_has_its_own_negative_bags():
    model = make("evidence-diag", classes=3, negatives=1.0)
    bags = replace(bags_of(), y=torch.tensor([0, 2, 1, 2]))
    out = model(bags)
    expected = negative_instances(out.attention, bags.y, bags).mean()
    torch.testing.assert_close(model.losses(out, bags)["negatives"], expected)


def slides_of_two_findings(count: int, n: int = 20):
    """Return slides of normal tissue, without a finding or with one of two in a quarter of it."""
    g = torch.Generator().manual_seed(0)
    i = torch.arange(n - 1)
    bags = []
    tissue = torch.zeros(count, n, dtype=torch.long)
    for k in range(count):
        y = k % 3
        tissue[k, 5 : 5 + n // 4] = y
        x = torch.randn(n, 6, generator=g)
        x += 3 * torch.nn.functional.one_hot(tissue[k], 6)
        edges = torch.stack([i, i + 1])
        bags.append(Bag(name=str(k), x=x, y=y, edges=edges, weights=torch.ones(n - 1)))
    return pack(bags), tissue.flatten()


def test_negatives_of_several_classes_do_not_forbid_normal_tissue_beside_a_finding():
    bags, tissue = slides_of_two_findings(18)
    beside = (tissue == 0) & (bags.y > 0)[bags.bag]

    def fitted(negatives: float):
        torch.manual_seed(0)
        options = {"embed": 16, "attention_dim": 8, "samples": 2, "negatives": negatives}
        model = build("evidence-diag", in_dim=6, n_classes=3, **options)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for step in range(60):
            optimiser.zero_grad()
            out = model(bags, generator=torch.Generator().manual_seed(step))
            losses = model.losses(out, bags)
            objective(losses, weights=model.loss_weights, kl_weight=0.1).backward()
            optimiser.step()
        return probability_positive(model(bags).attention).detach()

    without = fitted(0.0)
    with_term = fitted(1.0)
    normal = [float(p[beside, 0].mean()) for p in (without, with_term)]
    findings = [float(p[tissue == 0, 1:].mean()) for p in (without, with_term)]
    assert normal[0] > 0.7 and normal[1] > normal[0] - 0.05
    assert findings[1] < findings[0] < 0.1


def test_guidance_is_of_the_weights_of_the_pooling():
    grid = pack([Bag.from_arrays(torch.randn(9, 6), [(k % 3, k // 3) for k in range(9)], label=1)])
    bags = grid.to("cpu", F64)
    model = make("evidence-diag", guidance="normal", guidance_weight=3.0)
    out = model(bags)
    scores = model.pooling.log_beta.exp() * out.attention.mean
    guided = model.losses(out, bags)["guidance"]
    torch.testing.assert_close(guided, normal_guidance(scores, bags).mean())
    assert model.loss_weights == {"guidance": 3.0} and model.pooling.log_beta.item() != 0
