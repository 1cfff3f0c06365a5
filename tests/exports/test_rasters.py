"""Rasters of patches: which patch owns which level-0 pixel."""

import numpy as np
import pytest
from support.made_maps import SIDE, bag, lattice, prediction

from probsa.exports.rasters import lattice_of, raster_of_patches, raster_of_slide
from probsa.maps.blending import squares


def owner_at(raster, x: float, y: float) -> int:
    """The row of the patch that owns the cell at a level-0 position, found from its definition."""
    column, row = int((x - raster.left) // raster.cell), int((y - raster.top) // raster.cell)
    return int(raster.owners[row, column])


def centres(p, side=SIDE):
    return np.asarray(p.coords) + side / 2


@pytest.mark.parametrize(
    ("at", "parts"), [((64, 128), 1), ((64, 96), 2), ((16, 80), 4), ((8, 8), 8), ((3, 5), 8)]
)
def test_a_slides_raster_begins_at_its_corner_and_is_as_fine_as_needed(at, parts):
    p = bag(lattice(at=at))
    raster = raster_of_slide(squares(p), size=(640, 512))
    assert (raster.left, raster.top) == (0, 0)
    assert raster.cell == SIDE / parts
    assert raster.owners.shape == (512 * parts // SIDE, 640 * parts // SIDE)
    found = [owner_at(raster, x, y) for x, y in centres(p)]
    assert found == list(range(len(p.coords)))
    assert raster.misplaced <= SIDE / parts / 2
    assert (raster.owners >= 0).sum() == len(p.coords) * parts**2
    # no cell lies further outside its patch than is stated
    for row, column in np.argwhere(raster.owners >= 0):
        corner = np.asarray(p.coords)[raster.owners[row, column]]
        low = np.array([column, row]) * raster.cell - corner
        assert (low >= -raster.misplaced).all()
        assert (low + raster.cell <= SIDE + raster.misplaced).all()


def test_the_raster_of_the_patches_is_exact_wherever_they_begin():
    p = bag(lattice(at=(3, 5)))
    raster = raster_of_patches(squares(p))
    assert (raster.left, raster.top, raster.cell, raster.misplaced) == (3, 5, SIDE, 0)
    np.testing.assert_array_equal(raster.owners, np.arange(30).reshape(5, 6))
    values = raster.fill(p.attention_mean)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.ravel(), p.attention_mean)


@pytest.mark.parametrize("stride", [32.064, 253.4])
def test_corners_that_were_rounded_to_pixels_lie_on_a_lattice(stride):
    cells = np.argwhere(np.ones((9, 70)))[:, ::-1]
    p = prediction(np.rint(7.3 + cells * stride).astype(int), np.arange(630.0), stride=stride)
    patches = squares(p)
    found = lattice_of(patches)
    np.testing.assert_array_equal(found.index, cells)
    assert found.left == pytest.approx(7.3, abs=0.6) and found.top == pytest.approx(7.3, abs=0.6)
    raster = raster_of_patches(patches)
    assert raster.cell == pytest.approx(stride) and raster.owners.shape == (9, 70)
    assert (raster.owners.ravel() == np.arange(630)).all()


def test_overlapping_patches_own_their_middles_and_free_patches_share():
    p = bag(lattice())
    overlapping = raster_of_patches(squares(p, side=2.0 * SIDE))
    assert overlapping.cell == SIDE and overlapping.left == 64 + SIDE / 2
    coords = np.array([[0, 0], [64, 0], [30, 70], [200, 200]])  # the third is on no lattice
    free = prediction(coords, np.arange(4.0), stride=64.0)
    assert lattice_of(squares(free)) is None
    raster = raster_of_patches(squares(free))
    assert raster.cell == SIDE / 8
    assert [owner_at(raster, x, y) for x, y in centres(free)] == [0, 1, 2, 3]
    assert np.isnan(raster.fill(np.arange(4.0))[raster.owners < 0]).all()
    assert (raster.owners < 0).any()
