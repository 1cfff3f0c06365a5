"""IIB-MIL: updates of prototypes and instance labels, and torchmil's own formulas."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from support.random_bags import F64, random_bag

from probsa import pack
from probsa.errors import BagError
from probsa.layers import TransformerLayer
from probsa.layers.transformer import bag_attention
from probsa.models import build, iibmil
from probsa.models.iibmil import ALMOST, softened

SMALL = {"embed": 8, "heads": 2, "hidden": 16, "layers": 1, "decoder_layers": 1}
BAGS = pytest.mark.parametrize("b", [0, 1, 2])


def small(**more):
    torch.manual_seed(0)
    return build("iibmil", in_dim=6, **{**SMALL, **more}).double()


def four_bags():
    sizes = (25, 9, 31, 4)
    return pack([random_bag(n, seed=k, features=6, y=k % 2) for k, n in enumerate(sizes)])


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.fixture(scope="module")
def golden(shared_golden):
    return Golden(shared_golden, "iibmil")


@BAGS
def test_a_step_changes_soft_labels_and_prototypes_as_in_the_original(golden, b):
    before = golden.tensors[f"bag{b}.confidence"]
    after = golden.expected(f"bag{b}.confidence_after")
    model = golden.model()
    assert not model.restrict and model.bank_epochs == 200
    # the stored step allows class 0 and the bag's class alone (`partial_y`), as this option does
    model.restrict = True
    model.warmup_epochs = 0
    model.restore_memory({f"bag{b}": before})
    bags = pack([golden.bag(b)])
    out = model(bags)

    model.start_epoch(100, 300)
    assert model._momentum == pytest.approx(golden.expected(f"bag{b}.conf_ema_m_epoch100").item())
    model.start_epoch(0, 300)
    model.after_step(out, bags)
    close(model.memory()[f"bag{b}"], after)
    close(model.prototypes, golden.expected(f"bag{b}.prototypes_after"))

    # the update of the soft labels alone, from the original's scores
    candidates = golden.tensors[f"bag{b}.partial_y"]
    score = golden.expected(f"bag{b}.score_prot")
    close(softened(before, score, candidates.bool(), momentum=0.95), after)


def test_a_class_with_two_bags_of_three(golden):
    """The original has a batch of seven instances per bag, and masks the first of each.

    The mask hides them from the prototypes alone: the network sees seven, the update six.
    """
    model = golden.model()
    separate = [golden.bag(b, y=y) for b, y in enumerate((1, 0, 1))]
    no_graph = {"edges": torch.zeros(2, 0).long(), "weights": torch.zeros(0), "coords": None}
    seven = pack([replace(bag, x=bag.x.detach()[:7], **no_graph) for bag in separate])
    six = pack([replace(bag, x=bag.x.detach()[1:7], **no_graph) for bag in separate])
    out = model(seven)
    close(out.logits[:, 0], golden.expected("batch.logits"))
    index_in_bag = torch.arange(7).repeat(3)
    is_unmasked = index_in_bag > 0
    unmasked = {key: values[is_unmasked] for key, values in out.extras.items()}
    model.after_step(replace(out, extras=unmasked), six)
    close(model.prototypes, golden.expected("batch.prototypes_after"))
    assert not model.memory()  # the first ten epochs do not update instance labels


def updated_prototypes(model, x, p, bags):
    """Return the prototypes after a step, computed instance by instance.

    Args:
        model: The model with the prototypes before the step.
        x: Features of the instances (n, d).
        p: Their probabilities (n, classes).
        bags: The bags with their labels.
    """
    prototypes = model.prototypes.clone()
    for c in range(model.instance_classes):
        rows = (bags.y == c)[bags.bag].nonzero()[:, 0].tolist()
        surest_first = sorted(rows, key=lambda n: -float(p[n, c]))
        # a step of 0.01 for a class that all bags have, and longer for a rarer one
        momentum = 1 - 0.01 * len(bags) / max(int((bags.y == c).sum()), 1)
        # a tenth of the instances in bags of the class, one after another
        for n in surest_first[: len(rows) // 10]:
            prototypes[c] = momentum * prototypes[c] + (1 - momentum) * x[n]
    return prototypes


@pytest.mark.parametrize("classes", [1, 2])
def test_prototypes_move_to_the_surest_of_their_class_and_labels_after_the_warm_up(classes):
    model = small(n_classes=classes, warmup_epochs=2)
    bags = four_bags()
    for epoch in range(3):
        assert not model.memory()
        model.start_epoch(epoch, 4)
        out = model(bags)
        p = out.extras["instance_logits"].softmax(1)
        want = updated_prototypes(model, out.extras["instance_features"], p.detach(), bags)
        assert ((model.prototypes - want).abs().amax(1) > 0).tolist() == [True, True]
        model.after_step(out, bags)
        same(model.prototypes, want)
    sizes = dict(zip(bags.names, bags.sizes, strict=True))
    assert {k: len(v) for k, v in model.memory().items()} == sizes
    assert not model.prototypes.requires_grad


@pytest.mark.parametrize("classes", [1, 3])
def test_instance_labels_are_distributions_that_start_at_the_bag_s(classes):
    model = small(n_classes=classes, warmup_epochs=0)
    c = model.instance_classes
    bags = pack([random_bag(20, seed=k, features=6, y=k % c) for k in range(4)])
    for k, labels in enumerate(model.confidence(bags)):
        want = torch.full((20, c), ALMOST / (c - 1), dtype=F64)
        want[:, k % c] = 1 - ALMOST
        same(labels, want)
    for _ in range(30):
        model.start_epoch(1, 2)
        model.after_step(model(bags), bags)
    for k, name in enumerate(bags.names):
        beta = model.memory()[name]
        same(beta.sum(1), torch.ones(20, dtype=F64))
        assert beta.min().item() >= 0
        others = [j for j in range(c) if j not in (0, k % c)]
        assert (beta[:, others] <= ALMOST).all()
        if k % c == 0:  # a negative bag's instances stay negative
            assert beta[:, 0].min().item() >= 1 - ALMOST
    assert model.memory()[bags.names[1]][:, 0].max().item() > 0.9  # some of a positive bag's do not


def test_labels_use_the_prototypes_that_the_step_has_seen(monkeypatch):
    monkeypatch.setattr(iibmil, "BANK_MOMENTUM", (0.5, 0.5))
    model = small(warmup_epochs=0)
    bags = four_bags()
    model.prototypes.copy_(torch.randn(2, 8, dtype=F64))
    out = model(bags)
    model.after_step(out, bags)
    # bag 1 is positive
    score = out.extras["prototype_score"].split(list(bags.sizes))[1]
    start = torch.tensor([ALMOST, 1 - ALMOST], dtype=F64)
    same(model.memory()["bag1"], 0.5 * start + 0.5 * F.one_hot((score > 0.5).long()))


def test_the_schedule_of_the_instance_labels_momentum():
    model = small()
    seen = []
    for epoch, epochs in ((0, 100), (50, 100), (100, 100), (7, 10)):
        model.start_epoch(epoch, epochs)
        seen.append(model._momentum)
    model = small(bank_epochs=200)
    model.start_epoch(300, 400)
    assert [*seen, model._momentum] == pytest.approx([0.95, 0.875, 0.8, 0.845, 0.8])


def test_what_is_remembered_reaches_the_loss_and_nothing_else_does():
    model = small(warmup_epochs=0).eval()
    bags = four_bags()
    out = model(bags)
    fresh = model.losses(out, bags)
    log_p = out.extras["instance_logits"].log_softmax(1).split(list(bags.sizes))
    start = torch.tensor([[1 - ALMOST, ALMOST], [ALMOST, 1 - ALMOST]], dtype=F64)
    want = [-(part @ start[k % 2]).mean() for k, part in enumerate(log_p)]
    same(fresh["instance"], torch.stack(want).mean())
    assert not model.memory()  # neither a prediction nor its loss stores labels
    model.restore_memory({"bag1": torch.tensor([[0.3, 0.7]], dtype=F64).expand(9, 2)})
    want[1] = -(log_p[1] @ torch.tensor([0.3, 0.7], dtype=F64)).mean()
    again = model.losses(out, bags)
    same(again["instance"], torch.stack(want).mean())
    assert torch.equal(again["nll"], fresh["nll"])
    other = pack([random_bag(5, seed=1, features=6, y=1)])
    with pytest.raises(BagError, match="'bag1'"):
        model.losses(model(other), other)


@BAGS
def test_torchmil_s_numbers_follow_from_its_own_formulas(shared_golden, b):
    """Its network differs: a pre-norm encoder, and a class token that attends to the bag."""
    reference = Golden(shared_golden, "torchmil_iibmil")
    state = reference.state
    x = reference.tensors[f"bag{b}.x"]
    encoder = TransformerLayer(32, 24, heads=4, out_proj=False)
    weights = {}
    for their_name, value in reference.under("state.encoder.layers.0").items():
        name = their_name.replace("att_module.qkv_nn", "qkv")
        name = name.replace("att_proj", "skip")
        name = name.replace("_module", "")
        weights[name] = value
    encoder.load_state_dict(weights, strict=True)

    def linear(v, where):
        return F.linear(v, state[f"{where}.weight"], state.get(f"{where}.bias"))

    def norm(v, where):
        return F.layer_norm(v, (24,), state[f"{where}.weight"], state[f"{where}.bias"])

    h = norm(encoder(x, (len(x),)), "encoder.norm")
    z = linear(h, "inst_classifier")[:, 0]
    t = torch.cat([state["cls_token"][0], h])
    qkv = linear(norm(t, "decoder.layers.0.norm1"), "decoder.layers.0.att_module.qkv_nn")
    t = t + bag_attention(qkv.unflatten(1, (3, 4, -1)), (len(t),)).flatten(1)
    logit = linear(norm(t, "decoder.norm")[0], "bag_classifier")[0]
    hard = (h @ state["prototypes"].T).argmax(1).float()  # it stores no soft labels
    loss = F.binary_cross_entropy_with_logits(z, hard)
    actual = {"x_enc": h, "att_raw": z, "logit": logit, "loss.InstLoss": loss}
    for key, value in actual.items():
        close(value, reference.expected(f"bag{b}.{key}"))
