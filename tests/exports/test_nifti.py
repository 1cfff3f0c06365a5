"""NIfTI maps: values, and the place of each voxel in the patient."""

import gzip
import zipfile
from dataclasses import replace

import nibabel
import numpy as np
import pydicom
import pytest
from support.made_dicom import write_ct_series
from support.made_exports import MODEL, evidence, export, slide_bag, values_of
from support.made_maps import scan_bag

from probsa.slides import list_scans, open_scan


def bag_of(folder, rows=slice(None)):
    """Return the listed scan, and a bag of some of its slices."""
    (source,) = list_scans(folder).sources
    p = scan_bag(open_scan(source).positions[rows])
    return source, evidence(p, name=source.name)


def test_a_series_has_its_values_where_its_slices_are(tmp_path):
    write_ct_series(tmp_path / "cts" / "head", np.arange(7) * 2.5, tilt=0.3)
    source, p = bag_of(tmp_path / "cts", [5, 0, 1, 2, 6, 4])  # without slice 3
    out, failures = export(tmp_path, tmp_path / "cts", p, nifti=True)
    assert failures == []
    for name, values in values_of(p).items():
        image = nibabel.load(out / f"head_{name}.nii.gz")
        data = image.get_fdata(dtype=np.float32)
        assert data.shape == (20, 24, 7) and image.get_data_dtype() == np.float32
        assert np.isnan(data[..., 3]).all()
        for k, value in zip([5, 0, 1, 2, 6, 4], values, strict=True):
            assert (data[..., k] == value).all()
    to_nifti = np.array([-1, -1, 1])  # left and posterior are right and anterior in NIfTI
    slices = sorted(map(pydicom.dcmread, source.files), key=lambda ds: ds.ImagePositionPatient[2])
    for k, ds in enumerate(slices):
        first = np.array(ds.ImagePositionPatient, float)
        between_rows, between_columns = ds.PixelSpacing
        last = first + np.array([19 * between_columns, 23 * between_rows, 0])
        places = nibabel.affines.apply_affine(image.affine, [(0, 0, k), (19, 23, k)])
        np.testing.assert_allclose(places, [to_nifti * first, to_nifti * last], atol=1e-4)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert int(image.header["sform_code"]) == 1 and int(image.header["qform_code"]) == 0
    assert b"research use only" in bytes(image.header["descrip"].tobytes())
    (extension,) = image.header.extensions
    assert f"model: {MODEL}" in extension.get_content().decode()
    before = (out / "head_mean.nii.gz").read_bytes()
    assert before[:2] == b"\x1f\x8b" and gzip.decompress(before)
    assert export(tmp_path / "again", tmp_path / "cts", p, nifti=True)[1] == []
    again = (tmp_path / "again" / "out" / "head_mean.nii.gz").read_bytes()
    stamp = b"predicted: "  # the second that the predictions were written
    assert _without(gzip.decompress(again), stamp) == _without(gzip.decompress(before), stamp)


def _without(data: bytes, stamp: bytes) -> bytes:
    start = data.index(stamp)
    return data[:start] + data[start + len(stamp) + 25 :]


@pytest.mark.parametrize("axes", [(-2.0, -1.5, 5.0), (2.0, 1.5, -5.0)])
def test_a_scan_that_is_nifti_keeps_its_space(tmp_path, axes):
    volume = np.random.default_rng(0).normal(30, 20, (8, 9, 6)).astype(np.float32)
    volume[0] = -1000
    affine = np.diag([*axes, 1.0])
    affine[:3, 3] = 11.0, -7.0, 3.0
    (tmp_path / "cts").mkdir()
    nibabel.save(nibabel.Nifti1Image(volume, affine), tmp_path / "cts" / "s.nii.gz")
    _, p = bag_of(tmp_path / "cts")
    out, failures = export(tmp_path, tmp_path / "cts", p, nifti=True)
    assert failures == []
    image = nibabel.load(out / "s_mean.nii.gz")
    data = image.get_fdata(dtype=np.float32)
    assert nibabel.aff2axcodes(image.affine) == ("R", "A", "S")
    source = nibabel.as_closest_canonical(nibabel.load(tmp_path / "cts" / "s.nii.gz"))
    assert data.shape == source.shape
    np.testing.assert_allclose(image.affine, source.affine)
    np.testing.assert_array_equal(data, np.broadcast_to(p.attention_mean, data.shape))


def test_what_has_no_even_grid_is_refused(tmp_path, shared_data):
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(tmp_path / "cts" / "head")
    _, p = bag_of(tmp_path / "cts")
    out, (reason,) = export(tmp_path, tmp_path / "cts", p, nifti=True)
    assert "1.14 to 7.38 mm" in reason
    assert not list(out.glob("[!.]*"))
    slide = slide_bag(name="head")
    out, (reason,) = export(tmp_path / "slide", tmp_path / "cts", slide, nifti=True)
    assert "scan" in reason
    assert not list(out.glob("[!.]*"))
    write_ct_series(tmp_path / "even" / "head", np.arange(4) * 2.5)
    _, p = bag_of(tmp_path / "even")
    moved = replace(p, coords=p.coords + 1)
    _, (reason,) = export(tmp_path / "moved", tmp_path / "even", moved, nifti=True)
    assert "1 mm" in reason
