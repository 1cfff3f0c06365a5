"""probsa info: what was understood of slides and scans, and what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ProbSAError, SlideError
from ._shared import Parser, status, write_json

if TYPE_CHECKING:
    from ...slides import Scan, Slide

_LARGE = 100_000_000
"""Pixels of a slide of one level, above which that is worth a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What is said of one slide or scan; `facts` for JSON, `lines` for a reader."""

    title: str
    facts: dict[str, Any]
    lines: list[tuple[str, str]]


def run(arguments: list[str]) -> int:
    """probsa info."""
    parser = Parser(prog="probsa info", description="What is understood of slides and scans.")
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE",
        help="slides, NIfTI or DICOM files, or folders of them",
    )  # fmt: skip
    parser.add_argument(
        "--slide-mpp", type=float, help="µm per pixel of level 0: wins over what files say"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ..terminal import OUT

    found: list[_Found] = []
    failed: list[tuple[str, str]] = []
    for given in a.files:
        for entry in _entries(given, a.slide_mpp):
            if isinstance(entry, _Found):
                found.append(entry)
                if not a.json:
                    OUT.print(_shown(entry), markup=False, soft_wrap=True)
            else:
                failed.append(entry)
    if failed and not found and len(failed) == 1:
        raise SlideError(failed[0][1])
    if a.json:
        failures = [{"path": path, "reason": reason} for path, reason in failed]
        write_json({"files": [f.facts for f in found], "failed": failures})
    return status(failed, as_json=a.json)


def _entries(given: Path, mpp: float | None) -> "Iterator[_Found | tuple[str, str]]":
    """What a path holds; (path, reason) of what cannot be read."""
    from ...slides import is_scan, list_scans, open_scan, slide_files

    try:
        if given.is_file() and not is_scan(given):
            yield _of_slide(given, mpp)
            return
        listing = list_scans(given)
        slides = slide_files(given) if given.is_dir() else []
    except (ProbSAError, OSError) as e:
        yield str(given), _said(e)
        return
    for source in listing.sources:
        try:
            yield _of_scan(open_scan(source))
        except (ProbSAError, OSError) as e:
            yield str(source.path), _said(e)
    for failure in listing.failures:
        yield str(failure.files[0]), failure.reason
    for path in slides:
        try:
            yield _of_slide(path, mpp)
        except (ProbSAError, OSError) as e:
            yield str(path), _said(e)
    if not (listing.sources or listing.failures or slides):
        skipped = ", ".join(f"{n} x {kind}" for kind, n in listing.skipped.items())
        yield str(given), f"{given} holds neither slides nor scans: {skipped or 'it is empty'}"


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ProbSAError) and error.filename:
        return f"cannot read {error.filename}: {error.strerror}"
    return str(error)


def _of_slide(path: Path, mpp: float | None) -> _Found:
    from ...slides import open_slide

    with open_slide(path, mpp=mpp) as slide:
        return _Found(title=str(path), facts=_slide_facts(slide), lines=_slide_lines(slide))


def _slide_facts(slide: "Slide") -> dict[str, Any]:
    said = slide.properties
    images = said.get("associated images")
    return {
        "kind": "slide",
        "path": slide.path,
        "name": slide.name,
        "format": slide.format,
        "reader": said.get("reader"),
        "width": slide.size[0],
        "height": slide.size[1],
        "levels": [
            {"width": v.width, "height": v.height, "downsample": v.downsample} for v in slide.levels
        ],
        "mpp": slide.mpp,
        "mpp_source": slide.mpp_source,
        "objective_power": said.get("objective power"),
        "tile_size": said.get("tile size"),
        "associated_images": images.split(", ") if images else [],
        "missing": _missing(slide),
        "notes": _notes(slide),
        "properties": said,
    }


def _slide_lines(slide: "Slide") -> list[tuple[str, str]]:
    said = slide.properties
    known = f"{slide.mpp:.4g} ({slide.mpp_source})" if slide.mpp is not None else "unknown"
    lines = [("format", f"{slide.format}, read by {said.get('reader')}")]
    lines += [("size", f"{slide.size[0]} x {slide.size[1]} pixels")]
    lines += [
        (f"level {i}", f"{v.width} x {v.height}, downsample {v.downsample:.6g}")
        for i, v in enumerate(slide.levels)
    ]
    lines += [("µm per pixel", known)]
    lines += [("objective power", said.get("objective power", "not stated"))]
    lines += [("tile size", said.get("tile size", "no tiles"))]
    lines += [("associated images", said.get("associated images", "none"))]
    lines += [("missing", text) for text in _missing(slide)]
    return lines + [("note", text) for text in _notes(slide)]


def _missing(slide: "Slide") -> list[str]:
    from ...slides import resolution_advice

    advice = resolution_advice(slide)
    return [f"µm per pixel: {advice}"] if advice else []


def _notes(slide: "Slide") -> list[str]:
    width, height = slide.size
    if len(slide.levels) == 1 and width * height > _LARGE:
        return [
            f"one level of {width * height / 1e6:,.0f} million pixels: all of them are read to "
            "find the tissue; a pyramid is faster (vips tiffsave IN OUT.tiff --tile --pyramid)"
        ]
    return []


def _of_scan(scan: "Scan") -> _Found:
    slices, rows, columns = scan.volume.shape
    first, last = float(scan.positions[0]), float(scan.positions[-1])
    facts = {
        "kind": "scan",
        "path": scan.path,
        "name": scan.name,
        "format": scan.format,
        "slices": slices,
        "rows": rows,
        "columns": columns,
        "spacing": list(scan.spacing),
        "thickness": scan.thickness,
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
    return _Found(title=f"{scan.path} ({scan.name})", facts=facts, lines=lines)


def _shown(found: _Found) -> str:
    return "\n".join([found.title, *(f"  {key:<18} {value}" for key, value in found.lines)])
