"""The pixels of a patch, whichever level they are from, and the pictures a person looks at."""

import numpy as np
import pytest
from support.array_slide import ArraySlide, halved, painted

from probsa.errors import RegionError
from probsa.patches import (
    Patches,
    Tissue,
    cut,
    draw_overview,
    find_tissue,
    read_patch,
    settings,
    thumbnail,
)

RANDOM = np.random.default_rng(0).integers(0, 256, (512, 640, 3)).astype(np.uint8)


def slope(downsample):
    """Return a level of a slide so smooth that what lies between its pixels is known."""
    y, x = (np.mgrid[: 1024 // downsample, : 1024 // downsample] + 0.5) * downsample
    return np.rint(np.stack([x / 4.71, y / 4.71, 100 + 0 * x], axis=-1)).astype(np.uint8)


SLOPE = slope(1)


def patches(*coords, size=64, scale=1.0, slide=None):
    return Patches(
        coords=np.array(coords, np.int64).reshape(-1, 2),
        size=size,
        size_level0=size * scale,
        overlap=0,
        mpp=None,
        mpp_level0=None,
        slide_size=(640, 512) if slide is None else slide.size,
    )


def test_at_its_own_resolution_and_at_that_of_a_level_a_patch_is_as_stored():
    small = halved(halved(RANDOM))
    slide = ArraySlide(RANDOM, halved(RANDOM), small)
    some_patches = patches((3, 5), (0, 0), (101, 333))
    for k, (x, y) in enumerate(some_patches.coords):
        patch = read_patch(slide, some_patches, k)
        np.testing.assert_array_equal(patch, RANDOM[y : y + 64, x : x + 64])
        assert patch.dtype == np.uint8
    patch = read_patch(slide, patches((80, 120), size=64, scale=4.0), 0)
    np.testing.assert_array_equal(patch, small[30:94, 20:84])
    assert slide.reads[-1] == (2, 64, 64)


@pytest.mark.parametrize("times", [2, 4])
def test_without_that_level_it_is_what_the_level_would_hold(times):
    slide = ArraySlide(RANDOM)
    patch = read_patch(slide, patches((8, 12), size=32, scale=float(times)), 0)
    region = RANDOM[12 : 12 + 32 * times, 8 : 8 + 32 * times].astype(float)
    means = region.reshape(32, times, 32, times, 3).mean(axis=(1, 3))
    assert np.abs(patch - means).max() <= 1  # Pillow rounds once per axis
    assert np.abs(patch - means).mean() < 0.5


@pytest.mark.parametrize("scale", [1.06, 1.5, 1.94, 2.5, 5.1, 0.8])
def test_between_levels_it_is_resampled_in_place(scale):
    slide = ArraySlide(SLOPE, slope(2), slope(4))
    patch = read_patch(slide, patches((39, 115), size=128, scale=scale, slide=slide), 0)
    centres = (np.arange(128) + 0.5) * scale
    inside = slice(3, -3)  # at the border Pillow has no pixels beyond the region
    error_x = patch[..., 0].mean(0) - (39 + centres) / 4.71
    error_y = patch[..., 1].mean(1) - (115 + centres) / 4.71
    for error in (error_x, error_y):
        assert np.abs(error[inside]).max() < 0.9  # a value is 5 pixels wide
        assert abs(error[inside].mean()) < 0.15  # a pixel of the slide is 0.2
    assert (patch[..., 2] == 100).all()
    level, width, _ = slide.reads[0]
    assert level == (scale >= 2) + (scale >= 4)
    assert np.ceil(128 * scale / 2**level) <= width <= np.ceil(128 * scale / 2**level) + 1


def test_a_level_a_little_coarser_than_the_patch_stands_in_for_it():
    small = halved(halved(SLOPE))[:255]
    assert small.shape[:2] == (255, 256)
    slide = ArraySlide(SLOPE, small)
    assert slide.levels[1].downsample == pytest.approx(4.008, abs=1e-3)
    patch = read_patch(slide, patches((400, 400), size=64, scale=4.0, slide=slide), 0)
    assert slide.reads == [(1, 64, 64)]
    np.testing.assert_array_equal(patch, small[100:164, 100:164])
    # 4.06 is more than 1 % coarser: the level before it
    slide = ArraySlide(SLOPE, halved(halved(SLOPE))[:252, :252])
    read_patch(slide, patches((400, 400), size=64, scale=4.0, slide=slide), 0)
    assert slide.reads == [(0, 256, 256)]


def test_a_patch_over_the_edge_is_white_there():
    slide = ArraySlide(RANDOM)
    expected = np.full((64, 64, 3), 255, np.uint8)
    expected[:12, :20] = RANDOM[500:, 620:]
    np.testing.assert_array_equal(read_patch(slide, patches((620, 500)), 0), expected)
    half = read_patch(slide, patches((576, 448), size=64, scale=2.0), 0)
    assert (half[32:] == 255).all() and (half[:, 32:] == 255).all()
    slide = ArraySlide(RANDOM, halved(RANDOM))
    for scale in np.linspace(0.5, 5, 46):
        for corner in ((0, 0), (639, 511), (317, 201)):
            assert read_patch(slide, patches(corner, size=33, scale=scale), 0).shape == (33, 33, 3)
    slide = ArraySlide(RANDOM, broken=((300, 300, 10, 10),))
    with pytest.raises(RegionError):
        read_patch(slide, patches((280, 280)), 0)


@pytest.fixture
def ring():
    image = painted(2000, 1600, (1000, 800, 800, 600))
    y, x = np.mgrid[:1600, :2000]
    image[(x - 1000) ** 2 + (y - 800) ** 2 < 250**2] = 244
    return ArraySlide(image, mpp=0.5)


def test_the_overview_marks_tissue_holes_and_patches_where_they_are(ring):
    tissue = find_tissue(ring)
    some_patches = cut(ring, tissue, settings(size=256))
    picture = draw_overview(thumbnail(ring, 500), tissue, some_patches)
    plain = thumbnail(ring, 500)
    assert picture.size == plain.size == (500, 400)
    pixels = np.asarray(picture).astype(int)
    blue = (pixels[..., 2] > 150) & (pixels[..., 0] < 60)
    orange = (pixels[..., 0] > 180) & (pixels[..., 2] < 60)
    y, x = np.mgrid[:400, :500]
    ellipse = np.hypot((x - 250) / 200, (y - 200) / 150)
    assert blue.sum() > 1500
    assert np.abs(ellipse[blue] - 1).max() < 0.06
    assert orange.sum() > 500
    assert np.abs(np.hypot(x - 250, y - 200)[orange] - 62.5).max() < 6
    covered = np.zeros((400, 500), bool)
    for left, top in (some_patches.coords / 4).astype(int):
        covered[top : top + 65, left : left + 65] = True
    is_marked = (pixels != np.asarray(plain)).any(axis=2)
    assert is_marked[covered].mean() > 0.99
    assert not is_marked[~covered & ~blue & ~orange].any()


def test_overviews_of_small_patches_and_of_none(ring):
    tissue = Tissue(polygons=(), slide_size=ring.size)
    some_patches = cut(ring, find_tissue(ring), settings(size=16, mpp=0.5))
    picture = np.asarray(draw_overview(thumbnail(ring, 500), tissue, some_patches)).astype(int)
    plain = np.asarray(thumbnail(ring, 500)).astype(int)
    assert len(some_patches) > 4000
    assert np.abs(picture - plain).max() < 60
    slide = ArraySlide(np.full((900, 700, 3), 244, np.uint8), mpp=0.5)
    tissue = find_tissue(slide)
    plain = thumbnail(slide, 300)
    picture = draw_overview(plain, tissue, cut(slide, tissue, settings()))
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(plain))
    slide = ArraySlide(RANDOM)
    assert thumbnail(slide, 100).size == (100, 80)
    assert thumbnail(slide).size == (640, 512)
    np.testing.assert_array_equal(np.asarray(thumbnail(slide)), RANDOM)


def test_a_thumbnail_is_a_region_as_maps_and_the_page_show_it():
    slide = ArraySlide(RANDOM[:503, :617])
    picture = thumbnail(slide, 100)
    assert picture.size == (100, 81)  # 81.5 rows: the last whole one ends the picture
    region = slide.region((0.0, 0.0, 617.0, 503.0), scale=6.17)
    np.testing.assert_array_equal(np.asarray(picture), region.image)
