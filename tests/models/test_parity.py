"""Our models with the originals' weights give the originals' numbers: values, losses, gradients.

The rule is that of the reference outputs: max|a − b| ≤ 2·10⁻⁵ max|ref| + 10⁻⁶, 10⁻⁴ for gradients.
"""

import re
from pathlib import Path

import pytest
import torch
from support.golden import Golden, close
from torch import Tensor

from probsa import Bag, pack
from probsa.layers import pool, pool_vectors
from probsa.models import Model, build
from probsa.models import arguments as arguments_of

PLAIN = {"embed": None, "in_dim": 32}
AUTHORS = {
    **PLAIN,
    "attention_dim": 8,
    "trunk": "mlp",
    "laplacian": "normalized",
    "ridge": 0.0,
    "log_variance_bounds": None,
}
ENCODER = {"layers": 2, "heads": 4, "out_proj": False, "add_self": True}
SETS = {
    "abmil_plain": ("abmil", {"in_dim": 500, "embed": None, "score_bias": True}),
    "abmil_gated": (
        "abmil",
        {"in_dim": 500, "embed": None, "score_bias": True, "trunk": "gated"},
    ),
    "torchmil_abmil": ("abmil", {**PLAIN, "attention_dim": 16}),
    "torchmil_abmil_gated": ("abmil", {**PLAIN, "attention_dim": 16, "trunk": "gated"}),
    "torchmil_smoothabmil": ("abmil-probsa-dirac", AUTHORS),
    "torchmil_probsmoothabmil_zero": ("abmil-probsa-dirac", AUTHORS),
    "torchmil_probsmoothabmil_diag": ("abmil-probsa-diag", AUTHORS),
    "torchmil_transformerabmil": ("tabmil", {**PLAIN, **ENCODER, "attention_dim": 8}),
    "torchmil_transformerabmil_noself": (
        "tabmil",
        {**PLAIN, **ENCODER, "attention_dim": 8, "trunk": "gated", "width": 16, "add_self": False},
    ),
    "torchmil_transformerprobsmoothabmil_zero": ("tabmil-probsa-dirac", {**AUTHORS, **ENCODER}),
    "torchmil_transformerprobsmoothabmil_diag": ("tabmil-probsa-diag", {**AUTHORS, **ENCODER}),
}
ENERGY = [name for name in SETS if "smooth" in name]
DIAGONAL = [name for name in SETS if name.endswith("diag")]
TORCHMIL = [name for name in SETS if name.startswith("torchmil")]

# rules from their parameter names to ours; the first match wins
NAMES = [
    (r"pool\.in_mlp\.0\.module\.", "attention.trunk.first."),
    (r"pool\.in_mlp\.2\.", "attention.trunk.second."),
    (r"pool\.mu_f_nn\.", "attention.mean."),
    (r"pool\.log_diag_Sigma_nn\.", "attention.log_variance."),
    (r"pool\.fc1\.module\.|attention\.0\.|attention_V\.0\.", "attention.trunk.first."),
    (r"pool\.fc_gated\.module\.|attention_U\.0\.", "attention.trunk.gate."),
    (r"pool\.fc2\.|attention\.2\.|attention_w\.", "attention.mean."),
    (r"classifier\.module\.|classifier\.0\.|last_layer\.", "classifier."),
    (r"transformer_encoder\.layers\.(\d)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.qkv."),
    (r"transformer_encoder\.layers\.(\d)\.att_proj\.", r"encoder.blocks.\1.skip."),
    (r"transformer_encoder\.layers\.(\d)\.mlp_module\.", r"encoder.blocks.\1.mlp."),
    (r"transformer_encoder\.layers\.\d\.out_proj\.", "encoder.back."),
    (r"transformer_encoder\.layers\.(\d)\.norm", r"encoder.blocks.\1.norm"),
    (r"transformer_encoder\.norm\.", "encoder.norm."),
]


