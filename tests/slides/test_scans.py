"""CT series and NIfTI files: order, units, padding, and what is said of odd ones.

What is expected is computed here from raw pixel arrays, never by the reader under test.
"""

import gzip
import pickle
import random
import re
import shutil
import struct
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import CTImageStorage, EnhancedCTImageStorage, ExplicitVRLittleEndian, generate_uid
from support.refusals import refused

from probsa.core import bag_limit
from probsa.errors import InputError, MissingExtra, SlideError, UnknownName
from probsa.slides import (
    WINDOWS,
    Windows,
    list_scans,
    open_scan,
    open_scans,
    open_slide,
    read_header,
    slice_image,
    windowed,
)

AXIAL = (1, 0, 0, 0, 1, 0)
RNG = np.random.default_rng(0)


def local(name: str) -> Path:
    """A test file that comes with pydicom; never one that it would download."""
    found = get_testdata_file(name, download=False)
    assert found, name
    return Path(str(found))


def dataset(pixels: np.ndarray, *, z: float = 0.0, instance: int = 1, **more) -> Dataset:
    """One CT slice; a keyword that is None takes the element out."""
    d = Dataset()
    d.file_meta = FileMetaDataset()
    d.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    d.file_meta.MediaStorageSOPClassUID = d.SOPClassUID = CTImageStorage
    d.file_meta.MediaStorageSOPInstanceUID = d.SOPInstanceUID = generate_uid()
    d.Modality = "CT"
    d.SeriesInstanceUID = "1.2.3"
    d.SeriesNumber = 2
    d.InstanceNumber = instance
    d.ImagePositionPatient = [-10, -20, z]
    d.ImageOrientationPatient = list(AXIAL)
    d.PixelSpacing = [0.5, 0.75]
    d.SliceThickness = 5
    d.RescaleSlope = 1
    d.RescaleIntercept = -1024
    d.Rows, d.Columns = pixels.shape[-2:]
    d.SamplesPerPixel = 1
    d.PhotometricInterpretation = "MONOCHROME2"
    d.BitsAllocated = d.BitsStored = 8 * pixels.dtype.itemsize
    d.HighBit = d.BitsStored - 1
    d.PixelRepresentation = int(pixels.dtype.kind == "i")
    d.PixelData = pixels.tobytes()
    for key, value in more.items():
        if value is None:
            delattr(d, key)
        else:
            setattr(d, key, value)
    return d


