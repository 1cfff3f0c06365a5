"""IIB-MIL: the authors' numbers, updates of prototypes and instance labels, resumed runs."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from support.options import options_of, some_bags
from support.random_bags import F64, random_bag
from support.stored import write_folder
from torch import nn

from probsa import pack
from probsa.errors import BagError
from probsa.layers.postnorm import PostNormLayer, QueryLayer
from probsa.layers.transformer import TransformerLayer, bag_attention
from probsa.models import build
from probsa.models.iibmil import ALMOST, softened
from probsa.training import Reporter, train
from probsa.training.checkpoints import load_checkpoint
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.preparation import prepare

SMALL = {"in_dim": 6, "embed": 8, "heads": 2, "hidden": 16, "layers": 1, "decoder_layers": 1}
BAGS = pytest.mark.parametrize("b", [0, 1, 2])


@pytest.fixture(scope="module")
def golden(shared_golden):
    return Golden(shared_golden, "iibmil")


def labelled(model, golden, b):
    """Return bag b, after restoring the stored soft labels of its instances."""
    model.restore_memory({f"bag{b}": golden.tensors[f"bag{b}.confidence"]})
    return golden.bag(b)


# the authors' numbers


@BAGS
def test_the_original_s_values(golden, b):
    model, bag = golden.model(), golden.bag(b)
    bags = pack([bag])
    out = model(bags)
    close(out.logits[0], golden.expected(f"bag{b}.logits"))
    close(out.probability, golden.expected(f"bag{b}.prob"))
    close(out.extras["instance_logits"][None], golden.expected(f"bag{b}.inst_logits"))
    close(out.extras["instance_features"][None], golden.expected(f"bag{b}.x_instance"))
    close(out.extras["prototype_score"], golden.expected(f"bag{b}.score_prot"))
    p = golden.expected(f"bag{b}.inst_logits")[0].softmax(1)
    close(out.attention.mean, p)
    assert model.instance_scores(bags, out) is out.attention and model.score_kind == "probability"


@BAGS
def test_where_the_original_s_queries_look_and_what_they_become(golden, b):
    model = golden.model()
    bags = pack([golden.bag(b)])
    t, x = model.queries[None], model.instances(bags)
    for k, layer in enumerate(model.decoder):
        t, weights = layer(t, x, bags.sizes)
        close(weights.T[None], golden.expected(f"bag{b}.cross_att{k}"))
    close(t, golden.expected(f"bag{b}.decoder"))
    close(model(bags).extras["cross_attention"].T[None], golden.expected(f"bag{b}.cross_att1"))


@BAGS
def test_the_original_s_losses_and_every_gradient(golden, b):
    model = golden.model()
    bag = labelled(model, golden, b)
    bags = pack([bag])
    out = model(bags)
    losses = model.losses(out, bags)
    assert set(losses) == {"nll", "instance"} and model.loss_weights == {"instance": 5.0}
    close(losses["nll"], golden.expected(f"bag{b}.ce"))
    close(losses["instance"], golden.expected(f"bag{b}.partial_loss"))
    total = sum(losses.values())
    close(total, golden.expected(f"bag{b}.total"))
    # their evaluation log applies the softmax twice
    twice = F.cross_entropy(out.probability, bags.y)
    close(twice, golden.expected(f"bag{b}.ce_double_softmax"))
    assert set(golden.names(model).values()) == {k for k, _ in model.named_parameters()}
    golden.check_gradients(model, total, bag.x, b=b)


@BAGS
def test_a_step_of_the_original_s_memory(golden, b):
    """With more than two classes, `restrict_negative_bags` allows 0 and the bag's class."""
    model = golden.model()
    bags = pack([labelled(model, golden, b)])
    out = model(bags)
    assert not model.restrict and model.bank_epochs == 200
    model.restrict, model.warmup_epochs = True, 0
    model.start_epoch(100, 300)
    assert model._momentum == pytest.approx(golden.expected(f"bag{b}.conf_ema_m_epoch100").item())
    model.start_epoch(0, 300)
    model.after_step(out, bags)
    close(model.memory()[f"bag{b}"], golden.expected(f"bag{b}.confidence_after"))
    close(model.prototypes, golden.expected(f"bag{b}.prototypes_after"))


