"""Our models with the originals' weights give the originals' numbers: values, losses, gradients.

The rule is that of the reference outputs: max|a − b| ≤ 2·10⁻⁵ max|ref| + 10⁻⁶, 10⁻⁴ for gradients.
The files of the models compare intermediate values.
"""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from torch import Tensor

from probsa import pack
from probsa.layers import pool, pool_vectors
from probsa.variational import objective

TORCHMIL = [
    *("abmil_gated", "abmil_plain", "torchmil_abmil", "torchmil_abmil_gated", "torchmil_camil"),
    "torchmil_clam_sb",
    *("torchmil_dsmil", "torchmil_dtfdmil_afs", "torchmil_dtfdmil_max"),
    *("torchmil_dtfdmil_maxmin", "torchmil_gtp", "torchmil_patchgcn"),
    *("torchmil_probsmoothabmil_diag", "torchmil_probsmoothabmil_zero", "torchmil_smabmil_early"),
    *("torchmil_smabmil_early_spectral", "torchmil_smabmil_exact", "torchmil_smabmil_late"),
    *("torchmil_smabmil_mid", "torchmil_smoothabmil", "torchmil_smtransformerabmil"),
    *("torchmil_transformerabmil", "torchmil_transformerabmil_noself"),
    "torchmil_transformerprobsmoothabmil_diag",
    "torchmil_transformerprobsmoothabmil_zero",
    "torchmil_transmil",
]
"""Sets with one logit and the same names of their values."""
LOSSES = {
    "nll": "nll",
    "kl": "kl",
    "loss.BCEWithLogitsLoss": "nll",
    "loss.KLDiv": "kl",
    "loss.DirEnergy": "kl",
    "loss.MinCutLoss": "mincut",
    "loss.OrthoLoss": "ortho",
    "loss.BCEWithLogitsLoss_max": "instance",
    # of DTFD-MIL; torchmil's names are swapped
    "loss.BCEWithLogitsLoss_t1": "nll",
    "loss.BCEWithLogitsLoss_t2": "group_nll",
}
"""Our names of their losses."""
SCORES = {"torchmil_dtfdmil": "cam", "torchmil_dsmil": "weight_mean", "torchmil_gtp": None}
"""Extras that are their raw attention; torchmil's GraphCAM is in test_graphcam.py."""


def extra_names(golden: Golden, model) -> tuple[dict[str, str], dict]:
    """Return their parameters of another shape, with our name and the conversion of gradients."""
    if golden.name == "torchmil_dsmil":
        return {"bag_classifier.weight": "classifier.weight"}, {
            "bag_classifier.weight": lambda g: g[0]
        }
    if golden.name == "torchmil_gtp":
        name = "gcn_conv.fc.module.weight"
        return {name: "gcn.weight"}, {name: lambda g: g.T}
    if golden.name == "torchmil_patchgcn":
        return {f"mlp.0.0.module.{k}": f"phi.net.0.{k}" for k in ("weight", "bias")}, {}
    # Sm has γ = e^∓logit, d/dγ = ∓ 1/γ d/dlogit
    sign = 1 if golden.constructor.get("sm_mode") == "exact" else -1
    state = golden.state
    return {}, {
        k: lambda g, k=k: sign * g / state[k] for k in golden.names(model) if k.endswith("sm.coef")
    }


def scores(golden: Golden, out) -> Tensor | None:
    """Return what their raw attention is in our output."""
    for start, extra in SCORES.items():
        if golden.name.startswith(start):
            return None if extra is None else out.extras[extra]
    return out.attention.mean


@pytest.fixture(scope="module", params=TORCHMIL)
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


def run(golden: Golden, b: int):
    """Return our model, a bag, and the output for it with their noise."""
    model, bags = golden.model(), pack([bag := golden.bag(b)])
    return model, bag, bags, model(bags, noise=golden.noise(b))


