"""Our own tissue and lattice: the same for every scan of a slide, and shares as an area is."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.path import Path as Outline
from support.array_slide import ArraySlide, VastSlide, halved, painted

from probsa.core import grid
from probsa.errors import InputError, RegionError, SlideError
from probsa.patches import (
    PatchSettings,
    Polygon,
    Tissue,
    TissueOptions,
    cut,
    find_tissue,
    raster,
    settings,
)
from probsa.patches.grid import tissue_shares
from probsa.patches.pixels import factors, reduced
from probsa.patches.polygons import ring_area


def patches_of(slide, options):
    return cut(slide, find_tissue(slide, options.tissue), options)


def area(tissue):
    """Return the area in level-0 pixels, without holes."""
    return sum(ring_area(p.outer) - sum(map(ring_area, p.holes)) for p in tissue.polygons)


def cells(patches):
    """Return column and row of each patch on the slide's lattice."""
    steps = np.rint(patches.coords / patches.stride)
    assert np.abs(patches.coords - steps * patches.stride).max(initial=0) <= 0.5
    return steps.astype(int)


# one image, several pieces; the finer one is the scan at 40x
FORTY = painted(4097, 3074, (900, 800, 700, 600), (2900, 1500, 1000, 1300), (900, 2300, 500, 500))
TWENTY = halved(FORTY)


@pytest.mark.parametrize("overlap", [0, 32])
@pytest.mark.parametrize("mpp", [0.25, 0.2527])
def test_scans_at_20x_and_40x_have_the_same_cells_and_the_same_graph(mpp, overlap):
    options = settings(size=128, overlap=overlap)
    fine = patches_of(ArraySlide(FORTY, mpp=mpp), options)
    coarse = patches_of(ArraySlide(TWENTY, mpp=2 * mpp), options)
    assert len(fine) > 60
    np.testing.assert_array_equal(cells(fine), cells(coarse))
    assert fine.stride == pytest.approx(2 * coarse.stride)
    assert np.abs(fine.coords - 2 * coarse.coords).max() <= 1.5  # each is rounded for itself
    fine_graph = grid(torch.from_numpy(fine.coords), stride=fine.stride)
    coarse_graph = grid(torch.from_numpy(coarse.coords), stride=coarse.stride)
    assert fine_graph.shape[1] > 2 * len(fine)
    assert torch.equal(fine_graph, coarse_graph)


def test_levels_do_not_change_the_tissue():
    pyramid = [FORTY, TWENTY, halved(TWENTY), halved(halved(TWENTY))]
    slides = [ArraySlide(*pyramid[:n], mpp=0.25) for n in (1, 2, 4)]
    assert [find_tissue(slide).level for slide in slides] == [0, 1, 3]
    expected = patches_of(slides[0], settings(size=256)).coords
    for slide in slides[1:]:
        np.testing.assert_array_equal(patches_of(slide, settings(size=256)).coords, expected)


