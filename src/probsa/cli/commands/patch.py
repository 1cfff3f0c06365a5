"""probsa patch: cut slides into patches, and list the slices of scans."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from jsonargparse import ArgumentParser

from ...errors import InputError, OutputExists
from ._cohort import add_work_flags, report_estimate, run_options
from ._shared import command_parser, parse_arguments, write_json

DESCRIPTION = """\
Find the tissue of slides and cut it into patches, and list the slices of CT series.

An interrupted run continues where it stopped: existing results are kept."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa patch`."""
    parser = command_parser("patch", DESCRIPTION)
    add = parser.add_argument
    add("source", type=Path, help="Folder of slides, DICOM studies or NIfTI files, or one of them.")
    add("--out", type=Path, required=True, metavar="WORK", help="Work folder to write.")
    add = parser.add_argument_group("patches (defaults are those without a preset)").add_argument
    add(
        "--preset", metavar="NAME",
        help="Settings by name: paper, paper-text, clam, clam-biopsy, clam-resection, …",
    )  # fmt: skip
    add("--patch-size", type=int, metavar="PIXELS", help="Side of a patch. Default: 512.")
    add("--mpp", type=float, metavar="MPP", help="Micrometres per pixel of patches. Default: 0.5.")
    add("--level", type=int, metavar="N", help="Level of the slides to cut, instead of --mpp.")
    add(
        "--overlap", type=int, metavar="PIXELS",
        help="Overlap of neighbouring patches. Default: 0.",
    )  # fmt: skip
    add(
        "--slide-mpp", metavar="MPP|CSV",
        help="Micrometres per level-0 pixel: one number, for slides that do not state it, or a CSV "
        "table with the columns slide,mpp, which replaces what these slides state.",
    )  # fmt: skip
    add(
        "--mpp-table", type=Path, metavar="CSV",
        help="With --dry-run: write the slides of unknown resolution to this table, whose column "
        "mpp you fill in for --slide-mpp.",
    )  # fmt: skip
    add(
        "--grid", choices=("global", "contour"),
        help="One lattice of patches per slide (global), or one per piece of tissue, as CLAM does. "
        "Default: global.",
    )  # fmt: skip
    add(
        "--min-tissue", type=float, metavar="FRACTION",
        help="Minimum fraction of tissue in a patch. Default: 0.25.",
    )  # fmt: skip
    add = parser.add_argument_group("tissue").add_argument
    add("--otsu", action="store_true", help="Choose the threshold by Otsu's method per slide.")
    add(
        "--tissue-threshold", type=int, metavar="N",
        help="Saturation (0 to 255) above which a pixel is tissue. Default: 8.",
    )  # fmt: skip
    add(
        "--min-tissue-area", type=float, metavar="AREA",
        help="Minimum area of a piece of tissue in µm² (in the clam presets, CLAM's a_t).",
    )  # fmt: skip
    add(
        "--min-hole-area", type=float, metavar="AREA",
        help="Minimum area of a hole in the tissue in µm² (in the clam presets, CLAM's a_h).",
    )  # fmt: skip
    add(
        "--max-holes", type=int, metavar="N",
        help="Maximum number of holes per piece of tissue; the largest are kept.",
    )  # fmt: skip
    add(
        "--contours", type=Path, metavar="DIR",
        help="Folder with one GeoJSON file per slide that outlines the tissue. Replaces tissue "
        "detection.",
    )  # fmt: skip
    add_work_flags(
        parser,
        workers="Number of processes, actors or jobs. Default: by the number of cores and slides, "
        "at most 8.",
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa patch`."""
    args = parse_arguments(parser(), arguments)
    from ...cohorts import (
        MAX_LINES,
        SlideGeometry,
        estimate_patches,
        patch_cohort,
        print_geometries,
        write_mpp_table,
    )
    from ...patches import settings
    from ...slides import read_resolutions
    from ..terminal import ERR, OUT, counting_outcomes

    chosen = settings(
        args.preset,
        size=args.patch_size,
        mpp=args.mpp,
        level=args.level,
        overlap=args.overlap,
        grid=args.grid,
        min_tissue=args.min_tissue,
        method="otsu" if args.otsu else None,
        threshold=args.tissue_threshold,
        min_area=args.min_tissue_area,
        min_hole=args.min_hole_area,
        max_holes=args.max_holes,
    )
    mpp = None if args.slide_mpp is None else read_resolutions(args.slide_mpp)
    how = run_options(args, workers=0, isolated=True)
    if args.mpp_table is not None and not args.dry_run:
        raise InputError("--mpp-table is written by --dry-run: add --dry-run")
    if args.mpp_table is not None and args.mpp_table.exists():  # it may be filled in
        table = args.mpp_table
        raise OutputExists(f"{table} exists: give another name, or --slide-mpp {table} to use it")
    if args.dry_run:
        estimate = estimate_patches(
            args.source,
            settings=chosen,
            contours=args.contours,
            mpp=mpp,
            workers=max(1, how.workers),
            shard=how.shard,
        )
        if args.mpp_table is not None and estimate.without_resolution:
            write_mpp_table(args.mpp_table, estimate.without_resolution)
        return report_estimate(estimate, as_json=args.json)
    geometries: list[SlideGeometry] = []
    stated: set[str] = set()

    def state(found: SlideGeometry) -> None:
        """Print each geometry when the first slide has it: a wrong unit is seen at once."""
        geometries.append(found)
        if found.sentence not in stated and len(stated) < MAX_LINES:
            print_geometries([found], ERR)
        stated.add(found.sentence)

    with counting_outcomes("patching") as count:
        reports = patch_cohort(
            args.source,
            args.out,
            settings=chosen,
            contours=args.contours,
            mpp=mpp,
            run=how,
            on_outcome=count,
            on_geometry=state,
        )
    if args.json:
        sets, geometry = [r.to_dict() for r in reports], [asdict(g) for g in geometries]
        write_json({"work": str(args.out), "sets": sets, "geometry": geometry})
    else:
        print_geometries(geometries, OUT)
        for report in reports:
            report.render(OUT)
    return 1 if any(r.failures for r in reports) else 0