def save(d: Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    d.save_as(path, enforce_file_format=True)
    return path


def image(seed: int = 0, shape: tuple[int, int] = (6, 8)) -> np.ndarray:
    """Stored values of soft tissue, all different ones a seed."""
    return np.random.default_rng(seed).integers(900, 1200, shape).astype(np.int16)


def series(folder: Path, positions, *, names=None, **more) -> list[np.ndarray]:
    """A series with one random image a position; the images."""
    images = [image(i) for i in range(len(positions))]
    for i, (z, pixels) in enumerate(zip(positions, images, strict=True)):
        name = names[i] if names else f"{i:03d}.dcm"
        save(dataset(pixels, z=z, instance=i + 1, **more), folder / name)
    return images


def only(path: Path):
    (scan,) = open_scans(path)
    return scan


def note(scan, pattern: str) -> str:
    """The one note that matches."""
    (found,) = [n for n in scan.notes if re.search(pattern, n)]
    return found


@pytest.fixture(scope="session")
def ge(shared_data, tmp_path_factory) -> Path:
    """The real head series: 28 slices, tilted, thin at the base and thick above."""
    folder = tmp_path_factory.mktemp("ge") / "head"
    folder.mkdir()
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def ge_slices(ge) -> dict[int, tuple[float, np.ndarray]]:
    """By InstanceNumber: z of ImagePositionPatient, and the raw pixels."""
    read = [pydicom.dcmread(f) for f in sorted(ge.iterdir())]
    return {int(d.InstanceNumber): (float(d.ImagePositionPatient[2]), d.pixel_array) for d in read}


def expected_ge(ge_slices, numbers=None) -> np.ndarray:
    """In order of z, padding of -1500 replaced by the smallest value of the rest."""
    numbers = sorted(numbers or ge_slices, key=lambda n: ge_slices[n][0])
    stack = np.stack([ge_slices[n][1] for n in numbers]).astype(np.float32)
    stack[stack == -1500] = stack[stack != -1500].min()
    return stack


def shuffled(ge: Path, to: Path, *, seed: int = 3) -> Path:
    """The series under names whose order says nothing."""
    to.mkdir(parents=True)
    names = [f"IM{i:04d}" for i in range(28)]
    random.Random(seed).shuffle(names)
    for file, name in zip(sorted(ge.iterdir()), names, strict=True):
        shutil.copy(file, to / name)
    return to


# the real series


def test_a_shuffled_series_comes_in_order_of_position(ge, ge_slices, tmp_path):
    scan = only(shuffled(ge, tmp_path / "patient7"))
    assert (scan.name, scan.format) == ("patient7", "dicom")
    assert scan.volume.dtype == np.float32
    np.testing.assert_array_equal(scan.volume, expected_ge(ge_slices))
    assert np.all(np.diff(scan.positions) > 0)
    assert scan.spacing == (0.4882812, 0.4882812)
    assert scan.thickness == 4.0
    # along z slices are 4.22, 1.14 and 7.38 mm apart; along their normal cos(18.5°) of it
    z = np.sort([place for place, _ in ge_slices.values()])
    np.testing.assert_allclose(np.diff(scan.positions), np.diff(z) * 0.9483237, atol=1e-6)
    scan = only(ge)
    assert note(scan, "tilt").count("18.5") == 2
    assert "13 x 4.00, 1 x 1.08, 13 x 7.00 mm" in note(scan, "uneven")
    assert "14 x 4, 14 x 7 mm" in note(scan, "thickness changes")
    # spacing that changes on purpose hides no slice
    assert not [n for n in scan.notes if "missing" in n]
    share = 100 * np.mean([pydicom.dcmread(f).pixel_array == -1500 for f in ge.iterdir()])
    assert f"Padding (-1500) is {share:.1f} %" in note(scan, "Padding")
    shown = slice_image(scan, 9, Windows.parse("brain,bone,0:2000"))
    raw = expected_ge(ge_slices)[9].astype(np.float64)
    for channel, (low, high) in enumerate([(0, 80), (-800, 2000), (-1000, 1000)]):
        want = np.rint(255 * (np.clip(raw, low, high) - low) / (high - low))
        np.testing.assert_array_equal(shown[..., channel], want)


@pytest.mark.parametrize("gone", [2, 14, 27])
def test_a_missing_slice_is_named(ge, ge_slices, tmp_path, gone):
    folder = shuffled(ge, tmp_path / "p")
    for file in folder.iterdir():
        if pydicom.dcmread(file, stop_before_pixels=True).InstanceNumber == gone:
            file.unlink()
    scan = only(folder)
    told = note(scan, "missing")
    assert f"InstanceNumber {gone} between" in told
    below, above = (ge_slices[n][0] for n in (gone - 1, gone + 1))
    assert f"{(above - below) * 0.9483237:.2f} mm)" in told
    np.testing.assert_array_equal(
        scan.volume, expected_ge(ge_slices, [n for n in ge_slices if n != gone])
    )


def test_duplicates_are_named_and_kept_once(ge, ge_slices, tmp_path):
    folder = shuffled(ge, tmp_path / "p")
    first = pydicom.dcmread(ge / "09.dcm")
    first.save_as(folder / "copy")
    scan = only(folder)
    np.testing.assert_array_equal(scan.volume, expected_ge(ge_slices))
    assert "with the same pixels" in note(scan, "Duplicate")
    assert "copy" in note(scan, "Duplicate")
    assert not [n for n in scan.notes if "missing" in n]
    other = pydicom.dcmread(ge / "09.dcm")
    other.InstanceNumber = 99
    x, y, z = other.ImagePositionPatient
    other.ImagePositionPatient = [x, y, z - 0.004]  # the same place but for rounding
    other.PixelData = (other.pixel_array + 1).tobytes()
    other.save_as(folder / "AAA")  # the first by name
    scan = only(folder)
    np.testing.assert_array_equal(scan.volume, expected_ge(ge_slices))
    assert "AAA lies at" in note(scan, "Duplicate")
    assert "DIFFERENT pixels" in note(scan, "Duplicate")


def test_two_series_in_one_folder_are_told_apart(ge, ge_slices, tmp_path):
    folder = shuffled(ge, tmp_path / "p1")
    for file in sorted(ge.iterdir())[:10]:
        d = pydicom.dcmread(file)
        d.SeriesInstanceUID = "1.2.9"
        d.SeriesNumber = 7
        d.PixelData = (d.pixel_array // 2).tobytes()
        d.save_as(folder / f"b{file.name}")
    listing = list_scans(tmp_path)
    assert [(s.name, len(s.files), s.format) for s in listing.sources] == [
        ("p1_2", 28, "dicom"),
        ("p1_7", 10, "dicom"),
    ]
    assert (listing.failures, listing.skipped) == ((), {})
    one, two = (open_scan(s) for s in pickle.loads(pickle.dumps(listing.sources)))
    assert (one.name, two.name) == ("p1_2", "p1_7")
    np.testing.assert_array_equal(one.volume, expected_ge(ge_slices))
    # halved, -1500 is -750: no padding any more
    half = np.stack([ge_slices[n][1] // 2 for n in range(1, 11)])
    np.testing.assert_array_equal(two.volume, half)


def test_one_damaged_slice_is_left_out_and_named(ge, ge_slices, tmp_path):
    folder = shuffled(ge, tmp_path / "p")
    fifth = next(f for f in folder.iterdir() if pydicom.dcmread(f).InstanceNumber == 5)
    fifth.write_bytes(fifth.read_bytes()[:-1000])
    scan = only(folder)
    np.testing.assert_array_equal(
        scan.volume, expected_ge(ge_slices, [n for n in ge_slices if n != 5])
    )
    assert fifth.name in note(scan, "cannot be decoded")
    assert "InstanceNumber 5" in note(scan, "missing")


@pytest.mark.parametrize("key", ["Rows", "Columns"])
@pytest.mark.parametrize("value", [None, [6, 6], 0])
def test_an_image_without_a_size_is_refused_by_name(tmp_path, key, value):
    header = dataset(image(), z=0)
    setattr(header, key, value)
    path = save(header, tmp_path / "a.dcm")
    with pytest.raises(SlideError, match=f"a\\.dcm.*{key}"):
        open_scans(path)


def test_functional_groups_that_are_no_sequence_are_passed_over(tmp_path):
    header = dataset(image(), z=0)
    header.add_new("PerFrameFunctionalGroupsSequence", "LO", "no sequence")
    assert len(only(save(header, tmp_path / "a.dcm")).positions) == 1


# one volume in both formats


def write_nifti(path: Path, volume: np.ndarray, affine: np.ndarray, *, axes: str) -> Path:
    """A volume of (x right, y front, z up), stored in another order of axes."""
    from nibabel.orientations import axcodes2ornt, ornt_transform

    plain = nibabel.Nifti1Image(volume, affine)
    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(tuple(axes)))
    stored = plain.as_reoriented(turn)
    stored.header.set_xyzt_units("mm")
    stored.set_qform(stored.affine, 1)
    stored.set_sform(stored.affine, 1)
    nibabel.save(stored, path)
    return path


@pytest.fixture(scope="session")
def head(shared_data) -> np.ndarray:
    """The VTK head: (slices from the feet up, rows, columns); here without its upper half."""
    found = np.load(shared_data / "ct_volumes" / "vtk_headsq_64x64x93.npz")
    (key,) = [k for k in found.files if found[k].ndim == 3]
    assert found[key].shape == (93, 64, 64)
    return found[key][:40].astype(np.int16)


# directions of rows and columns of the stored image (left, posterior, superior), and how the image
# is stored so that it shows the same head
STORED = {
    "supine": ((1, 0, 0), (0, 1, 0), lambda a: a),
    "prone": ((-1, 0, 0), (0, -1, 0), lambda a: a[::-1, ::-1]),
    "upside down": ((1, 0, 0), (0, -1, 0), lambda a: a[::-1]),
    "mirrored": ((-1, 0, 0), (0, 1, 0), lambda a: a[:, ::-1]),
    "on its side": ((0, 1, 0), (1, 0, 0), lambda a: a.T),
    "turned": ((0, -1, 0), (1, 0, 0), lambda a: a.T[:, ::-1]),
}


@pytest.mark.parametrize(
    ("stored", "axes"), [*zip(STORED, ["RAS", "LPS", "LAS", "PSR", "SAL", "IRP"], strict=True)]
)
def test_dicom_and_nifti_of_one_volume_are_equal(head, tmp_path, stored, axes):
    along, down, turn = STORED[stored]
    wanted = head[:6, 10:30, 5:40] if axes != "RAS" else head
    n, h, w = wanted.shape
    rows_mm = 3.2
    columns_mm = 2.5
    step = 1.5
    # the middle of the displayed top left pixel: left, posterior, superior
    corner = np.array([-30.0, -40.0, 12.0])
    order = random.Random(1).sample(range(n), n)
    for k in range(n):
        shown = np.zeros((h, w, 3))
        shown[..., 0] = corner[0] + columns_mm * np.arange(w)
        shown[..., 1] = corner[1] + rows_mm * np.arange(h)[:, None]
        shown[..., 2] = corner[2] + step * k
        pixels = np.ascontiguousarray(turn(wanted[k]))
        first = [turn(shown[..., axis])[0, 0] for axis in range(3)]
        sideways = along[0] == 0
        d = dataset(
            pixels,
            instance=n - k,
            ImagePositionPatient=first,
            ImageOrientationPatient=[*along, *down],
            PixelSpacing=[columns_mm, rows_mm] if sideways else [rows_mm, columns_mm],
            RescaleIntercept=0,
        )
        save(d, tmp_path / "d" / f"{order[k]}.dcm")
    # x to the right is columns from the last; y to the front is rows from the last
    ras = wanted.transpose(2, 1, 0)[::-1, ::-1]
    affine = np.diag([columns_mm, rows_mm, step, 1])
    affine[:3, 3] = [-corner[0] - columns_mm * (w - 1), -corner[1] - rows_mm * (h - 1), corner[2]]
    by_dicom = only(tmp_path / "d")
    by_nifti = only(write_nifti(tmp_path / "head.nii.gz", ras, affine, axes=axes))
    np.testing.assert_array_equal(by_dicom.volume, wanted)
    np.testing.assert_array_equal(by_nifti.volume, wanted)
    np.testing.assert_allclose(by_dicom.positions, 12.0 + 1.5 * np.arange(n), atol=1e-6)
    np.testing.assert_allclose(by_nifti.positions, by_dicom.positions, atol=1e-5)
    assert by_dicom.spacing == (rows_mm, columns_mm)
    assert by_nifti.spacing == pytest.approx((rows_mm, columns_mm))
    assert (by_nifti.name, by_nifti.format, by_nifti.thickness) == ("head", "nifti", None)
    turned = [t for t in by_dicom.notes if "turned" in t]
    assert bool(turned) == (stored != "supine")
    assert bool([t for t in by_nifti.notes if "stored as" in t]) == (axes[2] not in "SI")


def test_a_tilted_nifti_agrees_with_the_tilted_series(ge, tmp_path):
    """Shear in the affine: the part of evenly spaced slices of the real series."""
    scan = only(ge)
    files = [pydicom.dcmread(f) for f in sorted(ge.iterdir())[:14]]
    along, down = np.array(files[0].ImageOrientationPatient, float).reshape(2, 3)
    start = np.array(files[0].ImagePositionPatient, float)
    step = np.array(files[1].ImagePositionPatient, float) - start
    spacing = float(files[0].PixelSpacing[0])
    lps = np.eye(4)
    lps[:3] = np.column_stack([along * spacing, down * spacing, step, start])
    affine = np.diag([-1, -1, 1, 1]) @ lps
    data = np.stack([d.pixel_array for d in files]).transpose(2, 1, 0).astype(np.int16)
    plain = nibabel.Nifti1Image(data, affine)
    plain.header.set_xyzt_units("mm")
    nibabel.save(plain, tmp_path / "t.nii")
    found = only(tmp_path / "t.nii")
    np.testing.assert_allclose(found.positions, scan.positions[:14], atol=1e-4)
    real = data.transpose(2, 1, 0) != -1500
    np.testing.assert_array_equal(found.volume[real], scan.volume[:14][real])
    assert "18.5 degrees off" in note(found, "axial plane")


# units, padding


def test_the_rescale_is_each_slices_own(tmp_path):
    images = [image(i) for i in range(4)]
    rescales = [(1, -1024), (2, -2000), (0.5, 100.5), (1, 0)]
    for i, (slope, intercept) in enumerate(rescales):
        d = dataset(images[i], z=i, RescaleSlope=slope, RescaleIntercept=intercept)
        save(d, tmp_path / f"{i}.dcm")
    scan = only(tmp_path)
    want = [
        pixels * slope + intercept
        for pixels, (slope, intercept) in zip(images, rescales, strict=True)
    ]
    np.testing.assert_array_equal(scan.volume, np.float32(want))
    assert note(scan, "rescale differs")


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("RescaleSlope", "1e308", "RescaleSlope 1e.308 .* no scanner measures"),
        ("RescaleSlope", "-1e38", "no scanner measures"),
        ("RescaleSlope", "nan", "RescaleSlope is nan, .*finite number"),
        ("RescaleIntercept", "inf", "RescaleIntercept is inf, .*finite number"),
        ("RescaleIntercept", "1 HU", "RescaleIntercept is 1 HU, .*finite number"),
    ],
)
def test_a_rescale_that_gives_no_number_costs_its_slice(tmp_path, key, text, said):
    images = series(tmp_path, [0, 5])
    path = save(dataset(image(), z=10, **{key: -1234.567}), tmp_path / "bad.dcm")
    path.write_bytes(path.read_bytes().replace(b"-1234.567 ", text.encode().ljust(10)))
    listing = list_scans(tmp_path)
    scan = open_scan(listing.sources[0])
    np.testing.assert_array_equal(scan.volume, np.stack(images) - 1024.0)
    reasons = [*scan.notes, *(failure.reason for failure in listing.failures)]
    assert any(re.search(rf"bad\.dcm.*{said}", reason) for reason in reasons)
    refused(SlideError, rf"bad\.dcm.*{said}", only, path)


@pytest.mark.parametrize(
    ("kind", "stored", "declared", "vr"),
    [
        (np.int16, -2000, -2000, "SS"),
        (np.int16, -2000, 63536, "US"),  # signed pixels, tag written as unsigned
        (np.uint16, 63536, -2000, "SS"),  # the reverse
        (np.uint16, 0, 0, "US"),
    ],
)
def test_declared_padding_becomes_the_smallest_real_value(tmp_path, kind, stored, declared, vr):
    pixels = image().astype(kind)
    pixels[0] = pixels[-1] = stored
    d = dataset(pixels)
    d.add_new("PixelPaddingValue", vr, declared)
    scan = only(save(d, tmp_path / "a.dcm"))
    want = pixels.astype(np.float32) - 1024
    want[0] = want[-1] = want[1:-1].min()
    np.testing.assert_array_equal(scan.volume[0], want)
    assert "33.3 %" in note(scan, "Padding")


def test_a_range_of_padding(tmp_path):
    pixels = image()
    pixels[0] = np.arange(-2005, -1997)
    d = dataset(pixels, PixelPaddingValue=-2003, PixelPaddingRangeLimit=-2000, RescaleIntercept=0)
    d.Modality = "MR"  # nothing but the declaration tells padding
    want = pixels.astype(np.float32)
    want[0, 2:6] = -2005
    np.testing.assert_array_equal(only(save(d, tmp_path / "a.dcm")).volume[0], want)


@pytest.mark.parametrize("value", [-2000, -1500, -3024])
def test_padding_that_nobody_declared(tmp_path, value):
    """Below what is scanned, and alone: not noise, which has neighbours."""
    pixels = image()
    pixels[0, :3] = value + 1024
    save(dataset(pixels, z=0), tmp_path / "0.dcm")
    noise = image(1)
    noise[0, :3] = [-60, -40, 0]  # -1084 HU is noise: -1064 lies beside it
    save(dataset(noise, z=5), tmp_path / "1.dcm")
    scan = only(tmp_path)
    np.testing.assert_array_equal(scan.volume[0, 0, :3], [-1084] * 3)
    np.testing.assert_array_equal(scan.volume[1], noise - 1024.0)
    assert f"({value})" in note(scan, "Padding")


def test_lossy_padding_is_smeared(tmp_path):
    """A head of the CQ500 set in lossy JPEG 2000: padding rings down to -3995 HU and up again."""
    values = pydicom.dcmread(local("693_J2KI.dcm")).pixel_array.astype(np.float32) - 1024
    scan = only(local("693_J2KI.dcm"))
    real = values >= -1124
    assert 0.5 < real.mean() < 0.95
    np.testing.assert_array_equal(scan.volume[0][real], values[real])
    assert np.all(scan.volume[0][~real] == values[real].min())
    assert note(scan, "with loss")


TISSUE = f"smallest value is {image().min()}"


@pytest.mark.parametrize(
    ("changes", "said", "intercept"),
    [
        ({"Modality": "MR"}, "modality is MR: values are not Hounsfield", -1024),
        ({"RescaleSlope": None, "RescaleIntercept": None}, "rescale is missing", 0),
        ({"RescaleType": "US"}, "RescaleType is US", -1024),
        ({"RescaleIntercept": 0}, TISSUE, 0),
        ({"Modality": None}, "taken as CT", -1024),
        ({"PixelSpacing": None}, "PixelSpacing is missing: 1 x 1 mm", -1024),
        ({"SliceThickness": None}, "a single slice", -1024),
        ({"ImageOrientationPatient": None}, "taken as axial", -1024),
        ({"ImagePositionPatient": None}, "Positions are missing", -1024),
    ],
)
def test_what_the_header_lacks_is_said(tmp_path, changes, said, intercept):
    scan = only(save(dataset(image(), **changes), tmp_path / "a.dcm"))
    np.testing.assert_array_equal(scan.volume[0], image() + float(intercept))
    assert note(scan, said)
    assert scan.spacing == ((1.0, 1.0) if "PixelSpacing" in changes else (0.5, 0.75))
    assert scan.thickness == (None if "SliceThickness" in changes else 5.0)


def test_pixel_spacings_that_differ_are_said(tmp_path):
    series(tmp_path, [0, 5])
    save(dataset(image(), z=10, PixelSpacing=[0.4, 0.4]), tmp_path / "z.dcm")
    scan = only(tmp_path)
    assert "0.4 x 0.4; 0.5 x 0.75 mm" in note(scan, "PixelSpacing differs")
    assert scan.spacing == (0.5, 0.75)


@pytest.mark.parametrize("side", [8_000, 65_535])
def test_slices_that_state_more_than_they_hold_are_refused_before_memory_is_taken(tmp_path, side):
    path = save(dataset(image(), Rows=side, Columns=side), tmp_path / "a.dcm")
    refused(SlideError, r"a\.dcm", only, path)


@pytest.mark.parametrize("preamble", [True, False])
def test_a_deflated_file_is_unpacked_within_a_limit(tmp_path, monkeypatch, preamble):
    head = local("image_dfl.dcm").read_bytes()[:334]  # up to the deflated part
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    path = tmp_path / "bomb.dcm"
    path.write_bytes(head[0 if preamble else 132 :] + stream.compress(bytes(80_000_000)))
    monkeypatch.setattr(pydicom.filereader.zlib, "decompress", None)  # would take all of it
    for read in (read_header, only, *([open_slide] if preamble else [])):
        refused(SlideError, r"bomb\.dcm", read, path)


def test_a_modality_lut_is_looked_up(tmp_path):
    lut = Dataset()
    lut.LUTDescriptor = [300, 900, 16]
    lut.ModalityLUTType = "HU"
    lut.add_new("LUTData", "OW", (np.arange(300, dtype=np.uint16) * 3).tobytes())
    d = dataset(image().astype(np.uint16), RescaleSlope=None, RescaleIntercept=None)
    d.ModalityLUTSequence = Sequence([lut])
    scan = only(save(d, tmp_path / "a.dcm"))
    np.testing.assert_array_equal(scan.volume[0], (image() - 900.0) * 3)


def test_monochrome1_is_inverted_where_values_are_brightness(tmp_path):
    bits = {"BitsStored": 12, "HighBit": 11, "PhotometricInterpretation": "MONOCHROME1"}
    pixels = image().astype(np.uint16)
    d = dataset(pixels, Modality="MR", RescaleSlope=2, RescaleIntercept=10, **bits)
    scan = only(save(d, tmp_path / "mr.dcm"))
    np.testing.assert_array_equal(scan.volume[0], (4095.0 - pixels) * 2 + 10)
    assert note(scan, "MONOCHROME1")
    # what is shown as black does not change how much a voxel absorbs
    scan = only(save(dataset(pixels, **bits), tmp_path / "ct.dcm"))
    np.testing.assert_array_equal(scan.volume[0], pixels - 1024.0)


# where slices lie


@pytest.mark.parametrize(
    ("headers", "positions", "order", "said"),
    [
        (
            [{"ImagePositionPatient": None, "SliceLocation": z} for z in (7.5, 0, 5, 2.5)],
            [0, 2.5, 5, 7.5],
            (1, 3, 2, 0),
            "SliceLocation",
        ),
        (  # slices are 5 mm thick
            [{"ImagePositionPatient": None, "InstanceNumber": n} for n in (30, 10, 20)],
            [0, 50, 100],
            (1, 2, 0),
            "InstanceNumber",
        ),
        (  # all at one place says as little as none
            [{"InstanceNumber": n} for n in (30, 10, 20)],
            [0, 50, 100],
            (1, 2, 0),
            "InstanceNumber",
        ),
        (
            [{"ImageOrientationPatient": None, "z": z} for z in (5, 0, 10)],
            [0, 5, 10],
            (1, 0, 2),
            "taken as axial",
        ),
    ],
)
def test_the_best_source_that_all_slices_have_orders_them(
    tmp_path, headers, positions, order, said
):
    images = [image(i) for i in range(len(headers))]
    for i, more in enumerate(headers):
        save(dataset(images[i], **more), tmp_path / f"{i}.dcm")
    scan = only(tmp_path)
    np.testing.assert_array_equal(scan.positions, positions)
    np.testing.assert_array_equal(scan.volume, np.stack([images[i] for i in order]) - 1024.0)
    assert note(scan, said)


@pytest.mark.parametrize(
    ("orientation", "word", "axis", "flip"),
    [
        ((1, 0, 0, 0, 0, -1), "coronal", 1, np.s_[:, :]),
        ((0, 1, 0, 0, 0, -1), "sagittal", 0, np.s_[:, :]),
        ((0, 1, 0, 0, 0, 1), "sagittal", 0, np.s_[::-1, :]),  # stored with the head below
    ],
)
def test_other_planes_are_shown_head_up_and_said(tmp_path, orientation, word, axis, flip):
    images = [image(i) for i in range(3)]
    for i, at in enumerate([6, 0, 3]):
        place = [0.0, 0.0, 0.0]
        place[axis] = at
        turned = {"ImagePositionPatient": place, "ImageOrientationPatient": [*orientation]}
        save(dataset(images[i], **turned), tmp_path / f"{i}.dcm")
    scan = only(tmp_path)
    np.testing.assert_array_equal(scan.positions, [0, 3, 6])
    want = np.stack([images[i][flip] for i in (1, 2, 0)]) - 1024.0
    np.testing.assert_array_equal(scan.volume, want)
    assert note(scan, f"{word}, not axial")


def test_a_scout_among_the_slices_is_left_out_and_named(tmp_path):
    images = series(tmp_path, [0, 5, 10])
    scout = dataset(image(9, (20, 30)), ImageOrientationPatient=[0, 1, 0, 0, 0, -1], z=50)
    save(scout, tmp_path / "scout.dcm")
    scan = only(tmp_path)
    np.testing.assert_array_equal(scan.volume, np.stack(images) - 1024.0)
    assert "scout.dcm" in note(scan, "a different plane")


CORONAL = [1, 0, 0, 0, 0, -1]
TURNED = {"ImageOrientationPatient": CORONAL}


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([{"ImagePositionPatient": None}] * 3, "positions .* are unknown"),
        ([{"z": 0}, {"z": 5}, TURNED, TURNED], r"2 orientations \(2 axial, 2 coronal\)"),
        (
            [{"z": 0}, {"z": 5}, {"z": 9}, {"z": 12, "Rows": 5, "PixelData": bytes(80)}],
            r"3 of 6 x 8, 1 of 5 x 8 pixels; 3\.dcm",
        ),
        ([{"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}], "pair of orthogonal axes"),
        ([{"NumberOfFrames": 2, "PixelData": bytes(192)}], "2 frames but no position"),
        ([{"PhotometricInterpretation": "PALETTE COLOR"}], r"a colour image \(PALETTE COLOR\)"),
        ([{"PixelPaddingValue": 0, "PixelData": bytes(96)}], "holds nothing but padding"),
        ([{"PixelData": bytes(90)}], r"0\.dcm"),
    ],
)
def test_slices_that_form_no_volume_are_refused(tmp_path, headers, said):
    for i, more in enumerate(headers):
        save(dataset(image(i), **more), tmp_path / f"{i}.dcm")
    refused(SlideError, said, only, tmp_path)


def test_even_spacing_is_not_remarked_and_gaps_count_the_slices(tmp_path):
    even = tmp_path / "even"
    series(even, [round(0.625 * i, 2) for i in range(12)], RescaleIntercept=-1800)
    assert only(even).notes == ()
    series(tmp_path / "gaps", [0, 5, 10, 25, 30, 35, 40, 50, 55], InstanceNumber=None)
    told = note(only(tmp_path / "gaps"), "missing")
    assert "about 2 between 10.00 and 25.00 mm" in told
    assert "about 1 between 40.00 and 50.00 mm" in told


# frames, compression


def test_an_enhanced_file_of_several_frames(tmp_path):
    frames = np.stack([image(i) for i in range(4)])
    d = dataset(frames, RescaleSlope=None, RescaleIntercept=None, ImagePositionPatient=None)
    del d.ImageOrientationPatient, d.PixelSpacing, d.SliceThickness
    d.file_meta.MediaStorageSOPClassUID = d.SOPClassUID = EnhancedCTImageStorage
    d.NumberOfFrames = len(frames)
    plane = Dataset()
    measures = Dataset()
    shared = Dataset()
    plane.ImageOrientationPatient = list(AXIAL)
    measures.PixelSpacing = [0.4, 0.6]
    measures.SliceThickness = 2.5
    shared.PlaneOrientationSequence = Sequence([plane])
    shared.PixelMeasuresSequence = Sequence([measures])
    d.SharedFunctionalGroupsSequence = Sequence([shared])
    d.PerFrameFunctionalGroupsSequence = Sequence()
    for i, z in enumerate([10, 0, 7.5, 2.5]):
        position = Dataset()
        values = Dataset()
        frame = Dataset()
        position.ImagePositionPatient = [0, 0, z]
        values.RescaleSlope = 1
        values.RescaleIntercept = -i
        values.RescaleType = "HU"
        frame.PlanePositionSequence = Sequence([position])
        frame.PixelValueTransformationSequence = Sequence([values])
        d.PerFrameFunctionalGroupsSequence.append(frame)
    scan = only(save(d, tmp_path / "e.dcm"))
    want = [frames[1] - 1, frames[3] - 3, frames[2] - 2, frames[0]]
    np.testing.assert_array_equal(scan.volume, np.float32(want))
    np.testing.assert_array_equal(scan.positions, [0, 2.5, 7.5, 10])
    assert (scan.spacing, scan.thickness) == ((0.4, 0.6), 2.5)


@pytest.mark.parametrize(
    "name", ["RLE", "jp2klossless", "jpeg_ls_lossless", "bigendian", "implicit", "padded"]
)
def test_lossless_syntaxes_give_the_pixels_of_the_plain_file(name):
    plain = pydicom.dcmread(local("MR_small.dcm"))
    path = local(f"MR_small_{name}.dcm")
    scan = only(path)
    raw = np.frombuffer(plain.PixelData, np.int16).reshape(64, 64)
    np.testing.assert_array_equal(scan.volume[0], raw)
    syntax = pydicom.dcmread(path).file_meta.TransferSyntaxUID.name
    assert scan.properties["TransferSyntax"] == syntax


def test_a_deflated_file():
    raw = pydicom.dcmread(local("image_dfl.dcm")).pixel_array
    np.testing.assert_array_equal(only(local("image_dfl.dcm")).volume[0], raw)


def test_the_signs_of_a_jpeg2000_stream_that_contradicts_its_header():
    """Signed values in a stream that says unsigned: -2000 is padding, air is near -1000."""
    scan = only(local("J2K_pixelrep_mismatch.dcm"))
    assert "(-2000)" in note(scan, "Padding")
    counts, edges = np.histogram(scan.volume, bins=range(-1100, 2000, 10))
    assert -1060 <= edges[counts.argmax()] <= -950
    assert scan.volume.min() > -1100


@pytest.mark.parametrize(
    ("syntax", "kind"),
    [
        (pydicom.uid.RLELossless, "RLELossless"),
        (pydicom.uid.JPEGLosslessSV1, "JPEGLosslessProcess14_1"),
        (pydicom.uid.JPEGLSLossless, "JPEGLSLossless"),
        (pydicom.uid.JPEG2000Lossless, "JPEG2000Lossless"),
    ],
)
def test_a_compressed_copy_of_the_real_series_is_the_same(ge, ge_slices, tmp_path, syntax, kind):
    # pydicom writes JPEG by pylibjpeg, which is not ours: gdcm's own tools do it here
    import gdcm

    for number in (3, 1, 2):
        reader = gdcm.ImageReader()
        reader.SetFileName(str(ge / f"{number:02d}.dcm"))
        assert reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, kind)))
        change.SetInput(reader.GetImage())
        assert change.Change()
        writer = gdcm.ImageWriter()
        writer.SetFileName(str(tmp_path / f"{9 - number}.dcm"))
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        assert writer.Write()
        written = pydicom.dcmread(tmp_path / f"{9 - number}.dcm")
        assert written.file_meta.TransferSyntaxUID == syntax
    np.testing.assert_array_equal(only(tmp_path).volume, expected_ge(ge_slices, [1, 2, 3]))


