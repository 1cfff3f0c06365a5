"""VMIL: parity with the reference outputs, the schedule, and computations by hand."""

import pytest
import torch
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64, random_bag

from probsa import pack
from probsa.models import build
from probsa.models.vmil import schedule, threshold

EPOCH_OF = {"e": 1, "m1": 0, "m2": 14}
"""An example epoch (of 30) for each kind of step."""


@pytest.fixture(scope="module")
def golden(shared_golden) -> Golden:
    return Golden(shared_golden, "vmil")


def at(model, step: str):
    model.start_epoch(EPOCH_OF[step], 30)
    assert (model.step, model.warming) == (step[0], step != "m2")
    return model


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_value_of_the_original(golden, b):
    model = at(golden.model(), "m2")
    bags = pack([golden.bag(b)])
    out = model(bags)
    y = bags.y[0]
    q = out.extras["q"]
    actual = {
        "p_embedding": model.p_branch(bags.x),
        "q_embedding": model.instances_in_context(bags),
        "p_logit": out.extras["p_logit"],
        "q_logit": out.extras["q_logit"],
        "p": out.attention.mean,
        "q": q,
        "e_target": y * out.attention.mean,
        "m2_tau": (tau := threshold(q, bags.sizes, gamma=model.gamma)[0]),
    }
    for key, value in actual.items():
        close(value, golden.expected(f"bag{b}.{key}"))
    assert torch.equal(y * (q > tau), golden.expected(f"bag{b}.m2_pseudo"))
    close(out.probability[0, 0], golden.expected(f"bag{b}.p").max())


@pytest.mark.parametrize("step", EPOCH_OF)
@pytest.mark.parametrize("b", [0, 1, 2])
def test_each_step_and_every_gradient_of_the_original(golden, b, step):
    model, bags = at(golden.model(), step), pack([bag := golden.bag(b)])
    losses = model.losses(model(bags), bags)
    assert set(losses) == {f"{step[0]}_step"}
    loss = losses[f"{step[0]}_step"]
    close(loss, golden.expected(f"bag{b}.{step}_loss"))
    names = golden.names(model)
    parameters = dict(model.named_parameters())
    assert set(names.values()) == set(parameters)
    golden.check_gradients(model, loss, bag.x, b=b, key=f"{step}_")
    # −1 marks parameters without gradient, which have none here either
    loss.backward()
    norms = golden.expected(f"bag{b}.{step}_grad_norms").tolist()
    for theirs, norm in zip(golden.metadata["parameter_order"], norms, strict=True):
        if theirs in names:
            assert (parameters[names[theirs]].grad is None) == (norm == -1)


def test_three_bags_at_once(golden):
    """The first n instances of each, without a graph, which the method does not use."""
    n = golden.metadata["sizes"][0]
    nothing = {"edges": torch.zeros(2, 0, dtype=torch.long), "weights": torch.zeros(0)}
    separate = []
    for b in range(3):
        first = {k: golden.tensors[f"bag{b}.{k}"][:n] for k in ("x", "coords")}
        separate.append(golden.bag(b, **first, **nothing))
    bags = pack(separate)
    for step in EPOCH_OF:
        model = at(golden.model(), step)
        out = model(bags)
        close(out.attention.mean.view(3, n), golden.expected("batch.p"))
        close(out.extras["q"].view(3, n), golden.expected("batch.q"))
        # theirs is a sum over bags, ours a mean
        close(3 * model.losses(out, bags)[f"{step[0]}_step"], golden.expected(f"batch.{step}_loss"))
    q = out.extras["q"]
    tau = threshold(q, bags.sizes, gamma=0.15)
    close(tau, golden.expected("batch.m2_tau"))
    marked = (q > tau[bags.bag]).view(3, n) * bags.y[:, None]
    assert torch.equal(marked, golden.expected("batch.m2_pseudo"))


def plan(model, epochs: int) -> list[tuple[str, bool]]:
    """Return the step of each epoch, and whether it is in the warm-up."""
    steps = []
    for epoch in range(epochs):
        model.start_epoch(epoch, epochs)
        steps.append((model.step, model.warming))
    return steps


