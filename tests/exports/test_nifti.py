"""NIfTI maps: values, and the place of each voxel in the patient."""

import gzip
import re
import zipfile
from dataclasses import replace
from pathlib import Path

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
    slices = [5, 0, 1, 2, 6, 4]  # not in order, and without slice 3
    source, p = bag_of(tmp_path / "cts", slices)
    out, failures = export(tmp_path, tmp_path / "cts", p, nifti=True)
    assert failures == []
    for name, values in values_of(p).items():
        image = nibabel.load(out / f"head_{name}.nii.gz")
        data = image.get_fdata(dtype=np.float32)
        assert data.shape == (20, 24, 7) and image.get_data_dtype() == np.float32
        assert np.isnan(data[..., 3]).all()
        for k, value in zip(slices, values, strict=True):
            assert (data[..., k] == value).all()
    # DICOM counts millimetres to the left and back of the patient, NIfTI to the right and front
    to_nifti = np.array([-1, -1, 1])
    datasets = [pydicom.dcmread(file) for file in source.files]
    datasets.sort(key=lambda dataset: dataset.ImagePositionPatient[2])
    for k, dataset in enumerate(datasets):
        row_spacing, column_spacing = dataset.PixelSpacing
        # the middles of the first and the last pixel
        first = np.array(dataset.ImagePositionPatient, float)
        last = first + np.array([19 * column_spacing, 23 * row_spacing, 0])
        places = nibabel.affines.apply_affine(image.affine, [(0, 0, k), (19, 23, k)])
        np.testing.assert_allclose(places, [to_nifti * first, to_nifti * last], atol=1e-4)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert int(image.header["sform_code"]) == 1 and int(image.header["qform_code"]) == 0
    assert b"research use only" in bytes(image.header["descrip"].tobytes())
    (extension,) = image.header.extensions
    assert f"model: {MODEL}" in extension.get_content().decode()
    again, _ = export(tmp_path / "again", tmp_path / "cts", p, nifti=True)
    contents = [_undated_content(folder / "head_mean.nii.gz") for folder in (out, again)]
    assert contents[0] == contents[1]


def _undated_content(path: Path) -> bytes:
    """Return an unpacked file without the line that states when the prediction was written."""
    content, count = re.subn(rb"predicted: [-0-9T:+]+", b"", gzip.decompress(path.read_bytes()))
    assert count == 1
    return content


@pytest.mark.parametrize("voxel", [(-2.0, -1.5, 5.0), (2.0, 1.5, -5.0)])
def test_a_scan_that_is_nifti_keeps_its_space(tmp_path, voxel):
    """The steps from voxel to voxel may be towards the left, the back or the feet."""
    volume = np.random.default_rng(0).normal(30, 20, (8, 9, 6)).astype(np.float32)
    volume[0] = -1000  # air
    affine = np.diag([*voxel, 1.0])
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


def test_what_is_not_on_the_even_grid_of_a_scan_is_refused(tmp_path, shared_data):
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(tmp_path / "cts" / "head")
    _, p = bag_of(tmp_path / "cts")
    out, (reason,) = export(tmp_path, tmp_path / "cts", p, nifti=True)
    assert "1.14 to 7.38 mm" in reason
    assert not list(out.glob("[!.]*"))
    slide = slide_bag(name="head")
    out, (reason,) = export(tmp_path / "slide", tmp_path / "cts", slide, nifti=True)
    assert "'head'" in reason and "not a scan" in reason
    assert not list(out.glob("[!.]*"))
    write_ct_series(tmp_path / "even" / "head", np.arange(4) * 2.5)
    _, p = bag_of(tmp_path / "even")
    moved = replace(p, coords=p.coords + 1)
    _, (reason,) = export(tmp_path / "moved", tmp_path / "even", moved, nifti=True)
    assert "'head'" in reason and "slice at 1 mm" in reason
