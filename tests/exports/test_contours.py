"""Contours as GeoJSON: the regions, their areas, and what QuPath reads."""

import itertools
import json
import uuid
from dataclasses import replace

import numpy as np
import pytest
from shapely import box, union_all
from shapely.geometry import shape
from support.made_exports import ABOUT, evidence, slide_bag
from support.made_maps import SIDE, bag, lattice, prediction

from probsa.errors import InputError
from probsa.exports.contours import LEVELS, write_contours
from probsa.exports.provenance import STATEMENT
from probsa.maps import squares


def written(p, tmp_path, *, side=None, mpp=0.5, classes=()):
    path = tmp_path / "a.geojson"
    write_contours(path, p, squares(p, side=side), mpp=mpp, about=ABOUT, classes=classes)
    assert [f.name for f in tmp_path.iterdir()] == ["a.geojson"]
    refuse = lambda c: pytest.fail(f"{c} is not JSON")  # noqa: E731
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def regions(collection) -> dict[float, object]:
    found = {
        f["properties"]["measurements"]["level"]: shape(f["geometry"])
        for f in collection["features"]
    }
    assert all(region.is_valid for region in found.values())
    return found


def test_a_region_is_the_union_of_its_patches_and_levels_nest(tmp_path):
    chance = np.random.default_rng(0).random(30)
    chance[3] = np.float32(0.9)  # a level is reached by its own value
    p = slide_bag(chance)
    found = regions(written(p, tmp_path))
    assert list(found) == list(LEVELS)
    for level, region in found.items():
        inside = p.coords[p.probability_positive >= np.float32(level)]
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
    found = regions(written(slide_bag(chance.ravel()), tmp_path))[0.95]
    assert found.geom_type == "MultiPolygon"
    parts = sorted(found.geoms, key=lambda g: g.area)
    assert [part.area / SIDE**2 for part in parts][:2] == [1, 1]
    (hole,) = parts[-1].interiors
    assert box(*hole.bounds).area == 9 * SIDE**2
    assert found.area == chance.sum() * SIDE**2


def test_no_patch_reaches_a_level(tmp_path):
    collection = written(slide_bag(np.full(30, 0.2)), tmp_path)
    assert collection["type"] == "FeatureCollection" and collection["features"] == []
    assert collection["probsa"]["model"] == "evidence-field"


def test_patches_that_overlap_have_gaps_or_lie_on_no_lattice(tmp_path):
    p = slide_bag(np.ones(30))
    # twice as wide as their distance: the middles tile the plane
    assert regions(written(p, tmp_path, side=2.0 * SIDE))[0.5].area == 30 * SIDE**2
    gaps = regions(written(replace(p, stride=float(SIDE)), tmp_path, side=40.0))[0.5]
    assert len(gaps.geoms) == 30 and gaps.area == 30 * 40**2
    corners = np.array([[0, 0], [64, 0], [30, 30], [300, 9]])
    free = evidence(prediction(corners, np.zeros(4), stride=64.0), np.ones(4))
    region = regions(written(free, tmp_path))[0.5]
    assert region.equals(union_all([box(x, y, x + 64, y + 64) for x, y in corners]))
    assert region.area < 4 * 64**2


def test_a_stride_that_is_no_whole_number_leaves_no_slivers(tmp_path):
    stride = 32.064
    cells = np.argwhere(np.ones((20, 30)))[:, ::-1]
    p = prediction(np.rint(cells * stride).astype(int), np.zeros(600), stride=stride)
    region = regions(written(evidence(p, np.ones(600)), tmp_path))[0.5]
    assert region.geom_type == "Polygon" and len(region.interiors) == 0
    assert region.area == pytest.approx(600 * stride**2, rel=1e-4)


def test_the_fields_are_those_of_qupath(tmp_path):
    p = slide_bag()
    collection = written(p, tmp_path)
    assert collection["probsa"]["statement"] == STATEMENT
    assert collection["probsa"]["software"] == "probsa 0.1.0"
    for feature, level in zip(collection["features"], LEVELS, strict=True):
        assert set(feature) == {"type", "id", "geometry", "properties"}
        assert uuid.UUID(feature["id"]).version == 5
        held = feature["properties"]
        assert held["objectType"] == "annotation" and held["isLocked"] is True
        assert held["classification"]["name"] == held["name"] == f"P(evidence) ≥ {level:g}"
        colour = held["classification"]["color"]
        assert len(colour) == 3 and all(isinstance(c, int) and 0 <= c < 256 for c in colour)
        inside = p.probability_positive >= np.float32(level)
        assert held["measurements"] == pytest.approx(
            {
                "level": level,
                "patches": inside.sum(),
                "area px²": inside.sum() * SIDE**2,
                "area mm²": inside.sum() * (SIDE * 0.5e-3) ** 2,
                "mean P(evidence)": p.probability_positive[inside].mean(),
                "largest standard deviation": np.sqrt(p.attention_variance[inside].max()),
            }
        )
    assert collection == written(p, tmp_path)  # the identifiers as well
    certain = replace(p, attention_variance=0 * p.attention_variance)
    first = written(certain, tmp_path, mpp=None)["features"][0]["properties"]["measurements"]
    assert set(first) == {"level", "patches", "area px²", "mean P(evidence)"}


def test_each_class_has_its_regions_and_other_scores_are_refused(tmp_path):
    p = slide_bag()
    chance = np.stack([p.probability_positive, p.probability_positive[::-1]], 1)
    two = replace(p, probability_positive=chance, attention_mean=chance, attention_variance=chance)
    features = written(two, tmp_path, classes=("benign", "tumour"))["features"]
    names = [f["properties"]["name"] for f in features]
    assert names[0] == "P(evidence) ≥ 0.5 benign" and names[-1] == "P(evidence) ≥ 0.95 tumour"
    assert len({f["id"] for f in features}) == 8
    first, second = (shape(features[k]["geometry"]).bounds for k in (0, 4))
    assert first[1] > second[1]
    plain = bag(lattice())
    with pytest.raises(InputError, match="score is a logit, whose zero has no meaning"):
        written(plain, tmp_path / "none")
    share = replace(plain, score_kind="probability", attention_mean=chance[:, 0])
    assert len(written(share, tmp_path)["features"]) == 4
