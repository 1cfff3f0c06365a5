"""VMIL: parity with the reference outputs, the schedule, and computations by hand."""

import pytest
import torch
from support.golden import Golden, close
from support.options import changes, made, options_of, some_bags
from support.random_bags import F64, random_bag
from support.stored import write_folder
from torch import Tensor

from probsa import pack
from probsa.models import build
from probsa.models.vmil import schedule, threshold
from probsa.training import Reporter
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.devices import World
from probsa.training.loop import TrainingLoop
from probsa.training.preparation import prepare
from probsa.training.run_folder import RunFolder

EPOCH_OF = {"e": 1, "m1": 0, "m2": 14}
"""An example epoch (of 30) for each kind of step."""


@pytest.fixture(scope="module")
def golden(shared_golden) -> Golden:
    return Golden(shared_golden, "vmil")


def at(model, step: str):
    model.start_epoch(EPOCH_OF[step], 30)
    assert (model.turns, model.warming) == ((step[0],), step != "m2")
    return model


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_value_of_the_original(golden, b):
    model, bags = at(golden.model(), "m2"), pack([golden.bag(b)])
    out = model(bags)
    expected = lambda what: golden.expected(f"bag{b}.{what}")  # noqa: E731
    close(model.p_branch(bags.x), expected("p_embedding"))
    close(model.instances_in_context(bags), expected("q_embedding"))
    close(out.extras["p_logit"], expected("p_logit"))
    close(out.extras["q_logit"], expected("q_logit"))
    close(out.attention.mean, expected("p"))
    close(out.extras["q"], expected("q"))
    y = bags.y[0]
    close(y * out.attention.mean, expected("e_target"))
    close(threshold(out.extras["q"], bags.sizes, gamma=model.gamma)[0], expected("m2_tau"))
    assert torch.equal(y * model.marked(out.extras["q"], bags), expected("m2_pseudo"))
    close(out.probability[0, 0], expected("p").max())


@pytest.mark.parametrize("step", ["e", "m1", "m2"])
@pytest.mark.parametrize("b", [0, 1, 2])
def test_each_step_and_every_gradient_of_the_original(golden, b, step):
    model, bags = at(golden.model(), step), pack([bag := golden.bag(b)])
    losses = model.losses(model(bags), bags)
    assert set(losses) == {f"{step[0]}_step"}
    loss = losses[f"{step[0]}_step"]
    close(loss, golden.expected(f"bag{b}.{step}_loss"))
    names = golden.names(model)
    assert set(names.values()) == set(dict(model.named_parameters()))
    golden.check_gradients(model, loss, bag.x, b=b, key=f"{step}_")
    # −1 marks parameters without gradient, which have none here either
    loss.backward()
    norms = dict(
        zip(
            golden.metadata["parameter_order"],
            golden.expected(f"bag{b}.{step}_grad_norms").tolist(),
            strict=True,
        )
    )
    for theirs, name in names.items():
        assert (dict(model.named_parameters())[name].grad is None) == (norms[theirs] == -1)


def test_three_bags_at_once(golden):
    n = golden.metadata["sizes"][0]
    bags = pack([golden.bag(b, **first(golden, b, n)) for b in range(3)])
    for step in EPOCH_OF:
        model = at(golden.model(), step)
        out = model(bags)
        close(out.attention.mean.view(3, n), golden.expected("batch.p"))
        close(out.extras["q"].view(3, n), golden.expected("batch.q"))
        # theirs is a sum over bags, ours a mean
        close(3 * model.losses(out, bags)[f"{step[0]}_step"], golden.expected(f"batch.{step}_loss"))
    q = out.extras["q"]
    close(threshold(q, bags.sizes, gamma=0.15), golden.expected("batch.m2_tau"))
    marked = model.marked(q, bags).view(3, n) * bags.y[:, None]
    assert torch.equal(marked, golden.expected("batch.m2_pseudo"))


def first(golden: Golden, b: int, n: int) -> dict[str, Tensor]:
    """Return the first n instances, without a graph, which the method does not use."""
    x, coords = golden.tensors[f"bag{b}.x"][:n], golden.tensors[f"bag{b}.coords"][:n]
    nothing = {"edges": torch.zeros(2, 0, dtype=torch.long), "weights": torch.zeros(0)}
    return {"x": x, "coords": coords, **nothing}


def test_the_schedule_of_the_original(golden):
    stored = ["me"[k] for k in golden.expected("schedule").tolist()]
    assert [schedule(e, 10) for e in range(1, 31)] == stored
    assert "".join(stored).upper() == "MEEMMEEMMEEEEEMMMMMEEEEEMMMMME"
    model = build("vmil", in_dim=4, embed=8, warmup=1 / 3)
    stages = golden.expected("schedule_stage").tolist()
    for epoch, (turn, stage) in enumerate(zip(stored, stages, strict=True)):
        model.start_epoch(epoch, 30)
        assert model.turns == (turn,) and model.warming == (stage == 1)
    # 500 of the original's 1,999
    model.warmup = build("vmil", in_dim=4, preset="original").warmup
    assert [warming(model, e, 1999) for e in (499, 500)] == [True, False]


def warming(model, epoch: int, epochs: int) -> bool:
    model.start_epoch(epoch, epochs)
    return model.warming


