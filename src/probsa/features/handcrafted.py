"""The default encoder: 128 statistics of stain and texture per patch. It has no weights.

It was designed for H&E, but also works on the three windows of a CT slice. `BLOCKS` describes the
features. All of them are finite, even for patches of a single colour.
"""

from collections.abc import Iterator, Sequence
from math import pi

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from ..errors import InputError
from ._base import Card, Encoder
from ._registry import register

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SCALES = (1, 2, 4)
SHIFTS = (1, 2, 4, 8)
DIRECTIONS = 8
PATTERNS = 10
SMALLEST = 16
"""Smallest side in pixels, so that pixels have neighbours at the coarsest scale."""
LUMA = (0.299, 0.587, 0.114)
# Ruifrok and Johnston 2001: optical densities of haematoxylin, eosin and DAB in red, green, blue
STAINS = ((0.65, 0.70, 0.29), (0.07, 0.99, 0.11), (0.27, 0.57, 0.78))
LOWEST, STEP = -0.5, 0.01
"""Start and width of the 256 bins of a stain density."""
TISSUE = 0.15
"""Mean optical density above which a pixel counts as stained."""
PIXELS = 2**16
"""Number of pixels processed at a time, so that intermediate arrays stay in the CPU cache."""


def _distribution_names(
    channels: str, *, quantiles: tuple[float, ...] = QUANTILES
) -> tuple[str, ...]:
    of = ("mean", "sd", *(f"q{round(100 * q):02d}" for q in quantiles))
    return tuple(f"{channel}_{what}" for channel in channels.split() for what in of)


BLOCKS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "colour",
        _distribution_names("red green blue"),
        "mean, standard deviation and the 5, 25, 50, 75 and 95 % quantiles of each channel, 0 to 1",
    ),
    (
        "stains",
        (*_distribution_names("haematoxylin eosin residual"), "stain_correlation", "stained_share"),
        "the same for haematoxylin, eosin and the residual (densities by Ruifrok's vectors); "
        "the correlation of the first two; the share of pixels with a mean optical density over "
        "0.15",
    ),
    (
        "saturation",
        ("saturation_mean", "saturation_sd", "saturation_q50", "saturation_q95"),
        "(max - min) / max of the channels: mean, standard deviation, 50 and 95 % quantiles",
    ),
    (
        "grey",
        ("grey_skewness", "grey_kurtosis", "grey_entropy"),
        "luma: skewness, excess kurtosis, entropy in bits / 8",
    ),
    (
        "patterns",
        tuple(f"pattern{k}_scale{s}" for s in SCALES for k in range(PATTERNS)),
        "shares of the rotation-invariant uniform local binary patterns of eight neighbours "
        "(0 to 8 brighter neighbours in one run; 9 for all others), at scales 1, 2 and 4",
    ),
    (
        "gradients",
        tuple(
            f"{what}_scale{s}"
            for s in SCALES
            for what in ("gradient_mean", "gradient_sd", *(f"edge{k}" for k in range(DIRECTIONS)))
        ),
        "mean and standard deviation of the magnitude of the grey gradient, and its shares in "
        "eight directions of 22.5 degrees, at scales 1, 2 and 4",
    ),
    (
        "grain",
        tuple(f"{channel}_shift{d}" for channel in ("grey", "haematoxylin") for d in SHIFTS),
        "autocorrelation of grey and of haematoxylin at distances of 1, 2, 4 and 8 pixels",
    ),
    (
        "bands",
        tuple(
            f"haematoxylin_band{s}_{what}" for s in SCALES for what in ("mean", "sd", "skewness")
        ),
        "mean magnitude, standard deviation and skewness of haematoxylin minus its mean over "
        "squares of 2, 4 and 8 pixels (nuclei against their surroundings)",
    ),
)
"""The names of groups of features, those of their members, and their meaning."""
NAMES = tuple(member for _, members, _ in BLOCKS for member in members)


