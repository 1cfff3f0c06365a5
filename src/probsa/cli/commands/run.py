"""probsa run."""

from pathlib import Path
from typing import Annotated

from ..command import Answer, Flag, write
from ..flags import Device, LabelsToInclude, Name, ReaderCount, SlideMpp


def run(
    source: Annotated[Path, Flag("INPUT", holds="any")],
    *,
    model: Annotated[list[Path], Flag("RUN", holds="any")],
    out: Annotated[Path, Flag("OUT")],
    labels: LabelsToInclude | None = None,
    weights: Annotated[str, Flag("FILE|URL|hub")] | None = None,
    slide_mpp: SlideMpp | None = None,
    device: Device = "auto",
    readers: ReaderCount | None = None,
    other_features: bool = False,
    encoder: Name | None = None,
    patch_size: Annotated[int, Flag("PIXELS")] | None = None,
    mpp: Annotated[float, Flag("MPP")] | None = None,
) -> Answer:
    """Predict new slides or scans with a trained run, and draw where the evidence is.

    The slides are cut into patches and encoded as the training features of the run were. OUT gets
    work/, predictions/, maps/ and page/, the same as from probsa patch, extract, predict, map and
    view --export. An interrupted command continues where it stopped.

    Args:
        source: Folder of slides, DICOM studies or NIfTI files, or one of them.
        model: Run folder. Several, such as those of a cross-validation, are combined.
        out: Folder to write to.
        weights: Weights of the run's encoder, if it needs any: those of the training.
        other_features: Also predict slides whose resolution or patch size no training bag had.

    For runs that do not state how their features were made:
        encoder: Encoder of the training features.
        patch_size: Side of the patches.
        mpp: Micrometres per pixel of the patches.
    """
    from ...cohorts import check_source
    from ...core import counted
    from ...evaluation import check_truth
    from ...features import check_name
    from ...jobs import cores
    from ...slides import read_resolutions
    from ...training import check_trained

    for folder in model:
        check_trained(folder)
    if encoder is not None:
        check_name(encoder)
    check_source(source)
    resolutions = None if slide_mpp is None else read_resolutions(slide_mpp)
    check_truth(model[0], labels)
    from ...training import choose_device
    from ...workflow import PipelineOptions, StatedRecipe, recipe_of_runs, run_pipeline
    from ..terminal import Counter, OutcomeBar

    stated = StatedRecipe(encoder=encoder, patch_size=patch_size, mpp=mpp)
    recipe, remark = recipe_of_runs(model, stated)
    if remark:
        write(remark, error=True)
    readers = max(1, cores() // 2) if readers is None else readers
    options = PipelineOptions(
        weights=weights,
        device=choose_device(device).type,
        slide_mpp=resolutions,
        labels=labels,
        other_features=other_features,
        readers=readers,
        threads=max(1, cores() - readers),
    )
    over_slides = ("patching", "extracting")
    result = run_pipeline(
        source,
        runs=model,
        out=out,
        recipe=recipe,
        options=options,
        watch=lambda step: (OutcomeBar if step in over_slides else Counter)(step),
    )
    kept = " earlier, and kept" if result.kept else ""
    table = result.predictions / "predictions.csv"
    lines = [
        f"{counted(result.predicted, 'bag')} predicted{kept}: {table}",
        f"maps: {result.maps}",
        f"page: {result.page / 'index.html'}",
    ]
    document = {
        "predictions": str(result.predictions),
        "maps": str(result.maps),
        "page": str(result.page),
        "bags": result.predicted,
        "kept": result.kept,
        "stages": [report.to_dict() for report in result.reports],
        "failed": [{"bag": b, "reason": r} for b, r in result.failures],
    }
    return Answer(document, "\n".join(lines), result.failures)