@pytest.mark.parametrize("seed", [68, 142])
def test_a_stream_that_cannot_be_decoded_is_refused_by_name(tmp_path, seed):
    """gdcm, with which pydicom begins, ends the process on these."""
    d = pydicom.dcmread(local("MR_small_jp2klossless.dcm"))
    rng = random.Random(seed)
    data = bytearray(d.PixelData)
    for _ in range(rng.choice([1, 3, 20])):
        data[rng.randrange(20, len(data) - 8)] = rng.randrange(256)
    d.PixelData = bytes(data)
    refused(SlideError, r"bad\.dcm", only, save(d, tmp_path / "bad.dcm"))


def test_a_missing_decoder_names_the_extra(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("all plugins are missing dependencies")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("pydicom.pixels.utils.pixel_array", fail)
    with pytest.raises(MissingExtra, match=r"python-gdcm.*'\.\[ct\]'"):
        only(local("MR_small_jpeg_ls_lossless.dcm"))


@pytest.mark.parametrize(("package", "name"), [("pydicom", "a.dcm"), ("nibabel", "a.nii")])
def test_missing_readers_name_the_extra(tmp_path, monkeypatch, package, name):
    file = tmp_path / name
    file.write_bytes(local("CT_small.dcm").read_bytes())
    monkeypatch.setitem(sys.modules, package, None)
    refused(MissingExtra, rf"{package}.*'\.\[ct\]'", open_scans, file)


# odd files


def test_the_rsna_slice_of_illegal_uids_is_read_without_a_warning(shared_data):
    path = shared_data / "rsna_ich_sa_mil" / "ID_000012eaf.dcm"
    d = pydicom.dcmread(path)
    with pytest.warns(UserWarning, match="UI"):
        assert d.SeriesInstanceUID == "ID_0ab5820b2a"
    raw = d.pixel_array.astype(np.float32) - 1024
    with warnings.catch_warnings(record=True) as escaped:
        scan = only(path)
    assert escaped == []
    real = raw >= -1024
    np.testing.assert_array_equal(scan.volume[0][real], raw[real])
    assert np.all(scan.volume[0][~real] == raw[real].min())
    assert "(-3024)" in note(scan, "Padding")
    # IPP · (row x column), by hand
    z = -115.897980 * 0.374607 + 77.970825 * 0.927184
    assert scan.positions == pytest.approx([z], abs=1e-4)
    assert scan.properties["SeriesInstanceUID"] == "ID_0ab5820b2a"


@pytest.mark.parametrize("implicit", [True, False])
def test_a_file_without_the_preamble(tmp_path, implicit):
    d = dataset(image())
    bare = Dataset({e.tag: e for e in d})
    path = tmp_path / "a.dcm"
    bare.save_as(path, implicit_vr=implicit, little_endian=True, enforce_file_format=False)
    assert path.read_bytes()[:2] == b"\x08\x00"
    np.testing.assert_array_equal(only(path).volume[0], image() - 1024.0)


def test_what_lies_beside_the_slices_is_skipped_and_counted(tmp_path):
    images = series(tmp_path / "p1", [0, 5, 10])
    for name in ("test-SR.dcm", "rtplan.dcm", "rtdose.dcm", "waveform_ecg.dcm"):
        shutil.copy(local(name), tmp_path / "p1")
    shutil.copy(local("SC_rgb_rle.dcm"), tmp_path / "p1" / "dose_report.dcm")
    shutil.copy(local("dicomdirtests/DICOMDIR"), tmp_path / "DICOMDIR")
    (tmp_path / "labels.csv").write_text("a,b\n" * 50)
    (tmp_path / "p1" / "._000.dcm").write_bytes(b"resource fork")
    d = dataset(image(), ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], SeriesInstanceUID="1.9")
    save(d, tmp_path / "p1" / "scout.dcm")
    listing = list_scans(tmp_path)
    kinds = (
        "DICOMDIR",
        "ECG",
        "RTDOSE",
        "RTPLAN",
        "SR",
        "hidden file",
        "localizer",
        "other file",
        "screenshot",
    )
    assert listing.skipped == dict.fromkeys(kinds, 1) and listing.failures == ()
    (source,) = listing.sources
    assert source.name == "p1"
    np.testing.assert_array_equal(open_scan(source).volume, np.stack(images) - 1024.0)
    # by its own name, the scout is opened all the same
    assert "localizer" in note(only(tmp_path / "p1" / "scout.dcm"), "not a slice")


