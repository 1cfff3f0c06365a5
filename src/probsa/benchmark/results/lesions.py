"""FROC of the methods of one data set: by labels of patches, and by what annotators drew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...datasets import out_of_lesions, recorded_files
from ...errors import ProbSAError
from ...evaluation import (
    Lesions,
    Prediction,
    detections,
    drawn_lesions,
    froc_summary,
    hits,
    lesions,
    patch_mask,
)
from ...statistics import Hits, Metric
from ...training import RunFolder
from .pooled import blocks
from .results import Scores, instances_of

BOOTSTRAP = 200
PATCHES = 1_000_000
"""Of a method: further replicates take no part. Ten thousand patches are detected in 0.1 s."""
NO_LABELS = "tumour, but no label of a patch says where, or some are unknown"

Source = Literal["patches", "annotations"]


@dataclass(kw_only=True)
class Truth:
    """The lesions of a data set's slides, found once for all its methods."""

    source: Source
    files: Mapping[str, Path] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Slides that take no part, and why."""
    held: dict[tuple[object, ...], Lesions | str | None] = field(default_factory=dict)

    def of(self, p: Prediction, *, tumour: bool) -> Lesions | str | None:
        """None: the slide is normal; words: why it is left out."""
        if p.name in self.left_out:
            return self.left_out[p.name]
        assert p.coords is not None
        marks = b"" if p.instance_labels is None else p.instance_labels.tobytes()
        # methods may have other features of a slide, and so other patches
        key = (p.name, tumour, p.coords.tobytes(), marks)
        if key not in self.held:
            self.held[key] = self._made(p, tumour=tumour)
        there = self.held[key]
        if isinstance(there, str):
            self.left_out[p.name] = there
        return there

    def _made(self, p: Prediction, *, tumour: bool) -> Lesions | str | None:
        if self.source == "annotations":
            return drawn_lesions(p, self.files.get(p.name), tumour=tumour)
        if not tumour:
            return None
        marks = p.instance_labels
        if marks is None or bool((marks < 0).any()) or not bool((marks > 0).any()):
            return NO_LABELS
        return lesions(patch_mask(p))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """FROC of one method, and of what."""

    metrics: Mapping[str, Metric]
    slides: int
    tumour_slides: int
    lesions: int
    isolated: int
    replicates: int
    of: int
    """Replicates that there are."""


def on_slides(predictions: Sequence[Prediction]) -> bool:
    """Whether all have patches with places on a slide."""
    return all(
        p.kind == "slide" and p.coords is not None and p.coords.ndim == 2 and p.coords.shape[1] == 2
        for p in predictions
    )


def truths_of(scores: Scores) -> tuple[list[Truth], list[str]]:
    """What lesions a data set has, and why not those that annotators drew, if it should have."""
    found, said = [Truth(source="patches")], []
    run = RunFolder(scores.runs[0])
    if run.config_file.is_file():
        try:
            files = recorded_files(run.config().data.labels, scores.bags)
        except ProbSAError as error:
            files = None
            said.append(f"No official FROC: {error}.")
        if files is not None:
            out = out_of_lesions(scores.bags)
            found.append(Truth(source="annotations", files=files, left_out=out))
    return found, said


def lesions_found(
    scores: Scores, truths: Sequence[Truth], *, bootstrap: int = BOOTSTRAP
) -> dict[Source, Found] | None:
    """FROC of one method by each truth; None where its bags are no slides.

    Raises:
        BagError: the file of a bag is missing or damaged.
        InputError: the scores cannot be calibrated, or an annotation cannot be used.
    """
    positive = dict(zip(scores.bags, (scores.y > 0).tolist(), strict=True))
    by: dict[Source, list[list[Hits]]] = {t.source: [] for t in truths}
    left = PATCHES
    for r, predictions in enumerate(instances_of(scores)):
        if not on_slides(predictions):
            return None
        left -= sum(len(p.attention_mean) for p in predictions)
        if r and left < 0:
            break
        for slides in by.values():
            slides.append([])
        for p in predictions:
            points = None
            for truth in truths:
                there = truth.of(p, tumour=positive[p.name])
                if not isinstance(there, str):
                    points = points or detections(p)
                    by[truth.source][-1].append(hits(p.name, points, lesions=there))
    groups = dict(zip(scores.bags, scores.groups.tolist(), strict=True))
    return {
        source: _found(slides, groups, of=scores, bootstrap=bootstrap)
        for source, slides in by.items()
        if slides[0]
    }


def _found(
    replicates: Sequence[Sequence[Hits]],
    groups: Mapping[str, str],
    *,
    of: Scores,
    bootstrap: int,
) -> Found:
    shared = blocks(of)
    alike = None if shared is None else shared[: len(replicates)]
    first = [s for s in replicates[0] if s.tumour]
    return Found(
        metrics=froc_summary(replicates, groups=groups, blocks=alike, bootstrap=bootstrap),
        slides=len(replicates[0]),
        tumour_slides=len(first),
        lesions=sum(s.lesions for s in first),
        isolated=sum(int(s.isolated.sum()) for s in first),
        replicates=len(replicates),
        of=len(of.p),
    )
