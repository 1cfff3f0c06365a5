"""The form of a file: the names, shapes and types of what it states, without the values.

Two files of the same form differ in values alone. A reader cannot know that such a value was
altered, so it may use it; whatever else is altered should be noticed or have no effect.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import yaml

DESCRIPTIVE = ("model", "epoch", "map_score")
"""Keys of predictions that are shown where they are known."""
OPTIONAL_COLUMNS = ("group", "fold", "split", "ood", "ood_distance")
"""Columns that a table need not have."""
OPTIONAL = ("coords", "instance_labels", "intensity", "unreadable")
"""Datasets that a bag need not have."""


@dataclass(frozen=True)
class Rows:
    """A table: any number of whole rows is a table, whose length its reader cannot know."""

    header: tuple[str, ...]
    count: int
    whole: bool


def form_of(path: Path) -> Any:
    """Return the form of a file; None if an independent reader cannot read it."""
    try:
        return READERS[path.suffix](path)
    except Exception:  # noqa: BLE001 - damaged in any way
        return None


def may_be_missing(original: Path, altered: Path) -> bool:
    """Return whether the altered file lacks only what bags need not have."""
    if not altered.is_file():
        return "null_maps" in altered.parts or altered.suffix in (".json", ".csv", ".npz", ".npy")
    one, other = form_of(original), form_of(altered)
    if altered.suffix == ".safetensors" and isinstance(one, list) and isinstance(other, list):
        return one[0] == other[0]  # an argument that is not stated has its default
    if altered.name == "predictions.json" and isinstance(one, dict) and isinstance(other, dict):
        return all(one[k] == other.get(k) for k in {*one} - {*DESCRIPTIVE})
    if altered.suffix == ".csv" and isinstance(one, Rows) and isinstance(other, Rows):
        return other.whole and {*other.header} >= {*one.header} - {*OPTIONAL_COLUMNS}
    if altered.name == "bags_config.json" and isinstance(one, dict) and isinstance(other, dict):
        return all(one[k] == other[k] for k in one if k in other)
    if not isinstance(one, dict) or not isinstance(other, dict) or not other:
        return False
    missing = {k for k in one if k not in other}
    names = {k.partition(".")[0] for k in missing}
    return names <= {*OPTIONAL} and all(one[k] == other[k] for k in other if k in one)


def _array(values: Any) -> Any:
    array = np.asarray(values)
    finite = array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
    kind = "number" if array.dtype.kind in "iuf" else array.dtype.kind
    return [list(array.shape), kind, finite]


def _attribute(key: str, value: Any) -> Any:
    """A positive number remains one; a text stays text."""
    array = np.asarray(value)
    if array.dtype.kind in "iuf" and array.size:
        return [
            # one number, also in a list; a downsample of both axes, or of each
            [] if key == "downsample" or array.size == 1 else list(array.shape),
            "number",
            bool(np.isfinite(array).all()),
            bool((array > 0).all()) or key in ("patch_level", "overlap"),
        ]
    return [list(array.shape), array.dtype.kind]


def _hdf5(path: Path) -> Any:
    with h5py.File(path) as f:
        form: dict[str, Any] = {}
        for key, value in f.attrs.items():
            form[f".{key}"] = _attribute(key, value)
        for name in f:
            form[name] = _array(f[name][...])
            for key, value in f[name].attrs.items():
                form[f"{name}.{key}"] = _attribute(key, value)
        return form


def _npz(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as stored:
        return {k: _array(stored[k]) for k in stored.files}


def _document(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _document(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_document(v) for v in value]
    if isinstance(value, bool) or value is None:
        return str(type(value))
    if isinstance(value, int | float):
        return "number" if np.isfinite(value) else "not finite"
    return str(type(value))


def _csv(path: Path) -> Any:
    with path.open(newline="", encoding="utf-8-sig") as f:
        rows = list(csv.reader(f))
    widths = {len(r) for r in rows if r}
    return Rows(header=tuple(rows[0]), count=len(rows), whole=widths == {len(rows[0])})


def _safetensors(path: Path) -> Any:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    return [header, {k: _document(_loads(v)) for k, v in metadata.items()}]


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nifti(path: Path) -> Any:
    import nibabel

    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return len(nibabel.Nifti1Image.from_bytes(data).shape)


def _picture(path: Path) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(path.read_bytes())) as image:
        return image.mode


def _json(path: Path) -> Any:
    return _document(json.loads(path.read_text(encoding="utf-8")))


READERS: dict[str, Callable[[Path], Any]] = {
    ".h5": _hdf5,
    ".npy": lambda p: _array(np.load(p, allow_pickle=False)),
    ".npz": _npz,
    ".pt": lambda p: _array(torch.load(p, weights_only=True).float().numpy()),
    ".yaml": lambda p: _document(yaml.safe_load(p.read_text(encoding="utf-8"))),
    ".csv": _csv,
    ".safetensors": _safetensors,
    **dict.fromkeys((".json", ".lock"), _json),
    **dict.fromkeys((".nii", ".gz"), _nifti),
    **dict.fromkeys((".png", ".jpg", ".tif"), _picture),
}