def test_damaged_files_do_not_keep_the_others_from_being_read(tmp_path):
    good = series(tmp_path / "good", [0, 5])
    mixed = series(tmp_path / "mixed", [0, 5])
    (tmp_path / "mixed" / "zero.dcm").write_bytes(b"")
    whole = local("CT_small.dcm").read_bytes()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.dcm").write_bytes(whole[:3000])
    (tmp_path / "cut" / "b").write_bytes(whole[:6292])  # all of the header
    (tmp_path / "text.dcm").write_text("not DICOM at all, " * 20)
    series(tmp_path / "sizes", [0, 5])
    save(dataset(image(0, (3, 3)), z=10), tmp_path / "sizes" / "odd.dcm")
    listing = list_scans(tmp_path)
    assert [s.name for s in listing.sources] == ["good", "mixed", "sizes"]
    reasons = {f.name: f.reason for f in listing.failures}
    assert set(reasons) == {"mixed_zero", "cut_unreadable", "text"}
    assert "zero.dcm is empty" in reasons["mixed_zero"]
    assert "a.dcm contains no image" in reasons["cut_unreadable"]
    assert "but no pixels" in reasons["cut_unreadable"]
    assert "text.dcm is not DICOM" in reasons["text"]
    one, two = open_scans(tmp_path)
    np.testing.assert_array_equal(one.volume, np.stack(good) - 1024.0)
    np.testing.assert_array_equal(two.volume, np.stack(mixed) - 1024.0)
    assert "zero.dcm" in note(two, "beside the slices")
    assert "several sizes" in note(one, "Other scans beside it")


