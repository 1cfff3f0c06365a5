"""Stage 10: write the page as a folder that opens in a browser without a server."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..core import files_matching, read_json, replacing_folder, write_json
from ..errors import InputError, SlideError
from ..maps import READ_ERRORS
from .app import static_folder
from .output import MARK, check_export
from .pages import ADDRESSES, LIMITS, OF_A_SLIDE, SLIDES, ViewData
from .scripts import without_folders

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
    out: Path | str,
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
    check_export(out, overwrite=overwrite)
    with replacing_folder(out, earlier=_earlier_files) as new:
        failures = _write(data, new, progress=progress)
        size = sum(f.stat().st_size for f in new.rglob("*") if f.is_file())
    return Exported(folder=out, bags=len(data.rows), bytes=size, failures=tuple(failures))


def _earlier_files(folder: Path) -> list[Path]:
    """List the files that a version of probsa without ledgers wrote, if it did."""
    try:
        mark = read_json(folder / MARK)
    except InputError:  # there is none, or it is another file
        return []
    if not isinstance(mark, dict) or mark.get("probsa") != "view":
        return []
    return files_matching(folder, (MARK, "index.html", "static/**/*", "data/**/*"))


def _write(
    data: ViewData, folder: Path, *, progress: Callable[[int, int], None] | None
) -> list[tuple[str, str]]:
    shutil.copytree(static_folder(), folder / "static", ignore=shutil.ignore_patterns("index.html"))
    shutil.copy(static_folder() / "index.html", folder / "index.html")
    write_json(folder / MARK, {"probsa": "view", "bags": len(data.rows)})

    def write(address: str, content: bytes) -> None:
        path = folder / "data" / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    failures = []
    for k, row in enumerate(data.rows):
        try:
            # the page says which bags could not be predicted: they have no files
            if row.name in data.table.bags:
                for address, numbers in data.files(k):
                    try:
                        content = ADDRESSES[address].make(data, **numbers)
                        write(address.format(**numbers), content)
                    except SlideError:  # the page counts missing parts of a damaged slide
                        if address not in OF_A_SLIDE:
                            raise
        except READ_ERRORS as error:
            failures.append((row.name, str(error)))
        if progress is not None:
            progress(k + 1, len(data.rows))
    if len(failures) < len(data.rows):
        write(LIMITS, data.limits_script())
    failed = {name: without_folders(reason) for name, reason in failures}
    write(SLIDES, data.slides_script(export=True, failed=failed))
    return failures