@pytest.mark.parametrize("b", [0, 1, 2])
def test_scores_logits_losses_and_every_gradient(golden, b):
    model, bag, bags, out = run(golden, b)
    shown = scores(golden, out)
    if shown is not None and not golden.has(f"bag{b}.mu"):
        close(shown, golden.expected(f"bag{b}.att_raw"))
        if golden.name != "torchmil_dsmil":  # despite their name, theirs are after the softmax
            close(shown.softmax(0), golden.expected(f"bag{b}.att"))
    elif golden.has(f"bag{b}.mu"):
        close(out.attention.mean, golden.expected(f"bag{b}.mu"))
    # theirs is the mean of the logits over samples
    close(out.logits.mean(1)[0, 0], golden.expected(f"bag{b}.logit"))
    if out.logits.shape[1] == 1:
        close(out.probability[0, 0], golden.expected(f"bag{b}.prob"))
    losses = model.losses(out, bags)
    compared = set()
    for theirs, name in LOSSES.items():
        if golden.has(f"bag{b}.{theirs}"):
            close(losses[name], golden.expected(f"bag{b}.{theirs}"))
            compared.add(name)
    # torchmil's instance loss of CLAM is no SVM of each instance, and its gradients contain it;
    # the queries and keys of its CAMIL are one parameter: test_camil.py
    is_clam = golden.name == "torchmil_clam_sb"
    assert compared == set(losses) - ({"instance"} if is_clam else set())
    if is_clam or golden.name == "torchmil_camil":
        return
    more, adjust = extra_names(golden, model)
    names = {**golden.names(model), **more}
    assert set(names.values()) == {k for k, _ in model.named_parameters()}
    total = sum(losses.values())
    golden.check_gradients(model, total, bag.x, b=b, ours=names, adjust=adjust)


UNBATCHED = (
    "abmil",
    "torchmil_camil",
    "torchmil_clam",
    "torchmil_dtfdmil",
    "torchmil_smtransf",
    "torchmil_transmil",
)
"""Sets without a batch of three bags."""


@pytest.mark.parametrize(
    "golden", [n for n in TORCHMIL if not n.startswith(UNBATCHED)], indirect=True
)
def test_three_bags_at_once_without_padding(golden):
    model = golden.model()
    bags = pack([golden.bag(b) for b in range(3)])
    noise = [golden.noise(b) for b in range(3)]
    out = model(bags, noise=None if noise[0] is None else torch.cat(noise))
    losses = model.losses(out, bags)
    if golden.name == "torchmil_dsmil":  # padding may be its critical instance
        alone = torch.stack([golden.expected(f"bag{b}.logit") for b in range(3)])
        close(out.logits[:, 0, 0], alone)
        return
    close(out.logits.mean(1)[:, 0], golden.expected("batch.logit"))
    for theirs, name in LOSSES.items():
        if golden.has(f"batch.{theirs}") and name != "kl":
            close(losses[name], golden.expected(f"batch.{theirs}"))
    if "kl" in losses:
        # theirs counts padding in the mean; ours is the mean of the separate bags
        alone = torch.stack([golden.expected(f"bag{b}.kl") for b in range(3)])
        close(losses["kl"], alone.mean())
    if scores(golden, out) is not None:
        padded = golden.expected("batch.att_raw")
        parts = scores(golden, out).split(list(bags.sizes))
        for actual, want in zip(parts, padded, strict=True):
            if not out.attention.stochastic and "smooth" not in golden.name:
                close(actual, want[: len(actual)])


ENERGY = [name for name in TORCHMIL if "smooth" in name]


@pytest.mark.parametrize("golden", ENERGY, indirect=True)
@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_mean_path_the_variance_and_each_sample(golden, b):
    model, _, bags, out = run(golden, b)
    mean = out.attention.mean
    close(mean.softmax(0), golden.expected(f"bag{b}.mean_att"))
    h = model.instances(bags)
    logit = pool(mean[None], model.classifier.weight @ h.T, bags.sizes)
    close((logit + model.classifier.bias)[0, 0, 0], golden.expected(f"bag{b}.mean_logit"))
    if golden.has(f"bag{b}.encoded"):
        close(h, golden.expected(f"bag{b}.encoded"))
    z = pool_vectors(mean[:, None], h, bags.sizes)
    close(z[0, 0], golden.expected(f"bag{b}.mean_z"))
    if not golden.has(f"bag{b}.log_var"):
        return
    close(out.attention.variance.log(), golden.expected(f"bag{b}.log_var"))
    samples = golden.expected(f"bag{b}.samples")
    # theirs are clipped at ±20 and ours are not, so compare those that were not clipped
    assert samples.abs().max().item() < 20
    f = out.attention.rsample(4, noise=golden.noise(b))
    close(f, samples)
    close(f.softmax(0), golden.expected(f"bag{b}.sample_att"))
    close(out.logits[0, :, 0], golden.expected(f"bag{b}.sample_logits"))