def test_what_is_no_scan_is_refused_by_name(tmp_path):
    (tmp_path / "slide.svs").write_text("II*" * 100)
    assert list_scans(tmp_path / "slide.svs").failures == ()  # it may be a slide
    for path, reason in [
        (tmp_path / "slide.svs", "1 x other file"),
        (tmp_path, "1 x other file"),
        (tmp_path / "nothing", "no file or folder"),
        (local("test-SR.dcm"), "1 x SR"),
        (local("MR_truncated.dcm"), r"MR_truncated\.dcm.*8130 vs 8192 bytes"),
    ]:
        refused(SlideError, reason, open_scans, path)
    (tmp_path / "empty").mkdir()
    refused(SlideError, "empty", open_scans, tmp_path / "empty")


def test_names_are_unique_and_do_not_depend_on_neighbours(tmp_path):
    series(tmp_path / "p1" / "CT", [0, 5])
    series(tmp_path / "p2" / "CT", [0, 5])
    before = [s.name for s in list_scans(tmp_path).sources]
    assert before == ["p1_CT", "p2_CT"]
    for scan in open_scans(tmp_path):  # of one UID in two folders
        assert scan.volume.shape[0] == 2 and "1 other folder" in note(scan, "series too")
    # two series of one number, and one without any
    for uid, number in (("1.7", 4), ("1.8", 4), ("1.9", None)):
        d = dataset(image(), SeriesInstanceUID=uid, SeriesNumber=number)
        save(d, tmp_path / "flat" / f"{uid}.dcm")
    nifti(tmp_path / "p3.nii.gz", np.zeros((2, 2, 2), np.int16))
    names = [s.name for s in list_scans(tmp_path).sources]
    assert len(set(names)) == 6
    assert {*before, "p3", "flat_1.9"} < set(names)
    assert sum(bool(re.fullmatch(r"flat_4_[0-9a-f]{8}", name)) for name in names) == 2
    assert names == [s.name for s in list_scans(tmp_path).sources]