def ours(theirs: str) -> str:
    for pattern, name in NAMES:
        if re.match(pattern, theirs):
            return re.sub(pattern, name, theirs, count=1)
    raise KeyError(theirs)


class Reference:
    """A reference set: their weights in our model, their bags and their numbers."""

    def __init__(self, folder, name: str) -> None:
        self.golden = Golden(folder, name)
        self.tensors = self.golden.tensors
        self.model: Model = self.golden.model()
        model, arguments = SETS[name]
        assert self.model.name == model
        assert arguments.items() <= {**self.defaults(model), **self.model.arguments}.items()
        self.order = self.golden.metadata["parameter_order"]

    @staticmethod
    def defaults(model: str) -> dict[str, object]:
        return {k: p.default for k, p in arguments_of(model).items()}

    def bag(self, b: int) -> Bag:
        return self.golden.bag(b)

    def noise(self, b: int) -> Tensor | None:
        return self.tensors.get(f"bag{b}.eps")

    def expected(self, what: str) -> Tensor:
        return self.golden.expected(what)

    def run(self, b: int):
        bags = pack([bag := self.bag(b)])
        return bag, bags, self.model(bags, noise=self.noise(b))


@pytest.fixture(scope="module", params=SETS)
def reference(request, shared_golden) -> Reference:
    return Reference(shared_golden, request.param)


@pytest.fixture
def named(request, shared_golden) -> Reference:
    return Reference(shared_golden, request.param)


def mean_path(reference, bags, out):
    """Return the logit at f = μ."""
    model, h = reference.model, reference.model.instances(bags)
    g = model.classifier.weight @ h.T
    return pool(out.attention.mean[None], g, bags.sizes) + model.classifier.bias


@pytest.mark.parametrize("b", [0, 1, 2])
def test_attention_and_logits(reference, b):
    _, _, out = reference.run(b)
    if "expected.bag0.mu" in reference.tensors:
        close(out.attention.mean, reference.expected(f"bag{b}.mu"))
    else:
        close(out.attention.mean, reference.expected(f"bag{b}.att_raw"))
        close(out.attention.mean.softmax(0), reference.expected(f"bag{b}.att"))
        close(out.probability[0, 0], reference.expected(f"bag{b}.prob"))
    # theirs is the mean of the logits over samples
    close(out.logits.mean(1)[0, 0], reference.expected(f"bag{b}.logit"))


@pytest.mark.parametrize("b", [0, 1, 2])
def test_losses_and_every_gradient(reference, b):
    bag, bags, out = reference.run(b)
    losses = reference.model.losses(out, bags)
    names = {"nll": "nll", "loss.BCEWithLogitsLoss": "nll", "loss.KLDiv": "kl",
             "loss.DirEnergy": "kl", "kl": "kl"}  # fmt: skip
    compared = set()
    for theirs, name in names.items():
        if f"expected.bag{b}.{theirs}" in reference.tensors:
            close(losses[name], reference.expected(f"bag{b}.{theirs}"))
            compared.add(name)
    assert compared == set(losses)

    parameters = dict(reference.model.named_parameters())
    grads = torch.autograd.grad(sum(losses.values()), [bag.x, *parameters.values()])
    close(grads[0], reference.expected(f"bag{b}.grad_x"), relative=1e-4)
    grads = dict(zip(parameters, grads[1:], strict=True))
    prefix = f"expected.bag{b}.grad."
    full = [k.removeprefix(prefix) for k in reference.tensors if k.startswith(prefix)]
    assert len(full) >= 2
    for k in full:
        close(grads[ours(k)], reference.expected(f"bag{b}.grad.{k}"), relative=1e-4)


@pytest.mark.parametrize("named", SETS, indirect=True)
def test_the_norm_of_every_gradient(named):
    order = named.order
    for b in range(3):
        _, bags, out = named.run(b)
        total = sum(named.model.losses(out, bags).values())
        parameters = dict(named.model.named_parameters())
        grads = dict(zip(parameters, torch.autograd.grad(total, parameters.values()), strict=True))
        want = named.expected(f"bag{b}.grad_norms")
        assert {ours(k) for k in order} == set(parameters)
        close(torch.stack([grads[ours(k)].norm() for k in order]), want, relative=1e-4)


