"""Volumes that state more than they hold are refused before memory is taken."""

import gzip
import struct

import numpy as np
import pytest

from probsa.core import bag_limit
from probsa.errors import SlideError
from probsa.slides import open_scan
from probsa.slides.scans import list_scans

nibabel = pytest.importorskip("nibabel")


def written(path, *, dim=None, offset=None):
    volume = np.arange(120, dtype=np.int16).reshape(5, 6, 4)
    whole = path.with_name("whole.nii")
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), whole)
    data = bytearray(whole.read_bytes())
    whole.unlink()
    if dim is not None:
        struct.pack_into("<hhhh", data, 40, 3, *dim)
    if offset is not None:
        struct.pack_into("<f", data, 108, offset)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else bytes(data))
    return list_scans(path).sources[0]


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dim", [(32767, 32767, 32767), (1500, 1500, 1500), (500, 500, 200)])
def test_stated_voxels(tmp_path, name, dim):
    with pytest.raises(SlideError, match=r"a\.nii.*(max-bag-gb|states)"):
        open_scan(written(tmp_path / name, dim=dim))


def test_an_offset_that_is_no_number(tmp_path):
    with pytest.raises(SlideError, match=r"a\.nii"):
        open_scan(written(tmp_path / "a.nii", offset=np.inf))


def test_slices_beyond_those_stated(tmp_path):
    with pytest.raises(SlideError, match="5 x 6 x 2 voxels, 120 bytes, but 240 are stored"):
        open_scan(written(tmp_path / "a.nii", dim=(5, 6, 2)))


def test_a_whole_volume_within_the_limit(tmp_path):
    source = written(tmp_path / "a.nii")
    assert open_scan(source).volume.shape == (4, 6, 5)
    with bag_limit(1e-8), pytest.raises(SlideError, match="max-bag-gb"):
        open_scan(source)
