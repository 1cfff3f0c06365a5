"""The statistics that need no weights: values, invariances, and whether they tell tissues apart."""

import csv
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probsa import features
from probsa.errors import InputError
from probsa.features.handcrafted import BLOCKS, NAMES

STAIN_NAMES = ("haematoxylin", "eosin", "residual")
STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
STAINS /= np.linalg.norm(STAINS, axis=1, keepdims=True)
CLASSES = ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM")


@pytest.fixture(scope="module")
def encoder():
    return features.build("handcrafted")


def by_name(row: torch.Tensor) -> dict[str, float]:
    return dict(zip(NAMES, row.tolist(), strict=True))


def noise(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8, generator=draws)


@pytest.fixture(scope="module")
def tiles(shared_data):
    """A real tile of each tissue class, (9, 224, 224, 3)."""
    files = sorted((shared_data / "nct_crc_sample").glob("*.tif"))
    assert tuple(f.name.partition("-")[0] for f in files) == CLASSES
    return torch.stack([torch.from_numpy(np.array(Image.open(f).convert("RGB"))) for f in files])


def test_there_are_128_numbers_with_names_of_their_own(encoder):
    assert encoder.width == len(NAMES) == len(set(NAMES)) == 128
    assert all(block.meaning for block in BLOCKS)
    with pytest.raises(InputError):
        encoder.encode(noise(1, 15, 20))


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (190, 110, 170)])
def test_on_one_colour_every_number_is_known(encoder, colour):
    patch = torch.tensor(colour, dtype=torch.uint8).expand(1, 40, 33, 3)
    levels = dict(zip(("red", "green", "blue"), np.array(colour) / 255, strict=True))
    density = -np.log10((np.array(colour) + 1) / 256)
    amounts = dict(zip(STAIN_NAMES, density @ np.linalg.inv(STAINS), strict=True))
    saturation = (max(colour) - min(colour)) / max(max(colour), 1)
    for name, value in by_name(encoder.encode(patch)[0]).items():
        channel, _, statistic = name.rpartition("_")
        expected = 0.0
        tolerance = 1e-6
        if statistic == "sd" or "shift" in statistic:
            pass  # nothing varies
        elif channel in levels:
            expected = levels[channel]
        elif channel in amounts:
            # counted in steps of a hundredth, from -0.5 to 2.05
            expected = min(max(amounts[channel], -0.5), 2.05)
            tolerance = 0.0051
        elif channel == "saturation":
            expected = saturation
            tolerance = 0.51 / 255
        elif name == "stained_share":
            expected = float(density.mean() > 0.15)
        elif name.startswith("pattern8"):
            expected = 1.0  # all eight neighbours are as bright: one run of eight
        assert value == pytest.approx(expected, abs=tolerance), name


def test_colours_have_the_quantiles_that_numpy_gives(encoder):
    patches = noise(3, 40, 50)
    patches[1] //= 3
    for patch, row in zip(patches.numpy(), encoder.encode(patches), strict=True):
        values = by_name(row)
        for c, channel in enumerate(("red", "green", "blue")):
            levels = patch[:, :, c].ravel() / 255
            assert values[f"{channel}_mean"] == pytest.approx(levels.mean(), abs=1e-6)
            assert values[f"{channel}_sd"] == pytest.approx(levels.std(), abs=1e-6)
            for q in (5, 25, 50, 75, 95):
                quantile = np.quantile(levels, q / 100, method="inverted_cdf")
                assert values[f"{channel}_q{q:02d}"] == pytest.approx(quantile, abs=1e-6)


def test_saturation_has_the_quantiles_that_numpy_gives(encoder):
    patch = noise(1, 40, 50)
    patch[:, :25] //= 3
    values = by_name(encoder.encode(patch)[0])
    highest = patch[0].numpy().max(axis=2).astype(np.float32)
    lowest = patch[0].numpy().min(axis=2)
    saturation = np.rint(255 * (highest - lowest) / np.maximum(highest, 1)) / 255
    assert values["saturation_mean"] == pytest.approx(saturation.mean(), abs=1e-5)
    assert values["saturation_sd"] == pytest.approx(saturation.std(), abs=1e-5)
    for q in (50, 95):
        quantile = np.quantile(saturation, q / 100, method="inverted_cdf")
        assert values[f"saturation_q{q}"] == pytest.approx(quantile, abs=1e-5)


