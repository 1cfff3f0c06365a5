"""Requirements that every registered model meets; registering a model puts it under test.

The model itself declares its special properties (`order_matters`, `min_instances`).
"""

from dataclasses import asdict, replace

import pytest
import torch
from support.random_bags import F64
from torch import Tensor

from probsa import Bag, pack
from probsa.core import graphs
from probsa.errors import InputError, UnknownName
from probsa.models import Model, Output, arguments, build, look_up, names
from probsa.variational import Field, Posterior, objective

IN_DIM = 6
SMALL = {
    "embed": 12,
    "attention_dim": 5,
    "layers": 2,
    "heads": 2,
    "landmarks": 4,
    "samples": 3,
    "predict_samples": 7,
    "k_sample": 2,
    "hidden": 10,
    "clusters": 6,
    "reduced_dim": 7,
    "pyramid_dim": 5,
    "set_dim": 8,
}
SIZES = (9, 1, 4, 17)
NAMES = names()
SAMPLED = [n for n in NAMES if "samples" in arguments(n)]


def make(name: str, **more) -> Model:
    """Build a small model, with the same weights each time."""
    small = {k: v for k, v in SMALL.items() if k in arguments(name)}
    torch.manual_seed(0)
    return build(name, in_dim=IN_DIM, **{**small, **more})


