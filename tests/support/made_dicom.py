"""Small DICOM sources: a whole slide image and a CT series, complete enough for validators."""

import datetime
import subprocess
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

CT_CLASS = "1.2.840.10008.5.1.4.1.1.2"
SLIDE_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
TILE = 64


def uid(*parts: object) -> str:
    return generate_uid(entropy_srcs=[str(part) for part in parts])


def _code(code: Code) -> Dataset:
    item = Dataset()
    item.CodeValue = code.value
    item.CodingSchemeDesignator = code.scheme_designator
    item.CodeMeaning = code.meaning
    return item


def _study(name: str, *, sop_class: str, modality: str) -> Dataset:
    """Return the attributes of patient, study, series and equipment."""
    ds = Dataset()
    ds.SOPClassUID = sop_class
    ds.SOPInstanceUID = uid(name, "object")
    ds.StudyInstanceUID = uid(name, "study")
    ds.SeriesInstanceUID = uid(name, "series")
    ds.FrameOfReferenceUID = uid(name, "frame")
    ds.PositionReferenceIndicator = "SLIDE_CORNER" if modality == "SM" else None
    ds.PatientName = "Made^Source"
    ds.PatientID = name
    ds.PatientBirthDate = "19500101"
    ds.PatientSex = "O"
    ds.StudyDate = "20260101"
    ds.StudyTime = "120000"
    ds.StudyID = "1"
    ds.AccessionNumber = None
    ds.ContentDate = "20260101"
    ds.ContentTime = "120000"
    ds.AcquisitionDateTime = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    ds.ReferringPhysicianName = None
    ds.Modality = modality
    ds.SeriesNumber = 1
    ds.InstanceNumber = 1
    ds.Manufacturer = "probsa tests"
    ds.ManufacturerModelName = "made"
    ds.DeviceSerialNumber = "1"
    ds.SoftwareVersions = "1"
    return ds


def _save(ds: Dataset, path: Path) -> Path:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = ds.SOPClassUID
    meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID
    ds.file_meta = meta
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)
    return path


