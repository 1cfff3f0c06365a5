"""Stage 2 for many slides: find the tissue of each slide and cut it into patches."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core import is_disk_full, is_fault
from ..errors import ProbSAError, UnknownResolution
from ..jobs import Task, TaskOutcome
from ..patches import (
    PatchSettings,
    Tissue,
    cut,
    draw_overview,
    drawn_notes,
    find_tissue,
    outline_file,
    outlined_tissue,
    thumbnail,
    write_geojson,
)
from ..slides import Slide, displayed_slice, open_slide
from .comparable import compared_patches
from .coordinates import Coordinates, read_coordinates, write_coordinates
from .geometry import SlideGeometry
from .inputs import resolve_mpp
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
        fallback: Micrometres per level-0 pixel of slides that do not state it.
    """

    name = "patch"
    crashes = True

    def __init__(
        self,
        work: WorkFolder,
        patch_set: PatchSet,
        *,
        settings: PatchSettings | None,
        contours: Path | None = None,
        fallback: float | None = None,
    ) -> None:
        super().__init__()
        self.work = work
        self.set = patch_set
        self.settings = settings
        self.contours = contours
        self.fallback = fallback

    def known(self, task: Task) -> Record | None:
        record = Record.read(self.record_file(task))
        if record is None or record.status == "failed":
            return record  # of this run: `prepare` removed earlier failures
        try:
            made_with = self._made_with(resolve_mpp(task.payload, self.fallback))
        except BROKEN as e:
            if is_fault(e):
                raise
            return None  # `run` will report what is wrong with the file
        if record.made_with != made_with:
            return record.failed(
                f"the {task.noun}, its contours, its --slide-mpp or the settings have changed "
                "since its patches were made. Give what was given then, another --out to keep "
                "both, or --overwrite (probsa patch) to redo them"
            )
        if record.status == "done" and not self._is_complete(record):
            return None
        return replace(record, kept=True)

    def start(self) -> None:
        pass

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        for task in tasks:
            began = time.perf_counter()
            record = task.payload
            assert isinstance(record, Record)
            try:
                if not record.reason and record.kind == "ct":
                    record = self._list_slices(record)
                elif not record.reason:
                    resolved = resolve_mpp(record, self.fallback)
                    with open_slide(Path(record.source), mpp=resolved.mpp) as slide:
                        record = self._describe(resolved, slide)
                        record = self._cut(record, slide)
            except BROKEN as e:
                if is_disk_full(e) or is_fault(e):
                    raise
                record = replace(
                    record,
                    reason=str(e) or type(e).__name__,
                    needs_mpp=isinstance(e, UnknownResolution),
                )
            yield replace(record, seconds=time.perf_counter() - began)

    def outputs(self, task: Task) -> tuple[Path, ...]:
        return (
            task.target,
            self.record_file(task),
            self.work.contours(task.name),
            self.work.thumbnail(task.name),
            self.work.overview(task.name),
        )

    def _describe(self, record: Record, slide: Slide) -> Record:
        """Return the record with what an open slide states."""
        assert self.settings is not None, "slides have settings"
        return replace(
            record,
            mpp=slide.mpp,
            format=slide.format,
            notes=(*slide.notes, *_resolution_notes(slide)),
            made_with=self._made_with(record),
            content=self.content(record),
            settings=self.set.made_with,
            geometry=SlideGeometry.of_slide(slide, self.settings, name=record.name),
        )

    def _cut(self, record: Record, slide: Slide) -> Record:
        """Find the tissue, write its pictures and the patches, and return the outcome."""
        assert self.settings is not None, "slides have settings"
        name = record.name
        tissue = self._tissue(name, slide)
        picture = thumbnail(slide)
        write_image(self.work.thumbnail(name), picture)
        patches = cut(slide, tissue, self.settings)
        write_image(self.work.overview(name), draw_overview(picture, tissue, patches))
        contours = self.work.contours(name)
        source = self._contours_file(name)
        # If --contours names the work folder's own files, rewriting them would change their
        # content, and the patches would count as outdated.
        if source is None or not contours.exists() or not contours.samefile(source):
            write_geojson(contours, tissue)
        record = replace(record, notes=(*tissue.notes, *drawn_notes(tissue), *record.notes))
        if len(patches):
            attributes = {"name": name, "savetodir": "patches", **patches.attributes}
            if slide.mpp_is_given:
                attributes["mpp_source"] = slide.mpp_source
            return self._done(record, patches.coords, attributes)
        if len(tissue.polygons):
            reason = (
                f"tissue found (contours_geojson/{name}.geojson), but no patch of "
                f"{patches.size} pixels contains enough of it: give a smaller --patch-size or "
                "--min-tissue"
            )
        else:
            thumbnail_file = self.work.thumbnail(name).relative_to(self.work.path)
            reason = (
                f"no tissue found: look at {thumbnail_file}. If there is some, give a lower "
                "--tissue-threshold or --min-tissue-area, --preset clam-biopsy, or --contours"
            )
        return replace(record, status="no_tissue", reason=reason)

    def _tissue(self, name: str, slide: Slide) -> Tissue:
        """Return the tissue of the slide's file of contours, or else find it."""
        if self.contours is not None:
            return outlined_tissue(self.contours, name, slide)
        assert self.settings is not None, "slides have settings"
        return find_tissue(slide, self.settings.tissue)

    def _list_slices(self, record: Record) -> Record:
        """Write the positions of a scan's slices and a picture of some, and return the outcome."""
        scan = open_source(record)
        assert not isinstance(scan, Slide), "a series is a scan"
        last = len(scan.positions) - 1
        indices = np.unique(np.linspace(0, last, SLICES_SHOWN).round().astype(int))
        sheet = contact_sheet([displayed_slice(scan, int(i)) for i in indices])
        write_image(self.work.thumbnail(record.name), sheet)
        record = replace(
            record,
            format=scan.format,
            notes=(*scan.notes, *record.notes),
            made_with=self._made_with(record),
            content=self.content(record),
            settings=self.set.made_with,
        )
        attributes: dict[str, object] = {
            "kind": "ct",
            "name": record.name,
            "spacing": np.asarray(scan.spacing),
            "thickness": scan.thickness,
        }
        return self._done(record, scan.positions[:, None], attributes)

    def _done(self, record: Record, coords: np.ndarray, attributes: dict[str, object]) -> Record:
        """Write the coordinates, and return the record of a success."""
        made_with = record.made_with
        coordinates = Coordinates(coords=coords, attributes=attributes, made_with=made_with)
        write_coordinates(self.set.patches_file(record.name), coordinates)
        return replace(record, status="done", count=len(coords))

    def _is_complete(self, record: Record) -> bool:
        """Return whether the file of coordinates is the one that the record tells of."""
        try:
            coordinates = read_coordinates(self.set.patches_file(record.name))
        except ProbSAError:
            return False
        has_count = len(coordinates.coords) == record.count
        return has_count and coordinates.made_with == record.made_with

    def _contours_file(self, name: str) -> Path | None:
        return None if self.contours is None else outline_file(self.contours, name)

    def _made_with(self, record: Record) -> str:
        """Return a digest of all that the patches depend on."""
        content = self.content(record)
        settings = None if self.settings is None else compared_patches(self.settings)
        contours = self._contours_file(record.name)
        contours_content = None
        if contours is not None and contours.is_file():
            contours_content = content_of((contours,))
        return digest(content, record.mpp, settings, contours_content)


def _resolution_notes(slide: Slide) -> tuple[str, ...]:
    """Return sentences on a resolution that the user gave, and on those that are not used."""
    if slide.mpp is None:
        return ()
    notes = [f"µm per pixel: ignored: {reason}." for reason in slide.mpp_rejected]
    if slide.mpp_is_given:
        notes.insert(0, f"µm per pixel: {slide.mpp_statement}.")
    return tuple(notes)
