"""Experiment folders in the layout of `probsa benchmark`, with given predictions."""

import json
from pathlib import Path

import numpy as np

from probsa.evaluation import Prediction, write_predictions


def prediction(bag: str, p: float, *, instances: int = 4, mean=None, labels=None) -> Prediction:
    """Return the prediction of a bag; its attention is a ramp by default."""
    f = np.linspace(-1, 1, instances) if mean is None else np.asarray(mean)
    f = f.astype(np.float32)
    w = np.exp(f) / np.exp(f).sum()
    return Prediction(
        name=bag,
        probability=np.array([p], dtype=np.float32),
        std=np.array([0.1], dtype=np.float32),
        coords=np.stack([np.arange(len(f)), np.zeros(len(f))], axis=1).astype(np.int64),
        attention_mean=f,
        attention_variance=np.linspace(0.1, 0.4, len(f)).astype(np.float32),
        weight_mean=w,
        weight_variance=np.zeros(len(f), dtype=np.float32),
        degree=np.array([1, *[2] * (len(f) - 2), 1], dtype=np.float32),
        stride=1.0,
        instance_labels=None if labels is None else np.asarray(labels, dtype=np.int64),
    )


def write_run(
    out: Path,
    *,
    data: str = "toy",
    model: str = "abmil",
    label: str | None = None,
    arguments: dict[str, object] | None = None,
    kl_weight: float | str | None = None,
    split: int = 0,
    seed: int = 0,
    folds: bool = True,
    test: dict[str, float],
    y: dict[str, int],
    val: dict[str, float] | None = None,
    rest: tuple[str, ...] = (),
    threshold: float | None = 0.5,
    groups: dict[str, str] | None = None,
    instances: dict[str, list[int]] | None = None,
    means: dict[str, list[float]] | None = None,
) -> Path:
    """Write a finished run; `test` and `val` give p(Y = 1) by bag, `rest` its training bags.

    Per-instance outputs exist if `instances` (labels by bag) is given, even if empty.
    """
    kl = (
        kl_weight if isinstance(kl_weight, str) else None if kl_weight is None else f"{kl_weight:g}"
    )
    label = label or model
    slug = label.replace(" ", "-") + ("" if kl is None else f"_kl-{kl}")
    path = out / "cells" / data / slug / f"split{split}-seed{seed}"
    path.mkdir(parents=True)
    val = val or {}
    cell = {"data": data, "label": label, "model": model, "arguments": arguments or {}}
    cell |= {"kl_weight": kl_weight}
    cell |= {"split": split, "seed": seed, "folds": folds, "groups": groups}
    parts = {"train": list(rest), "val": list(val), "test": list(test)}
    (path / "cell.json").write_text(json.dumps(cell))
    (path / "split.json").write_text(json.dumps({**parts, "origin": "made"}))
    (path / "threshold.json").write_text(json.dumps({"threshold": threshold, "chosen": "made"}))
    parts = {**dict.fromkeys(val, "val"), **dict.fromkeys(test, "test")}
    if instances is None:
        _write_table(path / "predictions", {**val, **test}, y=y, parts=parts, threshold=threshold)
        return path
    means = means or {}
    write_predictions(
        path / "predictions",
        [
            prediction(b, p, labels=instances.get(b), mean=means.get(b))
            for b, p in {**val, **test}.items()
        ],
        labels=y,
        parts=parts,
        classes=("0", "1"),
        threshold=threshold,
        metadata={},
    )
    return path


def _write_table(folder: Path, p: dict[str, float], *, y, parts, threshold) -> None:
    """Write only the table of bags; the files of instances are slow to write and rarely needed."""
    folder.mkdir()
    cut = 0.5 if threshold is None else threshold
    rows = [f"{b},{parts[b]},{y[b]},{int(v >= cut)},{v!r},0.1" for b, v in p.items()]
    text = "\n".join(["bag,part,label,prediction,p_1,sd_1", *rows, ""])
    (folder / "predictions.csv").write_text(text)
    metadata = {"threshold": threshold, "classes": ["0", "1"]}
    (folder / "predictions.json").write_text(json.dumps(metadata))


def write_folds(
    out: Path, y: dict[str, int], folds: list[list[str]], p: dict[str, float], **options
) -> list[Path]:
    """Write a run for every fold, which tests on its bags and validates on those of the next."""
    paths = []
    for k, tested in enumerate(folds):
        following = [b for b in folds[(k + 1) % len(folds)] if b not in tested]
        rest = tuple(dict.fromkeys(b for f in folds for b in f if b not in (*tested, *following)))
        paths.append(
            write_run(
                out,
                split=k,
                test={b: p[b] for b in tested},
                val={b: p[b] for b in following},
                rest=rest,
                y=y,
                **options,
            )
        )
    return paths