def write_dicom_slide(
    path: Path,
    image: UInt8[np.ndarray, "height width 3"],
    *,
    mpp: float = 0.5,
    origin: tuple[float, float] = (20.0, 40.0),
    orientation: tuple[int, ...] = (0, -1, 0, -1, 0, 0),
    tile: int = TILE,
) -> Path:
    """Write a VL Whole Slide Microscopy Image of one level, TILED_FULL and uncompressed."""
    height, width = image.shape[:2]
    down = -(-height // tile)
    across = -(-width // tile)
    padded = np.full((down * tile, across * tile, 3), 255, np.uint8)
    padded[:height, :width] = image
    tiles = padded.reshape(down, tile, across, tile, 3).transpose(0, 2, 1, 3, 4)
    ds = _study(path.stem, sop_class=SLIDE_CLASS, modality="SM")
    ds.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    ds.VolumetricProperties = "VOLUME"
    ds.SpecimenLabelInImage = "NO"
    ds.BurnedInAnnotation = "NO"
    ds.FocusMethod = "AUTO"
    ds.ExtendedDepthOfField = "NO"
    ds.LossyImageCompression = "00"
    ds.SamplesPerPixel = 3
    ds.PhotometricInterpretation = "RGB"
    ds.PlanarConfiguration = 0
    ds.Rows = ds.Columns = tile
    ds.BitsAllocated = ds.BitsStored = 8
    ds.HighBit = 7
    ds.PixelRepresentation = 0
    ds.NumberOfFrames = down * across
    ds.TotalPixelMatrixColumns = width
    ds.TotalPixelMatrixRows = height
    ds.TotalPixelMatrixFocalPlanes = 1
    ds.ImagedVolumeWidth = width * mpp / 1e3
    ds.ImagedVolumeHeight = height * mpp / 1e3
    ds.ImagedVolumeDepth = 1.0
    ds.ImageOrientationSlide = list(orientation)
    place = Dataset()
    place.XOffsetInSlideCoordinateSystem, place.YOffsetInSlideCoordinateSystem = origin
    ds.TotalPixelMatrixOriginSequence = [place]
    ds.DimensionOrganizationType = "TILED_FULL"
    organisation = Dataset()
    organisation.DimensionOrganizationUID = uid(path.stem, "dimensions")
    ds.DimensionOrganizationSequence = [organisation]
    measures = Dataset()
    measures.PixelSpacing = [mpp / 1e3] * 2
    measures.SliceThickness = 0.001
    frame_type = Dataset()
    frame_type.FrameType = ds.ImageType
    path_item = Dataset()
    path_item.OpticalPathIdentifier = "1"
    shared = Dataset()
    shared.PixelMeasuresSequence = [measures]
    shared.WholeSlideMicroscopyImageFrameTypeSequence = [frame_type]
    shared.OpticalPathIdentificationSequence = [path_item]
    ds.SharedFunctionalGroupsSequence = [shared]
    optical = Dataset()
    optical.OpticalPathIdentifier = "1"
    optical.IlluminationTypeCodeSequence = [_code(codes.DCM.BrightfieldIllumination)]
    optical.IlluminationColorCodeSequence = [_code(codes.SCT.FullSpectrum)]
    ds.OpticalPathSequence = [optical]
    ds.NumberOfOpticalPaths = 1
    ds.ContainerIdentifier = "1"
    ds.IssuerOfTheContainerIdentifierSequence = []
    ds.AcquisitionContextSequence = []
    ds.ContainerTypeCodeSequence = [_code(codes.SCT.MicroscopeSlide)]
    specimen = Dataset()
    specimen.SpecimenIdentifier = "1"
    specimen.SpecimenUID = uid(path.stem, "specimen")
    specimen.IssuerOfTheSpecimenIdentifierSequence = []
    specimen.SpecimenPreparationSequence = []
    ds.SpecimenDescriptionSequence = [specimen]
    ds.PixelData = tiles.tobytes()
    return _save(ds, path)


def write_ct_series(
    folder: Path,
    positions: np.ndarray,
    *,
    size: tuple[int, int] = (24, 20),
    spacing: tuple[float, float] = (0.5, 0.75),
    tilt: float = 0.0,
) -> Path:
    """Write one file per slice; `tilt` is the shift along y for each mm, as of a tilted gantry."""
    rows, columns = size
    rng = np.random.default_rng(0)
    for k, z in enumerate(positions):
        ds = _study(folder.name, sop_class=CT_CLASS, modality="CT")
        ds.SOPInstanceUID = uid(folder.name, k)
        ds.InstanceNumber = k + 1
        ds.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        ds.AcquisitionNumber = 1
        ds.KVP = 120
        ds.Laterality = None
        ds.PatientPosition = "HFS"
        ds.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        ds.ImagePositionPatient = [-5.0, round(-6.0 + tilt * float(z), 6), float(z)]
        ds.PixelSpacing = list(spacing)
        ds.SliceThickness = 1.0
        ds.SamplesPerPixel = 1
        ds.PhotometricInterpretation = "MONOCHROME2"
        ds.Rows = rows
        ds.Columns = columns
        ds.BitsAllocated = ds.BitsStored = 16
        ds.HighBit = 15
        ds.PixelRepresentation = 1
        ds.RescaleIntercept = 0
        ds.RescaleSlope = 1
        ds.RescaleType = "HU"
        pixels = rng.integers(0, 80, size).astype(np.int16)
        pixels[0] = -1000
        ds.PixelData = pixels.tobytes()
        _save(ds, folder / f"{100 - k:03}.dcm")  # the order of names is not that of slices
    return folder


def validation_errors(path: Path) -> list[str]:
    """Return what dciodvfy calls an error in a file, without duplicates."""
    done = subprocess.run(["dciodvfy", path], capture_output=True, text=True, check=False)
    lines = (done.stderr + done.stdout).splitlines()
    return sorted({line for line in lines if line.startswith("Error")})
