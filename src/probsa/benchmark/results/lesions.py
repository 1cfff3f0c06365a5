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
from .results import instances_of
from .scores import Scores

BOOTSTRAP = 200
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
        marks = b"" if p.instance_labels is None else p.instance_labels.tobytes()
        # methods may use different features of a slide, and so different patches
        key = (p.name, tumour, p.coords.tobytes(), marks)
        if key not in self.cached:
            self.cached[key] = self._lesions(p, tumour=tumour)
        lesions_or_reason = self.cached[key]
        if isinstance(lesions_or_reason, str):
            self.left_out[p.name] = lesions_or_reason
        return lesions_or_reason

    def _lesions(self, p: Prediction, *, tumour: bool) -> Lesions | str | None:
        if self.source == "annotations":
            return annotated_lesions(p, self.files.get(p.name), tumour=tumour)
        if not tumour:
            return None
        marks = p.instance_labels
        if marks is None or bool((marks < 0).any()) or not bool((marks > 0).any()):
            return NO_LABELS
        return find_lesions(patch_mask(p))


@dataclass(frozen=True, kw_only=True, slots=True)
class LesionFroc:
    """FROC of one method, and the numbers of slides and lesions behind it."""

    metrics: Mapping[str, Metric]
    slides: int
    tumour_slides: int
    lesions: int
    isolated: int
    replicates: int
    replicates_available: int
    """Number of replicates that exist, of which `replicates` were used."""


def on_slides(predictions: Sequence[Prediction]) -> bool:
    """Return whether all predictions have patches with positions on a slide."""
    return all(
        p.kind == "slide" and p.coords is not None and p.coords.ndim == 2 and p.coords.shape[1] == 2
        for p in predictions
    )


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
    positive = dict(zip(scores.bags, scores.positive.tolist(), strict=True))
    hits_by_source: dict[LesionSource, list[list[SlideHits]]] = {t.source: [] for t in truths}
    patches_left = PATCHES
    for r, predictions in enumerate(instances_of(scores)):
        if not on_slides(predictions):
            return None
        patches_left -= sum(len(p.attention_mean) for p in predictions)
        if r and patches_left < 0:
            break
        for slides in hits_by_source.values():
            slides.append([])
        for p in predictions:
            points = None
            for truth in truths:
                lesions_or_reason = truth.of(p, tumour=positive[p.name])
                if not isinstance(lesions_or_reason, str):
                    points = points or detect_lesions(p)
                    hits_by_source[truth.source][-1].append(
                        match_detections(p.name, points, lesions=lesions_or_reason)
                    )
    groups = dict(zip(scores.bags, scores.groups.tolist(), strict=True))
    return {
        source: _froc(slides, groups, scores=scores, bootstrap=bootstrap)
        for source, slides in hits_by_source.items()
        if slides[0]
    }


def _froc(
    replicates: Sequence[Sequence[SlideHits]],
    groups: Mapping[str, str],
    *,
    scores: Scores,
    bootstrap: int,
) -> LesionFroc:
    used_blocks = None if scores.blocks is None else scores.blocks[: len(replicates)]
    tumour_slides = [s for s in replicates[0] if s.tumour]
    return LesionFroc(
        metrics=froc_summary(replicates, groups=groups, blocks=used_blocks, bootstrap=bootstrap),
        slides=len(replicates[0]),
        tumour_slides=len(tumour_slides),
        lesions=sum(s.lesions for s in tumour_slides),
        isolated=sum(int(s.isolated.sum()) for s in tumour_slides),
        replicates=len(replicates),
        replicates_available=len(scores.seed),
    )