def test_shapes_of_the_grey_distribution_are_those_of_scipy(encoder):
    from scipy import stats

    patch = noise(1, 64, 64)
    patch[:, :20] = patch[:, :20] // 8
    luma = np.array([0.299, 0.587, 0.114], np.float32)
    grey = np.rint(patch[0].numpy().astype(np.float32) @ luma)
    values = by_name(encoder.encode(patch)[0])
    assert values["grey_skewness"] == pytest.approx(stats.skew(grey.ravel()), abs=2e-3)
    assert values["grey_kurtosis"] == pytest.approx(stats.kurtosis(grey.ravel()), abs=2e-3)
    shares = np.unique(grey, return_counts=True)[1] / grey.size
    assert values["grey_entropy"] == pytest.approx(stats.entropy(shares, base=2) / 8, abs=1e-3)


def test_a_patch_dyed_in_one_stain_has_that_stain_alone(encoder):
    for name, stain in zip(STAIN_NAMES, STAINS, strict=True):
        colour = np.rint(256 * 10 ** -(0.8 * stain) - 1).astype(np.uint8)
        values = by_name(encoder.encode(torch.from_numpy(colour).expand(1, 20, 20, 3))[0])
        for other in STAIN_NAMES:
            amount = 0.8 if other == name else 0.0
            assert values[f"{other}_mean"] == pytest.approx(amount, abs=0.015)


def test_patterns_are_those_of_each_pixel_by_hand(encoder):
    """Go around the ring of every pixel, in plain Python."""
    patch = (noise(1, 19, 23) // 40) * 40
    patch[..., 1:] = patch[..., :1]
    grey = patch[0, :, :, 0].numpy().astype(int)
    ring = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))
    counts = np.zeros(10)
    for i in range(1, 18):
        for j in range(1, 22):
            bits = [grey[i + di, j + dj] >= grey[i, j] for di, dj in ring]
            changes = sum(bits[k] != bits[k - 1] for k in range(8))
            counts[sum(bits) if changes <= 2 else 9] += 1
    values = by_name(encoder.encode(patch)[0])
    shares = [values[f"pattern{k}_scale1"] for k in range(10)]
    assert shares == pytest.approx(list(counts / counts.sum()), abs=1e-6)
    assert min(counts[[0, 3, 5, 9]]) > 0


@pytest.mark.parametrize(("down", "right", "edge"), [(0, 1, 0), (1, 1, 2), (1, 0, 4), (1, -1, 6)])
def test_a_ramp_has_its_slope_and_its_direction(encoder, down, right, edge):
    i, j = torch.meshgrid(torch.arange(48), torch.arange(48), indexing="ij")
    ramp = (120 + down * i + right * j).to(torch.uint8)[None, :, :, None].expand(1, 48, 48, 3)
    values = by_name(encoder.encode(ramp)[0])
    slope = float(np.hypot(down, right))
    for scale in (1, 2, 4):
        assert values[f"gradient_mean_scale{scale}"] == pytest.approx(scale * slope / 255, rel=1e-3)
        assert values[f"gradient_sd_scale{scale}"] == pytest.approx(0, abs=1e-5)
        shares = [values[f"edge{k}_scale{scale}"] for k in range(8)]
        assert shares[edge] == pytest.approx(1, abs=1e-5)


def test_stripes_repeat_themselves(encoder):
    """Two dark columns, two bright ones: opposite after two pixels, the same after four."""
    column = torch.tensor([50, 50, 200, 200], dtype=torch.uint8).repeat(16)
    stripes = column[None, None, :, None].expand(1, 64, 64, 3)
    values = by_name(encoder.encode(stripes)[0])
    # along the stripes always 1; across them 0 after one pixel, -1 after two, 1 after four
    for shift, value in ((1, 0.5), (2, 0.0), (4, 1.0), (8, 1.0)):
        for channel in ("grey", "haematoxylin"):
            assert values[f"{channel}_shift{shift}"] == pytest.approx(value, abs=0.02)


