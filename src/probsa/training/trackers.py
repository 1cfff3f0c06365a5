"""Experiment trackers beside metrics.csv and TensorBoard: MLflow and Weights & Biases.

Each run has one run of the tracker, which a resumed run continues: tracker.json in the run folder
states it. Trackers are configured by their own environment variables (MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME, WANDB_MODE, WANDB_PROJECT); see docs/python.md.
"""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from ..core import NonNegativeInt, orderly_stop, read_record, write_json
from ..errors import InputError, imports_from
from .config import RunConfig, Tracker, leaves
from .run_folder import RunFolder

PROJECT = "probsa"
"""The experiment or project of runs, unless the environment names another."""
MOST = 100
"""Number of parameters that MLflow takes at once."""
log = logging.getLogger("probsa")

Row = Mapping[str, int | float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTracker:
    """The content of tracker.json."""

    tracker: Tracker
    run: str
    """The tracker's own name of the run."""
    epoch: NonNegativeInt = 0
    """The last epoch that it was told of."""


class TrackedRun(ABC):
    """A run as a tracker sees it; `run` names the tracker's run to continue, if there is one."""

    kind: ClassVar[Tracker]
    error: ClassVar[tuple[str, str]]
    """Module and name of what the tracker raises."""
    remedy: ClassVar[str]
    """What users can do if the tracker does not answer."""

    def __init__(self, stored: StoredTracker | None, config: RunConfig, folder: RunFolder) -> None:
        self.file = folder.path / "tracker.json"
        name = self.start(None if stored is None else stored.run, config, folder.path)
        self.state = stored or StoredTracker(tracker=self.kind, run=name)
        self.stopped = False
        write_json(self.file, asdict(self.state))

    @classmethod
    def errors(cls) -> tuple[type[Exception], ...]:
        """Return what the tracker raises."""
        return (getattr(import_module(cls.error[0]), cls.error[1]), OSError)

    def update(self, history: Sequence[Row]) -> None:
        """Log the rows of metrics.csv that the tracker does not have yet.

        A tracker that fails is not asked again; training goes on without it.
        """
        rows = [row for row in history if int(row["epoch"] or 0) > self.state.epoch]
        if not rows or self.stopped:
            return
        try:
            for row in rows:
                values = {
                    key: float(value)
                    for key, value in row.items()
                    if value is not None and key != "epoch"
                }
                self.log(values, epoch=int(row["epoch"] or 0))
        except self.errors() as error:
            self.stopped = True
            log.warning("note: %s stopped, training goes on: %s", self.kind, _first_line(error))
            return
        self.state = replace(self.state, epoch=int(rows[-1]["epoch"] or 0))
        write_json(self.file, asdict(self.state))

    @abstractmethod
    def start(self, run: str | None, config: RunConfig, folder: Path) -> str:
        """Begin or continue a run, and return the tracker's name of it."""

    @abstractmethod
    def log(self, row: Mapping[str, float], *, epoch: int) -> None:
        """Log the numbers of an epoch."""

    @abstractmethod
    def finish(self, *, failed: bool) -> None:
        """End the run, if it is not someone else's."""


class MLflowRun(TrackedRun):
    """A run in MLflow; a child of the active run if there is one."""

    kind = "mlflow"
    error = ("mlflow.exceptions", "MlflowException")
    remedy = "set MLFLOW_TRACKING_URI to a server or a database, such as sqlite:///mlflow.db"

    def start(self, run: str | None, config: RunConfig, folder: Path) -> str:
        mlflow = import_module("mlflow")
        self.client = mlflow.MlflowClient()
        if run is not None:
            self.client.update_run(run, status="RUNNING")
            self.run = run
            return run
        active = mlflow.active_run()
        if active is not None:
            experiment = active.info.experiment_id
            tags = {"mlflow.parentRunId": active.info.run_id}
        else:
            experiment = self._experiment()
            tags = {}
        created = self.client.create_run(experiment, run_name=folder.name, tags=tags)
        self.run = str(created.info.run_id)
        param_class = import_module("mlflow.entities").Param
        params = [param_class(key, str(value)) for key, value in leaves(config.to_dict())]
        for start in range(0, len(params), MOST):
            self.client.log_batch(self.run, params=params[start : start + MOST])
        return self.run

    def _experiment(self) -> str:
        """Return MLflow's number of the experiment of runs, which is created if needed."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            return self.client.create_experiment(name)
        return experiment.experiment_id

    def log(self, row: Mapping[str, float], *, epoch: int) -> None:
        metric_class = import_module("mlflow.entities").Metric
        now = int(time.time() * 1000)  # MLflow counts milliseconds
        metrics = [metric_class(key, value, now, epoch) for key, value in row.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def finish(self, *, failed: bool) -> None:
        self.client.set_terminated(self.run, status="FAILED" if failed else "FINISHED")


class WandbRun(TrackedRun):
    """A run in Weights & Biases: the active one if there is one, else a run of its own."""

    kind = "wandb"
    error = ("wandb.errors", "Error")
    remedy = "log in with `wandb login`, or set WANDB_MODE=offline"

    def start(self, run: str | None, config: RunConfig, folder: Path) -> str:
        wandb = import_module("wandb")
        self.is_own = wandb.run is None
        if wandb.run is not None:
            self.run = wandb.run
            self.run.config.update(config.to_dict(), allow_val_change=True)
        else:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.name,
                id=run,
                resume="allow",
                dir=str(folder),
                config=config.to_dict(),
                settings=wandb.Settings(console="off"),
            )
        return str(self.run.id)

    def log(self, row: Mapping[str, float], *, epoch: int) -> None:
        # the steps of a run that is not ours are counted by those who began it
        self.run.log({"epoch": epoch, **row}, step=epoch if self.is_own else None)

    def finish(self, *, failed: bool) -> None:
        if self.is_own:
            self.run.finish(exit_code=1 if failed else 0)


TRACKERS: dict[Tracker, type[TrackedRun]] = {"mlflow": MLflowRun, "wandb": WandbRun}


@contextmanager
def tracked(config: RunConfig, folder: RunFolder) -> Iterator[TrackedRun | None]:
    """Yield the tracker's run of a run folder, or None if the run has no tracker.

    Raises:
        MissingExtra: the tracker is not installed.
        InputError: it cannot be reached, or does not know the user.
    """
    tracker = config.training.tracker
    if tracker is None:
        yield None
        return
    cls = TRACKERS[tracker]
    with imports_from(tracker, tracker):
        errors = cls.errors()
    file = folder.path / "tracker.json"
    stored = None
    if file.is_file():
        stored = read_record(StoredTracker, file, advice="remove it to begin a new tracked run")
    if stored is not None and stored.tracker != tracker:
        stored = None  # an earlier process used the other tracker
    try:
        run = cls(stored, config, folder)
    except errors as error:
        raise InputError(
            f"{tracker} cannot track this run ({_first_line(error)}): {cls.remedy}, or leave "
            "tracker out"
        ) from error
    failed = True
    try:
        with orderly_stop():  # a signal ends the tracked run as well
            yield run
        failed = False
    finally:
        try:
            run.finish(failed=failed)
        except errors as error:
            log.warning("note: %s could not end its run: %s", tracker, _first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
