"""Stage 10: all data of the page, by integer addresses; the server and the export share it."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from ..cohorts import WorkFolder
from ..errors import InputError, ProbSAError
from ..evaluation import Prediction, read_predictions, stored_trust
from ..maps import (
    KINDS,
    READ_ERRORS,
    CohortSources,
    ColourLimits,
    Layout,
    against,
    checked_squares,
    class_names,
    columns_of,
    map_limits,
    place,
    raster,
    reservations,
    showing,
)
from ..patches import read_geojson, thumbnail
from ..slides import Scan, Slide
from ..training import RunFolder
from .opened import Kept
from .quantities import (
    as_page,
    check_comparable,
    chosen_column,
    galleries,
    look_up_table,
    quantities,
)
from .rows import Row, facts, list_rows, title_of
from .scan_pages import ScanView, scan_page, scan_view, slice_values
from .scripts import packed, script, without_folders
from .tiles import (
    THUMBNAIL,
    Pyramid,
    jpeg,
    patch_image,
    picture_of_values,
    slice_picture,
    tile_image,
)

OPEN = 4
"""Number of bags, and of slides or scans, that are kept open."""
LONGEST = 8192
"""Largest number of cells along a side of a raster, within what browsers allow for a canvas."""
PIXELS = 256
"""Pixels along the side of a patch, where it is not known how they were cut."""
FINEST = 4
"""Largest number of cells along the side of a patch that is not on a lattice."""
SLIDES = "slides.js"
LIMITS = "limits.js"
MAP = "map/{k}.js"
VALUES = "values/{k}_{c}.js"
SLICE = "slice/{k}_{i}.js"
THUMB = "thumb/{k}.jpg"
PATCH = "patch/{k}_{row}.jpg"
TILES = "tiles/{k}/{level}/{column}_{row}.jpg"
"""Addresses below `data/`, with the numbers of bags (k), classes (c) and so on."""
SCRIPT = "text/javascript; charset=utf-8"
JPEG = "image/jpeg"
OF_A_SLIDE = (PATCH, TILES)
"""Addresses of pictures that are cut from a slide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideView:
    """A slide that is open, its tiles and the squares of the bag's patches."""

    slide: Slide
    pyramid: Pyramid
    patches: Layout
    whole: int
    """The finest level with all its tiles; finer ones have those on which patches lie."""


Picture = TypeVar("Picture", SlideView, ScanView)