def make_bag(
    name: str, n: int, *, y: int | None = 1, dtype=F64, edges: Tensor | None = None
) -> Bag:
    """Return a bag on a grid with holes; with four or more patches the last one is isolated."""
    g = torch.Generator().manual_seed(n)
    cells = torch.randperm(2 * n + 4, generator=g)[:n].sort().values
    coords = torch.stack([cells % 5, cells // 5], 1) * 10
    if n >= 4:
        coords[-1] += 1000
    if edges is None:
        edges = graphs.grid(coords, stride=10.0)
    weights = (0.5 + torch.rand(edges.shape[1], generator=g, dtype=F64)).to(dtype)
    x = torch.randn(n, IN_DIM, generator=g, dtype=F64).to(dtype)
    return Bag(name=name, x=x, edges=edges, weights=weights, y=y, coords=coords, stride=10.0)


def batch(model: Model, *, dtype=F64) -> list[Bag]:
    sizes = [max(n, model.min_instances) for n in SIZES]
    return [make_bag(f"bag{k}", n, y=k % 2, dtype=dtype) for k, n in enumerate(sizes)]


def noise_for(n: int, *, samples: int = 3, seed: int = 0, dtype=F64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, samples, generator=g, dtype=F64).to(dtype)


def instances(bags: list[Bag]) -> int:
    return sum(len(b.x) for b in bags)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def model(name) -> Model:
    return make(name).double()


def check_output(out: Output, sizes, classes: int) -> None:
    n = sum(sizes)
    assert out.logits.shape[0] == len(sizes) and out.logits.shape[2] == classes
    assert out.probability.shape == out.std.shape == (len(sizes), classes)
    assert isinstance(out.attention, Posterior)
    assert out.attention.mean.shape in ((n,), (n, classes))
    assert out.attention.variance.shape == out.attention.mean.shape
    assert bool((out.attention.variance >= 0).all())
    assert bool(((out.probability >= 0) & (out.probability <= 1)).all())
    for value in (out.logits, out.attention.mean, out.attention.variance, *out.extras.values()):
        assert bool(value.isfinite().all())


def check_losses(model: Model, out: Output, bags) -> dict[str, Tensor]:
    losses = model.losses(out, bags)
    assert losses
    assert set(model.loss_weights) <= set(losses)
    for term in losses.values():
        assert term.shape == () and bool(term.isfinite())
    return losses


def test_the_facts_are_those_of_the_model(name, model):
    bags = pack(batch(model))
    assert model.has_kl == ("kl" in model.losses(model(bags), bags)) == ("kappa" in arguments(name))
    assert (model.family, model.baseline) == (look_up(name).family, look_up(name).baseline)
    if model.baseline is not None:
        baseline = look_up(model.baseline)
        assert (baseline.family, baseline.model.has_kl) == (model.family, False)


def test_the_probability_is_the_mean_over_samples(model):
    out = model.eval()(pack(batch(model)))
    same(out.probability, out.logits.sigmoid().mean(1))


@pytest.mark.parametrize("with_noise", [True, False])
def test_a_bag_does_not_see_its_batch_mates(model, with_noise):
    model.eval()
    bags = batch(model)
    noise = noise_for(instances(bags)) if with_noise else None
    parts = noise.split([len(b.x) for b in bags]) if with_noise else [None] * len(bags)
    whole = pack(bags)
    with torch.no_grad():
        together = model(whole, noise=noise)
        terms = model.losses(together, whole)
        start = 0
        alone_terms = {k: [] for k in terms}
        for k, (bag, bag_noise) in enumerate(zip(bags, parts, strict=True)):
            single = pack([bag])
            alone = model(single, noise=bag_noise)
            rows = slice(start, start + len(bag.x))
            start = rows.stop
            same(together.logits[k], alone.logits[0])
            same(together.attention.mean[rows], alone.attention.mean)
            same(together.attention.variance[rows], alone.attention.variance)
            if (explained := together.explanation) is not None:
                same(explained.leave_one_out[rows], alone.explanation.leave_one_out)
                same(explained.contributions[rows], alone.explanation.contributions)
            for key, value in together.extras.items():
                if len(value) == len(whole.x):
                    same(value[rows], alone.extras[key])
            for key, value in model.losses(alone, single).items():
                alone_terms[key].append(value)
    for key, value in terms.items():
        same(value, torch.stack(alone_terms[key]).mean())


def turned(bag: Bag, order: Tensor) -> Bag:
    """Reorder the instances of a bag, so that row k is the former row order[k]."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return Bag(
        name=bag.name,
        x=bag.x[order],
        edges=place[bag.edges],
        weights=bag.weights,
        y=bag.y,
        coords=bag.coords[order],
        stride=bag.stride,
    )


def test_the_order_of_instances_is_irrelevant(model):
    if model.order_matters:
        pytest.skip("the model says that the order of instances matters to it")
    model.eval()
    bag = make_bag("a", 17)
    order = torch.randperm(17, generator=torch.Generator().manual_seed(5))
    noise = noise_for(17)
    before = model(bags := pack([bag]), noise=noise)
    after = model(bags_after := pack([turned(bag, order)]), noise=noise[order])
    same(after.attention.mean, before.attention.mean[order])
    same(after.attention.variance, before.attention.variance[order])
    terms = model.losses(before, bags)
    turned_terms = model.losses(after, bags_after)
    if isinstance(before.attention, Field):  # its samples mix the noise of all instances
        same(turned_terms["kl"], terms["kl"])
        noise = noise_for(17, samples=4000)
        before, after = model(bags, noise=noise), model(bags_after, noise=noise[order])
        error = (before.logits.var(1) / 2000).sqrt()
        assert bool(((after.logits.mean(1) - before.logits.mean(1)).abs() < 4 * error).all())
        return
    same(after.logits, before.logits)
    for key, value in turned_terms.items():
        same(value, terms[key])


NOWHERE = torch.zeros(2, 0, dtype=torch.long)


TERMS: dict[str, dict[str, object]] = {
    "none": {},
    "guidance": {"guidance": "normal"},
    "negatives": {"negatives": 1.0},
}
"""Arguments that add a term to the losses."""


ODD = [
    *((term, 1, 0) for term in TERMS),
    pytest.param("none", 1, 1, marks=pytest.mark.nightly),
    ("negatives", 1, 1),
    pytest.param("guidance", 3, 0, marks=pytest.mark.nightly),
    ("negatives", 3, 2),
    *(pytest.param("negatives", 3, label, marks=pytest.mark.nightly) for label in (0, 1)),
]
"""Terms, number of logits, and labels of the bags."""


def odd_batches(model: Model, *, label: int, dtype) -> dict[str, list[Bag]]:
    few = model.min_instances
    some = max(7, model.min_instances)

    def bag(n: int, edges: Tensor | None = None) -> Bag:
        return make_bag("a", n, y=label, dtype=dtype, edges=edges)

    whole = bag(some)
    return {
        "one bag": [whole],
        "one instance": [bag(few, NOWHERE if few == 1 else None)],
        "no edges": [bag(some, NOWHERE)],
        "isolated instances": [bag(some, torch.tensor([[0, 1], [1, 2]]))],
        "zero weights": [replace(whole, weights=torch.zeros_like(whole.weights))],
        "several sizes": batch(model, dtype=dtype),
    }


@pytest.mark.parametrize(("term", "classes", "label"), ODD)
def test_odd_bags_have_finite_losses_and_gradients(name, term, classes, label):
    """The same in both precisions, so that they are not finite by accident; and after a step."""
    own = TERMS[term] if classes == 1 else {**TERMS[term], "n_classes": classes}
    if not own.keys() <= arguments(name).keys():
        with pytest.raises(UnknownName):
            make(name, **own)
        return
    for case in odd_batches(make(name), label=label, dtype=F64):
        found = []
        for dtype in (F64, torch.float32):
            model = make(name, **own).to(dtype)
            packed = pack(odd_batches(model, label=label, dtype=dtype)[case])
            torch.manual_seed(1)
            out = model(packed, noise=noise_for(len(packed.x), dtype=dtype))
            check_output(out, packed.sizes, classes)
            losses = check_losses(model, out, packed)
            objective(losses, weights=model.loss_weights, kl_weight=1.0).backward()
            gradients = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
            assert all(bool(v.isfinite().all()) for v in gradients.values()), case
            found.append((losses, gradients))
        torch.optim.Adam(model.parameters(), lr=1e-2).step()
        check_losses(model, model(packed), packed)
        (losses, gradients), (coarse_losses, coarse_gradients) = found
        for key, value in losses.items():
            single = coarse_losses[key].to(F64)
            torch.testing.assert_close(single, value, rtol=1e-3, atol=1e-4, msg=f"{case}: {key}")
        largest = max(float(v.abs().max()) for v in gradients.values())
        for key, value in gradients.items():
            error = float((coarse_gradients[key].to(F64) - value).abs().max())
            assert error <= 1e-3 * max(largest, 1e-3), f"{case}: {key}"


def train_a_little(model: Model, bags, *, steps: int) -> dict[str, float]:
    """Return the total absolute gradient of each parameter."""
    optimiser = torch.optim.Adam(model.parameter_groups(), lr=1e-2)
    seen = dict.fromkeys((k for k, _ in model.named_parameters()), 0.0)
    for step in range(steps):
        model.start_epoch(step, steps)
        optimiser.zero_grad()
        out = model(bags, generator=torch.Generator().manual_seed(step))
        losses = model.losses(out, bags)
        objective(losses, weights=model.loss_weights, kl_weight=1.0).backward()
        for key, p in model.named_parameters():
            if p.grad is not None:  # a method may train its parts alternately
                seen[key] += p.grad.abs().sum().item()
        optimiser.step()
        model.after_step(out, bags)
    return seen


def test_training_reaches_every_parameter_and_lowers_the_loss(model):
    bags = pack(batch(model))
    noise = noise_for(len(bags.x))

    @torch.no_grad()
    def loss() -> float:
        losses = model.losses(model(bags, noise=noise), bags)
        return objective(losses, weights=model.loss_weights, kl_weight=1.0).item()

    before = loss()
    seen = train_a_little(model, bags, steps=30)
    assert loss() < before
    assert {k for k, v in seen.items() if v == 0} <= model.without_effect
    rounding = 1e-12 * max(seen.values())
    assert all(seen[k] <= rounding for k in model.without_effect)


def test_by_name_arguments_and_weights_it_is_the_same_model(name):
    first = make(name, seed=3).double()
    train_a_little(first, pack(batch(first)), steps=3)
    again = build(first.name, **first.arguments).double()
    again.load_state_dict(first.state_dict(), strict=True)
    bags = pack(batch(first))
    a, b = first.eval()(bags), again.eval()(bags)
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.attention.mean, b.attention.mean)
    assert torch.equal(a.attention.variance, b.attention.variance)


def test_prediction_is_deterministic_and_knows_no_order_of_bags_and_no_gradients(model):
    model.eval()
    bags = batch(model)
    logits = []
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            first = model(pack(bags))
            again = model(pack(bags))
            backwards = model(pack(bags[::-1]))
        assert torch.equal(first.logits, again.logits)
        same(first.logits, backwards.logits.flip(0))
        logits.append(first.logits)
    same(*logits)


def test_noise_comes_from_the_caller_the_generator_or_the_seed(name):
    model = make(name, seed=1).double()
    other = make(name, seed=2).double()
    bags = pack(batch(model))
    for training in (True, False):
        model.train(training), other.train(training)

        def logits(seed: int) -> Tensor:
            return model(bags, generator=torch.Generator().manual_seed(seed)).logits

        assert torch.equal(logits(1), logits(1))
        noisy = bool((model(bags).attention.variance > 0).any())
        assert not noisy or (logits(1) - logits(2)).abs().max().item() > 1e-6
        if name not in SAMPLED:
            continue
        noise = noise_for(len(bags.x), samples=5)
        given = model(bags, noise=noise).logits
        assert torch.equal(given, other(bags, noise=noise).logits)
        assert given.shape[1] == (5 if noisy else 1)
        own = (SMALL["samples"], SMALL["predict_samples"])[not training]
        assert model(bags).logits.shape[1] == (own if noisy else 1)
        # a step of training draws afresh, a prediction by the seed
        torch.manual_seed(5)
        first, second = model(bags).logits, model(bags).logits
        torch.manual_seed(5)
        assert torch.equal(model(bags).logits, first)
        assert torch.equal(second, first) == (not noisy or not training)
        assert training or torch.equal(other(bags).logits, first) == (not noisy)


def test_single_precision_is_double_precision_rounded(name):
    single = make(name)
    double = make(name).double()
    bags = pack(batch(single))
    noise = noise_for(len(bags.x))
    coarse = pack(batch(single, dtype=torch.float32))
    a, b = single(coarse, noise=noise.float()), double(bags, noise=noise)
    assert a.logits.dtype == torch.float32 and b.logits.dtype == F64
    assert b.attention.mean.dtype == F64
    torch.testing.assert_close(a.logits.double(), b.logits, rtol=1e-4, atol=1e-5)
    terms = double.losses(b, bags)
    for key, value in single.losses(a, coarse).items():
        assert terms[key].dtype == F64
        torch.testing.assert_close(value.double(), terms[key], rtol=1e-4, atol=1e-5)


def test_bfloat16_autocast_is_close_to_single_precision(name):
    model = make(name)
    bags = pack(batch(model, dtype=torch.float32))
    noise = noise_for(len(bags.x), dtype=torch.float32)
    want = model.losses(model(bags, noise=noise), bags)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(bags, noise=noise)
        actual = model.losses(out, bags)
    assert out.logits.dtype == torch.float32
    objective(actual, weights=model.loss_weights, kl_weight=1.0).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    for key, value in actual.items():
        # bfloat16 rounds to 8 bits, by 0.4 %; the ten roundings of a transformer mostly cancel
        torch.testing.assert_close(value, want[key], rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_more_classes(name, classes):
    if "n_classes" not in arguments(name):
        pytest.skip("the model has one logit only")
    if look_up(name).model.binary:
        with pytest.raises(InputError, match="n_classes"):
            make(name, n_classes=classes)
        return
    model = make(name, n_classes=classes).double()
    labelled = [make_bag(b.name, len(b.x), y=k % classes) for k, b in enumerate(batch(model))]
    bags = pack(labelled)
    out = model(bags)
    check_output(out, bags.sizes, classes)
    same(out.probability.sum(1), torch.ones(len(bags), dtype=F64))
    check_losses(model, out, bags)
    predicted = model.eval()(bags)
    with torch.no_grad():
        same(predicted.logits, model(bags).logits)
    with pytest.raises(InputError, match=f"n_classes={classes}"):
        wrong = pack([make_bag("a", model.min_instances + 3, y=classes)])
        model.losses(model(wrong), wrong)


def test_class_weights_reach_the_loss(name):
    if "class_weights" not in arguments(name):
        pytest.skip("the model takes no class weights")
    plain = make(name).double()
    weighed = make(name, class_weights=(0.5, 3.0)).double()
    weighed.load_state_dict(plain.state_dict(), strict=False)
    for y, weight in ((0, 0.5), (1, 3.0)):
        bags = pack([make_bag("a", plain.min_instances + 3, y=y)])
        noise = noise_for(len(bags.x))
        term = plain.weighted_term
        want = plain.losses(plain(bags, noise=noise), bags)[term] * weight
        same(weighed.losses(weighed(bags, noise=noise), bags)[term], want)


def test_a_wrong_name_or_argument_is_answered_with_the_right_one():
    with pytest.raises(UnknownName) as argument:
        build("abmil", in_dims=IN_DIM)
    assert (argument.value.name, argument.value.suggestion) == ("in_dims", "in_dim")
    with pytest.raises(UnknownName) as model:
        build("abmilx", in_dim=IN_DIM)
    assert (model.value.name, model.value.suggestion) == ("abmilx", "abmil")


@pytest.mark.parametrize("name", [n for n in NAMES if look_up(n).original])
def test_the_original_setting_is_one_argument(name):
    """Other arguments override the preset; a checkpoint stores the result of both."""
    small = {k: v for k, v in SMALL.items() if k in arguments(name)}
    model = build(name, in_dim=IN_DIM, preset="original", **small)
    assert model.arguments == {**look_up(name).original, "in_dim": IN_DIM, **small}
    # without an isolated patch, which makes the map of a slide large
    bags = pack([make_bag("a", max(3, model.min_instances), dtype=torch.float32)])
    check_losses(model, model(bags), bags)


def test_a_name_and_a_width_suffice_and_labels_are_needed_for_losses_alone(name):
    """Its provenance states paper and licence, and what follows paper, code and comparison."""
    model = build(name, in_dim=IN_DIM).eval()
    provenance = model.provenance
    assert all(text.strip() for text in asdict(provenance).values())
    assert "http" in provenance.paper or "arXiv" in provenance.paper
    n = model.min_instances + 3
    one = torch.float32
    out = model(pack([make_bag("a", n, y=None, dtype=one)]))
    check_output(out, [n], 1)
    for y in (None, 2):
        with pytest.raises(InputError, match="labels"):
            model.losses(out, pack([make_bag("a", n, y=y, dtype=one)]))
    check_losses(model, out, pack([make_bag("a", n, dtype=one)]))


def test_one_instance_beside_very_many(name):
    model = make(name)
    # self-attention is quadratic, so a transformer gets a size that takes seconds, not minutes
    many = 1_500 if "heads" in arguments(name) else 30_000
    few = max(1, model.min_instances)
    i = torch.arange(many - 1)
    large = Bag(
        name="large",
        x=torch.randn(many, IN_DIM, generator=torch.Generator().manual_seed(0)),
        edges=torch.stack([i, i + 1]),
        weights=torch.ones(many - 1),
        y=1,
        coords=torch.stack([torch.arange(many) * 10, torch.zeros(many).long()], 1),
        stride=10.0,
    )
    small = make_bag("small", few, y=0, dtype=torch.float32)
    bags = pack([small, large])
    noise = noise_for(len(bags.x), dtype=torch.float32)
    out = model(bags, noise=noise)
    check_output(out, bags.sizes, 1)
    losses = check_losses(model, out, bags)
    objective(losses, weights=model.loss_weights, kl_weight=1.0).backward()
    if model.couples_bags:  # in training only
        out = model.eval()(bags, noise=noise)
    alone = model(pack([small]), noise=noise[:few])
    torch.testing.assert_close(out.logits[0], alone.logits[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["another name", "another order"])
def test_a_name_and_an_order_change_a_prediction_by_monte_carlo_error_alone(model, change):
    """The statement of `Model.order_matters`, in prediction without noise of the caller."""
    if model.order_matters and change == "another order":
        pytest.skip("the model says that the order of instances matters to it")
    model.eval()
    bag = make_bag("a", 17)
    order = torch.randperm(17, generator=torch.Generator().manual_seed(5))
    other = turned(bag, order) if change == "another order" else replace(bag, name="b")
    one, two = model(pack([bag])), model(pack([other]))
    samples = one.logits.shape[1]
    if model.name.startswith("dtfdmil"):  # divides a bag into random groups: no `std`
        assert 0 < float((two.probability - one.probability).detach().abs()) < 0.01
        return
    if not one.attention.stochastic:
        same(two.probability, one.probability)
        return
    error = (one.std.square() + two.std.square()).sqrt() / samples**0.5
    difference = (two.probability - one.probability).abs()
    assert bool((difference <= 5 * error + 1e-10).all())
    assert bool((difference > 0).any())  # or the statement in the docs is out of date
