"""The default encoder: 128 statistics of stain and texture per patch. It has no weights.

It was designed for H&E, but also works on the three windows of a CT slice. `BLOCKS` describes the
features. All of them are finite, even for patches of a single colour.
"""

from collections.abc import Iterator, Sequence
from math import pi
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from ..core import without_autocast
from ..errors import InputError
from ._base import Card, Encoder
from ._registry import register

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SCALES = (1, 2, 4)
"""Sides of the squares of pixels that are averaged before textures are measured."""
SHIFTS = (1, 2, 4, 8)
"""Distances of the autocorrelation in pixels."""
DIRECTIONS = 8
"""Number of directions of edges."""
PATTERNS = 10
"""Number of rotation-invariant uniform local binary patterns."""
SMALLEST = 16
"""Smallest side in pixels, so that pixels have neighbours at the coarsest scale."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey."""
STAINS = ((0.65, 0.70, 0.29), (0.07, 0.99, 0.11), (0.27, 0.57, 0.78))
"""Optical densities of haematoxylin, eosin and DAB in red, green and blue (Ruifrok and Johnston
2001)."""
LOWEST = -0.5
"""Lowest of the 256 bins of a stain density."""
STEP = 0.01
"""Width of these bins."""
TISSUE = 0.15
"""Mean optical density above which a pixel counts as stained."""
PIXELS = 2**16
"""Number of pixels processed at a time, so that intermediate arrays stay in the CPU cache."""


def _distribution_names(*channels: str) -> tuple[str, ...]:
    """Return the names of the features that `_distribution` computes of some channels."""
    statistics = ["mean", "sd", *(f"q{round(100 * q):02d}" for q in QUANTILES)]
    return tuple(f"{channel}_{statistic}" for channel in channels for statistic in statistics)


class Block(NamedTuple):
    """A group of features."""

    name: str
    members: tuple[str, ...]
    """The names of the features, in their order."""
    meaning: str


