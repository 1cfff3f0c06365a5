"""Tissue to GeoJSON and back, edits as QuPath writes them, and files that are no tissue."""

import json

import numpy as np
import pytest
from support.array_slide import ArraySlide, painted
from support.refusals import refused

from probsa.errors import InputError
from probsa.patches import (
    Tissue,
    cut,
    drawn_notes,
    find_tissue,
    read_geojson,
    settings,
    write_geojson,
)

SIZE = (3000, 2000)
SQUARE = [[100, 100], [900, 100], [900, 700], [100, 700], [100, 100]]
HOLE = [[300, 300], [500, 300], [500, 500], [300, 500], [300, 300]]
FAR = [[2000, 1000], [2400, 1000], [2400, 1500]]


@pytest.fixture
def slide():
    image = painted(*SIZE, (700, 700, 500, 400), (2200, 1200, 500, 600))
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    image[(x - 2200) ** 2 + (y - 1200) ** 2 < 200**2] = 244
    return ArraySlide(image, mpp=0.5)


def rings(tissue):
    return [[r.tolist() for r in (p.outer, *p.holes)] for p in tissue.polygons]


def put(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def feature(coordinates, kind="Polygon", **properties):
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def test_what_is_written_is_read_and_cut_the_same(slide, tmp_path):
    tissue = find_tissue(slide)
    assert [len(p.holes) for p in tissue.polygons] == [1, 0]
    path = tmp_path / "a" / "slide.geojson"
    write_geojson(path, tissue)
    again = read_geojson(path, SIZE)
    assert rings(again) == rings(tissue)
    assert all(p.outer.dtype == np.int32 for p in again.polygons)
    assert (again.notes, again.slide_size) == (tissue.notes, tissue.slide_size)
    for chosen in (settings(size=128), settings("clam-biopsy", size=128)):
        one, other = cut(slide, tissue, chosen), cut(slide, again, chosen)
        assert len(one) > 50
        np.testing.assert_array_equal(one.coords, other.coords)
    assert [f.name for f in path.parent.iterdir()] == ["slide.geojson"]
    nothing = Tissue(polygons=(), slide_size=SIZE, level=1, scale=(4.0, 4.5), notes=("nothing",))
    write_geojson(tmp_path / "x.geojson", nothing)
    again = read_geojson(tmp_path / "x.geojson", SIZE)
    assert (len(again), again.notes) == (0, ("nothing",))
    write_geojson(tmp_path / "x.geojson", find_tissue(slide))
    whole = json.loads((tmp_path / "x.geojson").read_text())
    assert whole["type"] == "FeatureCollection"
    assert len({f["id"] for f in whole["features"]}) == 2
    for f in whole["features"]:
        about = f["properties"]
        kinds = (
            f["type"],
            f["geometry"]["type"],
            about["objectType"],
            about["classification"]["name"],
        )
        assert kinds == ("Feature", "Polygon", "annotation", "Tissue")
        for ring in f["geometry"]["coordinates"]:
            assert ring[0] == ring[-1] and len(ring) >= 4
            assert all(isinstance(v, int) for point in ring for v in point)


WITH_HOLE = [[SQUARE[:-1], HOLE[:-1]]]
BOTH = {
    "type": "GeometryCollection",
    "geometries": [
        {"type": "Polygon", "coordinates": [SQUARE, HOLE]},
        {"type": "MultiPolygon", "coordinates": [[FAR]]},
    ],
}


@pytest.mark.parametrize(
    ("whole", "wanted"),
    [
        ({"type": "FeatureCollection", "features": [feature([SQUARE, HOLE])]}, WITH_HOLE),
        ([feature([SQUARE, HOLE])], WITH_HOLE),
        (feature([SQUARE, HOLE]), WITH_HOLE),
        ({"type": "Polygon", "coordinates": [SQUARE, HOLE]}, WITH_HOLE),
        ([feature([SQUARE[:-1], HOLE[:-1]])], WITH_HOLE),
        (
            [feature([[SQUARE, HOLE], [FAR]], "MultiPolygon", classification={"name": "Tumor"})],
            [*WITH_HOLE, [FAR]],
        ),
        ([{"type": "Feature", "geometry": BOTH}], [*WITH_HOLE, [FAR]]),
        ([feature([[[x + 0.4, y - 0.4, 7.0] for x, y in SQUARE], HOLE])], WITH_HOLE),
        ("\ufeff[]", []),  # some editors write a byte order mark
        ({"type": "FeatureCollection", "features": []}, []),
    ],
)
def test_forms_of_polygons_are_read(whole, wanted, tmp_path):
    found = read_geojson(put(tmp_path / "x.geojson", whole), SIZE)
    assert rings(found) == wanted
    assert (found.level, found.scale, found.notes) == (None, None, ())


INNER = [[300, 200], [700, 200], [700, 600], [300, 600]]


def tissue_class(value):
    return feature([SQUARE], classification=value)


@pytest.mark.parametrize(
    ("classification", "name"),
    [
        ({"name": "Ignore*", "color": [180, 180, 180]}, "Ignore*"),
        ({"name": "ignore* "}, "ignore*"),
        ({"name": "Region*"}, "Region*"),
        ({"name": "Artefact*", "colorRGB": -1}, "Artefact*"),
        ("Ignore*", "Ignore*"),
        ({"names": ["Ignore*", "Positive"]}, "Ignore*: Positive"),
        ({"name": "Ignore*: Fold"}, "Ignore*: Fold"),
    ],
)
@pytest.mark.parametrize("kind", ["Polygon", "MultiPolygon", "GeometryCollection"])
@pytest.mark.parametrize("preset", [None, "clam-biopsy"])
def test_an_ignored_class_is_excluded(tmp_path, classification, name, kind, preset):
    shape = {"type": "Polygon", "coordinates": [INNER]}
    if kind == "MultiPolygon":
        shape = {"type": kind, "coordinates": [[INNER]]}
    elif kind == "GeometryCollection":
        shape = {"type": kind, "geometries": [shape]}
    ignored = {
        "type": "Feature",
        "geometry": shape,
        "properties": {"objectType": "annotation", "classification": classification},
    }
    features = [ignored, tissue_class({"name": "Tumor"}), feature([FAR])]
    path = put(tmp_path / "x.geojson", {"type": "FeatureCollection", "features": features})
    tissue = read_geojson(path, SIZE)
    assert rings(tissue) == [[SQUARE[:-1]], [FAR]]
    assert tissue.drawn.tissue == {"Tumor": 1, "": 1} and tissue.drawn.excluded == {name: 1}
    slide = ArraySlide(painted(*SIZE), mpp=0.5)
    chosen = settings(preset, size=32) if preset else settings(size=32, mpp=0.5)
    coords = cut(slide, tissue, chosen).coords
    in_excluded = ((coords >= (300, 200)) & (coords + 32 <= (700, 600))).all(1)
    assert not in_excluded.any() and len(coords) > 100
    # the area as a hole of the tissue gives the same patches
    as_hole = put(tmp_path / "hole.geojson", [feature([SQUARE, INNER]), feature([FAR])])
    wanted = cut(slide, read_geojson(as_hole, SIZE), chosen).coords
    np.testing.assert_array_equal(np.sort(coords, axis=0), np.sort(wanted, axis=0))
    # and they stay when our own file is read again
    write_geojson(tmp_path / "again.geojson", tissue)
    again = cut(slide, read_geojson(tmp_path / "again.geojson", SIZE), chosen)
    np.testing.assert_array_equal(again.coords, coords)


@pytest.mark.parametrize("name", ["Ignore", "Tumor", "Ignore*d", "*", "None", "", None, 7])
def test_what_is_excluded_is_decided_by_the_end_of_the_name(tmp_path, name):
    path = put(tmp_path / "x.geojson", [tissue_class({"name": name})])
    tissue = read_geojson(path, SIZE)
    excluded = name == "*"
    assert (len(tissue.polygons), len(tissue.excluded)) == ((0, 1) if excluded else (1, 0))


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ({"type": "Point", "coordinates": [10, 10]}, {"Point": 1}),
        ({"type": "MultiPoint", "coordinates": [[10, 10], [20, 20]]}, {"MultiPoint": 1}),
        ({"type": "LineString", "coordinates": [[0, 0], [9000, 1]]}, {"LineString": 1}),
        ({"type": "MultiLineString", "coordinates": [[[0, 0], [1, 1]]]}, {"MultiLineString": 1}),
        (
            {
                "type": "GeometryCollection",
                "geometries": [
                    {"type": "Point", "coordinates": [1, 1]},
                    {"type": "Polygon", "coordinates": [FAR]},
                ],
            },
            {"Point": 1},
        ),
    ],
)
def test_points_and_lines_are_left_out_with_a_note(tmp_path, shape, count):
    drawn = {"type": "Feature", "geometry": shape, "properties": {"name": "Calib1"}}
    path = put(tmp_path / "x.geojson", [feature([SQUARE]), drawn])
    tissue = read_geojson(path, SIZE)
    assert rings(tissue)[0] == [SQUARE[:-1]]
    assert tissue.drawn.without_area == count
    notes = drawn_notes(tissue)
    assert len(notes) == 2 and next(iter(count)) in notes[1]


