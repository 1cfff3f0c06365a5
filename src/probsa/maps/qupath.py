"""Stage 10: maps as GeoJSON for QuPath: one tile a patch, with its values as measurements.

A FeatureCollection in level-0 pixels, the form that QuPath 0.4 and later read and write
(`objectType` and a map of `measurements`); File > Import objects, then Measure > Measurement maps.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ..core import replacing
from ..evaluation import Prediction
from .overlay import Squares, squares

TOGETHER = 1000
"""Tiles that are written at once."""


def write_qupath(
    path: Path,
    p: Prediction,
    *,
    classes: Sequence[str] = (),
    side: float | None = None,
) -> None:
    """Writes the patches of a bag as tiles, atomically; memory does not grow with their number.

    `mean` and `variance` are of the attention score, `weight` is the mean share of the bag's
    attention. `probability` is the patch's own where the score is one (`score_kind`), else the
    bag's: that of the positive class. With one attention per class, or more than two classes, each
    class has a measurement of its own, `mean tumour` and so on. What is not finite is left out.

    Args:
        path: of the file.
        p: the bag's prediction.
        classes: names in the order of their index; without them, their numbers.
        side: of a patch in level-0 pixels, more than the distance between neighbours where patches
            overlap; None: that distance.

    Raises:
        InputError: a bag without places on a slide.
        BagError: no instances, or unusable coordinates.
    """
    s = squares(p, side=side)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as f:
        f.write('{"type":"FeatureCollection","features":[')
        _write(f, _features(s, measurements(p, classes=classes)))
        f.write("\n]}\n")


def measurements(p: Prediction, *, classes: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Of each of a bag's n patches, by the name that QuPath shows; each (n,)."""
    n = len(p.attention_mean)
    columns = {
        "mean": p.attention_mean,
        "variance": p.attention_variance,
        "probability": _probability(p),
        "weight": p.weight_mean,
    }
    found: dict[str, np.ndarray] = {}
    for what, values in columns.items():
        values = np.asarray(values).reshape(n, -1)
        for c in range(values.shape[1]):
            name = classes[c] if c < len(classes) else str(c)
            found[what if values.shape[1] == 1 else f"{what} {name}"] = values[:, c]
    return found


def _probability(p: Prediction) -> np.ndarray:
    if p.score_kind == "probability":
        return p.attention_mean
    # of two classes the second is the positive one, as in the table of predictions
    of_bag = p.probability if len(p.probability) > 2 else p.probability[-1:]
    return np.broadcast_to(of_bag, (len(p.attention_mean), len(of_bag)))


def _features(s: Squares, columns: dict[str, np.ndarray]) -> Iterator[str]:
    for start in range(0, len(s.corners), TOGETHER):
        rows = slice(start, start + TOGETHER)
        low = np.rint(s.corners[rows]).astype(np.int64).tolist()
        high = np.rint(s.corners[rows] + s.side).astype(np.int64).tolist()
        # the shortest number that names a float32: 0.1 and not 0.10000000149011612
        values = {name: [float(str(v)) for v in c[rows]] for name, c in columns.items()}
        for k, ((x, y), (right, bottom)) in enumerate(zip(low, high, strict=True)):
            ring = [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]]
            held = {name: v[k] for name, v in values.items() if math.isfinite(v[k])}
            yield json.dumps(
                {
                    "type": "Feature",
                    "geometry": {"type": "Polygon", "coordinates": [ring]},
                    "properties": {"objectType": "tile", "measurements": held},
                },
                separators=(",", ":"),
            )


def _write(f: IO[str], features: Iterator[str]) -> None:
    waiting: list[str] = []
    lead = "\n"
    for feature in features:
        waiting.append(lead + feature)
        lead = ",\n"
        if len(waiting) == TOGETHER:
            f.write("".join(waiting))
            waiting.clear()
    f.write("".join(waiting))
