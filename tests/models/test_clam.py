"""CLAM equals the original and a plain loop; layouts of checkpoints; differences of torchmil."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from support.options import some_bags
from support.random_bags import F64, random_bag
from torch import Tensor

from probsa import pack
from probsa.layers import pool_vectors
from probsa.layers.smooth_svm import smooth_top1_svm
from probsa.models import build
from probsa.variational import Diagonal, objective

SINGLE = ["clam_sb_gated", "clam_sb_plain", "ckpt_clam_sb"]
MULTI = ["clam_mb_gated", "clam_mb_plain"]
NAMES = ["clam-sb", "clam-mb", "clam-sb-probsa-diag"]
SMALL = {"in_dim": 6, "embed": 8, "attention_dim": 4, "k_sample": 2}
BAGS = [0, 1, 2]


@pytest.fixture(scope="module", params=[*SINGLE, *MULTI])
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.mark.parametrize("b", BAGS)
def test_every_value(golden, b):
    model = golden.model()
    assert model.name == ("clam-mb" if golden.name in MULTI else "clam-sb")
    bags = pack([golden.bag(b)])
    out = model(bags)
    f = out.attention.mean if golden.name in MULTI else out.attention.mean[:, None]
    h = model.instances(bags)
    close(h, golden.expected(f"bag{b}.h"))
    close(f.T, golden.expected(f"bag{b}.att_raw"))
    close(f.softmax(0).T, golden.expected(f"bag{b}.att"))
    close(pool_vectors(f, h, bags.sizes)[0], golden.expected(f"bag{b}.features"))
    close(out.logits[:, 0], golden.expected(f"bag{b}.logits"))
    close(out.probability, golden.expected(f"bag{b}.prob"))
    assert out.probability.argmax().item() == golden.expected(f"bag{b}.y_hat").item()
    instance = out.extras["instance_logits"].transpose(0, 1)
    close(instance, golden.expected(f"bag{b}.inst_logits"))


@pytest.mark.parametrize("subtyping", [False, True])
@pytest.mark.parametrize("loss", ["ce", "svm"])
@pytest.mark.parametrize("b", BAGS)
def test_the_instance_loss(golden, b, loss, subtyping):
    model = golden.model(inst_loss=loss, subtyping=subtyping)
    bags = pack([golden.bag(b)])
    out = model(bags)
    key = f"bag{b}.{loss}.{'sub' if subtyping else 'nosub'}"
    close(model.losses(out, bags)["instance"], golden.expected(f"{key}.instance_loss"))
    chosen = list(model.evidence.choose(out.attention.mean, bags.y, bags.sizes))
    chosen.sort(key=lambda c: c.classes[0].item())
    logits = out.extras["instance_logits"]
    called = [logits[c.rows, c.classes].argmax(1) for c in chosen]
    assert torch.equal(torch.cat(called), golden.expected(f"{key}.inst_preds"))
    targets = torch.cat([c.targets for c in chosen])
    assert torch.equal(targets, golden.expected(f"{key}.inst_labels"))


@pytest.mark.parametrize("loss", ["ce", "svm"])
@pytest.mark.parametrize("b", BAGS)
def test_bag_loss_total_and_every_gradient(golden, b, loss):
    model = golden.model(inst_loss=loss, subtyping=loss == "svm")
    bags = pack([bag := golden.bag(b)])
    out = model(bags)
    terms = model.losses(out, bags)
    if loss == "svm":  # theirs for the bag as well
        terms["nll"] = smooth_top1_svm(out.logits[:, 0], bags.y.long()).mean()
    close(terms["nll"], golden.expected(f"bag{b}.bag_loss.{loss}"))
    total = objective(terms, weights=model.loss_weights, kl_weight=1.0)
    close(total, golden.expected(f"bag{b}.total.{loss}"))
    key = "svm." if loss == "svm" else ""
    golden.check_gradients(model, total, bag.x, b=b, key=key)
    if golden.name in MULTI:
        order = golden.metadata["parameter_order"]
        norms = golden.expected(f"bag{b}.{key}grad_norms")
        for part in ("weight", "bias"):
            (grad,) = torch.autograd.grad(
                total, [model.get_parameter(f"classifier.{part}")], retain_graph=True
            )
            rows = torch.stack([g.norm() for g in grad])
            at = [order.index(f"classifiers.{c}.{part}") for c in range(len(rows))]
            close(rows, norms[at], relative=1e-4)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("b", BAGS)
def test_the_svm_and_its_gradient(shared_golden, b, tau):
    golden = Golden(shared_golden, "smooth_top1_svm")
    s = golden.tensors[f"bag{b}.x"].clone().requires_grad_()
    y = golden.tensors[f"bag{b}.y_inst"]
    loss = smooth_top1_svm(s, y, tau=tau)
    close(loss.mean(), golden.expected(f"bag{b}.loss.tau{tau}"))
    (grad,) = torch.autograd.grad(loss.mean(), s)
    close(grad, golden.expected(f"bag{b}.grad.tau{tau}"), relative=1e-4)
    smooth = golden.expected(f"bag{b}.smooth.tau{tau}").bool()
    first, second = s.topk(2, dim=1).values.T
    assert torch.equal(first - second < tau * math.log(1000), smooth)
    # in the hard case the loss is the maximum itself
    m = s + F.one_hot(y, s.shape[1]).logical_not() - s.gather(1, y[:, None])
    torch.testing.assert_close(loss[~smooth], m.amax(1)[~smooth])


def by_hand(out, bags, *, k: int, classes: int, subtyping: bool) -> Tensor:
    per_bag = []
    start = 0
    for n, y in zip(bags.sizes, bags.y.tolist(), strict=True):
        rows = range(start, start + n)
        start += n
        total = torch.zeros((), dtype=F64)
        for c in range(classes):
            if c != y and not subtyping:
                continue
            f = out.attention.mean
            f = f if f.ndim == 1 else f[:, min(c, f.shape[1] - 1)]
            by_attention = sorted(rows, key=lambda i, f=f: -f[i].item())
            pairs = [(i, int(c == y)) for i in by_attention[:k]]
            if c == y:
                pairs += [(i, 0) for i in by_attention[-k:]]
            logits = out.extras["instance_logits"]
            nll = [-logits[i, c].log_softmax(0)[t] for i, t in pairs]
            total = total + torch.stack(nll).mean()
        per_bag.append(total / classes if subtyping else total)
    return torch.stack(per_bag).mean()


@pytest.mark.parametrize("subtyping", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_small_bags_overlaps_and_one_logit(name, classes, subtyping):
    """The bags have one instance, fewer than k, overlapping ends (k < N < 2k), and enough."""
    model = build(name, **{**SMALL, "k_sample": 5}, n_classes=classes, subtyping=subtyping)
    separate = [
        random_bag(n, seed=n, features=6, y=n % max(classes, 2)) for n in (1, 3, 7, 20, 5, 30)
    ]
    bags = pack(separate)
    out = model.double()(bags)
    assert out.attention.mean.shape == ((45 + 21, classes) if name == "clam-mb" else (66,))
    want = by_hand(out, bags, k=5, classes=max(classes, 2), subtyping=subtyping)
    torch.testing.assert_close(model.losses(out, bags)["instance"], want)


def test_prior_and_posterior_come_from_elsewhere():
    """CLAM with a posterior has the same weights and instances, and one more loss term."""
    torch.manual_seed(0)
    plain = build("clam-sb", **SMALL).double()
    torch.manual_seed(0)
    probsa = build("clam-sb-probsa-diag", **SMALL, samples=3, ridge=0.1).double()
    weights = probsa.state_dict()
    assert all(torch.equal(v, weights[k]) for k, v in plain.state_dict().items())
    bags = some_bags()
    a, b = plain(bags), probsa(bags)
    assert isinstance(b.attention, Diagonal)
    torch.testing.assert_close(a.attention.mean, b.attention.mean)
    terms = plain.losses(a, bags)
    more = probsa.losses(b, bags)
    assert set(more) == {"nll", "instance", "kl"}
    torch.testing.assert_close(terms["instance"], more["instance"])
    each = b.attention.kl(probsa.prior, bags) / torch.tensor(bags.sizes)
    torch.testing.assert_close(more["kl"], each.mean())
    assert probsa.loss_weights == pytest.approx({"nll": 0.7, "instance": 0.3})
    # without noise and without the KL it is CLAM
    quiet = probsa(bags, noise=torch.zeros(19, 1, dtype=F64))
    torch.testing.assert_close(quiet.logits, a.logits)
    assert "edges" in probsa.needs and "edges" not in plain.needs


def test_dropout_brings_that_of_the_attention():
    def rates(**options) -> list[float]:
        model = build("clam-sb", **SMALL, **options)
        return [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]

    assert rates() == [0.0]
    assert rates(dropout=0.1) == [0.1, 0.25]
    assert rates(preset="original") == [0.25, 0.25]
