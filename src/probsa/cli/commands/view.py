"""probsa view."""

from pathlib import Path
from typing import Annotated

from ...core import PositiveFloat
from ...errors import InputError
from ..command import Answer, Flag, write, write_json
from ..flags import Dir, MppWithSlides, Whole

EXPORT = "--export DIR"


def run(
    predictions: Annotated[Path, Flag(holds="folder")],
    *,
    slides: Annotated[Path, Flag("WORK", holds="any")] | None = None,
    slide_mpp: MppWithSlides | None = None,
    against: Annotated[Path, Flag("OTHER", holds="folder")] | None = None,
    port: Whole | None = None,
    open: bool = False,
    export: Dir | None = None,
    max_mpp: Annotated[PositiveFloat, Flag("MPP", needs=EXPORT)] | None = None,
    full: Annotated[bool, Flag(needs=EXPORT)] = False,
    overwrite: Annotated[bool, Flag(needs=EXPORT)] = False,
    json: bool = False,
) -> Answer | None:
    """Look at predictions in a browser: slides and scans with maps of evidence and uncertainty.

    The page is served to this machine alone, until ctrl-C. With --export, it is written to a folder
    that opens in a browser without a server. docs/view.md describes the page.

    Args:
        predictions: Run folder, or folder that probsa predict wrote.
        slides: Show maps over the slides, or beside the slices of scans: the work folder of probsa
            patch, or a folder of slides or series.
        against: Run or predictions of another model for the same bags, to show the difference.

    Server:
        port: Port. Default: a free one.
        open: Open the page in the default browser.

    Export:
        export: Write the page to this folder instead of serving it.
        max_mpp: Finest resolution of exported slides, in micrometres per pixel. Default: 2,
            and the resolution of the patches where they lie.
        full: Export slides and slices of scans at their full resolution.
        overwrite: Replace an earlier export.
    """
    if export is not None and (open or port is not None):
        raise InputError("--open and --port are for the server, which --export does not start")
    if max_mpp is not None and full:
        raise InputError("--max-mpp is not allowed with --full: give one of the two")
    from ...evaluation import read_predictions
    from ...slides import read_resolutions

    for folder in (predictions, against):
        if folder is not None:
            read_predictions(folder)
    mpp = None if slide_mpp is None else read_resolutions(slide_mpp)
    from ...view import check_export

    if export is not None:
        check_export(export, overwrite=overwrite)
    from ...view import MAX_MPP, SLICE_PIXELS, ViewData, export_page, serve
    from ..terminal import Counter

    def ready(address: str) -> None:
        if json:
            write_json({"address": address, "bags": len(data.rows)})
        else:
            write(address)
            write("The page is for this machine alone. Stop with ctrl-C.", error=True)
        if open:
            import webbrowser

            webbrowser.open(address)

    reduced = export is not None and not full
    data = ViewData(
        predictions,
        slides=slides,
        against=against,
        mpp=mpp,
        max_mpp=(max_mpp or MAX_MPP) if reduced else None,
        patch_mpp=max_mpp is None,
        most_pixels=SLICE_PIXELS if reduced else None,
    )
    try:
        if export is None:
            serve(data, port=port or 0, ready=ready)
            return None
        with Counter("exporting") as count:
            done = export_page(data, export, overwrite=overwrite, progress=count)
    finally:
        data.close()
    failed = [{"bag": b, "reason": r} for b, r in done.failures]
    page = done.folder / "index.html"
    document = {"page": str(page), "bytes": done.bytes, "bags": done.bags, "failed": failed}
    return Answer(document, f"page: {page} ({done.bytes / 1e6:,.1f} MB)", list(done.failures))
