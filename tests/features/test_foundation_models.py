"""Foundation models: their cards' values, and the way from a file of weights to features.

None of their weights is needed. At full size each is built without memory, for its width, its
number of parameters and its keys. With one or two layers, otherwise as it is, each is saved, loaded
through `weights=` and compared with the recipe of its card, written out here from the card.
"""

import dataclasses
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from probsa import features
from probsa.errors import WeightsError
from probsa.features import _registry, published
from probsa.features._registry import construct

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPTIMUS = ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517))


class CardValues(NamedTuple):
    """What the makers of an encoder state."""

    source: str
    """Where they state it."""
    width: int
    millions: int
    """Millions of parameters."""
    key: str
    """A key of the weights."""
    shape: tuple[int, ...]
    """The shape of the weights under this key."""
    size: int = 224
    resize: int | None = None
    resampling: str = "bicubic"
    mean_and_std: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET
    licence: str = "non-commercial"
    """A word of the licence."""
    gated: bool = True


CARDS = {
    "uni2-h": CardValues(
        source="https://huggingface.co/MahmoodLab/UNI2-h and github.com/mahmoodlab/UNI, README",
        width=1536,
        millions=681,
        key="reg_token",
        shape=(1, 8, 1536),
        resampling="bilinear",
    ),
    "virchow2": CardValues(
        source="https://huggingface.co/paige-ai/Virchow2: model card, config.json",
        width=2560,
        millions=632,
        key="blocks.31.mlp.fc1.weight",
        shape=(6832, 1280),
    ),
    "h-optimus-1": CardValues(
        source="https://huggingface.co/bioptimus/H-optimus-1: model card, config.json",
        width=1536,
        millions=1135,
        key="reg_token",
        shape=(1, 4, 1536),
        mean_and_std=OPTIMUS,
    ),
    "conch-v1.5": CardValues(
        source="https://huggingface.co/MahmoodLab/conchv1_5 and /TITAN: conch_config",
        width=768,
        millions=307,
        key="attn_pool_contrast.to_kv.weight",
        shape=(1536, 1024),
        size=448,
        resampling="bilinear",
    ),
    "phikon-v2": CardValues(
        source="https://huggingface.co/owkin/phikon-v2: config.json, preprocessor_config.json",
        width=1024,
        millions=303,
        key="embeddings.position_embeddings",
        shape=(1, 197, 1024),
        gated=False,
    ),
    "gigapath": CardValues(
        source="github.com/prov-gigapath/prov-gigapath, README",
        width=1536,
        millions=1135,
        key="patch_embed.proj.weight",
        shape=(1536, 3, 16, 16),
        resize=256,
        licence="Research use only",
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_card_and_the_network_are_what_the_makers_say(name):
    card = CARDS[name]
    row = features.describe(name)
    assert (row["width"], row["input"], row["resize"]) == (card.width, card.size, card.resize)
    assert row["resampling"] == card.resampling
    assert (row["mean"], row["std"]) == card.mean_and_std
    assert card.licence in str(row["licence"])
    assert row["gated"] is card.gated and row["extra"] == "encoders"
    encoder = construct(name)
    assert {p.device.type for p in encoder.core.parameters()} == {"meta"}
    parameters = sum(p.numel() for p in encoder.core.parameters())
    assert abs(parameters / 1e6 - card.millions) < 1
    assert tuple(encoder.core.state_dict()[card.key].shape) == card.shape
    assert encoder.width == card.width
    with pytest.raises(WeightsError, match=f"https://huggingface.co/{row['weights']}"):
        features.build(name)


# with few layers: two for the lightest network of each library, one for the others

TWO = ("conch-v1.5", "phikon-v2")


@pytest.fixture
def shallow(monkeypatch):
    """Registers an encoder with few layers, under its own name."""
    features.names()
    monkeypatch.setattr(_registry, "_registered", dict(_registry._registered))

    def cut(name: str) -> str:
        entry = _registry._registered[name]
        fixed = {**entry.fixed, "depth": 2 if name in TWO else 1}
        _registry._registered[name] = dataclasses.replace(entry, fixed=fixed)
        return name

    return cut


def random_state(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of a size that keeps every part of the network at work."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, empty in construct(name).core.state_dict().items():
        values = torch.randn(empty.shape, generator=generator)
        if key.endswith((".gamma", ".lambda1")) or ("norm" in key and key.endswith("weight")):
            values = 1 + 0.1 * values
        elif empty.ndim > 1:
            values *= empty[0].numel() ** -0.5
        state[key] = values
    return state


def timm_model(architecture, state, **arguments):
    depth = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    create = features.optional("timm").create_model
    network = create(architecture, depth=depth, num_classes=0, **{"img_size": 224, **arguments})
    network.load_state_dict(state)
    return network.eval()


def vit(architecture, *, swiglu=False, pool=lambda tokens: tokens, **arguments):
    """Return the recipe of a transformer of timm."""

    def compute_features(state, x):
        layers = {}
        if swiglu:
            layers = {
                "mlp_layer": features.optional("timm.layers").SwiGLUPacked,
                "act_layer": nn.SiLU,
            }
        return pool(timm_model(architecture, state, init_values=1e-5, **arguments, **layers)(x))

    return compute_features


def class_and_mean(tokens):
    assert tokens.shape[1:] == (261, 1280)
    return torch.cat((tokens[:, 0], tokens[:, 5:].mean(1)), dim=-1)


def conch(state, x):
    """Compute the pooler as PyTorch's own attention, with its matrices put together."""
    trunk_state = {k.partition(".")[2]: v for k, v in state.items() if k.startswith("trunk.")}
    trunk = timm_model(
        "vit_large_patch16_224", trunk_state, global_pool="", init_values=1e-6, img_size=448
    )
    pooler = {k.partition(".")[2]: v for k, v in state.items() if k.startswith("attn_pool")}
    attention = nn.MultiheadAttention(768, 8, bias=False, kdim=1024, vdim=1024, batch_first=True)
    to_k, to_v = pooler["to_kv.weight"].chunk(2)
    attention.load_state_dict(
        {
            "q_proj_weight": pooler["to_q.weight"],
            "k_proj_weight": to_k,
            "v_proj_weight": to_v,
            "out_proj.weight": pooler["to_out.weight"],
        }
    )
    norm = nn.functional.layer_norm
    tokens = norm(trunk(x), (1024,), pooler["ln_k.weight"], pooler["ln_k.bias"])
    query = norm(pooler["query"], (768,), pooler["ln_q.weight"], pooler["ln_q.bias"])
    pooled, _ = attention(query.expand(len(x), 1, 768), tokens, tokens)
    return norm(pooled[:, 0], (768,), state["ln_contrast.weight"], state["ln_contrast.bias"])


def phikon_network():
    transformers = features.optional("transformers")
    config = transformers.Dinov2Config(
        hidden_size=1024, num_hidden_layers=2, num_attention_heads=16, image_size=224, patch_size=16
    )
    return transformers.Dinov2Model(config).eval()


def phikon(state, x):
    network = phikon_network()
    network.load_state_dict(state)
    return network(pixel_values=x).last_hidden_state[:, 0, :]


RECIPES = {
    "uni2-h": vit(
        "vit_giant_patch14_224",
        swiglu=True,
        patch_size=14,
        num_heads=24,
        embed_dim=1536,
        mlp_ratio=2.66667 * 2,
        no_embed_class=True,
        reg_tokens=8,
        dynamic_img_size=True,
    ),
    "virchow2": vit(
        "vit_huge_patch14_224",
        swiglu=True,
        pool=class_and_mean,
        reg_tokens=4,
        mlp_ratio=5.3375,
        global_pool="",
        dynamic_img_size=True,
    ),
    "h-optimus-1": vit(
        "vit_giant_patch14_reg4_dinov2", global_pool="token", dynamic_img_size=False
    ),
    "conch-v1.5": conch,
    "phikon-v2": phikon,
    "gigapath": vit(
        "vit_giant_patch14_dinov2", patch_size=16, embed_dim=1536, num_heads=24, mlp_ratio=5.33334
    ),
}


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", CARDS)
def test_saved_and_loaded_it_gives_what_its_card_computes(name, shallow, tmp_path):
    card = CARDS[name]
    shallow(name)
    state = random_state(name)
    save_file(state, tmp_path / "model.safetensors")
    encoder = features.build(name, weights=tmp_path / "model.safetensors")
    assert {p.device.type for p in encoder.parameters()} == {"cpu"}
    # of a size that nothing has to be resampled
    side = card.resize or card.size
    x = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8)
    actual = encoder.encode(x)
    transforms = features.optional("torchvision.transforms")
    preprocess = transforms.Compose(
        [transforms.CenterCrop(card.size), transforms.Normalize(*card.mean_and_std)]
    )
    with torch.no_grad():
        expected = RECIPES[name](state, preprocess(x.permute(0, 3, 1, 2) / 255))
    assert actual.shape == (2, card.width)
    assert_close(actual, expected)
    assert float((actual[0] - actual[1]).abs().max()) > 1e-3  # the numbers tell patches apart
    if name == "phikon-v2":  # the lightest
        assert_close(encoder.encode(x[1:]), actual[1:])  # a row is its patch's alone
        # the same weights from PyTorch's own format, behind a wrapper's prefix
        torch.save({f"module.{k}": v for k, v in state.items()}, tmp_path / "w.bin")
        assert features.build(name, weights=tmp_path / "w.bin").identity == encoder.identity
        lower = encoder.encode(x[:1], precision="bf16")
        assert 0 < float((lower - actual[:1]).norm() / actual[:1].norm()) < 0.03
    for file in tmp_path.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("source", "name", "keys"),
    [
        ("phikon-v2", "uni2-h", ("cls_token (1, 1, 1536)", "embeddings.cls_t")),
        ("phikon-v2", "conch-v1.5", ("trunk.cls_token (1, 1, 1024)", "embeddings.cls_t")),
        # networks of one width and depth
        (
            "gigapath",
            "h-optimus-1",
            ("reg_token (1, 4, 1536)", "pos_embed (1, 197, 1536) instead of (1, 256, 1536)"),
        ),
    ],
)
def test_the_keys_of_another_are_refused_by_name_and_shape(shallow, tmp_path, source, name, keys):
    save_file(random_state(shallow(source)), tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=name) as caught:
        features.build(shallow(name), weights=tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").unlink()
    assert all(key in str(caught.value) for key in keys)


def test_phikon_is_read_as_transformers_writes_it_and_as_it_wrote_it(shallow, tmp_path):
    """The hub's file has the names of transformers 4; version 5 has its own."""
    shallow("phikon-v2")
    torch.manual_seed(0)
    network = phikon_network()
    network.save_pretrained(tmp_path / "saved")
    encoder = features.build("phikon-v2", weights=tmp_path / "saved")
    x = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in IMAGENET)
    with torch.no_grad():
        expected = network((x.permute(0, 3, 1, 2) / 255 - mean) / std).last_hidden_state[:, 0]
    assert_close(encoder.encode(x), expected)
    state = {k: v.detach().clone() for k, v in network.state_dict().items()}
    for old, new in (
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
    ):
        state = {k.replace(new, old): v for k, v in state.items()}
        assert any(old in k for k in state)
    torch.save(state, tmp_path / "four.bin")
    assert features.build("phikon-v2", weights=tmp_path / "four.bin").identity == encoder.identity


def test_phikon_keeps_the_grid_of_positions_that_its_file_has(shallow, tmp_path):
    state = random_state(shallow("phikon-v2"))
    key = "embeddings.position_embeddings"
    state[key] = torch.randn(1, 1 + 10 * 10, 1024)
    save_file(state, tmp_path / "w.safetensors")
    encoder = features.build("phikon-v2", weights=tmp_path / "w.safetensors")
    assert tuple(encoder.core.state_dict()[key].shape) == (1, 101, 1024)
    x = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8)
    assert torch.isfinite(encoder.encode(x)).all()


