"""TransMIL equals its original, torchmil's where correct, and a computation of its parts."""

from dataclasses import replace

import numpy as np
import torch
from models.test_contract import make, same
from support.random_bags import F64, random_bag

from probsa import pack


def test_the_square_is_filled_with_the_first_instances_again():
    encoder = make("transmil").double().encoder
    h = torch.arange(6.0, dtype=F64)[:, None].repeat(1, 12)
    x, last = encoder.tokens(h, (5, 1))
    assert (len(x), len(last)) == (10, 2)
    same(x[0], encoder.cls_token[0, 0])
    assert x[1:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert last[1, 0] == 5
    for n in (1, 2, 4, 5, 9, 10, 16, 17):
        assert len(encoder.tokens(h[:1].repeat(n, 1), (n,))[0]) == 1 + int(np.ceil(n**0.5)) ** 2


def test_the_order_of_storage_matters():
    model = make("transmil").double().eval()
    bag = random_bag(12, features=6)
    turned = replace(bag, x=bag.x.flip(0))
    assert (model(pack([bag])).logits - model(pack([turned])).logits).abs().max() > 1e-6


def test_probsa_pools_the_instances_of_the_last_layer():
    model = make("transmil-probsa-diag").double()
    bags = pack([random_bag(5, features=6, y=1), random_bag(4, seed=1, features=6, y=0)])
    noise = torch.randn(9, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    out = model(bags, noise=noise)
    parts, _ = model.encoder.encode(model.embed(bags.x), bags.sizes)
    tokens = model.encoder.norm(torch.cat(parts))
    h = torch.cat([tokens[1:6], tokens[11:15]])  # 1 + 9 tokens, then 1 + 4
    q = model.attention(h)
    same(out.attention.mean, q.mean)
    same(out.attention.variance, q.variance)
    f = q.mean[:, None] + q.variance.sqrt()[:, None] * noise
    for b, rows in enumerate((slice(0, 5), slice(5, 9))):
        same(out.logits[b], model.classifier(f[rows].softmax(0).T @ h[rows]))
    losses = model.losses(out, bags)
    kl = q.kl(model.prior, bags) / torch.tensor([5.0, 4.0], dtype=F64)
    same(losses["kl"], kl.mean())
