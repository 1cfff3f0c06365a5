"""DICOM objects: dciodvfy, values and places by highdicom, pydicom alone, repeated exports."""

import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from support.made_dicom import uid, validation_errors, write_ct_series, write_dicom_slide
from support.made_exports import MODEL, QUANTITIES, evidence, export, slide_bag, values_of
from support.made_maps import SIDE, bag, lattice, pink, prediction, scan_bag

import probsa
import probsa.exports.dicom as dicom_grids
from probsa.errors import MissingExtra
from probsa.exports import ExportSettings, export_folder
from probsa.maps import CohortSources
from probsa.slides import list_scans, open_scan, slide_files

hd = pytest.importorskip("highdicom", reason="the extra `dicom` is not installed")

MPP = 0.5
ORIGIN = (20.0, 40.0)
POSITIONS = np.array([0.0, 2.5, 5.0, 8.0, 10.0, 12.5])
CHANCE = np.array([0.1, 0.9, 0.5, 0.4, 0.95, 0.0])
NAMES = (*QUANTITIES, "segmentation")
ALLOWED: set[str] = set()
"""Errors of dciodvfy that our objects may have beyond those of their sources."""
needs_dciodvfy = pytest.mark.skipif(
    shutil.which("dciodvfy") is None, reason="dciodvfy (Debian: dicom3tools) is not installed"
)