def test_nothing_of_the_patient_is_kept(tmp_path):
    d = dataset(image(), PatientName="Doe^Jane", PatientID="H-123", PatientBirthDate="19700101")
    scan = only(save(d, tmp_path / "a.dcm"))
    assert not re.search("Doe|H-123|1970", f"{scan.name}{scan.notes}{scan.properties}")


# NIfTI


def nifti(path: Path, data: np.ndarray, affine=None, *, slope=None, code=1, unit="mm") -> Path:
    stored = nibabel.Nifti1Image(data, np.eye(4) if affine is None else affine)
    stored.header.set_xyzt_units(unit)
    if slope:
        stored.header.set_slope_inter(*slope)
    stored.set_sform(stored.affine, code)
    stored.set_qform(stored.affine, code)
    nibabel.save(stored, path)
    return path


def test_nifti_scale_and_units(tmp_path):
    data = RNG.integers(0, 4000, (5, 4, 3)).astype(np.int16)
    affine = np.diag([0.5e-3, 0.6e-3, 2e-3, 1])
    path = nifti(tmp_path / "a.nii", data, affine, slope=(0.5, -1024), unit="meter")
    # the slope on disk, by the format's offsets: nibabel may have scaled the values themselves
    raw = path.read_bytes()
    slope, inter = np.frombuffer(raw[112:120], np.float32)
    voxels = np.frombuffer(raw[352:], np.int16).reshape(3, 4, 5)[:, ::-1, ::-1]
    scan = only(path)
    np.testing.assert_allclose(scan.volume, voxels * slope + inter, rtol=1e-6)
    assert (float(slope), float(inter)) == (0.5, -1024)
    np.testing.assert_allclose(scan.positions, [0, 2, 4], atol=1e-5)
    assert scan.spacing == pytest.approx((0.6, 0.5))
    assert scan.notes == ()


