"""Predictions with probabilities of instances, and folders of them, for exports."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from support.array_slide import ArraySlide
from support.made_maps import OneSource, bag, lattice, write_folder

from probsa.evaluation import Prediction
from probsa.exports import ExportSettings, export_folder
from probsa.exports.bag import ExportBag
from probsa.exports.provenance import Provenance
from probsa.maps import CohortSources

MODEL = "evidence-field"
ABOUT = Provenance(
    bag="a",
    model="evidence-field",
    version="0.1.0",
    score_kind="evidence",
    digest="d" * 64,
    predicted=datetime(2026, 1, 1, tzinfo=UTC),
)
QUANTITIES = ("mean", "std", "probability")


def evidence(p: Prediction, chance=None, *, name: str | None = None) -> Prediction:
    """Return the prediction as that of an evidence model with these probabilities of instances."""
    n = len(p.attention_mean)
    values = np.linspace(0, 1, n) if chance is None else chance
    return replace(
        p,
        name=name or p.name,
        score_kind="evidence",
        instance_probability=np.asarray(values, np.float32),
    )


def slide_bag(chance=None, *, name: str = "a", **where) -> Prediction:
    """Return a lattice of patches, 64 pixels wide."""
    return evidence(bag(lattice(**where)), chance, name=name)


def values_of(p: Prediction) -> dict[str, np.ndarray]:
    """Return what an export has of an evidence model, by the names of its files."""
    values = p.attention_mean, np.sqrt(p.attention_variance), p.instance_probability
    return dict(zip(QUANTITIES, values, strict=True))


def predictions(folder: Path, *bags: Prediction, classes=("0", "1")) -> Path:
    return write_folder(folder, *bags, classes=classes, model=MODEL, epoch=3)


def export(folder: Path, sources: Path | None, *bags, classes=("0", "1"), **formats):
    """Return the folder of an export of these bags, and the reasons for what failed."""
    preds = predictions(folder / "preds", *bags, classes=classes)
    found = None if sources is None else CohortSources(sources)
    done = export_folder(preds, folder / "out", ExportSettings(**formats), sources=found)
    return folder / "out", [reason for _, reason in done.failures]


def written(write, p, folder, *, side=None, size=(640, 512), mpp=0.5, classes=()) -> Path:
    """Return the only file that a format writes of a bag on a white slide."""
    slide = ArraySlide(np.full((size[1], size[0], 3), 255, np.uint8), mpp=mpp)
    cut = SimpleNamespace(size_level0=side, slide_size=size)
    one = ExportBag(p=p, about=ABOUT, out=folder, classes=classes, sources=OneSource(slide, cut))
    write(one)
    (path,) = one.written
    assert [f.name for f in folder.glob("[!.]*")] == [path.name]
    return path