BLOCKS = (
    Block(
        "colour",
        _distribution_names("red", "green", "blue"),
        "mean, standard deviation and the 5, 25, 50, 75 and 95 % quantiles of each channel, 0 to 1",
    ),
    Block(
        "stains",
        (
            *_distribution_names("haematoxylin", "eosin", "residual"),
            "stain_correlation",
            "stained_share",
        ),
        "the same for haematoxylin, eosin and the residual (densities by Ruifrok's vectors); "
        "the correlation of the first two; the share of pixels with a mean optical density over "
        "0.15",
    ),
    Block(
        "saturation",
        ("saturation_mean", "saturation_sd", "saturation_q50", "saturation_q95"),
        "(max - min) / max of the channels: mean, standard deviation, 50 and 95 % quantiles",
    ),
    Block(
        "grey",
        ("grey_skewness", "grey_kurtosis", "grey_entropy"),
        "luma: skewness, excess kurtosis, entropy in bits / 8",
    ),
    Block(
        "patterns",
        tuple(f"pattern{k}_scale{s}" for s in SCALES for k in range(PATTERNS)),
        "shares of the rotation-invariant uniform local binary patterns of eight neighbours "
        "(0 to 8 brighter neighbours in one run; 9 for all others), at scales 1, 2 and 4",
    ),
    Block(
        "gradients",
        tuple(
            f"{statistic}_scale{s}"
            for s in SCALES
            for statistic in (
                "gradient_mean",
                "gradient_sd",
                *(f"edge{k}" for k in range(DIRECTIONS)),
            )
        ),
        "mean and standard deviation of the magnitude of the grey gradient, and its shares in "
        "eight directions of 22.5 degrees, at scales 1, 2 and 4",
    ),
    Block(
        "grain",
        tuple(f"{channel}_shift{d}" for channel in ("grey", "haematoxylin") for d in SHIFTS),
        "autocorrelation of grey and of haematoxylin at distances of 1, 2, 4 and 8 pixels",
    ),
    Block(
        "bands",
        tuple(
            f"haematoxylin_band{s}_{statistic}"
            for s in SCALES
            for statistic in ("mean", "sd", "skewness")
        ),
        "mean magnitude, standard deviation and skewness of haematoxylin minus its mean over "
        "squares of 2, 4 and 8 pixels (nuclei against their surroundings)",
    ),
)
"""All groups of features."""
NAMES = tuple(member for block in BLOCKS for member in block.members)
"""The names of all features, in their order."""


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
            InputError: A side of the patches has fewer than 16 pixels.
        """
        height, width = x.shape[-2:]
        if min(height, width) < SMALLEST:
            raise InputError(
                f"{self.name} needs patches of {SMALLEST} pixels or more, got {width} by {height}"
            )
        patches_at_once = max(1, PIXELS // (height * width))
        with without_autocast(x):
            return torch.cat([self._numbers(part.float()) for part in x.split(patches_at_once)])

    def _numbers(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n numbers"]:
        """Return the statistics of a few patches."""
        rgb = (255 * x).round().contiguous()
        # sums of integers are exact, so a mirrored patch has the same patterns
        grey = _mixed(rgb, LUMA).round()
        # add one to the byte value, so that the density of black is finite
        density = -((rgb + 1) / 256).log10()
        columns = self.get_buffer("unmixing").T.tolist()
        stains = torch.stack([_mixed(density, column) for column in columns], dim=1)
        haematoxylin = stains[:, 0]
        grey_pyramid = _pyramid(grey)
        parts = [
            *(_distribution(_counts(rgb[:, c]), low=0.0, step=1 / 255) for c in range(3)),
            *self._stains(stains, density),
            _saturation(rgb),
            _shape(_counts(grey)),
            *(_texture(image) for image in grey_pyramid),
            *(_edges(image) for image in grey_pyramid),
            _grain(grey),
            _grain(haematoxylin),
            *(_band(image) for image in _pyramid(haematoxylin)),
        ]
        return torch.cat(parts, dim=1).float()

    def _stains(
        self, stains: Float[Tensor, "n 3 height width"], density: Float[Tensor, "n 3 height width"]
    ) -> Iterator[Tensor]:
        """Yield the statistics of the stains: distributions, correlation, and share of tissue."""
        for s in range(3):
            bins = ((stains[:, s] - LOWEST) / STEP).round().clamp(0, 255)
            yield _distribution(_counts(bins), low=LOWEST, step=STEP)
        haematoxylin_eosin = stains[:, :2].flatten(2)
        centred = haematoxylin_eosin - haematoxylin_eosin.mean(dim=2, keepdim=True)
        covariance = (centred[:, 0] * centred[:, 1]).mean(1)
        correlation = _ratio(covariance, centred.square().mean(2).prod(1).sqrt())
        yield correlation[:, None]
        is_stained = density.mean(dim=1) > TISSUE
        yield is_stained.flatten(1).float().mean(dim=1, keepdim=True)


def _mixed(
    x: Float[Tensor, "n 3 height width"], weights: Sequence[float]
) -> Float[Tensor, "n h w"]:
    """Return a weighted sum of the channels, which is faster than a narrow matrix product."""
    return x[:, 0] * weights[0] + x[:, 1] * weights[1] + x[:, 2] * weights[2]


def _counts(levels: Real[Tensor, "n height width"]) -> Float[Tensor, "n 256"]:
    """Return histograms of 256 levels, which are exact and so do not depend on the batch."""
    n = levels.shape[0]
    # one bincount for all patches: each has 256 bins of its own
    offset = 256 * torch.arange(n, device=levels.device, dtype=torch.int32)
    bins = levels.flatten(1).int() + offset[:, None]
    return torch.bincount(bins.flatten(), minlength=256 * n).view(n, 256).double()


class Moments(NamedTuple):
    """Moments of the levels in some histograms."""

    share: Float[Tensor, "n 256"]
    """The histograms, with a sum of 1."""
    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    third: Float[Tensor, " n"]
    """Central moment of order 3."""
    fourth: Float[Tensor, " n"]
    """Central moment of order 4."""


def _moments(counts: Float[Tensor, "n 256"]) -> Moments:
    share = counts / counts.sum(dim=1, keepdim=True)
    levels = torch.arange(256, device=counts.device, dtype=counts.dtype)
    mean = share @ levels
    centred = levels - mean[:, None]
    return Moments(
        share=share,
        mean=mean,
        variance=(share * centred**2).sum(dim=1),
        third=(share * centred**3).sum(dim=1),
        fourth=(share * centred**4).sum(dim=1),
    )


def _quantiles(
    counts: Float[Tensor, "n 256"], shares: tuple[float, ...] = QUANTILES
) -> Float[Tensor, "n q"]:
    """Return the lowest level such that at least the given share of pixels is at or below it."""
    total = counts.sum(dim=1, keepdim=True)
    quantiles = torch.tensor(shares, device=counts.device, dtype=counts.dtype)
    # subtract a little, because share times count may be rounded to just above the integer
    return torch.searchsorted(counts.cumsum(dim=1), quantiles * total - 1e-6).to(counts.dtype)


def _distribution(
    counts: Float[Tensor, "n 256"], *, low: float, step: float
) -> Float[Tensor, "n 7"]:
    """Return the mean, standard deviation and quantiles of levels that are `low + k * step`."""
    moments = _moments(counts)
    levels = torch.cat((moments.mean[:, None], _quantiles(counts)), dim=1) * step + low
    mean = levels[:, :1]
    sd = moments.variance.sqrt()[:, None] * step
    return torch.cat((mean, sd, levels[:, 1:]), dim=1)


def _saturation(rgb: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n 4"]:
    """Return the mean, standard deviation, median and 95 % quantile of the saturation."""
    highest = rgb.amax(dim=1)
    lowest = rgb.amin(dim=1)
    saturation = (255 * (highest - lowest) / highest.clamp(min=1)).round()
    distribution = _distribution(_counts(saturation), low=0.0, step=1 / 255)
    first_quantile = 2  # after the mean and the standard deviation
    median = first_quantile + QUANTILES.index(0.5)
    upper = first_quantile + QUANTILES.index(0.95)
    return distribution[:, [0, 1, median, upper]]


def _shape(counts: Float[Tensor, "n 256"]) -> Float[Tensor, "n 3"]:
    """Return the skewness, the excess kurtosis and the entropy of some histograms."""
    share, _, variance, third, fourth = _moments(counts)
    sd = variance.sqrt()
    # 256 levels have at most 8 bits
    entropy = -torch.special.xlogy(share, share).sum(dim=1) / torch.log(torch.tensor(2.0)) / 8
    # the kurtosis of a normal distribution is 3; a patch of one colour has 0, not -3
    excess = _ratio(fourth, variance**2) - 3 * (variance > 0)
    return torch.stack((_ratio(third, sd**3), excess, entropy), dim=1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with 0 for a zero denominator (a patch of one colour)."""
    is_zero = denominator <= 1e-9
    return torch.where(is_zero, 0, numerator / torch.where(is_zero, 1, denominator))


