"""Stage 10: what every exported file states about its origin, and the identity of its values."""

import hashlib
import json
import uuid
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from ..evaluation import Prediction, Predictions, stored_trust, verdict_of

STATEMENT = (
    "Research use only. Not a medical device. Attention shows what the model used, not what is "
    "diseased."
)
NAMESPACE = uuid.UUID("6f1d4c53-6a0b-5b0e-9a57-0c2c9f5f5f15")
"""Namespace of the identifiers that are derived from a digest."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a bag's exported values."""

    bag: str
    model: str
    """Name of the model, with the number of its members, or its runs, if there are several."""
    version: str
    """Version of probsa that writes the file."""
    score_kind: str
    """What the mean is; see `Prediction.score_kind`."""
    digest: str
    """Hash of the predicted values and of what predictions.json states, as 64 hexadecimal
    digits."""
    predicted: datetime
    """When the per-instance outputs were written, in UTC."""
    resolution: str = ""
    """µm per pixel of the slide and their source; empty without the slide."""
    call: str = ""
    """What the bag is called, with its probability and the threshold, as pictures say it."""
    trust: str = ""
    """Whether maps of the run may be shown as explanations; see `stored_trust`."""

    @cached_property
    def entries(self) -> dict[str, str]:
        """The origin as text, by key, for the metadata of a file."""
        entries = {
            "software": f"probsa {self.version}",
            "model": self.model,
            "bag": self.bag,
            "score_kind": self.score_kind,
            "digest": self.digest,
            "predicted": self.predicted.isoformat(timespec="seconds"),
        }
        if self.resolution:
            entries["micrometres_per_pixel"] = self.resolution
        if self.call:
            entries["call"] = self.call
        if self.trust:
            entries["trust"] = self.trust
        entries["statement"] = STATEMENT
        return entries

    def identifier(self, *parts: str) -> uuid.UUID:
        """Return an identifier of a part of the export: the same for every repeated export."""
        return uuid.uuid5(NAMESPACE, "\n".join((self.digest, *parts)))


def provenance(table: Predictions, p: Prediction) -> Provenance:
    """Return the origin of one bag of a predictions folder."""
    from .. import __version__

    metadata = table.metadata
    model = metadata.model or "unknown"
    if metadata.runs:
        runs = f"{len(metadata.runs)} runs: {', '.join(metadata.runs)}"
        # runs may be of several models, which have no common name
        model = runs if metadata.model is None else f"{model} ({runs})"
    elif metadata.members is not None:
        model = f"{model} ({metadata.members} members)"
    written = table.instance_path(p.name).stat().st_mtime
    return Provenance(
        bag=p.name,
        model=model,
        version=__version__,
        score_kind=p.score_kind,
        digest=_digest(p, metadata.to_dict()),
        predicted=datetime.fromtimestamp(int(written), UTC),
        call=verdict_of(table, p).text,
        trust=stored_trust(table).line,
    )


def _digest(p: Prediction, metadata: dict[str, object]) -> str:
    """Return the hash of a bag's name, of the metadata and of all arrays of the prediction."""
    text = json.dumps([p.name, metadata], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode())
    for field in fields(p):
        value = getattr(p, field.name)
        if isinstance(value, np.ndarray):
            digest.update(f"{field.name}{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