@register(
    "handcrafted",
    card=Card(
        width=len(NAMES),
        summary="Stain and texture statistics (colour quantiles, Ruifrok's stains, local binary "
        "patterns, gradients, at three scales); no weights, any patch of 16 pixels or more.",
        licence="Apache-2.0 (this package).",
        source="doi:10.1109/TPAMI.2002.1017623 (patterns), Ruifrok and Johnston 2001 (stains)",
    ),
)
class Handcrafted(Encoder):
    """Statistics of the colours, stains and textures of a patch, in the order of `NAMES`."""

    def __init__(self) -> None:
        super().__init__()
        unit = torch.nn.functional.normalize(torch.tensor(STAINS, dtype=torch.float64), dim=1)
        self.register_buffer("unmixing", torch.linalg.inv(unit).float(), persistent=False)

    def features(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the statistics of each patch of pixels in [0, 1].

        Raises:
            InputError: a side of the patches has fewer than 16 pixels.
        """
        height, width = x.shape[-2:]
        if min(height, width) < SMALLEST:
            raise InputError(
                f"{self.name} needs patches of {SMALLEST} pixels or more, got {width} by {height}"
            )
        together = max(1, PIXELS // (height * width))
        with torch.autocast(x.device.type, enabled=False):
            return torch.cat([self._numbers(part.float()) for part in x.split(together)])

    def _numbers(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        rgb = (255 * x).round().contiguous()
        # sums of integers are exact, so a mirrored patch has the same patterns
        grey = _mixed(rgb, LUMA).round()
        # add one to the byte value, so that the density of black is finite
        density = -((rgb + 1) / 256).log10()
        columns = self.get_buffer("unmixing").T.tolist()
        stains = torch.stack([_mixed(density, column) for column in columns], dim=1)
        parts = [
            *(_distribution(_counts(rgb[:, c]), low=0.0, step=1 / 255) for c in range(3)),
            *self._stains(stains, density),
            *_saturation(rgb),
            _shape_of(_counts(grey)),
            *(_texture(level) for level in _pyramid(grey)),
            *(_edges(level) for level in _pyramid(grey)),
            *(_grain(channel) for channel in (grey, stains[:, 0])),
            *(_band(level) for level in _pyramid(stains[:, 0])),
        ]
        return torch.cat(parts, dim=1).float()

    def _stains(
        self, stains: Float[Tensor, "n 3 height width"], density: Float[Tensor, "n 3 height width"]
    ) -> Iterator[Tensor]:
        for s in range(3):
            steps = ((stains[:, s] - LOWEST) / STEP).round().clamp(0, 255)
            yield _distribution(_counts(steps), low=LOWEST, step=STEP)
        pair = stains[:, :2].flatten(2)
        pair = pair - pair.mean(dim=2, keepdim=True)
        yield _ratio((pair[:, 0] * pair[:, 1]).mean(1), pair.square().mean(2).prod(1).sqrt())[
            :, None
        ]
        stained = density.mean(dim=1) > TISSUE
        yield stained.flatten(1).float().mean(dim=1, keepdim=True)


def _mixed(x: Float[Tensor, "n 3 height width"], of: Sequence[float]) -> Float[Tensor, "n h w"]:
    """Return a weighted sum of the channels, which is faster than a narrow matrix product."""
    return x[:, 0] * of[0] + x[:, 1] * of[1] + x[:, 2] * of[2]


def _counts(levels: Real[Tensor, "n height width"]) -> Float[Tensor, "n 256"]:
    """Return histograms of 256 levels, which are exact and so do not depend on the batch."""
    n = levels.shape[0]
    first = 256 * torch.arange(n, device=levels.device, dtype=torch.int32)
    shifted = levels.flatten(1).int() + first[:, None]
    return torch.bincount(shifted.flatten(), minlength=256 * n).view(n, 256).double()


def _moments(counts: Float[Tensor, "n 256"]) -> Iterator[Tensor]:
    """Yield the shares and mean of the levels, and their central moments of order 2 to 4."""
    share = counts / counts.sum(dim=1, keepdim=True)
    levels = torch.arange(256, device=counts.device, dtype=counts.dtype)
    mean = share @ levels
    centred = levels - mean[:, None]
    yield share
    yield mean
    for order in (2, 3, 4):
        yield (share * centred**order).sum(dim=1)


def _quantiles(
    counts: Float[Tensor, "n 256"], which: tuple[float, ...] = QUANTILES
) -> Float[Tensor, "n q"]:
    """Return the lowest level such that at least the given share of pixels is at or below it."""
    total = counts.sum(dim=1, keepdim=True)
    wanted = torch.tensor(which, device=counts.device, dtype=counts.dtype)
    # subtract a little, because share times count may be rounded to just above the integer
    return torch.searchsorted(counts.cumsum(dim=1), wanted * total - 1e-6).to(counts.dtype)


def _distribution(
    counts: Float[Tensor, "n 256"], *, low: float, step: float
) -> Float[Tensor, "n 7"]:
    _, mean, variance, *_ = _moments(counts)
    levels = torch.cat((mean[:, None], _quantiles(counts)), dim=1) * step + low
    return torch.cat((levels[:, :1], variance.sqrt()[:, None] * step, levels[:, 1:]), dim=1)


def _saturation(rgb: Float[Tensor, "n 3 height width"]) -> Iterator[Tensor]:
    highest, lowest = rgb.amax(dim=1), rgb.amin(dim=1)
    counts = _counts((255 * (highest - lowest) / highest.clamp(min=1)).round())
    distribution = _distribution(counts, low=0.0, step=1 / 255)
    yield distribution[:, [0, 1, 4, 6]]


def _shape_of(counts: Float[Tensor, "n 256"]) -> Float[Tensor, "n 3"]:
    share, _, variance, third, fourth = _moments(counts)
    sd = variance.sqrt()
    entropy = -torch.special.xlogy(share, share).sum(dim=1) / torch.log(torch.tensor(2.0)) / 8
    excess = _ratio(fourth, variance**2) - 3 * (variance > 0)
    return torch.stack((_ratio(third, sd**3), excess, entropy), dim=1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Divide, with 0 for a zero denominator (a patch of one colour)."""
    flat = below <= 1e-9
    return torch.where(flat, 0, above / torch.where(flat, 1, below))


def _halved(x: Float[Tensor, "n height width"]) -> Float[Tensor, "n h w"]:
    """Return means of 2 × 2 pixels; an odd last row or column is omitted."""
    height, width = (side // 2 * 2 for side in x.shape[1:])
    rows = x[:, 0:height:2, :width] + x[:, 1:height:2, :width]
    return (rows[:, :, 0::2] + rows[:, :, 1::2]) / 4


def _pyramid(x: Float[Tensor, "n height width"]) -> list[Tensor]:
    """Return the image at scales 1, 2 and 4."""
    half = _halved(x)
    return [x, half, _halved(half)]


def _texture(grey: Float[Tensor, "n height width"]) -> Float[Tensor, "n 10"]:
    """Return the shares of rotation-invariant uniform local binary patterns (Ojala et al. 2002)."""
    levels = grey.round().to(torch.uint8)
    height, width = grey.shape[1:]
    middle = levels[:, 1:-1, 1:-1]
    ring = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
    brighter = torch.stack(
        [levels[:, i : height - 2 + i, j : width - 2 + j] >= middle for i, j in ring]
    ).to(torch.uint8)
    changes = (brighter ^ brighter.roll(1, dims=0)).sum(dim=0, dtype=torch.uint8)
    ones = brighter.sum(dim=0, dtype=torch.uint8)
    kind = torch.where(changes <= 2, ones, PATTERNS - 1)
    counts = _counts(kind)[:, :PATTERNS]
    return counts / counts.sum(dim=1, keepdim=True)


def _edges(grey: Float[Tensor, "n height width"]) -> Float[Tensor, "n 10"]:
    """Return the magnitude of the gradient and its shares by direction, modulo 180 degrees."""
    across = (grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]).flatten(1) / 510
    down = (grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1]).flatten(1) / 510
    size = torch.hypot(across, down)
    # bins are centred on the axes, so that noise does not split an axis-parallel edge
    turn = torch.atan2(down, across) * (DIRECTIONS / pi)
    kind: Int[Tensor, "n pixels"] = turn.round().to(torch.int8) % DIRECTIONS
    total = size.sum(dim=1)
    shares = [_ratio((size * (kind == k)).sum(dim=1), total) for k in range(DIRECTIONS)]
    sd = (size - size.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt()
    return torch.stack((size.mean(dim=1), sd, *shares), dim=1)


def _grain(x: Float[Tensor, "n height width"]) -> Float[Tensor, "n 4"]:
    centred = x - x.mean(dim=(1, 2), keepdim=True)
    variance = centred.square().mean(dim=(1, 2))
    correlations = []
    for d in SHIFTS:
        across = (centred[:, :, d:] * centred[:, :, :-d]).mean(dim=(1, 2))
        down = (centred[:, d:] * centred[:, :-d]).mean(dim=(1, 2))
        correlations.append(_ratio((across + down) / 2, variance))
    return torch.stack(correlations, dim=1)


def _band(x: Float[Tensor, "n height width"]) -> Float[Tensor, "n 3"]:
    height, width = (side // 2 * 2 for side in x.shape[1:])
    x = x[:, :height, :width]
    around = _halved(x)[:, :, None, :, None]
    centred = (x.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)) - around).flatten(1)
    sd = centred.square().mean(dim=1).sqrt()
    return torch.stack(
        (centred.abs().mean(dim=1), sd, _ratio(centred.pow(3).mean(dim=1), sd**3)), dim=1
    )
