"""Check what is installed: every reader reads a test file, every device computes.

Nothing is downloaded, and no file is left behind.
"""

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from .. import __version__
from ..core import broken_plugins
from ..features import names as encoder_names
from ..features import optional, readiness
from ..models import names as model_names
from ..slides import open_scans, open_slide

Status = Literal["works", "absent", "broken"]
SIDE = 64
"""Width and height of the test images in pixels."""
SHARED_MEMORY = 1e9
"""Minimum size of /dev/shm in bytes; with less, several readers may run out of memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of one check."""

    area: str
    name: str
    status: Status
    detail: str

    def to_dict(self) -> dict[str, str]:
        """Return plain values for JSON."""
        return {
            "area": self.area, "name": self.name, "status": self.status, "detail": self.detail
        }  # fmt: skip


PACKAGES = (
    ("openslide-python", "slides"),
    ("openslide-bin", "slides"),
    ("tifffile", "slides"),
    ("imagecodecs", "slides"),
    ("opencv-python-headless", "slides"),
    ("shapely", "slides"),
    ("pydicom", "ct"),
    ("python-gdcm", "ct"),
    ("nibabel", "ct"),
    ("highdicom", "dicom"),
    ("anndata", "anndata"),
    ("timm", "encoders"),
    ("transformers", "encoders"),
    ("ray", "cluster"),
    ("submitit", "slurm"),
    ("tensorboard", "track"),
    ("mlflow-skinny", "mlflow"),
    ("wandb", "wandb"),
    ("huggingface-hub", "hub"),
)
"""Optional packages, and the extra that installs each."""


def examine() -> Iterator[Check]:
    """Yield every check as soon as it is done; some take a second."""
    python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    yield Check(area="core", name="probsa", status="works", detail=__version__)
    yield Check(area="core", name="Python", status="works", detail=f"{python}, {system}")
    yield from _packages()
    yield from _readers()
    yield from _devices()
    yield _shared_memory()
    for name in encoder_names():
        detail = readiness(name)
        status: Status = "works" if detail.startswith("ready") else "absent"
        yield Check(area="encoder", name=name, status=status, detail=detail)
    model_names()  # imports the plug-ins with models
    for plugin in broken_plugins():
        yield Check(area="plug-in", name=plugin.name, status="broken", detail=str(plugin))


def _packages() -> Iterator[Check]:
    for name in ("torch", "numpy", "h5py"):
        yield Check(area="core", name=name, status="works", detail=version(name))
    for name, extra in PACKAGES:
        try:
            yield Check(area="package", name=name, status="works", detail=version(name))
        except PackageNotFoundError:
            detail = f"pip install 'probsa[{extra}]'"
            yield Check(area="package", name=name, status="absent", detail=detail)
    yield _tried("package", "timm imports", _import_timm)


def _readers() -> Iterator[Check]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        yield _tried("reader", "PNG, JPEG (Pillow)", lambda: _read_png(root))
        yield _tried("reader", "tiled TIFF, JPEG tiles (tifffile)", lambda: _read_tiff(root))
        yield _tried("reader", "OpenSlide", _openslide)
        yield _tried("reader", "DICOM series (pydicom)", lambda: _read_dicom(root))
        yield _tried("reader", "compressed DICOM", _decoders)
        yield _tried("reader", "NIfTI (nibabel)", lambda: _read_nifti(root))


def _tried(area: str, name: str, trial: Callable[[], str]) -> Check:
    """Return the result of a trial; any error of a library is reported."""
    try:
        return Check(area=area, name=name, status="works", detail=trial())
    except ImportError as e:
        return Check(area=area, name=name, status="absent", detail=str(e))
    except Exception as e:  # noqa: BLE001 - libraries raise errors of any kind
        return Check(area=area, name=name, status="broken", detail=f"{type(e).__name__}: {e}")


def _pattern() -> np.ndarray:
    ramp = np.linspace(60, 220, SIDE).astype(np.uint8)
    return np.stack([np.broadcast_to(ramp, (SIDE, SIDE))] * 3, axis=2)


def _same(pixels: np.ndarray, *, tolerance: int) -> str:
    worst = int(np.abs(pixels.astype(int) - _pattern()).max())
    if pixels.shape != (SIDE, SIDE, 3) or worst > tolerance:
        raise ValueError(f"the pixels read differ from those written by up to {worst} of 255")
    return f"read back with a difference of at most {worst} of 255"


