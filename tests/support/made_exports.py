"""Predictions with P(evidence), and folders of them, for exports."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from support.made_maps import bag, lattice

from probsa.evaluation.prediction import Prediction
from probsa.evaluation.storage import write_predictions
from probsa.exports.provenance import Provenance

MODEL = "evidence-field"
ABOUT = Provenance(
    bag="a", model="evidence-field", version="0.1.0", score_kind="evidence", digest="d" * 64,
    predicted=datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip


def evidence(p: Prediction, chance=None, *, name: str | None = None) -> Prediction:
    """Return the prediction as that of an evidence model with these values of P(f > 0)."""
    n = len(p.attention_mean)
    values = np.linspace(0, 1, n) if chance is None else chance
    return replace(
        p,
        name=name or p.name,
        score_kind="evidence",
        probability_positive=np.asarray(values, np.float32),
    )


def slide_bag(chance=None, *, name: str = "a", **where) -> Prediction:
    """Return a lattice of patches, 64 pixels wide."""
    return evidence(bag(lattice(**where)), chance, name=name)


def predictions(folder: Path, *bags: Prediction, classes=("0", "1")) -> Path:
    write_predictions(
        folder, bags, labels={}, parts={}, classes=list(classes), threshold=0.5,
        metadata={"model": MODEL, "epoch": 3},
    )  # fmt: skip
    return folder
