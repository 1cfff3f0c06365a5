"""Process a whole cohort: a folder of slides or studies to patches, and patches to features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core import named_file, open_output, optional_path, remove_leftovers, shortened
from ..errors import InputError
from ..jobs import (
    WHOLE,
    Engine,
    Share,
    SlurmJobs,
    Task,
    TaskOutcome,
    cores,
    run_tasks,
    share_of,
)
from ..patches import PatchSettings
from .comparable import PATCHES, TISSUE
from .extraction import Extraction, ExtractOptions
from .geometry import SlideGeometry
from .inputs import Resolution, find_inputs, inputs_by_name, keep_earlier_names
from .patching import Patching
from .records import NOUNS, Record
from .report import CohortReport, write_report
from .stage import CohortStage
from .work import SLICES, PatchSet, WorkFolder, earlier_files, write_settings

OnOutcome = Callable[[TaskOutcome, int], None]
"""Called with each outcome as soon as it is known, and with the number of outcomes to come."""
MAX_DEFAULT_WORKERS = 8
"""Largest default number of workers: more would wait for the disk, and each holds a slide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How the work is divided; none of these options changes a result."""

    engine: Engine = "local"
    workers: int = 1
    """Processes or jobs that work at the same time; 0 chooses by cores and number of tasks."""
    isolated: bool = False
    """Whether slides are cut in a process of its own even by one worker: a decoder that crashes
    then costs one slide. Scripts that set this or several workers need a main guard. The readers
    of an extraction are always processes of their own."""
    gpus: bool = False
    """Whether each worker has a GPU of its own."""
    share: Share = WHOLE
    """The share of the slides and series that is done, so that several machines divide a run."""
    overwrite: bool = False
    """Redo everything."""
    slurm: Mapping[str, Any] = field(default_factory=dict)
    """Options of Slurm jobs: partition, account, timeout_min, …"""
    note: Callable[[str], None] = lambda text: None
    """Called with remarks on Slurm jobs."""


DEFAULT_RUN = RunOptions()


def patch_cohort(
    source: Path | str,
    out: Path | str,
    *,
    settings: PatchSettings,
    contours: Path | str | None = None,
    mpp: Resolution | None = None,
    run: RunOptions = DEFAULT_RUN,
    on_outcome: OnOutcome | None = None,
    on_geometry: Callable[[SlideGeometry], None] | None = None,
) -> tuple[CohortReport, ...]:
    """Find the tissue and cut the patches of every slide; list the slices of every series.

    Existing results that were made in the same way are kept. Earlier failures are tried again.

    Args:
        source: A folder of slides, DICOM studies or NIfTI files, or a single one of them.
        out: The work folder.
        settings: Settings of the patches of slides.
        contours: A folder of GeoJSON files that replace tissue detection.
        mpp: Micrometres per level-0 pixel, for all slides or by name; a value by name takes
            precedence over the file, a value for all slides is used where the file has none.
        run: How the work is divided.
        on_outcome: Called with the outcome of each slide.
        on_geometry: Called with how the patches of each slide are cut, as soon as it is known.

    Returns: One report per kind of input (slides, CT).

    Raises:
        InputError: There is nothing to read, or the work folder was made with other settings.
    """
    # Slurm jobs may have other working directories
    source = Path(source).absolute()
    out = Path(out).absolute()
    contours = optional_path(contours)
    if contours is not None:
        contours = contours.absolute()
    records = find_inputs(source, mpp=mpp)
    if contours is not None and not contours.is_dir():
        raise InputError(f"there is no folder of contours {contours}")
    fallback = None if isinstance(mpp, Mapping) else mpp
    open_output(out, earlier=earlier_files)
    work = WorkFolder(out)
    records = keep_earlier_names(records, work)

    def tell(outcome: TaskOutcome, total: int) -> None:
        if on_geometry is not None and isinstance(outcome, Record) and outcome.geometry is not None:
            on_geometry(outcome.geometry)
        if on_outcome is not None:
            on_outcome(outcome, total)

    slides = [record for record in records if record.kind == "slide"]
    series = [record for record in records if record.kind == "ct"]
    slides_share = share_of(slides, run.share, size=Record.bytes_on_disk)
    series_share = share_of(series, run.share, size=Record.bytes_on_disk)
    total = len(slides_share) + len(series_share)

    def patch(
        inputs: Sequence[Record],
        share: Sequence[Record],
        settings: PatchSettings | None,
        *,
        what: str,
    ) -> CohortReport:
        """Patch the share of the inputs of one kind, and report on it."""
        patch_set = _write_settings(work, settings, overwrite=run.overwrite)
        stage = Patching(work, patch_set, settings=settings, contours=contours, fallback=fallback)
        tasks = [_task(r, patch_set.patches_file(r.name), size=r.bytes_on_disk()) for r in share]
        outcomes = _run_stage(stage, tasks, run=run, total=total, on_outcome=tell)
        table = patch_set.report(_report_name("patch", run.share))
        others = _other_records(patch_set, inputs) if run.share == WHOLE else ()
        return write_report(table, outcomes, what=what, others=others)

    reports = []
    if slides:
        reports.append(patch(slides, slides_share, settings, what="patches"))
    if series:
        reports.append(patch(series, series_share, None, what="slices"))
    return tuple(reports)


def _other_records(patch_set: PatchSet, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records of earlier runs, except those of the same files under another name."""
    names = {record.paths: record.name for record in records}
    for record in patch_set.records():
        if names.get(record.paths, record.name) == record.name:
            yield record