@pytest.mark.parametrize("named", ENERGY, indirect=True)
@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_mean_path(named, b):
    _, bags, out = named.run(b)
    close(out.attention.mean.softmax(0), named.expected(f"bag{b}.mean_att"))
    close(mean_path(named, bags, out)[0, 0, 0], named.expected(f"bag{b}.mean_logit"))
    h = named.model.instances(bags)
    if f"expected.bag{b}.encoded" in named.tensors:
        close(h, named.expected(f"bag{b}.encoded"))
    z = pool_vectors(out.attention.mean[:, None], h, bags.sizes)
    close(z[0, 0], named.expected(f"bag{b}.mean_z"))


@pytest.mark.parametrize("named", DIAGONAL, indirect=True)
@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_variance_and_each_sample(named, b):
    _, _, out = named.run(b)
    close(out.attention.variance.log(), named.expected(f"bag{b}.log_var"))
    samples = named.expected(f"bag{b}.samples")
    # theirs are clipped at ±20 and ours are not, so compare those that were not clipped
    assert samples.abs().max().item() < 20
    f = out.attention.rsample(4, noise=named.noise(b))
    close(f, samples)
    close(f.softmax(0), named.expected(f"bag{b}.sample_att"))
    close(out.logits[0, :, 0], named.expected(f"bag{b}.sample_logits"))


@pytest.mark.parametrize("named", TORCHMIL, indirect=True)
def test_three_bags_at_once_without_padding(named):
    bags = pack([named.bag(b) for b in range(3)])
    noise = [named.noise(b) for b in range(3)]
    out = named.model(bags, noise=None if noise[0] is None else torch.cat(noise))
    close(out.logits.mean(1)[:, 0], named.expected("batch.logit"))
    losses = named.model.losses(out, bags)
    close(losses["nll"], named.expected("batch.loss.BCEWithLogitsLoss"))
    if "kl" in losses:
        # theirs counts padding in the mean; ours is the mean of the separate bags
        alone = torch.stack([named.expected(f"bag{b}.kl") for b in range(3)])
        close(losses["kl"], alone.mean())


# every reference set of an original; the files of the models compare losses, intermediate values
# and gradients

LOGITS = {"abmil_gated": "logit", "abmil_plain": "logit", "dtfd": "train.AFS.slide_logits"}


def originals(folder) -> list[str]:
    """Return the sets of whole models, without torchmil's copies and the separate loss."""
    names = sorted(p.stem for p in folder.glob("*.safetensors"))
    without = ("torchmil", "camil_tf", "smooth_top1_svm", "transmil_nystrom009")
    return [n for n in names if not n.startswith(without)]


def test_every_original_gives_its_logits_through_one_function(shared_golden):
    """Only name, state dict and constructor are given; bags are alone and in one batch of three."""
    names = originals(shared_golden)
    assert len(names) >= 20
    for name in names:
        golden = Golden(shared_golden, name)
        model = golden.model()
        assert not model.training
        bags = [golden.bag(b) for b in range(3)]
        noise = [order_of(golden, b) for b in range(3)]
        singles = [model(pack([bag]), noise=n) for bag, n in zip(bags, noise, strict=True)]
        for b, out in enumerate(singles):
            if name == "vmil":  # it has no bag logit, only the instances' probabilities
                close(out.attention.mean, golden.expected(f"bag{b}.p"))
            else:
                want = golden.expected(f"bag{b}.{LOGITS.get(name, 'logits')}")
                close(out.logits[0, 0].reshape(want.shape), want)
        together = model(pack(bags), noise=None if noise[0] is None else torch.cat(noise))
        alone = torch.cat([out.logits for out in singles])
        torch.testing.assert_close(together.logits, alone, rtol=1e-5, atol=1e-5)


