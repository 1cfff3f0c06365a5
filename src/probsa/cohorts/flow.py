"""Stages 1 to 3 of a whole cohort: a folder of slides or studies to patches, and to features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ..errors import InputError
from ..jobs import Engine, Outcome, Task, cores, remove_leftovers, run_tasks
from ..patches import PatchSettings
from .extraction import Extraction, ExtractOptions
from .inputs import Resolution, find_inputs
from .patching import Patching
from .records import NOUNS
from .report import CohortReport, write_report
from .work import SLICES, PatchSet, WorkFolder, settle

OnOutcome = Callable[[Outcome, int], None]
"""Told each outcome as it becomes known, and how many there will be."""
T = TypeVar("T")
MOST_WORKERS = 8
"""Where nobody says how many: more of them wait for the disk, and each holds a slide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How the work is shared out; nothing of it changes a result."""

    engine: Engine = "local"
    workers: int = 1
    """Processes or actors at work at a time; 0: by the cores, and by how much there is to do."""
    gpus: bool = False
    """Whether each has a GPU of its own."""
    shard: tuple[int, int] = (0, 1)
    """(i, n): every n-th item from the i-th on, from 0: one part of a run on n machines."""
    overwrite: bool = False
    """Make everything anew."""


ALONE = RunOptions()


def patch_cohort(
    source: Path,
    out: Path,
    *,
    settings: PatchSettings,
    contours: Path | None = None,
    mpp: Resolution | None = None,
    run: RunOptions = ALONE,
    on_outcome: OnOutcome | None = None,
) -> tuple[CohortReport, ...]:
    """Tissue and patches of every slide, slices of every series; one report for each kind.

    What is there already and was made alike is kept; what failed before is tried again.

    Args:
        source: a folder of slides, DICOM studies or NIfTI files, or one of them.
        out: the work folder.
        settings: of the patches of slides.
        contours: a folder of GeoJSON files that are the tissue instead.
        mpp: micrometres per level-0 pixel of all slides or by name: wins over what files say.
        run: how the work is shared out.
        on_outcome: told of each slide.

    Raises:
        InputError: nothing to read; the work folder was made with other settings.
    """
    # workers of a cluster have working folders of their own
    source, out = source.absolute(), out.absolute()
    contours = None if contours is None else contours.absolute()
    items = find_inputs(source, mpp=mpp)
    if contours is not None and not contours.is_dir():
        raise InputError(f"there is no folder of contours {contours}")
    work, reports = WorkFolder(out), []
    kinds = ("slide", "ct")
    total = sum(len(part([i for i in items if i.kind == k], run.shard)) for k in kinds)
    for kind in kinds:
        of_kind = [i for i in items if i.kind == kind]
        if not of_kind:
            continue
        own = settings if kind == "slide" else None
        patch_set = _settled(work, own, overwrite=run.overwrite)
        stage = Patching(work, patch_set, settings=own, contours=contours)
        tasks = [
            Task(
                name=i.name,
                target=patch_set.patches_file(i.name),
                noun=NOUNS[i.kind],
                payload=i,
            )
            for i in part(of_kind, run.shard)
        ]
        outcomes = _done(stage, tasks, run=run, total=total, on_outcome=on_outcome)
        what = "patches" if kind == "slide" else "slices"
        table, records = patch_set.report(_name("patch", run.shard)), list(patch_set.records())
        others = records if run.shard[1] == 1 else ()
        reports.append(write_report(table, outcomes, records, what=what, others=others))
    return tuple(reports)


def _settled(work: WorkFolder, settings: PatchSettings | None, *, overwrite: bool) -> PatchSet:
    """The set of patches of these settings; refuses a folder made with others."""
    if settings is None:
        patch_set = PatchSet(work.path / SLICES)
        settle(patch_set.settings_file, {"kind": "ct"}, overwrite=overwrite, what="settings")
        return patch_set
    described = settings.to_dict()
    tissue = described.pop("tissue")
    settle(work.tissue_file, tissue, overwrite=overwrite, what="tissue settings")
    patch_set = PatchSet(work.path / settings.folder)
    settle(patch_set.settings_file, described, overwrite=overwrite, what="settings")
    return patch_set


def extract_cohort(
    out: Path,
    options: ExtractOptions,
    *,
    patch_set: str | None = None,
    slides: Path | None = None,
    run: RunOptions = ALONE,
    on_outcome: OnOutcome | None = None,
) -> CohortReport:
    """The features of every slide that has patches.

    Args:
        out: the work folder.
        options: the encoder and how it is used.
        patch_set: which set of patches, where there are several.
        slides: where the slides are now, if they were moved since.
        run: how the work is shared out.
        on_outcome: told of each slide.

    Raises:
        InputError: no work folder; WeightsError: an encoder without its weights.
    """
    chosen = WorkFolder(out.absolute()).choose(patch_set)
    known = list(chosen.records())
    records = [r for r in known if r.status == "done"]
    without = len(known) - len(records)
    if not records:
        raise InputError(
            f"no slide of {chosen.path} has patches: see {chosen.report('patch')} for the reasons"
        )
    if slides is not None:
        moved = {i.name: i for i in find_inputs(slides.absolute())}
        records = [moved[r.name].moved(r) if r.name in moved else r for r in records]
    options = options.absolute()
    alone = run.engine == "local" and run.workers == 1
    # where workers load one each, this one only says what it is: it leaves the GPU to them
    encoder = (options if alone else replace(options, device="cpu")).build()
    stage = Extraction(
        chosen, options, identity=encoder.identity, encoder=encoder if alone else None
    )
    tasks = [
        Task(name=r.name, target=stage.folder / f"{r.name}.h5", noun=NOUNS[r.kind], payload=r)
        for r in part(records, run.shard)
    ]
    current = chosen.made_with
    fit = [t for t in tasks if t.payload.settings in ("", current)]
    outcomes = [_of_other_settings(t) for t in tasks if t.payload.settings not in ("", current)]
    outcomes += _done(stage, fit, run=run, total=len(fit), on_outcome=on_outcome)
    metadata = [f"{encoder.name}: {encoder.width} features; licence: {encoder.card.licence}"]
    if without:
        metadata.append(f"{without} without patches are left out: {chosen.report('patch')}")
    return write_report(
        chosen.report(_name(stage.folder.name, run.shard)),
        outcomes,
        records,
        what="instances",
        others=chosen.records(stage.name) if run.shard[1] == 1 else (),
        metadata=tuple(metadata),
    )


def _of_other_settings(task: Task) -> Outcome:
    """Of a slide that was not among those that `probsa patch --overwrite` made anew."""
    reason = (
        "its patches were made with other settings than the folder's are now: give --overwrite to "
        f"probsa patch for this {task.noun} too, and then to probsa extract"
    )
    return Outcome(name=task.name, status="failed", reason=reason, source=task.payload.source)


def _done(
    stage: Patching | Extraction,
    tasks: Sequence[Task],
    *,
    run: RunOptions,
    total: int,
    on_outcome: OnOutcome | None,
) -> list[Outcome]:
    """Every task's outcome; `total` is what the run has in all."""
    work = WorkFolder(stage.set.path.parent)
    report = stage.set.report(_name(stage.name, run.shard))
    shared = (work.tissue_file, stage.set.settings_file, report)
    remove_leftovers(work.path, tasks, outputs=stage.outputs, shared=shared)
    stage.prepare(tasks, overwrite=run.overwrite)
    # starting a process takes as long as a few slides
    few = max(1, min(MOST_WORKERS, cores(), len(tasks) // 4))

    def told(outcome: Outcome) -> None:
        if on_outcome is not None:
            on_outcome(outcome, total)

    return run_tasks(
        stage,
        tasks,
        engine=run.engine,
        workers=run.workers or few,
        gpus=run.gpus,
        on_outcome=told,
    )


def part(items: Sequence[T], shard: tuple[int, int]) -> list[T]:
    """Every n-th item from the i-th on.

    Raises:
        InputError: no such part.
    """
    i, n = shard
    if not 0 <= i < n:
        raise InputError(f"shard {i}/{n}: give i/n with i from 0 to n − 1")
    return list(items)[i::n]


def _name(stage: str, shard: tuple[int, int]) -> str:
    """Of the report: machines that share a cohort have one each."""
    return stage if shard[1] == 1 else f"{stage}_{shard[0]}of{shard[1]}"