def test_the_threshold_is_passed_strictly():
    q = torch.tensor([0.1, 0.2, 0.9, 0.4, 0.4], dtype=F64)
    assert threshold(q, [3, 2], gamma=0.15).tolist() == pytest.approx([0.22, 0.4])
    model, bags = made("vmil"), pack([random_bag(3, features=6), random_bag(2, features=6)])
    assert model.marked(q, bags).tolist() == [False, False, True, False, False]
    model.gamma = 0.1
    assert model.marked(q, bags).tolist() == [False, True, True, False, False]


def test_an_epoch_trains_its_own_branch_and_leaves_the_other_alone():
    model, bags = made("vmil").double(), some_bags()
    optimiser = torch.optim.Adam(model.parameter_groups(), lr=1e-2, weight_decay=0.1)
    seen = []
    for step in ("m1", "e", "m2"):
        at(model, step)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        counts = {k: optimiser.state[p].get("step", 0) for k, p in model.named_parameters()}
        counts = {k: float(v) for k, v in counts.items()}
        optimiser.zero_grad()
        sum(model.losses(model(bags), bags).values()).backward()
        optimiser.step()
        changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
        seen.append({k[0] for k in changed})
        for k, p in model.named_parameters():
            now = float(optimiser.state[p].get("step", 0))
            assert now == counts[k] + (k in changed)
    assert seen == [{"p"}, {"q"}, {"p"}]


@pytest.mark.parametrize("step", EPOCH_OF)
@pytest.mark.parametrize("training", [True, False])
def test_a_bag_does_not_see_its_batch_mates_in_any_step(step, training):
    model = at(made("vmil", class_weights=(0.5, 2.0)).double().train(training), step)
    bags = [random_bag(n, seed=n, features=6, y=n % 2) for n in (13, 1, 4, 30)]
    out = model(whole := pack(bags))
    each = []
    for bag, logits in zip(bags, out.logits, strict=True):
        alone = model(single := pack([bag]))
        torch.testing.assert_close(alone.logits[0], logits)
        each += model.losses(alone, single).values()
    (loss,) = model.losses(out, whole).values()
    torch.testing.assert_close(loss, torch.stack(each).mean())


def test_a_branch_that_nobody_reads_is_not_computed():
    model, bags = made("vmil"), some_bags(dtype=torch.float32)
    assert set(model(bags).extras) == {"p_logit"}
    extras = at(model, "e")(bags).extras
    assert set(extras) == {"p_logit", "q_logit", "q"}
    assert [extras[k].requires_grad for k in ("p_logit", "q_logit")] == [False, True]
    assert set(at(model, "m1").eval()(bags).extras) == {"p_logit", "q_logit", "q"}


# --- options


CHANGES = {
    "embed": 16,
    "activation": "identity",
    "dropout": 0.5,
    "reduction": "sum",
    "alternate": "steps",
}
OF_SCHEDULE = {"gamma": 0.5, "warmup": 0.5, "warmup_block": 3, "block": 4}
OF_Q = {"layers": 1, "heads": 4, "feedforward": 7}
"""Options of the branch that only E steps train and the bag's probability does not use."""


@pytest.mark.parametrize("key", options_of("vmil", without={*OF_SCHEDULE, *OF_Q}))
def test_an_option_changes_the_result(key):
    assert changes("vmil", key, CHANGES[key]) > 1e-6


@pytest.mark.parametrize("key", OF_Q)
def test_an_option_of_q_changes_q(key):
    bags = some_bags()
    plain, other = made("vmil").double().eval(), made("vmil", **{key: OF_Q[key]}).double().eval()
    assert (plain(bags).extras["q"] - other(bags).extras["q"]).abs().max() > 1e-6


@pytest.mark.parametrize("key", ["warmup", "warmup_block", "block"])
def test_an_option_of_the_schedule_changes_it(key):
    assert turns(**{key: OF_SCHEDULE[key]}) != turns()


def turns(**options) -> list[tuple]:
    model, seen = build("vmil", in_dim=4, embed=8, **options), []
    for epoch in range(100):
        model.start_epoch(epoch, 100)
        seen.append((model.turns, model.warming))
    return seen


@pytest.mark.parametrize("epochs", [1, 2, 3, 8])
def test_pseudo_labels_wait_for_the_first_e_epochs(epochs):
    model = build("vmil", in_dim=4, embed=8, warmup=0.0)
    seen = []
    for epoch in range(epochs):
        model.start_epoch(epoch, epochs)
        seen.append((*model.turns, model.warming))
    assert seen[:3] == [("m", True), ("e", True), ("e", True)][:epochs]
    assert not any(warm for _, warm in seen[3:])


def test_a_collapse_is_told_once(tmp_path):
    features, labels = write_folder(tmp_path / "data")
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="vmil",
        model_arguments={"embed": 8, "heads": 2, "feedforward": 8},
        training=TrainingConfig(epochs=4, batch_size=4, device="cpu", tensorboard=False),
    )
    notes = []

    class Listener(Reporter):
        def note(self, text):
            notes.append(text)

    loop = TrainingLoop(
        config, RunFolder(tmp_path / "a"), prepare(config), device=torch.device("cpu"),
        world=World(), reporter=Listener(),
    )  # fmt: skip
    loop.validate()
    assert notes == []
    torch.nn.init.zeros_(loop.model.p_head.weight)
    loop.validate()
    loop.validate()
    (note,) = notes
    assert note.startswith("epoch 1: all 4 validation bags are predicted the same (0.")
    assert "vmil has collapsed" in note
