"""OME-TIFF: values, register and metadata, by tifffile, libtiff (Pillow), the schema, ome-types."""

import io
import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.made_exports import ABOUT, slide_bag, values_of, written
from support.made_maps import SIDE, bag, lattice

from probsa.exports.ome_tiff import LONGEST, write_ome_tiff
from probsa.exports.provenance import STATEMENT

SIZE = (640, 512)
MPP = 0.25


def ome_tiff(p, folder, *, mpp=MPP, **options) -> Path:
    return written(write_ome_tiff, p, folder, mpp=mpp, **options)


def read_levels(path):
    """Return the images of the levels, and the OME-XML."""
    with tifffile.TiffFile(path) as file:
        assert file.is_ome and file.is_bigtiff
        return [level.asarray() for level in file.series[0].levels], file.ome_metadata


def ome_of(text: str):
    import ome_types

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        return ome_types.from_xml(text)


def test_each_patch_has_its_values_at_its_place_and_the_rest_is_nan(tmp_path):
    p = slide_bag(at=(64, 96))  # not on multiples of the stride: cells of half a patch
    (image,), _ = read_levels(ome_tiff(p, tmp_path))
    assert image.dtype == np.float32 and image.shape == (3, 512 // 32, 640 // 32)
    expected = np.full(image.shape, np.nan, np.float32)
    for row, (x, y) in enumerate(p.coords // 32):
        for channel, values in enumerate(values_of(p).values()):
            expected[channel, y : y + 2, x : x + 2] = values[row]
    np.testing.assert_array_equal(image, expected)


def test_another_reader_sees_the_same_pixels(tmp_path):
    p = slide_bag(np.random.default_rng(0).random(600), rows=20, columns=30, at=(7, 3))
    path = ome_tiff(p, tmp_path, size=(2000, 1300))
    levels, _ = read_levels(path)
    with Image.open(path) as image:  # libtiff decodes the tiles
        assert image.n_frames == 3
        for channel in range(3):
            image.seek(channel)
            np.testing.assert_array_equal(np.asarray(image), levels[0][channel])
    assert max(levels[0].shape) > 2 * LONGEST >= max(levels[-1].shape)
    for fine, coarse in itertools.pairwise(levels):
        # each pixel of the next level is the mean of those of its four that have a value
        _, height, width = fine.shape
        padding = [(0, 0), (0, height % 2), (0, width % 2)]
        padded = np.pad(fine, padding, constant_values=np.nan).astype(float)
        quarters = np.stack([padded[:, i::2, j::2] for i in (0, 1) for j in (0, 1)])
        counts = np.isfinite(quarters).sum(axis=0)
        expected = np.full(counts.shape, np.nan)
        np.divide(np.nansum(quarters, axis=0), counts, out=expected, where=counts > 0)
        np.testing.assert_allclose(coarse, expected, rtol=1e-6)


def test_physical_sizes_register_it_with_the_slide(tmp_path):
    p = slide_bag()
    (image,), text = read_levels(ome_tiff(p, tmp_path / "a"))
    pixels = ome_of(text).images[0].pixels
    assert pixels.physical_size_x == pixels.physical_size_y == pytest.approx(MPP * SIDE / 2)
    assert pixels.physical_size_x_unit.value == "µm"
    width = image.shape[2] * pixels.physical_size_x
    assert 0 <= width - SIZE[0] * MPP < pixels.physical_size_x
    assert {(plane.position_x, plane.position_y) for plane in pixels.planes} == {(0.0, 0.0)}
    unknown = ome_of(read_levels(ome_tiff(p, tmp_path / "b", mpp=None))[1]).images[0].pixels
    assert unknown.physical_size_x_unit.value == "pixel"
    assert unknown.physical_size_x == SIDE / 2


def test_the_metadata_are_valid_and_state_the_origin(tmp_path):
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema checks the OME-XML")
    ome_types = pytest.importorskip("ome_types", reason="ome-types has the schema of OME")
    text = read_levels(ome_tiff(slide_bag(), tmp_path))[1]
    schema = Path(ome_types.__file__).with_name("ome-2016-06.xsd")
    xmlschema.validate(io.StringIO(text), schema, allow="local")
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        xmlschema.validate(io.StringIO(text.replace('Type="float"', 'Type="x"')), schema)
    ome = ome_of(text)
    names = [channel.name for channel in ome.images[0].pixels.channels]
    assert names == ["mean (evidence)", "std (evidence)", "probability"]
    annotation = dict(ome.structured_annotations.map_annotations[0].value)
    assert annotation.items() >= ABOUT.entries.items()
    assert ome.images[0].description == STATEMENT and annotation["statement"] == STATEMENT


def test_quantities_that_a_model_lacks_are_left_out_with_the_reason(tmp_path):
    p = bag(lattice())
    p = replace(p, attention_variance=np.zeros(30, np.float32))
    (image,), text = read_levels(ome_tiff(p, tmp_path / "a"))
    assert image.shape == (16, 20)  # one channel
    annotation = dict(ome_of(text).structured_annotations.map_annotations[0].value)
    assert annotation["without_std"] and "logit" in annotation["without_probability"]
    assert "without_mean" not in annotation
    two_classes = replace(p, attention_mean=np.stack([p.attention_mean, -p.attention_mean], 1))
    path = ome_tiff(two_classes, tmp_path / "b", classes=("benign", "tumour"))
    (image,), text = read_levels(path)
    names = [channel.name for channel in ome_of(text).images[0].pixels.channels]
    assert names == ["mean (logit) benign", "mean (logit) tumour"]
    np.testing.assert_array_equal(image[0], -image[1])


def test_the_same_predictions_give_the_same_bytes(tmp_path):
    first = ome_tiff(slide_bag(), tmp_path / "a")
    second = ome_tiff(slide_bag(), tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
