"""probsa patch."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from ...errors import OutputExists
from ..command import Answer, Flag
from ..flags import Count, InputDir, Name, SlideMpp, Whole, WorkFlags, answer_with_estimate

Fraction = Annotated[float, Flag("FRACTION")]
Area = Annotated[float, Flag("AREA")]


def run(
    source: Annotated[Path, Flag(holds="any")],
    *,
    out: Annotated[Path, Flag("WORK")],
    preset: Name | None = None,
    patch_size: Annotated[int, Flag("PIXELS")] | None = None,
    mpp: Annotated[float, Flag("MPP")] | None = None,
    level: Whole | None = None,
    overlap: Annotated[int, Flag("PIXELS")] | None = None,
    slide_mpp: SlideMpp | None = None,
    mpp_table: Annotated[Path, Flag("CSV", needs="--dry-run")] | None = None,
    grid: Literal["global", "contour"] | None = None,
    min_tissue: Fraction | None = None,
    otsu: bool = False,
    tissue_threshold: Whole | None = None,
    min_tissue_area: Area | None = None,
    min_hole_area: Area | None = None,
    max_holes: Whole | None = None,
    contours: InputDir | None = None,
    workers: Count | None = None,
    how: WorkFlags,
) -> Answer:
    """Find the tissue of slides and cut it into patches, and list the slices of CT series.

    An interrupted run continues where it stopped: existing results are kept.

    Args:
        source: Folder of slides, DICOM studies or NIfTI files, or one of them.
        out: Work folder to write.

    Patches (defaults are those without a preset):
        preset: Settings by name: paper, paper-text, clam, clam-biopsy, clam-resection, …
        patch_size: Side of a patch. Default: 512.
        mpp: Micrometres per pixel of patches. Default: 0.5.
        level: Level of the slides to cut, instead of --mpp.
        overlap: Overlap of neighbouring patches. Default: 0.
        slide_mpp: Micrometres per level-0 pixel: one number, for slides that do not state it, or a
            CSV table with the columns slide,mpp, which replaces what these slides state.
        mpp_table: With --dry-run: write the slides of unknown resolution to this table, whose
            column mpp you fill in for --slide-mpp.
        grid: One lattice of patches per slide (global), or one per piece of tissue, as CLAM does.
            Default: global.
        min_tissue: Minimum fraction of tissue in a patch. Default: 0.25.

    Tissue:
        otsu: Choose the threshold by Otsu's method per slide.
        tissue_threshold: Saturation (0 to 255) above which a pixel is tissue. Default: 8.
        min_tissue_area: Minimum area of a piece of tissue in µm² (in the clam presets, CLAM's a_t).
        min_hole_area: Minimum area of a hole in the tissue in µm² (in the clam presets, CLAM's
            a_h).
        max_holes: Maximum number of holes per piece of tissue; the largest are kept.
        contours: Folder with one GeoJSON file per slide that outlines the tissue. Replaces tissue
            detection.

    Work:
        workers: Number of processes, actors or jobs. Default: by the number of cores and slides, at
            most 8.
    """
    from ...cohorts import check_source
    from ...patches import settings
    from ...slides import read_resolutions

    chosen = settings(
        preset,
        size=patch_size,
        mpp=mpp,
        level=level,
        overlap=overlap,
        grid=grid,
        min_tissue=min_tissue,
        method="otsu" if otsu else None,
        threshold=tissue_threshold,
        min_area=min_tissue_area,
        min_hole=min_hole_area,
        max_holes=max_holes,
    )
    resolutions = None if slide_mpp is None else read_resolutions(slide_mpp)
    check_source(source)
    if mpp_table is not None and mpp_table.exists():  # it may be filled in
        raise OutputExists(
            f"{mpp_table} exists: give another name, or --slide-mpp {mpp_table} to use it"
        )
    from ...cohorts import (
        MAX_LINES,
        SlideGeometry,
        estimate_patches,
        patch_cohort,
        print_geometries,
        write_mpp_table,
    )
    from ..terminal import ERR, OutcomeBar

    distributed = how.options(workers=workers or 0, isolated=True)
    if how.dry_run:
        estimate = estimate_patches(
            source,
            settings=chosen,
            contours=contours,
            mpp=resolutions,
            workers=max(1, distributed.workers),
            share=distributed.share,
        )
        if mpp_table is not None and estimate.without_resolution:
            write_mpp_table(mpp_table, estimate.without_resolution)
        return answer_with_estimate(estimate)
    geometries: list[SlideGeometry] = []
    stated: set[str] = set()

    def state(found: SlideGeometry) -> None:
        """Print each geometry when the first slide has it: a wrong unit is seen at once."""
        geometries.append(found)
        if found.sentence not in stated and len(stated) < MAX_LINES:
            print_geometries([found], ERR)
        stated.add(found.sentence)

    with OutcomeBar("patching") as bar:
        reports = patch_cohort(
            source,
            out,
            settings=chosen,
            contours=contours,
            mpp=resolutions,
            run=distributed,
            on_outcome=bar,
            on_geometry=state,
        )

    def render(console: Console) -> None:
        print_geometries(geometries, console)
        for report in reports:
            report.render(console)

    sets = [r.to_dict() for r in reports]
    geometry = [asdict(g) for g in geometries]
    failed = any(r.failures for r in reports)
    document = {"work": str(out), "sets": sets, "geometry": geometry}
    return Answer(document, render, status=int(failed))
