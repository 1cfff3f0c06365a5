"""GeoJSON for QuPath: tiles and regions, their values, and constant memory while writing."""

import itertools
import json
import tracemalloc
import uuid
from dataclasses import replace

import numpy as np
import pytest
from shapely import box, union_all
from shapely.geometry import shape
from support.made_exports import ABOUT, evidence, predictions, slide_bag, written
from support.made_maps import SIDE, STRIDE, OneSource, bag, lattice, prediction, scan, slide
from support.refusals import refused

from probsa.errors import InputError, SlideError
from probsa.exports import ExportSettings, export_folder
from probsa.exports.bag import ExportBag
from probsa.exports.geojson import LEVELS, write_contours, write_tiles
from probsa.exports.provenance import STATEMENT
from probsa.exports.quantities import channels
from probsa.maps import squares


def read(path):
    refuse = lambda c: pytest.fail(f"{c} is not JSON")  # noqa: E731
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def tiles(p, folder, **how):
    return read(written(write_tiles, p, folder, **how))["features"]


def measurements(p, classes=()):
    return {q.label: q.values for q in channels(p, classes)}


def contours(p, folder, **how):
    return read(written(write_contours, p, folder, **how))


def regions(collection) -> dict[float, object]:
    found = {
        f["properties"]["measurements"]["level"]: shape(f["geometry"])
        for f in collection["features"]
    }
    assert all(region.is_valid for region in found.values())
    return found


# --- tiles ------------------------------------------------------------------------------------


def test_one_closed_square_a_patch_in_whole_level_0_pixels(tmp_path):
    p = slide(offset=(1000, 73_001))
    side = int(STRIDE)
    for feature, (x, y) in zip(tiles(p, tmp_path), p.coords.tolist(), strict=True):
        assert (feature["type"], feature["geometry"]["type"]) == ("Feature", "Polygon")
        (ring,) = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1] and all(isinstance(v, int) for point in ring for v in point)
        assert ring[:-1] == [[x, y], [x + side, y], [x + side, y + side], [x, y + side]]
        # QuPath 0.4 and later read a type and a map from name to number
        assert feature["properties"]["objectType"] == "tile"
        assert set(feature["properties"]) == {"objectType", "measurements"}


def test_a_side_that_is_no_whole_number_leaves_at_most_a_pixel(tmp_path):
    side = 253.4  # 128 µm at 0.505 µm per pixel
    cells = np.argwhere(np.ones((4, 5)))[:, ::-1]
    p = prediction(np.rint(cells * side).astype(np.int64), np.arange(20.0), stride=side)
    rings = [f["geometry"]["coordinates"][0] for f in tiles(p, tmp_path / "a")]
    at = {tuple(c): ring for c, ring in zip(cells.tolist(), rings, strict=True)}
    assert {ring[2][0] - ring[0][0] for ring in rings} == {253}
    gaps = {at[c + 1, r][0][0] - at[c, r][1][0] for c in range(4) for r in range(4)}
    assert gaps <= {0, 1}
    wide = tiles(slide(), tmp_path / "b", side=2 * STRIDE)[2]["geometry"]["coordinates"][0]
    assert wide[2] == (slide().coords[2] + 2 * STRIDE).tolist()  # patches that overlap


def test_measurements_are_those_of_the_prediction(tmp_path):
    rng = np.random.default_rng(0)
    p = replace(
        slide(),
        weight_mean=rng.random(8).astype(np.float32),
        instance_probability=rng.random(8).astype(np.float32),
    )
    p.attention_mean[3], p.attention_variance[4] = np.nan, np.inf
    values = [f["properties"]["measurements"] for f in tiles(p, tmp_path)]
    for name, expected in (
        ("mean (logit)", p.attention_mean),
        ("std (logit)", np.sqrt(p.attention_variance)),
        ("weight", p.weight_mean),
        ("probability", p.instance_probability),
    ):
        known = np.isfinite(expected)
        assert [name in m for m in values] == known.tolist()
        found = np.float32([m[name] for m in values if name in m])
        np.testing.assert_array_equal(found, expected[known])
    origin = read(written(write_tiles, p, tmp_path / "b"))["probsa"]
    # that of the bag stands once, as 0.87 and not 0.8700000047683716
    assert list(origin["prediction"].values()) == [0.87]
    share = np.linspace(0, 1, 8)
    scored = replace(slide(), attention_mean=share.astype(np.float32), score_kind="probability")
    np.testing.assert_array_equal(measurements(scored)["probability"], scored.attention_mean)
    assert "probability" not in measurements(slide())


