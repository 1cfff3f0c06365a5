"""The official CAMELYON16 FROC of a predictions folder, from a folder of annotations."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import (
    annotation_files,
    count_annotation_kinds,
    excluded_from_lesion_task,
    tumour_mask,
)
from ..errors import InputError
from ..slides import check_mpp
from ..statistics import Metric, SlideHits
from .froc_summaries import froc_summary
from .lesion_detections import Detections, detect_lesions, places
from .lesion_hits import match_detections
from .lesion_masks import DOWNSAMPLE, LEVEL0_UM, Lesions, find_lesions
from .prediction import Prediction
from .storage import Predictions

NO_ANNOTATION = "tumour, but no annotation"
NO_TUMOUR = "tumour, but its annotation marks none"
NO_OUTPUTS = "no per-instance outputs"
NO_SCALE = "relevance has no common scale across slides, so detections have no confidence"
NO_DETECTIONS = Detections(x=np.zeros(0), y=np.zeros(0), confidence=np.zeros(0))
CONTRADICTED = "annotated, but labelled as without tumour"

TITLES = {
    "froc": "FROC score",
    "sensitivity_at_0.25": "sensitivity at 1/4 false positives per slide",
    "sensitivity_at_0.5": "… at 1/2",
    "sensitivity_at_1": "… at 1",
    "sensitivity_at_2": "… at 2",
    "sensitivity_at_4": "… at 4",
    "sensitivity_at_8": "… at 8",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LesionReport:
    """FROC metrics of the evaluated slides, with counts of slides and lesions."""

    folder: Path
    """The folder of the annotations."""
    metrics: dict[str, Metric]
    mpp: float
    """Micrometres per level-0 pixel."""
    slides: int
    tumour_slides: int
    lesions: int
    """Number of lesions to be found."""
    isolated: int
    """Number of isolated tumour cells, which count neither as hits nor as false positives."""
    files: dict[str, int]
    """Number of annotations by their kind: polygons, masks."""
    left_out: dict[str, str]
    """The reason for each slide that is left out."""

    @property
    def note(self) -> str:
        """The rules and the counts, in one line."""
        annotations = " and ".join(f"{n} {kind}" for kind, n in self.files.items())
        return (
            f"official rules on {annotations}: {self.lesions} lesions on {self.tumour_slides} of "
            f"{self.slides} slides ({self.isolated} isolated tumour cells do not count), "
            f"{self.mpp:g} µm per level-0 pixel"
        )

    def reasons(self) -> dict[str, list[str]]:
        """Return the slides that are left out, by reason."""
        by_reason: dict[str, list[str]] = {}
        for bag, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(bag)
        return by_reason

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "folder": str(self.folder),
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
            "mpp": self.mpp,
            "slides": self.slides,
            "tumour_slides": self.tumour_slides,
            "lesions": self.lesions,
            "isolated_tumour_cells": self.isolated,
            "annotations": self.files,
            "left_out": self.left_out,
            "rules": "official CAMELYON16",
        }


def lesion_report(
    predictions: Predictions,
    folder: Path,
    *,
    bags: Sequence[str],
    positive: Mapping[str, bool],
    groups: Mapping[str, Hashable] | None = None,
    mpp: float | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> LesionReport:
    """Compare the detections of every slide with its annotated lesions.

    Args:
        predictions: the predictions, whose per-instance outputs are read slide by slide.
        folder: annotations named after bags: polygons (.xml, .json), or masks at 1/32 of level 0.
        bags: the slides to evaluate.
        positive: whether each slide has tumour; a slide that is missing here has none.
        groups: the patient of each slide; a slide that is missing here is its own patient.
        mpp: micrometres per level-0 pixel; None for 0.243, which the organisers use.
        bootstrap: number of resamples of slides; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: there are no annotations, or one is damaged or belongs to another slide or
            level.
        BagError: a slide has no coordinates.
        SlideError: `mpp` is not a valid resolution, or the image of a mask cannot be read.
    """
    mpp = LEVEL0_UM if mpp is None else mpp
    check_mpp(mpp)
    files = annotation_files(folder, bags)
    slides, left_out, calibrated = _match_slides(
        predictions, files, bags=bags, positive=positive, mpp=mpp
    )
    if not slides:
        name, reason = next(iter(left_out.items()))
        raise InputError(
            f"all {len(left_out)} slides are left out of the search for lesions; the first is "
            f"{name!r}: {reason}"
        )
    metrics = dict.fromkeys(TITLES, Metric.undefined(NO_SCALE))
    if calibrated:
        metrics = froc_summary([slides], groups=groups, bootstrap=bootstrap, seed=seed)
    with_tumour = [s for s in slides if s.tumour]
    return LesionReport(
        folder=folder,
        metrics=metrics,
        mpp=mpp,
        slides=len(slides),
        tumour_slides=len(with_tumour),
        lesions=sum(s.lesions for s in with_tumour),
        isolated=sum(int(s.isolated.sum()) for s in with_tumour),
        files=count_annotation_kinds({s.name: files[s.name] for s in with_tumour}),
        left_out=dict(sorted(left_out.items())),
    )


def _match_slides(
    predictions: Predictions,
    files: Mapping[str, Path],
    *,
    bags: Sequence[str],
    positive: Mapping[str, bool],
    mpp: float,
) -> tuple[list[SlideHits], dict[str, str], bool]:
    """Return the matched slides, the reasons for the others, and whether scores are calibrated."""
    left_out = excluded_from_lesion_task(bags)
    calibrated = True
    slides: list[SlideHits] = []
    for name in bags:
        if name not in left_out and not predictions.instance_path(name).is_file():
            left_out[name] = NO_OUTPUTS
        if name in left_out:
            continue
        p = predictions.instances(name)
        annotated = annotated_lesions(p, files.get(name), tumour=positive.get(name, False), mpp=mpp)
        if isinstance(annotated, str):
            left_out[name] = annotated
            continue
        calibrated &= p.score_kind != "relevance"
        points = detect_lesions(p) if calibrated else NO_DETECTIONS
        slides.append(match_detections(name, points, lesions=annotated))
    return slides, left_out, calibrated


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
        return NO_ANNOTATION if tumour else None
    corners, stride = places(p)
    x, y = (corners.max(0) + stride).tolist()
    mask = tumour_mask(path, cover=(x, y), downsample=DOWNSAMPLE)
    if not tumour:
        return CONTRADICTED if mask.any() else None
    return find_lesions(mask, pixel_um=mpp * DOWNSAMPLE) if mask.any() else NO_TUMOUR


def footnotes(report: LesionReport, *, listed: Callable[[Sequence[str]], str]) -> list[str]:
    """Return the lines below the table of metrics; `listed` formats the names of slides."""
    return [
        report.note,
        *(f"left out: {listed(bags)}: {reason}" for reason, bags in report.reasons().items()),
    ]