class ViewData:
    """The data of the page of one predictions folder.

    Bags are addressed by their position in `rows`, classes and patches by their numbers; no path
    comes from a request. All methods may be called by several threads; what is not there or cannot
    be read is one of `READ_ERRORS`.

    Args:
        predictions: A run folder, or a folder that `probsa predict` wrote.
        slides: A work folder of `probsa patch`, or a folder of slides or series.
        against: A run or predictions of another model, to show differences.
        mpp: Micrometres per level-0 pixel of slides whose files do not state it, or a mapping from
            names of slides.
        max_mpp: Finest resolution of slides in µm per pixel; None: that of the slides.
        patch_mpp: Whether tiles on which patches lie go down to the resolution of the patches.
        most_pixels: Longest side of the slices of scans in pixels; None: that of the scans.

    Raises:
        InputError, TableError: a folder does not exist, or is not what it should be.
    """

    def __init__(
        self,
        predictions: Path | str,
        *,
        slides: Path | str | None = None,
        against: Path | str | None = None,
        mpp: float | Mapping[str, float] | None = None,
        max_mpp: float | None = None,
        patch_mpp: bool = False,
        most_pixels: int | None = None,
    ) -> None:
        self.table = read_predictions(predictions)
        self.about = _about_run(Path(predictions))
        self.sources = None if slides is None else CohortSources(Path(slides), mpp=mpp)
        self.other = None if against is None else read_predictions(against)
        self.max_mpp = max_mpp
        self.patch_mpp = patch_mpp
        self.most_pixels = most_pixels
        self.rows: list[Row] = list_rows(self.table)
        self._bags = Kept(self._read, most=OPEN)
        self._pictures = Kept(self._open, most=OPEN, close=_close)

    def close(self) -> None:
        """Close all slides."""
        self._pictures.close()

    def bag(self, k: int) -> Prediction:
        """Return the prediction of a bag.

        Raises:
            BagError: its file is missing or damaged.
            InputError: there is no such bag, or it could not be predicted.
        """
        with self._bags.use(self._checked(k)) as p:
            return p

    def slides_script(self, **remarks: Any) -> bytes:
        """Return the list of bags, the facts of the run and the colours.

        Args:
            remarks: Further entries, such as how an export was made.
        """
        words = self.table.of_task.page_words(self.table.outputs, self.table.metadata.target)
        trust = stored_trust(self.table)
        page = {
            "rows": [asdict(row) for row in self.rows],
            "facts": [*self.about, *facts(self.table)],
            "classes": self.table.classes,
            "words": asdict(words),
            "positive": self.table.class_names[-1] if self.table.of_task.two_classes else "",
            "reservations": reservations(self.table),
            "trust": {
                "failed": trust.failed,
                "line": trust.line,
                "sentence": trust.sentence,
            },
            "colours": {name: packed(look_up_table(name), "u1") for name in KINDS},
            "other": None if self.other is None else title_of(self.other.folder),
            "pictures": self.sources is not None,
            "remarks": remarks,
        }
        return script("slides", page)

    def limits_script(self) -> bytes:
        """Return the 1 % and 99 % quantiles of the mean and the s.d. over all bags."""
        deviation = tuple(np.sqrt(np.maximum(self.limits.variance, 0.0)).tolist())
        return script("limits", {"mean": self.limits.mean, "deviation": deviation})

    @cached_property
    def limits(self) -> ColourLimits:
        """The scale of all bags."""
        return map_limits(self.table.folder)

    def map_script(self, k: int) -> bytes:
        """Return the geometry of a bag: its raster, its slide or scan, and its tissue."""
        p = self.bag(k)
        columns = columns_of(p)
        classes = class_names(p, columns, self.table.classes) if columns > 1 else []
        # what each instance adds to the logit, where the model tells it
        drawn = p if p.contribution is None else showing(p, "contribution")
        page: dict[str, Any] = {
            "name": p.name,
            "n": len(p.attention_mean),
            "classes": classes,
            "column": chosen_column(p),
            "reason": "",
            "contradiction": against(self.table, drawn),
        }
        if p.coords is not None and p.coords.shape[-1] == 2:
            page |= self._slide_page(k, p)
        else:
            page |= self._chain_page(k, p)
        return script(f"map/{k}", page)

    def values_script(self, k: int, c: int) -> bytes:
        """Return the quantities of one class of a bag, and the lists of its pictures."""
        p = self.bag(k)
        columns = columns_of(p)
        if not 0 <= c < columns:
            raise InputError(f"bag {p.name!r} has {columns} classes, not a class {c}")
        other, reason = self._other(p)
        by_key = quantities(p, column=c, other=other)
        page = {
            "quantities": [as_page(key, q) for key, q in by_key.items()],
            "galleries": galleries(by_key),
            "difference": reason,
        }
        return script(f"values/{k}_{c}", page)

    def slice_script(self, k: int, i: int) -> bytes:
        """Return one slice of a bag's scan, in Hounsfield units."""
        with self._picture(k, ScanView) as view:
            return script(f"slice/{k}_{i}", slice_values(view, i))

    def thumbnail(self, k: int) -> bytes:
        """Return a small picture of a bag as JPEG: its slide, a slice, or its map."""
        p = self.bag(k)
        try:
            if self.sources is None:
                return picture_of_values(p, place(p), self.limits.mean)
            if p.coords is not None and p.coords.shape[-1] == 2:
                return self._slide_thumbnail(k)
            with self._picture(k, ScanView) as view:
                return slice_picture(view.scan)
        except READ_ERRORS:
            return picture_of_values(p, place(p), self.limits.mean)

    def tile(self, k: int, level: int, column: int, row: int) -> bytes:
        """Return a tile of a bag's slide as JPEG."""
        with self._picture(k, SlideView) as view:
            return tile_image(view.slide, view.pyramid, (level, column, row))

    def patch(self, k: int, row: int) -> bytes:
        """Return the picture of a patch as JPEG."""
        with self._picture(k, SlideView) as view:
            if not 0 <= row < len(view.patches.corners):
                raise InputError(f"bag {self.rows[k].name!r} has no patch {row}")
            return patch_image(view.slide, view.patches.corners[row], view.patches.side)

    def files(self, k: int) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield the addresses of everything that the page may ask of a bag, and their numbers."""
        p = self.bag(k)
        yield MAP, {"k": k}
        gallery_rows: set[int] = set()
        for c in range(columns_of(p)):
            yield VALUES, {"k": k, "c": c}
            for gallery in galleries(quantities(p, column=c)):
                gallery_rows.update(gallery["rows"])
        yield THUMB, {"k": k}
        try:
            with self._pictures.use(k) as view:
                picture = view
        except READ_ERRORS:  # a slide or scan that cannot be read has no pictures
            return
        if isinstance(picture, ScanView):
            for i in range(len(picture.scan.volume)):
                yield SLICE, {"k": k, "i": i}
            return
        for row in sorted(gallery_rows):
            yield PATCH, {"k": k, "row": row}
        pyramid = picture.pyramid
        for level in range(pyramid.levels):
            tiles: Iterable[tuple[int, ...]] = np.ndindex(*pyramid.tiles(level))
            if level > picture.whole:
                patch_tiles = pyramid.of_patches(level, picture.patches)
                tiles = [tile for tile in tiles if tile in patch_tiles]
            for column, row in tiles:
                yield TILES, {"k": k, "level": level, "column": column, "row": row}

    def _checked(self, k: int) -> int:
        if not 0 <= k < len(self.rows):
            raise InputError(f"there is no bag {k}: the list has {len(self.rows)}")
        return k

    def _read(self, k: int) -> Prediction:
        row = self.rows[k]
        if row.failed:
            raise InputError(row.failed)
        return self.table.instances(row.name)

    def _other(self, p: Prediction) -> tuple[Prediction | None, str]:
        """Return the other model's prediction of a bag, or why no difference can be shown."""
        if self.other is None:
            return None, ""
        if p.name not in self.other.bags:
            return None, "The other predictions do not have this bag."
        try:
            other = self.other.instances(p.name)
            names = title_of(self.table.folder), title_of(self.other.folder)
            check_comparable(p, other, names=names)
        except (ProbSAError, OSError) as error:
            return None, without_folders(str(error))
        return other, ""

    @contextmanager
    def _picture(self, k: int, kind: type[Picture]) -> Iterator[Picture]:
        """Yield the open slide or scan of a bag; it has to be of this kind."""
        with self._pictures.use(self._checked(k)) as view:
            if not isinstance(view, kind):
                raise InputError(f"bag {self.rows[k].name!r} has no such picture")
            yield view

    def _open(self, k: int) -> SlideView | ScanView:
        p = self.bag(k)
        if self.sources is None:
            raise InputError("no slides or scans were given: add --slides FOLDER")
        source = self.sources.open(p)
        if isinstance(source, Scan):
            return scan_view(p, source, most_pixels=self.most_pixels)
        try:
            patches = checked_squares(p, source, sources=self.sources)
        except BaseException:
            source.close()
            raise
        coarse = Pyramid.of(source, max_mpp=self.max_mpp)
        fine = coarse
        if self.patch_mpp and self.max_mpp is not None and source.mpp is not None:
            cut_patches = self.sources.patches(p)
            if cut_patches is None:
                mpp = source.mpp * patches.side / PIXELS
            else:
                mpp = cut_patches.mpp
            fine = Pyramid.of(source, max_mpp=min(self.max_mpp, mpp or self.max_mpp))
        # each finer level halves the scale, which is a power of 2
        finer_levels = (coarse.scale // fine.scale).bit_length() - 1
        whole = fine.levels - 1 - finer_levels
        return SlideView(slide=source, pyramid=fine, patches=patches, whole=whole)

    def _slide_page(self, k: int, p: Prediction) -> dict[str, Any]:
        """Return what the page reads of a bag of patches."""
        page: dict[str, Any] = {"kind": "slide", "slide": None, "mpp": None, "tissue": []}
        patches = None
        try:
            with self._picture(k, SlideView) as view:
                patches = view.patches
                page |= {
                    "slide": view.pyramid.to_page() | {"whole": view.whole},
                    "mpp": view.slide.mpp,
                    "mpp_given": view.slide.mpp_is_given,
                    "size": view.slide.size,
                    "tissue": self._tissue(p, view.slide),
                    "note": _left_out(view),
                }
        except READ_ERRORS as error:
            page |= self._without_picture(error)
        if patches is None:
            patches = place(p)
        cells = raster(patches, finest=FINEST, longest=LONGEST)
        height, width = cells.owners.shape
        page |= {
            "corners": packed(patches.corners, "f4"),
            "side": patches.side,
            "pitch": patches.stride,
            "raster": {
                "x0": cells.left,
                "y0": cells.top,
                "cell": cells.cell,
                "width": width,
                "height": height,
                "index": packed(cells.owners, "i4"),
                "note": drawing_note(patches, cells.cell),
            },
        }
        return page

    def _chain_page(self, k: int, p: Prediction) -> dict[str, Any]:
        """Return what the page reads of a bag of slices, or of instances without coordinates."""
        page: dict[str, Any] = {"kind": "chain", "scan": None, "positions": None}
        if p.coords is not None:
            page["positions"] = packed(p.coords[:, 0], "f4")
            try:
                with self._picture(k, ScanView) as view:
                    page["scan"] = scan_page(view)
            except READ_ERRORS as error:
                page |= self._without_picture(error)
        return page

    def _without_picture(self, error: Exception) -> dict[str, str]:
        """Return what the page says of a bag without its slide or scan."""
        if self.sources is None:
            return {"note": "No slides or scans were given (--slides): there are no pictures."}
        return {"reason": without_folders(str(error))}

    def _tissue(self, p: Prediction, slide: Slide) -> list[list[int]]:
        """Return the rings of the tissue that `probsa patch` found, as x, y, x, y, …"""
        assert self.sources is not None
        file = WorkFolder(self.sources.folder).contours(p.name)
        if not file.is_file():
            return []
        try:
            tissue = read_geojson(file, slide.size)
        except InputError:
            return []
        rings = []
        for polygon in tissue.polygons:
            rings.append(polygon.outer)
            rings.extend(polygon.holes)
        return [ring.ravel().tolist() for ring in rings]

    def _slide_thumbnail(self, k: int) -> bytes:
        """Return the thumbnail of the work folder, or a new one."""
        assert self.sources is not None
        file = WorkFolder(self.sources.folder).thumbnail(self.rows[k].name)
        if file.is_file():
            with Image.open(file) as image:
                image.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))
                image.thumbnail((THUMBNAIL, THUMBNAIL))
                return jpeg(image)
        with self._picture(k, SlideView) as view:
            return jpeg(np.asarray(thumbnail(view.slide, THUMBNAIL)))


