"""Annotations: matched by name, read as polygons or masks, and their share of each patch."""

import csv
import gzip
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageDraw

from probsa.datasets.studies.annotations import Area, mask_share, polygon_share, read_area
from probsa.errors import InputError, SlideError
from probsa.patches import Polygon


def polygon(*corners: tuple[int, int]) -> Polygon:
    return Polygon(outer=np.array(corners, np.int32))


def square(left: int, top: int, side: int) -> Polygon:
    return polygon((left, top), (left + side, top), (left + side, top + side), (left, top + side))


def counted(area: Area, corner: np.ndarray, side: int) -> float:
    """Return the pixel centres in the area, from a drawing by Pillow at eight times the size."""
    inside = np.zeros((side, side), bool)
    outside = np.zeros((side, side), bool)
    for polygons, found in ((area.inside, inside), (area.outside, outside)):
        for p in polygons:
            image = Image.new("1", (side * 8 + 1, side * 8 + 1))
            ring = [tuple(c) for c in ((p.outer - corner) * 8).tolist()]
            ImageDraw.Draw(image).polygon(ring, fill=1)
            found |= np.asarray(image)[4::8, 4::8][:side, :side]
    return float((inside & ~outside).mean())


def test_shares_by_hand():
    corners = np.array([[0, 0], [10, 0], [20, 0], [0, 10], [40, 40]])
    # x from 10 to 25: none of the first patch, all of the second, half of the third
    drawn = Area(inside=(polygon((10, 0), (25, 0), (25, 10), (10, 10)),))
    assert polygon_share(drawn, corners, side=10.0).tolist() == [0, 1, 0.5, 0, 0]
    # pixels in two polygons count once; pixels in a hole do not count
    over = Area(inside=(*drawn.inside, square(10, 0, 10)), outside=(square(12, 2, 5),))
    assert polygon_share(over, corners, side=10.0).tolist() == [0, 0.75, 0.5, 0, 0]
    # patches entirely in a polygon, and entirely in a hole
    wide = Area(inside=(square(-50, -50, 200),), outside=(square(35, 35, 60),))
    assert polygon_share(wide, corners, side=10.0).tolist() == [1, 1, 1, 1, 0]
    drawn = Area(inside=(square(0, 0, 3),))
    corners = np.array([[0.6, 0.0]])
    # of the x centres 1.5 to 4.5 two are inside, of the y centres 0.5 to 3.5 three
    assert polygon_share(drawn, corners, side=4.0).tolist() == [2 * 3 / 16]


def test_shares_are_those_of_every_pixel_counted():
    rng = np.random.default_rng(0)
    corners = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2) * 16
    for _ in range(12):
        shapes = []
        for _ in range(3):
            angle = np.sort(rng.uniform(0, 2 * np.pi, 9))
            radius = rng.uniform(8, 50, 9)
            at = rng.uniform(20, 110, 2)
            ring = at + np.stack([np.cos(angle), np.sin(angle)], 1) * radius[:, None]
            shapes.append(Polygon(outer=np.rint(ring).astype(np.int32)))
        area = Area(inside=tuple(shapes[:2]), outside=(shapes[2],))
        shares = polygon_share(area, corners, side=16.0)
        expected = [counted(area, c, 16) for c in corners]
        # Pillow also fills the outline, an eighth of a pixel wide
        assert np.abs(shares - expected).max() <= 6 / 256
        assert abs(np.mean(shares - expected)) < 0.003
        assert np.mean((shares > 0) & (shares < 1)) > 0


XML = """<?xml version="1.0"?>
<ASAP_Annotations><Annotations>
  <Annotation Name="a" Type="Polygon" PartOfGroup="{first}" Color="#F4FA58"><Coordinates>
    <Coordinate Order="0" X="0.4" Y="0"/><Coordinate Order="1" X="20" Y="0"/>
    <Coordinate Order="2" X="20" Y="20"/><Coordinate Order="3" X="0" Y="19.6"/>
  </Coordinates></Annotation>
  <Annotation Name="b" Type="Polygon" PartOfGroup="{second}" Color="#F4FA58"><Coordinates>
    <Coordinate Order="0" X="0" Y="0"/><Coordinate Order="1" X="10" Y="0"/>
    <Coordinate Order="2" X="10" Y="10"/><Coordinate Order="3" X="0" Y="10"/>
  </Coordinates></Annotation>
  <Annotation Name="c" Type="Dot" PartOfGroup="None" Color="#F4FA58"><Coordinates>
    <Coordinate Order="0" X="3" Y="3"/>
  </Coordinates></Annotation>
</Annotations><AnnotationGroups/></ASAP_Annotations>
"""