def _write_settings(
    work: WorkFolder, settings: PatchSettings | None, *, overwrite: bool
) -> PatchSet:
    """Return the patch set for some settings (None: for CT), and write these to the work folder.

    Raises:
        InputError: The work folder was made with other settings.
    """
    if settings is None:
        patch_set = PatchSet(work.path / SLICES)
        write_settings(
            patch_set.settings_file,
            {"kind": "ct"},
            options=PATCHES,
            overwrite=overwrite,
            what="settings",
        )
        return patch_set
    values = settings.to_dict()
    tissue = values.pop("tissue")
    write_settings(
        work.tissue_file, tissue, options=TISSUE, overwrite=overwrite, what="tissue settings"
    )
    patch_set = PatchSet(work.path / settings.folder)
    write_settings(
        patch_set.settings_file, values, options=PATCHES, overwrite=overwrite, what="settings"
    )
    return patch_set


def extract_cohort(
    out: Path | str,
    options: ExtractOptions,
    *,
    patch_set: str | None = None,
    slides: Path | str | None = None,
    run: RunOptions = DEFAULT_RUN,
    on_outcome: OnOutcome | None = None,
) -> CohortReport:
    """Compute the features of every slide and series that has patches.

    Args:
        out: The work folder.
        options: The encoder and how it is used.
        patch_set: Name of the patch set, if there are several.
        slides: The folder where the slides are now, if they were moved.
        run: How the work is divided.
        on_outcome: Called with the outcome of each slide.

    Raises:
        InputError: `out` is not a work folder, or no slide has patches.
        WeightsError: The weights of the encoder are missing.
    """
    out = Path(out).absolute()
    slides = optional_path(slides)
    chosen = WorkFolder(out).choose(patch_set)
    all_records = list(chosen.records())
    records = [r for r in all_records if r.status == "done"]
    without_patches = len(all_records) - len(records)
    if not records:
        raise InputError(
            f"no slide of {chosen.path} has patches: see {chosen.report('patch')} for the reasons"
        )
    if slides is not None:
        records = _moved(records, slides.absolute())
    open_output(out, earlier=earlier_files)
    options = options.absolute()
    # if workers load encoders of their own, this process needs only its identity, not the GPU
    is_alone = run.engine == "local" and run.workers == 1
    encoder = (options if is_alone else replace(options, device="cpu")).build()
    stage = Extraction(
        chosen, options, identity=encoder.identity, encoder=encoder if is_alone else None
    )
    todo: list[Task] = []
    outcomes: list[Record] = []
    for record in share_of(records, run.share, size=lambda record: record.count):
        task = _task(record, named_file(stage.folder, record.name, ".h5"), size=record.count)
        # records without settings were written before these were stored
        if record.settings in ("", chosen.made_with):
            todo.append(task)
        else:
            outcomes.append(
                record.failed(
                    "its patches were made with settings other than the folder's current ones: "
                    f"give --overwrite to probsa patch for this {task.noun} too, and then to "
                    "probsa extract"
                )
            )
    outcomes += _run_stage(stage, todo, run=run, total=len(todo), on_outcome=on_outcome)
    metadata = [f"{encoder.name}: {encoder.width} features; licence: {encoder.card.licence}"]
    if without_patches:
        metadata.append(f"{without_patches} without patches are left out: {chosen.report('patch')}")
    return write_report(
        chosen.report(_report_name(stage.name, run.share)),
        outcomes,
        what="instances",
        others=chosen.records(stage.name) if run.share == WHOLE else (),
        metadata=tuple(metadata),
    )


def _moved(records: Sequence[Record], folder: Path) -> list[Record]:
    """Return the records with the files of a folder, where it has slides of their names."""
    inputs = inputs_by_name(folder)
    moved = []
    for record in records:
        file = inputs.get(record.name)
        if file is not None:
            record = replace(record, source=file.source, files=file.files)
        moved.append(record)
    return moved


def _task(record: Record, target: Path, *, size: float) -> Task:
    noun = NOUNS[record.kind]
    return Task(name=record.name, target=target, noun=noun, size=size, payload=record)


def _run_stage(
    stage: CohortStage,
    tasks: Sequence[Task],
    *,
    run: RunOptions,
    total: int,
    on_outcome: OnOutcome | None,
) -> list[Record]:
    """Run the tasks of a stage; `total` is the number of tasks of all stages of the run."""
    work = WorkFolder(stage.set.path.parent)
    report = stage.set.report(_report_name(stage.name, run.share))
    files = {work.tissue_file, stage.set.settings_file, report}
    for task in tasks:
        files.update(stage.outputs(task))
    names_of_leftovers = {path.with_name(shortened(path.name)) for path in files}
    remove_leftovers(work.path, own=names_of_leftovers.__contains__)
    stage.prepare(tasks, overwrite=run.overwrite)
    # starting a process takes as long as a few slides
    default_workers = max(1, min(MAX_DEFAULT_WORKERS, cores(), len(tasks) // 4))

    def pass_on(outcome: TaskOutcome) -> None:
        if on_outcome is not None:
            on_outcome(outcome, total)

    outcomes = run_tasks(
        stage,
        tasks,
        engine=run.engine,
        workers=run.workers or default_workers,
        isolated=run.isolated and stage.crashes,
        gpus=run.gpus,
        slurm=SlurmJobs(folder=work.path / "slurm", options=run.slurm, note=run.note),
        on_outcome=pass_on,
    )
    return [outcome for outcome in outcomes if isinstance(outcome, Record)]


def _report_name(stage: str, share: Share) -> str:
    """Return the name of a report; machines that share a cohort write one report each."""
    return stage if share == WHOLE else f"{stage}_{share.index}of{share.count}"
