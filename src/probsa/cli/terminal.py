"""Progress bars and messages on stderr; stdout is for results."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from ..benchmark import Cell, Watch
from ..core import printable
from ..jobs import TaskOutcome
from ..training import Reporter

ESTIMATE_AFTER = 10.0
"""Seconds of training after which the time of the run is estimated."""


class SafeConsole(Console):
    """A console on which the names of files cannot act as escape codes."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


ERR = SafeConsole(stderr=True, highlight=False)
OUT = SafeConsole(highlight=False)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
        console=ERR,
        transient=False,
        disable=not ERR.is_terminal,
    )


def duration(epochs: float, seconds: float) -> str:
    """Return how long some epochs of so many seconds take, in words."""
    whole = timedelta(seconds=round(epochs * seconds))
    return f"about {whole} (h:mm:ss), {seconds:.1f} s an epoch"


def summary_of_epoch(row: Mapping[str, object]) -> str:
    """Return the loss terms and validation scores of an epoch as one line."""
    words = []
    for key, value in row.items():
        if key in ("epoch", "learning_rate", "seconds") or (key == "kl_weight" and "kl" not in row):
            continue
        name = (
            key.replace("val_auroc", "val AUROC")
            .replace("val_kappa", "val kappa")
            .replace("val_c_index", "val c")
            .replace("val_nll", "val NLL")
            .replace("kl_weight", "λ")
        )
        shown = f"{value:.3f}" if isinstance(value, float) else "undefined"
        words.append(f"{name} {shown}")
    return "  ".join(words)


