"""Stage 2 for many slides: find the tissue of each slide and cut it into patches."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core import is_disk_full, named_file
from ..errors import ProbSAError, SlideError
from ..jobs import Task, TaskOutcome
from ..patches import (
    Patches,
    PatchSettings,
    Tissue,
    cut,
    draw_overview,
    find_tissue,
    read_geojson,
    thumbnail,
    write_geojson,
)
from ..slides import WINDOWS, Slide, Windows, open_slide, slice_image
from .coordinates import Coordinates, read_coordinates, write_coordinates
from .inputs import Input, resolve_mpp
from .pictures import contact_sheet, write_image
from .reading import BROKEN, open_source
from .records import Record
from .stage import CohortStage
from .work import PatchSet, WorkFolder, content_of, digest

SLICES_SHOWN = 16
"""Number of slices in the contact sheet of a scan."""


class Patching(CohortStage):
    """Finds the tissue of slides and cuts it into patches; lists the slices of series.

    Args:
        work: The work folder.
        patch_set: The patch set of the work folder; `slices` for series.
        settings: Settings of the patches; None for series.
        contours: A folder with one GeoJSON file per slide, which replaces tissue detection.
    """

    name = "patch"

    def __init__(
        self,
        work: WorkFolder,
        patch_set: PatchSet,
        *,
        settings: PatchSettings | None,
        contours: Path | None = None,
    ) -> None:
        self.work, self.set = work, patch_set
        self.settings, self.contours = settings, contours
        self._contents: dict[str, str] = {}
        self._inputs: dict[str, Input] = {}
        self._finished: dict[str, Record] = {}

    def known(self, task: Task) -> TaskOutcome | None:
        record = Record.read(self.record_file(task))
        if record is None:
            return None
        if record.status == "failed":  # in this run: `prepare` removed earlier failures
            return record.outcome()
        try:
            wanted = self._made_with(self._resolved(task))
        except BROKEN:
            return None  # `run` will report what is wrong with the file
        if record.made_with != wanted:
            reason = (
                f"the {task.noun}, its contours, its --slide-mpp or the settings have changed "
                "since its patches were made. Give --overwrite to redo them, or another "
                "--out to keep both"
            )
            return TaskOutcome(name=task.name, status="failed", reason=reason, source=record.source)
        if record.status == "done" and not self._is_complete(record):
            return None
        return record.outcome(kept=True)

    def start(self) -> None:
        pass

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        for task in tasks:
            yield self._run_task(task)

    def record(self, task: Task, outcome: TaskOutcome) -> None:
        record = self._finished.pop(task.name, None) or task.payload.record()
        record.with_outcome(outcome).write(self.record_file(task))

    def outputs(self, task: Task) -> tuple[Path, ...]:
        work, name = self.work, task.name
        pictures = work.thumbnail(name), work.overview(name)
        return task.target, self.record_file(task), work.contours(name), *pictures

    def _run_task(self, task: Task) -> TaskOutcome:
        began, item = time.perf_counter(), task.payload
        assert isinstance(item, Input)
        record = item.record()
        try:
            if not item.reason:
                item = self._resolved(task)
                record = self._list_slices(item) if item.kind == "ct" else self._cut_slide(item)
        except BROKEN as e:
            if is_disk_full(e):
                raise
            record = replace(record, reason=str(e) or type(e).__name__)
        self._finished[task.name] = record
        return replace(record.outcome(), seconds=time.perf_counter() - began)

    def _resolved(self, task: Task) -> Input:
        """Return the input with its resolution; each process opens a slide for it only once."""
        if task.name not in self._inputs:
            self._inputs[task.name] = resolve_mpp(task.payload)
        return self._inputs[task.name]

    def _cut_slide(self, item: Input) -> Record:
        assert self.settings is not None, "slides have settings"
        made_with = self._made_with(item)
        with open_slide(item.source, mpp=item.mpp) as slide:
            tissue = self._tissue(item, slide)
            picture = thumbnail(slide)
            write_image(self.work.thumbnail(item.name), picture)
            patches = cut(slide, tissue, self.settings)
            write_image(self.work.overview(item.name), draw_overview(picture, tissue, patches))
            self._write_contours(item, tissue)
            record = replace(
                item.record(),
                mpp=slide.mpp,
                format=slide.format,
                notes=(*tissue.notes, *_mpp_notes(slide)),
                made_with=made_with,
                content=self._contents[item.name],
                settings=self.set.made_with,
            )
        if not len(patches):
            reason = self._no_patches_reason(item, tissue, patches)
            return replace(record, status="no_tissue", reason=reason)
        attributes = {"name": item.name, "savetodir": "patches", **patches.attributes}
        self._write(item.name, patches.coords, attributes, made_with=made_with)
        return replace(record, status="done", count=len(patches))

    def _tissue(self, item: Input, slide: Slide) -> Tissue:
        if self.contours is None:
            assert self.settings is not None, "slides have settings"
            return find_tissue(slide, self.settings.tissue)
        path = self._contours_file(item)
        if path is None or not path.is_file():
            raise SlideError(
                f"there are no contours {path}: --contours needs a GeoJSON file for each slide"
            )
        return read_geojson(path, slide.size)

    def _write_contours(self, item: Input, tissue: Tissue) -> None:
        target, source = self.work.contours(item.name), self._contours_file(item)
        # If --contours names the work folder's own files, rewriting them would change their
        # content, and the patches would count as outdated.
        if source is None or not target.exists() or not target.samefile(source):
            write_geojson(target, tissue)

    def _no_patches_reason(self, item: Input, tissue: Tissue, patches: Patches) -> str:
        picture = self.work.thumbnail(item.name).relative_to(self.work.path)
        if not len(tissue.polygons):
            return (
                f"no tissue found: look at {picture}. If there is some, give a lower "
                "--tissue-threshold or --min-tissue-area, --preset clam-biopsy, or --contours"
            )
        return (
            f"tissue found (contours_geojson/{item.name}.geojson), but no patch of "
            f"{patches.size} pixels contains enough of it: give a smaller --patch-size or "
            "--min-tissue"
        )

    def _list_slices(self, item: Input) -> Record:
        made_with = self._made_with(item)
        scan = open_source(item.record())
        assert not isinstance(scan, Slide), "a series is a scan"
        attributes: dict[str, object] = {
            "kind": "ct",
            "name": item.name,
            "spacing": np.asarray(scan.spacing),
            "thickness": scan.thickness,
        }
        self._write(item.name, scan.positions[:, None], attributes, made_with=made_with)
        last = len(scan.positions) - 1
        shown = np.unique(np.linspace(0, last, SLICES_SHOWN).round().astype(int))
        brain = Windows((WINDOWS["brain"], WINDOWS["brain"], WINDOWS["brain"]))
        write_image(
            self.work.thumbnail(item.name),
            contact_sheet([slice_image(scan, int(i), brain) for i in shown]),
        )
        return replace(
            item.record(),
            status="done",
            count=len(scan.positions),
            format=scan.format,
            notes=(*scan.notes, *item.notes),
            made_with=made_with,
            content=self._contents[item.name],
            settings=self.set.made_with,
        )

    def _write(
        self, name: str, coords: np.ndarray, attributes: dict[str, object], *, made_with: str
    ) -> None:
        coordinates = Coordinates(coords=coords, attributes=attributes, made_with=made_with)
        write_coordinates(self.set.patches_file(name), coordinates)

    def _is_complete(self, record: Record) -> bool:
        try:
            coordinates = read_coordinates(self.set.patches_file(record.name))
        except ProbSAError:
            return False
        same_count = len(coordinates.coords) == record.count
        return same_count and coordinates.made_with == record.made_with

    def _contours_file(self, item: Input) -> Path | None:
        return None if self.contours is None else named_file(self.contours, item.name, ".geojson")

    def _made_with(self, item: Input) -> str:
        """Return a digest of all that the patches depend on; a process reads a file only once."""
        if item.name not in self._contents:
            self._contents[item.name] = content_of(item.files or (item.source,))
        contours = self._contours_file(item)
        return digest(
            self._contents[item.name],
            item.mpp,
            None if self.settings is None else self.settings.to_dict(),
            content_of((contours,)) if contours is not None and contours.is_file() else None,
        )


def _mpp_notes(slide: Slide) -> list[str]:
    """Return a note if the given µm per pixel differ from the file's."""
    mpp, source = slide.mpp, slide.mpp_source or ""
    if mpp is None or not source.startswith("given, file"):
        return []
    return [f"µm per pixel: {mpp:.4g}, {source}."]