def test_nifti_of_one_volume_in_four_dimensions_or_of_version_2(tmp_path):
    data = RNG.normal(size=(4, 3, 2, 1)).astype(np.float32)
    second = tmp_path / "second.nii"
    nibabel.save(nibabel.Nifti2Image(data[..., 0], np.eye(4)), second)
    for path in (nifti(tmp_path / "one.nii.gz", data), second):
        want = data[..., 0].transpose(2, 1, 0)[:, ::-1, ::-1]
        np.testing.assert_array_equal(only(path).volume, want)


def test_nifti_that_says_nothing_of_its_axes_or_units(tmp_path):
    data = RNG.integers(0, 9, (3, 4, 5)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(data, None), tmp_path / "a.nii")
    scan = only(tmp_path / "a.nii")
    assert scan.volume.shape == (5, 4, 3)
    assert note(scan, "no orientation") and note(scan, "no unit")
    assert "smallest value is 0" in note(scan, "may not be HU")


def test_nifti_values_that_are_no_numbers(tmp_path):
    data = RNG.normal(size=(4, 4, 2)).astype(np.float32)
    data[0, 0, 0], data[1, 1, 1] = np.nan, np.inf
    scan = only(nifti(tmp_path / "a.nii", data))
    smallest = data[np.isfinite(data)].min()
    want = np.where(np.isfinite(data), data, smallest).transpose(2, 1, 0)[:, ::-1, ::-1]
    np.testing.assert_array_equal(scan.volume, want)
    assert note(scan, "6.2 % of the voxels")


