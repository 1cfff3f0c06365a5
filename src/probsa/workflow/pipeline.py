"""From slides or scans to predictions and maps with a trained run, in one go.

work          in the output folder: what `probsa patch` and `probsa extract` write
predictions   what `probsa predict` writes          maps   what `probsa map` writes
page          what `probsa view --export` writes: index.html opens without a server
run.json      what the predictions were made from: the same ones are not made again
not_drawn.json  what could not be drawn, which the next call tries again
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..cohorts import (
    CohortReport,
    FeatureRecipe,
    RunOptions,
    WorkFolder,
    extract_cohort,
    patch_cohort,
)
from ..core import (
    TextTable,
    as_paths,
    files_matching,
    open_output,
    read_json,
    read_record,
    write_json,
)
from ..errors import InputError
from ..evaluation import FAILED, read_predictions
from ..maps import CohortSources, OverlaySettings, render_folder
from ..patches import PatchSettings
from ..training import RunFolder
from ..view import MAX_MPP, SLICE_PIXELS, ViewData, export_page
from .folders import predict_folder
from .recipes import check_encoder
from .writing import Failures

Step = Literal["patching", "extracting", "predicting", "drawing", "writing the page"]
Watch = Callable[[Step], AbstractContextManager[Any]]
"""Called at the start of a step; its context gives a function that is told the progress."""
NOT_DRAWN = "not_drawn.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions:
    """What the run does not state, and how the work is done."""

    weights: str | None = None
    """Weights of the encoder: a file, a URL or `hub`."""
    device: str = "auto"
    slide_mpp: float | Mapping[str, float] | None = None
    """Micrometres per level-0 pixel, of all slides or by name."""
    labels: Path | None = None
    """Table of labels to include in the table of predictions."""
    other_features: bool = False
    workers: int = 0
    """Processes that cut patches; 0 chooses."""
    readers: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        as_paths(self)


@dataclass(kw_only=True, slots=True)
class PipelineResult:
    """What was made, and what became of the inputs that failed."""

    predictions: Path
    maps: Path
    page: Path
    predicted: int = 0
    kept: bool = False
    """Whether the predictions of an earlier call were kept."""
    reports: list[CohortReport] = field(default_factory=list)
    failures: Failures = field(default_factory=list)
    """(bag, reason) of inputs that have no prediction or no map."""


def run_pipeline(
    source: Path | str,
    *,
    runs: Sequence[Path | str],
    out: Path | str,
    recipe: FeatureRecipe,
    options: PipelineOptions,
    watch: Watch,
) -> PipelineResult:
    """Cut, encode, predict and draw every slide or scan of a folder.

    An interrupted call continues where it stopped. The results are those of `probsa patch`,
    `extract`, `predict` and `map`, one after another.

    Args:
        source: a folder of slides, DICOM studies or NIfTI files, or one of them.
        runs: run folders; several are combined.
        out: folder to write to.
        recipe: how the features of the runs were made.
        options: what the runs do not state.
        watch: shows the progress of each step.

    Raises:
        InputError: there is nothing to read, or nothing of the kind that the runs know.
        WeightsError: the weights of the encoder are missing, or are not those of the training.
    """
    source = Path(source)
    out = Path(out)
    result = PipelineResult(predictions=out / "predictions", maps=out / "maps", page=out / "page")
    check_encoder(runs, recipe.encoder, any_name=options.other_features)
    work = out / "work"
    mpp = options.slide_mpp
    features, result.reports = _make_features(source, work, recipe, options, watch=watch)
    for report in result.reports:
        result.failures += report.failures
    open_output(out, earlier=_earlier_files)
    made_from = _made_from(list(map(Path, runs)), features, options)
    stamp = out / "run.json"
    stored = None
    with suppress(InputError):
        stored = read_json(stamp, advice="")
    result.kept = result.predictions.is_dir() and stored == made_from
    failed = result.predictions / FAILED
    if not result.kept:
        with watch("predicting") as count:
            predicted = predict_folder(
                runs,
                features,
                out=result.predictions,
                labels=options.labels,
                device=options.device,
                other_features=options.other_features,
                overwrite=True,
                on_bag=count,
            )
        result.failures += predicted.failures
        write_json(stamp, made_from)
    elif failed.is_file():
        result.failures += [(row["bag"], row["reason"]) for row in TextTable.read(failed).rows]
    names = read_predictions(result.predictions).bags
    result.predicted = len(names)
    since = stamp.stat().st_mtime_ns

    def is_newer(path: Path) -> bool:
        return path.is_file() and path.stat().st_mtime_ns >= since

    # a map or a page may be there without the slide that could not be read
    not_drawn = _read_not_drawn(out / NOT_DRAWN)
    tried_again = {bag for bag, _ in not_drawn.maps}
    with watch("drawing") as count:
        failures_of_maps = render_folder(
            result.predictions,
            result.maps,
            bags=[
                name
                for name in names
                if name in tried_again or not is_newer(result.maps / f"{name}.png")
            ],
            over=(CohortSources(work, mpp=mpp), OverlaySettings()),
            progress=count,
        )
    failures_of_page: Failures = []
    if not_drawn.page or not is_newer(result.page / "index.html"):
        data = ViewData(
            result.predictions, slides=work, mpp=mpp, max_mpp=MAX_MPP, most_pixels=SLICE_PIXELS
        )
        with closing(data), watch("writing the page") as count:
            export = export_page(data, result.page, overwrite=True, progress=count)
        failures_of_page = list(export.failures)
    write_json(out / NOT_DRAWN, {"maps": failures_of_maps, "page": failures_of_page})
    result.failures += failures_of_maps
    result.failures += failures_of_page
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class _NotDrawn:
    """The (bag, reason) pairs of what an earlier call could not draw."""

    maps: tuple[tuple[str, str], ...] = ()
    page: tuple[tuple[str, str], ...] = ()


def _read_not_drawn(file: Path) -> _NotDrawn:
    """Read what an earlier call could not draw; nothing if there was none."""
    if not file.is_file():
        return _NotDrawn()
    return read_record(_NotDrawn, file, advice="remove it to draw what is missing alone")


def _earlier_files(out: Path) -> list[Path]:
    """List the files that a version of probsa without ledgers wrote, if it did."""
    try:
        made_from = read_json(out / "run.json")
    except InputError:  # there is none, or it is another file
        return []
    if not isinstance(made_from, dict) or "files" not in made_from:
        return []
    return files_matching(out, ("run.json", "maps/*.png"))


def _make_features(
    source: Path,
    work: Path,
    recipe: FeatureRecipe,
    options: PipelineOptions,
    *,
    watch: Watch,
) -> tuple[Path, list[CohortReport]]:
    """Cut and encode the inputs; return the folder of their features, and a report of each step."""
    settings = PatchSettings() if recipe.patches is None else recipe.patches
    extraction = recipe.options(
        weights=options.weights,
        device=options.device,
        readers=options.readers,
        threads=options.threads,
    )
    recipe.check_encoder(extraction)
    with watch("patching") as count:
        reports = patch_cohort(
            source,
            work,
            settings=settings,
            mpp=options.slide_mpp,
            run=RunOptions(workers=options.workers, isolated=options.workers != 1),
            on_outcome=count,
        )
    is_ct = recipe.kind == "ct"
    sets = WorkFolder(work.absolute()).sets()
    name = "slices" if is_ct else settings.folder
    if name not in sets:
        expected = "CT series" if is_ct else "slides"
        raise InputError(f"{source} has no {expected}, which the run was trained on")
    with watch("extracting") as count:
        extracted = extract_cohort(work, extraction, patch_set=name, on_outcome=count)
    return sets[name].features(recipe.encoder), [*reports, extracted]


def _made_from(runs: Sequence[Path], features: Path, options: PipelineOptions) -> dict[str, Any]:
    """Return what a folder of predictions depends on: the sizes and times of all files."""
    files = sorted(features.glob("*.h5"))
    if options.labels is not None:
        files.append(options.labels)
    for run in runs:
        for member in RunFolder(run).members():
            files += [member.config_file, member.best]
    states: dict[str, list[int]] = {}
    for file in files:
        state = file.stat()
        states[str(file.absolute())] = [state.st_size, state.st_mtime_ns]
    return {"files": states, "other_features": options.other_features}
