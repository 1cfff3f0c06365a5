"""Stage 10: write features and maps as AnnData, which scanpy and squidpy read.

Values per instance are columns of `obs` (per class: `obsm`), centres of patches are
`obsm["spatial"]`, and the origin is `uns["probsa"]`. `layers` are not used: they must have the
shape of the features.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped

from ..core import replacing
from ..errors import InputError, MissingExtra
from ..evaluation import Prediction
from .provenance import Provenance
from .quantities import Channels, channels

if TYPE_CHECKING:
    from anndata import AnnData

LABELS = {-1: "unknown", 0: "negative", 1: "positive"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedBag:
    """What AnnData holds of one bag."""

    p: Prediction
    about: Provenance
    features: Shaped[np.ndarray, "n features"]
    """With no column if features are left out."""
    side: float | None
    """Side length of a patch in level-0 pixels; None for a scan."""
    classes: Sequence[str] = ()


def write_annotated(path: Path, bags: Iterable[AnnotatedBag]) -> None:
    """Write bags of one kind into one file, atomically; the rows of a bag keep their order.

    Raises:
        InputError: The bags are slides and scans, or their features or scores differ in width.
        MissingExtra: anndata is not installed.
    """
    try:
        import anndata
    except ImportError as error:
        raise MissingExtra("anndata", "anndata") from error
    parts = [(bag, _annotated(bag)) for bag in bags]
    for what, found in (
        ("kinds of bags", {bag.p.kind for bag, _ in parts}),
        ("numbers of features", {part.shape[1] for _, part in parts}),
        ("sets of columns", {(*part.obs.columns, *part.obsm) for _, part in parts}),
    ):
        if len(found) > 1:
            raise InputError(
                f"the bags have different {what} ({', '.join(map(str, sorted(found)))}), so they "
                "do not fit into one AnnData file: write one per bag, with --anndata per-bag"
            )
    whole = parts[0][1]
    if len(parts) > 1:
        whole = anndata.concat([part for _, part in parts], merge="same")
    whole.uns["probsa"] = {bag.p.name: _origin(bag) for bag, _ in parts}
    if all(bag.side is not None for bag, _ in parts):
        whole.uns["spatial"] = {
            bag.p.name: {
                "images": {},
                "scalefactors": {
                    "spot_diameter_fullres": float(bag.side or 0),
                    "tissue_hires_scalef": 1.0,
                },
            }
            for bag, _ in parts
        }
    with replacing(path) as temporary:
        whole.write_h5ad(temporary, compression="gzip")


def _annotated(bag: AnnotatedBag) -> "AnnData":
    import pandas as pd
    from anndata import AnnData

    p, n = bag.p, len(bag.p.attention_mean)
    held = channels(p, classes=bag.classes)
    columns: dict[str, Any] = {"patch": np.arange(n), "bag": pd.Categorical([p.name] * n)}
    positions: dict[str, Any] = {}
    for name, values in _values(p, held).items():
        if values.shape[1] == 1:
            columns[name] = values[:, 0]
        else:
            positions[name] = values
    labels = np.full(n, -1) if p.instance_labels is None else np.sign(p.instance_labels)
    words = [LABELS[int(v)] for v in labels]
    columns["instance_label"] = pd.Categorical(words, categories=list(LABELS.values()))
    if p.coords is not None and bag.side is not None:
        positions["spatial"] = np.asarray(p.coords, np.float64) + bag.side / 2
    elif p.coords is not None:
        columns["position_mm"] = np.asarray(p.coords, np.float64)[:, 0]
    names = [f"{p.name}:{row}" for row in range(n)]
    features = np.asarray(bag.features, np.float32)
    return AnnData(
        X=features,
        obs=pd.DataFrame(columns, index=pd.Index(names)),
        var=pd.DataFrame(index=pd.Index([f"feature_{k}" for k in range(features.shape[1])])),
        obsm=positions,
    )


def _values(p: Prediction, held: Channels) -> dict[str, Float[np.ndarray, "n columns"]]:
    n = len(p.attention_mean)
    columns: dict[str, np.ndarray] = {"attention_mean": p.attention_mean}
    if "std" not in held.absent:
        columns["attention_variance"] = p.attention_variance
    if chances := held.of("probability"):
        columns["p_evidence"] = np.stack([q.values for q in chances], 1)
    columns["weight_mean"] = p.weight_mean
    if p.contribution is not None:
        columns["contribution"] = p.contribution
    return {name: np.asarray(v, np.float32).reshape(n, -1) for name, v in columns.items()}


def _origin(bag: AnnotatedBag) -> dict[str, Any]:
    held = channels(bag.p, classes=bag.classes)
    return {
        **bag.about.entries,
        "classes": list(bag.classes),
        "probability": np.asarray(bag.p.probability, np.float64),
        **{f"without_{key}": reason for key, reason in held.absent.items()},
    }
