"""FROC of the methods of one data set, by patch labels and by annotators' contours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...datasets import excluded_from_lesion_task, recorded_files
from ...errors import ProbSAError
from ...evaluation import (
    Lesions,
    Prediction,
    annotated_lesions,
    detect_lesions,
    find_lesions,
    froc_summary,
    match_detections,
    patch_mask,
)
from ...statistics import Metric, SlideHits
from ...training import RunFolder
from .instances import BOOTSTRAP
from .results import instances_of
from .scores import Scores

PATCHES = 1_000_000
"""Patches per method; further replicates are skipped. Ten thousand patches take 0.1 s."""
NO_LABELS = "tumour slides without complete patch labels"

LesionSource = Literal["patches", "annotations"]


@dataclass(kw_only=True)
class LesionTruth:
    """The lesions of a data set's slides, computed once for all its methods."""

    source: LesionSource
    files: Mapping[str, Path] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Slides that are left out, with the reason."""
    cached: dict[tuple[object, ...], Lesions | str | None] = field(default_factory=dict)

    def of(self, p: Prediction, *, tumour: bool) -> Lesions | str | None:
        """Return a slide's lesions, None if it is normal, or the reason why it is left out."""
        if p.name in self.left_out:
            return self.left_out[p.name]
        assert p.coords is not None
        marks = p.instance_labels
        # methods may use different features of a slide, and so different patches
        key = (p.name, tumour, p.coords.tobytes(), b"" if marks is None else marks.tobytes())
        if key not in self.cached:
            if self.source == "annotations":
                found = annotated_lesions(p, self.files.get(p.name), tumour=tumour)
            elif not tumour:
                found = None
            elif marks is None or bool((marks < 0).any()) or not bool((marks > 0).any()):
                found = NO_LABELS
            else:
                found = find_lesions(patch_mask(p))
            self.cached[key] = found
        if isinstance(reason := self.cached[key], str):
            self.left_out[p.name] = reason
        return self.cached[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class LesionFroc:
    """FROC of one method, and what it is computed from."""

    metrics: Mapping[str, Metric]
    slides: Sequence[SlideHits]
    """Those of the first replicate."""
    replicates: int
    replicates_available: int
    """Number of replicates that exist, of which `replicates` were used."""


def truths_of(scores: Scores) -> tuple[list[LesionTruth], list[str]]:
    """Return a data set's lesions, and notes on why expected annotations cannot be used."""
    truths, notes = [LesionTruth(source="patches")], []
    run = RunFolder(scores.runs[0][0])
    if run.config_file.is_file():
        try:
            files = recorded_files(run.config().data.labels, scores.bags)
        except ProbSAError as error:
            files = None
            notes.append(f"No official FROC: {error}.")
        if files is not None:
            out = excluded_from_lesion_task(scores.bags)
            truths.append(LesionTruth(source="annotations", files=files, left_out=out))
    return truths, notes


def lesions_found(
    scores: Scores, truths: Sequence[LesionTruth], *, bootstrap: int = BOOTSTRAP
) -> dict[LesionSource, LesionFroc] | None:
    """Return the FROC of one method by each truth; None if its bags are not slides.

    Raises:
        BagError: A bag's file is missing or damaged.
        InputError: The scores cannot be calibrated, or an annotation cannot be used.
    """
    positive = scores.labels
    hits: dict[LesionSource, list[list[SlideHits]]] = {t.source: [] for t in truths}
    patches_left = PATCHES
    for r, predictions in enumerate(instances_of(scores)):
        for p in predictions:
            if p.kind != "slide" or p.coords is None or p.coords.shape[1:] != (2,):
                return None
        patches_left -= sum(len(p.attention_mean) for p in predictions)
        if r and patches_left < 0:
            break
        for slides in hits.values():
            slides.append([])
        for p in predictions:
            points = None
            for truth in truths:
                lesions = truth.of(p, tumour=positive[p.name])
                if not isinstance(lesions, str):
                    points = points or detect_lesions(p)
                    hits[truth.source][-1].append(match_detections(p.name, points, lesions=lesions))
    return {
        source: LesionFroc(
            metrics=froc_summary(
                slides,
                groups=scores.patients,
                blocks=scores.blocks and scores.blocks[: len(slides)],
                bootstrap=bootstrap,
            ),
            slides=slides[0],
            replicates=len(slides),
            replicates_available=len(scores.seed),
        )
        for source, slides in hits.items()
        if slides[0]
    }