def order_of(golden, b: int) -> Tensor | None:
    """Return noise that sorts the instances into DTFD's order."""
    if f"bag{b}.perm" not in golden.tensors:
        return None
    order = golden.tensors[f"bag{b}.perm"]
    noise = torch.empty(len(order))
    noise[order] = torch.arange(len(order), dtype=noise.dtype)
    return noise[:, None]


def test_every_set_of_reference_outputs_is_compared_with(shared_golden):
    """The name of each set occurs in a test of this folder."""
    texts = "\n".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    sets = sorted(p.stem for p in shared_golden.glob("*.safetensors"))
    assert sets
    assert [name for name in sets if not re.search(rf"\b{name}\b", texts)] == []


# specification of the local baselines, 10.1 and 10.2


def q(key: str, *shape: int) -> Tensor:
    k = torch.arange(torch.Size(shape).numel())
    s = sum(map(ord, key))
    values = ((31 * k * k + 7919 * k + 104729 * s) % 10007).double() * 2 / 10007 - 1
    scale = 2 / torch.Size(shape[1:]).numel() ** 0.5 if len(shape) > 1 else 0.1
    return (scale * values).reshape(shape)


def features(n: int, p: int) -> Tensor:
    k = torch.arange(n * p)
    return (((57 * k * k + 3571 * k + 17) % 10009).double() * 2 / 10009 - 1).reshape(n, p)


BIASED = [-0.75310272, -1.2338991, -0.093181085, -0.027414805, 0.5008145, 0.061279163]
GATED = [-0.43123034, -0.65673221, -0.13980292, -0.055326066, 0.16829622, 0.053159741]
FREE = [-0.64635927, -1.1224028, 0.014151557, 0.094390871, 0.61927227, 0.17989976]
Z_BIASED = [-0.30527043, 0.2361249, -0.2641101, 0.29119286,
            -0.16348315, 0.12905007, 0.24727119, -0.030412254]  # fmt: skip
Z_GATED = [-0.32499822, 0.16069051, -0.31568872, 0.27981921,
           -0.15100102, 0.092770227, 0.15409338, -0.0097830011]  # fmt: skip


@pytest.mark.parametrize(
    ("trunk", "biases", "f", "logit", "z"),
    [
        ("tanh", False, FREE, 0.069055666, None),
        ("tanh", True, BIASED, 0.071048665, Z_BIASED),
        ("gated", True, GATED, 0.084997866, Z_GATED),
    ],
)
def test_golden_abmil(trunk, biases, f, logit, z):
    model = build("abmil", in_dim=8, embed=None, attention_dim=4, trunk=trunk, score_bias=True)
    state = {
        "attention.trunk.first.weight": q("V.weight", 4, 8),
        "attention.trunk.first.bias": q("V.bias", 4) * biases,
        "attention.mean.weight": q("w.weight", 1, 4),
        "attention.mean.bias": q("w.bias", 1) * biases,
        "classifier.weight": q("c.weight", 1, 8),
        "classifier.bias": q("c.bias", 1),
    }
    if trunk == "gated":
        state["attention.trunk.gate.weight"] = q("U.weight", 4, 8)
        state["attention.trunk.gate.bias"] = q("U.bias", 4)
    model.double().load_state_dict(state, strict=True)
    x = features(6, 8)
    bags = pack([Bag(name="a", x=x, edges=torch.zeros(2, 0).long(), weights=torch.zeros(0))])
    out = model(bags)
    assert out.attention.mean.tolist() == pytest.approx(f, abs=1e-6)
    assert out.logits.item() == pytest.approx(logit, abs=1e-6)
    if z is not None:
        pooled = pool_vectors(out.attention.mean[:, None], x, bags.sizes)
        assert pooled.flatten().tolist() == pytest.approx(z, abs=1e-6)
