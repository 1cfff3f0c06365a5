"""The factors of levels: padded to whole tiles, rounded, or undecided."""

import math

import numpy as np
import pydicom
import pytest
import tifffile
from support.made_dicom import write_dicom_slide
from support.made_slides import tissue, write_slide

from probsa.cohorts import patch_cohort
from probsa.patches import settings
from probsa.patches.pixels import reduced
from probsa.slides import open_slide
from probsa.slides.levels import StoredLevel, decide_levels

GLASS = 243


def glass_with_tissue(width, height):
    """Return glass with a pink rectangle far from the corner, and its (x, y, width, height)."""
    box = (width * 6 // 10, height * 6 // 10, width // 4, height // 4)
    return tissue(width, height, boxes=[box]), box


def shrunk(image, factor, rounding):
    """Return the means of squares of `factor` pixels.

    Squares that the image does not fill are filled up by its edge (`rounding="up"`) or left out.
    """
    height, width = image.shape[:2]
    rows = height // factor
    columns = width // factor
    if rounding == "up":
        rows = math.ceil(height / factor)
        columns = math.ceil(width / factor)
    missing_rows = max(0, rows * factor - height)
    missing_columns = max(0, columns * factor - width)
    filled = np.pad(image, [(0, missing_rows), (0, missing_columns), (0, 0)], mode="edge")
    filled = filled[: rows * factor, : columns * factor]
    squares = filled.reshape(rows, factor, columns, factor, 3)
    return squares.mean((1, 3)).round().astype(np.uint8)


def padded(image, tile, colour=GLASS):
    """Pad to whole tiles of (width, height)."""
    height, width = image.shape[:2]
    below = -height % tile[1]
    right = -width % tile[0]
    return np.pad(image, [(0, below), (0, right), (0, 0)], constant_values=colour)


def write_tiff(path, images, tile):
    options = {"photometric": "rgb", "tile": (tile[1], tile[0]), "compression": "deflate"}
    resolution = {"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path) as f:
        f.write(images[0], **options, **resolution, metadata=None)
        for image in images[1:]:
            f.write(image, **options, subfiletype=1, metadata=None)
    return path


def write_ome(path, images, tile):
    options = {"photometric": "rgb", "tile": (tile[1], tile[0]), "compression": "deflate"}
    metadata = {"axes": "YXS", "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    with tifffile.TiffWriter(path, ome=True) as f:
        f.write(images[0], subifds=len(images) - 1, metadata=metadata, **options)
        for image in images[1:]:
            f.write(image, subfiletype=1, **options)
    return path


def write_dicom(path, images, tile):
    assert tile[0] == tile[1]
    path.mkdir()
    for k, image in enumerate(images):
        file = write_dicom_slide(path / f"L{k}.dcm", image, tile=tile[0])
        level = pydicom.dcmread(file)
        level.SeriesInstanceUID = level.FrameOfReferenceUID = "1.2.3.4"
        level.save_as(file)
    return path / "L0.dcm"


WRITERS = {"tiff": write_tiff, "ome.tiff": write_ome, "dicom": write_dicom}
PADDED = [
    # width, height, factors, tile, rounding, colour of the padding
    (4663, 3209, (4, 16), (256, 256), "down", GLASS),
    (4663, 3209, (2, 4, 8, 16), (256, 256), "down", 0),
    (4663, 3209, (3, 9), (256, 256), "up", 0),
    (3001, 2501, (4,), (128, 128), "up", 0),
    (2048, 1501, (2, 4), (256, 256), "down", 0),  # only the vertical axis is padded
    (3331, 3331, (4, 16), (256, 256), "down", 0),  # a square: both ratios are equal and wrong
]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("case", PADDED, ids=[f"{c[0]}x{c[1]}-{c[2]}" for c in PADDED])
def test_padded_levels_are_read_at_the_right_place(tmp_path, kind, case):
    width, height, factors, tile, rounding, colour = case
    image, (x, y, w, h) = glass_with_tissue(width, height)
    levels = [padded(shrunk(image, f, rounding), tile, colour) for f in factors]
    path = WRITERS[kind](tmp_path / f"a.{kind}", [image, *levels], tile)
    with open_slide(path) as slide:
        assert [v.downsample for v in slide.levels] == [1.0, *map(float, factors)]
        assert slide.size == (width, height)
        for k, factor in enumerate((1, *factors)):
            # the corner and the end of the tissue, and glass beside it
            corner = {"x": x, "y": y, "level": k}
            inside = slide.read(**corner, width=w // factor, height=h // factor)
            assert inside[2:-2, 2:-2, 1].max() < 150
            outside = slide.read(x=x - 8 * factor, y=y, level=k, width=6, height=h // factor)
            assert outside[..., 1].min() > 230
            # padding is outside the slide, hence white
            right = slide.read(x=width, y=0, level=k, width=40, height=40)
            assert right.min() == 255
        for scale in (float(factors[-1]), factors[0] * 1.7):
            picture = reduced(slide, scale=scale)
            rows, columns = np.nonzero(picture.pixels[..., 1] < 180)
            box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            np.testing.assert_allclose(box * scale, (x, y, x + w, y + h), atol=2 * scale)


def test_patches_of_a_padded_slide_lie_on_its_tissue(tmp_path):
    image, _ = glass_with_tissue(4663, 3209)
    levels = [padded(shrunk(image, f, "down"), (256, 256)) for f in (4, 16)]
    (tmp_path / "s").mkdir()
    write_tiff(tmp_path / "s" / "a.tif", [image, *levels], (256, 256))
    write_slide(tmp_path / "s" / "plain.tif", image)
    chosen = settings(size=64, mpp=2.0)
    (report,) = patch_cohort(tmp_path / "s", tmp_path / "w", settings=chosen)
    padded_slide, plain = report.outcomes
    assert padded_slide.count == plain.count > 5
    assert padded_slide.notes and not plain.notes


def level(width, height, tile=256, downsample=None):
    square = None if tile is None else (tile, tile)
    return StoredLevel(width=width, height=height, tile=square, downsample=downsample)


@pytest.mark.parametrize(
    ("sizes", "tile", "wanted"),
    [
        # rounding of each level, of all of them, and of real slides
        ([(46000, 32914), (11500, 8228), (2875, 2057)], 256, [4.000121, 16.00048]),
        ([(2220, 2967), (1110, 1483), (555, 741)], 256, [2.000337, 4.002024]),
        ([(4443, 3567), (2221, 1783)], 256, [2.000506]),
        ([(1001, 777), (501, 389), (251, 195), (126, 98)], 128, [1.997704, 3.986339, 7.936508]),
        ([(2500, 1750), (1000, 700)], 256, [2.5]),
        ([(2560, 1280), (1024, 512)], 256, [2.5]),
        ([(1536, 1536), (512, 512)], 512, [3.0]),
        ([(4096, 3072), (1024, 768), (256, 192)], 256, [4.0, 16.0]),
        ([(1024, 1024), (512, 512), (256, 256)], 256, [2.0, 4.0]),
        # levels of one tile, the last of them padded
        ([(1024, 1024), (512, 512), (256, 256), (256, 256)], 256, [2.0, 4.0, 8.0]),
        ([(4663, 3209), (1280, 1024), (512, 256), (256, 256)], 256, [4.0, 16.0, 64.0]),
        ([(4663, 3209), (1792, 1280), (768, 512)], 256, [3.0, 9.0]),
        # what is unexplained or has several explanations
        ([(4663, 3209), (512, 256)], 256, [None]),
        ([(4663, 3209), (1280, 1024)], None, [None]),
        ([(4663, 3209), (1300, 1024), (291, 200)], 256, [None, 16.03453]),
        ([(2560, 2560), (768, 768)], 256, [None]),
        ([(1536, 1536), (768, 768), (512, 512)], 256, [2.0, None]),
    ],
)
def test_the_factor_of_each_level(sizes, tile, wanted):
    pyramid = decide_levels([level(*size, tile) for size in sizes])
    levels = dict(zip(pyramid.places, pyramid.levels, strict=True))
    factors = [levels[k].downsample if k in levels else None for k in range(1, len(sizes))]
    assert factors == [f if f is None else pytest.approx(f, rel=1e-5) for f in wanted]
    cropped = [k for k, v in levels.items() if (v.width, v.height) != sizes[k]]
    assert len(pyramid.notes) == len(cropped) + factors.count(None)


def test_what_a_reader_states_from_metadata_is_kept():
    pyramid = decide_levels([level(5000, 3000), level(1536, 1024, downsample=4.0)])
    assert pyramid.levels[1].downsample == 4.0 and pyramid.notes == ()
