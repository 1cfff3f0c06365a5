"""The per-instance outputs of one bag: an HDF5 file beside the table of predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np

from ..core import (
    BagKind,
    attributes_of,
    dataset_of,
    numeric_attribute,
    open_hdf5,
    replacing_hdf5,
)
from ..errors import BagError
from ..models import ScoreKind
from .prediction import EXPLANATIONS, Prediction

AGAIN = "predict this bag again"
_PER_INSTANCE = (
    "attention_mean",
    "attention_variance",
    "weight_mean",
    "weight_variance",
    "degree",
)
_OPTIONAL = (
    "coords",
    "instance_labels",
    *EXPLANATIONS,
    "ood",
    "ood_distance",
    "slide",
)
_OF_MEMBERS = ("variance_within", "variance_between")
"""Per-instance arrays that only several members have."""
PER_INSTANCE = (*_PER_INSTANCE, *_OF_MEMBERS, *_OPTIONAL)
"""The fields of `Prediction` that hold a value for each instance."""


def write_instances(path: Path, p: Prediction) -> None:
    """Write the per-instance outputs of one bag atomically."""
    from .. import __version__

    with replacing_hdf5(path) as f:
        for name in PER_INSTANCE:
            value = getattr(p, name)
            if value is not None:
                f.create_dataset(name, data=value)
        f.attrs.update(
            {"name": p.name, "score_kind": p.score_kind, "kind": p.kind}
            | {"probsa_version": __version__}
        )
        if p.stride is not None:
            f.attrs["pitch"] = p.stride
        if p.slides:
            f.attrs["slides"] = list(p.slides)


def read_instances(path: Path) -> Prediction:
    """Read the per-instance outputs of one bag; `probability` and `std` are empty arrays.

    Raises:
        BagError: the file is missing, damaged, or does not contain predictions.
    """
    if not path.is_file():
        raise BagError(f"there are no per-instance outputs at {path}: run `probsa predict` again")
    known = (*_PER_INSTANCE, *_OF_MEMBERS, *_OPTIONAL)
    with open_hdf5(path, again=AGAIN) as f:
        given = {k: dataset_of(f, k, again=AGAIN) for k in known}
        stored = {k: v for k, v in given.items() if v is not None}
        attributes: dict[str, Any] = attributes_of(f)
        _check_instances(stored, attributes, path, held=list(f))
        arrays = {k: np.asarray(v[()]) for k, v in stored.items()}
    for k, v in arrays.items():
        if not np.isfinite(v).all():
            raise BagError(f"{path}: {k} has values that are not finite: {AGAIN}")
    stride = numeric_attribute(attributes, "pitch")
    slides = tuple(str(s) for s in np.atleast_1d(attributes.get("slides", [])))
    if ("slide" in arrays) != bool(slides) or (
        slides and not set(np.unique(arrays["slide"])) <= set(range(len(slides)))
    ):
        raise BagError(f"{path}: its instances and the slides {slides} do not fit: {AGAIN}")
    empty = np.empty(0, dtype=np.float32)
    return Prediction(
        name=str(attributes["name"]),
        probability=empty,
        std=empty,
        score_kind=str(attributes["score_kind"]),
        kind=str(attributes["kind"]),
        stride=None if stride is None else float(stride),
        slides=slides,
        **{"coords": None, **arrays},
    )


def _check_instances(
    arrays: Mapping[str, h5py.Dataset],
    attributes: Mapping[str, Any],
    path: Path,
    *,
    held: list[str],
) -> None:
    """Check names, types and stated sizes before anything is read.

    Raises:
        BagError: something is missing or does not fit.
    """
    missing = [k for k in _PER_INSTANCE if k not in arrays]
    missing += [k for k in ("name", "score_kind", "kind") if k not in attributes]
    if missing:
        raise BagError(
            f"{path} is not a file of predictions: it lacks {', '.join(missing)}; it has "
            f"{', '.join(held) or 'nothing'}"
        )
    for key, choices in (("score_kind", get_args(ScoreKind)), ("kind", get_args(BagKind))):
        if not isinstance(attributes[key], str) or attributes[key] not in choices:
            raise BagError(
                f"{path}: {key} is {attributes[key]!r:.60}, expected {' or '.join(choices)}"
            )
    if attributes["name"] != path.stem:  # pictures are named after it
        raise BagError(
            f"{path}: name is {attributes['name']!r:.60}, expected {path.stem!r}: {AGAIN}"
        )
    size = path.stat().st_size
    rows = arrays["attention_mean"].shape[:1]
    for k, v in arrays.items():
        if v.dtype.kind not in ("fiu" if k == "coords" else "fiub"):
            raise BagError(f"{path}: {k} is {v.dtype}, expected numbers: {AGAIN}")
        if v.ndim == 0 or v.shape[:1] != rows or v.ndim > 2 or 0 in v.shape:
            raise BagError(
                f"{path}: {k} has shape {v.shape}, but attention_mean has {(rows or (0,))[0]} rows"
            )
        if k == "coords" and (v.ndim != 2 or v.shape[1] > 2):
            raise BagError(f"{path}: coords have shape {v.shape}, expected (n, 1) or (n, 2)")
        if v.nbytes > size:  # these files are not compressed
            raise BagError(
                f"{path}: {k} states {v.nbytes:,} bytes, but the file has {size:,}: {AGAIN}"
            )