@pytest.mark.parametrize(
    ("first", "second"), [("_0", "_2"), ("_1", "Exclusion"), ("Tumor", "normal"), ("None", "_2")]
)
def test_asap_groups(tmp_path, first, second):
    path = tmp_path / "tumor_001.xml"
    path.write_text(XML.format(first=first, second=second))
    area = read_area(path)
    assert [p.outer.tolist() for p in area.inside] == [[[0, 0], [20, 0], [20, 20], [0, 20]]]
    share = polygon_share(area, np.array([[0, 0], [10, 10]]), side=10.0)
    assert share.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("a.xml", XML.format(first="_0", second="Necrosis"), r"'Necrosis'; known are _0"),
        ("a.xml", "<ASAP_Annotations><Annotation>", "read as XML"),
        ("a.xml", "<Annotations/>", "is a <Annotations>, expected ASAP"),
        ("a.json", '{"negative": []}', "object with the lists"),
        ("a.json", '{"positive": [', "read as JSON"),
        ("a.json", '{"positive": [{"vertices": [[1, "x"]]}]}', "positive 0: expected corners"),
        ("a.json", '{"positive": [{"name": "a"}]}', "positive 0: "),
    ],
)
def test_annotations_that_are_none(tmp_path, name, text, fact):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=fact) as error:
        read_area(tmp_path / name)
    assert name in str(error.value)


def unpacked(shared_data: Path, folder: Path) -> Path:
    """Unpack the real annotations into a folder, and return that of the tables beside them."""
    labels = shared_data / "labels_splits"
    with tarfile.open(labels / "camelyon16_ncrf_annotation_json_5_tumor_slides.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return labels


def test_real_tumours_hold_the_centres_that_others_called_tumour(shared_data, tmp_path):
    """NCRF's 40,000 centres were sampled from the same polygons, so nearly all must agree."""
    folder = unpacked(shared_data, tmp_path)
    with gzip.open(folder / "camelyon16_ncrf_valid_patch_coords.csv.gz", "rt") as f:
        rows = list(csv.DictReader(f))
    agree = total = positive = 0
    for path in sorted(tmp_path.glob("*.json")):
        area = read_area(path)
        assert len(area.inside) == len(json.loads(path.read_text())["positive"])
        here = [r for r in rows if r["slide"] == path.stem]
        centres = np.array([[int(r["x_center"]), int(r["y_center"])] for r in here])
        truth = np.array([r["tumor"] == "1" for r in here])
        # only the centre pixel: a patch of side 1
        inside = polygon_share(area, centres, side=1.0) > 0.5
        agree += int((inside == truth).sum())
        positive += int(truth.sum())
        total += len(truth)
    assert (total, positive) == (15929, 10000)
    assert agree / total > 0.995  # 15,871 of 15,929; the others lie on or near an outline


def test_masks_by_hand(tmp_path):
    values = np.zeros((20, 30), np.uint8)
    values[:10, :10] = 1
    values[:10, 10:15] = 4
    values[10:, 20:] = 3
    path = tmp_path / "a_mask.tiff"
    rgb = np.stack([values, np.zeros_like(values), np.zeros_like(values)], -1)
    tifffile.imwrite(path, rgb, tile=(16, 16), photometric="rgb", compression="deflate")
    corners = np.array([[0, 0], [10, 0], [20, 10], [25, 15], [-5, 0], [50, 50]])
    share, strange = mask_share(path, corners, side=10.0, positive=(3, 4, 5), known=range(6))
    # a quarter of the fourth patch lies within the slide
    assert share.tolist() == [0, 0.5, 1, 0.25, 0, 0] and strange == ()
    share, strange = mask_share(path, corners, side=10.0, positive=(2,), known=(0, 1, 2))
    assert share.sum() == 0 and strange == (3, 4)
    with pytest.raises(SlideError, match=r"30x20 .*60x40"):
        mask_share(path, corners, side=10.0, positive=(2,), known=(0,), size=(60, 40))