def survival_losses(logits: Tensor, y: int, *, censored: Tensor) -> dict[str, Tensor]:
    """Return the loss of Patch-GCN's repository over time bins, which the package does not have.

    It is −log of the hazard at bin y after surviving earlier bins, or of surviving bin y.
    """
    hazards = logits.sigmoid()
    s = torch.cat([torch.ones(1), (1 - hazards).cumprod(0)]).clamp_min(1e-7).log()
    event = -(1 - censored) * (s[y] + hazards[y].clamp_min(1e-7).log())
    alphas = {"nll_surv_a0": 0.0, "nll_surv_a04": 0.4}
    return {k: (1 - a) * (event - censored * s[y + 1]) + a * event for k, a in alphas.items()}


def survival(golden: Golden, model, bags, out) -> dict[str, Tensor]:
    f = out.attention.mean
    logits = out.logits[0]
    b = bags.names[0]
    nll = survival_losses(logits[0], int(bags.y[0]), censored=golden.expected(f"{b}.censor"))
    ce = model.losses(out, bags)["nll"]
    return {
        "att_raw": f,
        "att": f.softmax(0),
        "pooled": pool_vectors(f[:, None], model.instances(bags), bags.sizes)[:, 0],
        "logits": logits,
        "hazards": logits.sigmoid(),
        "S": (1 - logits.sigmoid()).cumprod(1),
        "y_hat": logits.argmax(1),
        "ce": ce,
        **nll,
        "total": nll["nll_surv_a0"] + (ce if model.name == "patchgcn" else 0.0),
    }


def patchgcn(golden: Golden, model, bags, out) -> dict[str, Tensor]:
    convolved = []  # the convolutions alone, before the norms
    hooks = [
        layer.conv.register_forward_hook(lambda *a: convolved.append(a[2]))
        for layer in model.layers
    ]
    h0, conv0, layer1, layer2 = x = model.graph(bags)
    for hook in hooks:
        hook.remove()
    layers = {"h0": h0, "conv0": conv0, "layer1": layer1, "layer2": layer2}
    convolutions = dict(zip(("conv1", "conv2"), convolved[1:], strict=True))
    values = survival(golden, model, bags, out)
    return {**values, **layers, **convolutions, "cat": torch.cat(x, 1)}


def dsmil(golden: Golden, model, bags, out) -> dict[str, Tensor]:
    losses = model.losses(out, bags)
    return {
        "critical": out.extras["critical"][0],
        "inst_logits": out.attention.mean,
        "att_raw": out.extras["attention"] * math.sqrt(128),
        "att": out.extras["weight_mean"],
        "B": out.extras["bag_vectors"],
        "max_logits": out.extras["max_logits"],
        "logits": out.logits[:, 0],
        "prob": out.probability,
        # the original sums the probabilities of both streams
        "prob_average": 2 * golden.model(bag_score="mean_prob")(bags).probability,
        "bag_loss": losses["nll"],
        "max_loss": losses["instance"],
        "total": objective(losses, weights=model.loss_weights, kl_weight=1.0),
    }