SMALL = np.arange(120, dtype=np.int16).reshape(5, 6, 4)


def altered(path: Path, form: str, at: int, *values: float) -> None:
    """Overwrite a part of the header."""
    zipped = path.suffix == ".gz"
    data = bytearray(gzip.decompress(path.read_bytes()) if zipped else path.read_bytes())
    struct.pack_into(form, data, at, *values)
    path.write_bytes(gzip.compress(data) if zipped else bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    ("data", "change", "said"),
    [
        (SMALL, cut, "damaged"),
        (SMALL, lambda p: p.write_bytes(b""), "empty"),
        (SMALL, lambda p: p.write_text("not NIfTI, " * 100), "damaged|not NIfTI"),
        (np.zeros((2, 2, 2), np.complex64), None, "complex64"),
        (np.zeros((4, 3, 2, 5), np.float32), None, "has the shape 4 x 3"),
        (np.zeros((4, 3), np.float32), None, "has the shape 4 x 3"),
        (np.full((2, 2, 2), np.nan, np.float32), None, "no finite value"),
        # dimensions, and the place of the voxels
        (SMALL, lambda p: altered(p, "<hhhh", 40, 3, *[32767] * 3), "max-bag-gb|states"),
        (SMALL, lambda p: altered(p, "<hhhh", 40, 3, *[1500] * 3), "max-bag-gb|states"),
        (SMALL, lambda p: altered(p, "<hhhh", 40, 3, 500, 500, 200), "max-bag-gb|states"),
        (SMALL, lambda p: altered(p, "<f", 108, np.inf), ""),
    ],
)
def test_damaged_nifti_is_refused_by_name(tmp_path, ending, data, change, said):
    path = nifti(tmp_path / f"a{ending}", data)
    if change:
        change(path)
    (source,) = list_scans(tmp_path).sources
    refused(SlideError, rf"a\.nii.*({said})", open_scan, source)


def test_slices_beyond_those_stated_and_a_volume_beyond_the_limit(tmp_path):
    path = nifti(tmp_path / "a.nii", SMALL)
    assert only(path).volume.shape == (4, 6, 5)
    with bag_limit(1e-8), pytest.raises(SlideError, match="max-bag-gb"):
        only(path)
    altered(path, "<hhhh", 40, 3, 5, 6, 2)
    refused(SlideError, "5 x 6 x 2.* 120 .* 240 ", only, path)


# windows


def test_windows_follow_their_formula():
    """At and beyond the ends 0 and 255, half way 128 (127.5 to even), linear between."""
    values = np.array([[-1000, 0, 20, 40, 60, 80, 3000]], np.float32)
    shown = windowed(values, Windows())
    assert (shown.dtype, shown.shape) == (np.uint8, (1, 7, 3))
    brain, subdural, bone = (shown[0, :, i].tolist() for i in range(3))
    assert brain == [0, 0, 64, 128, 191, 255, 255]
    # -20 to 180 and -800 to 2000; 25.5, 76.5 and 127.5 to even
    assert subdural == [0, 26, 51, 76, 102, 128, 255]
    assert bone == [0, *(round(255 * (v + 800) / 2800) for v in (0, 20, 40, 60, 80)), 255]
    assert Windows.parse("brain,subdural,bone") == Windows()
    assert Windows.parse("40:80, 80:200 ,600:2800") == Windows()
    mixed = Windows.parse("lung,-20.5:1e2,brain")
    assert mixed.channels == (WINDOWS["lung"], (-20.5, 100.0), (40.0, 80.0))
    assert Windows.parse(str(mixed)) == mixed


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("brain", InputError, "1 window"),
        ("brain,bone,lung,brain", InputError, "4 window"),
        ("brain,subdural,bome", UnknownName, "Did you mean 'bone'"),
        ("brain,subdural,600:x", InputError, "LEVEL:WIDTH"),
        ("40:80,80:200,600:0", InputError, "is not valid"),
        ("40:80,80:200,nan:5", InputError, "is not valid"),
        ("40:80,80:200,1:2:3", InputError, "LEVEL:WIDTH"),
    ],
)
def test_windows_that_are_none(text, error, message):
    refused(error, message, Windows.parse, text)
