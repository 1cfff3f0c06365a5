"""Flags that several commands share, as annotations and as groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ..core import Limits, PositiveInt
from ..errors import InputError
from .command import Answer, Flag

if TYPE_CHECKING:
    from ..cohorts import Estimate, RunOptions
    from ..evaluation import GuaranteeOptions

Dir = Annotated[Path, Flag("DIR", holds="output")]
InputDir = Annotated[Path, Flag("DIR", holds="folder")]
Csv = Annotated[Path, Flag("CSV", holds="file")]
Name = Annotated[str, Flag("NAME")]
Count = Annotated[PositiveInt, Flag("N")]
Whole = Annotated[int, Flag("N")]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    Flag(help="Device to use. Default: auto, which is cuda if there is one, else mps, else cpu."),
]
Classes = Annotated[
    list[str],
    Flag("NAME", "Names of the classes in the order of their indices, if the labels are names."),
]
ThresholdRule = Annotated[
    str,
    Flag(
        "RULE",
        "Choose the threshold of positive calls anew on the validation bags of the run: f1, "
        "youden, sensitivity=0.95, specificity=0.95, or cost=10:1 (a missed positive costs ten "
        "false ones). Default: the stored threshold.",
    ),
]
FeatureSet = Annotated[Name, Flag("NAME", "Folder of features to use if there are several.")]
ReaderCount = Annotated[
    Whole,
    Flag("N", "Number of processes that read and decode patches. Default: half of the cores."),
]
Shard = Annotated[str, Flag("I/N")]
MPP_HELP = (
    "Micrometres per level-0 pixel of slides that do not state it, or a table with the columns "
    "slide and mpp, which takes precedence over the files."
)
SlideMpp = Annotated[str, Flag("MPP|CSV", MPP_HELP)]
MppWithSlides = Annotated[str, Flag("MPP|CSV", MPP_HELP, needs="--slides DIR")]
LabelsToInclude = Annotated[
    Path, Flag("CSV", "Table of labels to include in the table of predictions.", holds="file")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFlags:
    """How the work on a cohort is distributed.

    Work:
        engine: Run on this machine, or as Slurm jobs.
        slurm: Settings of the Slurm jobs: partition, account, timeout_min, cpus_per_task, …
        shard: Do only part I of N, counted from 0, so that N machines can share the work. The
            slides are dealt out by size. Default: 0/1.
        overwrite: Redo everything, including finished work.
        dry_run: Only estimate the number of patches, the disk space and the time, then exit.
    """

    engine: Literal["local", "slurm"] = "local"
    slurm: Annotated[str, Flag("KEY=VALUE,…")] | None = None
    shard: Shard = "0/1"
    overwrite: bool = False
    dry_run: bool = False

    def options(self, *, workers: int, isolated: bool, gpus: bool = False) -> "RunOptions":
        """Return how the work is distributed among a number of workers.

        Raises:
            InputError: a flag has no such value.
        """
        from ..cohorts import RunOptions
        from ..jobs import Share
        from .terminal import ERR

        share = Share.parse(self.shard)
        slurm = _parse_slurm(self.slurm or "")
        return RunOptions(
            engine=self.engine,
            workers=workers,
            isolated=isolated,
            gpus=gpus,
            share=share,
            overwrite=self.overwrite,
            slurm=slurm,
            note=ERR.print,
        )


def _parse_slurm(text: str) -> dict[str, int | str]:
    """Return the settings of `--slurm KEY=VALUE,…`; digits become a number."""
    settings: dict[str, int | str] = {}
    for setting in text.split(","):
        if not setting:
            continue
        key, _, value = setting.partition("=")
        if not (key and value):
            raise InputError(f"--slurm is {text!r}: expected KEY=VALUE,…, as in partition=long")
        settings[key] = int(value) if value.isdecimal() else value
    return settings


def answer_with_estimate(estimate: "Estimate") -> Answer:
    """Return the answer of `--dry-run`."""
    failed = bool(estimate.tried) and len(estimate.failed) == estimate.tried
    return Answer(estimate.to_dict(), estimate.render, status=int(failed))


@dataclass(frozen=True, kw_only=True, slots=True)
class GuaranteeFlags:
    """Prediction sets and accepted calls from calibration bags.

    Args:
        coverage: Make prediction sets that contain the true class of a bag with this probability,
            for example 0.9. For a regression: intervals that contain the true number.
        max_error: Accept only calls so confident that their error rate is at most this, for
            example 0.05.
        calibration: Predictions (or run) of other labelled bags, by the same model, from which the
            guarantees are computed. Default: the validation bags of the predictions.
        per_class: With --coverage: reach the coverage within each class.
        set_score: With --coverage: lac for the smallest sets, aps for sets that adapt to how
            difficult a bag is. For a regression: lac for intervals of equal width, aps for
            intervals as wide as the predicted standard deviation suggests.
    """

    coverage: Annotated[float, Limits(above=0, below=1), Flag("SHARE")] | None = None
    max_error: Annotated[float, Limits(above=0, below=1), Flag("RATE")] | None = None
    calibration: Annotated[Path, Flag("DIR")] | None = None
    per_class: Annotated[bool, Flag(needs="--coverage 0.9")] = False
    set_score: Annotated[Literal["lac", "aps"], Flag(needs="--coverage 0.9")] = "lac"

    @property
    def are_requested(self) -> bool:
        """Whether a flag requests a guarantee."""
        return self.coverage is not None or self.max_error is not None

    def check(self) -> None:
        """Check the flags without importing PyTorch.

        Raises:
            InputError: there are calibration bags but no guarantee is requested, or their folder
                does not hold predictions.
        """
        from ..evaluation import read_predictions

        if self.calibration is None:
            return
        if not self.are_requested:
            raise InputError(
                "--calibration alone guarantees nothing: add a level, for example --coverage 0.9"
            )
        read_predictions(self.calibration)

    def options(self) -> "GuaranteeOptions | None":
        """Return the requested guarantees, or None if there is no flag that requests one."""
        if not self.are_requested:
            return None
        from ..evaluation import GuaranteeOptions

        return GuaranteeOptions(
            coverage=self.coverage,
            max_error=self.max_error,
            calibration=self.calibration,
            per_class=self.per_class,
            score=self.set_score,
        )
