"""Tissue to GeoJSON and back, edits as QuPath writes them, and files that are no tissue."""

import json

import numpy as np
import pytest
from support.array_slide import ArraySlide, painted

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
    """Return the rings of each polygon."""
    polygons = []
    for polygon in tissue.polygons:
        polygons.append([ring.tolist() for ring in (polygon.outer, *polygon.holes)])
    return polygons


def put(path, value):
    """Write a JSON value, or a text as it is."""
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
    for options in (settings(size=128), settings("clam-biopsy", size=128)):
        patches = cut(slide, tissue, options)
        assert len(patches) > 50
        np.testing.assert_array_equal(cut(slide, again, options).coords, patches.coords)
    assert [f.name for f in path.parent.iterdir()] == ["slide.geojson"]
    nothing = Tissue(polygons=(), slide_size=SIZE, level=1, scale=(4.0, 4.5), notes=("nothing",))
    write_geojson(tmp_path / "x.geojson", nothing)
    again = read_geojson(tmp_path / "x.geojson", SIZE)
    assert (len(again), again.notes) == (0, ("nothing",))


def test_what_is_written_is_geojson_as_qupath_writes_it(slide, tmp_path):
    path = tmp_path / "x.geojson"
    write_geojson(path, find_tissue(slide))
    document = json.loads(path.read_text())
    assert document["type"] == "FeatureCollection"
    assert len({piece["id"] for piece in document["features"]}) == 2
    for piece in document["features"]:
        assert (piece["type"], piece["geometry"]["type"]) == ("Feature", "Polygon")
        assert piece["properties"]["objectType"] == "annotation"
        assert piece["properties"]["classification"]["name"] == "Tissue"
        for ring in piece["geometry"]["coordinates"]:
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
    ("document", "expected"),
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
def test_forms_of_polygons_are_read(document, expected, tmp_path):
    tissue = read_geojson(put(tmp_path / "x.geojson", document), SIZE)
    assert rings(tissue) == expected
    assert (tissue.level, tissue.scale, tissue.notes) == (None, None, ())


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
    options = settings(preset, size=32) if preset else settings(size=32, mpp=0.5)
    coords = cut(slide, tissue, options).coords
    in_excluded = ((coords >= (300, 200)) & (coords + 32 <= (700, 600))).all(1)
    assert not in_excluded.any() and len(coords) > 100
    # the area as a hole of the tissue gives the same patches
    as_hole = put(tmp_path / "hole.geojson", [feature([SQUARE, INNER]), feature([FAR])])
    expected = cut(slide, read_geojson(as_hole, SIZE), options).coords
    np.testing.assert_array_equal(np.sort(coords, axis=0), np.sort(expected, axis=0))
    # and they stay when our own file is read again
    write_geojson(tmp_path / "again.geojson", tissue)
    again = cut(slide, read_geojson(tmp_path / "again.geojson", SIZE), options)
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
    calibration = {"type": "Feature", "geometry": shape, "properties": {"name": "Calib1"}}
    path = put(tmp_path / "x.geojson", [feature([SQUARE]), calibration])
    tissue = read_geojson(path, SIZE)
    assert rings(tissue)[0] == [SQUARE[:-1]]
    assert tissue.drawn.without_area == count
    notes = drawn_notes(tissue)
    assert len(notes) == 2 and next(iter(count)) in notes[1]


def test_shapes_are_counted_by_class(tmp_path):
    names = ("Tumor", "Stroma", "Ignore*", "Tumor")
    features = [feature([FAR]), *(tissue_class({"name": name}) for name in names)]
    tissue = read_geojson(put(tmp_path / "x.geojson", features), SIZE)
    assert tissue.drawn.tissue == {"": 1, "Tumor": 2, "Stroma": 1}
    assert tissue.drawn.excluded == {"Ignore*": 1}
    assert len(drawn_notes(tissue)) == 1
    assert drawn_notes(Tissue(polygons=(), slide_size=SIZE)) == ()


def test_an_edit_changes_the_patches_as_drawn(slide, tmp_path):
    path = tmp_path / "x.geojson"
    write_geojson(path, find_tissue(slide))
    first, *_ = json.loads(path.read_text())["features"]
    # one piece deleted, one drawn with the mouse, a little over the slide's edge
    new = feature([[[-3.2, 1800], [256, 1800], [256, 2004.9], [-3.2, 2004.9]]], name="new")
    put(path, {"type": "FeatureCollection", "features": [first, new]})
    before = {tuple(c) for c in cut(slide, find_tissue(slide), settings(size=128)).coords}
    after = {tuple(c) for c in cut(slide, read_geojson(path, SIZE), settings(size=128)).coords}
    assert after - before == {(0, 1792), (128, 1792), (0, 1920), (128, 1920)}
    removed = before - after
    assert removed and all(x < 1500 for x, _ in removed)


@pytest.mark.parametrize(
    "text",
    ["{not json", "[" * 100_000, '"text"', "{}", '{"type": "FeatureCollection"}'],
)
def test_what_is_no_geojson_is_refused_by_file(text, tmp_path):
    with pytest.raises(InputError, match=r"drawn\.geojson"):
        read_geojson(put(tmp_path / "drawn.geojson", text), SIZE)


@pytest.mark.parametrize(
    ("shape", "fact"),
    [
        (feature([1, 2], "Circle"), "Circle"),
        (feature(SQUARE, "Circle", name="vessel"), "vessel"),
        ({"type": "Feature", "geometry": None}, "nothing"),
        (7, "7"),
        (feature([]), ""),
        (feature(None), "nothing"),
        (feature([SQUARE, 3]), ""),
        (feature([[[1, 2], [3, "4"], [5, 6]]]), ""),
        (feature([[[1, 2], [3, None], [5, 6]]]), ""),
        (feature([[[1, 2], [3, float("nan")], [5, 6]]]), ""),
        (feature([[[1, 2], [3, 10**400], [5, 6]]]), ""),
        (feature([[[1, 2], [3, 4], [1, 2]]]), "2"),
        (feature([[[0, 0], [9000, 0], [9000, 10]]]), r"\(9000, 0\) .*3000x2000"),
        (feature([[[0, -500], [9, 0], [9, 10]]]), r"\(0, -500\)"),
        (feature([[SQUARE], 5], "MultiPolygon"), "5"),
    ],
)
def test_what_is_no_tissue_is_refused_by_file_and_feature(shape, fact, tmp_path):
    path = put(tmp_path / "drawn.geojson", [feature([SQUARE]), shape])
    with pytest.raises(InputError, match=rf"drawn\.geojson: feature 1.*{fact}"):
        read_geojson(path, SIZE)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.geojson"):
        read_geojson(tmp_path / "none.geojson", SIZE)
    binary = tmp_path / "b.geojson"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"b\.geojson"):
        read_geojson(binary, SIZE)


def test_a_write_that_fails_leaves_the_old_file(slide, tmp_path, monkeypatch):
    path = tmp_path / "x.geojson"
    write_geojson(path, find_tissue(slide))
    before = path.read_bytes()

    def full(value, file, **options):
        file.write('{"type":"Feat')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("probsa.patches.geojson.json.dump", full)
    with pytest.raises(OSError, match="No space left"):
        write_geojson(path, Tissue(polygons=(), slide_size=SIZE))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