def test_the_schedule_of_the_original(golden):
    steps = ["me"[k] for k in golden.expected("schedule").tolist()]
    assert [schedule(e, 10) for e in range(1, 31)] == steps
    assert "".join(steps).upper() == "MEEMMEEMMEEEEEMMMMMEEEEEMMMMME"
    model = build("vmil", in_dim=4, embed=8, warmup=1 / 3)
    is_warmup = [stage == 1 for stage in golden.expected("schedule_stage").tolist()]
    assert plan(model, 30) == list(zip(steps, is_warmup, strict=True))
    # 500 of the original's 1,999
    model = build("vmil", in_dim=4, preset="original")
    assert [warm for _, warm in plan(model, 1999)][499:501] == [True, False]


@pytest.mark.parametrize("epochs", [1, 2, 3, 8])
def test_pseudo_labels_wait_for_the_first_e_epochs(epochs):
    steps = plan(build("vmil", in_dim=4, embed=8, warmup=0.0), epochs)
    assert steps[:3] == [("m", True), ("e", True), ("e", True)][:epochs]
    assert not any(is_warmup for _, is_warmup in steps[3:])


def test_the_threshold_is_passed_strictly():
    """If all q of a positive bag are equal, none is marked."""
    q = torch.tensor([0.1, 0.2, 0.9, 0.4, 0.4], dtype=F64)
    assert threshold(q, [3, 2], gamma=0.15).tolist() == pytest.approx([0.22, 0.4])
    model = at(made("vmil").double(), "m2")
    bags = pack([random_bag(3, features=6, y=1), random_bag(2, features=6, y=1)])
    out = model(bags)
    for gamma, marked in ((0.15, [0, 0, 1]), (0.1, [0, 1, 1])):
        model.gamma = gamma
        out.extras["q"] = q
        logit = out.extras["p_logit"]
        target = torch.tensor([*marked, 0, 0])
        cross_entropy = torch.nn.functional.softplus(logit) - target * logit
        expected = (cross_entropy[:3].mean() + cross_entropy[3:].mean()) / 2
        torch.testing.assert_close(model.losses(out, bags)["m_step"], expected)


def test_an_epoch_trains_its_own_branch_and_leaves_the_other_alone():
    model = made("vmil").double()
    bags = some_bags()
    optimiser = torch.optim.Adam(model.parameter_groups(), lr=1e-2, weight_decay=0.1)
    branches = []
    for step in ("m1", "e", "m2"):
        at(model, step)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        counts = {k: float(optimiser.state[p].get("step", 0)) for k, p in model.named_parameters()}
        optimiser.zero_grad()
        sum(model.losses(model(bags), bags).values()).backward()
        optimiser.step()
        changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
        branches.append({k[0] for k in changed})
        for k, p in model.named_parameters():
            assert float(optimiser.state[p].get("step", 0)) == counts[k] + (k in changed)
    assert branches == [{"p"}, {"q"}, {"p"}]


@pytest.mark.parametrize("step", EPOCH_OF)
@pytest.mark.parametrize("training", [True, False])
def test_a_bag_does_not_see_its_batch_mates_in_any_step(step, training):
    model = at(made("vmil", class_weights=(0.5, 2.0)).double().train(training), step)
    bags = [random_bag(n, seed=n, features=6, y=n % 2) for n in (13, 1, 4, 30)]
    together = pack(bags)
    out = model(together)
    losses = []
    for bag, logits in zip(bags, out.logits, strict=True):
        alone = pack([bag])
        out_alone = model(alone)
        torch.testing.assert_close(out_alone.logits[0], logits)
        losses += model.losses(out_alone, alone).values()
    (loss,) = model.losses(out, together).values()
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_a_branch_that_nobody_reads_is_not_computed():
    model = made("vmil")
    bags = some_bags(dtype=torch.float32)
    assert set(model(bags).extras) == {"p_logit"}
    extras = at(model, "e")(bags).extras
    assert set(extras) == {"p_logit", "q_logit", "q"}
    assert [extras[k].requires_grad for k in ("p_logit", "q_logit")] == [False, True]
    assert set(at(model, "m1").eval()(bags).extras) == {"p_logit", "q_logit", "q"}
