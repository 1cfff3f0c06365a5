"""Stage 10: write the page as a folder that opens in a browser without a server."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..core import write_json
from ..errors import OutputExists
from ..jobs import replacing_folder
from ..maps import READ_ERRORS, columns_of
from .app import static_folder
from .pages import ViewData
from .scripts import without_folders

MARK = "probsa-view.json"
"""File that marks a folder as an export, which `overwrite` may replace."""
MAX_MPP = 2.0
"""Default of the finest resolution of exported slides, in µm per pixel."""
SLICE_PIXELS = 256
"""Default of the longest side of exported slices, in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export wrote."""

    folder: Path
    bags: int
    bytes: int
    failures: tuple[tuple[str, str], ...]
    """(bag, reason) pairs of bags that are listed without a map."""


def export_page(
    data: ViewData,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the page and all its data; the folder appears once it is complete, or not at all.

    Args:
        data: The data of the page.
        out: A new folder, or with `overwrite` one that this function wrote.
        overwrite: Whether to replace an earlier export.
        progress: Called with (bags done, bags) after each bag.

    Raises:
        OutputExists: the folder exists and may not be replaced.
    """
    out = Path(out)
    _check(out, overwrite=overwrite)
    with replacing_folder(out) as new:
        failures = _write(data, new, progress=progress)
        size = sum(f.stat().st_size for f in new.rglob("*") if f.is_file())
    return Exported(folder=out, bags=len(data.rows), bytes=size, failures=tuple(failures))


def _check(out: Path, *, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MARK).is_file():
        raise OutputExists(f"{out} exists and is not an export of probsa view: give a new folder")
    if not overwrite:
        raise OutputExists(f"{out} exists: give a new folder or --overwrite")


def _write(
    data: ViewData, folder: Path, *, progress: Callable[[int, int], None] | None
) -> list[tuple[str, str]]:
    shutil.copytree(static_folder(), folder / "static", ignore=shutil.ignore_patterns("index.html"))
    shutil.copy(static_folder() / "index.html", folder / "index.html")
    write_json(folder / MARK, {"probsa": "view", "bags": len(data.rows)})
    files = _Files(folder / "data")
    failures = []
    for k, row in enumerate(data.rows):
        try:
            if row.name in data.table.bags:  # others could not be predicted, as the page says
                _write_bag(data, k, files)
        except READ_ERRORS as error:
            failures.append((row.name, str(error)))
        if progress is not None:
            progress(k + 1, len(data.rows))
    if len(failures) < len(data.rows):
        files.write("limits.js", data.limits_script())
    failed = {name: without_folders(reason) for name, reason in failures}
    files.write("slides.js", data.slides_script(export=True, failed=failed))
    return failures


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path

    def write(self, address: str, content: bytes) -> None:
        path = self.folder / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _write_bag(data: ViewData, k: int, files: _Files) -> None:
    p = data.bag(k)
    files.write(f"map/{k}.js", data.map_script(k))
    columns = columns_of(p)
    for c in range(columns):
        files.write(f"values/{k}_{c}.js", data.values_script(k, c))
    files.write(f"thumb/{k}.jpg", data.thumbnail(k))
    for i in range(data.slice_count(k) if p.coords is not None and p.coords.shape[-1] == 1 else 0):
        files.write(f"slice/{k}_{i}.js", data.slice_script(k, i))
    pyramid = data.pyramid(k) if p.coords is not None and p.coords.shape[-1] == 2 else None
    if pyramid is None:
        return
    shown = {r for c in range(columns) for r in data.pictured(k, c)}
    for row in sorted(shown):
        _try(lambda row=row: files.write(f"patch/{k}_{row}.jpg", data.patch(k, row)))
    for level in range(pyramid.levels):
        across, down = pyramid.tiles(level)
        for column in range(across):
            for row in range(down):
                address = (level, column, row)
                name = f"tiles/{k}/{level}/{column}_{row}.jpg"
                _try(lambda a=address, n=name: files.write(n, data.tile(k, a)))


def _try(write: Callable[[], None]) -> None:
    """Write a picture, unless its part of the slide is damaged: the page counts missing ones."""
    from ..errors import SlideError

    try:
        write()
    except SlideError:
        return
