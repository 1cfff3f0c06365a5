"""Progress bars and messages on stderr; stdout is for results."""

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from ..core import printable
from ..jobs import TaskOutcome
from ..training import Reporter

B = TypeVar("B", bound="Bar")
SHOWN = 3
"""How many of the slides that failed for the same reason are named."""
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


class Bar:
    """A progress bar; as a context manager, it is stopped at the end.

    Args:
        activity: what is being done, as the bar shows it: `patching`.
    """

    def __init__(self, activity: str) -> None:
        self.activity = activity
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
            console=ERR,
            disable=not ERR.is_terminal,
        )
        self.task = self.bar.add_task(activity, total=None, text="")
        self.tenths = 0

    def __enter__(self: B) -> B:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def update(self, **fields: Any) -> None:
        """Show other values in the bar."""
        self.bar.update(self.task, **fields)

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        ERR.print(text, markup=False, soft_wrap=True)

    def tenth(self, done: int, total: int, line: str) -> None:
        """Write a line after every tenth of the work, if stderr is not a terminal."""
        if not ERR.is_terminal and done * 10 // total > self.tenths:
            self.note(line)
        self.tenths = done * 10 // total


class Counter(Bar):
    """A progress bar that is called with (number of bags done, total number)."""

    def __call__(self, done: int, total: int) -> None:
        self.update(completed=done, total=total, text=f"{done}/{total}")


class OutcomeBar(Bar):
    """A progress bar over the outcomes of jobs, with a line for every reason of a failure."""

    done = 0

    def __init__(self, activity: str) -> None:
        super().__init__(activity)
        self.failed: dict[str, list[str]] = {}

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for first, *others in self.failed.values():
            if others:
                names = ", ".join(others[:SHOWN]) + ", …" * (len(others) > SHOWN)
                self.note(f"the same as for {first}: {len(others)} more ({names})")

    def __call__(self, outcome: TaskOutcome, total: int) -> None:
        self.done += 1
        text = f"{self.done}/{total} {outcome.name}"
        self.update(completed=self.done, total=total, text=text)
        if outcome.status != "done":
            of_all = outcome.reason.replace(outcome.name, "")
            if of_all not in self.failed:
                self.note(f"{outcome.name}: {outcome.reason}")
            self.failed.setdefault(of_all, []).append(outcome.name)
        self.tenth(self.done, total, f"{self.activity} {self.done}/{total}")


class TrainingBar(Bar, Reporter):
    """A progress bar with the epoch, the loss terms and the validation scores of runs."""

    def __init__(self) -> None:
        super().__init__("training")
        self.epochs = 1
        self.of_member = ""
        self.first_step: tuple[float, float] | None = None
        self.estimated = False

    def member(self, number: int, count: int) -> None:
        self.of_member = f"member {number}/{count}  "

    def start(self, *, done: int, epochs: int) -> None:
        self.epochs = epochs
        self.first_step = None
        self.estimated = False
        self.tenths = done * 10 // max(1, epochs)
        self.update(total=float(epochs), completed=float(done))
        if done >= epochs:
            self.note(f"{self.of_member}all {epochs} epochs are done already")
        elif done:
            self.note(f"{self.of_member}continuing after epoch {done}")

    def step(self, *, epoch: int, share: float) -> None:
        text = f"{self.of_member}epoch {epoch + 1}/{self.epochs}"
        self.update(completed=epoch + share, description=text)
        # write once how long the remaining epochs will take, from the steps after the first
        now = time.monotonic()
        done = epoch + share
        if self.first_step is None:
            self.first_step = now, done
        elif not self.estimated and now - self.first_step[0] >= ESTIMATE_AFTER:
            self.estimated = True
            seconds = (now - self.first_step[0]) / (done - self.first_step[1])
            self.note(f"training to go: {duration(self.epochs - done, seconds)}")

    def epoch(self, row: Mapping[str, object]) -> None:
        summary = summary_of_epoch(row)
        self.update(text=summary)
        number = row["epoch"]
        assert isinstance(number, int)
        line = f"{self.of_member}epoch {number}/{self.epochs}  {summary}"
        if number == 1 and self.epochs > 10 and not ERR.is_terminal:
            self.note(line)
        self.tenth(number, self.epochs, line)

    def count(self, activity: str, done: int, total: int) -> None:
        if done == 1:
            self.tenths = 0
        self.update(description=activity, completed=done, total=total, text=f"{done}/{total}")
        self.tenth(done, total, f"{activity} {done}/{total}")

    def remark(self, text: str) -> None:
        self.note(text)


def duration(epochs: float, seconds: float) -> str:
    """Return how long some epochs of so many seconds take, in words."""
    whole = timedelta(seconds=round(epochs * seconds))
    return f"about {whole} (h:mm:ss), {seconds:.1f} s an epoch"


EPOCH_TITLES = {"val_auroc": "val AUROC", "val_nll": "val NLL"}


def summary_of_epoch(row: Mapping[str, object]) -> str:
    """Return the loss and the validation scores of an epoch as one line.

    What only readers of the paper know is left to metrics.csv: λ, κ, and the term that λ weighs.
    """
    words = []
    for key, value in row.items():
        if key in ("epoch", "learning_rate", "seconds", "kl", "kl_weight", "kappa"):
            continue
        name = EPOCH_TITLES.get(key, key.replace("_", " "))
        words.append(f"{name} {value:.3f}" if isinstance(value, float) else f"{name} undefined")
    return "  ".join(words)
