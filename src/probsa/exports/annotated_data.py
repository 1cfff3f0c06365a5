"""Stage 10: write features and maps as AnnData, which scanpy and squidpy read.

Values per instance are columns of `obs` (per class: of an array in `obsm`), centres of patches are
`obsm["spatial"]`, and the origin is `uns["probsa"]`. `layers` are not used: they must have the
shape of the features.
"""

from collections import ChainMap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from ..datasets import BagSet
from ..errors import InputError, imports_from
from ..evaluation import Prediction
from .bag import ExportBag
from .quantities import missing_reasons

if TYPE_CHECKING:
    from anndata import AnnData

LABELS = {-1: "unknown", 0: "negative", 1: "positive"}


def write_annotated(path: Path, bags: Sequence[tuple[Prediction, "AnnData"]]) -> None:
    """Write bags of one kind into one file; the rows of a bag keep their order."""
    import anndata

    parts = [part for _, part in bags]
    _check_one("kinds of bags", {p.kind for p, _ in bags})
    _check_one("numbers of features", {part.shape[1] for part in parts})
    _check_one("sets of columns", {(*part.obs.columns, *part.obsm) for part in parts})
    whole = parts[0]
    if len(parts) > 1:
        whole = anndata.concat(parts, merge="same")
        for key in parts[0].uns:
            # each part has its own bag below the key
            whole.uns[key] = dict(ChainMap(*(part.uns[key] for part in parts)))
    whole.write_h5ad(path, compression="gzip")


def _check_one(name: str, values: set[Any]) -> None:
    """Check that all bags have the same value, so that one file can hold them."""
    if len(values) > 1:
        raise InputError(
            f"the bags have different {name} ({', '.join(map(str, sorted(values)))}), so they "
            "do not fit into one AnnData file: write one per bag, with --anndata per-bag"
        )


def annotated(bag: ExportBag, features: BagSet | None) -> "AnnData":
    """Return a bag with its features (None: without)."""
    with imports_from("anndata", "anndata"):
        from anndata import AnnData
    p = bag.p
    n = len(p.attention_mean)
    columns: dict[str, Any] = {"patch": np.arange(n), "bag": pd.Categorical([p.name] * n)}
    arrays: dict[str, Any] = {}
    class_names: dict[str, list[str]] = {}
    for name, group in groupby(bag.quantities, key=lambda q: q.quantity):
        channels = list(group)
        if channels[0].column is None:
            columns[name] = channels[0].values
        else:
            arrays[name] = np.stack([q.values for q in channels], axis=1)
            class_names[name] = [q.class_name for q in channels]
    labels = np.full(n, -1) if p.instance_labels is None else np.sign(p.instance_labels)
    words = [LABELS[int(v)] for v in labels]
    columns["instance_label"] = pd.Categorical(words, categories=list(LABELS.values()))
    uns: dict[str, Any] = {"probsa": {p.name: _origin(bag, class_names)}}
    if p.coords is not None and p.coords.shape[-1] == 2:
        side = bag.squares.side
        arrays["spatial"] = np.asarray(p.coords, np.float64) + side / 2
        factors = {"spot_diameter_fullres": side, "tissue_hires_scalef": 1.0}
        uns["spatial"] = {p.name: {"images": {}, "scalefactors": factors}}
    elif p.coords is not None:
        columns["position_mm"] = np.asarray(p.coords, np.float64)[:, 0]
    x = np.asarray(_features(p, features), np.float32)
    return AnnData(
        X=x,
        obs=pd.DataFrame(columns, index=pd.Index([f"{p.name}:{row}" for row in range(n)])),
        var=pd.DataFrame(index=pd.Index([f"feature_{k}" for k in range(x.shape[1])])),
        obsm=arrays,
        uns=uns,
    )


def _origin(bag: ExportBag, class_names: dict[str, list[str]]) -> dict[str, Any]:
    """Return what the file states of the bag; `class_names` are those of each array by class."""
    origin = {
        **bag.about.entries,
        "classes": list(bag.classes),
        "columns": class_names,
        "probability": np.asarray(bag.p.probability, np.float64),
    }
    for key, reason in missing_reasons(bag.p).items():
        origin[f"without_{key}"] = reason
    return origin


def _features(p: Prediction, features: BagSet | None) -> Shaped[np.ndarray, "n features"]:
    """Return the stored features of the bag's instances, or no columns without a folder."""
    n = len(p.attention_mean)
    if features is None:
        return np.empty((n, 0), np.float32)
    stored = features.stored(p.name)
    is_same_bag = len(stored.features) == n
    if p.coords is not None and stored.coords is not None:
        is_same_bag = is_same_bag and np.array_equal(stored.coords, p.coords)
    if not is_same_bag:
        raise InputError(
            f"the features of {p.name!r} in {features.folder} are not those that were predicted: "
            f"they have {len(stored.features)} instances, the prediction {n}, or other "
            "coordinates. Give --features with the folder that was predicted, or --no-features"
        )
    return stored.features
