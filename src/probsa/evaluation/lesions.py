"""Lesions of slides: found in masks, detected from scores of patches, and compared by FROC.

The rules are those of the CAMELYON16 organisers; annotations are polygons or masks at level 5.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num, Shaped, UInt8
from scipy import ndimage
from scipy.spatial import KDTree

from ..core import check_stride, counted, group_keys
from ..datasets import (
    annotation_files,
    count_annotation_kinds,
    excluded_from_lesion_task,
    tumour_mask,
)
from ..errors import BagError, InputError
from ..slides import check_mpp
from ..statistics import (
    RATES,
    SHARE,
    Draws,
    Metric,
    SlideHits,
    froc,
    mean_over_replicates,
    replicate_weights,
)
from .context import INSTANCE_RESAMPLES, Context
from .prediction import Prediction
from .scores import instance_evidence, instance_scores
from .section import Section, metric_grid
from .storage import listed

LEVEL0_UM = 0.243
"""Micrometres per level-0 pixel, which the organisers' script uses for every slide."""
DOWNSAMPLE = 32
"""Level-0 pixels per side of a mask pixel (level 5)."""
MERGE_UM = 75.0
ITC_UM = 275.0
SMOOTHING = 1.0
"""Standard deviation, in patches, of the Gaussian that smooths maps; truncated at three."""
RADIUS = 2.0
"""Distance in patches up to which, inclusive, a detection suppresses others."""
TITLES = {
    "froc": "FROC score",
    "sensitivity_at_0.25": "sensitivity at 1/4 false positives per slide",
    "sensitivity_at_0.5": "… at 1/2",
    **{f"sensitivity_at_{k}": f"… at {k}" for k in (1, 2, 4, 8)},
}
FROC_METRICS = ("froc", *(f"sensitivity_at_{r:g}" for r in RATES))
NO_SCALE = "relevance has no common scale across slides, so detections have no confidence"


@dataclass(frozen=True, kw_only=True, slots=True)
class Detections:
    """Points in the unit of the coordinates (level-0 pixels), the most confident first."""

    x: Num[np.ndarray, " detections"]
    y: Num[np.ndarray, " detections"]
    confidence: Num[np.ndarray, " detections"]


NO_DETECTIONS = Detections(x=np.zeros(0), y=np.zeros(0), confidence=np.zeros(0))


def detect_lesions(p: Prediction) -> Detections:
    """Return the detections of one slide: centres of patches, with the smoothed confidence.

    The highest patch of the smoothed map is a detection and suppresses its neighbourhood, and so on
    in descending order. The confidence lies between 0 and 1 and is comparable between slides. It is
    p(Y = 1) times the instance's score if scores are probabilities. Otherwise, it is p(Y = 1)
    N w / (1 + N w) for an attention weight w among N instances; the fraction is 1/2 for uniform
    attention.

    Raises:
        InputError: the scores are relevances.
        BagError: the prediction has no 2-D coordinates, or its attention is nan.
        GraphError: the stride contradicts the coordinates.
    """
    corners, stride = _corners(p)
    if p.score_kind == "relevance":
        raise InputError(f"bag {p.name!r}: {NO_SCALE}")
    of_instances = instance_scores(p)
    if p.score_kind != "probability":
        of_instances = 1 / (1 + np.exp(-instance_evidence(p)))
    # With several classes, the probability of any class but the first.
    positive = float(p.probability[0] if len(p.probability) == 1 else 1 - p.probability[0])
    tree = KDTree(corners / stride)
    value = _smooth(positive * of_instances, tree)
    free = np.ones(len(value), dtype=bool)
    chosen: list[int] = []
    for i in np.argsort(-value, kind="stable").tolist():
        if free[i]:
            chosen.append(i)
            # The tolerance covers rounding; distances on a lattice are exact otherwise.
            free[tree.query_ball_point(tree.data[i], RADIUS + 1e-6)] = False
    centres = corners[chosen] + stride / 2
    return Detections(x=centres[:, 0], y=centres[:, 1], confidence=value[chosen])