@BAGS
def test_the_original_s_labels_from_its_own_candidates(golden, b):
    new = softened(
        golden.tensors[f"bag{b}.confidence"],
        golden.expected(f"bag{b}.score_prot"),
        golden.tensors[f"bag{b}.partial_y"].bool(),
        momentum=0.95,
    )
    close(new, golden.expected(f"bag{b}.confidence_after"))


def test_a_class_with_two_bags_of_three(golden):
    """Return their batch of seven instances per bag; a mask hides the first from the prototypes."""
    model = golden.model()
    separate = [golden.bag(b, y=y) for b, y in enumerate((1, 0, 1))]
    nowhere = {"edges": torch.zeros(2, 0).long(), "weights": torch.zeros(0), "coords": None}
    seven = pack([replace(bag, x=bag.x.detach()[:7], **nowhere) for bag in separate])
    six = pack([replace(bag, x=bag.x.detach()[1:7], **nowhere) for bag in separate])
    out = model(seven)
    close(out.logits[:, 0], golden.expected("batch.logits"))
    keep = torch.arange(21) % 7 > 0
    model.after_step(replace(out, extras={k: v[keep] for k, v in out.extras.items()}), six)
    close(model.prototypes, golden.expected("batch.prototypes_after"))
    assert not model.memory()  # the first ten epochs do not update instance labels


# layers


def test_the_layers_are_pytorch_s():
    ours = PostNormLayer(8, heads=2, hidden=12).double()
    theirs = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double().eval()
    names = {"self_attn.in_proj_": "attention.qkv.", "self_attn.out_proj.": "attention.out.",
             "linear1": "feed.first", "linear2": "feed.second"}  # fmt: skip
    load(ours, theirs, names)
    x = torch.randn(9, 8, dtype=F64)
    want = torch.cat([theirs(part[None])[0] for part in x.split([2, 7])])
    torch.testing.assert_close(ours(x, (2, 7)), want, rtol=1e-12, atol=1e-12)


def test_the_query_layer_is_pytorch_s_decoder_layer():
    ours = QueryLayer(8, heads=2, hidden=12).double()
    theirs = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double()
    # torchmil numbers its norms in the order of use, the authors start with the second
    names = {"self_attn.in_proj_": "queries.qkv.", "self_attn.out_proj.": "queries.out.",
             "multihead_attn.in_proj_": "instances.qkv.", "norm1": "norm2", "norm2": "norm1",
             "multihead_attn.out_proj.": "instances.out.",
             "linear1": "feed.first", "linear2": "feed.second"}  # fmt: skip
    load(ours, theirs, names)
    x, t = torch.randn(9, 8, dtype=F64), torch.randn(2, 3, 8, dtype=F64)
    want = [theirs(t[k][None], part[None])[0] for k, part in enumerate(x.split([2, 7]))]
    got, weights = ours(t, x, (2, 7))
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-12, atol=1e-12)
    for part in weights.split([2, 7]):
        torch.testing.assert_close(part.sum(0), torch.ones(3, dtype=F64), rtol=1e-12, atol=0)


def load(ours, theirs, names):
    """Copy their random weights, biases and norms into our layer."""
    generator = torch.Generator().manual_seed(3)
    for p in theirs.parameters():
        nn.init.normal_(p, generator=generator)
    state = {}
    for key, value in theirs.state_dict().items():
        start = max((k for k in names if key.startswith(k)), key=len, default="")
        state[names.get(start, "") + key.removeprefix(start)] = value
    ours.load_state_dict(state, strict=True)


# prototypes and instance labels


