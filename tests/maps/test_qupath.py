"""GeoJSON for QuPath: its structure, its values, and constant memory while writing."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from support.made_maps import CELLS, STRIDE, prediction, scan, slide

from probsa.errors import InputError
from probsa.maps import squares
from probsa.maps.qupath import measurements, write_qupath


def read(path):
    with path.open(encoding="utf-8") as f:
        return json.load(f, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def written(p, tmp_path, **how):
    path = tmp_path / f"{p.name}.geojson"
    write_qupath(path, p, **how)
    return read(path)


def test_one_closed_square_a_patch_in_whole_level_0_pixels(tmp_path):
    p = slide(offset=(1000, 73_001))
    collection = written(p, tmp_path)
    assert collection["type"] == "FeatureCollection"
    assert len(collection["features"]) == len(CELLS)
    for feature, (x, y) in zip(collection["features"], p.coords.tolist(), strict=True):
        assert feature["type"] == "Feature"
        assert feature["geometry"]["type"] == "Polygon"
        (ring,) = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert all(isinstance(v, int) for point in ring for v in point)
        side = int(STRIDE)
        assert ring[:-1] == [[x, y], [x + side, y], [x + side, y + side], [x, y + side]]
        # QuPath 0.4 and later read a type and a map from name to number
        assert feature["properties"]["objectType"] == "tile"
        assert set(feature["properties"]) == {"objectType", "measurements"}


def test_a_side_that_is_no_whole_number_leaves_at_most_a_pixel(tmp_path):
    side = 253.4  # 128 µm at 0.505 µm per pixel
    cells = np.argwhere(np.ones((4, 5)))[:, ::-1]
    p = prediction(np.rint(cells * side).astype(np.int64), np.arange(20.0), stride=side)
    features = written(p, tmp_path)["features"]
    rings = [f["geometry"]["coordinates"][0] for f in features]
    at = {tuple(c): ring for c, ring in zip(cells.tolist(), rings, strict=True)}
    assert {ring[2][0] - ring[0][0] for ring in rings} == {253}
    gaps = {at[c + 1, r][0][0] - at[c, r][1][0] for c in range(4) for r in range(4)}
    assert gaps <= {0, 1}


def test_a_side_larger_than_the_stride_overlaps(tmp_path):
    p = slide()
    features = written(p, tmp_path, side=2 * STRIDE)["features"]
    (x, y), ring = p.coords[2], features[2]["geometry"]["coordinates"][0]
    assert ring[2] == [x + 2 * STRIDE, y + 2 * STRIDE]


def test_measurements_are_those_of_the_prediction(tmp_path):
    rng = np.random.default_rng(0)
    p = replace(slide(), weight_mean=rng.random(8).astype(np.float32))
    features = written(p, tmp_path)["features"]
    values = [f["properties"]["measurements"] for f in features]
    assert {tuple(m) for m in values} == {("mean", "variance", "probability", "weight")}
    for name, expected in (
        ("mean", p.attention_mean),
        ("variance", p.attention_variance),
        ("weight", p.weight_mean),
        ("probability", np.full(8, 0.87, np.float32)),
    ):
        np.testing.assert_array_equal(np.float32([m[name] for m in values]), expected)
    assert values[0]["probability"] == 0.87  # and not 0.8700000047683716


def test_probability_is_the_patchs_own_where_the_score_is_one():
    share = np.linspace(0, 1, 8)
    scored = replace(slide(), attention_mean=share.astype(np.float32), score_kind="probability")
    np.testing.assert_array_equal(measurements(scored)["probability"], scored.attention_mean)
    two = replace(slide(), probability=np.array([0.3, 0.7], np.float32))
    np.testing.assert_array_equal(measurements(two)["probability"], np.full(8, 0.7, np.float32))


def test_each_class_has_its_measurements():
    p = slide()
    p = replace(
        p,
        attention_mean=np.stack([p.attention_mean, -p.attention_mean, 0 * p.attention_mean], 1),
        attention_variance=np.stack([p.attention_variance] * 3, 1),
        weight_mean=np.stack([p.weight_mean] * 3, 1),
        probability=np.array([0.2, 0.3, 0.5], np.float32),
    )
    collection = measurements(p, classes=["healthy", "benign", "tumour"])
    assert list(collection) == [
        f"{what} {c}"
        for what in ("mean", "variance", "probability", "weight")
        for c in ("healthy", "benign", "tumour")
    ]
    np.testing.assert_array_equal(collection["mean benign"], -p.attention_mean[:, 0])
    np.testing.assert_array_equal(collection["probability tumour"], np.full(8, 0.5, np.float32))
    assert "variance 1" in measurements(p)


def test_what_is_not_finite_is_left_out(tmp_path):
    p = slide()
    p.attention_mean[3] = np.nan
    p.attention_variance[4] = np.inf
    values = [f["properties"]["measurements"] for f in written(p, tmp_path)["features"]]
    assert [k for k, m in enumerate(values) if "mean" not in m] == [3]
    assert [k for k, m in enumerate(values) if "variance" not in m] == [4]
    assert all("weight" in m for m in values)


def test_the_text_is_never_held_whole(tmp_path):
    n = 110
    coords = np.argwhere(np.ones((n, n)))[:, ::-1] * 256
    p = prediction(coords, np.random.default_rng(0).normal(size=n * n), stride=256.0)
    path = tmp_path / "large.geojson"
    tracemalloc.start()
    squares(p)
    _, geometry = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    write_qupath(path, p)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 3e6
    assert peak - geometry < 1.2e6  # the size of a thousand tiles
    features = read(path)["features"]
    assert len(features) == n**2
    corners = np.array([f["geometry"]["coordinates"][0][0] for f in features])
    np.testing.assert_array_equal(corners, coords)


def test_what_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "bag.geojson"
    path.write_text("before")
    with pytest.raises(InputError, match="slices"):
        write_qupath(path, scan(range(5)))
    with pytest.raises(InputError, match="no coordinates"):
        write_qupath(path, prediction(None, [1.0]))
    broken = replace(slide(), weight_mean=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="reshape"):
        write_qupath(path, broken)
    assert [f.name for f in tmp_path.iterdir()] == ["bag.geojson"]
    assert path.read_text() == "before"