def _corners(p: Prediction) -> tuple[Float[np.ndarray, "n 2"], float]:
    """Return the top-left corners of the patches, and their stride."""
    if p.coords is None or p.coords.ndim != 2 or p.coords.shape[1] != 2:
        raise BagError(
            f"bag {p.name!r} has no 2-D coordinates, but detections are points on a slide"
        )
    coords = p.coords.astype(np.float64)
    return coords, check_stride(torch.from_numpy(coords), stride=p.stride, name=p.name)


def _smooth(value: Float[np.ndarray, " n"], tree: KDTree) -> Float[np.ndarray, " n"]:
    """Average each patch with the existing patches around it, weighted by a Gaussian."""
    pairs = tree.query_pairs(3 * SMOOTHING + 1e-6, output_type="ndarray")
    squared = ((tree.data[pairs[:, 0]] - tree.data[pairs[:, 1]]) ** 2).sum(1)
    weight = np.exp(-squared / (2 * SMOOTHING**2))
    total, sums = np.ones(len(value)), value.copy()
    for a, b in (pairs.T, pairs.T[::-1]):
        total += np.bincount(a, weights=weight, minlength=len(value))
        sums += np.bincount(a, weights=weight * value[b], minlength=len(value))
    return sums / total


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesions:
    """The lesions of one slide; a normal slide has none."""

    labels: Int[np.ndarray, "rows columns"]
    """0 outside lesions, otherwise the number of the lesion, from 1."""
    axes: Float[np.ndarray, " lesions"]
    """Major axes of lesions 1, 2, … in mask pixels."""
    isolated: Bool[np.ndarray, " lesions"]
    """Whether each lesion is only isolated tumour cells (ITC)."""


def find_lesions(mask: Shaped[np.ndarray, "rows columns"], *, mpp: float = LEVEL0_UM) -> Lesions:
    """Return the lesions of a tumour mask.

    Annotations are dilated by 37.5 µm, so that areas within 75 µm of each other form one lesion,
    and holes are filled. Lesions are 8-connected regions. Those with a major axis below 275 µm are
    isolated tumour cells, on which detections count neither as hits nor as false positives.

    Args:
        mask: nonzero where there is tumour, at level 5 of the slide.
        mpp: micrometres per level-0 pixel.
    """
    pixel_um = mpp * DOWNSAMPLE
    tumour, labels = mask != 0, np.zeros(mask.shape, dtype=np.int64)
    reach, axes = MERGE_UM / (pixel_um * 2), []
    # Most of a slide is far from all tumour and need not be searched.
    for box in ndimage.find_objects(tumour.astype(np.int8)):
        margin = int(reach) + 2
        window = tuple(slice(max(s.start - margin, 0), s.stop + margin) for s in box)
        near = np.asarray(ndimage.distance_transform_edt(~tumour[window])) < reach
        filled = ndimage.binary_fill_holes(near)
        ndimage.label(filled, structure=np.ones((3, 3)), output=labels[window])
    for k, box in enumerate(ndimage.find_objects(labels), 1):
        # Of the ellipse with the same second moments; a single pixel has 0, as in scikit-image.
        moments = np.cov(np.nonzero(labels[box] == k), bias=True)
        axes.append(4 * np.sqrt(np.linalg.eigvalsh(moments)[-1]))
    major = np.array(axes, dtype=np.float64)
    return Lesions(labels=labels, axes=major, isolated=major < ITC_UM / pixel_um)


def patch_mask(p: Prediction) -> UInt8[np.ndarray, "rows columns"]:
    """Return a level-5 mask on which each positive patch is a square.

    It approximates a tumour mask for slides that have only instance labels.

    Raises:
        BagError: the slide has no 2-D coordinates.
    """
    assert p.instance_labels is not None, "the caller has found positive ones"
    corners, stride = _corners(p)
    first = np.rint(corners / DOWNSAMPLE).astype(np.int64)
    last = np.maximum(np.rint((corners + stride) / DOWNSAMPLE).astype(np.int64), first + 1)
    mask = np.zeros(last.max(0)[::-1], dtype=np.uint8)
    tumour = p.instance_labels > 0
    for (x0, y0), (x1, y1) in zip(first[tumour], last[tumour], strict=True):
        mask[y0:y1, x0:x1] = 1
    return mask


