"""Files of annotations: matched by name, read as masks, refused where they are none."""

import json
import tarfile

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.refusals import refused

from probsa.datasets.studies.annotated import annotation_files, tumour_mask
from probsa.errors import InputError


def test_files_are_matched_by_name(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("normal_086.xml", "deep/Tumor_1.xml", "deep/er/mine_mask.png", "notes.json"):
        (tmp_path / name).touch()
    (tmp_path / "deep" / ".other.xml").touch()  # a hidden file
    got = annotation_files(tmp_path, ["tumor_111", "tumor_001", "mine", "other"])
    assert {b: p.name for b, p in got.items()} == {
        "tumor_111": "normal_086.xml",
        "tumor_001": "Tumor_1.xml",
        "mine": "mine_mask.png",
    }
    (tmp_path / "tumor_001.tif").touch()
    with pytest.raises(InputError, match=r"Tumor_1\.xml and .*tumor_001\.tif both annotate"):
        annotation_files(tmp_path, ["tumor_001"])
    with pytest.raises(InputError, match=r"named after a bag: expected, for example, else\.xml"):
        annotation_files(tmp_path, ["else"])
    refused(InputError, "there is no folder", annotation_files, tmp_path / "gone", ["else"])


def test_files_that_are_not_masks(tmp_path):
    def read(name):
        return tumour_mask(tmp_path / name, cover=(640.0, 320.0), downsample=32)

    np.save(tmp_path / "a.npy", np.eye(20)[:10])
    np.testing.assert_array_equal(read("a.npy"), np.eye(20)[:10])
    np.save(tmp_path / "b.npy", np.ones((2, 2, 3)))
    refused(InputError, r"shape \(2, 2, 3\), expected numbers of shape \(rows", read, "b.npy")
    (tmp_path / "c.npy").write_text("no")
    refused(InputError, r"c\.npy cannot be read as \.npy", read, "c.npy")
    np.save(tmp_path / "d.npy", np.ones((320, 640)))
    refused(InputError, "640 × 320 pixels, but the slide's patches end at 20 × 1", read, "d.npy")
    colour = np.zeros((10, 20, 3), np.uint8)
    colour[..., 0] = 200
    Image.fromarray(colour).save(tmp_path / "e.png")
    refused(InputError, "is a colour image, expected a mask", read, "e.png")
    with tifffile.TiffWriter(tmp_path / "f.tif") as f:
        for k in (1, 2):
            f.write(np.ones((512 // k, 512 // k), np.uint8), subfiletype=k - 1, tile=(128, 128))
    refused(InputError, r"levels of 1/1, 1/2, but none of 1/32", read, "f.tif")


def test_polygons_of_the_release_fill_their_pixels(shared_data, tmp_path):
    """The area of a real annotation at 1/32, against the area of its polygons."""
    packed = shared_data / "labels_splits" / "camelyon16_ncrf_annotation_json_5_tumor_slides.tar.gz"
    with tarfile.open(packed) as t:
        t.extractall(tmp_path, filter="data")
    path = next(tmp_path.rglob("Tumor_101.json"))
    annotation = json.loads(path.read_text())
    rings = [np.array(p["vertices"], float) for p in annotation["positive"]]
    area = sum(
        abs(np.sum(r[:, 0] * np.roll(r[:, 1], -1) - r[:, 1] * np.roll(r[:, 0], -1))) / 2
        for r in rings
    )
    mask = tumour_mask(path, cover=(10.0, 10.0), downsample=32)
    assert mask.sum() * 32**2 == pytest.approx(area, rel=0.02)
    corner = np.concatenate(rings).max(0)
    assert mask.shape[1] * 32 > corner[0] and mask.shape[0] * 32 > corner[1]
