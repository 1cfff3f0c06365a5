"""Stage 2 for many slides: tissue and patches of each, in a work folder."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core import full_disk
from ..errors import ProbSAError, SlideError
from ..jobs import Outcome, Task
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
from .inputs import Input, settled
from .pictures import contact_sheet, write_image
from .reading import BROKEN, open_source
from .records import Record
from .stage import CohortStage
from .work import PatchSet, WorkFolder, content_of, digest

SHOWN = 16
"""Slices in the picture of a scan."""


class Patching(CohortStage):
    """Finds the tissue of each slide and cuts it into patches; lists the slices of each series.

    Args:
        work: the work folder.
        patch_set: which set of patches of it: `slices` for series.
        settings: of the patches; None for series.
        contours: a folder of GeoJSON files, one a slide, that are the tissue instead.
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
        self._made: dict[str, Record] = {}

    def known(self, task: Task) -> Outcome | None:
        record = Record.read(self.record_file(task))
        if record is None:
            return None
        if record.status == "failed":  # by a worker of this run: `prepare` removed older ones
            return record.outcome()
        try:
            wanted = self._made_with(self._settled(task))
        except BROKEN:
            return None  # `run` says what is wrong with the file
        if record.made_with != wanted:
            reason = (
                "the slide, its contours, its --slide-mpp or the settings have changed since its "
                "patches were made. Give --overwrite to make them anew, or another --out to keep "
                "both"
            )
            return Outcome(name=task.name, status="failed", reason=reason, source=record.source)
        if record.status == "done" and not self._is_whole(record):
            return None
        return record.outcome(kept=True)

    def start(self) -> None:
        pass

    def run(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        for task in tasks:
            yield self._one(task)

    def record(self, task: Task, outcome: Outcome) -> None:
        made = self._made.pop(task.name, None) or task.payload.record()
        made.with_outcome(outcome).write(self.record_file(task))

    def outputs(self, task: Task) -> tuple[Path, ...]:
        """Every file that is made of a slide or series."""
        work, name = self.work, task.name
        pictures = work.thumbnail(name), work.overview(name)
        record = self.record_file(task)
        return task.target, record, work.contours(name), *pictures

    def _one(self, task: Task) -> Outcome:
        began, item = time.perf_counter(), task.payload
        assert isinstance(item, Input)
        made = item.record()
        try:
            if not item.reason:
                item = self._settled(task)
                made = self._scan(item) if item.kind == "ct" else self._slide(item)
        except BROKEN as e:
            if full_disk(e):
                raise
            made = replace(made, reason=str(e) or type(e).__name__)
        self._made[task.name] = made
        return replace(made.outcome(), seconds=time.perf_counter() - began)

    def _settled(self, task: Task) -> Input:
        """The input with its resolution; a slide is looked at for it once a process."""
        if task.name not in self._inputs:
            self._inputs[task.name] = settled(task.payload)
        return self._inputs[task.name]

    def _slide(self, item: Input) -> Record:
        assert self.settings is not None, "slides have settings"
        made_with = self._made_with(item)
        with open_slide(item.source, mpp=item.mpp) as slide:
            tissue = self._tissue(item, slide)
            write_image(self.work.thumbnail(item.name), thumbnail(slide))
            patches = cut(slide, tissue, self.settings)
            picture = draw_overview(slide, tissue, patches)
            write_image(self.work.overview(item.name), picture)
            self._keep_contours(item, tissue)
            record = replace(
                item.record(),
                mpp=slide.mpp,
                format=slide.format,
                notes=(*tissue.notes, *_overruled(slide)),
                made_with=made_with,
                content=self._contents[item.name],
                settings=self.set.made_with,
            )
        if not len(patches):
            return replace(record, status="no_tissue", reason=self._nothing(item, tissue, patches))
        described = {"name": item.name, "savetodir": "patches", **patches.attributes}
        self._write(item.name, patches.coords, described, made_with=made_with)
        return replace(record, status="done", count=len(patches))

    def _tissue(self, item: Input, slide: Slide) -> Tissue:
        if self.contours is None:
            assert self.settings is not None, "slides have settings"
            return find_tissue(slide, self.settings.tissue)
        path = self._contours_of(item)
        if path is None or not path.is_file():
            raise SlideError(
                f"there are no contours {path}: --contours needs a GeoJSON file for each slide"
            )
        return read_geojson(path, slide.size)

    def _keep_contours(self, item: Input, tissue: Tissue) -> None:
        kept, given = self.work.contours(item.name), self._contours_of(item)
        # edited in place: written anew it would be another file, and its patches be out of date
        if given is None or not kept.exists() or not kept.samefile(given):
            write_geojson(kept, tissue)

    def _nothing(self, item: Input, tissue: Tissue, patches: Patches) -> str:
        picture = self.work.thumbnail(item.name).relative_to(self.work.path)
        if not len(tissue.polygons):
            return (
                f"no tissue found: look at {picture}. If there is some, give a lower "
                "--tissue-threshold or --min-tissue-area, --preset clam-biopsy, or --contours"
            )
        return (
            f"tissue found (contours_geojson/{item.name}.geojson), but no patch of "
            f"{patches.size} pixels holds enough of it: give a smaller --patch-size or --min-tissue"
        )

    def _scan(self, item: Input) -> Record:
        made_with = self._made_with(item)
        scan = open_source(item.record())
        assert not isinstance(scan, Slide), "a series is a scan"
        described: dict[str, object] = {
            "kind": "ct",
            "name": item.name,
            "spacing": np.asarray(scan.spacing),
            "thickness": scan.thickness,
        }
        self._write(item.name, scan.positions[:, None], described, made_with=made_with)
        shown = np.unique(np.linspace(0, len(scan.positions) - 1, SHOWN).round().astype(int))
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
        held = Coordinates(coords=coords, attributes=attributes, made_with=made_with)
        write_coordinates(self.set.patches_file(name), held)

    def _is_whole(self, record: Record) -> bool:
        try:
            held = read_coordinates(self.set.patches_file(record.name))
        except ProbSAError:
            return False
        return len(held.coords) == record.count and held.made_with == record.made_with

    def _contours_of(self, item: Input) -> Path | None:
        return None if self.contours is None else self.contours / f"{item.name}.geojson"

    def _made_with(self, item: Input) -> str:
        """Digest of all that the patches depend on; a file is looked at once a process."""
        if item.name not in self._contents:
            self._contents[item.name] = content_of(item.files or (item.source,))
        contours = self._contours_of(item)
        return digest(
            self._contents[item.name],
            item.mpp,
            None if self.settings is None else self.settings.to_dict(),
            content_of((contours,)) if contours is not None and contours.is_file() else None,
        )


def _overruled(slide: Slide) -> list[str]:
    """A note where the µm per pixel that was given is not the file's."""
    given, said = slide.mpp, slide.mpp_source or ""
    if given is None or not said.startswith("given, file"):
        return []
    return [f"µm per pixel: {given:.4g}, {said}."]