def annotated_lesions(
    p: Prediction, path: Path | None, *, tumour: bool, mpp: float = LEVEL0_UM
) -> Lesions | str | None:
    """Return the lesions of a slide from its annotation.

    The result is None for a normal slide, and a string with the reason for one that is left out.

    Raises:
        InputError: the annotation is damaged, or belongs to another slide or level.
        BagError: the slide has no coordinates.
    """
    if path is None:
        return "tumour, but no annotation" if tumour else None
    corners, stride = _corners(p)
    x, y = (corners.max(0) + stride).tolist()
    mask = tumour_mask(path, cover=(x, y), downsample=DOWNSAMPLE)
    if not tumour:
        return "annotated, but labelled as without tumour" if mask.any() else None
    if not mask.any():
        return "tumour, but its annotation marks none"
    return find_lesions(mask, mpp=mpp)


def match_detections(name: str, detections: Detections, *, lesions: Lesions | None) -> SlideHits:
    """Return the hits and false positives of one slide.

    `lesions` is None for a normal slide, on which all detections are false positives.

    Raises:
        InputError: a detection lies outside the mask, or its confidence is nan or below 0.
    """
    confidence = detections.confidence.astype(np.float64)
    if not bool((confidence >= 0).all()):
        raise InputError(
            f"slide {name!r}: a detection has confidence {confidence[~(confidence >= 0)][0]:g}, "
            "but a lesion without a detection counts as 0: give confidences from 0 to 1"
        )
    label, isolated = np.zeros(len(confidence), dtype=np.int64), np.zeros(0, dtype=bool)
    if lesions is not None:
        isolated, (rows, columns) = lesions.isolated, lesions.labels.shape
        row = np.floor(detections.y / DOWNSAMPLE).astype(np.int64)
        column = np.floor(detections.x / DOWNSAMPLE).astype(np.int64)
        # Masks are rounded down to whole pixels; a detection on the rest is on the last pixel.
        inside = (row >= 0) & (row <= rows) & (column >= 0) & (column <= columns)
        for k in np.flatnonzero(~inside):
            raise InputError(
                f"slide {name!r}: the detection at ({detections.x[k]:g}, {detections.y[k]:g}) lies "
                f"outside the mask of {columns} × {rows} pixels of {DOWNSAMPLE} level-0 pixels: "
                "give coordinates at level 0, and the mask of level 5"
            )
        label = lesions.labels[np.minimum(row, rows - 1), np.minimum(column, columns - 1)]
    best = np.zeros(len(isolated))
    which = np.full(len(isolated), -1, dtype=np.int64)
    for i in np.argsort(-confidence, kind="stable"):
        lesion = label[i] - 1
        if lesion >= 0 and which[lesion] < 0 and not isolated[lesion]:
            best[lesion], which[lesion] = confidence[i], i
    return SlideHits(
        name=name,
        best=best,
        which=which,
        isolated=isolated,
        false=confidence[label == 0],
        tumour=lesions is not None,
    )