def _halved(x: Float[Tensor, "n height width"]) -> Float[Tensor, "n h w"]:
    """Return means of 2 × 2 pixels; an odd last row or column is omitted."""
    height = x.shape[1] // 2 * 2
    width = x.shape[2] // 2 * 2
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
    # the eight neighbours of a pixel, once around it
    ring = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
    neighbours = [levels[:, i : height - 2 + i, j : width - 2 + j] for i, j in ring]
    is_brighter = torch.stack([levels >= middle for levels in neighbours]).to(torch.uint8)
    changes = (is_brighter ^ is_brighter.roll(1, dims=0)).sum(dim=0, dtype=torch.uint8)
    brighter_neighbours = is_brighter.sum(dim=0, dtype=torch.uint8)
    # uniform patterns have one run of brighter neighbours, and so at most two changes
    kind = torch.where(changes <= 2, brighter_neighbours, PATTERNS - 1)
    counts = _counts(kind)[:, :PATTERNS]
    return counts / counts.sum(dim=1, keepdim=True)


def _edges(grey: Float[Tensor, "n height width"]) -> Float[Tensor, "n 10"]:
    """Return the magnitude of the gradient and its shares by direction, modulo 180 degrees."""
    # central differences over two pixels, of bytes that are scaled to 1
    across = (grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]).flatten(1) / 510
    down = (grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1]).flatten(1) / 510
    magnitude = torch.hypot(across, down)
    # bins are centred on the axes, so that noise does not split an axis-parallel edge
    angle = torch.atan2(down, across) * (DIRECTIONS / pi)
    direction: Int[Tensor, "n pixels"] = angle.round().to(torch.int8) % DIRECTIONS
    total = magnitude.sum(dim=1)
    shares = []
    for k in range(DIRECTIONS):
        shares.append(_ratio((magnitude * (direction == k)).sum(dim=1), total))
    sd = (magnitude - magnitude.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt()
    return torch.stack((magnitude.mean(dim=1), sd, *shares), dim=1)


def _grain(x: Float[Tensor, "n height width"]) -> Float[Tensor, "n 4"]:
    """Return the autocorrelation at each distance, as the mean of both directions."""
    centred = x - x.mean(dim=(1, 2), keepdim=True)
    variance = centred.square().mean(dim=(1, 2))
    correlations = []
    for d in SHIFTS:
        across = (centred[:, :, d:] * centred[:, :, :-d]).mean(dim=(1, 2))
        down = (centred[:, d:] * centred[:, :-d]).mean(dim=(1, 2))
        correlations.append(_ratio((across + down) / 2, variance))
    return torch.stack(correlations, dim=1)


def _band(x: Float[Tensor, "n height width"]) -> Float[Tensor, "n 3"]:
    """Return the mean magnitude, sd and skewness of pixels minus the mean of their 2 × 2 square."""
    height = x.shape[1] // 2 * 2
    width = x.shape[2] // 2 * 2
    squares = x[:, :height, :width].unflatten(1, (-1, 2)).unflatten(3, (-1, 2))
    centred = (squares - _halved(x)[:, :, None, :, None]).flatten(1)
    sd = centred.square().mean(dim=1).sqrt()
    skewness = _ratio(centred.pow(3).mean(dim=1), sd**3)
    return torch.stack((centred.abs().mean(dim=1), sd, skewness), dim=1)
