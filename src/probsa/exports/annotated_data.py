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
from jaxtyping import Shaped

from ..core import replacing
from ..errors import InputError, MissingExtra
from ..evaluation import Prediction
from .provenance import Provenance
from .quantities import channels

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
    """Write bags of one kind into one file, atomically; the rows of a bag keep their order."""
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
    sides = {bag.p.name: bag.side for bag, _ in parts}
    if None not in sides.values():
        whole.uns["spatial"] = {
            name: {
                "images": {},
                "scalefactors": {"spot_diameter_fullres": side, "tissue_hires_scalef": 1.0},
            }
            for name, side in sides.items()
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
    chances = [q.values for q in held.of("probability")]
    for name, values in {
        "attention_mean": p.attention_mean,
        "attention_variance": None if "std" in held.absent else p.attention_variance,
        "p_evidence": np.stack(chances, 1) if chances else None,
        "weight_mean": p.weight_mean,
        "contribution": p.contribution,
    }.items():
        if values is not None:
            table = np.asarray(values, np.float32).reshape(n, -1)
            if table.shape[1] == 1:
                columns[name] = table[:, 0]
            else:
                positions[name] = table
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


def _origin(bag: AnnotatedBag) -> dict[str, Any]:
    held = channels(bag.p, classes=bag.classes)
    return {
        **bag.about.entries,
        "classes": list(bag.classes),
        "probability": np.asarray(bag.p.probability, np.float64),
        **{f"without_{key}": reason for key, reason in held.absent.items()},
    }
