"""probsa info: describe slides and scans, and what their files do not state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from ...errors import ProbSAError, SlideError
from ._shared import (
    add_json_flag,
    add_limit_flag,
    command_parser,
    exit_status,
    parse_arguments,
    stated_limit,
    write_json,
)

if TYPE_CHECKING:
    from ...slides import Scan, Slide

Resolutions = float | Mapping[str, float]

DESCRIPTION = """\
Describe slides and scans: their format, size and resolution, and what is missing."""

LARGE = 100_000_000
"""Number of pixels above which a slide with a single level is worth a note."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Description:
    """The description of one slide or scan: `facts` for JSON, `lines` for a reader."""

    title: str
    facts: dict[str, Any]
    lines: list[tuple[str, str]]


def parser() -> ArgumentParser:
    """Return the parser of `probsa info`."""
    parser = command_parser("info", DESCRIPTION)
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE",
        help="Slides, NIfTI or DICOM files, or folders of them.",
    )  # fmt: skip
    parser.add_argument(
        "--slide-mpp", metavar="MPP|FILE",
        help="Micrometres per level-0 pixel, which replace those in the files; or a table with the "
        "columns slide and mpp.",
    )  # fmt: skip
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa info`."""
    args = parse_arguments(parser(), arguments)
    from ...slides import read_resolutions
    from ..terminal import OUT

    descriptions: list[_Description] = []
    failed: list[tuple[str, str]] = []
    mpp = None if args.slide_mpp is None else read_resolutions(args.slide_mpp)
    with stated_limit(args):
        for path in args.files:
            for entry in _entries(path, mpp):
                if isinstance(entry, _Description):
                    descriptions.append(entry)
                    if not args.json:
                        OUT.print(_as_text(entry), markup=False, soft_wrap=True)
                else:
                    failed.append(entry)
    if len(failed) == 1 and not descriptions:
        raise SlideError(failed[0][1])
    if args.json:
        failures = [{"path": path, "reason": reason} for path, reason in failed]
        write_json({"files": [d.facts for d in descriptions], "failed": failures})
    return exit_status(failed, as_json=args.json)


def _entries(path: Path, mpp: Resolutions | None) -> "Iterator[_Description | tuple[str, str]]":
    """Yield the description of each slide and scan at a path, or (path, reason) if unreadable."""
    from ...slides import is_scan, list_scans, open_scan, slide_files

    try:
        if path.is_file() and not is_scan(path):
            yield _of_slide(path, mpp)
            return
        listing = list_scans(path)
        slides = slide_files(path) if path.is_dir() else []
    except (ProbSAError, OSError) as e:
        yield str(path), _message(e)
        return
    for source in listing.sources:
        try:
            yield _of_scan(open_scan(source))
        except (ProbSAError, OSError) as e:
            yield str(source.path), _message(e)
    for failure in listing.failures:
        yield str(failure.files[0]), failure.reason
    for slide in slides:
        try:
            yield _of_slide(slide, mpp)
        except (ProbSAError, OSError) as e:
            yield str(slide), _message(e)
    if not (listing.sources or listing.failures or slides):
        skipped = ", ".join(f"{n} x {kind}" for kind, n in listing.skipped.items())
        yield str(path), f"{path} holds neither slides nor scans: {skipped or 'it is empty'}"


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ProbSAError) and error.filename:
        return f"cannot read {error.filename}: {error.strerror}"
    return str(error)


def _of_slide(path: Path, mpp: Resolutions | None) -> _Description:
    from ...slides import open_slide, resolution_of, slide_name

    stated = resolution_of(mpp, slide_name(path), path.name)
    with open_slide(path, mpp=stated) as slide:
        return _Description(title=str(path), facts=_slide_facts(slide), lines=_slide_lines(slide))


def _slide_facts(slide: "Slide") -> dict[str, Any]:
    properties = slide.properties
    images = properties.get("associated images")
    return {
        "kind": "slide",
        "path": slide.path,
        "name": slide.name,
        "format": slide.format,
        "reader": properties.get("reader"),
        "width": slide.size[0],
        "height": slide.size[1],
        "levels": [
            {"width": v.width, "height": v.height, "downsample": v.downsample} for v in slide.levels
        ],
        "mpp": slide.mpp,
        "mpp_source": slide.mpp_source,
        "objective_power": properties.get("objective power"),
        "tile_size": properties.get("tile size"),
        "associated_images": images.split(", ") if images else [],
        "missing": _missing(slide),
        "notes": _notes(slide),
        "properties": properties,
    }


def _slide_lines(slide: "Slide") -> list[tuple[str, str]]:
    properties = slide.properties
    known = f"{slide.mpp:.4g} ({slide.mpp_source})" if slide.mpp is not None else "unknown"
    lines = [("format", f"{slide.format}, read by {properties.get('reader')}")]
    lines += [("size", f"{slide.size[0]} x {slide.size[1]} pixels")]
    lines += [
        (f"level {i}", f"{v.width} x {v.height}, downsample {v.downsample:.6g}")
        for i, v in enumerate(slide.levels)
    ]
    lines += [("µm per pixel", known)]
    lines += [("objective power", properties.get("objective power", "not stated"))]
    lines += [("tile size", properties.get("tile size", "no tiles"))]
    lines += [("associated images", properties.get("associated images", "none"))]
    lines += [("missing", text) for text in _missing(slide)]
    return lines + [("note", text) for text in _notes(slide)]


def _missing(slide: "Slide") -> list[str]:
    from ...slides import resolution_advice

    advice = resolution_advice(slide)
    return [f"µm per pixel: {advice}"] if advice else []


def _notes(slide: "Slide") -> list[str]:
    width, height = slide.size
    if len(slide.levels) == 1 and width * height > LARGE:
        return [
            f"a single level of {width * height / 1e6:,.0f} million pixels, which must all be read "
            "to find the tissue. Convert it to a pyramid to save time (vips tiffsave IN OUT.tiff "
            "--tile --pyramid)"
        ]
    return []


def _of_scan(scan: "Scan") -> _Description:
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
    return _Description(title=f"{scan.path} ({scan.name})", facts=facts, lines=lines)


def _as_text(description: _Description) -> str:
    lines = [f"  {key:<18} {value}" for key, value in description.lines]
    return "\n".join([description.title, *lines])
