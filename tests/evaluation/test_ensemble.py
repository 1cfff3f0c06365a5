"""Members and runs combined: the law of total variance, alignment, and bags that runs have seen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.refusals import refused

from probsa.errors import InputError
from probsa.evaluation import Prediction
from probsa.evaluation.ensemble import aligned, combine
from probsa.evaluation.scores import evidence
from probsa.maps import VARIANCES, draw_map
from probsa.maps.quantities import quantities


def made(seed, *, n=6, classes=None, name="a"):
    g = np.random.default_rng(seed)
    shape = (n,) if classes is None else (n, classes)
    p = g.uniform(0.1, 0.9, 1 if classes is None else classes).astype(np.float32)
    p = p if classes is None else p / p.sum()

    def draw(shape=shape):
        return g.uniform(0.01, 1, shape).astype(np.float32)

    return Prediction(
        name=name,
        probability=p,
        std=draw(p.shape) * 0.1,
        coords=np.arange(n)[:, None],
        attention_mean=g.normal(size=shape).astype(np.float32),
        attention_variance=draw(),
        weight_mean=draw(),
        weight_variance=draw(),
        degree=draw((n,)),
        kind="ct",
    )


@pytest.mark.parametrize("classes", [None, 3])
def test_the_variance_is_that_of_the_mixture(classes):
    """Against the moments of many draws from an equal mixture of the members' normals."""
    members = [made(seed, classes=classes) for seed in range(4)]
    both = combine(members, align=False)
    g = torch.Generator().manual_seed(0)
    noise = torch.randn((200_000, *both.attention_mean.shape), generator=g).numpy()
    draws = np.concatenate(
        [p.attention_mean + np.sqrt(p.attention_variance) * noise for p in members]
    )
    np.testing.assert_allclose(both.attention_mean, draws.mean(0), atol=0.01)
    np.testing.assert_allclose(both.attention_variance, draws.var(0), rtol=0.01)
    np.testing.assert_allclose(
        both.variance_between, np.stack([p.attention_mean for p in members]).var(0), rtol=1e-5
    )
    np.testing.assert_allclose(both.std**2, both.std_within**2 + both.std_between**2, rtol=1e-5)
    np.testing.assert_allclose(
        both.weight_mean, np.mean([p.weight_mean for p in members], 0), rtol=1e-5
    )


def test_attention_is_aligned_where_its_level_means_nothing():
    one = made(0)
    shifted = replace(one, attention_mean=one.attention_mean + np.float32(5))
    same = combine([one, shifted], align=True)
    assert np.abs(same.variance_between).max() < 1e-9
    np.testing.assert_allclose(
        same.attention_mean, evidence(one.attention_mean, kind="logit"), atol=1e-5
    )
    assert combine([one, shifted], align=False).variance_between == pytest.approx(6.25, rel=1e-4)
    two = made(1, classes=3).attention_mean.astype(np.float64)
    for c in range(3):
        np.testing.assert_allclose(aligned(two)[:, c], aligned(two[:, c]))


def test_one_member_keeps_its_numbers_and_has_nothing_between():
    one = made(3)
    alone = combine([one], align=False)
    np.testing.assert_array_equal(alone.std, one.std)
    np.testing.assert_array_equal(alone.attention_mean, one.attention_mean)
    assert not alone.std_between.any() and not alone.variance_between.any()
    several = made(0, classes=2)
    one = replace(made(1), probability=several.probability, std=several.std)
    refused(InputError, r"'a': .* shapes \(6,\) and \(6, 2\)", combine, [several, one], align=True)
    members = [replace(made(k), neighbour_weight=share) for k, share in enumerate((0.2, 0.6))]
    assert combine(members, align=False).neighbour_weight == pytest.approx(0.4)
    assert combine([made(0), made(1)], align=False).neighbour_weight is None


def test_maps_show_the_parts():
    both = combine([made(0), made(1)], align=True)
    titles = [v.title for v in quantities(both, also=VARIANCES)]
    assert titles == [
        "attention mean μ",
        "attention variance σ²",
        "attention variance within members",
        "attention variance between members",
    ]
    assert {ax.get_label() for ax in draw_map(both, also=VARIANCES).axes} >= {
        "within",
        "between bar",
    }
    certain = replace(both, variance_within=np.zeros(6, np.float32))
    panels = {v.key: v for v in quantities(certain, also=VARIANCES)}
    assert panels["within"].absent == "no variance within members" and not panels["between"].absent
    several = combine([made(0, classes=3), made(1, classes=3)], align=True)
    assert len(list(quantities(several, also=VARIANCES))) == 12
    assert len(list(quantities(made(0), also=VARIANCES))) == 2
