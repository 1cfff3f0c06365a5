"""Check what is installed: every reader reads a test file, every device computes.

Nothing is downloaded, and no file is left behind.
"""

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image

from .. import __version__
from ..core import broken_plugins
from ..errors import InputError, MissingExtra, ProbSAError, absent_package, install_advice
from ..features import names as encoder_names
from ..features import optional, readiness
from ..models import names as model_names
from ..slides import open_scans, open_slide

PACKAGES = {
    "slides": "openslide-python openslide-bin tifffile imagecodecs opencv-python-headless shapely",
    "ct": "pydicom python-gdcm nibabel",
    "dicom": "highdicom",
    "anndata": "anndata",
    "encoders": "timm transformers",
    "slurm": "submitit",
    "track": "tensorboard",
    "view": "starlette uvicorn",
    "mlflow": "mlflow-skinny",
    "wandb": "wandb",
    "hub": "huggingface-hub",
}
"""Optional packages by the extra that installs them."""


class _Absent(Exception):
    """Something optional is not there."""


def _is_absent(error: Exception) -> bool:
    return isinstance(error, ImportError) and bool(absent_package(error))


class Check(NamedTuple):
    """The result of one check."""

    area: str
    name: str
    status: Literal["works", "absent", "broken"]
    detail: str


def examine() -> Iterator[Check]:
    """Yield every check as soon as it is done; some take a second."""
    with tempfile.TemporaryDirectory() as folder:
        for area, name, trial in _trials(Path(folder)):
            try:
                if isinstance(trial, Exception):
                    raise trial
                yield Check(area, name, "works", trial if isinstance(trial, str) else trial())
            except Exception as e:  # noqa: BLE001 - libraries raise errors of any kind
                if isinstance(e, _Absent | MissingExtra) or _is_absent(e):
                    yield Check(area, name, "absent", str(e))
                    continue
                detail = str(e) if isinstance(e, ProbSAError) else f"{type(e).__name__}: {e}"
                yield Check(area, name, "broken", detail)


def to_dict(checks: list[Check]) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {"checks": [check._asdict() for check in checks]}


def _trials(root: Path) -> Iterator[tuple[str, str, str | Exception | Callable[[], str]]]:
    """Yield area and name of each check, and its detail, its error, or what gives one of them."""
    yield "core", "probsa", __version__
    system = f"{platform.system()} {platform.machine()}"
    yield "core", "Python", f"{platform.python_version()}, {system}"
    yield from (("core", name, version(name)) for name in ("torch", "numpy", "h5py"))
    for extra, packages in PACKAGES.items():
        yield from (("package", p, partial(_package, p, extra)) for p in packages.split())
    yield "package", "timm imports", lambda: f"{len(optional('timm').list_models())} models"
    yield "reader", "PNG, JPEG (Pillow)", partial(_slide, root / "x.png")
    yield "reader", "tiled TIFF, JPEG tiles (tifffile)", partial(_slide, root / "x.tiff")
    yield "reader", "OpenSlide", lambda: f"library {import_module('openslide').__library_version__}"
    yield "reader", "DICOM series (pydicom)", _dicom
    yield "reader", "compressed DICOM", _decoders
    yield "reader", "NIfTI (nibabel)", partial(_nifti, root / "x.nii.gz")
    devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    yield from (("device", name, partial(_device, torch.device(name))) for name in devices)
    if not torch.cuda.is_available():
        built = f"no GPU found (torch for CUDA {torch.version.cuda})"
        yield "device", "cuda", _Absent(built if torch.version.cuda else "torch without CUDA")
    if Path("/dev/shm").is_dir():  # readers pass pixels through it; containers have 64 MB of it
        size = shutil.disk_usage("/dev/shm").total / 1e9
        advice = "too small; use --readers 0, or a container with a larger --shm-size"
        text = f"{size:.2f} GB"
        yield "memory", "shared", text if size >= 1 else InputError(f"{text}: {advice}")
    for name in encoder_names():
        encoder = readiness(name)
        yield "encoder", name, str(encoder) if encoder.is_ready else _Absent(str(encoder))
    model_names()  # imports the plug-ins with models
    yield from (("plug-in", p.name, InputError(str(p))) for p in broken_plugins())


def _package(name: str, extra: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError as e:
        raise _Absent(install_advice(extra)) from e


def _slide(path: Path) -> str:
    """Write a grey ramp, which JPEG changes little, and compare what the reader returns."""
    ramp = np.broadcast_to(np.linspace(60, 220, 64).astype(np.uint8)[:, None], (64, 64, 3)).copy()
    if path.suffix == ".png":
        Image.fromarray(ramp).save(path)
    else:
        options = {"tile": (16, 16), "photometric": "rgb", "compression": "jpeg"}
        import_module("tifffile").imwrite(path, ramp, **options)
    with open_slide(path) as slide:
        pixels = slide.read(x=0, y=0, level=0, width=64, height=64)
    worst = int(np.abs(pixels.astype(int) - ramp).max())
    if worst > (0 if path.suffix == ".png" else 8):
        raise ValueError(f"the pixels read differ from those written by up to {worst} of 255")
    return f"read back with a difference of at most {worst} of 255"


def _dicom() -> str:
    """Read the CT slice that comes with pydicom."""
    file = import_module("pydicom.data").get_testdata_file("CT_small.dcm", download=False)
    (scan,) = open_scans(Path(file))
    return f"{len(scan.positions)} slice, {scan.volume.min():.0f} to {scan.volume.max():.0f} HU"


def _decoders() -> str:
    find = import_module("pydicom.pixels").get_decoder
    uids = import_module("pydicom.uid")
    kinds = ("JPEGLosslessSV1", "JPEGLSLossless", "JPEG2000Lossless", "RLELossless")
    missing = [kind for kind in kinds if not find(getattr(uids, kind)).is_available]
    if missing:
        raise _Absent(f"no decoder for {', '.join(missing)}: {install_advice('ct')}")
    return ", ".join(kinds)


def _nifti(path: Path) -> str:
    nibabel = import_module("nibabel")
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), np.eye(4)), path)
    (scan,) = open_scans(path)
    return f"{len(scan.positions)} slices"


def _device(device: torch.device) -> str:
    if float((torch.ones(8, 8, device=device) @ torch.ones(8, 1, device=device)).sum()) != 64:
        raise ValueError("a matrix product is wrong")
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        return f"{p.name}, {p.total_memory / 1e9:.0f} GB"
    return f"{torch.get_num_threads()} threads" if device.type == "cpu" else "computes"