def test_each_class_has_its_measurements():
    p = slide()
    p = replace(
        p,
        attention_mean=np.stack([p.attention_mean, -p.attention_mean, 0 * p.attention_mean], 1),
        attention_variance=np.stack([p.attention_variance] * 3, 1),
        weight_mean=np.stack([p.weight_mean] * 3, 1),
        probability=np.array([0.2, 0.3, 0.5], np.float32),
        instance_probability=np.tile(np.float32([0.1, 0.2, 0.7]), (8, 1)),
    )
    collection = measurements(p, classes=["healthy", "benign", "tumour"])
    quantities = ("mean (logit)", "std (logit)", "probability", "weight")
    named = itertools.product(quantities, ("healthy", "benign", "tumour"))
    assert list(collection) == [" ".join(words) for words in named]
    np.testing.assert_array_equal(collection["mean (logit) benign"], -p.attention_mean[:, 0])
    np.testing.assert_array_equal(collection["probability tumour"], np.full(8, 0.7, np.float32))
    assert "std (logit) 1" in measurements(p)


def test_the_text_is_never_held_whole(tmp_path):
    n = 110
    coords = np.argwhere(np.ones((n, n)))[:, ::-1] * 256
    rng = np.random.default_rng(0)
    p = prediction(coords, rng.normal(size=n * n), rng.random(n * n), stride=256.0)
    p = replace(p, instance_probability=rng.random(n * n).astype(np.float32))
    tracemalloc.start()
    squares(p)
    _, geometry = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    path = written(write_tiles, p, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 3e6
    assert peak - geometry < 1.2e6  # the size of a thousand tiles
    features = read(path)["features"]
    corners = np.array([f["geometry"]["coordinates"][0][0] for f in features])
    np.testing.assert_array_equal(corners, coords)


def test_what_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "bag.geojson"
    path.write_text("before")
    broken = replace(slide(), weight_mean=np.zeros(3, np.float32))
    for p, error, words in (
        (scan(range(5)), InputError, "slices"),
        (prediction(None, [1.0]), InputError, "no coordinates"),
        (broken, IndexError, "range"),
    ):
        refused(error, words, tiles, p, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["bag.geojson"]
    assert path.read_text() == "before"


# --- regions ----------------------------------------------------------------------------------


def test_a_region_is_the_union_of_its_patches_and_levels_nest(tmp_path):
    chance = np.random.default_rng(0).random(30)
    chance[3] = np.float32(0.9)  # a level is reached by its own value
    p = slide_bag(chance)
    found = regions(contours(p, tmp_path))
    assert list(found) == list(LEVELS)
    for level, region in found.items():
        inside = p.coords[p.instance_probability >= np.float32(level)]
        assert region.area == len(inside) * SIDE**2
        assert region.equals(union_all([box(x, y, x + SIDE, y + SIDE) for x, y in inside]))
    assert found[0.9].covers(box(*p.coords[3], *(p.coords[3] + SIDE)))
    for wider, narrower in itertools.pairwise(LEVELS):
        assert found[wider].covers(found[narrower])


def test_holes_and_patches_that_touch_at_a_corner(tmp_path):
    chance = np.ones((5, 6))
    chance[1:4, 1:4] = 0
    chance[2, 2] = 1  # an island in the hole
    chance[0, 4] = chance[1, 5] = 0
    found = regions(contours(slide_bag(chance.ravel()), tmp_path))[0.95]
    assert found.geom_type == "MultiPolygon"
    parts = sorted(found.geoms, key=lambda g: g.area)
    assert [part.area / SIDE**2 for part in parts][:2] == [1, 1]
    (hole,) = parts[-1].interiors
    assert box(*hole.bounds).area == 9 * SIDE**2
    assert found.area == chance.sum() * SIDE**2


def test_patches_that_overlap_have_gaps_or_lie_on_no_lattice(tmp_path):
    p = slide_bag(np.ones(30))
    # twice as wide as their distance: the middles tile the plane
    assert regions(contours(p, tmp_path / "a", side=2.0 * SIDE))[0.5].area == 30 * SIDE**2
    gaps = regions(contours(replace(p, stride=float(SIDE)), tmp_path / "b", side=40.0))[0.5]
    assert len(gaps.geoms) == 30 and gaps.area == 30 * 40**2
    corners = np.array([[0, 0], [64, 0], [30, 30], [300, 9]])
    free = evidence(prediction(corners, np.zeros(4), stride=64.0), np.ones(4))
    region = regions(contours(free, tmp_path / "c"))[0.5]
    assert region.equals(union_all([box(x, y, x + 64, y + 64) for x, y in corners]))
    assert region.area < 4 * 64**2


def test_a_stride_that_is_no_whole_number_leaves_no_slivers(tmp_path):
    stride = 32.064
    cells = np.argwhere(np.ones((20, 30)))[:, ::-1]
    p = prediction(np.rint(cells * stride).astype(int), np.zeros(600), stride=stride)
    region = regions(contours(evidence(p, np.ones(600)), tmp_path, size=(1000, 700)))[0.5]
    assert region.geom_type == "Polygon" and len(region.interiors) == 0
    assert region.area == pytest.approx(600 * stride**2, rel=1e-4)


def test_the_fields_are_those_of_qupath(tmp_path):
    p = slide_bag()
    collection = contours(p, tmp_path / "a")
    assert collection["probsa"]["statement"] == STATEMENT
    assert collection["probsa"]["software"] == "probsa 0.1.0"
    for feature, level in zip(collection["features"], LEVELS, strict=True):
        assert set(feature) == {"type", "id", "geometry", "properties"}
        assert uuid.UUID(feature["id"]).version == 5
        held = feature["properties"]
        assert held["objectType"] == "annotation" and held["isLocked"] is True
        assert held["classification"]["name"] == held["name"] == f"probability ≥ {level:g}"
        colour = held["classification"]["color"]
        assert len(colour) == 3 and all(isinstance(c, int) and 0 <= c < 256 for c in colour)
        inside = p.instance_probability >= np.float32(level)
        assert held["measurements"] == pytest.approx(
            {
                "level": level,
                "patches": inside.sum(),
                "area px²": inside.sum() * SIDE**2,
                "area mm²": inside.sum() * (SIDE * 0.5e-3) ** 2,
                "mean probability": p.instance_probability[inside].mean(),
                "largest standard deviation": np.sqrt(p.attention_variance[inside].max()),
            }
        )
    assert collection == contours(p, tmp_path / "b")  # the identifiers as well
    certain = replace(p, attention_variance=0 * p.attention_variance)
    first = contours(certain, tmp_path / "c", mpp=None)["features"][0]["properties"]
    assert set(first["measurements"]) == {"level", "patches", "area px²", "mean probability"}
    nothing = contours(slide_bag(np.full(30, 0.2)), tmp_path / "d")  # no patch reaches a level
    assert nothing["type"] == "FeatureCollection" and nothing["features"] == []


def test_each_class_has_its_regions_and_other_scores_are_refused(tmp_path):
    p = slide_bag()
    chance = np.stack([p.instance_probability, p.instance_probability[::-1]], 1)
    two = replace(p, instance_probability=chance, attention_mean=chance, attention_variance=chance)
    features = contours(two, tmp_path / "a", classes=("benign", "tumour"))["features"]
    names = [f["properties"]["name"] for f in features]
    assert names[0] == "probability ≥ 0.5 benign" and names[-1] == "probability ≥ 0.95 tumour"
    assert len({f["id"] for f in features}) == 8
    first, second = (shape(features[k]["geometry"]).bounds for k in (0, 4))
    assert first[1] > second[1]
    plain = bag(lattice())
    with pytest.raises(InputError, match="logit"):
        contours(plain, tmp_path / "none")
    share = replace(plain, score_kind="probability", attention_mean=chance[:, 0])
    assert len(contours(share, tmp_path / "b")["features"]) == 4


@pytest.mark.parametrize("cut", [0, 1, SIDE // 2, SIDE - 1])
def test_a_region_ends_where_its_slide_ends(cut, tmp_path):
    """The last patches of a lattice reach beyond the edge; the tissue does not."""
    p = slide_bag(np.ones(30))
    right, bottom = (int(v) + SIDE for v in p.coords.max(0))
    collection = contours(p, tmp_path, size=(right - cut, bottom - cut))
    left, top = (int(v) for v in p.coords.min(0))
    area = (right - cut - left) * (bottom - cut - top)
    assert {region.area for region in regions(collection).values()} == {area}
    held = collection["features"][0]["properties"]["measurements"]
    assert held["area px²"] == area and held["patches"] == 30


class Unreadable(OneSource):
    """A slide that was listed, and is damaged since."""

    def open(self, p):
        raise SlideError("damaged")


def test_a_slide_that_cannot_be_read_is_reported(tmp_path):
    """Its regions are written all the same, but neither end at its edge nor have an area in mm²."""
    p = slide_bag()
    notes = {}
    for name, sources in (("unreadable", Unreadable(None)), ("none", None)):
        exported = ExportBag(p=p, about=ABOUT, out=tmp_path / name, sources=sources)
        write_contours(exported)
        first = read(tmp_path / name / "a.geojson")["features"][0]["properties"]
        assert "area mm²" not in first["measurements"]
        notes[name] = exported.notes
    # without slides, nothing was promised
    assert notes["none"] == []
    (note,) = notes["unreadable"]
    assert "'a'" in note and "damaged" in note


def test_a_bag_without_a_region_is_named(tmp_path):
    bags = slide_bag(np.full(30, 0.4)), slide_bag(np.full(30, 0.6), name="b")
    folder = predictions(tmp_path / "preds", *bags)
    done = export_folder(folder, tmp_path / "out", ExportSettings(geojson="contours"))
    (note,) = done.notes
    assert "'a'" in note and not done.failures
    assert not export_folder(folder, tmp_path / "t", ExportSettings(geojson="tiles")).notes
