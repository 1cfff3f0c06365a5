"""Positions of instances, and rasters: which instance owns which level-0 pixel."""

import numpy as np
import pytest
from support.made_maps import SIDE, STRIDE, bag, lattice, prediction, scan, slide
from support.refusals import refused

from probsa.errors import BagError, InputError
from probsa.maps import place, raster, squares
from probsa.maps.layout import owners


def owner_at(found, x: float, y: float) -> int:
    """The row of the patch that owns the cell at a level-0 position, found from its definition."""
    column, row = int((x - found.left) // found.cell), int((y - found.top) // found.cell)
    return int(found.owners[row, column])


def centres(p, side=SIDE):
    return np.asarray(p.coords) + side / 2


@pytest.mark.parametrize(
    ("at", "parts"), [((64, 128), 1), ((64, 96), 2), ((16, 80), 4), ((8, 8), 8), ((3, 5), 8)]
)
def test_a_slides_raster_begins_at_its_corner_and_is_as_fine_as_needed(at, parts):
    p = bag(lattice(at=at))
    found = raster(squares(p), size=(640, 512))
    assert (found.left, found.top) == (0, 0)
    assert found.cell == SIDE / parts
    assert found.owners.shape == (512 * parts // SIDE, 640 * parts // SIDE)
    shown = [owner_at(found, x, y) for x, y in centres(p)]
    assert shown == list(range(len(p.coords)))
    assert found.misplaced <= SIDE / parts / 2
    assert (found.owners >= 0).sum() == len(p.coords) * parts**2
    # no cell lies further outside its patch than is stated
    for row, column in np.argwhere(found.owners >= 0):
        corner = np.asarray(p.coords)[found.owners[row, column]]
        low = np.array([column, row]) * found.cell - corner
        assert (low >= -found.misplaced).all()
        assert (low + found.cell <= SIDE + found.misplaced).all()


def test_the_raster_of_the_patches_is_exact_wherever_they_begin():
    p = bag(lattice(at=(3, 5)))
    found = raster(squares(p))
    assert (found.left, found.top, found.cell, found.misplaced) == (3, 5, SIDE, 0)
    np.testing.assert_array_equal(found.owners, np.arange(30).reshape(5, 6))
    values = found.fill(p.attention_mean)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.ravel(), p.attention_mean)


@pytest.mark.parametrize("stride", [32.064, 253.4])
def test_corners_that_were_rounded_to_pixels_lie_on_a_lattice(stride):
    cells = np.argwhere(np.ones((9, 70)))[:, ::-1]
    p = prediction(np.rint(7.3 + cells * stride).astype(int), np.arange(630.0), stride=stride)
    patches = squares(p)
    found = patches.lattice
    np.testing.assert_array_equal(found.index, cells)
    assert found.left == pytest.approx(7.3, abs=0.6) and found.top == pytest.approx(7.3, abs=0.6)
    found = raster(patches)
    assert found.cell == pytest.approx(stride) and found.owners.shape == (9, 70)
    assert (found.owners.ravel() == np.arange(630)).all()


def test_overlapping_patches_own_their_middles_and_free_patches_share():
    p = bag(lattice())
    overlapping = raster(squares(p, side=2.0 * SIDE))
    assert overlapping.cell == SIDE and overlapping.left == 64 + SIDE / 2
    coords = np.array([[0, 0], [64, 0], [30, 70], [200, 200]])  # the third is on no lattice
    free = prediction(coords, np.arange(4.0), stride=64.0)
    assert squares(free).lattice is None
    found = raster(squares(free))
    assert found.cell == SIDE / 8
    assert [owner_at(found, x, y) for x, y in centres(free)] == [0, 1, 2, 3]
    assert np.isnan(found.fill(np.arange(4.0))[found.owners < 0]).all()
    assert (found.owners < 0).any()


@pytest.mark.parametrize("cell", [1.0, 4.0, 5.3])
@pytest.mark.parametrize("kind", ["lattice", "two lattices", "overlapping"])
def test_each_pixel_shows_the_patch_below_its_centre(cell, kind):
    corners = lattice()
    if kind == "two lattices":  # as CLAM cuts two pieces of tissue
        corners = np.concatenate([corners, lattice(3, 3, at=(301, 157))])
    s = squares(bag(corners), side=SIDE * 2.0 if kind == "overlapping" else None)
    shown = owners(s, corner=(0, 0), cell=cell, shape=(int(512 / cell), int(640 / cell)))
    cells = corners + (32 if kind == "overlapping" else 0)  # the middle of a patch of 128
    for y in range(0, shown.shape[0], 7):
        for x in range(0, shown.shape[1], 5):
            at = np.array([x + 0.5, y + 0.5]) * cell
            inside = ((at >= cells) & (at < cells + SIDE)).all(1)
            expected = np.flatnonzero(inside)[-1] if inside.any() else -1
            on_edge = np.abs(np.concatenate([at - cells, at - cells - SIDE])).min() < 1e-6
            assert shown[y, x] == expected or on_edge, (x, y)


def test_a_patch_smaller_than_a_cell_still_has_one():
    s = squares(bag(np.array([[64, 64], [320, 320]])))
    shown = owners(s, corner=(0, 0), cell=200.0, shape=(2, 3))
    np.testing.assert_array_equal(shown, [[0, -1, -1], [-1, 1, -1]])
    corners = np.rint(np.array([[x * 55.11, 0.0] for x in range(40)]))
    for side in (55.0, 55.11):
        s = squares(prediction(corners, np.zeros(40), stride=55.11), side=side)
        assert (owners(s, corner=(0, 0), cell=1.0, shape=(60, 2300))[20, :2190] >= 0).all()


def test_bags_without_patches_have_no_squares():
    with pytest.raises(InputError, match="'bag'"):
        squares(prediction(np.arange(3)[:, None], [1, 2, 3], kind="ct"))
    refused(InputError, "'bag'", squares, prediction(None, [1, 2, 3]))
    back = place(scan([30, 25, 20, 10]))
    assert back.corners[:, 0].tolist() == [0, 1, 2, 4]
    assert back.numbers == ("30", "25", "20", "10")
    assert place(scan([1, 2, 3, 4000])).corners.max() == 13
    assert place(scan([1, 1, 2])).corners[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("stated", [None, STRIDE, STRIDE / 2])
def test_the_coordinates_lattice_wins_over_a_wrong_stride(stated):
    coords = np.argwhere(np.ones((5, 4)))[:, ::-1] * int(STRIDE)
    layout = place(prediction(coords, np.arange(20.0), stride=stated))
    assert layout.stride == STRIDE and layout.lattice.index.max(0).tolist() == [3, 4]


def test_two_patches_at_one_place_or_between_cells_are_on_no_lattice():
    for shift in (STRIDE, 100.0):
        p = slide()
        p.coords[1, 0] += int(shift)
        assert place(p).lattice is None
    refused(BagError, r"'bag'.*shape \(7, 2\)", place, slide_without_a_row())
    refused(BagError, "'bag'", place, prediction(np.zeros((0, 2)), np.zeros(0)))


def slide_without_a_row():
    p = slide()
    return prediction(p.coords[:7], p.attention_mean)