def test_a_fragmented_slide_has_one_lattice_and_no_patch_over_another():
    pieces = [(300 + 700 * (k % 6) + 37 * k, 350 + 660 * (k // 6), 260, 240) for k in range(24)]
    slide = ArraySlide(painted(5400, 2900, *pieces), mpp=0.5)
    tissue = find_tissue(slide)
    assert len(tissue) >= 20
    by_piece = cut(slide, tissue, settings(size=256, grid="contour", rule="four_pt"))
    assert len(np.unique(by_piece.coords % 256, axis=0)) > 15  # CLAM's: a lattice for each
    coords = cut(slide, tissue, settings(size=256)).coords
    assert len(coords) > 100
    assert (coords % 256 == 0).all()
    assert len(np.unique(coords, axis=0)) == len(coords)
    row_by_row = np.lexsort((coords[:, 0], coords[:, 1]))
    assert (row_by_row == np.arange(len(coords))).all()


@pytest.mark.parametrize(
    ("ellipse", "count"),
    [((256, 256, 10, 10), 0), ((768, 768, 200, 200), 1), ((1024, 256, 300, 200), 2)],
)
def test_slides_of_no_one_and_two_patches(ellipse, count):
    slide = ArraySlide(painted(1536, 1536, ellipse), mpp=0.5)
    patches = patches_of(slide, settings(size=512, min_tissue=0.2))
    assert len(patches) == count
    assert patches.coords.shape == (count, 2)
    graph = grid(torch.from_numpy(patches.coords), stride=patches.stride)
    assert graph.shape == (2, max(count - 1, 0))


GLASS = ArraySlide(np.full((700, 700, 3), 244, np.uint8), mpp=0.5)


def corners_of(polygon, **flags):
    """Return the corners of the patches of a polygon on glass."""
    tissue = Tissue(polygons=(polygon,), slide_size=GLASS.size)
    return {tuple(c) for c in cut(GLASS, tissue, settings(**flags)).coords}


def irregular(seed, *, size=700):
    """Return a star with a hole, and which pixels lie in it by matplotlib's own test."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, 40))
    radii = rng.uniform(0.4, 1, 40) * size * 0.45
    star = size / 2 + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    hole = size / 2 + size * 0.11 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    outer = np.rint(star).astype(np.int32)
    inner = np.rint(hole).astype(np.int32)
    x = np.arange(0.5, size)
    points = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    mask = Outline(outer).contains_points(points) & ~Outline(inner).contains_points(points)
    return Polygon(outer=outer, holes=(inner,)), mask.reshape(size, size)


@pytest.mark.parametrize("overlap", [0, 13, 40])
def test_the_share_is_that_of_a_raster_of_single_pixels(overlap):
    polygon, mask = irregular(overlap)
    side = 80
    step = 80 - overlap
    n = 700 // step
    shares = tissue_shares(
        (polygon,), (0, 0), step=(float(step), float(step)), counts=(n, n), size=float(side)
    )
    padded = np.pad(mask, (0, 200))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side))
    expected = windows[::step, ::step].mean(axis=(2, 3))[:n, :n].T
    assert expected.max() > 0.99
    assert (shares[expected == 0] == 0).all()
    assert np.abs(shares - expected).max() < 0.02
    assert np.abs(shares.mean() - expected.mean()) < 0.002
    tissue = Tissue(polygons=(polygon,), slide_size=(700, 700))
    assert area(tissue) == pytest.approx(mask.sum(), rel=0.01)


def test_patches_have_the_share_that_was_asked_for():
    polygon, mask = irregular(5)
    padded = np.pad(mask, (0, 64))
    corners = {}
    for least in (0.0, 0.25, 0.9):
        corners[least] = corners_of(polygon, size=64, min_tissue=least)
        for x, y in itertools.product(range(0, 700, 64), repeat=2):
            share = padded[y : y + 64, x : x + 64].mean()
            if abs(share - least) > 0.02:
                assert ((x, y) in corners[least]) == (share > least)
    assert corners[0.9] < corners[0.25] < corners[0.0]
    assert len(corners[0.9]) > 3


def test_squares_have_only_the_tissue_in_them_and_once():
    """Differences of cumulative sums gave one of these a share of 1e-16, which made it a patch."""
    ring = np.array([(105, 43), (192, 3), (82, 10)], np.int32)
    polygons = (Polygon(outer=ring),)
    share = tissue_shares(polygons, (0, 0), step=(22.0, 22.0), counts=(9, 9), size=33.0)
    assert share[5, 1] > 0.05
    assert (share[:, 2:] == 0).all()
    ring = np.array([(0, 0), (64, 0), (64, 32), (0, 32)], np.int32)
    twice = (Polygon(outer=ring), Polygon(outer=ring))
    share = tissue_shares(twice, (0, 0), step=(64.0, 64.0), counts=(1, 1), size=64.0)
    assert share == [[0.5]]


def test_the_mask_comes_back_from_its_outlines_pixel_by_pixel():
    rng = np.random.default_rng(0)
    small = np.full((40, 50, 3), 244, np.uint8)
    tissue = rng.random((40, 50)) < 0.6
    small[tissue] = (200, 120, 160)
    slide = ArraySlide(small.repeat(16, axis=0).repeat(16, axis=1), mpp=0.5)
    options = TissueOptions(median=0, closing=0, min_area=0.0, min_hole=0.0)
    outlined = find_tissue(slide, options)
    assert outlined.scale == (16, 16)
    x = np.arange(50) * 16 + 8.0
    y = np.arange(40) * 16 + 8.0
    np.testing.assert_array_equal(raster(outlined.polygons, x, y).T, tissue)
    image = np.full((320, 320, 3), 244, np.uint8)
    image[64:160, 96:256] = (200, 120, 160)  # rows 4 to 9 and columns 6 to 15 of the mask
    options = TissueOptions(median=0, closing=0, min_area=0.0)
    (piece,) = find_tissue(ArraySlide(image, mpp=0.5), options).polygons
    assert {tuple(p) for p in piece.outer} == {(100, 68), (252, 68), (252, 156), (100, 156)}
    slide = ArraySlide(painted(2000, 1600, (900, 700, 500, 400)), mpp=0.5)
    for closing in (0, 3, 4):
        (piece,) = find_tissue(slide, TissueOptions(closing=closing)).polygons
        left, top, right, bottom = piece.box
        assert (left + right) / 2 == pytest.approx(900, abs=8)
        assert (top + bottom) / 2 == pytest.approx(700, abs=8)
        assert ring_area(piece.outer) == pytest.approx(np.pi * 500 * 400, rel=0.03)


@pytest.mark.parametrize("border", [True, False])
def test_points_on_a_border_lie_in_a_polygon_or_not(border):
    outer = np.array([(0, 0), (6, 0), (6, 6), (0, 6)], np.int32)
    hole = np.array([(2, 2), (4, 2), (4, 4), (2, 4)], np.int32)
    inside = raster(
        (Polygon(outer=outer, holes=(hole,)),), np.arange(7.0), np.arange(7.0), border=border
    )
    expected = np.zeros((7, 7), bool)
    expected[1:6, 1:6] = True
    expected[2:5, 2:5] = False
    if border:
        expected[:] = True
        expected[3, 3] = False
    np.testing.assert_array_equal(inside, expected)


def test_the_rows_that_a_level_leaves_out_do_not_stretch_it():
    whole = np.zeros((2967, 2220, 3), np.uint8)
    for rows, columns, factor in ((741, 555, 4), (742, 555, 4), (1483, 1110, 2)):
        assert factors(ArraySlide(whole, whole[:rows, :columns]), 1) == (factor, factor)
    assert factors(ArraySlide(whole, whole[:735, :550]), 1) == (2220 / 550, 2967 / 735)


def test_pieces_and_holes_are_kept_by_their_area_in_micrometres():
    y, x = np.mgrid[:1600, :1600]
    image = painted(1600, 1600, (500, 500, 400, 400), (1300, 1300, 150, 150))
    image[(x - 500) ** 2 + (y - 500) ** 2 < 150**2] = 244
    image[(x - 750) ** 2 + (y - 500) ** 2 < 70**2] = 244
    for mpp in (0.5, 0.25):
        slide = ArraySlide(image, mpp=mpp)
        area = np.pi * (150 * mpp) ** 2  # of the smaller piece, and of the larger hole

        def holes(slide=slide, **options):
            tissue = find_tissue(slide, TissueOptions(median=3, closing=0, **options))
            return sorted(len(polygon.holes) for polygon in tissue.polygons)

        assert holes(min_area=area * 0.9, min_hole=area * 0.9) == [0, 1]
        assert holes(min_area=area * 1.1, min_hole=area * 0.9) == [1]
        assert holes(min_area=area * 0.9, min_hole=area * 1.1) == [0, 0]
        assert holes(min_area=0.0, min_hole=0.0) == [0, 2]
        options = TissueOptions(median=3, closing=0, min_area=0.0, min_hole=0.0, max_holes=1)
        (hole,) = [hole for p in find_tissue(slide, options).polygons for hole in p.holes]
        assert ring_area(hole) == pytest.approx(np.pi * 150**2, rel=0.1)  # the larger one


def test_a_biopsy_is_kept_where_clam_loses_it():
    core = painted(1200, 5000, (600, 2500, 250, 2300))
    slide = ArraySlide(core, mpp=0.5)
    assert len(patches_of(slide, settings("clam", mask_level=0))) == 0
    assert len(patches_of(slide, settings(size=512))) >= 8


def test_otsu_finds_its_own_threshold_and_says_when_there_may_be_nothing():
    image = painted(1600, 1600, (500, 500, 400, 400))
    pale = painted(1600, 1600, (1200, 1200, 250, 250), colour=(230, 215, 222))
    image = np.minimum(image, pale)
    slide = ArraySlide(image, mpp=0.5)
    assert len(find_tissue(slide, TissueOptions(threshold=4))) == 2
    otsu = find_tissue(slide, TissueOptions(method="otsu"))
    assert (len(otsu), otsu.notes) == (1, ())
    glass = np.random.default_rng(0).integers(240, 248, (1600, 1600, 3)).astype(np.uint8)
    empty = ArraySlide(glass, mpp=0.5)
    assert len(find_tissue(empty)) == 0
    assert len(find_tissue(empty, TissueOptions(method="otsu")).notes) == 1


def test_downsamples_that_are_not_whole():
    # 64.16 is what Aperio's 64 may be: 0.1251 µm per pixel makes it 8.03
    sides = (4096, 1024, 64)
    y, x = np.mgrid[: sides[0], : sides[0]]
    whole = painted(sides[0], sides[0], (2000, 2000, 1500, 1500))
    levels = [reduced(ArraySlide(whole), scale=4096 / n).pixels for n in sides]
    slide = ArraySlide(*levels, mpp=0.125, downsamples=(1.0, 3.9999, 64.16))
    tissue = find_tissue(slide, TissueOptions(resolution=8.0, median=3))
    assert (tissue.level, tissue.scale) == (2, (64, 64))
    inside = (x - 2000) ** 2 + (y - 2000) ** 2 < 1500**2
    assert area(tissue) == pytest.approx(inside.sum(), rel=0.05)
    patches = cut(slide, tissue, settings(size=128, mpp=0.125 * 3.9999))
    assert patches.size_level0 == pytest.approx(128 * 3.9999)
    assert np.unique(cells(patches)[:, 0]).size >= 6


def test_with_and_without_padding():
    image = np.full((1000, 1000, 3), (200, 120, 160), np.uint8)
    slide = ArraySlide(image, mpp=0.5)
    over = patches_of(slide, settings(size=300, min_tissue=0.0))
    within = patches_of(slide, settings(size=300, min_tissue=0.0, padding=False))
    assert (len(over), len(within)) == (16, 9)
    assert within.coords.max() == 600
    wide = patches_of(ArraySlide(image[:700], mpp=0.5), settings(size=300, padding=False))
    assert wide.coords.max(0).tolist() == [600, 300]
    exact = patches_of(slide, settings(size=250, padding=False))
    assert (len(exact), exact.coords.max()) == (16, 750)
    assert len(patches_of(slide, settings(size=1001, padding=False))) == 0
    # the part beyond the edge holds no tissue
    assert len(patches_of(slide, settings(size=300, min_tissue=0.36))) == 9
    assert len(patches_of(slide, settings(size=300, min_tissue=0.29))) == 15


def test_a_vast_slide_is_segmented_from_its_pyramid_in_small_blocks():
    slide = VastSlide(100_000, 1, 4, 16, 32, square=5000)
    patches = patches_of(slide, settings(size=512))
    assert {level for level, _, _ in slide.reads} == {3}
    sizes = [width * height for _, width, height in slide.reads]
    assert max(sizes) <= 2048**2
    assert sum(sizes) < 1.1 * 3125**2
    # a hundred squares of 5000: 4 x 4 whole patches of 1024 each at least
    assert 1600 <= len(patches) <= 100 * 36
    assert len(find_tissue(slide)) == 100


def test_the_mean_of_an_image_in_blocks_is_the_mean_of_the_image(monkeypatch):
    image = np.random.default_rng(1).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    slide = ArraySlide(image)
    scale = 300 / 27
    whole = reduced(slide, scale=scale).pixels
    # the mean over what each pixel covers, by a repeat to a common multiple
    fine = image.repeat(27, axis=0).reshape(27, 300, 400, 3).mean(1)
    fine = fine.repeat(36, axis=1).reshape(27, 36, 400, 3).mean(2)
    assert np.abs(whole - fine).max() <= 0.51
    monkeypatch.setattr("probsa.patches.pixels.BLOCK", 50)
    again = ArraySlide(image)
    np.testing.assert_array_equal(reduced(again, scale=scale).pixels, whole)
    assert max(max(w, h) for _, w, h in again.reads) <= 52
    np.testing.assert_array_equal(reduced(slide, scale=1.0).pixels, image)


def test_what_cannot_be_decoded_is_said_and_the_rest_is_found():
    slide = ArraySlide(FORTY, mpp=0.25, broken=((2900, 1500, 200, 200),))
    options = TissueOptions(min_hole=0.0)
    whole = find_tissue(ArraySlide(FORTY, mpp=0.25), options)
    readable = find_tissue(slide, options)
    assert len(readable.notes) == 1
    assert 0 < area(whole) - area(readable) < 1100**2
    with pytest.raises(RegionError):
        find_tissue(ArraySlide(FORTY, mpp=0.25, broken=((0, 0, 4097, 3074),)))


UNKNOWN = ArraySlide(FORTY, mpp=None, name="a")
KNOWN = ArraySlide(TWENTY, mpp=0.5, name="a")


@pytest.mark.parametrize(
    ("slide", "options", "error"),
    [
        (UNKNOWN, settings(), SlideError),
        (UNKNOWN, settings("clam-biopsy", mpp=0.5), SlideError),
        (KNOWN, settings(mpp=0.2), SlideError),  # too fine
        (KNOWN, settings(level=2), SlideError),  # there is level 0 only
        (KNOWN, settings(mask_level=3), SlideError),
        (KNOWN, settings(size=64, overlap=63, mpp=0.25), InputError),  # half a pixel apart
    ],
)
def test_what_does_not_fit_the_slide_is_refused(slide, options, error):
    with pytest.raises(error, match=r"^a\.tiff: "):
        patches_of(slide, options)


def test_what_just_fits_is_cut():
    assert len(patches_of(KNOWN, settings(mpp=0.25))) > 0
    assert len(patches_of(UNKNOWN, settings("clam-biopsy", mask_level=0))) > 60
    assert settings("clam", unit="um2").tissue.needs_mpp


def test_tissue_of_a_slide_of_another_size_is_refused():
    with pytest.raises(InputError, match="10x10"):
        cut(KNOWN, Tissue(polygons=(), slide_size=(10, 10)), settings())


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (PatchSettings, {"overlap": 512}),
        (PatchSettings, {"overlap": -1}),
        (PatchSettings, {"size": 0}),
        (PatchSettings, {"mpp": 0.0}),
        (PatchSettings, {"mpp": float("nan")}),
        (PatchSettings, {"mpp": 0.5, "level": 1}),
        (PatchSettings, {"min_tissue": 1.1}),
        (PatchSettings, {"level": -1, "mpp": None}),
        (TissueOptions, {"median": 4}),
        (TissueOptions, {"threshold": 256}),
        (TissueOptions, {"closing": -1}),
        (TissueOptions, {"min_area": -1.0}),
        (TissueOptions, {"min_hole": float("inf")}),
        (TissueOptions, {"max_holes": -2}),
        (TissueOptions, {"resolution": 0.0}),
        (TissueOptions, {"level": 1}),
        (TissueOptions, {"level": -1, "resolution": None}),
    ],
)
def test_options_that_cannot_be_are_refused(cls, options):
    with pytest.raises(InputError, match="|".join(options)):
        cls(**options)


def test_folders_are_named_as_tridents():
    assert settings().folder == "20x_512px_0px_overlap"
    assert settings(mpp=1.0, size=256, overlap=32).folder == "10x_256px_32px_overlap"
    assert settings(mpp=4.0).folder == "2.5x_512px_0px_overlap"
    assert settings(level=2).folder == "level2_512px_0px_overlap"