class TrainingBar(Reporter):
    """A progress bar with the epoch, the loss terms and the validation scores of one run or more.

    If stderr is not a terminal, it writes a line after every tenth of the epochs instead.
    """

    def __init__(self) -> None:
        self.bar = _bar()
        self.task = self.bar.add_task("training", total=1.0, text="")
        self.epochs = 1
        self.of_member = ""
        self.summary = ""
        self.first_step: tuple[float, float] | None = None
        self.estimated = False

    def member(self, number: int, count: int) -> None:
        self.of_member = f"member {number}/{count}  "

    def start(self, *, done: int, epochs: int) -> None:
        self.epochs, self.first_step, self.estimated = epochs, None, False
        self.bar.start()
        self.bar.update(self.task, total=float(epochs), completed=float(done))
        if done >= epochs:
            self.note(f"{self.of_member}all {epochs} epochs are done already")
        elif done:
            self.note(f"{self.of_member}continuing after epoch {done}")

    def step(self, *, epoch: int, share: float) -> None:
        text = f"{self.of_member}epoch {epoch + 1}/{self.epochs}"
        self.bar.update(self.task, completed=epoch + share, description=text)
        self._estimate(epoch + share)

    def _estimate(self, done: float) -> None:
        """Write once how long the remaining epochs will take, from the steps after the first."""
        now = time.monotonic()
        if self.first_step is None:
            self.first_step = now, done
        elif not self.estimated and now - self.first_step[0] >= ESTIMATE_AFTER:
            self.estimated = True
            epoch = (now - self.first_step[0]) / (done - self.first_step[1])
            self.note(f"to go: {duration(self.epochs - done, epoch)}")

    def epoch(self, row: Mapping[str, object]) -> None:
        self.summary = summary_of_epoch(row)
        self.bar.update(self.task, text=self.summary)
        number = row["epoch"]
        assert isinstance(number, int)
        if not ERR.is_terminal and (number % max(1, self.epochs // 10) == 0 or number == 1):
            self.note(f"{self.of_member}epoch {number}/{self.epochs}  {self.summary}")

    def remark(self, text: str) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        ERR.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.bar.stop()


@contextmanager
def training_bar() -> Iterator[TrainingBar]:
    """Yield a `TrainingBar`, and stop it at the end."""
    bar = TrainingBar()
    try:
        yield bar
    finally:
        bar.close()


class OutcomeBar:
    """A progress bar over the outcomes of jobs, with a line for every failure.

    If stderr is not a terminal, it writes a line after every tenth of the jobs instead.

    Args:
        activity: what is being done, as the bar shows it: `patching`.
    """

    def __init__(self, activity: str) -> None:
        self.activity = activity
        self.bar = _bar()
        self.task = self.bar.add_task(activity, total=None, text="")
        self.done = 0

    def __call__(self, outcome: TaskOutcome, total: int) -> None:
        self.done += 1
        self.bar.update(
            self.task, completed=self.done, total=total, text=f"{self.done}/{total} {outcome.name}"
        )
        if outcome.status != "done":
            ERR.print(f"{outcome.name}: {outcome.reason}", markup=False, soft_wrap=True)
        if not ERR.is_terminal and self.done % max(1, total // 10) == 0:
            ERR.print(f"{self.activity} {self.done}/{total}", markup=False)


@contextmanager
def counting_outcomes(activity: str) -> Iterator[OutcomeBar]:
    """Yield an `OutcomeBar`, and stop it at the end."""
    counter = OutcomeBar(activity)
    counter.bar.start()
    try:
        yield counter
    finally:
        counter.bar.stop()


class GridBar(Watch):
    """A progress bar over the cells of a grid, with the cells that are being trained.

    If stderr is not a terminal, it writes a line after every tenth of the cells instead.
    """

    def __init__(self) -> None:
        self.bar = _bar()
        self.task = self.bar.add_task("cells", total=None, text="")
        self.cells = self.done = self.tenths = 0
        self.cell: Cell | None = None
        self.epochs = 1

    def grid(self, *, cells: int, done: int) -> None:
        self.cells, self.done, self.tenths = cells, done, done * 10 // cells
        self.bar.start()
        self.bar.update(self.task, total=cells, completed=done, text=f"{done}/{cells}")
        if done:
            self.note(f"{done} of {cells} cells are done already")

    def begin(self, cell: Cell) -> None:
        self.cell = cell
        self._show()

    def start(self, *, done: int, epochs: int) -> None:
        self.epochs = epochs

    def step(self, *, epoch: int, share: float) -> None:
        if self.cell is not None:
            self.bar.update(self.task, completed=self.done + (epoch + share) / self.epochs)

    def epoch(self, row: Mapping[str, object]) -> None:
        self._show(f"epoch {row['epoch']}/{self.epochs}")

    def settled(self, cells: int) -> None:
        self.done = cells
        self.bar.update(self.task, completed=cells)
        self._show()
        if not ERR.is_terminal and cells * 10 // self.cells > self.tenths:
            self.tenths = cells * 10 // self.cells
            self.note(f"cells {cells}/{self.cells}")

    def end(self, cell: Cell, outcome: TaskOutcome) -> None:
        if outcome.status == "failed" and not outcome.kept:
            self.note(f"{outcome.name}: {outcome.reason}")

    def note(self, text: str) -> None:
        ERR.print(text, markup=False, soft_wrap=True)

    def _show(self, epoch: str = "") -> None:
        name = "" if self.cell is None else self.cell.name
        self.bar.update(self.task, text=f"{self.done}/{self.cells} {name} {epoch}".rstrip())


@contextmanager
def grid_bar() -> Iterator[GridBar]:
    """Yield a `GridBar`, and stop it at the end."""
    bar = GridBar()
    try:
        yield bar
    finally:
        bar.bar.stop()


@contextmanager
def counting(activity: str) -> Iterator["Counter"]:
    """Yield a progress bar that counts bags, and stop it at the end."""
    bar = _bar()
    task = bar.add_task(activity, total=None, text="")
    bar.start()
    try:
        yield Counter(bar, task)
    finally:
        bar.stop()


class Counter:
    """A progress bar that is called with (number of bags done, total number)."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.bar, self.task = bar, task

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total, text=f"{done}/{total}")
