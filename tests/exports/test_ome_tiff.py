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


def ome_tiff(p, folder, *, mpp=MPP, **how) -> Path:
    return written(write_ome_tiff, p, folder, mpp=mpp, **how)


def levels(path):
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
    (image,), _ = levels(ome_tiff(p, tmp_path))
    assert image.dtype == np.float32 and image.shape == (3, 512 // 32, 640 // 32)
    expected = np.full(image.shape, np.nan, np.float32)
    for row, (x, y) in enumerate(p.coords // 32):
        for channel, values in enumerate(values_of(p).values()):
            expected[channel, y : y + 2, x : x + 2] = values[row]
    np.testing.assert_array_equal(image, expected)


def test_another_reader_sees_the_same_pixels(tmp_path):
    p = slide_bag(np.random.default_rng(0).random(600), rows=20, columns=30, at=(7, 3))
    path = ome_tiff(p, tmp_path, size=(2000, 1300))
    stored, _ = levels(path)
    with Image.open(path) as image:  # libtiff decodes the tiles
        assert image.n_frames == 3
        for channel in range(3):
            image.seek(channel)
            np.testing.assert_array_equal(np.asarray(image), stored[0][channel])
    assert max(stored[0].shape) > 2 * LONGEST >= max(stored[-1].shape)
    for fine, coarse in itertools.pairwise(stored):
        height, width = fine.shape[1:]
        assert coarse.shape[1:] == (-(-height // 2), -(-width // 2))
        for row, column in ((0, 0), (3, 5), (coarse.shape[1] - 1, coarse.shape[2] - 1)):
            cells = fine[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            for channel in range(3):
                known = cells[channel][np.isfinite(cells[channel])]
                mean = known.astype(float).mean() if len(known) else np.nan
                np.testing.assert_allclose(coarse[channel, row, column], mean, rtol=1e-6)
        assert (np.isfinite(coarse[0]) == _any_of_four(np.isfinite(fine[0]))).all()


def _any_of_four(known):
    padded = np.pad(known, [(0, side % 2) for side in known.shape])
    return padded[::2, ::2] | padded[1::2, ::2] | padded[::2, 1::2] | padded[1::2, 1::2]


def test_physical_sizes_register_it_with_the_slide(tmp_path):
    p = slide_bag()
    (image,), text = levels(ome_tiff(p, tmp_path / "a"))
    pixels = ome_of(text).images[0].pixels
    assert pixels.physical_size_x == pixels.physical_size_y == pytest.approx(MPP * SIDE / 2)
    assert pixels.physical_size_x_unit.value == "µm"
    width = image.shape[2] * pixels.physical_size_x
    assert 0 <= width - SIZE[0] * MPP < pixels.physical_size_x
    assert {(plane.position_x, plane.position_y) for plane in pixels.planes} == {(0.0, 0.0)}
    unknown = ome_of(levels(ome_tiff(p, tmp_path / "b", mpp=None))[1]).images[0].pixels
    assert unknown.physical_size_x_unit.value == "pixel"
    assert unknown.physical_size_x == SIDE / 2


def test_the_metadata_are_valid_and_state_the_origin(tmp_path):
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema checks the OME-XML")
    ome_types = pytest.importorskip("ome_types", reason="ome-types has the schema of OME")
    text = levels(ome_tiff(slide_bag(), tmp_path))[1]
    schema = Path(ome_types.__file__).with_name("ome-2016-06.xsd")
    xmlschema.validate(io.StringIO(text), schema, allow="local")
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        xmlschema.validate(io.StringIO(text.replace('Type="float"', 'Type="x"')), schema)
    ome = ome_of(text)
    names = [channel.name for channel in ome.images[0].pixels.channels]
    assert names == ["mean (evidence)", "std (evidence)", "probability"]
    stated = dict(ome.structured_annotations.map_annotations[0].value)
    assert stated.items() >= ABOUT.entries.items()
    assert ome.images[0].description == STATEMENT and stated["statement"] == STATEMENT


def test_quantities_that_a_model_lacks_are_left_out_with_the_reason(tmp_path):
    p = bag(lattice())
    p = replace(p, attention_variance=np.zeros(30, np.float32))
    (image,), text = levels(ome_tiff(p, tmp_path / "a"))
    assert image.shape == (16, 20)  # one channel
    stated = dict(ome_of(text).structured_annotations.map_annotations[0].value)
    assert "no variance" in stated["without_std"]
    assert "the model's score is a logit" in stated["without_probability"]
    two = replace(p, attention_mean=np.stack([p.attention_mean, -p.attention_mean], 1))
    (image,), text = levels(ome_tiff(two, tmp_path / "b", classes=("benign", "tumour")))
    names = [channel.name for channel in ome_of(text).images[0].pixels.channels]
    assert names == ["mean (logit) benign", "mean (logit) tumour"]
    np.testing.assert_array_equal(image[0], -image[1])


def test_the_same_predictions_give_the_same_bytes(tmp_path):
    once, again = (ome_tiff(slide_bag(), tmp_path / name) for name in "ab")
    assert once.read_bytes() == again.read_bytes()