def froc_summary(
    replicates: Sequence[Sequence[SlideHits]],
    *,
    groups: Mapping[str, str] | None = None,
    blocks: Sequence[Hashable] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> dict[str, Metric]:
    """Return `froc` (the score) and `sensitivity_at_<rate>`, the means over the replicates.

    Intervals resample the replicates (seeds, splits) and the slides or patients; all replicates
    share the resamples of the slides. Without a lesion to find, all are undefined with the reason.

    Args:
        replicates: for each replicate, the same slides in the same order, with its detections.
        groups: the patient of each slide; a slide that is missing here is its own patient.
        blocks: the block of each replicate, for example its split; see `replicate_weights`.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: there are no replicates, or their slides differ.
    """
    names = [[s.name for s in slides] for slides in replicates]
    if not names or names.count(names[0]) < len(names):
        raise InputError("expected one or more replicates of the same slides in the same order")
    try:
        froc(replicates[0])
    except InputError as error:
        return dict.fromkeys(FROC_METRICS, Metric.undefined(str(error)))
    tumour = np.array([s.tumour for s in replicates[0]])
    patients = group_keys(names[0], groups or {})
    draws = Draws.patients(tumour, groups=patients, resamples=bootstrap, seed=seed)
    rows = np.full((len(replicates), len(draws.counts), len(FROC_METRICS)), np.nan)
    for slides, of_replicate in zip(replicates, rows, strict=True):
        for counts, row in zip(draws.counts[:, draws.member], of_replicate, strict=True):
            if any(s.lesions for s, weight in zip(slides, counts, strict=True) if weight > 0):
                curve = froc(slides, weights=counts.tolist())
                row[:] = [curve.score, *curve.at.values()]
    weights = replicate_weights(len(rows), resamples=rows.shape[1] - 1, seed=seed, blocks=blocks)
    lesions = np.array([s.lesions > 0 for s in replicates[0]])
    support, metrics = draws.support({"with lesions": lesions}), {}
    for k, name in enumerate(FROC_METRICS):
        of_replicates = [Metric.of(v, support=support, scale=SHARE) for v in rows[..., k]]
        metrics[name] = mean_over_replicates(of_replicates, weights=weights)
    return metrics


def lesion_section(context: Context, folder: Path, *, mpp: float | None = None) -> Section:
    """Compare the detections of every slide with its annotated lesions.

    Args:
        context: the evaluated slides; any class but the first has tumour.
        folder: annotations named after bags: polygons (.xml, .json), or masks at 1/32 of level 0.
        mpp: micrometres per level-0 pixel; None for 0.243, which the organisers use.

    Raises:
        InputError: there are no annotations, or one of them or `mpp` cannot be used.
        BagError: a slide has no coordinates.
    """
    mpp, predictions = LEVEL0_UM if mpp is None else mpp, context.predictions
    check_mpp(mpp)
    files = annotation_files(folder, context.names)
    left_out = excluded_from_lesion_task(context.names)
    slides: list[SlideHits] = []
    calibrated = True
    for name, y in zip(context.names, context.y, strict=True):
        if name in left_out:
            continue
        if not predictions.instance_path(name).is_file():
            left_out[name] = "no per-instance outputs"
            continue
        p = predictions.instances(name)
        found = annotated_lesions(p, files.get(name), tumour=bool(y > 0), mpp=mpp)
        if isinstance(found, str):
            left_out[name] = found
            continue
        calibrated &= p.score_kind != "relevance"
        points = detect_lesions(p) if calibrated else NO_DETECTIONS
        slides.append(match_detections(name, points, lesions=found))
    if not slides:
        name, reason = next(iter(left_out.items()))
        raise InputError(
            f"all {len(left_out)} slides are left out of the search for lesions; the first is "
            f"{name!r}: {reason}"
        )
    metrics = dict.fromkeys(FROC_METRICS, Metric.undefined(NO_SCALE))
    if calibrated:
        metrics = froc_summary(
            [slides],
            groups=context.truth.group,
            bootstrap=min(context.bootstrap, INSTANCE_RESAMPLES),
            seed=context.seed,
        )
    tumour = [s.name for s in slides if s.tumour]
    lesions, isolated = (sum(s.lesions for s in slides), sum(int(s.isolated.sum()) for s in slides))
    annotations = count_annotation_kinds({name: files[name] for name in tumour})
    kinds = " and ".join(f"{n} {kind}" for kind, n in annotations.items())
    text: list[Any] = [
        metric_grid(f"lesions of {counted(len(slides), 'slide')}", metrics, titles=TITLES),
        f"official rules on {kinds}: {lesions} lesions on {len(tumour)} of {len(slides)} slides "
        f"({isolated} isolated tumour cells do not count), {mpp:g} µm per level-0 pixel",
    ]
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, why in left_out.items() if why == reason]
        text.append(f"left out: {listed(names)}: {reason}")
    return Section(
        key="lesions",
        values={
            "folder": str(folder),
            "metrics": metrics,
            "mpp": mpp,
            "slides": len(slides),
            "tumour_slides": len(tumour),
            "lesions": lesions,
            "annotations": annotations,
            "left_out": dict(sorted(left_out.items())),
            "isolated_tumour_cells": isolated,
            "rules": "official CAMELYON16",
        },
        text=text,
        metrics={"lesions": metrics},
    )
