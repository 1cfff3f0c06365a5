"""probsa info."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

from ...errors import ProbSAError, SlideError
from ..command import Answer, Flag, message_of, write
from ..flags import SlideMpp

if TYPE_CHECKING:
    from ...slides import ScanSource

Resolutions = float | Mapping[str, float] | None
LARGE = 100_000_000
"""Number of pixels above which a slide with a single level is worth a note."""


class Description(NamedTuple):
    """What is said of one slide or scan."""

    facts: dict[str, Any]
    """For JSON."""
    title: str
    lines: list[tuple[str, str]]
    """Names and values for people."""


Describe = Callable[[], Description]
"""Reads a slide or scan; raises if it cannot be read."""


def run(
    files: Annotated[list[Path], Flag("FILE")],
    *,
    slide_mpp: SlideMpp | None = None,
    json: bool = False,
) -> Answer:
    """Describe slides and scans: their format, size and resolution, and what is missing.

    Args:
        files: Slides, NIfTI or DICOM files, or folders of them.
        slide_mpp: Micrometres per level-0 pixel, which replace those in the files; or a table with
            the columns slide and mpp.
    """
    from ...slides import read_resolutions

    mpp = None if slide_mpp is None else read_resolutions(slide_mpp)
    facts: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    for file in files:
        for path, describe in _entries(file, mpp):
            try:
                description = describe()
            except (ProbSAError, OSError) as e:
                failed.append((str(path), message_of(e)))
                continue
            facts.append(description.facts)
            if not json:
                text = [f"  {key:<18} {value}" for key, value in description.lines]
                write("\n".join([description.title, *text]))
    if len(failed) == 1 and not facts:
        _, only_reason = failed[0]
        raise SlideError(only_reason)
    failures = [{"path": path, "reason": reason} for path, reason in failed]
    return Answer({"files": facts, "failed": failures}, "", failed)


def _entries(path: Path, mpp: Resolutions) -> list[tuple[Path, Describe]]:
    """Return the path of each slide and scan below a path, with what describes it."""
    from ...slides import is_scan, list_scans, slide_files

    if path.is_file() and not is_scan(path):
        return [(path, partial(_slide, path, mpp))]
    try:
        listing = list_scans(path)
        slides = slide_files(path) if path.is_dir() else []
    except (ProbSAError, OSError) as e:
        return [(path, partial(_fail, e))]
    entries: list[tuple[Path, Describe]] = []
    for source in listing.sources:
        entries.append((source.path, partial(_scan, source)))
    for failure in listing.failures:
        entries.append((failure.files[0], partial(_fail, SlideError(failure.reason))))
    for slide in slides:
        entries.append((slide, partial(_slide, slide, mpp)))
    if not entries:
        kinds = ", ".join(f"{n} x {kind}" for kind, n in listing.skipped.items()) or "it is empty"
        error = SlideError(f"{path} holds neither slides nor scans: {kinds}")
        entries.append((path, partial(_fail, error)))
    return entries


def _fail(error: Exception) -> NoReturn:
    """Raise the error that was met when the files were listed."""
    raise error


def _slide(path: Path, mpp: Resolutions) -> Description:
    from ...slides import open_slide, resolution_advice, resolution_of, slide_name

    with open_slide(path, mpp=resolution_of(mpp, slide_name(path), path.name)) as slide:
        properties = slide.properties
        width, height = slide.size
        advice = resolution_advice(slide)
    missing = [f"µm per pixel: {advice}"] if advice else []
    notes = list(slide.notes)
    # if no resolution is used, the advice names those that were rejected
    if slide.mpp is not None:
        notes += [f"µm per pixel: ignored: {reason}." for reason in slide.mpp_rejected]
    if len(slide.levels) == 1 and width * height > LARGE:
        notes.append(
            f"a single level of {width * height / 1e6:,.0f} million pixels, which must all be read "
            "to find the tissue. Convert it to a pyramid to save time (vips tiffsave IN OUT.tiff "
            "--tile --pyramid)"
        )
    facts = {
        "kind": "slide",
        **{key: getattr(slide, key) for key in ("path", "name", "format", "mpp", "mpp_source")},
        "reader": properties.get("reader"),
        "width": width,
        "height": height,
        "levels": [
            {"width": v.width, "height": v.height, "downsample": v.downsample} for v in slide.levels
        ],
        "objective_power": properties.get("objective power"),
        "tile_size": properties.get("tile size"),
        "associated_images": list(slide.associated_images),
        "missing": missing,
        "notes": notes,
        "properties": properties,
    }
    lines = [
        ("format", f"{slide.format}, read by {properties.get('reader')}"),
        ("size", f"{width} x {height} pixels"),
        *(
            (f"level {i}", f"{v.width} x {v.height}, downsample {v.downsample:.6g}")
            for i, v in enumerate(slide.levels)
        ),
        ("µm per pixel", slide.mpp_statement),
        ("objective power", properties.get("objective power", "not stated")),
        ("tile size", properties.get("tile size", "no tiles")),
        ("associated images", ", ".join(slide.associated_images) or "none"),
        *(("missing", text) for text in missing),
        *(("note", text) for text in notes),
    ]
    return Description(facts, str(path), lines)


def _scan(source: "ScanSource") -> Description:
    from ...slides import open_scan

    scan = open_scan(source)
    slices, rows, columns = scan.volume.shape
    first, last = float(scan.positions[0]), float(scan.positions[-1])
    facts = {
        "kind": "scan",
        **{key: getattr(scan, key) for key in ("path", "name", "format", "thickness")},
        "slices": slices,
        "rows": rows,
        "columns": columns,
        "spacing": list(scan.spacing),
        "positions": [first, last],
        "notes": list(scan.notes),
        "properties": scan.properties,
    }
    thickness = f"{scan.thickness:g} mm" if scan.thickness is not None else "not stated"
    lines = [
        ("format", scan.format),
        ("slices", f"{slices} of {columns} x {rows} pixels"),
        ("pixel spacing", " x ".join(f"{v:.4g}" for v in scan.spacing) + " mm (rows x columns)"),
        ("slice thickness", thickness),
        ("positions", f"{first:.4g} to {last:.4g} mm"),
        *(("note", text) for text in scan.notes),
    ]
    return Description(facts, f"{scan.path} ({scan.name})", lines)
