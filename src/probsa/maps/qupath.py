"""Stage 10: write maps as GeoJSON for QuPath: one tile per patch, with its values as measurements.

The file is a FeatureCollection in level-0 pixels, as QuPath 0.4 and later read and write it
(`objectType` and a map of `measurements`). In QuPath: File > Import objects, then Measure >
Measurement maps.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..core import replacing
from ..evaluation import Prediction
from .layout import Layout, squares

CHUNK = 1000
"""Number of tiles written at a time."""


def write_qupath(
    path: Path,
    p: Prediction,
    *,
    classes: Sequence[str] = (),
    side: float | None = None,
    about: Mapping[str, object] | None = None,
) -> None:
    """Write the patches of a bag as tiles, atomically and in constant memory.

    `mean` and `variance` are those of the attention score; `weight` is the mean share of the bag's
    attention. `probability` is the patch's own if the score is one (`score_kind`), else the bag's
    probability of the positive class; for other tasks than classes it is called `prediction`, with
    the name of each predicted column. Where the model has them, `contribution`, `evidence` (the
    class score), `leave one out`, `positive probability`, P(f > 0), and for grades `alone`, the
    probability of each grade or a higher one of the patch on its own, follow. With one column per
    class, each class has its own measurement, such as `mean tumour`. Values that are not finite are
    omitted.

    Args:
        path: Path of the GeoJSON file.
        p: The bag's prediction.
        classes: Class names in the order of their index; without them, classes are numbered.
        side: Side length of a patch in level-0 pixels, more than the distance between neighbours if
            patches overlap; None: that distance.
        about: Origin of the values, written as the member `probsa` of the collection, which
            readers of GeoJSON ignore.

    Raises:
        InputError: The bag's instances have no positions on a slide.
        BagError: The bag has no instances, or its coordinates are unusable.
    """
    patches, columns = squares(p, side=side), measurements(p, classes=classes)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        origin = "" if about is None else f'"probsa":{json.dumps(about)},'
        file.write(f'{{"type":"FeatureCollection",{origin}"features":[\n')
        for start in range(0, len(patches.corners), CHUNK):
            file.write(",\n" * (start > 0))
            file.write(",\n".join(_features(patches, columns, slice(start, start + CHUNK))))
        file.write("\n]}\n")


def measurements(p: Prediction, *, classes: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the values of a bag's n patches, each (n,), by the name that QuPath shows."""
    n = len(p.attention_mean)
    said = "probability" if p.of_task.unordered_classes else "prediction"
    columns = {
        "mean": p.attention_mean,
        "variance": p.attention_variance,
        said: _probability(p),
        "weight": p.weight_mean,
        "contribution": p.contribution,
        "evidence": p.class_score,
        "leave one out": p.leave_one_out,
        "positive probability": p.probability_positive,
        "alone": p.at_least,
    }
    named: dict[str, np.ndarray] = {}
    for quantity, values in columns.items():
        if values is None:
            continue
        values = np.asarray(values).reshape(n, -1)
        of_columns = p.of_task.column_names(p, values.shape[1]) or classes
        if quantity == "prediction":
            of_columns = p.outputs
        for c in range(values.shape[1]):
            name = of_columns[c] if c < len(of_columns) else str(c)
            named[quantity if values.shape[1] == 1 else f"{quantity} {name}"] = values[:, c]
    return named


def _probability(p: Prediction) -> np.ndarray:
    if p.score_kind == "probability":
        return p.attention_mean
    if not p.of_task.unordered_classes:
        return np.broadcast_to(p.probability, (len(p.attention_mean), len(p.probability)))
    # the second of two classes is the positive one, as in predictions.csv
    bag_probability = p.probability if len(p.probability) > 2 else p.probability[-1:]
    return np.broadcast_to(bag_probability, (len(p.attention_mean), len(bag_probability)))


def _features(patches: Layout, columns: dict[str, np.ndarray], rows: slice) -> Iterator[str]:
    low = np.rint(patches.corners[rows]).astype(np.int64).tolist()
    high = np.rint(patches.corners[rows] + patches.side).astype(np.int64).tolist()
    # the shortest decimal that identifies a float32: 0.1, not 0.10000000149011612
    values = {name: [float(str(v)) for v in c[rows]] for name, c in columns.items()}
    for k, ((x, y), (right, bottom)) in enumerate(zip(low, high, strict=True)):
        ring = [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]]
        finite = {name: v[k] for name, v in values.items() if math.isfinite(v[k])}
        feature = {
            "type": "Feature",
            "geometry": {"type": "Polygon", "coordinates": [ring]},
            "properties": {"objectType": "tile", "measurements": finite},
        }
        yield json.dumps(feature, separators=(",", ":"))
