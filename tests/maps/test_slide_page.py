"""Maps over slides: the pixels of the tissue, of the squares, and of the page."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from support.array_slide import ArraySlide, halved
from support.made_maps import SIDE, axes, bag, lattice, pink, prediction, rgb

from probsa.errors import InputError, RegionError, SlideError
from probsa.maps import tissue
from probsa.maps.blending import LUMINANCE, Squares, blend, check_fits, colours, owners, squares
from probsa.maps.page import draw_page, render_page, round_length
from probsa.maps.panels import panels_of
from probsa.maps.scale import bag_limits
from probsa.maps.tissue import UNDECODED, chosen_scale, shown_box, view
from probsa.slides import open_slide


def mean_panel(p):
    return next(panels_of(p, bag_limits(p), scale="per-bag"))


def picture_of(slide, *, scale, box=None):
    whole = (0.0, 0.0, *map(float, slide.size))
    return view(slide, box or whole, scale=scale, mpp=slide.mpp)


# --- the tissue -------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_tissue_is_the_mean_of_what_a_pixel_covers(factor):
    image = pink()
    picture = picture_of(ArraySlide(image), scale=float(factor)).image
    h, w = image.shape[0] // factor, image.shape[1] // factor
    expected = image.reshape(h, factor, w, factor, 3).mean((1, 3))
    assert picture.shape == (h, w, 3)
    assert np.abs(picture - expected).max() <= 1


def test_a_scale_that_divides_nothing_takes_the_pixels_whose_centres_are_covered():
    image, scale, left, top = pink(), 3.7, 21.3, 13.1
    box = (left, top, left + 300, top + 250)
    picture = picture_of(ArraySlide(image), scale=scale, box=box)
    assert picture.image.shape == (int(250 / scale), int(300 / scale), 3)
    assert (picture.left, picture.top, picture.mpp) == (left, top, scale * 0.5)
    x, y = np.arange(640) + 0.5, np.arange(512) + 0.5
    for r in range(0, picture.image.shape[0], 5):
        for c in range(0, picture.image.shape[1], 7):
            across = (x > left + c * scale) & (x < left + (c + 1) * scale)
            down = (y > top + r * scale) & (y < top + (r + 1) * scale)
            expected = image[down][:, across].astype(float).mean((0, 1))
            assert np.abs(picture.image[r, c] - expected).max() <= 1.01, (r, c)


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.7, 0.5])
def test_blocks_make_no_seams_and_bound_what_is_read(monkeypatch, scale):
    box = (10.33, 20.07, 610.0, 500.0) if scale == 3.7 else (10.0, 20.0, 610.0, 500.0)
    image = pink()
    at_once = picture_of(ArraySlide(image), scale=scale, box=box).image
    monkeypatch.setattr(tissue, "BLOCK", 100)
    slide = ArraySlide(image)
    blocks = picture_of(slide, scale=scale, box=box)
    assert np.abs(blocks.image.astype(int) - at_once).max() <= 1
    assert blocks.blocks == len(slide.reads) > 20
    assert max(max(w, h) for _, w, h in slide.reads) <= 102


def test_the_coarsest_level_that_is_fine_enough_is_read():
    image = pink()
    pyramid = (image, halved(image), halved(halved(image)))
    for scale, level in ((1.0, 0), (1.9, 0), (2.0, 1), (3.9, 1), (4.0, 2), (30.0, 2)):
        slide = ArraySlide(*pyramid)
        picture_of(slide, scale=scale)
        assert {read[0] for read in slide.reads} == {level}


@pytest.mark.parametrize("scale", [2.0, 4.0, 5.3])
def test_one_level_and_pyramid_give_the_same_overlay(scale):
    image = pink()
    one, many = ArraySlide(image), ArraySlide(image, halved(image), halved(halved(image)))
    p = bag(lattice())
    blended = []
    for slide in (one, many):
        picture = picture_of(slide, scale=scale)
        blended.append(blend(picture, owners(squares(p), picture), mean_panel(p)).astype(int))
    assert np.abs(blended[0] - blended[1]).max() <= (2 if scale != 5.3 else 12)
    assert np.abs(blended[0] - blended[1]).mean() < 1.0


def test_real_slide_and_its_pyramid_give_the_same_overlay(shared_data):
    p = bag(lattice(12, 20, at=(600, 700)))
    blended = []
    for name in ("CMU-1-Small-Region.svs", "CMU-1-Small-Region_derived_pyramid.tiff"):
        with open_slide(shared_data / "wsi" / name) as slide:
            picture = picture_of(slide, scale=4.0)
            patch_rows = owners(squares(p), picture)
            blended.append(blend(picture, patch_rows, mean_panel(p)).astype(float))
    assert blended[0].shape == blended[1].shape == (741, 555, 3)
    # the pyramid was recompressed, and its levels are not exact means
    off = np.abs(blended[0] - blended[1]).max(-1)[patch_rows >= 0]
    assert off.mean() < 4
    assert np.quantile(off, 0.99) < 25
    one, two = (m @ LUMINANCE for m in blended)
    shifts = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    shifted = [np.abs(one - np.roll(two, shift, (0, 1))).mean() for shift in shifts]
    assert shifts[int(np.argmin(shifted))] == (0, 0)


def test_what_cannot_be_decoded_is_grey_and_counted(monkeypatch):
    monkeypatch.setattr(tissue, "BLOCK", 128)
    image = pink()
    slide = ArraySlide(image, broken=[(300, 200, 10, 10)])
    picture = picture_of(slide, scale=1.0)
    assert (picture.undecoded, picture.blocks) == (1, 20)
    assert (picture.image[128:256, 256:384] == UNDECODED).all()
    np.testing.assert_array_equal(picture.image[:128], image[:128])
    with pytest.raises(RegionError, match="broken"):
        picture_of(ArraySlide(image, broken=[(0, 0, 640, 512)]), scale=1.0)


def test_small_parts_are_enlarged_by_a_whole_number():
    image = pink(70, 50)
    scale = chosen_scale((0.0, 0.0, 70.0, 50.0), longest=240)
    assert scale == 1 / 3
    picture = picture_of(ArraySlide(image), scale=scale)
    np.testing.assert_array_equal(picture.image, np.kron(image, np.ones((3, 3, 1), np.uint8)))
    assert picture.extent == (0, 70, 50, 0)
    assert picture.mpp == pytest.approx(0.5 / 3)


def test_scale_follows_the_resolution_or_the_longest_side():
    box = (100.0, 0.0, 40_100.0, 30_000.0)
    assert chosen_scale(box, longest=1200) == pytest.approx(40_000 / 1200)
    assert chosen_scale(box, resolution=10.0, mpp=0.25) == 40
    assert (
        chosen_scale((0.0, 0.0, 500.0, 500.0), resolution=0.1, mpp=0.25) == 1
    )  # never finer than the slide
    with pytest.raises(SlideError, match=r"--slide-mpp.*--longest"):
        chosen_scale(box, resolution=10.0)
    with pytest.raises(InputError, match=r"40,000 × 30,000 pixels is too large.*--resolution") as e:
        chosen_scale(box, resolution=0.25, mpp=0.25)
    coarse = float(str(e.value).split("--resolution ")[1])
    assert chosen_scale(box, resolution=coarse * 1.01, mpp=0.25) > 4
    with pytest.raises(InputError, match="at most --longest 9237"):
        chosen_scale((0.0, 0.0, 400_000.0, 300_000.0), longest=20_000)


def test_all_of_the_slide_is_shown_where_the_patches_span_a_good_part_of_it():
    size = (640, 512)
    assert shown_box(lattice(), float(SIDE), size=size) == ((0.0, 0.0, 640.0, 512.0), True)
    few = lattice(2, 3)
    box, whole = shown_box(few, float(SIDE), size=size)
    assert not whole
    assert box == (32.0, 64.0, 64 + 128 + 32.0, 96 + 192 + 32.0)
    box, _ = shown_box(np.array([[0, 480]]), float(SIDE), size=size)
    assert box == (0.0, 448.0, 96.0, 512.0)


# --- the squares ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 4.0, 5.3, 40.0])
@pytest.mark.parametrize("kind", ["lattice", "two lattices", "overlapping"])
def test_each_pixel_shows_the_patch_below_its_centre(scale, kind):
    corners = lattice()
    if kind == "two lattices":  # as CLAM cuts two pieces of tissue
        corners = np.concatenate([corners, lattice(3, 3, at=(301, 157))])
    p = bag(corners)
    s = squares(p, side=SIDE * 2.0 if kind == "overlapping" else None)
    assert s.side == (128 if kind == "overlapping" else 64)
    picture = picture_of(ArraySlide(pink()), scale=scale)
    shown = owners(s, picture)
    height, width = shown.shape
    cells = corners + (32 if kind == "overlapping" else 0)  # the middle of a patch of 128
    if scale == 40.0:  # squares are under two pixels wide; uncovered ones must not be lost
        assert set(np.unique(shown)) >= {-1, len(corners) - 1}
        return
    for y in range(0, height, 7):
        for x in range(0, width, 5):
            at = np.array([x + 0.5, y + 0.5]) * scale
            inside = ((at >= cells) & (at < cells + SIDE)).all(1)
            expected = np.flatnonzero(inside)[-1] if inside.any() else -1
            on_edge = np.abs(np.concatenate([at - cells, at - cells - SIDE])).min() < 1e-6
            assert shown[y, x] == expected or on_edge, (x, y)


def test_a_patch_smaller_than_a_pixel_still_has_one():
    p = bag(np.array([[64, 64], [320, 320]]))
    picture = picture_of(ArraySlide(pink()), scale=200.0)
    shown = owners(squares(p), picture)
    np.testing.assert_array_equal(shown, [[0, -1, -1], [-1, 1, -1]])


@pytest.mark.parametrize("alpha", [0.25, 0.6, 1.0])
def test_a_square_is_its_colour_over_grey_tissue_and_the_rest_is_tissue(alpha):
    p = bag(lattice(), mean=np.r_[np.linspace(-1, 1, 29), np.nan])
    slide = ArraySlide(pink())
    picture = picture_of(slide, scale=2.0)
    blended = blend(picture, owners(squares(p), picture), mean_panel(p), alpha=alpha)
    for k, (x, y) in enumerate(p.coords[:-1]):
        part = np.s_[y // 2 : y // 2 + 32, x // 2 : x // 2 + 32]
        grey = picture.image[part] @ LUMINANCE
        expected = alpha * rgb("mean", k / 28) + (1 - alpha) * grey[..., None]
        assert np.abs(blended[part] - expected).max() <= 1
    covered = np.zeros(picture.image.shape[:2], bool)
    for x, y in p.coords[:-1]:
        covered[y // 2 : y // 2 + 32, x // 2 : x // 2 + 32] = True
    # the last patch has no value, so it shows tissue, as does everything outside patches
    assert (~covered).sum() > 1000
    np.testing.assert_array_equal(blended[~covered], picture.image[~covered])


def test_coordinates_of_another_slide_are_refused():
    size = (640, 512)
    check_fits(squares(bag([[-10, -10], [639, 511]])), size=size, name="a", slide="s.svs")
    for wrong in ([[0, 0], [640, 0]], [[0, 0], [0, 512]], [[-64, 0], [0, 0]]):
        with pytest.raises(InputError, match=r"'a' begin.*s\.svs is 640 × 512 pixels.*another"):
            check_fits(squares(bag(wrong)), size=size, name="a", slide="s.svs")
    with pytest.raises(InputError, match="its instances are slices"):
        squares(prediction(np.arange(3)[:, None], [1, 2, 3], kind="ct"))
    with pytest.raises(InputError, match="has no coordinates"):
        squares(prediction(None, [1, 2, 3]))


# --- the page ---------------------------------------------------------------------------------


def panel_on(picture: np.ndarray, ax) -> np.ndarray:
    """Return the pixels inside a panel, without its frame."""
    box = ax.get_window_extent()
    x, y = round(box.x0), round(len(picture) - box.y1)
    return picture[y : y + round(box.height), x : x + round(box.width)]


@pytest.mark.parametrize("size", [(640, 512), (300, 900), (1500, 400)])
def test_the_page_shows_the_pixels_of_picture_and_blend(tmp_path, size):
    slide = ArraySlide(pink(*size))
    p = bag(lattice(3, 4), instance_labels=np.array([0, 1, -1] * 4))
    picture, s = picture_of(slide, scale=1.0), squares(p)
    path = tmp_path / "map.png"
    render_page(p, path, picture, s, alpha=0.5)
    drawn = np.asarray(Image.open(path).convert("RGB"))
    figure = draw_page(p, picture, s, alpha=0.5)
    patch_rows = owners(s, picture)
    inner = np.s_[3:-3, 3:-3]
    panels = {v.quantity: v for v in panels_of(p, bag_limits(p), scale="per-bag")}
    for name in ("mean", "variance", "labels"):
        expected = blend(picture, patch_rows, panels[name], alpha=0.5)
        shown = panel_on(drawn, axes(figure, name))
        assert shown.shape == expected.shape
        np.testing.assert_array_equal(shown[inner], expected[inner])
    shown = panel_on(drawn, axes(figure, "tissue"))
    changed = (shown[inner] != picture.image[inner]).any(-1)  # the scale bar, at the lower right
    rows, columns = np.nonzero(changed)
    assert changed.any()
    assert rows.min() > changed.shape[0] - 80
    assert columns.min() > changed.shape[1] / 3 or size[0] < 400


@pytest.mark.parametrize("size", [(640, 512), (250, 1600), (1600, 250), (64, 64)])
@pytest.mark.parametrize("classes", [1, 2])
def test_nothing_on_the_page_is_cut_off_or_overlaps(size, classes):
    corners = lattice(2, 2, at=(0, 0)) if min(size) > 64 else np.array([[0, 0]])
    n = len(corners)
    p = bag(corners, instance_labels=np.arange(n) % 2, name="a-long-name-" * 9)
    if classes > 1:
        p = replace(
            p,
            attention_mean=np.stack([p.attention_mean] * 2, 1),
            attention_variance=np.stack([p.attention_variance] * 2, 1),
            probability=np.array([0.2, 0.8], np.float32),
            std=np.zeros(2, np.float32),
        )
    slide = ArraySlide(pink(*size))
    box = (0.0, 0.0, float(size[0]), float(size[1]))
    picture = view(slide, box, scale=chosen_scale(box, longest=600), mpp=0.25, whole=True)
    figure = draw_page(p, picture, squares(p))
    figure.canvas.draw()
    boxes = {str(a.get_label()): a.get_tightbbox() for a in figure.axes}
    for box in (*boxes.values(), figure.texts[0].get_window_extent()):
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    frames = [box for name, box in boxes.items() if "bar" not in name]
    assert len(frames) == 1 + 3 * classes
    for k, one in enumerate(frames):
        assert not any(one.overlaps(two) for two in frames[k + 1 :])
    assert not any(figure.texts[0].get_window_extent().overlaps(box) for box in frames)


@pytest.mark.parametrize(("mpp", "text"), [(0.5, "50 µm"), (8.0, "1 mm"), (None, "")])
def test_the_scale_bar_is_as_long_as_it_says(mpp, text):
    slide = ArraySlide(pink(), mpp=mpp)
    picture = picture_of(slide, scale=2.0)
    ax = axes(draw_page(bag(lattice()), picture, squares(bag(lattice()))), "tissue")
    assert [t.get_text() for t in ax.texts] == ([text] if text else [])
    bars = [v for v in ax.patches if to_rgb(v.get_facecolor()) == (0, 0, 0)]
    assert len(bars) == (mpp is not None)
    if mpp is not None:
        number = float(text.split()[0]) * (1000 if "mm" in text else 1)
        assert bars[0].get_width() * mpp == pytest.approx(number)
        assert bars[0].get_x() >= 0 and bars[0].get_x() + bars[0].get_width() <= 640


def test_round_lengths():
    assert [round_length(v) for v in (1.0, 1.9, 2.0, 4.99, 5.0, 999.0, 1000.0, 0.3)] == [
        1, 1, 2, 2, 5, 500, 1000, 0.2,
    ]  # fmt: skip


def test_the_page_says_what_is_shown_and_dirac_has_no_variance():
    slide = ArraySlide(pink())
    p = bag(lattice())
    whole = view(slide, (0.0, 0.0, 640.0, 512.0), scale=2.0, mpp=0.5, whole=True)
    part = replace(whole, whole=False, undecoded=2, blocks=9)
    titles = [
        axes(draw_page(p, v, squares(p)), "tissue").get_title(loc="left") for v in (whole, part)
    ]
    assert titles[0] == "tissue, whole slide"
    assert titles[1] == "tissue around the patches; grey: 2 of 9 parts unreadable"
    silent = replace(p, attention_variance=np.zeros(len(p.coords), np.float32))
    figure = draw_page(silent, whole, squares(p))
    assert "Dirac" in axes(figure, "variance").texts[0].get_text()
    assert "variance bar" not in [a.get_label() for a in figure.axes]
    assert colours(mean_panel(p)).dtype == np.uint8


def test_neighbours_meet_where_the_stride_is_no_whole_number():
    corners = np.rint(np.array([[x * 55.11, 0.0] for x in range(40)]))
    for side in (55.0, 55.11):
        s = Squares(corners=corners, side=side, stride=55.11)
        white = np.full((60, 2300, 3), 255, np.uint8)
        picture = tissue.View(image=white, left=0.0, top=0.0, scale=1.0, mpp=None, whole=True)
        row = owners(s, picture)[20]
        assert (row[:2190] >= 0).all()