def exported(folder, sources, *bags):
    out, failures = export(folder, sources, *bags, dicom=True)
    assert failures == []
    return out


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    """Return a DICOM slide, a bag whose patches begin at (67, 101), and the bag's export."""
    folder = tmp_path_factory.mktemp("slide")
    source = write_dicom_slide(folder / "slides" / "a.dcm", pink(), mpp=MPP, origin=ORIGIN)
    p = slide_bag(at=(67, 101))
    return source, p, exported(folder, source.parent, p)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Return a CT series with a tilted gantry and uneven spacing, a bag of it, and its export."""
    folder = tmp_path_factory.mktemp("series")
    write_ct_series(folder / "cts" / "head", POSITIONS, tilt=0.2)
    (source,) = list_scans(folder / "cts").sources
    p = evidence(scan_bag(open_scan(source).positions[[4, 0, 1, 3, 5]]), CHANCE[:5], name="head")
    return source, p, exported(folder, folder / "cts", p)


@needs_dciodvfy
def test_a_validator_finds_no_error_that_the_source_does_not_have(slide, series):
    sources = {"a": slide[0], "head": series[0].files[0]}
    for bag_name, (_, _, out) in (("a", slide), ("head", series)):
        source_errors = set(validation_errors(sources[bag_name]))
        for name in NAMES:
            errors = set(validation_errors(out / f"{bag_name}_{name}.dcm"))
            assert errors - source_errors - ALLOWED == set(), name


def test_the_values_of_a_slide_are_exact(slide):
    _, p, out = slide
    for name, values in values_of(p).items():
        matrix = hd.imread(out / f"a_{name}.dcm").get_total_pixel_matrix()
        np.testing.assert_array_equal(matrix.astype(np.float32), values.reshape(5, 6))
        plain = pydicom.dcmread(out / f"a_{name}.dcm")
        raw = np.frombuffer(plain.FloatPixelData, np.float32).reshape(-1, plain.Rows, plain.Columns)
        np.testing.assert_array_equal(raw[0], values.reshape(5, 6))
    mask = hd.seg.segread(out / "a_segmentation.dcm").get_total_pixel_matrix(combine_segments=True)
    np.testing.assert_array_equal(mask, (p.instance_probability >= 0.5).reshape(5, 6))


def test_a_map_lies_on_the_glass_where_its_patches_are(slide):
    source, p, out = slide
    origin = pydicom.dcmread(source, stop_before_pixels=True)
    for name in NAMES:
        image = hd.imread(out / f"a_{name}.dcm")
        assert image.FrameOfReferenceUID == origin.FrameOfReferenceUID
        (reference,) = image.ReferencedSeriesSequence
        assert reference.SeriesInstanceUID == origin.SeriesInstanceUID
        geometry = image.get_volume_geometry()
        for corner, (row, column) in ((p.coords[0], (0, 0)), (p.coords[-1], (4, 5))):
            # rows of the made slide run along −x and columns along −y of the glass; a position is
            # the middle of a level-0 pixel, and a patch of 64 pixels has its own between two
            x, y = corner + (SIDE - 1) / 2
            expected = (ORIGIN[0] - y * MPP / 1e3, ORIGIN[1] - x * MPP / 1e3, 0.0)
            (place,) = geometry.map_indices_to_reference(np.array([[0, row, column]]))
            np.testing.assert_allclose(place, expected, atol=1e-6)
        np.testing.assert_allclose(geometry.spacing[1:], SIDE * MPP / 1e3, rtol=1e-9)


def test_objects_state_their_origin(slide):
    _, _, out = slide
    for name in NAMES:
        ds = pydicom.dcmread(out / f"a_{name}.dcm")
        assert ds.SoftwareVersions == f"probsa {probsa.__version__}"
        assert ds.ManufacturerModelName == MODEL
        assert "score_kind: evidence" in ds.ImageComments
        assert "Research use only" in ds.ImageComments
        for statement in ("Research use only", "Not a medical device"):
            assert statement in ds.ContentDescription
        assert ds.PatientName == "Made^Source" and ds.StudyInstanceUID == uid("a", "study")
        if name != "segmentation":
            assert ds.ContentQualification == "RESEARCH"


def test_values_and_places_of_a_series(series):
    source, p, out = series
    slices = {float(ds.ImagePositionPatient[2]): ds for ds in map(pydicom.dcmread, source.files)}
    for name, values in values_of(p).items():
        value_at = dict(zip(p.coords[:, 0].tolist(), values, strict=True))
        plain = pydicom.dcmread(out / f"head_{name}.dcm")
        shape = (plain.NumberOfFrames, plain.Rows, plain.Columns)
        frames = np.frombuffer(plain.FloatPixelData, np.float32).reshape(shape)
        measures = plain.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
        spacing = np.array(measures.PixelSpacing, float)  # of rows, of columns
        frame_positions = set()
        for frame, group in zip(frames, plain.PerFrameFunctionalGroupsSequence, strict=True):
            corner = np.array(group.PlanePositionSequence[0].ImagePositionPatient, float)
            z = float(corner[2])
            frame_positions.add(z)
            assert (frame == value_at[z]).all()
            # the edges of the coarse slice are those of the source's
            source_corner = np.array(slices[z].ImagePositionPatient[:2], float)
            source_spacing = np.array(slices[z].PixelSpacing, float)
            edge = corner[:2] - spacing[::-1] / 2
            np.testing.assert_allclose(edge, source_corner - source_spacing[::-1] / 2, atol=1e-6)
            source_size = np.array([slices[z].Rows, slices[z].Columns])
            np.testing.assert_allclose(spacing * shape[1:], source_spacing * source_size)
        assert frame_positions == set(value_at)


def test_the_segmentation_of_a_series_is_the_slices_that_reach_a_half(series):
    source, p, out = series
    slices = [pydicom.dcmread(file, stop_before_pixels=True) for file in source.files]
    probability_at = dict(zip(p.coords[:, 0].tolist(), p.instance_probability, strict=True))
    expected = [probability_at.get(float(ds.ImagePositionPatient[2]), 0) >= 0.5 for ds in slices]
    assert 0 < sum(expected) < len(p.coords)
    frames = hd.seg.segread(out / "head_segmentation.dcm").get_pixels_by_source_instance(
        [ds.SOPInstanceUID for ds in slices],
        combine_segments=True,
        assert_missing_frames_are_empty=True,
    )
    assert [bool(frame.any()) for frame in frames] == expected
    assert [bool(frame.all()) for frame in frames] == expected


def test_a_map_of_several_tiles(slide, tmp_path):
    source, _, _ = slide
    coords = np.argwhere(np.ones((200, 300)))[:, ::-1] * 2 + 1
    n = len(coords)
    p = evidence(prediction(coords, np.arange(float(n)), stride=2.0), name="a")
    out = exported(tmp_path, source.parent, p)
    plain = pydicom.dcmread(out / "a_mean.dcm")
    assert plain.NumberOfFrames == 2 and (plain.Rows, plain.Columns) == (200, 256)
    matrix = hd.imread(out / "a_mean.dcm").get_total_pixel_matrix()
    np.testing.assert_array_equal(matrix, np.arange(n).reshape(200, 300))


def test_a_repeated_export_gives_the_same_objects(slide, tmp_path):
    source, p, out = slide
    again = tmp_path / "again"
    sources = CohortSources(source.parent)
    export_folder(out.parent / "preds", again, ExportSettings(dicom=True), sources=sources)
    for name in NAMES:
        file = f"a_{name}.dcm"
        assert (again / file).read_bytes() == (out / file).read_bytes()
    changed = replace(p, attention_mean=p.attention_mean + 1)
    other = exported(tmp_path / "other", source.parent, changed)
    objects = [
        pydicom.dcmread(folder / f"a_{name}.dcm") for folder in (out, other) for name in NAMES
    ]
    assert len({ds.SOPInstanceUID for ds in objects}) == 8
    assert len({ds.SeriesInstanceUID for ds in objects}) == 8


def test_a_de_identified_series_of_a_scanner(shared_data, tmp_path):
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(tmp_path / "cts" / "head")
    (source,) = list_scans(tmp_path / "cts").sources
    first = pydicom.dcmread(source.files[0], stop_before_pixels=True)
    assert "PatientBirthDate" not in first and "PatientSex" not in first
    p = evidence(scan_bag(open_scan(source).positions), np.zeros(28), name=source.name)
    out = exported(tmp_path, tmp_path / "cts", p)
    empty = hd.seg.segread(out / "head_segmentation.dcm")  # no slice reaches 0.5
    assert not empty.pixel_array.any()
    if shutil.which("dciodvfy") is not None:
        source_errors = set(validation_errors(source.files[0]))
        for name in NAMES:
            errors = set(validation_errors(out / f"head_{name}.dcm"))
            assert errors - source_errors - ALLOWED == set()


def test_maps_beside_their_sources_are_neither_slides_nor_scans(slide, series, tmp_path):
    for source, _, out in (slide, series):
        folder = tmp_path / out.parent.name
        shutil.copytree(out, folder)
        for file in getattr(source, "files", [source]):
            shutil.copy(file, folder)
        listing = list_scans(folder)
        assert listing.skipped["parametric map"] == 3 and listing.skipped["SEG"] == 1
        assert len(listing.sources) == (0 if source is slide[0] else 1)
        assert [f.name for f in slide_files(folder)] == (["a.dcm"] if source is slide[0] else [])


def test_a_class_is_a_segment(slide, tmp_path):
    source, p, _ = slide
    scores = np.stack([p.instance_probability, np.zeros(30, np.float32)], 1)
    two_classes = replace(
        p, instance_probability=scores, attention_mean=scores, attention_variance=scores + 1
    )
    out = exported(tmp_path, source.parent, two_classes)
    seg = hd.seg.segread(out / "a_segmentation.dcm")
    labels = [s.SegmentLabel for s in seg.SegmentSequence]
    assert labels == ["probability >= 0.5 0", "probability >= 0.5 1"]
    files = [f"a_{name}_class{c}.dcm" for name in sorted(QUANTITIES) for c in (0, 1)]
    assert sorted(file.name for file in out.glob("*class*")) == files


def test_other_sources_are_refused(slide, tmp_path, monkeypatch):
    from PIL import Image

    (tmp_path / "slides").mkdir()
    Image.fromarray(pink()).save(tmp_path / "slides" / "a.png")
    p = evidence(bag(lattice()), name="a")
    out, (reason,) = export(tmp_path, tmp_path / "slides", p, dicom=True)
    assert "a.png" in reason
    assert not out.exists() or list(out.glob("[!.]*")) == []
    monkeypatch.setitem(__import__("sys").modules, "highdicom", None)
    with pytest.raises(MissingExtra, match="highdicom"):
        dicom_grids.highdicom()
