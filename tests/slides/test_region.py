"""A part of a slide at any scale: its pixels, the level that is read, undecodable parts."""

import numpy as np
import pytest
from support.array_slide import ArraySlide, halved
from support.made_maps import pink
from support.refusals import refused

from probsa.errors import RegionError, SlideError
from probsa.slides import _base


def region(slide, *, scale, box=None):
    return slide.region(box or (0.0, 0.0, *map(float, slide.size)), scale=scale)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_tissue_is_the_mean_of_what_a_pixel_covers(factor):
    image = pink()
    picture = region(ArraySlide(image), scale=float(factor)).image
    h, w = image.shape[0] // factor, image.shape[1] // factor
    expected = image.reshape(h, factor, w, factor, 3).mean((1, 3))
    assert picture.shape == (h, w, 3)
    assert np.abs(picture - expected).max() <= 1


def test_tissue_is_the_mean_of_what_a_pixel_covers_at_any_scale():
    image = pink()
    scale = 3.7
    left = 21.3
    top = 13.1
    box = (left, top, left + 300, top + 250)
    picture = region(ArraySlide(image), scale=scale, box=box)
    assert picture.image.shape == (int(250 / scale), int(300 / scale), 3)
    assert (picture.left, picture.top, picture.mpp) == (left, top, scale * 0.5)
    x, y = np.arange(640) + 0.5, np.arange(512) + 0.5
    for r in range(0, picture.image.shape[0], 5):
        for c in range(0, picture.image.shape[1], 7):
            across = (x > left + c * scale) & (x < left + (c + 1) * scale)
            down = (y > top + r * scale) & (y < top + (r + 1) * scale)
            expected = image[down][:, across].astype(float).mean((0, 1))
            assert np.abs(picture.image[r, c] - expected).max() <= 1.01, (r, c)
    image = pink(70, 50)
    picture = region(ArraySlide(image), scale=1 / 3)
    np.testing.assert_array_equal(picture.image, np.kron(image, np.ones((3, 3, 1), np.uint8)))
    assert picture.extent == (0, 70, 50, 0) and picture.whole
    assert picture.mpp == pytest.approx(0.5 / 3)
    image = pink()
    pyramid = (image, halved(image), halved(halved(image)))
    for scale, level in ((1.0, 0), (1.9, 0), (2.0, 1), (3.9, 1), (4.0, 2), (30.0, 2)):
        slide = ArraySlide(*pyramid)
        region(slide, scale=scale)
        assert {read[0] for read in slide.reads} == {level}


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.7, 0.5])
def test_blocks_make_no_seams_and_bound_what_is_read(monkeypatch, scale):
    box = (10.33, 20.07, 610.0, 500.0) if scale == 3.7 else (10.0, 20.0, 610.0, 500.0)
    image = pink()
    at_once = region(ArraySlide(image), scale=scale, box=box).image
    monkeypatch.setattr(_base, "BLOCK", 100)
    slide = ArraySlide(image)
    blocks = region(slide, scale=scale, box=box)
    assert np.abs(blocks.image.astype(int) - at_once).max() <= 1
    assert blocks.blocks == len(slide.reads) > 20
    assert max(max(w, h) for _, w, h in slide.reads) <= 102


def test_what_cannot_be_decoded_is_grey_and_counted(monkeypatch):
    monkeypatch.setattr(_base, "BLOCK", 128)
    image = pink()
    slide = ArraySlide(image, broken=[(300, 200, 10, 10)])
    picture = region(slide, scale=1.0)
    assert (picture.undecoded, picture.blocks) == (1, 20)
    assert (picture.image[128:256, 256:384] == _base.UNDECODED).all()
    np.testing.assert_array_equal(picture.image[:128], image[:128])
    refused(RegionError, "broken", region, ArraySlide(image, broken=[(0, 0, 640, 512)]), scale=1.0)


def test_what_is_left_of_blocks_that_are_all_damaged_is_shown(monkeypatch):
    monkeypatch.setattr(_base, "BLOCK", 512)
    image = np.random.default_rng(0).integers(0, 200, (1024, 1024, 3)).astype(np.uint8)
    slide = ArraySlide(image, broken=[(500, 0, 20, 1024)])  # crosses all four blocks
    picture = region(slide, scale=1.0)
    assert (picture.undecoded, picture.blocks) == (4, 4)
    np.testing.assert_array_equal(picture.image[:, :256], image[:, :256])
    np.testing.assert_array_equal(picture.image[:, 768:], image[:, 768:])
    assert (picture.image[:, 256:768] == _base.UNDECODED).all()


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, MemoryError])
def test_what_is_not_damage_is_not_called_so(tmp_path, error):
    path = tmp_path / "gone.svs"
    with pytest.raises(SlideError) as caught, _base.decoding(path):
        raise error(13, "the reason")
    assert "damaged or truncated" not in str(caught.value)


def test_around_a_damaged_tile_the_slide_is_shown():
    """Also if the whole picture is one block."""
    image = np.random.default_rng(0).integers(0, 200, (1024, 1024, 3)).astype(np.uint8)
    slide = ArraySlide(image, broken=[(300, 600, 10, 10)])
    picture = region(slide, scale=2.0)
    assert (picture.undecoded, picture.blocks) == (1, 1)
    whole = region(ArraySlide(image), scale=2.0).image
    grey = (picture.image == _base.UNDECODED).all(axis=2)
    assert grey[256:384, 128:256].all() and grey.sum() == 128 * 128
    assert (picture.image[~grey] == whole[~grey]).all()
