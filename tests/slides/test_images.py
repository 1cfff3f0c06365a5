"""Plain images as slides."""

import numpy as np
import pytest
from PIL import Image
from support.refusals import refused
from support.written_slides import texture

from probsa.errors import SlideError
from probsa.slides import open_slide


def whole(slide):
    width, height = slide.size
    return slide.read(x=0, y=0, level=0, width=width, height=height)


@pytest.mark.parametrize("ending", ["png", "bmp", "webp", "jp2"])
def test_an_image_without_loss_is_read_as_it_is(tmp_path, ending):
    image = texture(120, 150)
    path = tmp_path / f"a.{ending}"
    lossless = {"webp": {"lossless": True}}.get(ending, {})
    Image.fromarray(image).save(path, **lossless)
    with open_slide(path) as slide:
        assert slide.format == {"jp2": "jpeg2000"}.get(ending, ending) and slide.name == "a"
        assert slide.size == (150, 120) and slide.levels[0].downsample == 1.0
        assert slide.mpp is None and slide.properties["mode"] == "RGB"
        assert np.array_equal(whole(slide), image)
        got = slide.read(x=-5, y=100, level=0, width=50, height=40)
        assert np.array_equal(got[:20, 5:], image[100:, :45])
        assert got[20:].min() == 255 and got[:, :5].min() == 255
        assert slide.read(x=500, y=0, level=0, width=3, height=2).tolist() == [[[255] * 3] * 3] * 2
    refused(SlideError, slide.path.name, whole, slide)
    slide.close()


def test_a_jpeg_is_read_whatever_its_ending(tmp_path):
    path = tmp_path / "a.tif"
    Image.fromarray(texture(120, 150)).save(path, "JPEG", quality=95)
    with open_slide(path) as slide:
        assert slide.format == "jpeg"
        assert np.array_equal(whole(slide), np.asarray(Image.open(path)))


def test_grey_palette_opacity_and_inks_become_rgb_on_white(tmp_path):
    grey = texture(40, 50, 1)[..., 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(whole(open_slide(tmp_path / "grey.png")), np.stack([grey] * 3, -1))
    Image.fromarray(grey > 128).save(tmp_path / "bits.png")
    bits = np.stack([np.where(grey > 128, 255, 0)] * 3, -1)
    assert np.array_equal(whole(open_slide(tmp_path / "bits.png")), bits)
    palette = Image.fromarray(grey % 4, mode=None).convert("L")
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9] + [0] * 756)
    palette.save(tmp_path / "p.png", transparency=3)
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8)
    assert np.array_equal(whole(open_slide(tmp_path / "p.png")), colours[grey % 4])
    rgba = texture(40, 50, 4)
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    share = rgba[..., 3:] / 255
    meant = rgba[..., :3] * share + 255 * (1 - share)
    assert np.abs(whole(open_slide(tmp_path / "rgba.png")) - meant).max() <= 0.51
    Image.new("CMYK", (20, 10), (255, 0, 0, 0)).save(tmp_path / "inks.jpg", quality=95)
    cyan = whole(open_slide(tmp_path / "inks.jpg")).reshape(-1, 3).mean(0)
    assert cyan[0] < 5 and cyan[1] > 250 and cyan[2] > 250


@pytest.mark.parametrize(
    ("dpi", "mpp"), [(50_800, 0.5), (101_600, 0.25), (72, None), (300, None), (96, None)]
)
def test_a_density_counts_unless_it_is_a_printers(tmp_path, dpi, mpp):
    path = tmp_path / "a.png"
    Image.fromarray(texture(20, 30)).save(path, dpi=(dpi, dpi))
    with open_slide(path) as slide:
        assert slide.mpp == (pytest.approx(mpp, rel=1e-4) if mpp else None)
        assert slide.mpp_source == ("dots per inch" if mpp else None)
    with open_slide(path, mpp=2.0) as slide:
        assert slide.mpp == 2.0


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "webp"])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_an_image_that_was_cut_short_is_refused(tmp_path, ending, share):
    path = tmp_path / f"a.{ending}"
    Image.fromarray(texture(200, 300)).save(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(SlideError) as e:
        open_slide(path)
    assert str(path) in str(e.value)


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_refused(tmp_path, channels):
    import cv2

    path = tmp_path / "deep.png"
    assert cv2.imwrite(str(path), np.zeros((20, 30, channels), np.uint16))
    refused(SlideError, path.name, open_slide, path)


def test_an_image_too_large_for_one_piece_is_sent_to_tiles(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.fromarray(texture(60, 70)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)  # Pillow warns at 3000, refuses at 6000
    with open_slide(path) as slide:
        assert slide.size == (70, 60)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    refused(SlideError, path.name, open_slide, path)
