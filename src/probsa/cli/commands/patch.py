"""probsa patch: slides or studies to a work folder of patches or slices."""

from pathlib import Path

from ._cohort import add_run_flags, shard_of, workers_of
from ._shared import Parser, write_json


def _parser() -> Parser:
    p = Parser(
        prog="probsa patch",
        description="Finds the tissue of slides and cuts it into patches; lists the slices of CT "
        "series. Goes on where it stopped: what is there already is kept.",
    )
    p.add_argument("source", type=Path, help="folder of slides, DICOM studies or NIfTI; or one")
    p.add_argument("--out", type=Path, required=True, help="the work folder")
    g = p.add_argument_group("patches (in brackets: without a preset)")
    g.add_argument("--preset", help="paper, paper-text, clam, clam-biopsy, clam-resection, …")
    g.add_argument("--patch-size", type=int, help="pixels (512)")
    g.add_argument("--mpp", type=float, help="target µm per pixel (0.5)")
    g.add_argument("--level", type=int, help="instead of --mpp: pixels of that level of the slide")
    g.add_argument("--overlap", type=int, help="pixels that neighbours share (0)")
    g.add_argument("--slide-mpp", help="µm per pixel of slides that do not say; or a CSV slide,mpp")
    g.add_argument("--grid", choices=("global", "contour"), help="one lattice a slide, or CLAM's")
    g.add_argument("--min-tissue", type=float, help="share of a patch that is tissue (0.25)")
    t = p.add_argument_group("tissue")
    t.add_argument("--otsu", action="store_true", help="threshold from each slide's histogram")
    t.add_argument("--tissue-threshold", type=int, help="saturation, of 255, above which it is (8)")
    t.add_argument("--min-tissue-area", type=float, help="of a piece, in µm² (clam-*: its a_t)")
    t.add_argument("--min-hole-area", type=float, help="of a hole, in µm² (clam-*: its a_h)")
    t.add_argument("--max-holes", type=int, help="of each piece, the largest")
    t.add_argument("--contours", type=Path, help="instead: folder of GeoJSON files, one a slide")
    add_run_flags(p, workers="processes (by cores and slides, at most 8)")
    return p


def run(arguments: list[str]) -> int:
    """probsa patch."""
    a = _parser().parse_args(arguments)
    from ...cohorts import RunOptions, estimate_patches, patch_cohort, read_resolutions
    from ...patches import settings
    from ..terminal import OUT, counting_outcomes

    chosen = settings(
        a.preset,
        size=a.patch_size,
        mpp=a.mpp,
        level=a.level,
        overlap=a.overlap,
        grid=a.grid,
        min_tissue=a.min_tissue,
        method="otsu" if a.otsu else None,
        threshold=a.tissue_threshold,
        min_area=a.min_tissue_area,
        min_hole=a.min_hole_area,
        max_holes=a.max_holes,
    )
    mpp = None if a.slide_mpp is None else read_resolutions(a.slide_mpp)
    workers = workers_of(a.workers, default=0)
    if a.dry_run:
        found = estimate_patches(
            a.source,
            settings=chosen,
            contours=a.contours,
            mpp=mpp,
            workers=max(1, workers),
            shard=shard_of(a.shard),
        )
        if a.json:
            write_json(found.to_dict())
        else:
            found.render(OUT)
        return 1 if found.tried and len(found.failed) == found.tried else 0
    with counting_outcomes("patching") as count:
        reports = patch_cohort(
            a.source,
            a.out,
            settings=chosen,
            contours=a.contours,
            mpp=mpp,
            run=RunOptions(
                engine=a.engine,
                workers=workers,
                shard=shard_of(a.shard),
                overwrite=a.overwrite,
            ),
            on_outcome=count,
        )
    if a.json:
        write_json({"work": str(a.out), "sets": [r.to_dict() for r in reports]})
    else:
        for report in reports:
            report.render(OUT)
    return 1 if any(r.failures for r in reports) else 0