def iibmil(golden: Golden, model, bags, out) -> dict[str, Tensor]:
    b = bags.names[0]
    model.restore_memory({b: golden.tensors[f"{b}.confidence"]})
    losses = model.losses(out, bags)
    assert model.loss_weights == {"instance": 5.0}
    t = model.queries[None]
    x = model.instances(bags)
    cross = {}
    for k, layer in enumerate(model.decoder):
        t, weights = layer(t, x, bags.sizes)
        cross[f"cross_att{k}"] = weights.T
    close(out.extras["cross_attention"].T, cross["cross_att1"])
    close(out.attention.mean, golden.expected(f"{b}.inst_logits")[0].softmax(1))
    return {
        **cross,
        "decoder": t,
        "inst_logits": out.extras["instance_logits"],
        "x_instance": out.extras["instance_features"],
        "score_prot": out.extras["prototype_score"],
        "logits": out.logits[0],
        "prob": out.probability,
        "ce": losses["nll"],
        "partial_loss": losses["instance"],
        # their evaluation log applies the softmax twice
        "ce_double_softmax": F.cross_entropy(out.probability, bags.y),
        "total": sum(losses.values()),
    }


def transmil(golden: Golden, model, bags, out) -> dict[str, Tensor]:
    encoder = model.encoder
    n = bags.sizes[0]
    (x,) = encoder.tokens(model.embed(bags.x), bags.sizes)
    actual = {"seq1": x}
    count = len(x)
    for k, block in enumerate(encoder.blocks, 1):
        (attention,) = block.look(x, [count])
        x = actual[f"after_layer{k}"] = block(x, [count])
        # theirs cover the padded sequence, ours only the tokens
        rows = golden.expected(f"{bags.names[0]}.attn_layer{k}_cls")[:, -count:]
        close(attention.row(-count)[-count:].T, rows)
        if k == 1:
            x = actual["after_ppeg"] = encoder.ppeg(x, [count])
    close(out.attention.mean, rows.mean(0)[1 : n + 1])
    return {
        **actual,
        "cls_norm": encoder.norm(x[0]),
        "logits": out.logits[0, 0],
        "prob": out.probability[0],
        "y_hat": out.logits.argmax(),
        "loss": model.losses(out, bags)["nll"],
    }


AUTHORS = {
    "ckpt_patchgcn_repo_amil_blca0": survival,
    "patchgcn": patchgcn,
    "patchgcn_biasmlp": patchgcn,
    **dict.fromkeys(("dsmil_c1", "dsmil_c2", "dsmil_c3_linear_v", "ckpt_dsmil_c16"), dsmil),
    "iibmil": iibmil,
    "transmil_nystrom014": transmil,
}
"""The values of their sets; CLAM, DTFD-MIL, GTP, SETMIL and VMIL have files of their own."""


@pytest.mark.parametrize("b", [0, 1, 2])
@pytest.mark.parametrize("name", AUTHORS)
def test_every_value_loss_and_gradient_of_the_authors(shared_golden, name, b):
    golden = Golden(shared_golden, name)
    model, bag, bags, out = run(golden, b)
    values = AUTHORS[name](golden, model, bags, out)
    for key, value in values.items():
        want = golden.expected(f"bag{b}.{key}")
        if want.is_floating_point():
            close(value.reshape(want.shape), want)
        else:
            assert torch.equal(value.reshape(want.shape), want), key
    assert set(golden.names(model).values()) == {k for k, _ in model.named_parameters()}
    total = values.get("total", values.get("loss"))
    golden.check_gradients(model, total, bag.x, b=b)


def test_every_set_of_reference_outputs_is_compared_with(shared_golden):
    """The name of each set occurs in a test of this folder."""
    texts = "\n".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    sets = sorted(p.stem for p in shared_golden.glob("*.safetensors"))
    assert sets
    assert [name for name in sets if not re.search(rf"\b{name}\b", texts)] == []


def q(key: str, *shape: int) -> Tensor:
    k = torch.arange(torch.Size(shape).numel())
    s = sum(map(ord, key))
    values = ((31 * k * k + 7919 * k + 104729 * s) % 10007).double() * 2 / 10007 - 1
    scale = 2 / torch.Size(shape[1:]).numel() ** 0.5 if len(shape) > 1 else 0.1
    return (scale * values).reshape(shape)


def features(n: int, p: int) -> Tensor:
    k = torch.arange(n * p)
    return (((57 * k * k + 3571 * k + 17) % 10009).double() * 2 / 10009 - 1).reshape(n, p)