def cubic(distance: float) -> float:
    """Return Keys' kernel with a = -0.75, which PyTorch uses."""
    a = -0.75
    t = abs(distance)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    if t < 2:
        return a * (t**3 - 5 * t**2 + 8 * t - 4)
    return 0.0


def test_conch_positions_of_a_smaller_input_are_resampled_as_at_their_training(shallow, tmp_path):
    """14 by 14 positions at 448 pixels: DINO's bicubic resampling with a tenth of a cell more."""
    old, new = 14, 28
    matrix = np.zeros((new, old))
    for row in range(new):
        center = (row + 0.5) * old / (new + 0.1) - 0.5
        for tap in range(math.floor(center) - 1, math.floor(center) + 3):
            matrix[row, min(max(tap, 0), old - 1)] += cubic(center - tap)
    positions = torch.randn(1, 1 + old * old, 1024)
    grid = positions[0, 1:, 0].view(old, old).double().numpy()
    resampled = published.resampled_positions(positions, new)
    assert resampled.shape == (1, 1 + new * new, 1024)
    assert torch.equal(resampled[:, 0], positions[:, 0])
    np.testing.assert_allclose(
        resampled[0, 1:, 0].view(new, new).numpy(), matrix @ grid @ matrix.T, atol=2e-5
    )
    state = random_state(shallow("conch-v1.5"))
    save_file({**state, "trunk.pos_embed": positions}, tmp_path / "small.safetensors")
    save_file({**state, "trunk.pos_embed": resampled}, tmp_path / "large.safetensors")
    small = features.build("conch-v1.5", weights=tmp_path / "small.safetensors")
    large = features.build("conch-v1.5", weights=tmp_path / "large.safetensors")
    assert small.identity == large.identity


@pytest.mark.skipif(sys.platform != "linux", reason="what a process maps is read from /proc")
def test_loading_takes_no_second_copy(shallow, tmp_path):
    """The weights of a float32 file are the file, mapped, while the encoder lives."""
    save_file(random_state(shallow("uni2-h")), tmp_path / "w.safetensors")
    encoder = features.build("uni2-h", weights=tmp_path / "w.safetensors")
    size = (tmp_path / "w.safetensors").stat().st_size
    mapped = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.partition(" ")[0]:
            inside = str(tmp_path) in line
        elif inside and line.startswith("Size:"):
            mapped += 1024 * int(line.split()[1])
    assert mapped >= size
    assert encoder.core.state_dict()["pos_embed"].dtype == torch.float32