def _left_out(view: SlideView) -> str:
    """Return what the page says about levels of the slide that were left out."""
    mpp = view.slide.mpp
    if mpp is None:
        return ""
    fine = view.pyramid.scale
    # the finest level with all its tiles
    coarse = fine * 2 ** (view.pyramid.levels - 1 - view.whole)
    if coarse == 1:
        return ""
    if coarse == fine:
        return f"The slide is shown at {mpp * fine:.2g} µm per pixel; finer levels were left out."
    return f"Beside the patches, the slide is shown at {mpp * coarse:.2g} µm per pixel."


def drawing_note(patches: Layout, cell: float) -> str:
    """Return what the page says about the drawing; empty for a plain lattice."""
    _, side = patches.cells
    notes = []
    if patches.side > patches.stride + 1:  # corners and sides are rounded to whole pixels
        notes.append("The patches overlap: each is drawn as the middle of its square.")
    if cell != patches.stride:
        notes.append(
            f"The patches are not on one lattice: they are drawn to {100 * cell / side:.0f} % of "
            "their side, later ones over earlier ones."
        )
    return " ".join(notes)


def _close(view: SlideView | ScanView) -> None:
    if isinstance(view, SlideView):
        view.slide.close()


def _about_run(path: Path) -> tuple[tuple[str, str], ...]:
    """Return facts about the run, if the folder is one."""
    run = RunFolder(path)
    if not run.config_file.is_file():
        return ()
    pairs = (("Run", path.resolve().name), ("Weights (SHA-256)", _digest(run)))
    return tuple((title, text) for title, text in pairs if text)


def _digest(run: RunFolder) -> str:
    """Return the first digits of a hash of the run's weights; empty if they are not there."""
    digest = hashlib.sha256()
    for member in run.members():
        if not member.best.is_file():
            return ""
        with member.best.open("rb") as f:
            digest.update(hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()[:16]


class Answer(NamedTuple):
    """What is at an address below `data/`."""

    make: Callable[..., bytes]
    """Returns the content from a `ViewData` and the numbers of the address."""
    media_type: str


ADDRESSES: dict[str, Answer] = {
    SLIDES: Answer(ViewData.slides_script, SCRIPT),
    LIMITS: Answer(ViewData.limits_script, SCRIPT),
    MAP: Answer(ViewData.map_script, SCRIPT),
    VALUES: Answer(ViewData.values_script, SCRIPT),
    SLICE: Answer(ViewData.slice_script, SCRIPT),
    THUMB: Answer(ViewData.thumbnail, JPEG),
    PATCH: Answer(ViewData.patch, JPEG),
    TILES: Answer(ViewData.tile, JPEG),
}
"""What answers for each address below `data/`, on the server and in an export."""