def test_a_line_names_the_classes_that_are_tissue(tmp_path):
    features = [
        tissue_class({"name": "Tumor"}), tissue_class({"name": "Stroma"}), feature([FAR]),
        tissue_class({"name": "Ignore*"}),
    ]  # fmt: skip
    (note,) = drawn_notes(read_geojson(put(tmp_path / "x.geojson", features), SIZE))
    tissue, excluded = note.split("; excluded")
    assert "Tumor" in tissue and "Stroma" in tissue and "1 without a class" in tissue
    assert "Ignore*" in excluded and "Ignore*" not in tissue
    found = Tissue(polygons=(), slide_size=SIZE)
    assert drawn_notes(found) == ()


def test_an_edit_changes_the_patches_as_drawn(slide, tmp_path):
    path = tmp_path / "x.geojson"
    write_geojson(path, find_tissue(slide))
    whole = json.loads(path.read_text())
    # one piece deleted, one drawn with the mouse, a little over the slide's edge
    kept = whole["features"][:1]
    drawn = feature([[[-3.2, 1800], [256, 1800], [256, 2004.9], [-3.2, 2004.9]]], name="new")
    put(path, {"type": "FeatureCollection", "features": [*kept, drawn]})
    before = {tuple(c) for c in cut(slide, find_tissue(slide), settings(size=128)).coords}
    after = {tuple(c) for c in cut(slide, read_geojson(path, SIZE), settings(size=128)).coords}
    new = {(0, 1792), (128, 1792), (0, 1920), (128, 1920)}
    assert after - before == new
    assert before - after
    assert {x < 1500 for x, _ in before - after} == {True}


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        ("{not json", "this is not GeoJSON"),
        ("[" * 100_000, "this is not GeoJSON"),
        ('"text"', "expected a GeoJSON FeatureCollection.*'text'"),
        ({}, "got an empty object"),
        ({"type": "FeatureCollection"}, "with a list of features"),
        ([feature([SQUARE]), feature([1, 2], "Circle")], "feature 1 is Circle: .*Delete it"),
        ([feature(SQUARE, "Circle", name="vessel")], r"feature 0 \(vessel\) is Circle"),
        ([{"type": "Feature", "geometry": None}], "feature 0 is nothing"),
        ([7], "feature 0 is 7"),
        ([feature([])], "a polygon must be a list of rings"),
        ([feature(None)], "a polygon must be a list of rings; got nothing"),
        ([feature([SQUARE, 3])], "a ring must be a list of points"),
        ([feature([[[1, 2], [3, "4"], [5, 6]]])], "a ring must be a list of points"),
        ([feature([[[1, 2], [3, None], [5, 6]]])], "a ring must be a list of points"),
        ('[{"type":"Polygon","coordinates":[[[1,2],[3,NaN],[5,6]]]}]', "of finite numbers"),
        ([feature([[[1, 2], [3, 10**400], [5, 6]]])], "of finite numbers"),
        (
            [feature([[[1, 2], [3, 4], [1, 2]]])],
            "a ring needs at least three points; this one has 2",
        ),
        (
            [feature([SQUARE]), feature([[[0, 0], [9000, 0], [9000, 10]]])],
            r"feature 1: the point \(9000, 0\) lies outside the slide, which has 3000x2000",
        ),
        ([feature([[[0, -500], [9, 0], [9, 10]]])], r"\(0, -500\) lies outside.* in µm"),
        ([feature([[SQUARE], 5], "MultiPolygon")], "a polygon must be a list of rings; got 5"),
    ],
)
def test_what_is_no_tissue_is_refused_by_file_and_feature(whole, says, tmp_path):
    path = put(tmp_path / "drawn.geojson", whole)
    refused(InputError, f"drawn.geojson.*{says}", read_geojson, path, SIZE)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none.geojson: cannot be read: No such file"):
        read_geojson(tmp_path / "none.geojson", SIZE)
    binary = tmp_path / "b.geojson"
    binary.write_bytes(b"\xff\xfe\x00")
    refused(InputError, r"b.geojson: this is not GeoJSON", read_geojson, binary, SIZE)


def test_a_write_that_fails_leaves_the_old_file(slide, tmp_path, monkeypatch):
    path = tmp_path / "x.geojson"
    write_geojson(path, find_tissue(slide))
    before = path.read_bytes()

    def full(value, file, **options):
        file.write('{"type":"Feat')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("probsa.patches.geojson.json.dump", full)
    refused(OSError, "No space left", write_geojson, path, Tissue(polygons=(), slide_size=SIZE))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
