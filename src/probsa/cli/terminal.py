"""What a person sees while a command runs: progress on stderr, never on stdout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..benchmark import Unit, Watch
from ..jobs import TaskOutcome
from ..training import Reporter

ERR = Console(stderr=True, highlight=False)
OUT = Console(highlight=False)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
        console=ERR,
        transient=False,
        disable=not ERR.is_terminal,
    )


def spoken(row: Mapping[str, object]) -> str:
    """An epoch's terms and validation scores in a few words."""
    words = []
    for key, value in row.items():
        if key in ("epoch", "learning_rate", "seconds") or (key == "kl_weight" and "kl" not in row):
            continue
        name = (
            key.replace("val_auroc", "val AUROC")
            .replace("val_nll", "val NLL")
            .replace("kl_weight", "λ")
        )
        shown = f"{value:.3f}" if isinstance(value, float) else "undefined"
        words.append(f"{name} {shown}")
    return "  ".join(words)


class TrainingBar(Reporter):
    """A bar that names the epoch, the loss terms and the validation AUROC.

    Where stderr is no terminal (a log file), a line for every tenth of the epochs instead.
    """

    def __init__(self) -> None:
        self.bar = _bar()
        self.task = self.bar.add_task("training", total=1.0, said="")
        self.epochs = 1
        self.said = ""

    def start(self, *, done: int, epochs: int) -> None:
        self.epochs = epochs
        self.bar.start()
        self.bar.update(self.task, total=float(epochs), completed=float(done))
        if done >= epochs:
            self.note(f"all {epochs} epochs are done already")
        elif done:
            self.note(f"going on after epoch {done}")

    def step(self, *, epoch: int, share: float) -> None:
        text = f"epoch {epoch + 1}/{self.epochs}"
        self.bar.update(self.task, completed=epoch + share, description=text)

    def epoch(self, row: Mapping[str, object]) -> None:
        self.said = spoken(row)
        self.bar.update(self.task, said=self.said)
        number = row["epoch"]
        assert isinstance(number, int)
        if not ERR.is_terminal and (number % max(1, self.epochs // 10) == 0 or number == 1):
            self.note(f"epoch {number}/{self.epochs}  {self.said}")

    def remark(self, text: str) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        ERR.print(text, markup=False)

    def close(self) -> None:
        self.bar.stop()


@contextmanager
def training_bar() -> Iterator[TrainingBar]:
    """A `TrainingBar` that is taken down whatever happens."""
    bar = TrainingBar()
    try:
        yield bar
    finally:
        bar.close()


class OutcomeBar:
    """Called with (outcome, total): a bar with the time that is left, and every failure as a line.

    Where stderr is no terminal, a line for every tenth instead of the bar.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.bar = _bar()
        self.task = self.bar.add_task(what, total=None, said="")
        self.done = 0

    def __call__(self, outcome: TaskOutcome, total: int) -> None:
        self.done += 1
        self.bar.update(
            self.task, completed=self.done, total=total, said=f"{self.done}/{total} {outcome.name}"
        )
        if outcome.status != "done":
            ERR.print(f"{outcome.name}: {outcome.reason}", markup=False, soft_wrap=True)
        if not ERR.is_terminal and self.done % max(1, total // 10) == 0:
            ERR.print(f"{self.what} {self.done}/{total}", markup=False)


@contextmanager
def counting_outcomes(what: str) -> Iterator[OutcomeBar]:
    """An `OutcomeBar` that is taken down whatever happens."""
    counter = OutcomeBar(what)
    counter.bar.start()
    try:
        yield counter
    finally:
        counter.bar.stop()


class GridBar(Watch):
    """A bar over the cells of a grid, with what is trained now and the time that is left.

    Where stderr is no terminal, a line for every tenth of the cells instead.
    """

    def __init__(self) -> None:
        self.bar = _bar()
        self.task = self.bar.add_task("cells", total=None, said="")
        self.cells = self.done = self.tenth = 0
        self.unit: Unit | None = None
        self.epochs = 1

    def grid(self, *, cells: int, done: int) -> None:
        self.cells, self.done, self.tenth = cells, done, done * 10 // cells
        self.bar.start()
        self.bar.update(self.task, total=cells, completed=done, said=f"{done}/{cells}")
        if done:
            self.note(f"{done} of {cells} cells are done already")

    def begin(self, unit: Unit) -> None:
        self.unit = unit
        self._say()

    def start(self, *, done: int, epochs: int) -> None:
        self.epochs = epochs

    def step(self, *, epoch: int, share: float) -> None:
        if self.unit is not None:
            part = len(self.unit.cells) * (epoch + share) / self.epochs
            self.bar.update(self.task, completed=self.done + part)

    def epoch(self, row: Mapping[str, object]) -> None:
        self._say(f"epoch {row['epoch']}/{self.epochs}")

    def settled(self, cells: int) -> None:
        self.done = cells
        self.bar.update(self.task, completed=cells)
        self._say()
        if not ERR.is_terminal and cells * 10 // self.cells > self.tenth:
            self.tenth = cells * 10 // self.cells
            self.note(f"cells {cells}/{self.cells}")

    def end(self, unit: Unit, outcome: TaskOutcome) -> None:
        if outcome.status == "failed" and not outcome.kept:
            self.note(f"{outcome.name}: {outcome.reason}")

    def note(self, text: str) -> None:
        ERR.print(text, markup=False, soft_wrap=True)

    def _say(self, epoch: str = "") -> None:
        at = "" if self.unit is None else self.unit.name
        self.bar.update(self.task, said=f"{self.done}/{self.cells} {at} {epoch}".rstrip())


@contextmanager
def grid_bar() -> Iterator[GridBar]:
    """A `GridBar` that is taken down whatever happens."""
    bar = GridBar()
    try:
        yield bar
    finally:
        bar.bar.stop()


@contextmanager
def counting(what: str) -> Iterator["Counter"]:
    """Counts bags."""
    bar = _bar()
    task = bar.add_task(what, total=None, said="")
    bar.start()
    try:
        yield Counter(bar, task)
    finally:
        bar.stop()


class Counter:
    """Called with (done, total)."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.bar, self.task = bar, task

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total, said=f"{done}/{total}")