def _read_png(root: Path) -> str:
    Image.fromarray(_pattern()).save(root / "x.png")
    with open_slide(root / "x.png") as slide:
        return _same(slide.read(x=0, y=0, level=0, width=SIDE, height=SIDE), tolerance=0)


def _read_tiff(root: Path) -> str:
    import tifffile

    path = root / "x.tiff"
    tifffile.imwrite(path, _pattern(), tile=(16, 16), photometric="rgb", compression="jpeg")
    with open_slide(path) as slide:
        return _same(slide.read(x=0, y=0, level=0, width=SIDE, height=SIDE), tolerance=8)


def _openslide() -> str:
    import openslide

    return f"library {openslide.__library_version__}"


def _read_dicom(root: Path) -> str:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder = root / "series"
    folder.mkdir()
    series = generate_uid()
    for k in range(3):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        d = FileDataset(str(folder), {}, file_meta=meta, preamble=b"\0" * 128)
        d.SOPClassUID, d.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        d.SeriesInstanceUID, d.Modality, d.InstanceNumber = series, "CT", 3 - k
        d.ImagePositionPatient, d.ImageOrientationPatient = [0, 0, 5 * k], [1, 0, 0, 0, 1, 0]
        d.PixelSpacing, d.Rows, d.Columns = [1, 1], SIDE, SIDE
        d.SamplesPerPixel, d.PhotometricInterpretation = 1, "MONOCHROME2"
        d.BitsAllocated, d.BitsStored, d.HighBit, d.PixelRepresentation = 16, 16, 15, 1
        d.RescaleSlope, d.RescaleIntercept = 1, -1024
        d.PixelData = np.full((SIDE, SIDE), 1024 + k, np.int16).tobytes()
        d.save_as(folder / f"{9 - k}.dcm", enforce_file_format=True)
    (scan,) = open_scans(folder)
    if scan.volume[:, 0, 0].tolist() != [0, 1, 2]:
        raise ValueError("the slices are not in the order of their positions")
    return "three slices in order of position, in Hounsfield units"


def _decoders() -> str:
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import JPEG2000Lossless, JPEGLosslessSV1, JPEGLSLossless, RLELossless

    kinds = {
        "JPEG lossless": JPEGLosslessSV1,
        "JPEG-LS": JPEGLSLossless,
        "JPEG 2000": JPEG2000Lossless,
        "RLE": RLELossless,
    }
    missing = [name for name, uid in kinds.items() if not get_decoder(uid).is_available]
    if missing:
        raise ImportError(f"no decoder for {', '.join(missing)}: pip install 'probsa[ct]'")
    return ", ".join(kinds)


def _read_nifti(root: Path) -> str:
    import nibabel

    image = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.eye(4))  # pyright: ignore
    nibabel.save(image, root / "x.nii.gz")  # pyright: ignore
    (scan,) = open_scans(root / "x.nii.gz")
    return f"{len(scan.positions)} slices"


def _import_timm() -> str:
    timm = optional("timm")
    return f"{timm.__version__}, {len(timm.list_models())} models"


def _devices() -> Iterator[Check]:
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
    devices += [torch.device("mps")] if torch.backends.mps.is_available() else []
    for device in devices:
        yield _tried("device", str(device), lambda device=device: _add(device))
    if not torch.cuda.is_available():
        built = torch.version.cuda
        detail = f"no GPU found (torch for CUDA {built})" if built else "torch without CUDA"
        yield Check(area="device", name="cuda", status="absent", detail=detail)


def _add(device: torch.device) -> str:
    if float((torch.ones(8, 8, device=device) @ torch.ones(8, 1, device=device)).sum()) != 64:
        raise ValueError("a matrix product is wrong")
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        return f"{p.name}, {p.total_memory / 1e9:.0f} GB"
    return f"{torch.get_num_threads()} threads" if device.type == "cpu" else "computes"


def _shared_memory() -> Check:
    """Check the memory through which readers pass pixels; containers often have only 64 MB."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return Check(area="memory", name="shared", status="works", detail="not limited by /dev/shm")
    size = shutil.disk_usage(path).total
    enough = size >= SHARED_MEMORY
    advice = (
        "" if enough else ": too small; use --readers 0, or a container with a larger --shm-size"
    )
    status: Status = "works" if enough else "broken"
    return Check(area="memory", name="shared", status=status, detail=f"{size / 1e9:.2f} GB{advice}")


def to_dict(checks: list[Check]) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {"checks": [c.to_dict() for c in checks]}