def memory_step(model, bags, *, epoch=0, epochs=1):
    model.start_epoch(epoch, epochs)
    out = model(bags)
    model.after_step(out, bags)
    return out


def sequential(model, x, p, bags):
    """Compute specification 6.4 (a) instance by instance."""
    prototypes = model.prototypes.clone()
    of = bags.bag
    for c in range(model.instance_classes):
        of_class = [b for b in range(len(bags)) if int(bags.y[b]) == c]
        rows = [n for n in range(len(x)) if int(of[n]) in of_class]
        order = sorted(rows, key=lambda n: -float(p[n, c]))
        m = 1 - (1 - model.prototype_momentum) * len(bags) / max(len(of_class), 1)
        for n in order[: len(rows) // 10]:
            prototypes[c] = m * prototypes[c] + (1 - m) * x[n]
    return prototypes


def four_bags():
    sizes = (25, 9, 31, 4)
    return pack([random_bag(n, seed=k, features=6, y=k % 2) for k, n in enumerate(sizes)])


@pytest.mark.parametrize("classes", [1, 2])
def test_prototypes_move_to_the_surest_of_their_class(classes):
    model = build("iibmil", **SMALL, n_classes=classes).double()
    bags = four_bags()
    for step in range(3):
        with torch.no_grad():
            before = model.prototypes.clone()
        out = model(bags)
        p = out.extras["instance_logits"].softmax(1)
        want = sequential(model, out.extras["instance_features"], p.detach(), bags)
        model.after_step(out, bags)
        torch.testing.assert_close(model.prototypes, want, rtol=1e-12, atol=1e-13)
        moved = (model.prototypes - before).abs().amax(1) > 0
        assert moved.tolist() == [True, True], step
    assert not model.prototypes.requires_grad


def test_warm_up_moves_prototypes_and_no_labels():
    model = build("iibmil", **SMALL, warmup_epochs=2).double()
    bags = four_bags()
    for epoch in range(2):
        memory_step(model, bags, epoch=epoch, epochs=4)
        assert not model.memory() and model.prototypes.any()
    memory_step(model, bags, epoch=2, epochs=4)
    assert {k: len(v) for k, v in model.memory().items()} == dict(
        zip(bags.names, bags.sizes, strict=True)
    )


@pytest.mark.parametrize("classes", [1, 3])
def test_instance_labels_are_distributions_that_start_at_the_bag_s(classes):
    model = build("iibmil", **SMALL, n_classes=classes, warmup_epochs=0).double()
    c = model.instance_classes
    bags = pack([random_bag(20, seed=k, features=6, y=k % c) for k in range(4)])
    for k, labels in enumerate(model.confidence(bags)):
        want = torch.full((20, c), ALMOST / (c - 1), dtype=F64)
        want[:, k % c] = 1 - ALMOST
        torch.testing.assert_close(labels, want, rtol=1e-12, atol=0)
    for _ in range(30):
        memory_step(model, bags, epoch=1, epochs=2)
    for k, name in enumerate(bags.names):
        beta = model.memory()[name]
        torch.testing.assert_close(beta.sum(1), torch.ones(20, dtype=F64), rtol=1e-12, atol=0)
        assert beta.min().item() >= 0
        others = [j for j in range(c) if j not in (0, k % c)]
        assert beta[:, others].max().item() <= ALMOST if others else True
        if k % c == 0:  # a negative bag's instances stay negative
            assert beta[:, 0].min().item() >= 1 - ALMOST
    assert model.memory()[bags.names[1]][:, 0].max().item() > 0.9  # some of a positive bag's do not


def test_labels_use_the_prototypes_that_the_step_has_seen():
    model = build("iibmil", **SMALL, warmup_epochs=0, bank_momentum=(0.5, 0.5)).double()
    bags = four_bags()
    model.prototypes.copy_(torch.randn(2, 8, dtype=F64))
    out = memory_step(model, bags)
    score = out.extras["prototype_score"][25:34]  # bag 1 is positive
    want = 0.5 * torch.tensor([ALMOST, 1 - ALMOST], dtype=F64) + 0.5 * F.one_hot(
        (score > 0.5).long()
    )
    torch.testing.assert_close(model.memory()["bag1"], want, rtol=1e-12, atol=0)


def test_the_schedule_of_the_instance_labels_momentum():
    model = build("iibmil", **SMALL)
    seen = []
    for epoch, epochs in ((0, 100), (50, 100), (100, 100), (7, 10)):
        model.start_epoch(epoch, epochs)
        seen.append(model._momentum)
    assert seen == pytest.approx([0.95, 0.875, 0.8, 0.845])
    model = build("iibmil", **SMALL, bank_epochs=200)
    model.start_epoch(300, 400)
    assert model._momentum == pytest.approx(0.8)


def test_what_is_remembered_reaches_the_loss_and_nothing_else_does():
    model = build("iibmil", **SMALL, warmup_epochs=0).double().eval()
    bags = four_bags()
    out = model(bags)
    fresh = model.losses(out, bags)
    log_p = out.extras["instance_logits"].log_softmax(1)
    want = []
    for k, part in enumerate(log_p.split(list(bags.sizes))):
        beta = torch.full((2,), ALMOST, dtype=F64)
        beta[k % 2] = 1 - ALMOST
        want.append(-(part @ beta).mean())
    torch.testing.assert_close(fresh["instance"], torch.stack(want).mean(), rtol=1e-12, atol=0)
    assert not model.memory()  # neither a prediction nor its loss stores labels
    model.restore_memory({"bag1": torch.tensor([[0.3, 0.7]], dtype=F64).expand(9, 2)})
    part = log_p.split(list(bags.sizes))[1]
    want[1] = -(part @ torch.tensor([0.3, 0.7], dtype=F64)).mean()
    again = model.losses(out, bags)
    torch.testing.assert_close(again["instance"], torch.stack(want).mean(), rtol=1e-12, atol=0)
    assert torch.equal(again["nll"], fresh["nll"])


def test_two_bags_of_one_name_are_noticed():
    model = build("iibmil", **SMALL, warmup_epochs=0).double()
    memory_step(model, pack([random_bag(7, seed=1, features=6, y=1)]))
    other = pack([random_bag(5, seed=1, features=6, y=1)])
    with pytest.raises(BagError, match="'bag1' has 5 instances, but 7 instance labels are stored"):
        model.losses(model(other), other)


# a run


@pytest.mark.parametrize("inside", [False, True], ids=["between epochs", "inside an epoch"])
def test_two_epochs_and_two_more_are_four(tmp_path, inside):
    """Weights, prototypes, instance labels and optimiser state are equal bit for bit."""
    features, labels = write_folder(tmp_path / "data", bags=18)
    arguments = {**SMALL, "dropout": 0.2, "warmup_epochs": 1, "top_share": 0.3}
    del arguments["in_dim"]
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="iibmil",
        model_arguments=arguments,
        training=TrainingConfig(
            epochs=4, batch_size=4, learning_rate=0.01, device="cpu", tensorboard=False, threads=1
        ),
    )

    class Killed(Reporter):
        def epoch(self, row):
            if row["epoch"] == 2 and not inside:
                raise KeyboardInterrupt

        def step(self, *, epoch, share):
            if inside and epoch == 2 and share > 0.4:
                raise KeyboardInterrupt

    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", reporter=Killed())
    parts = train(config, tmp_path / "parts", resume=True)
    a, b = load_checkpoint(whole.last), load_checkpoint(parts.last)
    assert a.tensors.keys() == b.tensors.keys()
    assert all(torch.equal(v, b.tensors[k]) for k, v in a.tensors.items())
    assert a.tensors["model.prototypes"].any(1).all()
    bank = a.part("memory")
    assert set(bank) == set(prepare(config).split.train)  # but no validation bag
    # labels have changed, by steps that differ between epochs
    assert len({round(v, 4) for labels in bank.values() for v in labels.flatten().tolist()}) > 3


