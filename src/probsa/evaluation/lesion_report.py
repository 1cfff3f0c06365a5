"""The official CAMELYON16 FROC of a folder of predictions, by annotations that lie in a folder."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import annotation_files, kinds_of, out_of_lesions, tumour_mask
from ..errors import InputError
from ..slides import check_mpp
from ..statistics import Hits, Metric, froc_metrics, undefined
from .lesion_detections import Detections, detections, places
from .lesion_hits import hits
from .lesion_masks import DOWNSAMPLE, LEVEL0_UM, Lesions, lesions
from .prediction import Prediction
from .tables import Predictions

NO_ANNOTATION = "tumour, but no annotation"
NO_TUMOUR = "tumour, but its annotation marks none"
NO_OUTPUTS = "no per-instance outputs"
NO_SCALE = "relevance has no scale that slides share, so detections have no confidence"
NONE = Detections(x=np.zeros(0), y=np.zeros(0), confidence=np.zeros(0))
CONTRADICTED = "annotated, but labelled as without tumour"

TITLES = {
    "froc": "FROC score",
    "sensitivity_at_0.25": "sensitivity at 1/4 false positives a slide",
    "sensitivity_at_0.5": "… at 1/2",
    "sensitivity_at_1": "… at 1",
    "sensitivity_at_2": "… at 2",
    "sensitivity_at_4": "… at 4",
    "sensitivity_at_8": "… at 8",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LesionReport:
    """FROC of the judged slides, and what it was measured on."""

    folder: Path
    """Of the annotations."""
    metrics: dict[str, Metric]
    mpp: float
    """Micrometres of a level-0 pixel."""
    slides: int
    tumour_slides: int
    lesions: int
    """To be found."""
    isolated: int
    """Isolated tumour cells: neither hits nor false positives."""
    files: dict[str, int]
    """Annotations by what they hold: polygons, masks."""
    left_out: dict[str, str]
    """Slides that take no part, and why."""

    @property
    def note(self) -> str:
        """What was measured, in one line."""
        of = " and ".join(f"{n} {kind}" for kind, n in self.files.items())
        return (
            f"official rules on {of}: {self.lesions} lesions on {self.tumour_slides} of "
            f"{self.slides} slides ({self.isolated} isolated tumour cells do not count), "
            f"{self.mpp:g} µm a level-0 pixel"
        )

    def reasons(self) -> dict[str, list[str]]:
        """The slides that are left out, by why."""
        by: dict[str, list[str]] = {}
        for bag, why in self.left_out.items():
            by.setdefault(why, []).append(bag)
        return by

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """Detections of every slide against the lesions that are annotated.

    Args:
        predictions: whose per-instance outputs are read slide by slide.
        folder: annotations by bag: polygons (.xml, .json), or masks at 1/32 of level 0.
        bags: the judged slides.
        positive: whether a slide has tumour; one that is missing here has none.
        groups: patient of each slide; a slide that is missing here is its own.
        mpp: micrometres of a level-0 pixel; None: 0.243, the organisers' for every slide.
        bootstrap: resamples of slides; 0: no intervals.
        seed: of the resamples.

    Raises:
        InputError: no annotations, a damaged one, or one of another slide or level.
        BagError: a slide has no coordinates.
        SlideError: `mpp` is none, or the image of a mask cannot be read.
    """
    mpp = LEVEL0_UM if mpp is None else mpp
    check_mpp(mpp)
    files = annotation_files(folder, bags)
    slides, left_out, ranked = _judged(predictions, files, bags=bags, positive=positive, mpp=mpp)
    if not slides:
        name, why = next(iter(left_out.items()))
        raise InputError(f"no slide is left to find lesions on: {name!r} has {why}, and so on")
    metrics = dict.fromkeys(TITLES, undefined(NO_SCALE))
    if ranked:
        metrics = froc_metrics(slides, groups=groups, bootstrap=bootstrap, seed=seed)
    with_tumour = [s for s in slides if s.tumour]
    return LesionReport(
        folder=folder,
        metrics=metrics,
        mpp=mpp,
        slides=len(slides),
        tumour_slides=len(with_tumour),
        lesions=sum(s.lesions for s in with_tumour),
        isolated=sum(int(s.isolated.sum()) for s in with_tumour),
        files=kinds_of({s.name: files[s.name] for s in with_tumour}),
        left_out=dict(sorted(left_out.items())),
    )


def _judged(
    predictions: Predictions,
    files: Mapping[str, Path],
    *,
    bags: Sequence[str],
    positive: Mapping[str, bool],
    mpp: float,
) -> tuple[list[Hits], dict[str, str], bool]:
    """What takes part, what does not and why, and whether detections have a confidence."""
    left_out = out_of_lesions(bags)
    ranked = True
    slides: list[Hits] = []
    for name in bags:
        if name not in left_out and not predictions.instance_path(name).is_file():
            left_out[name] = NO_OUTPUTS
        if name in left_out:
            continue
        p = predictions.instances(name)
        there = drawn_lesions(p, files.get(name), tumour=positive.get(name, False), mpp=mpp)
        if isinstance(there, str):
            left_out[name] = there
            continue
        ranked &= p.score_kind != "relevance"
        slides.append(hits(name, detections(p) if ranked else NONE, lesions=there))
    return slides, left_out, ranked


def drawn_lesions(
    p: Prediction, path: Path | None, *, tumour: bool, mpp: float = LEVEL0_UM
) -> Lesions | str | None:
    """The lesions of a slide from its annotation; None: it is normal; words: why it is left out.

    Raises:
        InputError: the annotation is damaged, or of another slide or level.
        BagError: the slide has no coordinates.
    """
    if path is None:
        return NO_ANNOTATION if tumour else None
    corners, stride = places(p)
    x, y = (corners.max(0) + stride).tolist()
    mask = tumour_mask(path, cover=(x, y), downsample=DOWNSAMPLE)
    if not tumour:
        return CONTRADICTED if mask.any() else None
    return lesions(mask, pixel_um=mpp * DOWNSAMPLE) if mask.any() else NO_TUMOUR


def lines(report: LesionReport, *, listed: Callable[[Sequence[str]], str]) -> list[str]:
    """What stands below the figures for people."""
    return [
        report.note,
        *(f"left out: {listed(bags)}: {why}" for why, bags in report.reasons().items()),
    ]