def test_dark_dots_stand_out_of_the_band_of_their_size(encoder):
    dots = torch.full((1, 64, 64, 3), 230, dtype=torch.uint8)
    dots[:, ::4, ::4] = torch.tensor((80, 60, 140), dtype=torch.uint8)
    values = by_name(encoder.encode(dots)[0])
    assert values["haematoxylin_band1_mean"] > 0.05
    assert values["haematoxylin_band1_skewness"] > 1
    # a square of four by four pixels holds one dot wherever it lies
    assert values["haematoxylin_band4_sd"] == pytest.approx(0, abs=1e-4)


def test_a_patch_gives_the_same_in_any_batch_and_precision(encoder, tiles):
    together = encoder.encode(tiles)
    alone = torch.cat([encoder.encode(tiles[i : i + 1]) for i in range(len(tiles))])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert torch.equal(together, encoder.encode(tiles))
    small = noise(300, 17, 21)
    torch.testing.assert_close(
        encoder.encode(small)[123:125], encoder.encode(small[123:125]), rtol=1e-5, atol=1e-6
    )
    full = encoder.encode(tiles)
    assert full.dtype == torch.float32
    assert torch.equal(encoder.encode(tiles, precision="bf16"), full)


def test_mirrored_and_transposed_patches_differ_in_the_directions_of_their_edges_alone(
    encoder, tiles
):
    plain = encoder.encode(tiles)
    mirrored = encoder.encode(tiles.flip(2))
    transposed = encoder.encode(tiles.transpose(1, 2))
    others = [i for i, name in enumerate(NAMES) if not name.startswith("edge")]
    torch.testing.assert_close(mirrored[:, others], plain[:, others], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(transposed[:, others], plain[:, others], rtol=1e-4, atol=1e-5)
    for scale in (1, 2, 4):
        for k in range(1, 8):
            edge = plain[:, NAMES.index(f"edge{k}_scale{scale}")]
            mirrored_edge = mirrored[:, NAMES.index(f"edge{8 - k}_scale{scale}")]
            # a direction halfway between two bins may fall into either
            torch.testing.assert_close(mirrored_edge, edge, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (17, 40), (27, 27), (256, 100)])
def test_patches_of_any_size_from_16_pixels(encoder, height, width):
    numbers = encoder.encode(noise(2, height, width))
    assert numbers.shape == (2, 128)
    assert torch.isfinite(numbers).all()


def test_a_linear_probe_finds_epithelium_in_images_it_has_not_seen(encoder, shared_data):
    """Tiles of 100 pixels of 40 images; the label: any epithelial nucleus. Chance is 0.5."""
    folder = shared_data / "colon_cancer"
    epithelial_cells: set[tuple[int, int, int]] = set()  # image, row and column of its squares
    with (folder / "nuclei.csv").open(newline="") as f:
        for row in csv.DictReader(f):
            if row["type"] == "epithelial":
                i = int(float(row["y"]) // 100)
                j = int(float(row["x"]) // 100)
                epithelial_cells.add((int(row["image"]), i, j))
    pixels = []
    labels = []
    images = []
    for number in range(1, 41):
        image = np.array(Image.open(folder / "images" / f"img{number:03d}.webp").convert("RGB"))
        for i, j in product(range(5), range(5)):
            pixels.append(image[100 * i : 100 * i + 100, 100 * j : 100 * j + 100])
            labels.append((number, i, j) in epithelial_cells)
            images.append(number)
    x = encoder.encode(torch.from_numpy(np.stack(pixels))).numpy()
    y = np.array(labels)
    train = np.array(images) % 2 == 0
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    probe.fit(x[train], y[train])
    assert 0.1 < y.mean() < 0.9
    assert roc_auc_score(y[~train], probe.predict_proba(x[~train])[:, 1]) > 0.8