# options


CHANGES = {
    "embed": (8, 6),
    "width": 4,
    "layers": 2,
    "heads": 4,
    "hidden": 7,
    "queries": 2,
    "decoder_layers": 2,
    "decoder_heads": 4,
    "dropout": 0.5,
    "instance_weight": 2.0,
    "prototype_momentum": 0.5,
    "top_share": 0.3,
    "bank_momentum": (0.6, 0.3),
    "bank_epochs": 2,
    "warmup_epochs": 2,
    "restrict_negative_bags": False,
}


def after_three_epochs(**options):
    """Return losses, prediction and memory after a step that changes only the memory."""
    torch.manual_seed(0)
    model = build("iibmil", **{**SMALL, "warmup_epochs": 1, **options}).double()
    bags = some_bags()
    torch.manual_seed(1)
    for epoch in range(3):
        memory_step(model, bags, epoch=epoch, epochs=3)
    out = model(bags)
    losses = [model.loss_weights.get(k, 1.0) * v for k, v in model.losses(out, bags).items()]
    out = model.eval()(bags)
    parts = [torch.stack(losses), out.logits.flatten(), out.attention.mean]
    bank = [v.flatten() for _, v in sorted(model.memory().items())]
    return torch.cat([p.detach() for p in (*parts, model.prototypes.flatten(), *bank)])


@pytest.mark.parametrize("key", options_of("iibmil"))
def test_an_option_changes_the_result(key):
    plain, other = after_three_epochs(), after_three_epochs(**{key: CHANGES[key]})
    assert plain.shape != other.shape or (plain - other).abs().max().item() > 1e-6


# torchmil's network differs: a pre-norm encoder, a class token that attends to the bag


@BAGS
def test_torchmil_s_numbers_follow_from_its_own_formulas(shared_golden, b):
    reference = Golden(shared_golden, "torchmil_iibmil")
    state = reference.state
    x = reference.tensors[f"bag{b}.x"]
    encoder = TransformerLayer(32, 24, heads=4, out_proj=False)
    theirs = {"att_module.qkv_nn": "qkv", "att_proj": "skip", "mlp_module": "mlp"}
    converted = {}
    for key, value in reference.under("state.encoder.layers.0").items():
        start = max((k for k in theirs if key.startswith(k)), key=len, default="")
        converted[theirs.get(start, "") + key.removeprefix(start)] = value
    encoder.load_state_dict(converted, strict=True)

    def norm(v, where):
        return F.layer_norm(v, (24,), state[f"{where}.weight"], state[f"{where}.bias"])

    h = norm(encoder(x, (len(x),)), "encoder.norm")
    close(
        h, reference.expected(f"bag{b}.x_enc")
    )  # our encoder reproduces it, like torchmil's other transformers
    z = h @ state["inst_classifier.weight"][0] + state["inst_classifier.bias"]
    close(z, reference.expected(f"bag{b}.att_raw"))
    t = torch.cat([state["cls_token"][0], h])
    qkv = norm(t, "decoder.layers.0.norm1") @ state["decoder.layers.0.att_module.qkv_nn.weight"].T
    t = t + bag_attention(qkv.unflatten(1, (3, 4, -1)), (len(t),)).flatten(1)
    token = norm(t, "decoder.norm")[0]
    logit = token @ state["bag_classifier.weight"][0] + state["bag_classifier.bias"][0]
    close(logit, reference.expected(f"bag{b}.logit"))
    hard = (h @ state["prototypes"].T).argmax(1).float()  # it stores no soft labels
    loss = F.binary_cross_entropy_with_logits(z, hard)
    close(loss, reference.expected(f"bag{b}.loss.InstLoss"))
